"""Storage points: how far a shard is, in words that hold in another store of the same source, too.

In the store that a point was made in, the number of the transaction says where to go on, and the identity of the last one
that is done proves that it is this store. In another one the GTID set says it. Source: seed 002 "storage point".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any
from uuid import UUID

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet, contains_gtid
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo
from tidemark.changes.store.read import Reader, Stretch, at_first_outside
from tidemark.errors import BinlogGapError, NotFoundError, PermanentError, UsageError
from tidemark.ledger.delivery import EARLIEST, LATEST, NORMAL, StoragePoint

FORMAT = 1
MOST_LOOKED_AT = 10_000
"""Transactions among which one is looked for that is half done. Of one that is further away all rows come again."""
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

    def as_point(self, version_ts: int) -> StoragePoint:
        """The storage point of this place."""
        pieces = self.stretch.pieces
        before = [piece for piece in pieces if piece.seq < self.seq]
        last = before[-1].transaction.info if before else self.stretch.before.info
        if self.index:
            last = next(piece.transaction.info for piece in pieces if piece.seq == self.seq)
        if len(before) == len(pieces) and pieces[-1].ends:
            gtids = self.stretch.gtids_after
        else:
            gtids = add_gtids(self.stretch.gtids, [piece.transaction.gtid for piece in before])
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


@dataclass(frozen=True)
class Start:
    """Where a shard goes on: transaction `seq` of the store, and `index` rows of transaction `half` are done already.

    `known`: a GTID set of transactions that are done although they stand behind that place; "": there are none.
    """

    seq: int
    index: int = 0
    half: int = 0
    known: str = ""


def locate(disk: Disk, point: StoragePoint, what: str) -> Start:
    """Where a shard goes on. `what`: whose point it is.

    Raises BinlogGapError where retention took that, PermanentError where the store is another one, or ends before it.
    """
    reader = Reader(disk)
    done = point.seq if point.event_index else point.seq - 1
    if not point.change_id:  # nothing is done yet
        if reader.view.end.seq and point.seq < reader.first:
            raise _overrun(reader, point.seq, what)
        return Start(point.seq)
    info = _info_of(reader, done)
    if info is not None and _is_same(_of_info(info), point) and _has_all_before(reader, point):
        return Start(point.seq, point.event_index, point.seq, _find_known(reader, point.seq, point.gtids))
    if info is None and reader.view.end.seq and done < reader.first and _is_of_store(reader, point):
        raise _overrun(reader, point.seq, what)
    return _locate_by_gtids(reader, point, what)


def _is_same(one: StoragePoint, other: StoragePoint) -> bool:
    """Whether two points tell of the same transaction at the same place. Logs of two servers may have equal names and
    places, so its GTID, server and time count as well."""
    same = {"seq": 0, "event_index": 0, "gtids": "", "version_ts": 0, "mode": NORMAL}
    return replace(one, **same) == replace(other, **same)  # type: ignore[arg-type]


def _has_all_before(reader: Reader, point: StoragePoint) -> bool:
    """Whether all that the store has before a point is done: two servers may have one transaction at the same place, and
    others before it."""
    before, known = parse_gtids(point_at(reader, point.seq, 0).gtids), parse_gtids(point.gtids)
    return before is None or (type(known) is type(before) and known >= before)  # type: ignore[operator]


def _find_known(reader: Reader, seq: int, gtids: str) -> str:
    """The set of what is done, where the store does not have all of it before `seq`."""
    known = parse_gtids(gtids)
    before = parse_gtids(point_at(reader, seq, 0).gtids)
    return "" if known is None or (before is not None and before >= known) else gtids  # type: ignore[operator]


def _locate_by_gtids(reader: Reader, point: StoragePoint, what: str) -> Start:
    """Where to go on in another store of the source, whatever order it has the transactions in."""
    known, there = parse_gtids(point.gtids), parse_gtids(reader.view.gtids)
    is_first = known is None and point.seq == 1 and point.event_index > 0
    if is_first and there is not None and not next(reader.read_stretches(reader.first)).gtids:
        half = _find_half(reader, point, reader.first)  # no transaction is done wholly, and the store has them all
        return Start(reader.first, point.event_index if half else 0, half)
    if known is None or not reader.view.end.seq:
        raise PermanentError(
            f"{what} stands at seq:{point.seq}, log {point.binlog_file}, offset {point.binlog_offset}; the store"
            f" {reader.disk.root} has something else there, and no GTIDs say where to go on",
            hint="give the task the store that it read; or ./tidemark changes rewind TASK --to POINT",
            subject=what,
        )
    if type(there) is not type(known) or not there >= known:  # type: ignore[operator]
        raise PermanentError(
            f"{what} is ahead of the store {reader.disk.root}: it has {point.gtids}, the store"
            f" {reader.view.gtids or 'none'}",
            hint="let the capture go on, then begin again",
            subject=what,
        )
    try:
        found = reader.find(
            at_first_outside(
                lambda gtids: bool(gtids) and not known >= parse_gtids(gtids),  # type: ignore[operator]
                lambda gtid: contains_gtid(known, gtid),
            )
        )
    except NotFoundError as gone:
        raise _overrun(reader, point.seq, what) from gone
    seq = found.seq if found else reader.view.end.seq + 1
    half = _find_half(reader, point, seq) if point.event_index else 0
    return Start(seq, point.event_index if half else 0, half, _find_known(reader, seq, point.gtids))


def _find_half(reader: Reader, point: StoragePoint, seq: int) -> int:
    """The number that the half done transaction has here; 0: it is not found among those that come next."""
    uuid = UUID(point.uuid).bytes
    for piece in islice(reader.read(seq), MOST_LOOKED_AT) if seq <= reader.view.end.seq else ():
        if (piece.transaction.info.uuid, piece.transaction.info.transaction_id) == (uuid, point.transaction_id):
            return piece.seq
    return 0


def _info_of(reader: Reader, seq: int) -> BinlogInfo | None:
    """The identity of a transaction; None where the store does not have it."""
    end = reader.view.end
    if seq == end.seq and seq:
        return end.info
    if not end.seq or not reader.first - 1 <= seq < end.seq:
        return None
    stretch = next(reader.read_stretches(seq + 1))
    found = [piece.transaction.info for piece in stretch.pieces if piece.seq == seq]
    return found[0] if found else stretch.before.info


def _is_of_store(reader: Reader, point: StoragePoint) -> bool:
    """Whether a point before the store's beginning may be one of it."""
    first = next(reader.read_stretches(reader.first)).before.info
    return (point.change_id, point.binlog_file, point.binlog_offset) <= first.order[:3]


def _overrun(reader: Reader, seq: int, what: str) -> BinlogGapError:
    return BinlogGapError(
        f"{what} stands at seq:{seq}, which the store {reader.disk.root} does not have any more: it begins with"
        f" seq:{reader.first}",
        hint="./tidemark changes rewind TASK --to earliest goes on without what is gone; raise retain_bytes of the source",
        subject=what,
    )


def point_fields(point: StoragePoint) -> dict[str, Any]:
    """A point by the names of the seed, and ours behind them."""
    return {name: getattr(point, ours) for name, ours in _NAMES.items()}


def point_of_fields(fields: Mapping[str, Any]) -> StoragePoint:
    """The point that `point_fields` told. Raises LookupError or TypeError where it is none."""
    point = StoragePoint(**{ours: fields[name] for name, ours in _NAMES.items()})
    texts = (point.gtids, point.uuid, point.mode)
    numbers = set(_NAMES.values()) - {"gtids", "uuid", "mode"}
    if not all(isinstance(one, str) for one in texts) or not all(type(getattr(point, n)) is int for n in numbers):
        raise TypeError("fields of other types")
    return point


def point_text(point: StoragePoint, shard: int, task: Any) -> str:
    """A point as one line of JSON, to be kept by a consumer."""
    fields = point_fields(point)
    where = {"format": FORMAT, "task": task.name, "source": task.source, "shard": shard, "generation": task.generation}
    return json.dumps({**where, **fields}, separators=(",", ":"))


def parse_point_text(text: str, shard: int, task: Any) -> StoragePoint:
    """A point that a consumer kept. Raises UsageError where it is none, or another task's, source's or shard's."""
    try:
        found = json.loads(text)
        point = point_of_fields(found)
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
