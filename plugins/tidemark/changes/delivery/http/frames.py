"""Codec ARROW: blocks in the format of the store (docs/formats/change-store.md), of a shard or as stored. Pure.

Of a shard's block, rows have the columns `i` and `moved` behind those of their shape. Each transaction ends in a mark
`rows`: how many rows it has in all shards together, and of all tables. Of the states before and after, only `seq` is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.changes.delivery.shards import ShardPiece
from tidemark.changes.store.block import (
    HEADER_BYTES,
    Chosen,
    Draft,
    decode_header,
    encode_block,
    is_sound,
    measure_body,
)
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import Mark, Transaction
from tidemark.changes.store.read import Stretch
from tidemark.errors import CorruptionError

ROWS = "rows"
MOST_DECODED = 1 << 30
"""Bytes of a block that was sent, once it is decompressed. One row may be that large, and no more than a reply."""


@dataclass(frozen=True)
class Frame:
    """A shard's transactions of one block. `gtids`: the source's set before the first of them."""

    gtids: str
    gtids_after: str
    pieces: Sequence[ShardPiece]
    begins: bool = True


def encode_frame(frame: Frame, *, compress: bool = True) -> bytes:
    """A shard's block. Without pieces there is none."""
    transactions = [_with_rows(piece) for piece in frame.pieces]
    first, last = frame.pieces[0], frame.pieces[-1]
    before, after = State(first.seq - 1), State(last.seq if last.ends else last.seq - 1)
    draft = Draft(before, after, frame.gtids, frame.gtids_after, transactions, frame.begins, last.ends)
    return encode_block(draft, compress=compress).place(0, 0)


def _with_rows(piece: ShardPiece) -> Transaction:
    whole = piece.transaction
    records = (*whole.records, Mark(ROWS, f"{piece.rows} {piece.behind}"))
    return Transaction(whole.info, whole.gtid, whole.gtid_offset, records)


def decode_stretch(data: bytes | memoryview, chosen: Chosen | None = None) -> Stretch:
    """A block that was sent, with its size. `chosen`: which columns of rows are decoded. Raises CorruptionError where it is
    not as it was written, or larger than any that is."""
    header = decode_header(data)
    rest = memoryview(data)[HEADER_BYTES:]
    if header is None or not is_sound(header, rest):
        raise CorruptionError("a reader sent a block that is damaged", hint="fetch again, from the last point")
    size = measure_body(header, rest, MOST_DECODED)
    if size > MOST_DECODED:
        raise CorruptionError(f"a reader sent a block of more than {MOST_DECODED} bytes once it is decompressed")
    return Stretch(header, rest, chosen, size)


def decode_frame(data: bytes | memoryview) -> Frame:
    """A shard's block that was sent."""
    stretch = decode_stretch(data)
    pieces = []
    for piece in stretch.pieces:
        *records, mark = piece.transaction.records
        if not isinstance(mark, Mark) or mark.word != ROWS:
            raise CorruptionError("a reader sent a shard's block without the number of rows of a transaction")
        whole = piece.transaction
        transaction = Transaction(whole.info, whole.gtid, whole.gtid_offset, tuple(records))
        rows, behind = map(int, mark.text.split())
        pieces.append(ShardPiece(piece.seq, transaction, rows, piece.ends, behind))
    return Frame(stretch.gtids, stretch.gtids_after, pieces, stretch.header.begins)
