"""A store for each test of the format `tidemark_changes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery_worlds import write_store
from tests.reader_worlds import TOKEN, RunningReader
from tests.spark_frames import LAST, fill
from tidemark.changes.delivery.http.client import held_point, spans
from tidemark.changes.spark import places as of_spark


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_store(tmp_path, LAST)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_spark, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(spans, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(held_point, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(held_point, "PATIENCE_SECONDS", 0.2)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RunningReader]:
    running = RunningReader(tmp_path / "reader")
    fill(running, 1, LAST)
    running.name_server(7)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    running.start()
    yield running
    running.close()
