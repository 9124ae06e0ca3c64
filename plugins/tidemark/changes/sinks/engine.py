"""Where the work of a batch is done: in this process (the pool, as a sink has one), or by tasks on Spark.

Both give the same rows, and the same bytes of files: a batch that one began may be ended by the other. Only this process
writes to the sink's tables and to the ledger, under the sink's lease. Tasks leave files below `.staging`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from tidemark.changes.delivery.blocks import overrun_error
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.sinks.batches import AnyRun, Ask, Content, fold_runs, judge_notes, read_content
from tidemark.changes.sinks.fold import Folded, MisfitError
from tidemark.changes.sinks.history import encode_run
from tidemark.changes.sinks.tasks import EncodeTask, FoldTask, ReadTask, StagedRun
from tidemark.changes.store.block import Header
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.engines.choose import Engine, choose_engine
from tidemark.errors import NotFoundError, UsageError, limits_named
from tidemark.ledger.delivery import SinkBatch
from tidemark.settings.model import SinkSettings, SparkSettings
from tidemark.stores.agent import durable

POOL, SPARK = "pool", "spark"
KIND = "sink"
STAGING = ".staging"
BLOCKS = 4
"""Blocks of a store that are one task: a block has 4 MiB in memory at most."""


class BatchEngine(Protocol):
    """Does the work of a sink's batches."""

    def read(self, batch: SinkBatch, known: Sequence[str], most: int) -> Content:
        """The content of a batch, as of `read_content`."""

    def encode(self, runs: Sequence[AnyRun]) -> Iterator[bytes | Path]:
        """As `history.Encode`."""

    def fold(self, asks: Sequence[Ask]) -> Iterator[Folded | MisfitError]:
        """As `batches.Fold`."""

    def end_batch(self) -> None:
        """Forget what a batch left: it is written."""


@dataclass(frozen=True)
class HereEngine:
    """All of it in this process, one after the other."""

    disk: Disk
    tables: tuple[str, ...]

    def read(self, batch: SinkBatch, known: Sequence[str], most: int) -> Content:
        return read_content(self.disk, choose_tables(self.tables), batch, known, most=most)

    def encode(self, runs: Sequence[AnyRun]) -> Iterator[bytes | Path]:
        return (encode_run(run.load()) for run in runs)

    def fold(self, asks: Sequence[Ask]) -> Iterator[Folded | MisfitError]:
        return map(fold_runs, asks)

    def end_batch(self) -> None:
        pass


@dataclass
class TaskEngine:
    """By tasks: some blocks are one, a file is one, the keys of a table in a batch are one. `choose`: the engine that runs
    them; it is started when there is something to do. `root`: the sink's folder."""

    disk: Disk
    tables: tuple[str, ...]
    root: Path
    choose: Callable[[], Engine]
    _count: int = 0

    def read(self, batch: SinkBatch, known: Sequence[str], most: int) -> Content:
        try:
            spans = divide_batch(Reader(self.disk).read_headers(batch.first, batch.end), batch)
        except NotFoundError as gone:  # retention took a bucket of an old view
            raise overrun_error(self.disk, batch.first) from gone
        store = str(self.disk.root.absolute())
        tasks = [ReadTask(store, self.tables, first, end, self._next_place()) for first, end in spans]
        answers = self._run(tasks)
        notes = (noted for answer in answers for noted in answer.notes)
        content = judge_notes(notes, choose_tables(self.tables), batch, known)
        inside = [task for task in tasks if task.first < content.end]
        answers = answers[: len(inside)]
        if inside and inside[-1].end > content.end:  # a statement ends the batch, and this task read rows behind it, too
            answers[-1:] = self._run([replace(inside[-1], end=content.end, place=self._next_place())])
        for answer in answers:
            for name, rows in answer.rows.items():
                runs = content.table_of(name).runs
                for part in rows:
                    if not (runs and isinstance(last := runs[-1], StagedRun) and last.has_room(part, most)):
                        runs.append(last := StagedRun(part.shape))
                    last.parts.append(part)
        return content

    def encode(self, runs: Sequence[AnyRun]) -> Iterator[bytes | Path]:
        tasks = [EncodeTask(run, self._next_place()) for run in runs if isinstance(run, StagedRun)]
        return map(Path, self._run(tasks))

    def fold(self, asks: Sequence[Ask]) -> Iterator[Folded | MisfitError]:
        tasks = [FoldTask(ask, self._next_place()) for ask in asks if ask.runs]
        answers = iter(self._run(tasks))
        return (next(answers).load() if ask.runs else fold_runs(ask) for ask in asks)

    def end_batch(self) -> None:
        for place in self._staging.iterdir():
            place.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what this run staged; another one may have the lease by now, and staged, too."""
        if "_staging" in vars(self):
            shutil.rmtree(self._staging, ignore_errors=True)
            with suppress(OSError):  # another run's files are in it
                self._staging.parent.rmdir()

    @cached_property
    def _staging(self) -> Path:
        """A folder of this run alone: a task of a run that was killed may still be at work."""
        with limits_named(self.root):
            durable.make_folder(os.fsencode(self.root / STAGING))
            return Path(tempfile.mkdtemp(dir=self.root / STAGING)).absolute()

    @cached_property
    def _engine(self) -> Engine:
        return self.choose()

    def _next_place(self) -> str:
        self._count += 1
        return str(self._staging / str(self._count))

    def _run(self, tasks: Sequence[Any]) -> list[Any]:
        """What tasks answer, in their order. Raises what the first of them raised that failed."""
        outcomes = sorted(self._engine.run(KIND, tasks), key=lambda one: one.index) if tasks else []
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [outcome.value for outcome in outcomes]


def divide_batch(headers: Iterable[Header], batch: SinkBatch, blocks: int = BLOCKS) -> list[tuple[int, int]]:
    """A batch as stretches of about so many blocks, (first, end) each. A transaction is in one of them. Pure."""
    begins = [header.before.seq + 1 for header in headers if header.transactions and header.begins]
    cuts = [seq for seq in begins[::blocks] if batch.first < seq < batch.end]
    return list(zip([batch.first, *cuts], [*cuts, batch.end], strict=True)) if batch.first < batch.end else []


@contextmanager
def open_engine(
    settings: SinkSettings, spark: SparkSettings, disk: Disk, wanted: Engine | None = None
) -> Iterator[BatchEngine]:
    """The engine of a sink: as its settings and those of Spark say, or by tasks of the `wanted` one. UsageError: executors
    do not see the folders."""
    root = Path(settings.target.removeprefix("file://"))
    # CRASH WINDOW: files of tasks are there, and nobody publishes them: the next run removes them, whatever its engine is.
    shutil.rmtree(root / STAGING, ignore_errors=True)
    if wanted is None and POOL in (settings.engine, spark.engine):
        yield HereEngine(disk, settings.tables)
        return
    if wanted is None and spark.files:
        raise UsageError(
            f"sink {settings.name}: executors have to see its folder and its source's store under the same path, and"
            " [spark] files says that they share none",
            hint='set engine = "pool" for the sink',
            subject=f"sinks.{settings.name}.engine",
        )
    choose = partial(choose_engine, replace(spark, engine=SPARK), wanted or SPARK, 0)
    with closing(TaskEngine(disk, settings.tables, root, choose)) as engine:
        yield engine
