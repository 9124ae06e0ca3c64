"""Which transactions a task of Spark reads, and what they have of each block. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemark.changes.capture.identity import Origin
from tidemark.changes.delivery.blocks import Key, Walk
from tidemark.changes.delivery.shards import Sharding, ShardPiece, Wants
from tidemark.changes.spark.options import ORDERED_SHARDS, Asked
from tidemark.changes.spark.places import Part, Place
from tidemark.changes.store.block import Chosen
from tidemark.errors import BinlogGapError, RetryableError

if TYPE_CHECKING:
    from tidemark.changes.delivery.spans import Span

ByShard = dict[int, Sequence[ShardPiece]]


def rows_of_a_part(asked: Asked) -> int:
    """About so many rows are in a part; 0: parts are the shards."""
    return 0 if 1 <= asked.shards <= ORDERED_SHARDS else asked.partition_rows


def make_parts(span: Span, asked: Asked) -> list[Part]:
    """The parts of a span: a part a shard, or the stretches into which it is cut."""
    is_remote = asked.place.is_remote
    origin = span.origin and Origin({number: replace(logs, heads={}) for number, logs in span.origin.changes.items()})
    shards = [None] if rows_of_a_part(asked) else range(asked.shards)
    return [
        Part(start.seq, end.seq, shard, origin, (start, end) if is_remote else None)
        for start, end in pairwise(span.cuts)
        for shard in shards
    ]


def read_part(place: Place, part: Part, sharding: Sharding, wants: Wants, *, chosen: Chosen) -> Iterator[ByShard]:
    """What a part has of each block, by shard. `chosen`: columns that are decoded.

    Raises BinlogGapError where retention took it, RetryableError where this machine does not see it yet.
    """
    end = part.end
    with closing(place.read_blocks(part, chosen)) as stretches:
        walk = Walk(stretches, sharding, wants, Key(part.first))
        shards = range(sharding.shards) if part.shard is None else [part.shard]
        while walk.ahead < Key(end):
            try:
                found = walk.read_next(shards)
            except BinlogGapError as gone:
                hint = "raise retain_bytes of the source, or let a task hold what a stream still reads: option task"
                raise BinlogGapError(gone.message, hint=hint, subject=gone.subject) from gone
            if found is None:
                raise RetryableError(
                    f"{place.name} ends before seq:{walk.ahead.seq} on this machine",
                    hint="all machines must see the same folder under this path",
                    subject=f"seq:{walk.ahead.seq}",
                )
            yield {shard: [piece for piece in pieces if piece.seq < end] for shard, pieces in found.by_shard.items()}
