"""Batches: what a consumer is given. Rows of one table and one shard, in the order of the store, and a place behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.changes.binlog.gtid_sets import contains_gtid
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.delivery.blocks import Blocks, Divided, Key, skip_rows
from tidemark.changes.delivery.shards import ShardPiece
from tidemark.changes.delivery.storage_points import Place, Start
from tidemark.changes.store.model import (
    ABSENT,
    Ddl,
    Mark,
    Record,
    Row,
    Rows,
    SchemaChange,
    Shape,
    Transaction,
    make_numbers,
)

ROWS = "rows"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Segment:
    """What a batch has of one transaction. `rows`: of the transaction in all shards together, as far as it is read.
    `first`: the number of its first row in the transaction; of a control, how many rows are before it."""

    seq: int
    transaction: Transaction
    record: Record
    rows: int
    first: int

    @property
    def behind(self) -> int:
        """The number of the row behind it."""
        return int(self.record.batch.column("i")[-1].as_py()) + 1 if isinstance(self.record, Rows) else self.first


@dataclass
class Batch:
    """Changes of one table in one shard, in order; `done()` says that they are dealt with.

    `kind` is `rows`. Who asks for `controls` gets the rest too, each as a batch without rows: `ddl`, `schema`, `commit`,
    `bootstrap_begin` …, with `text`.
    """

    shard: int
    segments: Sequence[Segment]
    start: Place
    after_place: Place
    _settle: Callable[[Batch], bool] = field(repr=False)
    _tell: Callable[[Place], str] = field(repr=False)
    is_done: bool = False

    def __len__(self) -> int:
        return sum(one.record.count for one in self.segments if isinstance(one.record, Rows))

    @property
    def kind(self) -> str:
        record = self.segments[0].record
        if isinstance(record, Rows):
            return ROWS
        return record.word if isinstance(record, Mark) else "ddl" if isinstance(record, Ddl) else "schema"

    @property
    def text(self) -> str:
        """Of a control: the statement, the table, or what belongs to the mark."""
        record = self.segments[0].record
        if isinstance(record, Mark):
            return record.text
        return record.sql if isinstance(record, Ddl) else self.table

    @property
    def schema(self) -> Shape | None:
        """The table's columns: names, types of the source, which are the key. None of a control without a table."""
        record = self.segments[0].record
        return record.shape if isinstance(record, Rows | SchemaChange) else None

    @property
    def table(self) -> str:
        """`database.table`; "" of a control without one."""
        return f"{self.schema.database}.{self.schema.table}" if self.schema else ""

    @property
    def arrow(self) -> Any:
        """The rows as the store has them (`Shape.arrow_schema`), with `i` and `moved` behind."""
        return self._rows.batch

    @property
    def _rows(self) -> Rows:
        """The rows of all segments, which follow each other."""
        first, last = self.segments[0].record, self.segments[-1].record
        assert isinstance(first, Rows)
        assert isinstance(last, Rows)
        return Rows(first.shape, first.whole, first.start, last.start + last.count - first.start)

    @property
    def op(self) -> Any:
        """The operation of each row: `I`, `U`, `D`, `R` (read by a bootstrap), as an Arrow array."""
        return self._rows.letters

    @property
    def before(self) -> Any:
        """The rows as they were: an Arrow array of structs, null where an operation has no such image."""
        return self._image(0)

    @property
    def after(self) -> Any:
        """The rows as they are now, likewise."""
        return self._image(1)

    def _image(self, side: int) -> Any:
        import pyarrow as pa

        rows = self._rows
        arrays, has_none = rows.image(side)
        return pa.StructArray.from_arrays(arrays, names=[c.name for c in rows.shape.columns], mask=make_numbers(has_none))

    def rows(self) -> Iterator[tuple[Segment, int, Row]]:
        """Each row with its transaction, and its number there."""
        for segment in self.segments:
            if isinstance(segment.record, Rows):
                numbers = segment.record.batch.column("i").to_pylist()
                for number, row in zip(numbers, segment.record.rows(), strict=True):
                    yield segment, number, row

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts: `op`, `before`, `after` (by column; a column that the source did not log is left out),
        `seq` and `i` (the transaction's number, the row's number there: they name a change), `gtid`, `ts`."""
        if self.schema is None or self.kind != ROWS:
            return []
        names = [column.name for column in self.schema.columns]

        def named(values: Sequence[Any] | None) -> dict[str, Any] | None:
            if values is None:
                return None
            return {name: value for name, value in zip(names, values, strict=True) if value is not ABSENT}

        return [
            {
                "op": chr(row.op),
                "before": named(row.before),
                "after": named(row.after),
                "seq": segment.seq,
                "i": number,
                "gtid": segment.transaction.gtid,
                "ts": _EPOCH + timedelta(microseconds=segment.transaction.info.timestamp),
            }
            for segment, number, row in self.rows()
        ]

    @property
    def point(self) -> str:
        """The storage point behind this batch, as text: to be kept where its effect is kept, and given back at the start."""
        return self._tell(self.after_place)

    def done(self) -> bool:
        """Say that the batch is dealt with. Points move over unbroken runs of such batches. May be said twice.

        False: another member may have the shard by now, or it was rewound. The rows may come again, or may not, so undo
        nothing.
        """
        return self._settle(self)


class Cursor:
    """The way of one shard through the store."""

    def __init__(self, blocks: Blocks, shard: int, start: Start, *, controls: bool) -> None:
        self.blocks = blocks
        self.shard = shard
        self.key = Key(start.seq)
        self._known = start.known
        self.place: Place | None = None
        """Behind the last block that is read; None: none is."""
        self._half = (start.half, start.index)
        self._skipped = parse_gtids(start.known)
        self._controls = controls
        self._pending: deque[tuple[list[Segment], Place]] = deque()  # with the place behind the block
        self._seq, self._index = self._half

    @property
    def next_place(self) -> Place | None:
        """Before the first row that is not given out yet; None: where the cursor began."""
        return _place_of(*self._pending[0]) if self._pending else self.place

    @property
    def has_pending(self) -> bool:
        """Whether there is something that is read and not given out."""
        return bool(self._pending)

    def take(self, most: int) -> tuple[list[Segment], Place, Place] | None:
        """The next rows of one table, `most` at most, and the places before and behind them; None at the store's end."""
        while not self._pending:
            found = self.blocks.get(self.key, self.shard)
            if found is None:
                return None
            self._collect(found)
        run, block = self._pending.popleft()
        taken, left = _cut(run, most)
        if left:
            self._pending.appendleft((left, block))
        last = taken[-1]
        behind = replace(block, seq=last.seq, index=last.behind)
        if not self._pending and self.place is not None:
            behind = self.place if self.key.part == 0 else behind
        elif self._pending[0][0][0].seq > last.seq:  # the shard has all that it has of this transaction
            behind = replace(block, seq=last.seq + 1, index=0)
        return taken, _place_of(taken, block), behind

    def _collect(self, found: Divided) -> None:
        before = parse_gtids(found.stretch.gtids) if self._skipped is not None else None
        if before is not None and before >= self._skipped:  # type: ignore[operator]
            self._known, self._skipped = "", None  # they are behind us
        runs: list[list[Segment]] = []
        for piece in found.by_shard[self.shard]:
            if self._skipped is not None and contains_gtid(self._skipped, piece.transaction.gtid):
                continue
            if piece.seq != self._seq:
                self._seq, self._index = piece.seq, 0
            for record in self._skip_given(piece).transaction.records:
                if isinstance(record, Rows):
                    first = int(record.batch.column("i")[0].as_py())
                    one = Segment(piece.seq, piece.transaction, record, piece.rows, first)
                    self._index = one.behind
                    if runs and _follows(runs[-1][-1].record, record):
                        runs[-1].append(one)
                    else:
                        runs.append([one])
                elif self._controls:
                    runs.append([Segment(piece.seq, piece.transaction, record, piece.rows, self._index)])
        self.key = found.next
        self.place = block = Place(found.next.seq, self._index if found.next.part else 0, found.stretch, self._known)
        self._pending.extend((run, block) for run in runs)

    def _skip_given(self, piece: ShardPiece) -> ShardPiece:
        """A transaction without the rows of it that are given out already."""
        return skip_rows(piece, self._half)


def _place_of(run: Sequence[Segment], block: Place) -> Place:
    return replace(block, seq=run[0].seq, index=run[0].first)


def _follows(former: Record, rows: Rows) -> bool:
    return isinstance(former, Rows) and former.whole is rows.whole and former.start + former.count == rows.start


def _cut(run: list[Segment], most: int) -> tuple[list[Segment], list[Segment]]:
    taken: list[Segment] = []
    for number, one in enumerate(run):
        record = one.record
        if not isinstance(record, Rows):
            return run, []
        if record.count > most:
            left = Rows(record.shape, record.whole, record.start + most, record.count - most)
            cut = replace(one, record=Rows(record.shape, record.whole, record.start, most))
            return [*taken, cut], [replace(one, record=left, first=cut.behind), *run[number + 1 :]]
        taken.append(one)
        most -= record.count
        if not most:
            return taken, run[number + 1 :]
    return taken, []
