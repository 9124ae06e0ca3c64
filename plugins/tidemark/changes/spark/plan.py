"""Which transactions are a batch of a stream, and which of them a task reads. Mostly by headers of blocks alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.changes.delivery.blocks import DiskStretches, Key, Walk
from tidemark.changes.delivery.shards import Sharding, ShardPiece, Wants
from tidemark.changes.spark.options import ORDERED_SHARDS, Asked
from tidemark.changes.store.block import Chosen
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader
from tidemark.errors import BinlogGapError, RetryableError

ByShard = dict[int, Sequence[ShardPiece]]


@dataclass(frozen=True)
class Part:
    """What one task reads: transactions `first` to before `end`; of all shards, or of one."""

    first: int
    end: int
    shard: int | None = None


def split_span(reader: Reader, first: int, end: int, asked: Asked) -> list[Part]:
    """The parts of transactions `first` to before `end`: a part a shard, or stretches of whole blocks.

    A transaction is in one part, however large it is.
    """
    if first >= end:
        return []
    if 1 <= asked.shards <= ORDERED_SHARDS:
        return [Part(first, end, shard) for shard in range(asked.shards)]
    cuts, rows = [first], 0
    for header in reader.read_headers(first, end):
        if header.begins and rows >= asked.partition_rows:
            cuts.append(header.before.seq + 1)
            rows = 0
        rows += header.rows
    return [Part(*cut) for cut in pairwise([*cuts, end])]


def find_batch_end(reader: Reader, first: int, end: int, most: int) -> int:
    """Where a batch ends that begins with transaction `first`: before `end`, with `most` rows at most, in whole
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


def read_part(disk: Disk, part: Part, sharding: Sharding, wants: Wants, chosen: Chosen | None = None) -> Iterator[ByShard]:
    """What a part has of each block, by shard. `chosen`: columns that are decoded.

    Raises BinlogGapError where retention took it, RetryableError where this machine does not see it yet.
    """
    walk = Walk(DiskStretches(disk, chosen), sharding, wants, Key(part.first))
    shards = range(sharding.shards) if part.shard is None else [part.shard]
    while walk.ahead < Key(part.end):
        try:
            found = walk.read_next(shards)
        except BinlogGapError as gone:
            hint = "raise retain_bytes of the source, or let a task hold what a stream still reads: option task"
            raise BinlogGapError(gone.message, hint=hint, subject=gone.subject) from gone
        if found is None:
            raise RetryableError(
                f"the store {disk.root} ends before seq:{walk.ahead.seq} on this machine",
                hint="all machines must see the same folder under this path",
                subject=f"seq:{walk.ahead.seq}",
            )
        yield {shard: [piece for piece in pieces if piece.seq < part.end] for shard, pieces in found.by_shard.items()}
