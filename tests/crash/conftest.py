"""Worlds that die lie in memory where there is room for it: thousands are made and removed, and no machine loses power."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.sync_world import memory_disk


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidemark-world-", dir=memory_disk()))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["before", pytest.param("after", marks=pytest.mark.soak)])
def when(request: pytest.FixtureRequest) -> str:
    """Deaths before each effect. Those after an effect leave what one before the next effect leaves, so they are soaked."""
    return str(request.param)
