"""A run of a sink: plan a batch, record it, write it, move the points of the sink's task; again, up to the end.

A sink is a task of its name, so retention waits for it, `changes show` tells it, and `changes rewind` sets it back. One
process at a time writes it, as the holder of the lease `sink:NAME`. A batch begins at the earliest of the points. What a
death left is a batch that is recorded and not done: the next run writes that one first, with the same transactions, also by
another engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidemark.app import App
from tidemark.changes.binlog.gtid_sets import contains_gtid
from tidemark.changes.bootstrap.state import BEGIN
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.delivery import points, tasks
from tidemark.changes.delivery.export import Wants, choose_tables
from tidemark.changes.delivery.storage_points import Start, locate, point_at
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.sinks.batches import Content, Limits, find_batch_end, find_renamed, keep_wanted, leave_sequences
from tidemark.changes.sinks.engine import BatchEngine, open_engine
from tidemark.changes.sinks.show import sink_settings_of, site_of_sink
from tidemark.changes.sources.source import Source, find_source, wants_of
from tidemark.changes.store.read import Reader, open_whole
from tidemark.engines.choose import Engine
from tidemark.errors import DiskAwayError, NotFoundError, PermanentError, UsageError, limits_named
from tidemark.ledger.delivery import (
    PARTIAL,
    STOPPED,
    WHOLE,
    SinkBatch,
    SinkTable,
    StoragePoint,
    move_point,
    read_batch,
    read_points,
    read_sink_tables,
    read_task,
    write_batch,
    write_sink_tables,
)
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import SinkSettings
from tidemark.stores.agent import durable

if TYPE_CHECKING:
    from tidemark.changes.sinks.delta import DeltaTables

DELTA, HISTORY, CATALOG = "delta", "history", "catalog"
MARK = ".tidemark-sink"
"""A file of a folder of tables."""


def _do_nothing(_effect: str) -> None:
    pass


@dataclass(frozen=True)
class Request:
    """How a sink is run. `to`: a POINT, before which it ends; "": the store's end. `end`: the same as a number.

    `engine`: runs the tasks of batches, whatever the settings say; None: they say it. `effect`: called before and after each
    change of the target.
    """

    to: str = ""
    end: int | None = None
    limits: Limits = field(default_factory=Limits)
    engine: Engine | None = None
    effect: Callable[[str], None] = _do_nothing
    progress: Progress = ignore_progress


@dataclass
class Delivered:
    """What a run did. `rows`: changes that were read, by table. `tables`: how each table is now. `end`: the first
    transaction that is not in the sink."""

    batches: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    tables: Mapping[str, SinkTable] = field(default_factory=dict)
    end: int = 0

    @property
    def stopped(self) -> Sequence[SinkTable]:
        """Tables that are not written any more."""
        return [table for table in self.tables.values() if table.state == STOPPED]


@dataclass
class Sink:
    """A sink of the settings, with its source."""

    app: App
    settings: SinkSettings
    source: Source

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def wants(self) -> Wants:
        return choose_tables(self.settings.tables)

    @property
    def root(self) -> Path:
        return Path(self.settings.target.removeprefix("file://"))

    @cached_property
    def target(self) -> Any:
        """The tables that it writes: `DeltaTables`, `HistoryFiles` or `CatalogFiles`."""
        if self.settings.kind == DELTA:
            from tidemark.changes.sinks.delta import DeltaTables

            return DeltaTables(self.root, self.name, name_delta_folder)
        if self.settings.kind == CATALOG:
            from tidemark.changes.sinks.catalog import CatalogFiles

            return CatalogFiles(self.root, site_of_sink(self.app.settings, self.settings), dict(self.settings.columns))
        from tidemark.changes.sinks.history import HistoryFiles

        return HistoryFiles(self.root, self.name, name_folder)


def name_folder(table: str) -> str:
    """The folder of a table, `database.table`: what is no letter, digit, `_`, `.` or `-` of ASCII is percent-encoded."""
    return quote(table, safe="")


def name_delta_folder(table: str) -> str:
    """The same of a Delta table, with `@` for `%`: the package `deltalake` decodes what is percent-encoded in a path."""
    return name_folder(table).replace("%", "@")


def find_sink(app: App, name: str) -> Sink:
    settings = sink_settings_of(app.settings, name)
    return Sink(app, settings, find_source(app, settings.source))


def deliver_sink(sink: Sink, request: Request | None = None) -> Delivered:
    """Bring a sink to the end of its source's store, or to before a POINT.

    A table whose rows do not fit is stopped and named in the result; the others go on. BinlogGapError: retention took what
    comes next. LeaseHeldError: another process writes it. DiskAwayError: the target is not the one that was written to.
    """
    run = request or Request()
    holder = f"sink-{datetime.fromtimestamp(sink.app.clock(), UTC):%Y%m%dT%H%M%SZ}"
    leases = Leases(sink.app.ledger, sink.app.identity)
    with (
        leases.hold_lease(f"sink:{sink.name}", holder) as lease,
        open_engine(sink.settings, sink.app.settings.spark, sink.source.disk, run.engine) as engine,
    ):
        _open_task(sink)
        _require_target(sink)
        reader, done = open_whole(sink.source.disk), Delivered()
        until = reader.view.end.seq + 1
        if run.to or run.end is not None:
            until = min(until, points.number_of_point(reader, run.to) if run.to else run.end or 0)
        highest = sink.target.find_highest() if sink.settings.kind == DELTA else 0
        work = _Work(sink, lease, engine)
        while (planned := _plan(work, (reader, until, run.limits), highest)) is not None:
            batch, content = planned
            _write(work, (batch, content), run.effect)
            engine.end_batch()
            for name, rows in content.count_rows().items():
                done.rows[name] = done.rows.get(name, 0) + rows
            done.batches += 1
            run.progress(Tick(f"batch {batch.number}: seq:{batch.first} to seq:{batch.end - 1}"))
        with sink.app.ledger.read() as connection:
            done.tables = read_sink_tables(connection, sink.name)
            done.end = min((point.seq for point in read_points(connection, sink.name).values()), default=1)
    return done


def _open_task(sink: Sink) -> None:
    """Begin the sink's task. UsageError where there is one of that name which is no sink's, or divides rows otherwise."""
    with sink.app.ledger.read() as connection:
        is_known = read_batch(connection, sink.name) is not None
        there = read_task(connection, sink.name)
        begun = any(point.change_id for point in read_points(connection, sink.name).values())
    if there is not None and begun and not is_known:
        raise UsageError(
            f"there is a task {sink.name} that is no sink",
            hint="give the sink another name: the task's points say what its members did",
            subject=sink.name,
        )
    settings = sink.settings
    columns = {table: columns.shard for table, columns in settings.columns if columns.shard}
    wanted = Wanted(
        sink.name, settings.source, None, settings.hash, settings.key_change, columns, settings.tables, "earliest"
    )
    if there is None:
        wanted = replace(wanted, shards=settings.shards)
    tasks.open_task(sink.app.ledger, sink.source.disk, wanted, sink.app.clock(), of_sink=True)


def _require_target(sink: Sink) -> None:
    """Raise DiskAwayError where the target has nothing, or a catalog less, of what the ledger says is written to it."""
    with sink.app.ledger.read() as connection:
        batch, tables = read_batch(connection, sink.name), read_sink_tables(connection, sink.name)
    if batch is None or not (batch.is_written or batch.number > 1):
        return
    if sink.settings.kind == DELTA and not any(one.key for one in tables.values()):
        return  # no table was written: a former version left no mark then
    if sink.settings.kind == CATALOG:
        is_there = sink.target.find_end() >= (batch.end if batch.is_written else 2)
    else:
        is_there = any(next(sink.root.glob(one), None) is not None for one in (MARK, "*/_delta_log", "*/*.parquet"))
    if not is_there:
        raise DiskAwayError(
            f"{sink.root} lacks what sink {sink.name} wrote to it: is its disk mounted?",
            hint="mount it; where it is lost, begin a sink of another name",
            subject=sink.name,
        )


def _mark_target(sink: Sink) -> None:
    """Have a folder of tables say that a sink began to write to it: it may have none for long."""
    if sink.settings.kind != CATALOG and not (sink.root / MARK).exists():
        with limits_named(sink.root):
            durable.make_folder(os.fsencode(sink.root))
            durable.publish(os.fsencode(sink.root / MARK), [f"sink {sink.name}\n".encode()])


@dataclass(frozen=True)
class _Work:
    """A run of a sink that holds its lease."""

    sink: Sink
    lease: Lease
    engine: BatchEngine


def _plan(work: _Work, bounds: tuple[Reader, int, Limits], highest: int) -> tuple[SinkBatch, Content] | None:
    """The batch that comes next, recorded before anything of it is written. None: there is nothing more.

    `highest`: the number of a batch that is at the target; a ledger that was lost, or is an older copy, knows lower ones.
    """
    sink, ledger, (reader, until, limits) = work.sink, work.sink.app.ledger, bounds
    with ledger.read() as connection:
        task, there = read_task(connection, sink.name), read_batch(connection, sink.name)
        found, tables = read_points(connection, sink.name), read_sink_tables(connection, sink.name)
    assert task is not None
    known = [*tables]
    if there is not None and not there.is_written and there.version_ts == task.version_ts:
        return there, _leave_what_is_not_kept(sink, work.engine.read(there, known, limits.run))
    first = _find_first(sink, found)
    if there is not None and there.version_ts == task.version_ts:
        first = min(first, there.end)  # a member of the task, with a token for it, moves points and writes nothing here
    if sink.settings.kind == HISTORY:
        first = sink.target.align(first, reader.first)
    elif sink.settings.kind == CATALOG:
        first = max(first, sink.target.find_end())
    end = find_batch_end(reader, first, until, limits)
    if end <= first:
        return None
    batch = SinkBatch(max(there.number if there else 0, highest) + 1, first, end, task.version_ts)
    content = work.engine.read(batch, known, limits.run)
    if sink.settings.kind == CATALOG and (cut := _find_reading(batch, content)) < content.end:
        batch = replace(batch, end=cut)
        content = work.engine.read(batch, known, limits.run)
    batch = replace(batch, end=content.end)
    comes_again = batch.first
    if highest > (there.number if there else 0):
        comes_again = reader.view.end.seq + 1  # nobody knows how far it was
    elif there is not None and there.version_ts != task.version_ts:
        comes_again = there.end
    marks = (
        _mark_uncaptured(sink, first, tables),
        _mark_left_out(there, first, tables),
        _mark_renamed(sink, (first, comes_again), tables),
    )
    marked = {one.name: one for several in marks for one in several}  # the last word counts
    with ledger.write() as connection:
        assert_held(connection, work.lease)
        write_batch(connection, sink.name, batch)
        write_sink_tables(connection, sink.name, [*marked.values()])
    # CRASH WINDOW: a batch is recorded and nothing of it is written: the next run writes it, whatever the store has by then.
    return batch, _leave_what_is_not_kept(sink, content)


def _mark_left_out(there: SinkBatch | None, first: int, tables: Mapping[str, SinkTable]) -> list[SinkTable]:
    """How tables are where a batch leaves out what comes behind the former one: its task was set beyond that, since
    retention had taken it, or somebody wanted so. Rows of any of them may have changed there."""
    end = first if there is None else there.end if there.is_written else there.first
    if end >= first:
        return []
    why = f"the sink was set from seq:{end} to seq:{first}: what changed in between is not in it"
    return [replace(one, state=PARTIAL, begun=0, seq=end, why=why) for one in tables.values() if one.state != STOPPED]


def _mark_uncaptured(sink: Sink, first: int, tables: Mapping[str, SinkTable]) -> list[SinkTable]:
    """How tables are that the source captures no more: when it does again, what changed meanwhile is missing."""
    wants, why = wants_of(sink.source.settings), "the source does not capture it (tables, exclude)"
    whole = [one for name, one in tables.items() if one.state == WHOLE and not wants(*name.split(".", 1))]
    return [replace(one, state=PARTIAL, begun=0, seq=first, why=why) for one in whole]


def _mark_renamed(sink: Sink, bounds: tuple[int, int], tables: Mapping[str, SinkTable]) -> list[SinkTable]:
    """How Delta tables are of which some transactions come again that were written: those that are renamed there have rows
    of others."""
    first, end = bounds
    if sink.settings.kind != DELTA or first >= end:
        return []
    found = []
    for name in sorted(find_renamed(sink.source.disk, sink.wants, bounds)):
        if name in tables or (name and sink.target.describe(name) is not None):
            why = f"{name} is renamed, or takes a name, behind seq:{first}, and the sink was rewound to before that"
            found.append(replace(tables.get(name, SinkTable(name)), state=STOPPED, begun=0, seq=first, why=why))
    return found


def _leave_what_is_not_kept(sink: Sink, content: Content) -> Content:
    """Without tables that go where their source is not captured, and those that are made or emptied there: nobody would tell
    what becomes of their rows. As it is at the source, a sequence is not kept."""
    wants = wants_of(sink.source.settings)
    if sink.settings.kind != HISTORY:
        leave_sequences(content)
        content.tables = {name: one for name, one in content.tables.items() if one.runs or wants(*name.split(".", 1))}
    content.renames = keep_wanted(content.renames, wants)
    return content


def _find_reading(batch: SinkBatch, content: Content) -> int:
    """Where a batch is cut, so that the reading of a table begins with one: rows of former batches are older then."""
    begun = [seq for table in content.tables.values() for seq, what, _ in table.events if what == BEGIN]
    return min((seq for seq in begun if seq > batch.first), default=content.end)


def _find_first(sink: Sink, there: Mapping[int, StoragePoint]) -> int:
    """The earliest transaction that a shard still needs. PermanentError: the store is not the one that the sink read."""
    starts = {}
    for shard, point in there.items():
        start = locate(sink.source.disk, point, f"sink {sink.name}")
        starts[shard] = start.seq
        if point.change_id and (start.seq != point.seq or _has_known_behind(sink, start)):
            raise PermanentError(
                f"sink {sink.name} was made from another store of {sink.source.name}: transactions have other numbers there",
                hint="give the source the former store, or begin a sink of another name and target",
                subject=sink.name,
            )
    return min(starts.values())


def _has_known_behind(sink: Sink, start: Start) -> bool:
    """Whether a transaction that is done stands behind a place. A set may also have some that stand nowhere: from before the
    store begins, of which the places within its first block do not tell, or that the server purged."""
    known, reader = parse_gtids(start.known), open_whole(sink.source.disk)
    for stretch in reader.read_stretches(start.seq) if known is not None else ():
        before = parse_gtids(stretch.gtids)
        if type(before) is type(known) and before >= known:  # type: ignore[operator]
            break
        if any(contains_gtid(known, piece.transaction.gtid) for piece in stretch.pieces if piece.seq >= start.seq):
            return True
    return False


def _write(work: _Work, planned: tuple[SinkBatch, Content], effect: Callable[[str], None]) -> None:
    """Write a batch, then have the points say so."""
    sink, lease, (batch, content) = work.sink, work.lease, planned
    ledger = sink.app.ledger

    def check(what: str) -> None:
        effect(what)
        if what.startswith("before"):
            with ledger.read() as connection:
                assert_held(connection, lease)

    changed: list[SinkTable] = []
    _mark_target(sink)
    if sink.settings.kind == HISTORY:
        sink.target.write(batch, content.tables, check, work.engine.encode)
    else:
        with ledger.read() as connection:
            known = read_sink_tables(connection, sink.name)
        found = sink.target.write(batch, content, known, check, work.engine.fold)
        changed = [one for one in found if known.get(one.name) != one]
    after = point_at(open_whole(sink.source.disk), batch.end, batch.version_ts)
    with ledger.write() as connection:
        assert_held(connection, lease)
        task = read_task(connection, sink.name, lock=True)
        if task is not None and task.version_ts == batch.version_ts:  # else it was rewound: the next batch begins there
            for shard, point in read_points(connection, sink.name).items():
                moved = replace(after, version_ts=point.version_ts)
                move_point(connection, (sink.name, shard), point, moved, fence=lease.fence)
            write_batch(connection, sink.name, replace(batch, is_written=True))
            write_sink_tables(connection, sink.name, changed)


def read_sink_table(sink: Sink, table: str, columns: Sequence[str] = ()) -> Iterator[Any]:
    """The rows of a table of a `delta` sink as Arrow batches, ordered by its key: numbers by value, texts by their bytes.

    UsageError: the sink is of another kind. A table without rows gives nothing.
    """
    if sink.settings.kind != DELTA:
        raise UsageError(f"sink {sink.name} is a {sink.settings.kind}, not a table as it is", subject=sink.name)
    with sink.app.ledger.read() as connection:
        known = read_sink_tables(connection, sink.name)
    if table not in known:
        raise NotFoundError(
            f"sink {sink.name} has no table {table}; it has: {', '.join(known) or 'none'}",
            hint=f"./tidemark changes deliver {sink.name}",
            subject=table,
        )
    target: DeltaTables = sink.target
    yield from target.read(table, known[table].key, tuple(columns))
