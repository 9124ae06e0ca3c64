"""A receiver of its own folder and ledger for tests: load landings, read what readers see, look at rows.

Files are checked and merged in this process, unless a test wants another engine (the pool's children run the same
functions, but take longer to start).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from tests.landing_maker import SITE_A, Sender
from tests.small_files import sealed
from tidemark.app import App, open_app
from tidemark.engines import choose
from tidemark.engines.choose import EngineChoice
from tidemark.engines.task import KINDS, Outcome
from tidemark.engines.worker import out_of_memory, run_task, subject_of
from tidemark.receiver.load.load import load
from tidemark.receiver.load.result import LoadResult
from tidemark.receiver.merge.batch import MergeResult
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.read import Query, ReadResult, read
from tidemark.settings.model import LedgerSettings, ReceiverSettings, Settings

Row = tuple[str, str, int, str, str]


class InlineEngine:
    """Runs tasks here, one after another."""

    name = "inline"

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        module, function = KINDS[kind].split(":")
        work = getattr(importlib.import_module(module), function)
        for index, task in enumerate(tasks):
            try:
                yield Outcome(index, *run_task(work, task))
            except MemoryError:
                yield Outcome(index, error=out_of_memory(subject_of(task), 0))


@dataclass
class Centre:
    folder: Path
    name: str = "centre"
    ledger_url: str = LedgerSettings().url
    engine: EngineChoice = field(default_factory=InlineEngine)
    app: App = field(init=False)
    receiver: ReceiverSettings = field(init=False)

    def __post_init__(self) -> None:
        self.receiver = ReceiverSettings(self.name, f"file://{self.root}")
        self.reopen()

    @property
    def root(self) -> Path:
        """The receiver's folder."""
        return self.folder / "centre"

    def reopen(self) -> None:
        """A new process, as far as Tidemark can tell."""
        settings = Settings(
            path=self.folder / "tidemark.toml",
            ledger=LedgerSettings(self.ledger_url),
            receivers={self.name: self.receiver},
        )
        self.app = open_app(settings)

    def sender(self, site_id: str = SITE_A, **facts: Any) -> Sender:
        return Sender(self.root, site_id, **facts)

    def load(self, site: str = "") -> LoadResult:
        return load(self.app, self.receiver, site, self.engine)

    def merge(self, **options: Any) -> MergeResult:
        return merge(self.app, self.receiver, **{"engine": self.engine} | options)

    def read(self, query: Query | None = None) -> tuple[ReadResult, list[Row]]:
        out = self.folder / "read.parquet"
        result = read(self.app, self.receiver, query or Query(tall=True), out)
        return result, [tuple(row.values()) for row in pq.read_table(out).to_pylist()]

    def rows(self, query: Query | None = None) -> list[Row]:
        return self.read(query)[1]

    def sql(self, query: str, **values: object) -> list[Any]:
        with self.app.ledger.read() as connection:
            return list(connection.execute(sa.text(query), values))

    def files(self, below: str) -> list[str]:
        """Every file below a folder of the receiver, relative to that folder."""
        place = self.root / below
        return sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file() or p.is_symlink())


def run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do in this process what a pool would do: for commands and syncs, which choose the engine themselves."""
    monkeypatch.setattr(choose, "PoolEngine", lambda **_: InlineEngine())


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def d1(*points: tuple[int, int], mods: str = "") -> dict[str, bytes]:
    """A small file of one device with one INT64 series."""
    return sealed({"root.sg.d1": {"s": points}}, mods)


def rows(*points: tuple[int, int]) -> list[Row]:
    """What a tall read gives of `d1`'s points."""
    return [("root.sg.d1", "s", time, "INT64", str(value)) for time, value in points]
