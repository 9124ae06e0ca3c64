"""Tasks over HTTP: begun, their shards held, their storage points told, moved, rewound.

A client that is a member holds its shards by leases of this ledger, in the name of this server's process. Nothing of it is
kept here: each `hold` reads the leases and does what is due. A point of a member moves under its lease's fence. That of
another client moves forward alone, of the version that the client has seen, in a shard that no member holds.
A rewind is that of `./tidemark changes rewind`, with its entry in the audit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.http.feed import find_start
from tidemark.changes.delivery.http.requests import (
    NORMAL,
    Begin,
    Commit,
    CommitPoints,
    Hold,
    Locate,
    Rewind,
    describe_points,
)
from tidemark.changes.delivery.members import (
    choose_shards,
    lease_prefix,
    member_lease,
    name_holder,
    read_seen,
    shard_lease,
)
from tidemark.changes.delivery.storage_points import Place, Places, furthest_point, in_order, point_fields
from tidemark.changes.delivery.stream import LEASE_SECONDS, RENEWED
from tidemark.changes.delivery.tasks import (
    Change,
    apply_change,
    check_same,
    find_task,
    find_task_points,
    open_task,
    plan_rewind,
    require_no_sink,
)
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader
from tidemark.errors import LeaseHeldError, LeaseLostError, NotFoundError, UsageError
from tidemark.ledger.delivery import (
    STOPPED,
    Move,
    SinkBatch,
    StoragePoint,
    TaskRow,
    create_task,
    move_point,
    move_points,
    read_batch,
    read_points,
    read_sink_tables,
    read_task,
)
from tidemark.ledger.leases import Lease, LeaseRow, Leases, assert_held

STORE = "the store of this reader"


@dataclass(frozen=True)
class TaskPoints:
    """The points of tasks, in the ledger."""

    leases: Leases

    def find(self, name: str) -> TaskRow:
        """The task. The names of others are not told."""
        with _hide_others(name):
            return find_task(self.leases.ledger, name)

    def read_sinks(self, names: Sequence[str]) -> Iterator[tuple[str, TaskRow, SinkBatch, StoragePoint, int]]:
        """Of those that are sinks which have begun: the task, the newest batch, the least point, how many tables stopped."""
        with self.leases.ledger.read() as connection:
            for name in names:
                task, batch = read_task(connection, name), read_batch(connection, name)
                points = read_points(connection, name)
                if task is not None and batch is not None and points:
                    stopped = [one for one in read_sink_tables(connection, name).values() if one.state == STOPPED]
                    yield name, task, batch, min(points.values(), key=lambda one: one.order), len(stopped)

    def tell(self, name: str) -> dict[str, Any]:
        """The task, and the point of each shard in the words of the seed."""
        with _hide_others(name):
            task, points = find_task_points(self.leases.ledger, name)
        return {
            "taskName": task.name,
            "serviceGroupName": task.source,
            "partitionTotal": task.shards,
            "hash": task.hash,
            "keyChange": task.key_change,
            "columns": {table: list(names) for table, names in task.columns.items()},
            "tables": list(task.tables),
            "generation": task.generation,
            "versionTs": task.version_ts,
            "points": describe_points(points),
        }

    def begin(self, disk: Disk, asked: Begin, now: float) -> dict[str, Any]:
        """The task, begun where the client says if there is none. Points of another reader win over those of an older
        version: the task was rewound, or divided anew, there."""
        wanted, ledger = asked.wanted, self.leases.ledger
        with ledger.read() as connection:
            require_no_sink(connection, wanted.name)
            found = read_task(connection, wanted.name)
        if found is None and not (asked.points or wanted.start):
            return {}
        if not asked.points:
            open_task(ledger, disk, wanted, now)
            return self.tell(wanted.name)
        version = max(point.version_ts for point in asked.points.values())
        if found is None or (found.generation, found.version_ts) < (asked.generation, version):
            what, places = f"task {wanted.name}", Places(disk, STORE)
            points = {shard: places.settle(point, what) for shard, point in in_order(asked.points)}
            if found is None:
                self._create(asked, version, points)
            else:
                check_same(found, replace(wanted, shards=None))
                task = replace(found, shards=len(points), generation=asked.generation, version_ts=version)
                with ledger.read() as connection:
                    was = read_points(connection, found.name)
                change = Change(found, task, points, (), 0, 0, exact=False, was=was)
                apply_change(ledger, change, "rewind", to="another reader's points", shards=sorted(points), by="http")
        return self.tell(wanted.name)

    def _create(self, asked: Begin, version: int, points: dict[int, StoragePoint]) -> None:
        wanted = asked.wanted
        task = TaskRow(
            wanted.name,
            wanted.source,
            len(points),
            wanted.hash or "mixed",
            wanted.key_change or "split",
            wanted.columns or {},
            wanted.tables or ("**",),
            asked.generation,
            version,
        )
        with self.leases.ledger.write() as connection:
            check_same(create_task(connection, task, points), replace(wanted, shards=None))

    def locate(self, disk: Disk, asked: Locate) -> dict[str, Any]:
        """Where shards go on in this store. BinlogGapError, PermanentError: as of `storage_points.locate`."""
        starts, places = [], Places(disk, STORE)
        for shard, point in in_order(asked.points):
            found = places.locate(point, f"task {asked.task}, shard {shard}")
            starts.append({"shard": shard, "seq": found.seq, "index": found.index, "half": found.half, "known": found.known})
        return {"starts": sorted(starts, key=lambda one: one["shard"])}

    # members

    def hold(self, asked: Hold) -> dict[str, Any]:
        """Renew what a member has, release what it is done with, give it what is its due. Returns what it holds now."""
        ledger = self.leases.ledger
        with ledger.read() as connection:
            act = self._decide(connection, asked)
        if act.is_due:
            with ledger.write() as connection:
                read_task(connection, asked.task, lock=True)
                self._act(connection, asked, self._decide(connection, asked))
            with ledger.read() as connection:
                act = self._decide(connection, asked)
        told = self.tell(asked.task)
        held = {str(shard): row.fence for shard, row in act.mine.items()}
        return {**told, "held": held, "give": sorted(act.give), "taken": sorted({*act.taken, *act.mine})}

    def _decide(self, connection: Connection, asked: Hold) -> _Due:
        task = read_task(connection, asked.task)
        if task is None:
            raise NotFoundError(f"no task named {asked.task!r} has begun", subject=asked.task)
        require_no_sink(connection, task.name)
        rows = self.leases.list_named(connection, lease_prefix(task.name))
        own = [row for row in rows if row.holder.partition("@")[0] == asked.member]
        member = next((row for row in own if "/member-" in row.name), None)
        mine = {int(row.name.rpartition("/")[2]): row for row in own if row is not member}
        seen = read_seen(asked.member, task.shards, task.generation, rows)
        is_current = asked.generation == task.generation
        release = [row for shard, row in mine.items() if asked.leaves or shard in asked.release]
        take: Sequence[int] = ()
        give: Sequence[int] = sorted(mine)
        if is_current and not asked.leaves:
            if asked.only is None:
                choice = choose_shards(seen)
                take, give = choice.take, choice.give
            else:
                give = ()
                free = [shard for shard in asked.only if shard < task.shards and shard not in seen.held]
                take = () if seen.is_former else free
        if asked.leaves and member is not None:
            release.append(member)
        clock = self.leases.clock(connection)
        is_old = any(row.expires - clock < LEASE_SECONDS * RENEWED for row in own)
        joins = member is None and asked.only is None and not asked.leaves
        numbers = {row.name for row in rows}
        free_name = next(name for n in range(len(rows) + 1) if (name := member_lease(task.name, n)) not in numbers)
        return _Due(
            task.generation, mine, tuple(seen.held), own if is_old else (), release, take, give, free_name if joins else ""
        )

    def _act(self, connection: Connection, asked: Hold, due: _Due) -> None:
        leases = Leases(self.leases.ledger, self.leases.identity, self.leases.alive, LEASE_SECONDS, self.leases.clock)
        leases.release_within(connection, [Lease(row.name, row.fence, row.holder) for row in due.release])
        gone = {row.name for row in due.release}
        kept = [Lease(row.name, row.fence, row.holder) for row in due.renew if row.name not in gone]
        leases.renew_within(connection, kept)
        if due.join:
            leases.acquire_within(connection, due.join, asked.member)
            due = self._decide(connection, asked)  # with its own lease it has a share
        for shard in due.take:
            holder = name_holder(asked.member, due.generation)
            leases.acquire_within(connection, shard_lease(asked.task, shard), holder)

    def commit_points(self, disk: Disk, asked: CommitPoints) -> dict[str, Any]:
        """Move points of shards forward, of any reader's store. `refused`: shards in which it moved nothing, and why."""
        task = self.find(asked.task)
        what, places = f"task {task.name}", Places(disk, STORE)
        points = {shard: places.settle(point, what) for shard, point in in_order(asked.points)}
        refused: dict[str, str] = {}
        moves: list[Move] = []
        with self.leases.ledger.write() as connection:
            require_no_sink(connection, task.name)
            rows = self.leases.list_named(connection, lease_prefix(task.name))
            held = read_seen("", task.shards, task.generation, rows).held
            before = read_points(connection, task.name)
            for shard, point in points.items():
                was = before.get(shard)
                if was is None or was.version_ts != point.version_ts:
                    refused[str(shard)] = "STALE"
                elif not self._may_move(connection, asked, shard, held.get(shard, "")):
                    refused[str(shard)] = "HELD"
                elif (further := _find_further(places, was, point, what)) is not None:
                    moves.append(Move(shard, was, further, asked.fences.get(shard, 0)))
            move_points(connection, task.name, moves)
        return {**self.tell(task.name), "refused": refused}

    def _may_move(self, connection: Connection, asked: CommitPoints, shard: int, holder: str) -> bool:
        """Whether the client holds a shard, or nobody else does."""
        if shard not in asked.fences:
            return holder in ("", asked.member)
        try:
            assert_held(connection, Lease(shard_lease(asked.task, shard), asked.fences[shard], asked.member))
        except LeaseLostError:
            return False
        return True

    # clients that are no members

    def commit(self, disk: Disk, asked: Commit) -> dict[str, Any]:
        """Move a shard's point behind an event that is dealt with. A point that is there already, or behind it, stays.

        LeaseHeldError: a member holds the shard. LeaseLostError: the point was rewound since, or another client moved it.
        """
        task = self.find(asked.task)
        point = _point_behind(Reader(disk), asked)
        with self.leases.ledger.write() as connection:
            require_no_sink(connection, task.name)
            rows = self.leases.list_named(connection, lease_prefix(task.name))
            if asked.shard in read_seen("", task.shards, task.generation, rows).held:
                raise LeaseHeldError(f"a member of task {task.name} holds shard {asked.shard}", subject=task.name)
            before = read_points(connection, task.name).get(asked.shard)
            if before is None:
                raise NotFoundError(f"task {task.name} has no shard {asked.shard}", subject=task.name)
            if before.version_ts != asked.version_ts:
                raise LeaseLostError(
                    f"shard {asked.shard} of task {task.name} was rewound or divided anew since",
                    hint="ask /v1/points, and go on from there",
                    subject=task.name,
                )
            if point.order > before.order and not move_point(connection, (task.name, asked.shard), before, point, fence=0):
                raise LeaseLostError("another client moved the point meanwhile", hint="ask /v1/points", subject=task.name)
            now = max(before, point, key=lambda one: one.order)
        return {"shard": asked.shard, **point_fields(now)}

    def rewind(self, disk: Disk, asked: Rewind, now: float) -> dict[str, Any]:
        """What comes again; with `apply` it is done."""
        task = self.find(asked.task)
        plan = plan_rewind(self.leases.ledger, disk, choose_tables(task.tables), task.name, asked.to, asked.shards, now)
        if asked.apply:
            apply_change(self.leases.ledger, plan, "rewind", to=asked.to, shards=sorted(plan.points), by="http")
        shards = [{"shard": one.shard, "from": one.first, "to": one.end, "rows": one.rows} for one in plan.shards]
        return {
            "transactions": plan.transactions,
            "rows": plan.rows,
            "exact": plan.exact,
            "shards": shards,
            "undo": list(plan.undo),
            "applied": asked.apply,
        }


@dataclass(frozen=True)
class _Due:
    """What is due for a member. `mine`: the leases of its shards; `join`: the lease that makes it a member, "": none."""

    generation: int
    mine: dict[int, LeaseRow]
    taken: Sequence[int]
    renew: Sequence[LeaseRow]
    release: Sequence[LeaseRow]
    take: Sequence[int]
    give: Sequence[int]
    join: str

    @property
    def is_due(self) -> bool:
        return bool(self.renew or self.release or self.take or self.join)


@contextmanager
def _hide_others(name: str) -> Iterator[None]:
    """The names of other tasks are not told."""
    try:
        yield
    except NotFoundError as unknown:
        raise NotFoundError(f"no task named {name!r} has begun", hint=unknown.hint, subject=name) from unknown


def _find_further(places: Places, was: StoragePoint, point: StoragePoint, what: str) -> StoragePoint | None:
    """What two points of this store say together, where that is more than the first. A reader with another order of commits
    may know of more without a later place."""
    known, more = parse_gtids(was.gtids), parse_gtids(point.gtids)
    if known is not None and type(known) is type(more) and not more >= known:  # type: ignore[operator]
        if known >= more:  # type: ignore[operator]
            return None
        point = places.settle(furthest_point(was, point), what)
    is_further = point.order > was.order or (point.order == was.order and point.gtids != was.gtids)
    return point if is_further else None


def _point_behind(reader: Reader, asked: Commit) -> StoragePoint:
    """The storage point behind an event: of its transaction, or of the next one where that is whole."""
    point = replace(asked.checkpoint, gtid_set="")
    if point.stored is not None:
        return Places(reader.disk, STORE).settle(replace(point.stored, version_ts=asked.version_ts), "the point")
    if point.mode != NORMAL or not (point.file or (point.uuid and point.transaction_id > 0)):
        raise UsageError("buffaloCheckpoint: a commit names an event: its uuid and transactionId, or its log and offset")
    start = find_start(reader, point)
    seq = start.seq
    if not start.is_exact:
        raise UsageError(
            f"buffaloCheckpoint: no transaction is there; the next one is seq:{seq}",
            hint="send the checkpoint of an event as it came",
        )
    stretches = reader.read_stretches(seq)
    index = point.event_index + 1
    rows = 0
    for stretch in stretches:
        for piece in stretch.pieces:
            if piece.seq == seq:
                rows += sum(record.count for record in piece.transaction.records if isinstance(record, Rows))
                if piece.ends:
                    is_whole = point.event_index >= rows
                    place = Place(seq + 1, 0, stretch) if is_whole else Place(seq, index, stretch)
                    return place.as_point(asked.version_ts)
    raise NotFoundError(f"transaction seq:{seq} is not whole in the store", subject=f"seq:{seq}")
