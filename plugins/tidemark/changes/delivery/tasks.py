"""Tasks: begun, rewound, divided anew; what they need of a store, and how far they are.

A task's points stand in the ledger. A rewind and another number of shards give them a new version, in one transaction with
the audit. Members notice within a beat; what a slow one still writes is not written, for its version is the former one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from sqlalchemy.engine import Connection

from tidemark.changes.delivery.blocks import DiskStretches, Key, Walk
from tidemark.changes.delivery.members import lease_prefix, read_seen
from tidemark.changes.delivery.points import find_point, number_of_point
from tidemark.changes.delivery.shards import Sharding, Wants
from tidemark.changes.delivery.storage_points import Places, in_order, point_at
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader, open_whole
from tidemark.errors import BinlogGapError, NotFoundError, PermanentError, RetryableError, UsageError
from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import (
    EARLIEST,
    LATEST,
    NORMAL,
    StoragePoint,
    TaskRow,
    create_task,
    list_tasks,
    read_batch,
    read_letters,
    read_points,
    read_task,
    read_task_points,
    replace_points,
)
from tidemark.ledger.journal import record_decision
from tidemark.ledger.leases import Leases

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
EXACT_ROWS = 200_000
"""Up to so many rows are divided to be counted; beyond that a shard is told its even part."""
SHARDS = 8


@dataclass(frozen=True)
class Wanted:
    """A task as a member asks for it. None: as the task is, or the default where this member is its first."""

    name: str
    source: str
    shards: int | None = None
    hash: str | None = None
    key_change: str | None = None
    columns: Mapping[str, tuple[str, ...]] | None = None
    tables: tuple[str, ...] | None = None
    start: str = "earliest"


def open_task(ledger: Ledger, disk: Disk, wanted: Wanted, now: float, *, of_sink: bool = False) -> TaskRow:
    """The task of that name; begun where `start` says, if there is none. UsageError where it is another one, or a sink's and
    not asked for by the sink (`of_sink`)."""
    if not _NAME.fullmatch(wanted.name):
        raise UsageError(f"{wanted.name!r} is no name of a task: letters, digits, `_`, `.` and `-`", subject=wanted.name)
    if wanted.tables is not None and not wanted.tables:
        raise UsageError(
            f"task {wanted.name} is asked for without a table", hint="leave `tables` out: all", subject=wanted.name
        )
    with ledger.read() as connection:
        found = read_task(connection, wanted.name)
        if not of_sink:
            require_no_sink(connection, wanted.name)
    if found is None:
        version = int(now * 1000)
        task = TaskRow(
            wanted.name,
            wanted.source,
            SHARDS if wanted.shards is None else wanted.shards,
            wanted.hash or "mixed",
            wanted.key_change or "split",
            wanted.columns or {},
            ("**",) if wanted.tables is None else wanted.tables,
            version_ts=version,
        )
        Sharding(task.shards, task.hash, task.key_change, task.columns)  # or it raises
        point = _first_point(open_whole(disk), wanted.start, version)
        with ledger.write() as connection:
            found = create_task(connection, task, dict.fromkeys(range(task.shards), point))
    check_same(found, wanted)
    return found


def require_no_sink(connection: Connection, name: str) -> None:
    """Raise UsageError where a task is that of a sink: what anybody else said is done would never come to its tables."""
    if read_batch(connection, name) is not None:
        raise UsageError(
            f"task {name} is that of a sink: it alone takes its changes",
            hint="another consumer is another task: another name",
            subject=name,
        )


def _first_point(reader: Reader, start: str, version: int) -> StoragePoint:
    if start != "earliest" and not reader.view.end.seq:
        raise NotFoundError(
            f"the store has no changes yet, so it has no {start}",
            hint="begin with `earliest`, or capture first",
            subject=start,
        )
    mode = {"earliest": EARLIEST, "latest": LATEST, "now": LATEST}.get(start, NORMAL)
    return point_at(reader, number_of_point(reader, start), version, mode)


def check_same(task: TaskRow, wanted: Wanted) -> None:
    """Raise UsageError where a task is another one than the wanted one of its name."""
    hint = f"./tidemark changes reshard {task.name} --shards N; the rest stays: another task is another name"
    for name in ("source", "shards", "hash", "key_change", "columns", "tables"):
        asked, there = getattr(wanted, name), getattr(task, name)
        if asked is not None and asked != there:
            raise UsageError(f"task {task.name} has {name} {there!r}, not {asked!r}", hint=hint, subject=task.name)


def find_task(ledger: Ledger, name: str) -> TaskRow:
    with ledger.read() as connection:
        return read_task(connection, name) or _raise_unknown(connection, name)


def find_task_points(ledger: Ledger, name: str) -> tuple[TaskRow, dict[int, StoragePoint]]:
    """A task and the point of each shard, as of one moment."""
    with ledger.read() as connection:
        return read_task_points(connection, name) or _raise_unknown(connection, name)


def _raise_unknown(connection: Connection, name: str) -> NoReturn:
    known = ", ".join(task.name for task in list_tasks(connection)) or "none"
    raise NotFoundError(
        f"no task named {name!r}; the ledger has: {known}",
        hint="its first member begins a task: ./tidemark changes consume TASK --source SOURCE",
        subject=name,
    )


# rewind and reshard


@dataclass(frozen=True)
class Stretch:
    """What comes again in one shard: from `first` to before `end`, numbers of transactions. `rows`: of this shard.

    `first` beyond `end`: the rows in between are left out.
    """

    shard: int
    first: int
    end: int
    rows: int


@dataclass(frozen=True)
class Change:
    """What a rewind or another number of shards does. `before`: the task that it was planned for. `points`: of the shards
    that get another one. `undo`: the command."""

    before: TaskRow
    task: TaskRow
    points: Mapping[int, StoragePoint]
    shards: Sequence[Stretch]
    transactions: int
    rows: int
    exact: bool
    undo: Sequence[str] = ()
    was: Mapping[int, StoragePoint] | None = None


def plan_rewind(
    ledger: Ledger, disk: Disk, wants: Wants, name: str, to: str, shards: Collection[int] = (), now: float = 0.0
) -> Change:
    """What it is to go on from POINT `to`, in all or some shards. Changes nothing.

    BinlogGapError: retention took what begins there.
    """
    task, was = find_task_points(ledger, name)
    unknown = sorted(set(shards) - set(was))
    if unknown:
        raise NotFoundError(f"task {name} has no shard {unknown[0]}: 0 to {task.shards - 1}", subject=str(unknown[0]))
    reader = open_whole(disk)
    try:
        found = find_point(reader, to)
    except NotFoundError as gone:
        raise BinlogGapError(
            f"{to} is not in the store, which begins with seq:{reader.first}",
            hint=f"./tidemark changes rewind {name} --to earliest",
            subject=to,
        ) from gone
    seq = found.seq if found else reader.view.end.seq + 1
    version = max(int(now * 1000), task.version_ts + 1)
    point = point_at(reader, seq, version)
    chosen = sorted(shards) or sorted(was)
    changed = replace(task, version_ts=version)
    counted = _count(disk, wants, task, {shard: (seq, was[shard].seq) for shard in chosen})
    undo = _name_undo(name, {shard: was[shard] for shard in chosen}, len(was))
    return Change(task, changed, dict.fromkeys(chosen, point), *counted, undo, was)


def plan_reshard(ledger: Ledger, disk: Disk, wants: Wants, name: str, shards: int, now: float = 0.0) -> Change:
    """What it is to divide a task's rows into another number of shards: all begin at the earliest of all points.

    A point's GTIDs tell what its own shard did. Where a shard did more than what is before its place in this store (another
    store had another order), no new shard may leave that out: all begin at the earliest transaction that any still needs.
    """
    task, was = find_task_points(ledger, name)
    Sharding(shards, task.hash, task.key_change, task.columns)  # or it raises
    version = max(int(now * 1000), task.version_ts + 1)
    changed = replace(task, shards=shards, generation=task.generation + 1, version_ts=version)
    reader = open_whole(disk)
    places = Places(disk)
    starts = {shard: places.locate(point, f"task {name}, shard {shard}") for shard, point in in_order(was)}
    if all(start.seq == was[shard].seq and not start.known for shard, start in starts.items()):
        earliest = replace(min(was.values(), key=lambda point: point.order), version_ts=version)
    else:
        earliest = point_at(reader, min(start.seq for start in starts.values()), version)
    counted = _count(disk, wants, task, {shard: (earliest.seq, start.seq) for shard, start in starts.items()})
    undo = [f"./tidemark changes reshard {name} --shards {task.shards}"]
    return Change(task, changed, dict.fromkeys(range(shards), earliest), *counted, undo, was)


def apply_change(ledger: Ledger, change: Change, action: str, **detail: Any) -> None:
    """Do what was planned, with an entry in the audit. UsageError where the task was changed meanwhile."""
    with ledger.write() as connection:
        task = read_task(connection, change.task.name, lock=True)
        if task != change.before:
            raise UsageError(f"task {change.task.name} was changed meanwhile", hint="look again, then decide again")
        replace_points(connection, change.task, change.points)
        was = {shard: f"seq:{point.seq}" for shard, point in (change.was or {}).items()}
        record_decision(connection, action, f"task:{change.task.name}", was=was, version=change.task.version_ts, **detail)


def _name_undo(name: str, was: Mapping[int, StoragePoint], shards: int) -> list[str]:
    """The commands that bring the former points back."""
    by_seq: dict[int, list[int]] = {}
    for shard, point in was.items():
        by_seq.setdefault(point.seq, []).append(shard)
    told = []
    for seq, some in sorted(by_seq.items()):
        of = "" if len(some) == shards else f" --shard {' '.join(map(str, some))}"
        told.append(f"./tidemark changes rewind {name} --to seq:{seq}{of} --yes")
    return told


def _count(
    disk: Disk, wants: Wants, task: TaskRow, ranges: Mapping[int, tuple[int, int]]
) -> tuple[list[Stretch], int, int, bool]:
    """The stretches of shards, how many transactions and rows come again, and whether rows are counted or estimated."""
    reader = open_whole(disk)
    spans = {shard: (max(first, reader.first), min(end, reader.view.end.seq + 1)) for shard, (first, end) in ranges.items()}
    begin = min((first for first, end in spans.values() if first < end), default=0)
    stop = max((end for first, end in spans.values() if first < end), default=0)
    rows = dict.fromkeys(ranges, 0)
    total = reader.count_rows(begin, stop) if begin < stop else 0
    exact = total <= EXACT_ROWS
    if begin < stop and exact:
        sharding = Sharding(task.shards, task.hash, task.key_change, task.columns)
        walk = Walk(DiskStretches(disk), sharding, wants, Key(begin))
        while walk.ahead < Key(stop) and (block := walk.read_next(list(spans))) is not None:
            for shard, pieces in block.by_shard.items():
                low, high = spans[shard]
                for piece in pieces:
                    if low <= piece.seq < high:
                        records = piece.transaction.records
                        rows[shard] += sum(record.count for record in records if isinstance(record, Rows))
    elif begin < stop:
        rows = {shard: reader.count_rows(*span) // task.shards for shard, span in spans.items()}
    stretches = [Stretch(shard, *ranges[shard], rows[shard]) for shard in sorted(ranges)]
    return stretches, max(0, stop - begin), sum(rows.values()), exact


# what is told


def needed_of(ledger: Ledger, source: str) -> int | None:
    """The lowest transaction that a task of a source still has to read; None: none has."""
    with ledger.read() as connection:
        points = [point for task in list_tasks(connection, source) for point in read_points(connection, task.name).values()]
    return min((point.seq for point in points), default=None)


def show_task(leases: Leases, disk: Disk, task: TaskRow, now: float) -> dict[str, Any]:
    """A task as `changes show --json` tells it."""
    with leases.ledger.read() as connection:
        points, letters = read_points(connection, task.name), read_letters(connection, task.name)
        rows = leases.list_named(connection, lease_prefix(task.name))
    seen, places = read_seen("", task.shards, task.generation, rows), Places(disk)
    holders = {row.name.rpartition("/")[2]: f"{row.identity.host}/{row.identity.pid}" for row in rows}
    lags: dict[int, float] = {}
    shown = []
    for shard, point in in_order(points):
        if point.seq not in lags:
            lags[point.seq] = _measure_lag(places.reader, point.seq, now)
        one: dict[str, Any] = {
            "shard": shard,
            "point": f"seq:{point.seq}",
            "event_index": point.event_index,
            "lag_seconds": lags[point.seq],
            "holder": holders.get(str(shard)) if shard in seen.held else None,
        }
        try:
            places.locate(point, f"task {task.name}, shard {shard}")
        except BinlogGapError:
            one["overrun"] = True
        except (PermanentError, RetryableError) as trouble:  # of this task alone: the others are told as well
            one["trouble"] = trouble.message
        shown.append(one)
    return {
        "name": task.name,
        "source": task.source,
        "shards": task.shards,
        "members": len(seen.members),
        "lag_seconds": max((one["lag_seconds"] for one in shown), default=0.0),
        "points": sorted(shown, key=lambda one: one["shard"]),
        "dead_letters": [{"host": one.host, "place": one.place, "batches": one.count} for one in letters],
    }


def _measure_lag(reader: Reader, seq: int, now: float) -> float:
    """Seconds since the commit of the transaction that comes next; 0 where there is none."""
    if seq > reader.view.end.seq:
        return 0.0
    piece = next(reader.read(max(seq, reader.first)))
    return round(max(0.0, now - piece.transaction.info.timestamp / 1e6), 1)
