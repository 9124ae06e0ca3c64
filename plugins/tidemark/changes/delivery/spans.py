"""Spans of a store: whole transactions from one place to another, cut into parts that readers take side by side.

Who plans such a reading asks for a span, at the store or at a server of it (`/v1/plan`). It is found by headers of blocks;
a few blocks are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.changes.capture.identity import Origin, read_origin
from tidemark.changes.delivery.points import number_of_point
from tidemark.changes.delivery.storage_points import is_exact, locate, point_after, point_at
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows, Shape
from tidemark.changes.store.read import WHOLE_SECONDS, Reader, open_whole
from tidemark.errors import UsageError
from tidemark.ledger.delivery import StoragePoint

MOST_PARTS = 50_000


@dataclass(frozen=True)
class SpanAsked:
    """Which transactions. `start`: a POINT, or a storage point to go on from. `end`: a POINT that is not in it; "": all that
    there is.

    `most_rows`: it ends before that with so many rows at most, in whole transactions, and one at least. `part_rows`: it is
    cut where a part has about so many. 0: no limit, and no cut. `table`: whose shapes are told; "": none's.
    """

    start: str | StoragePoint = "earliest"
    end: str = ""
    most_rows: int = 0
    part_rows: int = 0
    table: str = ""


@dataclass(frozen=True)
class Span:
    """`cuts`: where each part begins, and where the last one ends; one alone where there is no transaction. GTIDs are known
    of the first and the last. `is_exact`: all before is what the storage point said that it began with; else the store is
    another one, with other transactions there. `shapes`: those that the table ever had, by their last use."""

    cuts: Sequence[StoragePoint]
    is_exact: bool = True
    shapes: Sequence[Shape] = ()
    origin: Origin | None = None

    @property
    def start(self) -> StoragePoint:
        return self.cuts[0]

    @property
    def end(self) -> StoragePoint:
        return self.cuts[-1]


def find_span(
    disk: Disk, asked: SpanAsked, *, what: str = "the point", where: str = "", patience: float = WHOLE_SECONDS
) -> Span:
    """A span of what the store has now. `what`: whose point it begins with; `where`: what the store is called; `patience`:
    how long a capture that takes the store over is waited for.

    Errors of the start as of `number_of_point` and `locate`. UsageError: it would have too many parts.
    """
    if isinstance(asked.start, StoragePoint):
        found = locate(disk, asked.start, what, where)
        first, exact, reader = found.seq, is_exact(found, asked.start), open_whole(disk, patience, where)
    else:
        reader = open_whole(disk, patience, where)
        first, exact = number_of_point(reader, asked.start), True
    end = number_of_point(reader, asked.end) if asked.end else reader.view.end.seq + 1
    if asked.most_rows and first < end:
        end = find_rows_end(reader, first, end, asked.most_rows)
    cuts = [point_at(reader, first, 0)]
    if first < end:
        cuts += _cut_by_rows(reader, first, end, asked.part_rows) if asked.part_rows else ()
        cuts.append(point_at(reader, end, 0))
    return Span(cuts, exact, _find_shapes(reader, asked.table) if asked.table else (), read_origin(disk))


def _cut_by_rows(reader: Reader, first: int, end: int, most: int) -> list[StoragePoint]:
    """Where parts begin behind the first one. A transaction is in one part, however large it is."""
    cuts: list[StoragePoint] = []
    rows, begun = 0, first
    for header in reader.read_headers(first, end):
        following = header.before.seq + 1
        if header.begins and rows >= most and following > begun:  # a transaction that came to no end begins at the same one
            cuts.append(point_after(header.before))
            rows, begun = 0, following
            if len(cuts) >= MOST_PARTS:
                raise UsageError(
                    f"{most} rows a part make more than {MOST_PARTS} parts", hint="ask for larger ones", subject=str(most)
                )
        rows += header.rows
    return cuts


def _find_shapes(reader: Reader, table: str) -> list[Shape]:
    """The shapes that a table has anywhere in the store. Empty: it has no row there. Rows are not read."""
    shapes: dict[Shape, None] = {}
    for shape in reader.read_shapes(reader.first, reader.view.end.seq + 1):
        if f"{shape.database}.{shape.table}" == table:
            shapes.pop(shape, None)
            shapes[shape] = None
    return list(shapes)


def find_rows_end(reader: Reader, first: int, end: int, most: int) -> int:
    """Where a span ends that begins with transaction `first`: before `end`, with `most` rows at most, in whole
    transactions.

    One transaction is in it at least, however large. Rows of all tables count.
    """
    found, rows = first, 0
    for header in reader.read_headers(first, end):
        is_inside = header.before.seq + 1 >= first and header.after.seq < end
        if rows + header.rows <= most and is_inside:
            rows, found = rows + header.rows, max(found, header.after.seq + 1)
        elif header.begins and header.ends:
            for seq, count in _count_rows(reader, max(first, header.before.seq + 1), min(end, header.after.seq + 1)):
                if rows + count > most and found > first:
                    return found
                rows, found = rows + count, seq + 1
        else:  # a part of a transaction in several blocks
            if found > first:
                return found
            rows, found = rows + header.rows, max(found, header.after.seq + 1)
    return found


def _count_rows(reader: Reader, first: int, end: int) -> Iterator[tuple[int, int]]:
    """(number, rows) of the transactions of one block."""
    for piece in next(reader.read_stretches(first)).pieces:
        if first <= piece.seq < end:
            yield piece.seq, sum(record.count for record in piece.transaction.records if isinstance(record, Rows))
