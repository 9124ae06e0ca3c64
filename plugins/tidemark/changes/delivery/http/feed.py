"""A client's way through a store: where it begins, and what each fetch gives.

A feed keeps the place behind what it gave. A reply that is lost on its way is not given again: the client subscribes anew,
from its own point.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from uuid import UUID

from tidemark.changes.binlog.gtid_sets import MysqlGtidSet, contains_gtid
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.http import events as e
from tidemark.changes.delivery.http.frames import Frame, encode_frame
from tidemark.changes.delivery.http.requests import ARROW, EARLIEST, LATEST, Checkpoint, Fetch, Subscription
from tidemark.changes.delivery.http.schema import UNDIVIDED
from tidemark.changes.delivery.shards import Divider, Sharding, ShardPiece
from tidemark.changes.delivery.storage_points import StoreBehindError, add_gtids, locate
from tidemark.changes.store.block import encode_header
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Ddl, Mark, Record, Rows, SchemaChange, Transaction
from tidemark.changes.store.read import Piece, Reader, Stretch, Target, at_first_outside, at_position, at_time
from tidemark.errors import BinlogGapError, NotFoundError, PermanentError
from tidemark.ledger.delivery import StoragePoint

TOO_OLD, TOO_NEW, OTHER_SERVER = "LESS_THAN_MIN", "GREATER_THAN_MAX", "OTHER_SERVER"
EVERYTHING = ("**",)
BLOCK_BYTES = 4096
"""What a block that is kept takes besides its rows."""
MOST_LOOKED_AT = 32
"""Blocks without anything for the client, of one take: a thread is free for others after so many."""
_WITH_TAG = "the point as gtidSet, or with binlogFile and binlogOffset at a reader of that server"
_ENDS = ("commit", "xa_commit", "xa_rollback", "xa_prepare")


class Watch:
    """The store of a source as it is now, for all its clients. `memory`: bytes of blocks that stay divided; 0: all."""

    def __init__(self, disk: Disk, memory: int) -> None:
        self.disk = disk
        self.memory = memory
        self._lock = threading.Lock()
        self._seen: object = None
        self._reader: Reader | None = None
        self._divided: OrderedDict[object, Future[dict[int, list[ShardPiece]]]] = OrderedDict()
        self._sizes: dict[object, int] = {}
        self._kept_bytes = 0

    def open_reader(self) -> Reader:
        """A reader that sees what is durable. Looking again costs little where nothing is new."""
        with self._lock:
            seen = self._look_at_names()
            if self._reader is None or seen != self._seen:
                self._reader, self._seen = Reader(self.disk), seen
            return self._reader

    def divide(self, sharding: Sharding, tables: tuple[str, ...], stretch: Stretch) -> dict[int, list[ShardPiece]]:
        """The shards of a block of whole transactions. Clients of a task that go side by side share the work."""
        key = (
            sharding,
            tables,
            stretch.header.position,
            stretch.header.fence,
            stretch.before.seq,
            stretch.header.body_check,
        )
        with self._lock:
            found = self._divided.get(key)
            is_mine = found is None
            if found is None:
                found = self._divided[key] = Future()
            else:
                self._divided.move_to_end(key)
        if is_mine:
            try:
                divided = Divider(sharding, choose_tables(tables)).divide(stretch.pieces)
            except BaseException as wrong:
                found.set_exception(wrong)
                with self._lock:
                    self._divided.pop(key, None)
            else:
                found.set_result(divided)
                self._keep_within_memory(key, BLOCK_BYTES + _count_bytes(divided))
        return found.result()

    def _keep_within_memory(self, key: object, size: int) -> None:
        """Note the size of a block, and let those go that nobody asked for for longest."""
        with self._lock:
            self._sizes[key] = size
            self._kept_bytes += size
            while self.memory and self._kept_bytes > self.memory:
                oldest = next(one for one in self._divided if one in self._sizes)
                del self._divided[oldest]
                self._kept_bytes -= self._sizes.pop(oldest)

    def _look_at_names(self) -> object:
        """What changes with every group, block, holder, and round of cleaning."""
        found: list[tuple[str, int]] = [(name, 0) for name in self.disk.list_names("holders")]
        found += [(name, 0) for name in self.disk.list_names("data")]
        for name in self.disk.list_names("tail"):
            with suppress(FileNotFoundError):
                found.append((name, (self.disk.root / "tail" / name).stat().st_size))
        return sorted(found)


def _count_bytes(divided: Mapping[int, Sequence[ShardPiece]]) -> int:
    pieces = chain.from_iterable(divided.values())
    records = chain.from_iterable(piece.transaction.records for piece in pieces)
    batches = {id(one.whole): one.whole for one in records if isinstance(one, Rows)}  # transactions share them
    return sum(batch.nbytes for batch in batches.values())


class RangeError(PermanentError):
    """A point that the store does not have: `code` says on which side."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


@dataclass(frozen=True)
class Start:
    """The number of the transaction at which a client goes on. `half`: of one of which it has the events up to `index`; 0:
    of none. `known`: a GTID set of what it has, also behind that place."""

    seq: int
    half: int = 0
    index: int = -1
    known: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether it begins with the transaction of the client's point."""
        return self.half == self.seq


def find_start(reader: Reader, point: Checkpoint) -> Start:
    """Where a client goes on: with the transaction of its point, or with the first that it lacks.

    RangeError: retention took it, the store ends before it, or it is of another server.
    """
    end = reader.view.end
    if point.stored is not None:
        return _find_stored(reader, point.stored)
    if point.seq:
        return _find_seq(reader, point.seq)
    if point.mode == EARLIEST:
        return Start(reader.first)
    if point.mode == LATEST:
        return Start(end.seq + 1)
    try:
        if point.gtid_set:
            return Start(_find_by_set(reader, point.gtid_set), known=point.gtid_set)
        target = _target_of(reader, point)
        if target is None:
            return Start(reader.first)
        found = reader.find(target)
    except NotFoundError as gone:
        raise RangeError(TOO_OLD, gone.message, gone.hint) from gone
    if found is None:
        if point.uuid or point.file:
            raise RangeError(
                TOO_NEW,
                f"the point is behind the end of the store, seq:{end.seq}",
                "wait until it is captured; or another point",
            )
        return Start(end.seq + 1)
    if not (point.uuid or point.file):
        return Start(found.seq)
    is_exact = _is_of(next(reader.read(found.seq)).transaction.info, point)
    if not is_exact and _may_have_tag(reader, point):
        raise RangeError(OTHER_SERVER, "the point is of another server's logs, and tells no tag of its GTID", _WITH_TAG)
    return Start(found.seq, found.seq, point.event_index) if is_exact else Start(found.seq)


def _find_stored(reader: Reader, point: StoragePoint) -> Start:
    """Behind a storage point, of this store or of another one of the source."""
    try:
        found = locate(reader.disk, point, "the point", "the store of this reader")
    except BinlogGapError as gone:
        raise RangeError(TOO_OLD, gone.message, gone.hint) from gone
    except StoreBehindError as behind:
        raise RangeError(TOO_NEW, behind.message, behind.hint) from behind
    except PermanentError as other:
        raise RangeError(OTHER_SERVER, other.message, "a reader of the server that the point is of") from other
    return Start(found.seq, found.half, found.index - 1, found.known)


def _find_seq(reader: Reader, seq: int) -> Start:
    if seq < reader.first:
        raise RangeError(TOO_OLD, f"the store begins with seq:{reader.first}", "begin at a point that it has")
    if seq > reader.view.end.seq + 1:
        raise RangeError(TOO_NEW, f"the store ends with seq:{reader.view.end.seq}", "wait until it is captured")
    return Start(seq)


def _is_of(info: BinlogInfo, point: Checkpoint) -> bool:
    """Whether a transaction is the one that a point names. RangeError: it is of another server."""
    if point.server_id not in (0, info.server_id):
        raise RangeError(
            OTHER_SERVER,
            f"the point is of server {point.server_id}, and what the store has there of server {info.server_id}",
            "a reader of that server; or the point as gtidSet",
        )
    if point.uuid and point.transaction_id > 0:
        return (info.uuid, info.transaction_id) == (UUID(point.uuid).bytes, point.transaction_id)
    return (info.file, info.offset) == (point.file, point.offset)


def _may_have_tag(reader: Reader, point: Checkpoint) -> bool:
    """Whether the store has GTIDs with tags of a point's server: a point tells of its own neither that nor which."""
    here = parse_gtids(reader.view.gtids)
    return isinstance(here, MysqlGtidSet) and any(tag and uuid == point.uuid for uuid, tag in here.intervals)


def _target_of(reader: Reader, point: Checkpoint) -> Target | None:
    if point.uuid and point.transaction_id > 0:
        gtid = f"{point.uuid}:{point.transaction_id}"
        known, here = parse_gtids(gtid), parse_gtids(reader.view.gtids)
        if type(known) is not type(here):
            raise RangeError(TOO_NEW, "the store has no GTIDs of this kind", "another reader; or a point by position")

        def has(gtids: str) -> bool:
            return bool(gtids) and contains_gtid(parse_gtids(gtids), gtid)

        if not _may_have_tag(reader, point):
            return Target(by_set=has, by_gtid=lambda other: bool(other) and parse_gtids(other) == known)
        if not point.file:
            raise RangeError(OTHER_SERVER, f"the store has {point.uuid} with tags, and the point tells none", _WITH_TAG)
    if point.file:
        change_ids = (reader.view.end.info.change_id,)
        return at_position((change_ids[0], point.file, point.offset, 0))
    return at_time(point.milliseconds * 1000) if point.milliseconds else None


def _find_by_set(reader: Reader, text: str) -> int:
    """The first transaction that is not in a GTID set. All that the set has must be here."""
    known, here = parse_gtids(text), parse_gtids(reader.view.gtids)
    if known is None or here is None or type(known) is not type(here):
        raise RangeError(TOO_NEW, "the store has no GTIDs of this kind", "another reader; or a point by position")
    if not here >= known:  # type: ignore[operator]
        raise RangeError(TOO_NEW, f"the point has {text}, the store {reader.view.gtids}", "wait until it is captured")
    found = reader.find(
        at_first_outside(
            lambda gtids: not known >= parse_gtids(gtids) if gtids else False,  # type: ignore[operator]
            lambda gtid: contains_gtid(known, gtid),
        )
    )
    return found.seq if found else reader.view.end.seq + 1


class Feed:
    """What one client has subscribed to. Used by one thread at a time."""

    def __init__(self, watch: Watch, wanted: Subscription) -> None:
        self.watch = watch
        self.wanted = wanted
        reader = watch.open_reader()
        start = find_start(reader, wanted.checkpoint)
        self._first = start.seq
        self.next = self._first
        self._known = parse_gtids(start.known) if start.known else None
        self._half, self._skipped = start.half, start.index
        self._divider = Divider(wanted.sharding, choose_tables(wanted.tables))
        self._stretches: Iterator[Stretch] = iter(())
        self._stretch: Stretch | None = None  # the one at hand
        self._rest: Iterator[tuple[int, e.Event]] = iter(())
        self._known_to = (0, "")  # a transaction, and the GTID set with it
        self._empty = 0  # blocks of this take that had nothing
        self.is_behind = False
        """Whether the store has more than the last take looked at."""

    def take(self, asked: Fetch) -> e.Reply:
        """What comes next: nothing, where the client has all, or where many blocks have nothing for it.

        BinlogGapError: retention took what comes next.
        """
        self._empty = 0
        reply = self._take_blocks(asked) if self.wanted.codec == ARROW else self._take_events(asked)
        end = self.watch.open_reader().view.end
        latest = e.encode_checkpoint(Transaction(end.info), 0) if end.seq else b""
        gtids = self._gtids_before_next()
        self.is_behind = self.next <= end.seq
        props = [("gtidSet", gtids)] if gtids else []
        if self.is_behind and not reply.messages:
            props.append(("more", "true"))
        return replace(reply, latest=latest, props=props)

    def _gtids_before_next(self) -> str:
        """The source's GTID set before what the next fetch gives; "" where nothing was given yet, or there are none."""
        stretch = self._stretch
        if stretch is None:
            return ""
        following = next(self._rest, None)
        if following is None and stretch.header.ends:
            return stretch.gtids_after
        before = stretch.before.seq + 1
        if following is not None:
            self._rest, before = chain([following], self._rest), following[1].seq
        seq, known = self._known_to
        if seq < stretch.before.seq:
            seq, known = stretch.before.seq, stretch.gtids
        more = [piece.transaction.gtid for piece in stretch.pieces if seq < piece.seq < before]
        self._known_to = max(seq, before - 1), add_gtids(known, more)
        return self._known_to[1]

    def _next_stretch(self) -> Stretch | None:
        if self._empty >= MOST_LOOKED_AT:
            return None
        for attempt in range(2):
            try:
                found = next(self._stretches, None)
                if found is None:
                    reader = self.watch.open_reader()
                    if self.next < reader.first:
                        raise self._tell_overrun(reader)
                    self._stretches = reader.read_stretches(self.next)
                    found = next(self._stretches, None)
                    self._first = max(self._first, self.next)  # a block may have what was given as a group of the tail
                if found is not None:
                    self.next = found.header.after.seq + 1
                    self._stretch = found
                return found
            except NotFoundError as gone:
                reader = Reader(self.watch.disk)
                if attempt or self.next < reader.first:
                    raise self._tell_overrun(reader) from gone
                self._stretches = iter(())
                self._divider = Divider(
                    self.wanted.sharding, choose_tables(self.wanted.tables)
                )  # it goes on with a whole transaction
        return None

    def _tell_overrun(self, reader: Reader) -> BinlogGapError:
        return BinlogGapError(
            f"seq:{self.next} comes next, and the store begins with seq:{reader.first}: retention took it",
            hint="rewind the task to `earliest` to go on without what is gone",
        )

    def _pieces_of(self, stretch: Stretch) -> Sequence[Piece]:
        """The transactions that the client lacks. One that it has already, of another store's order, is empty."""
        pieces = [piece for piece in stretch.pieces if piece.seq >= self._first]
        if self._known is None:
            return pieces
        if stretch.gtids and parse_gtids(stretch.gtids) >= self._known:  # type: ignore[operator]
            self._known = None
            return pieces
        return [
            replace(piece, transaction=piece.transaction._replace(records=()))
            if contains_gtid(self._known, piece.transaction.gtid)
            else piece
            for piece in pieces
        ]

    def _divide(self, stretch: Stretch) -> dict[int, list[ShardPiece]]:
        header, wanted = stretch.header, self.wanted
        is_shared = header.begins and header.ends and self._known is None and stretch.before.seq + 1 >= self._first
        if is_shared and len(wanted.shards) < wanted.sharding.shards:
            divided = self.watch.divide(wanted.sharding, wanted.tables, stretch)
            return {shard: divided[shard] for shard in wanted.shards}
        return self._divider.divide(self._pieces_of(stretch), wanted.shards)

    # codec ARROW

    def _take_blocks(self, asked: Fetch) -> e.Reply:
        messages: dict[int, list[bytes]] = {}
        size = rows = 0
        while size < asked.bytes and (stretch := self._next_stretch()) is not None:
            found = list(self._encode_blocks(stretch))
            self._empty += not found
            for shard, block, count in found:
                messages.setdefault(shard, []).append(block)
                size += len(block)
                rows += count
        return e.Reply({**messages}, rows, size=size)

    def _encode_blocks(self, stretch: Stretch) -> Iterator[tuple[int, bytes, int]]:
        header = stretch.header
        is_whole = self.wanted.is_undivided and self.wanted.tables == EVERYTHING and self._known is None
        if is_whole and (self.wanted.checkpoint.seq or stretch.before.seq + 1 >= self._first):
            yield UNDIVIDED, encode_header(header) + stretch.rest, header.rows
            return
        for shard, pieces in self._divide(stretch).items():
            if pieces:
                count = sum(one.count for piece in pieces for one in piece.transaction.records if isinstance(one, Rows))
                frame = Frame(stretch.gtids, stretch.gtids_after, pieces, header.begins)
                yield shard, encode_frame(frame, compress=self.wanted.is_compressed), count

    # codec PROTOCOL_BUFFER

    def _take_events(self, asked: Fetch) -> e.Reply:
        messages: dict[int, list[bytes]] = {}
        size = count = 0
        while count < asked.events and size < asked.bytes and (found := self._next_event()) is not None:
            shard, event = found
            messages.setdefault(shard, []).append(event.data)
            size += len(event.data)
            count += 1
        return e.Reply({**messages}, count, size=size)

    def _next_event(self) -> tuple[int, e.Event] | None:
        found = next(self._rest, None)
        while found is None:
            stretch = self._next_stretch()
            if stretch is None:
                return None
            self._rest = self._encode_events(self._divide(stretch))
            found = next(self._rest, None)
            self._empty += found is None
        return found

    def _encode_events(self, divided: dict[int, list[ShardPiece]]) -> Iterator[tuple[int, e.Event]]:
        """Transaction by transaction, and in each by shard."""
        for pieces in zip(*divided.values(), strict=True):
            for shard, piece in zip(divided, pieces, strict=True):
                is_first = piece.seq == self._half and self._skipped >= 0
                if is_first and piece.ends and self._skipped >= piece.behind:
                    continue  # the client has it whole
                records = tuple(record for record in piece.transaction.records if self._needs(record))
                own = replace(piece, transaction=piece.transaction._replace(records=records))
                for events in e.encode_events(own, self._first_row(own), self.wanted.sharding):
                    for event in events:
                        # what is no row has the number of the row before it, so it comes behind that row's point
                        if not is_first or event.index > self._skipped - (not event.is_row):
                            yield shard, event

    def _first_row(self, piece: ShardPiece) -> int:
        rows = next((record for record in piece.transaction.records if isinstance(record, Rows)), None)
        return int(rows.batch.column("i")[0].as_py()) if rows else 0

    def _needs(self, record: Record) -> bool:
        if isinstance(record, Ddl | SchemaChange):
            return self.wanted.needs_ddl
        return self.wanted.needs_end or not isinstance(record, Mark) or record.word not in _ENDS
