"""What the store says of rows that a snapshot may have or not: those of transactions shortly before its place.

MySQL does not tell where a snapshot stands in its log. It tells which transactions it has finished (`gtid_executed`):
these are in a snapshot that is opened behind the question. And a transaction is in the log before a snapshot has it: none
of those behind the place where the log ended after that is in it. Those in between may be in the snapshot or not. MariaDB
tells the place, and may lack XA transactions of before it (`chunks.Unsettled`). All of them are in the store when the
chunk comes, so it says of their rows what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.bootstrap.chunks import Chunk, Unsettled
from tidemark.changes.capture.identity import number_of
from tidemark.changes.capture.parked import is_parked
from tidemark.changes.capture.transactions import UNPROVED, XA_COMMIT, XA_ROLLBACK
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import ABSENT, Ddl, Mark, Op, Row, Rows, Shape, Transaction
from tidemark.changes.store.read import Piece, Reader, at_first_outside, at_position

Key = tuple[Any, ...]
Changed = Mapping[Key, tuple[Shape, Sequence[Any]] | None]
"""By key the row as the last change left it; None: there is none."""

DOUBTS = 25
"""How often in a row a chunk is read again for an XA transaction of which the store has nothing. One that is prepared still
is taken for abandoned then: prepared before the store begins, or without a change."""


class Between:
    """Makes chunks of one server certain. The store has the changes up to the place of each."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._former: Unsettled | None = None  # of the snapshots in a row that were in doubt
        self._doubts = 0
        self._abandoned: frozenset[str] = frozenset()

    def settle(self, chunk: Chunk) -> Chunk | None:
        """A chunk with the rows that changed in between as the store has them. None: it is to be read again, a moment later,
        for the store does not say what its rows are."""
        seen = chunk.seen
        if isinstance(seen, Unsettled):
            seen = seen.behind(self._former) if self._former else seen
            doubted = find_doubted(self.disk, seen) - self._abandoned
            if doubted and self._doubts < DOUBTS:
                self._former, self._doubts = replace(seen, prepared=doubted), self._doubts + 1
                return None
            self._abandoned |= doubted
            self._former, self._doubts = None, 0
        return _settle_rows(self.disk, replace(chunk, seen=seen))


def _settle_rows(disk: Disk, chunk: Chunk) -> Chunk | None:
    if chunk.seen is None:
        return chunk
    key = chunk.table.key
    changed = find_changed(Reader(disk), chunk.table.shape, key, chunk.seen)
    if not changed:
        return chunk if changed is not None else None
    left = [_without(rows, key, changed) for rows in chunk.records]
    if chunk.is_first:  # of the rows of before the mark with which it begins none counts
        left += _make_read(changed)
    return replace(chunk, records=left, rows=sum(rows.count for rows in left))


def find_doubted(disk: Disk, seen: Unsettled) -> frozenset[str]:
    """The prepared XA transactions of which the store, which ends at the snapshot's place, does not say that the snapshot
    has all or nothing of them."""
    left = {name for name in seen.prepared if not is_parked(disk, name)}
    for piece in _read_between(Reader(disk), seen) if left else ():
        ends = {mark.text for mark in _marks(piece.transaction) if mark.word in (XA_COMMIT, XA_ROLLBACK)}
        left -= ends
    return frozenset(left)


def find_changed(
    reader: Reader, shape: Shape, key: Sequence[int], seen: MysqlGtidSet | Unsettled, *, end: int | None = None
) -> Changed | None:
    """The rows of a table in between; `key`: the positions of its columns. `end`: the first transaction behind the place, if
    the store goes on. None: a definition may have changed, a row is not told wholly, the table has no key, or one of the
    transactions is larger than a block."""
    found: dict[Key, tuple[Shape, Sequence[Any]] | None] = {}
    for piece in _read_between(reader, seen, end):
        is_certain = _has(seen, piece.transaction)
        for record in piece.transaction.records:
            if isinstance(record, Ddl) or (isinstance(record, Mark) and record.word == UNPROVED and not is_certain):
                return None
            if not isinstance(record, Rows) or (record.shape.database, record.shape.table) != (shape.database, shape.table):
                continue
            if not piece.ends or not (key or is_certain):
                return None
            for row in record.rows():
                if not _note_row(found, record.shape, key, row, is_certain=is_certain):
                    return None
    return found


def _note_row(
    found: dict[Key, tuple[Shape, Sequence[Any]] | None], shape: Shape, key: Sequence[int], row: Row, *, is_certain: bool
) -> bool:
    """Note what a change leaves. False: it does not tell. A certain one counts for rows that others may have changed."""
    keys = [tuple(image[number] for number in key) if image is not None else None for image in (row.before, row.after)]
    if is_certain and not any(one in found for one in keys):
        return True
    before, after = keys
    if before is not None:
        found[before] = None
    if after is not None and row.after is not None:
        found[after] = shape, row.after
        return ABSENT not in row.after and ABSENT not in (before or ())
    return ABSENT not in (before or ())


def _has(seen: MysqlGtidSet | Unsettled, transaction: Transaction) -> bool:
    """Whether a snapshot has a transaction for certain."""
    if isinstance(seen, Unsettled):
        return not any(mark.word == XA_COMMIT for mark in _marks(transaction))
    return seen >= MysqlGtidSet.parse(transaction.gtid)


def _marks(transaction: Transaction) -> Iterator[Mark]:
    return (record for record in transaction.records if isinstance(record, Mark))


def _read_between(reader: Reader, seen: MysqlGtidSet | Unsettled, end: int | None = None) -> Iterator[Piece]:
    """The transactions of the store from the first one on that a snapshot may lack, up to before `end`."""
    if isinstance(seen, Unsettled):
        change_id = max(1, reader.view.end.info.change_id)
        target = at_position((change_id, number_of(seen.since.file), seen.since.position, 0))
    else:
        target = at_first_outside(
            lambda gtids: not seen >= MysqlGtidSet.parse(gtids), lambda gtid: seen >= MysqlGtidSet.parse(gtid)
        )
    found = reader.find(target)
    for piece in reader.read(found.seq) if found else ():
        if end is not None and piece.seq >= end:
            return
        if piece.transaction.gtid:  # else rows that were read
            yield piece


def _without(rows: Rows, key: Sequence[int], changed: Changed) -> Rows:
    import pyarrow as pa

    columns = [rows.batch.column(f"a{number}").to_pylist() for number in key]
    kept = [one not in changed for one in zip(*columns, strict=True)]
    return rows if all(kept) else Rows(rows.shape, rows.batch.filter(pa.array(kept, pa.bool_())))


def _make_read(changed: Changed) -> Iterator[Rows]:
    """The rows that are there, as a bootstrap gives them."""
    there = [row for row in changed.values() if row is not None]
    for shape, rows in groupby(there, key=lambda row: row[0]):
        yield Rows.of(shape, [Row(Op.READ, None, tuple(image)) for _, image in rows])
