"""What a batch costs, as tasks of an engine: blocks are decoded, files are encoded, keys are folded. Any process that sees
the store and the sink's folder under the same path may run them.

Tasks exchange rows by files below `.staging` of the sink's folder, which nobody else reads. A task changes nothing but its
own file there, so it may run any number of times. The answers are small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.sinks.batches import Ask, Noted, Numbers, Run, fold_runs, read_notes
from tidemark.changes.sinks.fold import Folded, MisfitError
from tidemark.changes.sinks.history import encode_run
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Shape
from tidemark.errors import CorruptionError, PermanentError
from tidemark.stores.agent import durable
from tidemark.untrusted_files import UntrustedFile

_STAMPS = pa.schema([("counts", pa.int64()), ("numbers", pa.int64()), ("times", pa.int64()), ("gtids", pa.string())])


@dataclass(frozen=True)
class StagedRows:
    """Rows of one Arrow batch of a store, and their transactions: two Arrow streams in a file. `size`: bytes of the batch in
    memory. `numbers`: their transactions."""

    shape: Shape
    path: str
    offset: int
    lengths: tuple[int, int]
    rows: int
    size: int
    numbers: Numbers


@dataclass
class StagedRun:
    """A run whose rows are in files."""

    shape: Shape
    parts: list[StagedRows] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def numbers(self) -> Any:
        return np.concatenate([part.numbers for part in self.parts])

    def has_room(self, rows: StagedRows, most: int) -> bool:
        """As of `Run`, so that a run has the same rows wherever it is read."""
        return self.shape == rows.shape and sum(part.size for part in self.parts) + rows.size <= most

    def load(self) -> Run:
        run = Run(self.shape)
        for part in self.parts:
            data = memoryview(_read_bytes(part.path, part.offset, sum(part.lengths)))
            rows, stamps = data[: part.lengths[0]], data[part.lengths[0] :]
            whole = pa.ipc.open_stream(rows).read_next_batch()
            run.parts.append((whole, 0, whole.num_rows))
            run.size += part.size
            told = pa.ipc.open_stream(stamps).read_next_batch()
            for values, column in zip(_list_stamps(run), told.columns, strict=True):
                values.extend(column.to_pylist())
        return run


@dataclass(frozen=True)
class ReadTask:
    """Decode the blocks that have transactions `first` to before `end`. `tables`: patterns. `place`: of the rows."""

    store: str
    tables: tuple[str, ...]
    first: int
    end: int
    place: str

    @property
    def subject(self) -> str:
        return f"seq:{self.first} to seq:{self.end - 1} of {self.store}"


@dataclass(frozen=True)
class Read:
    """`notes`: those that tell something. `rows`: by table, in the order of the store."""

    notes: Sequence[Noted]
    rows: dict[str, list[StagedRows]]


@dataclass(frozen=True)
class EncodeTask:
    """Make the Parquet file of a run, at `place`."""

    run: StagedRun
    place: str

    @property
    def subject(self) -> str:
        return f"the rows of {self.run.shape.database}.{self.run.shape.table}"


@dataclass(frozen=True)
class FoldTask:
    """Answer an ask, whose runs are staged; its rows go to `place`."""

    ask: Ask
    place: str

    @property
    def subject(self) -> str:
        return f"the rows of {self.ask.runs[0].shape.database}.{self.ask.runs[0].shape.table}"


@dataclass(frozen=True)
class Staged:
    """The answer to an ask: `Folded` with its rows in a file; or why they do not fit."""

    path: str
    kept: int = 0
    gone: int = 0
    misfit: str = ""

    def load(self) -> Folded | MisfitError:
        if self.misfit:
            return MisfitError(self.misfit)
        return Folded(pa.ipc.open_stream(_read_bytes(self.path)).read_all(), self.kept, self.gone)


def run_sink_task(task: ReadTask | EncodeTask | FoldTask) -> Read | str | Staged:
    """Run one task, wherever."""
    if isinstance(task, ReadTask):
        return _read_rows(task)
    if isinstance(task, EncodeTask):
        durable.publish(os.fsencode(task.place), [encode_run(task.run.load())])
        return task.place
    folded = fold_runs(task.ask)
    if isinstance(folded, MisfitError):
        return Staged(task.place, misfit=str(folded))
    durable.publish(os.fsencode(task.place), [_encode_table(folded.rows)])
    return Staged(task.place, folded.kept, folded.gone)


def _read_rows(task: ReadTask) -> Read:
    runs: dict[str, list[Run]] = {}
    disk, wants = Disk(Path(task.store)), choose_tables(task.tables)
    notes = read_notes(disk, wants, (task.first, task.end), runs, 0)  # each run is of one Arrow batch then
    found = [noted for noted in notes if noted.items]
    rows: dict[str, list[StagedRows]] = {}
    durable.publish(os.fsencode(task.place), _encode_runs(task.place, runs, rows))
    return Read(found, rows)


def _encode_runs(path: str, runs: dict[str, list[Run]], rows: dict[str, list[StagedRows]]) -> Iterator[bytes]:
    """The bytes of all runs, and where each one's are."""
    offset = 0
    for name, several in runs.items():
        for run in several:
            stamps = [pa.array(values, kind) for values, kind in zip(_list_stamps(run), _STAMPS.types, strict=True)]
            streams = [_encode_batch(run.join()), _encode_batch(pa.record_batch(stamps, schema=_STAMPS))]
            lengths = (len(streams[0]), len(streams[1]))
            numbers = np.unique(np.array(run.numbers, np.int64))
            rows.setdefault(name, []).append(StagedRows(run.shape, path, offset, lengths, run.rows, run.size, numbers))
            offset += sum(lengths)
            yield from streams


def _list_stamps(run: Run) -> tuple[list[Any], ...]:
    return run.counts, run.numbers, run.times, run.gtids


def _encode_batch(batch: Any) -> bytes:
    return _encode_table(pa.Table.from_batches([batch]))


def _encode_table(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _read_bytes(path: str, offset: int = 0, length: int = 0) -> bytes:
    """Some bytes of a staged file, or all."""
    folder, _, name = path.rpartition("/")
    try:
        with UntrustedFile(folder, name).open_file() as file:
            length = length or os.fstat(file.fileno()).st_size
            return b"".join(_read_pieces(file.fileno(), offset, length))
    except FileNotFoundError as gone:
        raise PermanentError(
            f"{path} is not there: a task wrote it elsewhere",
            hint='executors have to see the sink\'s folder under the same path; or set engine = "pool" for the sink',
            subject=path,
        ) from gone


def _read_pieces(handle: int, offset: int, length: int) -> Iterator[bytes]:
    while length > 0:
        piece = os.pread(handle, min(length, 1 << 30), offset)
        if not piece:
            raise CorruptionError("a staged file is shorter than it was")
        yield piece
        offset += len(piece)
        length -= len(piece)
