"""Where a stream is, as Spark's checkpoint keeps it: a storage point with the source's name.

The number of the next transaction says where to go on. The identity of the last one that is done, and the GTID set, prove
that the store still is the one that the checkpoint is of.
"""

from __future__ import annotations

from typing import Any

from tidemark.changes.delivery.storage_points import Start, locate, point_at, point_fields, read_point_fields
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader, open_whole
from tidemark.errors import BinlogGapError, PermanentError
from tidemark.ledger.delivery import StoragePoint

FORMAT = 1
Offset = dict[str, Any]


def make_offset(source: str, reader: Reader, seq: int) -> Offset:
    """The offset before a transaction of the store, or behind its last one."""
    return {"format": FORMAT, "source": source, **point_fields(point_at(reader, seq, 0))}


def read_offset(source: str, offset: Offset) -> StoragePoint:
    """The point of an offset. Raises PermanentError where it is none, or another source's."""
    try:
        point, told = read_point_fields(offset), (offset["format"], offset["source"])
    except (LookupError, TypeError, ValueError) as wrong:
        raise PermanentError(
            f"the checkpoint has no offset of changes: {str(offset)[:200]}", hint=_begin_anew("earliest"), subject=source
        ) from wrong
    if told != (FORMAT, source):
        raise PermanentError(
            f"the checkpoint is of source {told[1]}, format {told[0]}; wanted are source {source}, format {FORMAT}",
            hint=f'.option("source", "{told[1]}"); {_begin_anew("earliest")}',
            subject=source,
        )
    return point


def check_offset(source: str, disk: Disk, offset: Offset) -> int:
    """The transaction with which an offset goes on, of the store that it was made in.

    Raises BinlogGapError where retention took that, PermanentError where the store is another one, or ends before it.
    """
    point = read_offset(source, offset)
    what = f"the checkpoint of source {source}"
    open_whole(disk)  # or it says why the end is not known
    try:
        found = locate(disk, point, what)
    except BinlogGapError as gone:
        hint = f"{_begin_anew('earliest')}, without what is gone; raise retain_bytes, or let a task hold it: option task"
        raise BinlogGapError(gone.message, hint=hint, subject=source) from gone
    except PermanentError as other:
        raise PermanentError(
            other.message, hint=f"give the store that it read; {_begin_anew('POINT')}", subject=source
        ) from other
    if found not in (Start(point.seq), Start(point.seq, 0, point.seq)):
        raise PermanentError(
            f"{what} stands at seq:{point.seq}; the store {disk.root} has other transactions there",
            hint=f"give the store that it read; or {_begin_anew(f'seq:{found.seq}')}: some changes come twice",
            subject=source,
        )
    return point.seq


def _begin_anew(point: str) -> str:
    return f'begin a new checkpointLocation with .option("from", "{point}")'
