"""Bring one member of a new group the files of some slots that it lacks, from the old member in its place, or the next one.

The old member is proved complete before its snapshot: it holds, proved, every live file of the slots. A file is live from
the transaction that commits its operation, so no committed operation of the group is missing there. An incomplete member (it
was away while a quorum took a file) is asked after the complete ones, and only for what it has. Files that no old member can
give come from any other node that holds them, or from the receiver.

This process decides what goes where, holds the snapshot, and records what was proved. The files are sent by this process,
or by tasks of the Spark job `slot_migrate`: a lost task records nothing. `[spark] engine` decides as for loads and merges.
If it leaves the choice and the caller wants Spark, small amounts are still sent by this process: Spark takes longer to
start. Source: DESIGN §7; seed 001 "Obtaining a snapshot", "Installing a
snapshot"; docs/decisions/0015.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration.inventory import Stock, Stored
from tidemark.cluster.migration.plan import Batch
from tidemark.cluster.migration.send_task import End, MoveTask, split_into_waves
from tidemark.cluster.nodes.cluster import Cluster, node_address
from tidemark.engines.choose import Engine, EngineChoice, choose_engine
from tidemark.engines.task import Outcome
from tidemark.errors import (
    DiskFullError,
    LeaseLostError,
    PermanentError,
    RetryableError,
    SourceVanishedError,
    StaleEpochError,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.database import database_time
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Progress, Tick
from tidemark.stores.protocol import Store, StoreAddress, without_password
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.limits import LineShare
from tidemark.untrusted_files import MOST_MODS

KIND = "slot_migrate"
LITTLE = 64 << 20  # bytes below which no engine is started unless the settings say so
_TRIES = 3  # of a task whose process was lost


class CarrierLostError(RetryableError):
    """The sending engine has died again and again: another source would not help."""


@dataclass(frozen=True)
class Route:
    """From `source` ("": the receiver) to `member`. `label`: of the snapshot there. `engine`: what the caller wants.

    `line`: our share of the receiver's cap, if it has one. It cannot leave this process.
    """

    cluster: Cluster
    source: str
    member: str
    label: str
    engine: EngineChoice
    line: LineShare | None = None


def send_by_engine(
    way: Route, source: Store, target: Store, items: Sequence[SendItem], on_bytes: Callable[[int], None]
) -> Iterator[Sent | Failed]:
    """Send as `transfer.engine.send_files`, by the engine of the settings. CarrierLostError if the engine itself fails."""
    options = SendOptions.of_cluster(way.cluster.settings, retries=2, line=way.line)  # then another member is asked
    engine = _choose_engine(way, sum(item.size for item in items)) if items else None
    if engine is None:
        yield from send_files(source, target, items, options, on_bytes)
        return
    for portions in split_into_waves(items):
        mine = options.divide(len(portions))
        yield from _send_in_tasks(engine, [_make_task(way, portion, mine) for portion in portions])


def _choose_engine(way: Route, size: int) -> Engine | None:
    """Return the engine; None: this process sends, over its open stores."""
    if way.line is not None:
        return None  # its share changes every second in the ledger, which executors do not have
    settings = way.cluster.app.settings.spark
    ends = [end.address for end in _make_ends(way)]
    if any(address.connection or without_password(address.url) != address.url for address in ends):
        return None  # what is secret does not leave this process, and Airflow answers its tasks alone
    wanted = "pool" if isinstance(way.engine, str) and size < LITTLE else way.engine
    try:
        engine = choose_engine(settings, wanted, 0)
    except (UsageError, PermanentError):
        if settings.engine != "auto":
            raise
        return None  # this process can do the same without Java
    return None if engine.name == "pool" else engine


def _make_ends(way: Route) -> tuple[End, End]:
    cluster = way.cluster

    def end(node: str) -> End:
        if not node:
            return End(StoreAddress.of(cluster.receiver))
        return End(node_address(cluster.app, cluster.nodes[node]), node)

    return end(way.source), end(way.member)


def _make_task(way: Route, items: tuple[SendItem, ...], options: SendOptions) -> MoveTask:
    return MoveTask(way.cluster.identity, *_make_ends(way), items, way.label, options)


def _send_in_tasks(engine: Engine, tasks: Sequence[MoveTask]) -> Iterator[Sent | Failed]:
    """Yield each item's outcome. A task whose process died runs again: files already there are not sent twice."""
    for left in reversed(range(_TRIES)):
        lost: list[MoveTask] = []
        for outcome in _run_tasks(engine, tasks, left):
            task, error = tasks[outcome.index], outcome.error
            if error is None:
                yield from outcome.value.sent
                yield from outcome.value.failed
            elif type(error) is RetryableError and left:  # its process was killed: nothing was refused
                lost.append(task)
            else:
                yield from (Failed(item, error, 0) for item in task.items)
        tasks = lost
        if not tasks:
            return


def _run_tasks(engine: Engine, tasks: Sequence[MoveTask], left: int) -> list[Outcome]:
    """Run the tasks. If the engine itself broke, all count as lost, as long as there are tries `left`."""
    try:
        return list(engine.run(KIND, tasks))
    except RetryableError as broken:
        if not left:
            raise CarrierLostError(broken.message, hint=broken.hint, subject=broken.subject) from broken
        return [Outcome(index, error=broken) for index in range(len(tasks))]


SNAPSHOT = "move-"
"""Snapshots of migrations have labels that begin so."""
RECEIVER = ""
"""The receiver itself as a source: it may have a file in its cache, and has all of them before the first table."""
_ROUNDS = 5  # for a member: each lists anew what it lacks and which nodes have it
_RECORDED = 512  # files in a transaction
_RECORDED_BYTES = 256 << 20  # received since the last record: so readers see progress


@dataclass
class SlotMigration:
    """A running migration. `done`, `total`: bytes; `slots_done`, `slots`: of this call."""

    app: App
    receiver: str
    lease: Lease
    cluster: Cluster
    stock: Stock
    store: Store  # the receiver's
    progress: Progress
    total: int = 0
    done: int = 0
    slots: int = 0
    slots_done: int = 0
    moved: int = 0  # bytes recorded by this call
    engine: EngineChoice = "pool"  # what the caller wants (`send.Route`); the settings may say otherwise
    line: LineShare | None = None  # our share of the receiver's cap
    roads: dict[tuple[str, str], str] = field(default_factory=dict)  # (source, member) → the last `Sent.path`

    def report_progress(self, on_wire: int = 0) -> None:
        shown = min(self.total, self.done + on_wire)
        self.progress(Tick("move slots", self.slots_done, self.slots, shown, self.total))


def pull_batch(work: SlotMigration, batch: Batch, member: str) -> None:
    """Bring files until the member holds all live files of the batch's slots, proved and recorded.

    RetryableError names a file that no node could give. The member's own error if it cannot be reached or has no room.
    """
    failed: dict[str, TidemarkError] = {}
    for _ in range(_ROUNDS):
        lacking, holders = _find_lacking(work, batch, member)
        if not lacking:
            return
        got = 0
        for source, files in _order_sources(batch, member, lacking, holders):
            left = [file for file in files if file.location in lacking]
            if left:
                came = _fetch_files(work, batch, source, member, left, failed)
                got += len(came)
                lacking = {at: file for at, file in lacking.items() if at not in came}
        if not lacking:
            return
        if not got and not _has_vanished(failed, lacking):
            break
    else:
        lacking, _ = _find_lacking(work, batch, member)
    if lacking:
        raise _no_source_error(member, lacking, failed)


def drop_snapshots(cluster: Cluster) -> None:
    """Drop snapshots of dead migrations: we hold their lease, so nobody reads them. A node that is away, or whose folder is
    damaged, keeps its own until the next call."""
    for row in cluster.nodes.values():
        if row.state in ("serving", "leaving"):
            with contextlib.suppress(TidemarkError):
                folder = cluster.open_folder(row.node)
                for label in folder.list_snapshots():
                    if label.startswith(SNAPSHOT):
                        folder.drop_snapshot(label)


def _find_lacking(work: SlotMigration, batch: Batch, member: str) -> tuple[dict[str, Stored], dict[str, list[CopyRow]]]:
    """Return the live files that the member does not hold yet, and location → held copies at all nodes."""
    wanted = {file.location: file for file in work.stock.files_of_slots(batch.slots)}
    with work.app.ledger.read() as connection:
        held = _held_copies(copy_rows.copies_of(connection, work.receiver, wanted))
        missing = [at for at in wanted if all(row.node != member for row in held.get(at, ()))]
        live = catalog_rows.locations_in_use(connection, work.receiver, missing) if missing else set()
    return {at: wanted[at] for at in missing if at in live}, held


def _held_copies(copies: Mapping[str, Iterable[CopyRow]]) -> dict[str, list[CopyRow]]:
    return {at: [row for row in rows if row.state == "held"] for at, rows in copies.items()}


def _order_sources(
    batch: Batch, member: str, lacking: Mapping[str, Stored], holders: Mapping[str, Sequence[CopyRow]]
) -> Iterator[tuple[str, list[Stored]]]:
    """Yield sources in the order to ask them, each with the files it can give."""
    gives: dict[str, list[Stored]] = {}
    for at, file in lacking.items():
        for row in holders.get(at, ()):
            gives.setdefault(row.node, []).append(file)
    first = batch.sources_for(member)
    complete = [name for name in first if len(gives.get(name, ())) == len(lacking)]
    others = [name for name in sorted(gives) if name not in first]
    for name in dict.fromkeys((*complete, *first, *others)):
        if name != member and name in gives:
            yield name, gives[name]
    yield RECEIVER, list(lacking.values())


def _fetch_files(
    work: SlotMigration, batch: Batch, source: str, member: str, files: Sequence[Stored], failed: dict[str, TidemarkError]
) -> set[str]:
    """Bring files from one source to the member; return the locations that came. Errors of the others go to `failed`."""
    target = work.cluster.open_store(member)  # a member that is away, or whose folder is not ours, ends the pull
    came: set[str] = set()
    wrong: TidemarkError | None = None
    try:
        with _open_source(work, batch, source, member, files) as (store, items):
            recorded: list[CopyRow] = []
            for outcome in send_by_engine(_make_route(work, batch, source, member), store, target, items, _Counter(work)):
                if isinstance(outcome, Sent):
                    recorded.append(_copy_row(work, member, outcome))
                    _record_path(work, source, member, outcome.path)
                else:
                    wrong = failed[outcome.item.target_path] = outcome.error
                if len(recorded) >= _RECORDED or sum(row.size for row in recorded) >= _RECORDED_BYTES:
                    came |= _record_copies(work, batch, recorded)
                    recorded = []
            # CRASH WINDOW: at the member, proved, not recorded: checked again and not sent again.
            came |= _record_copies(work, batch, recorded)
    except (CarrierLostError, LeaseLostError, StaleEpochError):  # ours: no other source helps
        raise
    except TidemarkError as error:
        wrong = error
        failed.update({file.location: error for file in files if file.location not in came})
    if isinstance(wrong, DiskFullError):  # the member's: no other source helps
        raise wrong
    if isinstance(wrong, UnreachableError):
        _probe_both_ends(work, source, member)
    if wrong is not None:
        with work.app.ledger.write() as connection:
            assert_held(connection, work.lease)
            record_event(connection, "cluster.source_failed", node=source or "the receiver", error=wrong.message)
    return came


def _probe_both_ends(work: SlotMigration, source: str, member: str) -> None:
    """Check both ends after a broken transfer: one that does not answer is not waited for again. Raises if it is the member:
    no other source helps."""
    for node in filter(None, (source, member)):
        try:
            work.cluster.open_folder(node).read_owner()
        except TidemarkError as away:
            named = work.cluster.stores.mark_away(node, away) if isinstance(away, UnreachableError) else away
            if node == member:
                raise named from away


def _record_path(work: SlotMigration, source: str, member: str, path: str) -> None:
    if not path or work.roads.get((source, member)) == path:
        return
    work.roads[source, member] = path
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        told: dict[str, Any] = {"source": source or "the receiver", "node": member, "epoch": work.cluster.epoch}
        record_event(connection, "cluster.road", path=work.receiver, road=path, **told)


def _copy_row(work: SlotMigration, member: str, sent: Sent) -> CopyRow:
    file = work.stock.files[sent.item.target_path]
    return CopyRow(work.receiver, member, file.location, file.home, sent.sha256, sent.item.size)


@contextmanager
def _open_source(
    work: SlotMigration, batch: Batch, source: str, member: str, files: Sequence[Stored]
) -> Iterator[tuple[Store, list[SendItem]]]:
    """Open the source's store and list what to send, from a snapshot that merges and removals do not change."""
    if source == RECEIVER:
        yield work.store, _make_items(work.store, {file.location: file.location for file in files}, files)
        return
    folder = work.cluster.open_folder(source)
    label = _snapshot_label(batch, member)
    snapshot = folder.create_snapshot([file.location for file in files], label)
    # CRASH WINDOW: links that nobody reads: dropped at the end of the next migration.
    try:
        yield folder.store, _make_items(folder.store, snapshot.paths, files)
    finally:
        folder.drop_snapshot(label)


def _make_items(store: Store, paths: Mapping[str, str], files: Sequence[Stored]) -> list[SendItem]:
    """Make the items to send. Sizes unknown to the catalog come from the source; files missing there are left out."""
    entries = store.stat_many([paths[file.location] for file in files])
    return [
        SendItem(paths[file.location], file.location, file.size or entry.size, file.sha256)
        for file, entry in zip(files, entries, strict=True)
        if entry is not None and (file.size or entry.size <= MOST_MODS)
    ]


def _record_copies(work: SlotMigration, batch: Batch, rows: Sequence[CopyRow]) -> set[str]:
    """Record copies that are at the member, proved; return their locations."""
    if not rows:
        return set()
    slots = frozenset(batch.slots)
    by_slot: dict[int, int] = {}
    for row in rows:
        slot = next(slot for slot in work.stock.files[row.location].slots if slot in slots)
        by_slot[slot] = by_slot.get(slot, 0) + row.size
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        at = database_time(connection)
        copy_rows.put_copies(connection, [replace(row, at=at) for row in rows])
        move_rows.add_bytes(connection, work.receiver, batch.epoch, by_slot)
    size = sum(by_slot.values())
    work.done += size
    work.moved += size
    work.report_progress()
    return {row.location for row in rows}


def _snapshot_label(batch: Batch, member: str) -> str:
    return f"{SNAPSHOT}{batch.epoch}-{batch.slots[0]}-{member}"


def _make_route(work: SlotMigration, batch: Batch, source: str, member: str) -> Route:
    return Route(
        work.cluster, source, member, "" if source == RECEIVER else _snapshot_label(batch, member), work.engine, work.line
    )


class _Counter:
    """Bytes sent since the last record, to show progress within a large file."""

    def __init__(self, work: SlotMigration) -> None:
        self._work, self._base, self._wire = work, work.done, 0

    def __call__(self, count: int) -> None:
        if self._work.done != self._base:
            self._base, self._wire = self._work.done, 0
        self._wire += count
        self._work.report_progress(self._wire)


def _has_vanished(failed: Mapping[str, TidemarkError], lacking: Collection[str]) -> bool:
    """Return whether a merge removed files while they were listed. In a new list they are not live, or lie elsewhere."""
    return any(isinstance(failed.get(at), SourceVanishedError) for at in lacking)


def _no_source_error(member: str, lacking: Mapping[str, Stored], failed: Mapping[str, TidemarkError]) -> RetryableError:
    first = next(iter(lacking))
    why = failed.get(first)
    return RetryableError(
        f"nobody can give node {member} {len(lacking)} of its files, {first} among them"
        + (f": {why.message}" if why is not None else ": no node holds it"),
        hint="./tidemark cluster check names what is where; it goes on when a node that has them is back",
        subject=member,
    )


def paths_of_change(connection: Connection, receiver: str, epoch: int) -> tuple[PathView, ...]:
    """Return the path of files from node to node in a change: the last recorded one of each pair."""
    sql = "SELECT detail FROM event WHERE path = :r AND kind = 'cluster.road' ORDER BY event_id"
    said = [json.loads(row[0]) for row in connection.execute(sa.text(sql), {"r": receiver})]
    paths = {(one["source"], one["node"]): one["road"] for one in said if one["epoch"] == epoch}
    return tuple(PathView(source, node, path) for (source, node), path in sorted(paths.items()))


@dataclass(frozen=True)
class PathView:
    """The path of files from a node to another. `road`: "direct", or "relayed: …" through this process and why."""

    source: str
    node: str
    road: str

    def as_json(self) -> dict[str, Any]:
        return {"from": self.source, "to": self.node, "road": self.road}
