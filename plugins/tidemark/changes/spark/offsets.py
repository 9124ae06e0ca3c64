"""Where a stream is, as Spark's checkpoint keeps it: a storage point with the source's name.

The number of the next transaction says where to go on. The identity of the last one that is done, and the GTID set, prove
that the store still is the one that the checkpoint is of. The place of the store is not in it: a checkpoint of a folder goes
on at a server of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidemark.changes.delivery.spans import Span
from tidemark.changes.delivery.storage_points import (
    OtherStoreError,
    StoreBehindError,
    is_same_place,
    point_fields,
    read_point_fields,
)
from tidemark.errors import BinlogGapError, PermanentError
from tidemark.ledger.delivery import StoragePoint

FORMAT = 1
Offset = dict[str, Any]


def make_offset(source: str, point: StoragePoint) -> Offset:
    """The offset of a storage point between two transactions."""
    return {"format": FORMAT, "source": source, **point_fields(point)}


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


def name_checkpoint(source: str) -> str:
    return f"the checkpoint of source {source}"


@contextmanager
def checkpoint_hinted(source: str) -> Iterator[None]:
    """What a place says of a checkpoint's point gets the hint of who runs the query."""
    try:
        yield
    except BinlogGapError as gone:
        hint = f"{_begin_anew('earliest')}, without what is gone; raise retain_bytes, or let a task hold it: option task"
        raise BinlogGapError(gone.message, hint=hint, subject=source) from gone
    except (OtherStoreError, StoreBehindError) as other:
        hint = f"give the store that it read; {_begin_anew('POINT')}"
        raise PermanentError(other.message, hint=hint, subject=source) from other


def check_span(source: str, where: str, span: Span, start: StoragePoint, end: StoragePoint | None = None) -> None:
    """Raise PermanentError where a span of a store does not begin, or end, at these points of a checkpoint."""
    wrong = start if not span.is_exact else end if end is not None and not is_same_place(span.end, end) else None
    if wrong is not None:
        raise PermanentError(
            f"{name_checkpoint(source)} stands at seq:{wrong.seq}; {where} has other transactions there",
            hint=f"give the store that it read; or {_begin_anew(f'seq:{span.start.seq}')}: some changes come twice",
            subject=source,
        )


def _begin_anew(point: str) -> str:
    return f'begin a new checkpointLocation with .option("from", "{point}")'
