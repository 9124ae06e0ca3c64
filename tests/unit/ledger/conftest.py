"""Every ledger test runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger

PARAMS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.real("postgresql"))]


@pytest.fixture(params=PARAMS)
def empty_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A database without a single table."""
    yield from _open(request, tmp_path, "postgres_url")


@pytest.fixture(params=PARAMS)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A migrated ledger without rows."""
    for ledger in _open(request, tmp_path, "postgres_ledger_url"):
        migrate_ledger(ledger)
        yield ledger


def _open(request: pytest.FixtureRequest, folder: Path, postgres: str) -> Iterator[Ledger]:
    sqlite = request.param == "sqlite"
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}" if sqlite else request.getfixturevalue(postgres))
    yield ledger
    ledger.close()
