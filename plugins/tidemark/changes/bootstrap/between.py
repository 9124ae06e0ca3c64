"""Keys of a table that were changed while a snapshot of MySQL was opened, and are left out of its chunk.

MySQL does not tell where a snapshot stands in its log. It tells which transactions it has finished (`gtid_executed`):
these are in a snapshot that is opened behind the question. And a transaction is in the log before a snapshot has it: none
of those behind the place where the log ended after that is in it. Those in between may be in the snapshot or not. All of
them are in the store when the chunk comes, so it says of their rows what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.bootstrap.chunks import Chunk
from tidemark.changes.capture.transactions import UNPROVED
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import ABSENT, Ddl, Mark, Record, Rows, Shape
from tidemark.changes.store.read import Reader, at_first_outside

Key = tuple[Any, ...]


def leave_out(disk: Disk, chunk: Chunk) -> Chunk | None:
    """A chunk without the rows that changed in between. The store has the changes up to its place. None: it is to be read
    again, for what the store has in between does not say what the rows are."""
    if chunk.seen is None:
        return chunk
    reader = Reader(disk)
    changed = find_changed(reader, chunk.table.shape, chunk.table.key, chunk.seen)
    if not changed:
        return chunk if changed is not None else None
    left = [_without(rows, chunk.table.key, changed) for rows in chunk.records]
    return replace(chunk, records=left, rows=sum(rows.count for rows in left))


def find_changed(
    reader: Reader, shape: Shape, key: Sequence[int], seen: MysqlGtidSet, *, end: int | None = None
) -> set[Key] | None:
    """The keys of a table in between; `key`: the positions of its columns. `end`: the first transaction behind the place, if
    the store goes on. None: a definition may have changed, a row is not told wholly, or the table has no key."""
    found: set[Key] = set()
    for record in _read_between(reader, seen, end):
        if isinstance(record, Ddl) or (isinstance(record, Mark) and record.word == UNPROVED):
            return None
        if not isinstance(record, Rows) or (record.shape.database, record.shape.table) != (shape.database, shape.table):
            continue
        if not key:
            return None
        for row in record.rows():
            for image in (row.before, row.after):
                if image is not None:
                    found.add(tuple(image[number] for number in key))
            if row.after is not None and ABSENT in row.after:
                return None
    return None if any(ABSENT in one for one in found) else found


def _read_between(reader: Reader, seen: MysqlGtidSet, end: int | None) -> Iterator[Record]:
    """The records of the store's transactions that a set lacks, up to before `end`."""
    target = at_first_outside(
        lambda gtids: not seen >= MysqlGtidSet.parse(gtids), lambda gtid: seen >= MysqlGtidSet.parse(gtid)
    )
    found = reader.find(target)
    if found is None:
        return
    for piece in reader.read(found.seq):
        if end is not None and piece.seq >= end:
            return
        gtid = piece.transaction.gtid
        if gtid and not seen >= MysqlGtidSet.parse(gtid):
            yield from piece.transaction.records


def _without(rows: Rows, key: Sequence[int], changed: set[Key]) -> Rows:
    import pyarrow as pa

    columns = [rows.batch.column(f"a{number}").to_pylist() for number in key]
    kept = [one not in changed for one in zip(*columns, strict=True)]
    return rows if all(kept) else Rows(rows.shape, rows.batch.filter(pa.array(kept, pa.bool_())))
