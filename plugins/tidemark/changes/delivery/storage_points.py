"""Storage points: how far a shard is, in words that hold in another store of the same source, too.

In the store that a point was made in, the number of the transaction says where to go on, and the identity of the last one
that is done proves that it is this store. In another one the GTID set says it. Source: seed 002 "storage point".
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import chain, islice
from typing import Any
from uuid import UUID

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet, contains_gtid
from tidemark.changes.capture.plain import Gtids
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import BinlogInfo
from tidemark.changes.store.read import Reader, Stretch, at_first_outside, at_position
from tidemark.errors import BinlogGapError, NotFoundError, PermanentError, RetryableError, UsageError
from tidemark.ledger.delivery import EARLIEST, LATEST, NORMAL, StoragePoint

FORMAT = 1
MOST_LOOKED_AT = 10_000
"""Transactions among which one is looked for that is half done. Of one that is further away all rows come again."""
_BLOCKS_KEPT = 4
_parse = lru_cache(maxsize=64)(parse_gtids)  # of one request the same sets are asked for again and again
_NAMES = {
    "uuid": "uuid",
    "transactionId": "transaction_id",
    "eventIndex": "event_index",
    "serverId": "server_id",
    "binlogFile": "binlog_file",
    "binlogOffset": "binlog_offset",
    "timestamp": "timestamp",
    "versionTs": "version_ts",
    "checkpointMode": "mode",
    "seq": "seq",
    "changeId": "change_id",
    "gtids": "gtids",
}
"""The names of the fields: those of the seed first."""


@dataclass(frozen=True)
class Place:
    """A place in a store: before row `index` of transaction `seq`. `stretch`: has this transaction, or the one before it.

    `known`: a GTID set of transactions that are done although they may stand behind it.
    """

    seq: int
    index: int
    stretch: Stretch
    known: str = ""

    def as_point(self, version_ts: int, gtids: str | None = None) -> StoragePoint:
        """The storage point of this place. `gtids`: the set before the transaction, where it is known."""
        pieces, count = self.stretch.pieces, self.seq - self.stretch.before.seq - 1
        last = pieces[count - 1].transaction.info if count else self.stretch.before.info
        if self.index:
            last = pieces[count].transaction.info
        if count == len(pieces) and pieces[-1].ends:
            gtids = self.stretch.gtids_after
        elif gtids is None:
            gtids = add_gtids(self.stretch.gtids, [piece.transaction.gtid for piece in pieces[:count]])
        gtids = add_gtids(gtids, [self.known])
        return replace(_of_info(last), seq=self.seq, event_index=self.index, gtids=gtids, version_ts=version_ts)


def add_gtids(known: str, more: Sequence[str]) -> str:
    """A GTID set with more GTIDs, as text."""
    given = [gtid for gtid in more if gtid]
    if not given:
        return known
    if ":" in given[0]:
        return str(MysqlGtidSet.parse(",".join([*([known] if known else []), *given])))
    sets = [MariaGtidPosition.parse(text) for text in [*([known] if known else []), *given]]
    return str(reduce(lambda one, other: one | other, sets))


def _of_info(info: BinlogInfo) -> StoragePoint:
    """The identity of the last transaction that is done; of the state before the first one: none."""
    if not info.change_id:
        return StoragePoint()
    return StoragePoint(
        change_id=info.change_id,
        uuid=str(UUID(bytes=info.uuid)),
        transaction_id=info.transaction_id,
        server_id=info.server_id,
        binlog_file=info.file,
        binlog_offset=info.offset,
        timestamp=info.timestamp,
        mode=NORMAL,
    )


def point_at(reader: Reader, seq: int, version_ts: int, mode: str = NORMAL) -> StoragePoint:
    """The storage point before a transaction of the store, or behind its last one."""
    end = reader.view.end
    if not end.seq:
        return StoragePoint(version_ts=version_ts, mode=EARLIEST)
    if seq > end.seq:
        found = replace(_of_info(end.info), seq=end.seq + 1, gtids=reader.view.gtids, version_ts=version_ts)
    else:
        found = Place(seq, 0, next(reader.read_stretches(seq))).as_point(version_ts)
    return replace(found, mode=mode if mode in (EARLIEST, LATEST) else found.mode)


def point_after(state: State) -> StoragePoint:
    """The storage point behind a transaction, by the state after it alone: without GTIDs."""
    return replace(_of_info(state.info), seq=state.seq + 1)


class OtherStoreError(PermanentError):
    """The store has something else where a point stands, and no GTIDs say where to go on."""


class StoreBehindError(PermanentError):
    """The store ends before a point: it lacks what is done."""


@dataclass(frozen=True)
class Start:
    """Where a shard goes on: transaction `seq` of the store, and `index` rows of transaction `half` are done already.

    `known`: a GTID set of transactions that are done although they stand behind that place; "": there are none.
    """

    seq: int
    index: int = 0
    half: int = 0
    known: str = ""


def locate(disk: Disk, point: StoragePoint, what: str, where: str = "") -> Start:
    """Where a shard goes on, as `Places.locate` tells it."""
    return Places(disk, where).locate(point, what)


class Places:
    """Finds where points go on in a store, by one look at it. `where`: what the store is called, if not by its path.

    The blocks that were looked at last are kept: asked in the order of `in_order`, many points of a block cost one reading.
    What is appended meanwhile is not seen.
    """

    def __init__(self, disk: Disk, where: str = "") -> None:
        self.reader = Reader(disk)
        self._first = self.reader.first
        self._where = where or f"the store {disk.root}"
        self._blocks: list[_Block] = []  # the newest last
        self._found: dict[StoragePoint, Start] = {}

    def locate(self, point: StoragePoint, what: str) -> Start:
        """Where a shard goes on. `what`: whose point it is.

        Raises BinlogGapError where retention took that, OtherStoreError where the store is another one, StoreBehindError
        where it ends before it, RetryableError where that is not known, for a capture takes it over.
        """
        if point in self._found:
            return self._found[point]
        try:
            found = self._found[point] = self._locate(point, what)
        except BinlogGapError:
            raise
        except PermanentError as other:
            if not self.reader.view.is_claimed:
                raise
            raise RetryableError(
                f"{what} stands at seq:{point.seq}; {self._where} is taken over by a capture, and its end is not known",
                hint="let the capture go on, then again",
                subject=what,
            ) from other
        return found

    def settle(self, point: StoragePoint, what: str) -> StoragePoint:
        """A point of another store of the source, in the words of this one. Errors as of `locate`.

        Of a transaction that is half done, and does not come next here, all rows come again.
        """
        start = self.locate(point, what)
        if not point.change_id and not point.gtids:
            return point
        if start.seq > self.reader.view.end.seq:
            return point_at(self.reader, start.seq, point.version_ts)
        index, block = start.index if start.half == start.seq else 0, self._read_block(start.seq)
        place = Place(start.seq, index, block.stretch, start.known)
        return place.as_point(point.version_ts, block.gtids_before(start.seq))

    def _locate(self, point: StoragePoint, what: str) -> Start:
        reader, done = self.reader, point.seq if point.event_index else point.seq - 1
        if not point.change_id and not point.gtids:  # nothing is done yet
            if reader.view.end.seq and point.seq < self._first:
                raise self._overrun(point.seq, what)
            return Start(point.seq)
        info = self._info_of(done)
        if info is not None and _is_same(_of_info(info), point) and self._has_all_before(point):
            return Start(point.seq, point.event_index, point.seq, self._find_known(point.seq, point.gtids))
        if info is None and reader.view.end.seq and done < self._first and _is_of_store(reader, point):
            raise self._overrun(point.seq, what)
        return self._locate_by_gtids(point, what)

    def _has_all_before(self, point: StoragePoint) -> bool:
        """Whether all that the store has before a point is done: two servers may have one transaction at the same place, and
        others before it."""
        return _has(_parse(point.gtids), _parse(self._gtids_before(point.seq)))

    def _find_known(self, seq: int, gtids: str) -> str:
        """The set of what is done, where the store does not have all of it before `seq`."""
        return "" if _has(_parse(self._gtids_before(seq)), _parse(gtids)) else gtids

    def _locate_by_gtids(self, point: StoragePoint, what: str) -> Start:
        """Where to go on in another store of the source, whatever order it has the transactions in."""
        reader = self.reader
        known, there = _parse(point.gtids), _parse(reader.view.gtids)
        if known is None and (start := self._locate_by_position(point)) is not None:
            return start
        is_first = known is None and point.seq == 1 and point.event_index > 0
        if is_first and there is not None and not next(reader.read_stretches(self._first)).gtids:
            half = self._find_half(point, self._first)  # no transaction is done wholly, and the store has them all
            return Start(self._first, point.event_index if half else 0, half)
        if known is None or not reader.view.end.seq:
            raise OtherStoreError(
                f"{what} stands at seq:{point.seq}, log {point.binlog_file}, offset {point.binlog_offset}; {self._where}"
                " has something else there, and no GTIDs say where to go on",
                hint="give the task the store that it read; or ./tidemark changes rewind TASK --to POINT",
                subject=what,
            )
        if not _has(there, known):
            raise StoreBehindError(
                f"{what} is ahead of {self._where}: it has {point.gtids}, the store {reader.view.gtids or 'none'}",
                hint="let the capture go on, then begin again",
                subject=what,
            )
        seq = self._find_outside(known, point, what)
        half = self._find_half(point, seq) if point.event_index else 0
        return Start(seq, point.event_index if half else 0, half, self._find_known(seq, point.gtids))

    def _find_outside(self, known: Gtids, point: StoragePoint, what: str) -> int:
        """The first transaction that a set lacks; one more than the last where there is none."""
        if block := next((block for block in self._blocks if block.ends_outside(known)), None):
            return block.find_outside(known)
        try:
            found = self.reader.find(
                at_first_outside(lambda gtids: not _has(known, _parse(gtids)), lambda gtid: contains_gtid(known, gtid))
            )
        except NotFoundError as gone:
            raise self._overrun(point.seq, what) from gone
        return found.seq if found else self.reader.view.end.seq + 1

    def _locate_by_position(self, point: StoragePoint) -> Start | None:
        """Where to go on in another store of the same server: behind the same place of its logs. None: it is not there."""
        reader = self.reader
        change_id = reader.view.end.info.change_id
        if not change_id:
            return None
        try:
            found = reader.find(at_position((change_id, point.binlog_file, point.binlog_offset, 0)))
        except NotFoundError:
            seq = self._first - 1  # of it the identity is known, and no more
        else:
            if found is None:
                return None
            seq = found.seq
        info = self._info_of(seq)
        if info is None or not _is_same(_of_info(info._replace(change_id=point.change_id)), point):
            return None
        if point.event_index:
            return Start(seq, point.event_index, seq) if seq >= self._first else None
        return Start(seq + 1)

    def _find_half(self, point: StoragePoint, seq: int) -> int:
        """The number that the half done transaction has here; 0: it is not found among those that come next."""
        end, uuid = self.reader.view.end.seq, UUID(point.uuid).bytes
        if seq > end:
            return 0
        block = self._read_block(seq)
        later = self.reader.read(block.last + 1) if block.last < end else ()
        for piece in islice(chain(block.stretch.pieces[seq - block.first :], later), MOST_LOOKED_AT):
            if (piece.transaction.info.uuid, piece.transaction.info.transaction_id) == (uuid, point.transaction_id):
                return piece.seq
        return 0

    def _info_of(self, seq: int) -> BinlogInfo | None:
        """The identity of a transaction; None where the store does not have it."""
        end = self.reader.view.end
        if seq == end.seq and seq:
            return end.info
        if not end.seq or not self._first - 1 <= seq < end.seq:
            return None
        block = self._read_block(seq + 1)
        return block.stretch.pieces[seq - block.first].transaction.info if seq >= block.first else block.stretch.before.info

    def _gtids_before(self, seq: int) -> str:
        """The GTID set before a transaction, or behind the last one."""
        end = self.reader.view.end.seq
        return self.reader.view.gtids if seq > end else self._read_block(seq).gtids_before(seq) if end else ""

    def _read_block(self, seq: int) -> _Block:
        """The block in which a transaction begins."""
        found = next((block for block in self._blocks if block.first <= seq <= block.last), None)
        if found is None:
            found = _Block(next(self.reader.read_stretches(seq)))
            self._blocks = self._blocks[1 - _BLOCKS_KEPT :]
            self._blocks.append(found)
        return found

    def _overrun(self, seq: int, what: str) -> BinlogGapError:
        return BinlogGapError(
            f"{what} stands at seq:{seq}, which {self._where} does not have any more: it begins with seq:{self._first}",
            hint="./tidemark changes rewind TASK --to earliest goes on without what is gone;"
            " raise retain_bytes of the source",
            subject=what,
        )


class _Block:
    """A block, and the GTID sets before those of its transactions that were asked for. `first` and `last`: numbers of its
    transactions; of a part of one both are its own."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self.first = stretch.before.seq + 1
        self.last = stretch.before.seq + len(stretch.pieces)
        self._asked = [self.first]  # ascending
        self._sets: dict[int, tuple[str, Gtids]] = {self.first: (stretch.gtids, parse_gtids(stretch.gtids))}

    def gtids_before(self, seq: int) -> str:
        """The GTID set before one of its transactions."""
        return self._set_before(seq)[0]

    def ends_outside(self, known: Gtids) -> bool:
        """Whether a set has all before this block, and not all that is whole in it."""
        return _has(known, self._sets[self.first][1]) and not _has(known, _parse(self.stretch.gtids_after))

    def find_outside(self, known: Gtids) -> int:
        """Its first transaction that a set lacks, which `ends_outside`."""
        numbers = range(self.first, self.last)
        return self.first + bisect_left(numbers, True, key=lambda seq: not _has(known, self._set_before(seq + 1)[1]))

    def _set_before(self, seq: int) -> tuple[str, Gtids]:
        """Made from the nearest one before that is known."""
        if seq not in self._sets:
            place = bisect_left(self._asked, seq)
            near = self._asked[place - 1]
            pieces = self.stretch.pieces[near - self.first : seq - self.first]
            text = add_gtids(self._sets[near][0], [piece.transaction.gtid for piece in pieces])
            self._sets[seq] = text, parse_gtids(text)
            self._asked.insert(place, seq)
        return self._sets[seq]


def _has(known: Gtids, other: Gtids) -> bool:
    """Whether a set has all of another one."""
    return other is None or (type(known) is type(other) and known >= other)  # type: ignore[operator]


def in_order(points: Mapping[int, StoragePoint]) -> list[tuple[int, StoragePoint]]:
    """Shards with their points in the order in which `Places` finds them fastest."""
    return sorted(points.items(), key=lambda item: (item[1].order, item[0]))


def _is_same(one: StoragePoint, other: StoragePoint) -> bool:
    """Whether two points tell of the same transaction at the same place. Logs of two servers may have equal names and
    places, so its GTID, server and time count as well."""
    same = {"seq": 0, "event_index": 0, "gtids": "", "version_ts": 0, "mode": NORMAL}
    return replace(one, **same) == replace(other, **same)  # type: ignore[arg-type]


def proves_start(stretch: Stretch, seq: int, point: StoragePoint) -> bool:
    """Whether a block that has transaction `seq`, or ends before it, shows that by a point all before `seq` is done."""
    before = [piece.transaction for piece in stretch.pieces if piece.seq < seq]
    known = parse_gtids(point.gtids)
    if known is not None:
        there = parse_gtids(add_gtids(stretch.gtids, [one.gtid for one in before]))
        return there is None or (type(known) is type(there) and known >= there)  # type: ignore[operator]
    if not point.change_id:
        return True
    last = before[-1].info if before else stretch.before.info
    if point.event_index:
        last = next((piece.transaction.info for piece in stretch.pieces if piece.seq == seq), last)
    return _is_same(_of_info(last._replace(change_id=point.change_id)), point)


def stands_at(stretch: Stretch, point: StoragePoint) -> bool:
    """Whether a block that has transaction `point.seq`, or ends before it, has before that what a point of it says."""
    before = [piece.transaction.info for piece in stretch.pieces if piece.seq < point.seq]
    return _is_same(_of_info(before[-1] if before else stretch.before.info), point)


def is_same_place(one: StoragePoint, other: StoragePoint) -> bool:
    """Whether two points between transactions have the same number and the same transaction before it."""
    return one.seq == other.seq and _is_same(one, other)


def is_exact(start: Start, point: StoragePoint) -> bool:
    """Whether a point of no rows goes on at its own number, behind just what it says."""
    return start in (Start(point.seq), Start(point.seq, 0, point.seq))


def _is_of_store(reader: Reader, point: StoragePoint) -> bool:
    """Whether a point before the store's beginning may be one of it."""
    first = next(reader.read_stretches(reader.first)).before.info
    return (point.change_id, point.binlog_file, point.binlog_offset) <= first.order[:3]


def furthest_point(one: StoragePoint, other: StoragePoint) -> StoragePoint:
    """What two points of a shard say together, of one store or of two of one source: all that either has is done."""
    sets = [parse_gtids(point.gtids) for point in (one, other)]
    if sets[0] is None or sets[1] is None:
        return max(one, other, key=lambda point: (point.gtids != "", point.change_id, *point.order))
    if sets[0] == sets[1]:
        return max(one, other, key=lambda point: point.order)
    for first, second, point in ((sets[0], sets[1], one), (sets[1], sets[0], other)):
        if type(first) is type(second) and first >= second:  # type: ignore[operator]
            return point
    return replace(one, gtids=_unite(one.gtids, other.gtids), event_index=0)


def measure_behind(reader: Reader, point: StoragePoint | None) -> tuple[int, float | None]:
    """How many transactions of its store a point is behind, and how many seconds the last one that is done is older than the
    store's newest; None: none is done."""
    end, seq = reader.view.end, point.seq if point else 1
    count = max(0, end.seq + 1 - seq)
    if not count:
        return 0, 0.0
    return count, max(0.0, round((end.newest - point.timestamp) / 1e6, 1)) if point and point.change_id else None


def has_more(one: StoragePoint, other: StoragePoint) -> bool:
    """Whether by its GTIDs a point tells of something done that another one of the same version lacks."""
    known, more = parse_gtids(other.gtids), parse_gtids(one.gtids)
    return (
        one.version_ts == other.version_ts
        and more is not None
        and type(known) in (type(None), type(more))
        and (
            known is None or not known >= more  # type: ignore[operator]
        )
    )


def _unite(one: str, other: str) -> str:
    if ":" in one:
        return str(MysqlGtidSet.parse(f"{one},{other}"))
    return str(MariaGtidPosition.parse(one) | MariaGtidPosition.parse(other))


def point_fields(point: StoragePoint) -> dict[str, Any]:
    """A point by the names of the seed, and ours behind them."""
    return {name: getattr(point, ours) for name, ours in _NAMES.items()}


def point_text(point: StoragePoint, shard: int, task: Any) -> str:
    """A point as one line of JSON, to be kept by a consumer."""
    fields = point_fields(point)
    where = {"format": FORMAT, "task": task.name, "source": task.source, "shard": shard, "generation": task.generation}
    return json.dumps({**where, **fields}, separators=(",", ":"))


def read_point_fields(found: Any) -> StoragePoint:
    """A point from its fields. Raises ValueError, TypeError or LookupError where they are none."""
    point = StoragePoint(**{ours: found[name] for name, ours in _NAMES.items()})
    texts = (point.gtids, point.uuid, point.mode)
    numbers = set(_NAMES.values()) - {"gtids", "uuid", "mode"}
    if not all(isinstance(one, str) for one in texts) or not all(type(getattr(point, n)) is int for n in numbers):
        raise TypeError("fields of other types")
    if not (0 <= point.event_index < 1 << 63 and 1 <= point.seq < 1 << 62 and 0 <= point.change_id < 1 << 31):
        raise ValueError("fields out of range")
    if not 0 <= point.version_ts < 1 << 62 or any(abs(getattr(point, name)) >= 1 << 63 for name in numbers):
        raise ValueError("fields out of range")  # of a ledger
    UUID(point.uuid)
    return point


def parse_point_text(text: str, shard: int, task: Any) -> StoragePoint:
    """A point that a consumer kept. Raises UsageError where it is none, or another task's, source's or shard's."""
    try:
        found = json.loads(text)
        point = read_point_fields(found)
        where = (found["format"], found["task"], found["source"], found["shard"], found["generation"])
    except (ValueError, TypeError, LookupError) as wrong:
        raise UsageError(f"no storage point: {text[:100]!r}", hint="give back what `batch.point` was") from wrong
    if where != (FORMAT, task.name, task.source, shard, task.generation):
        told = f"task {where[1]}, source {where[2]}, shard {where[3]}, generation {where[4]}"
        raise UsageError(
            f"the point is one of {told}; wanted is one of {task.name}, {task.source}, {shard}, {task.generation}",
            hint="after `changes reshard` begin from the points of the ledger: leave `point` out once",
            subject=task.name,
        )
    return point
