"""Every ledger test runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real("postgresql"))])
def empty_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """A database without a single table."""
    if request.param == "sqlite":
        ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
        yield ledger
        ledger.close()
        return
    ledger = Ledger(request.getfixturevalue("postgres_url"))
    yield ledger
    ledger.close()


@pytest.fixture
def ledger(empty_ledger: Ledger) -> Ledger:
    """A migrated, empty ledger."""
    migrate_ledger(empty_ledger)
    return empty_ledger
