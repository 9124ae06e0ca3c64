"""What a sink writes in one go: whole transactions of a store, and their rows by table.

Which transactions is decided once and recorded, so that a batch holds the same each time it is written. A batch is in
memory while it is written. It has one transaction at least, however large that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.delivery.blocks import read_shard
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.sinks.definitions import ALL, CHANGED, EMPTIED, MADE, RENAMED, find_effects
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Ddl, Mark, Rows, Shape
from tidemark.changes.store.read import Reader
from tidemark.ledger.delivery import PARTIAL, STOPPED, WHOLE, SinkBatch, SinkTable

Wants = Callable[[str, str], bool]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Limits:
    """A batch ends behind the transaction with which it has `rows` rows, or `blocks` blocks of the store: of 4 MiB in memory
    at most, however small they are on the disk."""

    rows: int = 1_000_000
    blocks: int = 256


def find_batch_end(reader: Reader, first: int, until: int, limits: Limits) -> int:
    """The first transaction behind a batch that begins with `first`; at most `until`. `first`: there is nothing."""
    end, rows = first, 0
    for blocks, stretch in enumerate(reader.read_stretches(first) if first < until else (), 1):
        rows += stretch.header.rows
        end = max(end, stretch.header.after.seq + 1)
        if end >= until or (end > first and (rows >= limits.rows or blocks >= limits.blocks)):
            break
    return min(end, until)


@dataclass
class Run:
    """Rows of one table and shape, one behind the other. A list has an item a transaction, `counts` the rows of each."""

    shape: Shape
    parts: list[tuple[Any, int, int]] = field(default_factory=list)  # Arrow batch, start, count
    counts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)

    def add(self, seq: int, info: BinlogInfo, gtid: str, rows: Rows) -> None:
        whole, start, count = self.parts[-1] if self.parts else (None, 0, 0)
        if whole is rows.whole and start + count == rows.start:
            self.parts[-1] = (whole, start, count + rows.count)
        else:
            self.parts.append((rows.whole, rows.start, rows.count))
        for values, value in (
            (self.counts, rows.count),
            (self.numbers, seq),
            (self.times, info.timestamp),
            (self.gtids, gtid),
        ):
            values.append(value)  # type: ignore[arg-type]

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def join(self) -> Any:
        """The rows as one Arrow batch: `Shape.arrow_schema` with `i` and `moved` behind."""
        return pa.concat_batches([whole.slice(start, count) for whole, start, count in self.parts])

    def spread(self, values: Sequence[int]) -> Numbers:
        """A value a row of what has one a transaction."""
        return np.repeat(np.array(values, np.int64), self.counts)


@dataclass
class TableChanges:
    """What a batch has of one table. `events`: (transaction, what, why) that are no rows, in order."""

    name: str
    runs: list[Run] = field(default_factory=list)
    events: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)


def read_batch_tables(disk: Disk, wants: Wants, batch: SinkBatch, known: Sequence[str] = ()) -> dict[str, TableChanges]:
    """The rows and events of a batch by `database.table`. `known`: tables that may be emptied with their database.

    BinlogGapError: retention took them.
    """
    found: dict[str, TableChanges] = {}

    def table_of(name: str) -> TableChanges:
        return found.setdefault(name, TableChanges(name))

    for seq, transaction in _read_transactions(disk, wants, batch):
        for record in transaction.records:
            if isinstance(record, Rows):
                shape = record.shape
                runs = table_of(f"{shape.database}.{shape.table}").runs
                if not runs or runs[-1].shape != shape:
                    runs.append(Run(shape))
                runs[-1].add(seq, transaction.info, transaction.gtid, record)
            elif isinstance(record, Mark) and record.word in (BEGIN, END) and wants(*_split(record.text)):
                table_of(record.text).events.append((seq, record.word, ""))
            elif isinstance(record, Ddl):
                for effect in find_effects(record.database, record.sql):
                    names = [f"{effect.database}.{effect.table}"]
                    if effect.table == ALL:
                        names = sorted(name for name in {*known, *found} if name.startswith(names[0]))
                    why = effect.why or (f"it was renamed from {effect.former}, whose rows it has" if effect.former else "")
                    for name in names:
                        if wants(*_split(name)):
                            table_of(name).events.append((seq, effect.what, why))
    return found


def _read_transactions(disk: Disk, wants: Wants, batch: SinkBatch) -> Iterator[tuple[int, Any]]:
    for pieces in read_shard(disk, Sharding(), wants, 0, (batch.first, 0)) if batch.first < batch.end else ():
        for piece in pieces:
            if piece.seq >= batch.end:
                return
            yield piece.seq, piece.transaction


def _split(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table


@dataclass(frozen=True)
class Window:
    """Which rows of a batch count for a table that is kept as it is: those of transactions `low` to before `high`.

    `clear`: rows that are at the target and were last written before that transaction go. `anew`: the target is made anew.
    """

    low: int
    high: int
    clear: int = 0
    anew: bool = False


def judge_table(state: SinkTable | None, changes: TableChanges, batch: SinkBatch) -> tuple[SinkTable, Window]:
    """How a table is behind a batch, if all can be written, and which of its rows count. Pure."""
    first = batch.first
    if state is None:
        state = SinkTable(changes.name, PARTIAL, seq=first, why="the store has no reading of all its rows")
    low, high, clear, anew = first, batch.end, 0, False
    if state.state == STOPPED:
        low = high
    for seq, what, why in changes.events:
        is_stopped = state.state == STOPPED
        if what == CHANGED and not is_stopped:
            state = replace(state, state=PARTIAL, seq=seq, why=why)
        elif what == RENAMED:
            high = min(high, seq)
            state = replace(state, state=STOPPED, seq=seq, why=why)
        elif what in (EMPTIED, MADE, BEGIN):
            if is_stopped or what == MADE:
                state, anew, clear = replace(state, key=()), True, 0
            if is_stopped or what != BEGIN:
                low, high = seq, batch.end
            if what == BEGIN:
                state = replace(state, state=PARTIAL, begun=seq, seq=seq, why="its rows are being read")
            else:
                clear = seq if what == EMPTIED else 0
                state = replace(state, state=WHOLE, seq=seq, why="")
        elif what == END and state.begun and not is_stopped:
            clear, low = max(clear, state.begun), max(low, state.begun)
            state = replace(state, state=WHOLE, begun=0, seq=seq, why="")
    return state, Window(min(low, high), high, clear, anew)


def cut_run(run: Run, window: Window) -> tuple[Any, Numbers]:
    """The rows of a run that count, and the transaction of each."""
    numbers = run.spread(run.numbers)
    low, high = np.searchsorted(numbers, [window.low, window.high])
    return run.join().slice(int(low), int(high - low)), numbers[low:high]


def count_tables(tables: Mapping[str, TableChanges]) -> dict[str, int]:
    """The rows of each table that has some."""
    return {name: one.rows for name, one in sorted(tables.items()) if one.rows}
