"""Blocks of a store, divided into shards as they are read, and kept while the shards of a process go through them.

Shards of one process mostly stand at neighbouring places. So a block is read, decoded and divided once, and each shard takes
its part. A shard that stands elsewhere (it was rewound, or is slow) has a walk of its own. `read_shard` is one shard alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tidemark.changes.delivery.shards import Divider, Sharding, ShardPiece, Wants
from tidemark.changes.store.block import Chosen
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Piece, Reader, Stretch
from tidemark.errors import BinlogGapError, NotFoundError

KEPT = 4
"""Blocks of a walk that are kept."""


@dataclass(frozen=True, order=True)
class Key:
    """Where a block begins for readers: with a transaction, or with a later part of one that is larger than a block."""

    seq: int
    part: int = 0


@dataclass(frozen=True)
class Divided:
    """A block's transactions by shard. `next`: the key of what follows."""

    stretch: Stretch
    by_shard: Mapping[int, Sequence[ShardPiece]]
    next: Key


class Stretches(Protocol):
    """Where blocks come from, one after another, from a transaction on."""

    def read_next(self, ahead: Key) -> Stretch | None:
        """The next block, which begins at `ahead` or has it; None where there is none now."""

    def close(self) -> None: ...


class DiskStretches:
    """The blocks of a store. `chosen`: columns that are decoded, among them those by which rows are divided."""

    def __init__(self, disk: Disk, chosen: Chosen | None = None) -> None:
        self.disk = disk
        self.chosen = chosen
        self._stretches: Iterator[Stretch] = iter(())

    def read_next(self, ahead: Key) -> Stretch | None:
        """BinlogGapError: retention took what is to be read."""
        for attempt in range(2):
            try:
                found = next(self._stretches, None)
                if found is None:
                    self._stretches = self._look_again(ahead)
                    found = next(self._stretches, None)
                return found
            except NotFoundError as gone:  # retention took a bucket of an old view
                if attempt or ahead.part or Reader(self.disk).first > ahead.seq:
                    raise overrun_error(self.disk, ahead.seq) from gone
                self._stretches = iter(())
        return None

    def _look_again(self, ahead: Key) -> Iterator[Stretch]:
        reader = Reader(self.disk)
        if reader.view.end.seq and reader.first > ahead.seq:
            raise overrun_error(self.disk, ahead.seq)
        return reader.read_stretches(ahead.seq, self.chosen)

    def close(self) -> None:
        self._stretches = iter(())


class Walk:
    """One way through a store, block by block, for shards that begin at `goal`. `ahead`: the key of the next block."""

    def __init__(self, stretches: Stretches, sharding: Sharding, wants: Wants, goal: Key) -> None:
        self.stretches = stretches
        self.goal = goal
        self.ahead = Key(goal.seq)
        self.kept: OrderedDict[Key, Divided] = OrderedDict()
        self._divider = Divider(sharding, wants)

    def read_next(self, shards: Collection[int]) -> Divided | None:
        """The block at `ahead`, divided for these shards; None where there is none now. Errors as of the stretches."""
        stretch = self.stretches.read_next(self.ahead)
        if stretch is None:
            return None
        key = self.ahead
        pieces = [piece for piece in stretch.pieces if piece.seq >= key.seq]
        last: Piece = pieces[-1]
        self.ahead = Key(last.seq + 1) if last.ends else Key(last.seq, key.part + 1)
        found = Divided(stretch, self._divider.divide(pieces, shards), self.ahead)
        self.kept[key] = found
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return found


def overrun_error(disk: Disk, seq: int, what: str = "what comes next") -> BinlogGapError:
    """Retention took transactions that a reader has not read."""
    return BinlogGapError(
        f"{what}, seq:{seq}, is not in the store {disk.root} any more: it begins with seq:{Reader(disk).first}",
        hint="./tidemark changes rewind TASK --to earliest goes on without what is gone; raise retain_bytes of the source",
        subject=f"seq:{seq}",
    )


class Blocks:
    """Blocks for all shards of a process. `begin`: the blocks from a transaction on. `shards`: those that it has now."""

    def __init__(
        self, begin: Callable[[int], Stretches], sharding: Sharding, wants: Wants, shards: Callable[[], Collection[int]]
    ) -> None:
        self.sharding = sharding
        self.wants = wants
        self._begin = begin
        self._shards = shards
        self._walks: list[Walk] = []

    def get(self, key: Key, shard: int) -> Divided | None:
        """The block that begins with `key`, divided for `shard` at least; None where there is none now."""
        for walk in self._walks:
            kept = walk.kept.get(key)
            if kept is not None and shard in kept.by_shard:
                return kept
        walk = next((one for one in self._walks if max(one.ahead, one.goal) == key), None) or self._begin_walk(key)
        while walk.ahead < key:
            if walk.read_next([shard]) is None:
                return None
        return walk.read_next({*self._shards(), shard})

    def _begin_walk(self, key: Key) -> Walk:
        walk = Walk(self._begin(key.seq), self.sharding, self.wants, key)
        self._walks.append(walk)
        return walk

    def forget(self, used: Collection[Key]) -> None:
        """Drop walks that none of these keys needs."""
        kept: list[Walk] = []
        left = set(used)
        for walk in self._walks:
            served = {key for key in left if key == max(walk.ahead, walk.goal) or key in walk.kept}
            if served:
                kept.append(walk)
                left -= served
            else:
                walk.stretches.close()
        self._walks = kept

    def has(self, stretches: Stretches) -> bool:
        """Whether a walk is by these."""
        return any(walk.stretches is stretches for walk in self._walks)

    def close(self) -> None:
        self.forget(())


def read_shard(
    disk: Disk, sharding: Sharding, wants: Wants, shard: int, start: tuple[int, int] = (1, 0)
) -> Iterator[Sequence[ShardPiece]]:
    """What one shard has from a place on, to the end that the store has now: its pieces of each block.

    `start`: a transaction, and how many rows of it are left out. BinlogGapError: retention took it.
    """
    blocks = Blocks(lambda _seq: DiskStretches(disk), sharding, wants, lambda: [shard])
    key = Key(start[0])
    while (found := blocks.get(key, shard)) is not None:
        yield [skip_rows(piece, start) for piece in found.by_shard[shard]]
        key = found.next


def skip_rows(piece: ShardPiece, start: tuple[int, int]) -> ShardPiece:
    """A piece without the rows that are before a place in its transaction."""
    from tidemark.changes.store.model import Record, Rows, view_numbers

    seq, index = start
    if piece.seq != seq or not index:
        return piece
    records: list[Record] = []
    for record in piece.transaction.records:
        if isinstance(record, Rows):
            numbers = view_numbers(record.batch.column("i"))
            skipped = int((numbers < index).sum())  # they rise
            if skipped < record.count:
                records.append(Rows(record.shape, record.whole, record.start + skipped, record.count - skipped))
        else:
            records.append(record)
    return replace(piece, transaction=piece.transaction._replace(records=tuple(records)))
