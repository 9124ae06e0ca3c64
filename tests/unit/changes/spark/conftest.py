"""A store for each test of the format `tidemark_changes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delivery_worlds import write_store
from tests.spark_frames import LAST


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_store(tmp_path, LAST)
