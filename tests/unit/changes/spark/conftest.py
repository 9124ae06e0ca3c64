"""A store for each test of the format `tidemark_changes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delivery_worlds import fill_store
from tests.spark_frames import LAST


@pytest.fixture
def config(tmp_path: Path) -> Path:
    fill_store(tmp_path / "store", 1, LAST)
    file = tmp_path / "tidemark.toml"
    file.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')
    return file
