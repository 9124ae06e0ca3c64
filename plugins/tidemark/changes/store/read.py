"""Transactions from a place on, and finding a place by bisection.

A finding asks L1 for the bucket, the bucket's L2 for a stretch of 64 KiB, the headers there for the block, and decodes that
one block. Where an index is missing, the headers of blocks say the same.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tidemark.changes.store.block import HEADER_BYTES, Chosen, Header, Heads, decode_gtids, decode_transactions, find_shapes
from tidemark.changes.store.disk import Disk, OpenFile
from tidemark.changes.store.index import L1_PATH, Index
from tidemark.changes.store.layout import DataPosition, State
from tidemark.changes.store.model import Shape, Transaction
from tidemark.changes.store.view import (
    Bucket,
    View,
    corruption_error,
    missing_error,
    read_first,
    read_gtids,
    read_rest,
    read_view,
    walk_blocks,
)
from tidemark.errors import NotFoundError, RetryableError

WHOLE_SECONDS = 10.0
_LOOK_SECONDS = 0.02
_CLAIMED = "a capture began to take it over and did not end that: let ./tidemark changes capture run, then again"


@dataclass(frozen=True)
class Target:
    """What is looked for: the first transaction after which it is reached. Once reached it stays so.

    `by_state` judges the state after any transaction. Where no state tells, `by_set` judges GTID sets, and `by_gtid` single
    GTIDs. `seq`, `gtid`: its number, or its GTID, where that is what is looked for.
    """

    by_state: Callable[[State], bool] | None = None
    by_set: Callable[[str], bool] = bool
    by_gtid: Callable[[str], bool] = bool
    seq: int | None = None
    gtid: str = ""


def at_seq(seq: int) -> Target:
    """The transaction of this number."""
    return Target(lambda state: state.seq >= seq, seq=seq)


def at_time(microseconds: int) -> Target:
    """The first transaction that was committed at or after a time. Commit times go back; this is the first one in the order
    of the store, so none that is later than the time is missed."""
    return Target(lambda state: state.newest >= microseconds)


def at_position(order: tuple[int, int, int, int]) -> Target:
    """The first transaction at or after (change id, file, offset, event index) at its source."""
    return Target(lambda state: state.info.order >= order)


def at_gtid_offset(offset: int) -> Target:
    """The transaction with which the source's GTID set has this many."""
    return Target(lambda state: state.gtid_offset >= offset)


def at_gtid(gtid: str, contains: Callable[[str, str], bool]) -> Target:
    """The transaction of this GTID. `contains(set, gtid)`: of the source's kind."""
    return Target(by_set=lambda gtids: contains(gtids, gtid), by_gtid=lambda other: other == gtid, gtid=gtid)


def at_first_outside(is_outside: Callable[[str], bool], has: Callable[[str], bool]) -> Target:
    """The first transaction that a GTID set lacks. `is_outside(set)`: another set has more; `has(gtid)`: it has this one."""
    return Target(by_set=is_outside, by_gtid=lambda gtid: bool(gtid) and not has(gtid))


@dataclass(frozen=True)
class Found:
    """A place in the store. `position`: of the block that the transaction `seq` is in; None: the open tail."""

    seq: int
    position: DataPosition | None
    fence: int = 0


@dataclass(frozen=True)
class Piece:
    """A transaction with its number, or a part of one that is larger than a block. `ends`: with this it is whole."""

    seq: int
    transaction: Transaction
    ends: bool = True


@dataclass(frozen=True)
class Stretch:
    """The transactions of one block or group; or a part of one transaction. Decoded when they are asked for.

    `rest`: head and body, as stored: bytes, or a view of a reply. `chosen`: the columns of rows that are decoded. `size`:
    bytes once it is decompressed, where that was measured.
    """

    header: Header
    rest: Any
    chosen: Chosen | None = None
    size: int = 0

    @property
    def before(self) -> State:
        """The state before the first transaction."""
        return self.header.before

    @cached_property
    def pieces(self) -> Sequence[Piece]:
        """The transactions, with their numbers. They share the Arrow batches of the block."""
        header = self.header
        transactions = decode_transactions(header, memoryview(self.rest)[header.head_bytes :], self.chosen)
        return [Piece(seq, each, header.ends) for seq, each in enumerate(transactions, header.before.seq + 1)]

    @property
    def gtids(self) -> str:
        """The GTID set before the first transaction."""
        return self._gtids[0]

    @property
    def gtids_after(self) -> str:
        """The GTID set after the last transaction that is whole."""
        return self._gtids[1]

    @cached_property
    def _gtids(self) -> tuple[str, str]:
        return decode_gtids(self.rest[: self.header.head_bytes])


def open_whole(disk: Disk, patience: float = WHOLE_SECONDS, where: str = "") -> Reader:
    """A reader whose end is the store's own. Waits for a capture that takes the store over, which is a matter of seconds.
    `where`: what the store is called, if not by its path.

    RetryableError: it does not come to that; whoever began it may be dead.
    """
    give_up = time.monotonic() + patience
    while (reader := Reader(disk)).view.is_claimed:
        if time.monotonic() >= give_up:
            where = where or f"the change store {disk.root}"
            raise RetryableError(f"the end of {where} is not known", hint=_CLAIMED, subject=where)
        time.sleep(_LOOK_SECONDS)
    return reader


class Reader:
    """What a view holds. It sees nothing newer: look again for that. `blocks_read`: by `find`, so far."""

    def __init__(self, disk: Disk, view: View | None = None) -> None:
        self.disk = disk
        self.view = read_view(disk) if view is None else view
        self.blocks_read = 0
        self._l1 = Index(disk.map_file(L1_PATH))
        self._firsts: dict[str, tuple[Header, str]] = {}

    @property
    def first(self) -> int:
        """The number of the earliest transaction; one more than the last where there is none."""
        buckets, tail = self.view.buckets, self.view.tail
        before = self.state_before(buckets[0]) if buckets else tail[0].header.before if tail else self.view.end
        return before.seq + 1

    def find(self, target: Target) -> Found | None:
        """The first transaction that reaches `target`, None where the store does not yet have it. Raises NotFoundError where
        retention may have taken it, or where a GTID is of no transaction of the store, though its set has it: a gap has it,
        MariaDB jumped over it, or it is of another server id."""
        view = self.view
        if not view.buckets and not view.tail:
            return None
        number = bisect_left(view.buckets, True, key=lambda bucket: self._reached_before(target, bucket)) - 1
        if view.buckets and number < 0:
            raise NotFoundError(
                "the store begins after that",
                hint=f"its earliest transaction is seq:{self.first}",
                subject=f"seq:{self.first}",
            )
        for bucket in view.buckets[max(number, 0) :]:
            if found := self._find_in_bucket(target, bucket):
                return found
        for group in view.tail:
            header = group.header
            if _is_reached(target, header.after, lambda g=group: decode_gtids(g.rest[: g.header.head_bytes])[1]):  # type: ignore[misc]
                seq = _find_in_block(target, Heads(header, group.rest[header.head_bytes :]))
                if seq is not None:
                    return Found(seq, None)
        if target.gtid and target.by_set(view.gtids):
            raise NotFoundError(f"the store has no transaction {target.gtid}", subject=target.gtid)
        return None

    def read(self, seq: int | None = None) -> Iterator[Piece]:
        """Transactions from number `seq` on, or all. Raises CorruptionError at a damaged block or a missing one."""
        seq = self.first if seq is None else seq
        for stretch in self.read_stretches(seq):
            yield from (piece for piece in stretch.pieces if piece.seq >= seq)

    def read_stretches(self, seq: int, chosen: Chosen | None = None) -> Iterator[Stretch]:
        """The blocks and groups from that on which has transaction `seq`, each whole and not empty. Errors as of `read`.

        `chosen`: which columns of rows are decoded.
        """
        if seq > self.view.end.seq:
            return
        found = self.find(at_seq(seq))
        assert found is not None
        last: Header | None = None
        path = ""
        for bucket, offset in self._buckets_from(found):
            for file, start, header in self._walk_blocks(bucket, offset):
                _check_seam(last, path, header, bucket.file.path)
                last, path = header, bucket.file.path
                rest = read_rest(file, start, header)
                if header.transactions:  # else it stands in the place of parts that have no end
                    yield Stretch(header, rest, chosen)
        for group in self.view.tail:
            _check_seam(last, path, group.header, group.path)
            last, path = group.header, group.path
            if group.header.before.seq + group.header.transactions >= seq:
                yield Stretch(group.header, group.rest, chosen)
        assert last is not None
        assert last.after == self.view.end

    def read_whole(self, seq: int | None = None) -> Iterator[tuple[int, Transaction]]:
        """As `read`, each transaction in one; one that memory does not hold is better read in pieces."""
        parts: list[Piece] = []
        for piece in self.read(seq):
            parts.append(piece)
            if piece.ends:
                records = tuple(record for part in parts for record in part.transaction.records)
                yield piece.seq, piece.transaction._replace(records=records)
                parts = []

    def count_rows(self, begin: int, stop: int) -> int:
        """Rows of the blocks that have transactions `begin` to before `stop`, by their headers: those at both ends count
        wholly."""
        return sum(header.rows for header in self.read_headers(begin, stop))

    def read_headers(self, begin: int, stop: int) -> Iterator[Header]:
        """The headers of the blocks and groups that have transactions `begin` to before `stop`; no body is read."""
        return (header for header, _ in self._walk_bodies(begin, stop))

    def read_shapes(self, begin: int, stop: int) -> Iterator[Shape]:
        """The shapes of the rows of these blocks, as often as a block has one. No row is read, and no checksum compared."""
        for header, read in self._walk_bodies(begin, stop):
            yield from find_shapes(read, header.body_bytes) if header.rows else ()

    def _walk_bodies(self, begin: int, stop: int) -> Iterator[tuple[Header, Callable[[int, int], bytes]]]:
        """The headers of blocks and groups, and what reads (offset, size) of the body."""
        found = self.find(at_seq(max(begin, self.first))) if begin < stop else None
        if found is None:
            return
        for bucket, offset in self._buckets_from(found):
            if self.state_before(bucket).seq >= stop - 1:
                break
            with self._open(bucket) as file:
                end = file.size if bucket.length is None else bucket.length
                for start, header in walk_blocks(file, bucket.file.id, offset, end):
                    if header.before.seq >= stop - 1:
                        break
                    body = start + HEADER_BYTES + header.head_bytes
                    yield header, partial(_read_behind, file, body)
        for group in self.view.tail:
            header = group.header
            if header.before.seq + header.transactions >= begin and header.before.seq < stop - 1:
                yield header, partial(_cut_behind, group.rest, header.head_bytes)

    # finding

    def state_before(self, bucket: Bucket) -> State:
        """The state before a bucket, from L1 or from its first block."""
        entry = self._l1.find_bucket(bucket.file)
        return entry.before if entry else self._first_of(bucket)[0].before

    def _first_of(self, bucket: Bucket) -> tuple[Header, str]:
        if bucket.file.path not in self._firsts:
            try:
                self._firsts[bucket.file.path] = read_first(self.disk, bucket.file)
            except FileNotFoundError as gone:
                raise _retired(bucket) from gone
        return self._firsts[bucket.file.path]

    def _reached_before(self, target: Target, bucket: Bucket) -> bool:
        if target.by_state:
            return target.by_state(self.state_before(bucket))
        return target.by_set(self._first_of(bucket)[1])

    def _find_in_bucket(self, target: Target, bucket: Bucket) -> Found | None:
        with self._open(bucket) as file:
            end = file.size if bucket.length is None else bucket.length
            begun = walked = self._find_start(target, bucket, file, end)
            for offset, header in walk_blocks(file, bucket.file.id, begun, end):
                walked = offset + header.size
                begun = offset if header.begins else begun
                if not _is_reached(target, header.after, lambda o=offset, h=header: read_gtids(file, o, h)[1]):  # type: ignore[misc]
                    continue
                seq: int | None = header.after.seq
                if header.begins and target.seq is not None:
                    seq = target.seq
                elif header.begins:  # else the last part of one transaction
                    body = read_rest(file, offset, header)[header.head_bytes :]
                    self.blocks_read += 1
                    seq = _find_in_block(target, Heads(header, body))
                if seq is not None:
                    return Found(seq, DataPosition(bucket.file.id, begun), bucket.file.fence)
            is_lost = target.by_state is not None and bucket != self.view.buckets[-1]  # reached before the next one begins
            if walked < end or is_lost:
                raise corruption_error(file.path, walked)
        return None

    def _find_start(self, target: Target, bucket: Bucket, file: OpenFile, end: int) -> int:
        """Where to walk from: the last block told by L2 before which the target is not reached."""
        index = Index(self.disk.map_file(bucket.file.index_path))

        def reached(number: int) -> bool:
            entry = index[number]
            if entry is None:
                raise LookupError(number)
            start = entry.position.offset
            return start >= end or _is_reached(target, entry.before, lambda: _gtids_at(file, bucket, start))

        try:
            number = bisect_left(range(len(index)), True, key=reached) - 1
            entry = index[number] if number >= 0 else None
        except LookupError:  # a damaged entry: the headers say it, too
            entry = None
        return entry.position.offset if entry else 0

    # reading

    def _buckets_from(self, found: Found) -> Iterator[tuple[Bucket, int]]:
        if found.position is not None:
            for bucket in self.view.buckets:
                if bucket.file.id >= found.position.bucket:
                    yield bucket, found.position.offset if bucket.file.id == found.position.bucket else 0

    def read_blocks(self, bucket: Bucket, offset: int = 0) -> Iterator[tuple[int, Header, bytes]]:
        """(offset, header, body) of each block of a bucket. Raises CorruptionError at the first that is not as written."""
        for file, start, header in self._walk_blocks(bucket, offset):
            yield start, header, read_rest(file, start, header)[header.head_bytes :]

    def _walk_blocks(self, bucket: Bucket, offset: int) -> Iterator[tuple[OpenFile, int, Header]]:
        with self._open(bucket) as file:
            end = file.size if bucket.length is None else bucket.length
            for start, header in walk_blocks(file, bucket.file.id, offset, end):
                if header.fence != bucket.file.fence:
                    raise corruption_error(file.path, start)
                yield file, start, header
                offset = start + header.size
            if offset != end or not end:  # a bucket is never empty
                raise corruption_error(file.path, offset)

    def _open(self, bucket: Bucket) -> OpenFile:
        try:
            return self.disk.open_file(bucket.file.path)
        except FileNotFoundError as gone:
            raise _retired(bucket) from gone


def _read_behind(file: OpenFile, start: int, at: int, size: int) -> bytes:
    return file.read(start + at, size)


def _cut_behind(data: bytes, start: int, at: int, size: int) -> bytes:
    return data[start + at : start + at + size]


def _is_reached(target: Target, state: State, gtids: Callable[[], str]) -> bool:
    return target.by_state(state) if target.by_state else target.by_set(gtids())


def _gtids_at(file: OpenFile, bucket: Bucket, offset: int) -> str:
    for start, header in walk_blocks(file, bucket.file.id, offset, file.size):
        return read_gtids(file, start, header)[0]
    raise corruption_error(file.path, offset)


def _check_seam(last: Header | None, former: str, header: Header, path: str) -> None:
    if last is not None and header.before != last.after:
        raise missing_error(last.after.seq, former, header.before.seq, path)


def _find_in_block(target: Target, heads: Heads) -> int | None:
    return heads.find(target.by_state) if target.by_state else heads.find_gtid(target.by_gtid)


def _retired(bucket: Bucket) -> NotFoundError:
    path = bucket.file.path
    return NotFoundError(f"{path} is gone: retention took it", hint="read on from `earliest`", subject=path)
