"""Change the nodes of a cluster: plan a change, do it in two phases, continue it, or roll it back during phase 1.

`plan_change` reports what a change would move and how long that takes: at the rate of the last migration, or the cap of the
settings. It changes nothing. `Wanted` is a change as requested. `init_cluster`, `change_nodes` and `roll_back` act, one
change at a time, under the lease `cluster:<receiver>`. A second administrator gets an error that names the holder. Phase 1
is `phases`, phase 2 is `cluster.migration.migrate`. Once its table is in force, a change cannot be rolled back: it goes on
to its end, and the reverse is a change of its own.

Source: seed 001 "Two-phase method"; docs/decisions/0015.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.membership import phases
from tidemark.cluster.membership import plan as membership_plan
from tidemark.cluster.membership.phases import PhaseOne
from tidemark.cluster.membership.plan import ChangePlan, first_table, plan_init
from tidemark.cluster.migration.inventory import Stock, read_stock
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.migration.pull import PathView, paths_of_change
from tidemark.cluster.nodes.cluster import (
    Cluster,
    NodeStores,
    describe_change,
    hold_cluster_lease,
    node_row,
    open_cluster,
    require_cluster,
    require_settings,
)
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.promote import require_newest
from tidemark.cluster.slots.balance import balance_of
from tidemark.cluster.slots.hash_ring import Group, SlotHash
from tidemark.engines.choose import EngineChoice
from tidemark.errors import LeaseHeldError, NoQuorumError, NotFoundError, RetryableError, UsageError
from tidemark.ledger import journal
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Leases, assert_held, load_lease
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ClusterSettings, ReceiverSettings
from tidemark.stores.protocol import without_password


@dataclass(frozen=True)
class Wanted:
    """The requested change. `kind`: add | remove | rebalance | replace. `url`, `host_key`, `key` (a private key file): of a
    joining node, as in `[nodes.NAME]`; empty if the settings have the node. `request`: the caller's id of this request, or
    "". A repeated request with the id of a finished change is answered, not done again. `gone`: whom `node` replaces.
    `supersedes`: the id of the open change that this one takes the place of, though its table is in force."""

    kind: str
    node: str = ""
    url: str = ""
    host_key: str = ""
    key: str = ""
    request: str = ""
    gone: str = ""
    supersedes: str = ""

    def __str__(self) -> str:
        return f"replace {self.gone} by {self.node}" if self.gone else f"{self.kind} {self.node}".rstrip()


def done_before(app: App, receiver: ReceiverSettings, wanted: Wanted) -> str | None:
    """Return the id of the change that already did this ("" if a rebuilt ledger does not know it); None if it is still to
    do.

    UsageError for a node of that name elsewhere, and for `init` if there are other nodes than those of the settings.
    """
    with app.ledger.read() as connection:
        if table_rows.open_change(connection, receiver.name) or not table_rows.current_epoch(connection, receiver.name):
            return None
        nodes = {row.node: row for row in table_rows.nodes_of_receiver(connection, receiver.name)}
        changes = [row for row in table_rows.newest_changes(connection, receiver.name) if row.state == "done"]
    node = nodes.get(wanted.node)
    if wanted.kind == "init":
        other = sorted(name for name in app.settings.nodes if name not in nodes or nodes[name].state == "left")
        if other:
            raise UsageError(
                f"{receiver.name} has its nodes already, and {', '.join(other)} is none of them",
                hint=f"./tidemark cluster add {other[0]}",
                subject=receiver.name,
            )
    elif wanted.kind == "add" and node is not None and node.state == "serving":
        asked = node_row(app, receiver, wanted.node, wanted.url) if wanted.url else node
        if asked.store.rstrip("/") != node.store.rstrip("/"):
            raise UsageError(
                f"{node.node} is a node of the cluster already, at {without_password(node.store)}",
                hint="give the new one another name; ./tidemark cluster show",
                subject=node.node,
            )
    elif wanted.kind != "remove" or node is None or node.state != "left":
        return None
    return next((row.change_id for row in changes if (row.kind, row.node) == (wanted.kind, wanted.node)), "")


def joining_row(app: App, receiver: ReceiverSettings, wanted: Wanted) -> NodeRow:
    """Make the row of the joining node. If the request has no address, the one recorded with the change is used.

    UsageError without an address, or if it is the folder of the receiver or of another node.
    """
    with app.ledger.read() as connection:
        known = {row.node: row for row in table_rows.nodes_of_receiver(connection, receiver.name)}
    rows = {name: row for name, row in known.items() if row.state != "left"}
    noted = rows.get(wanted.node)
    if noted is not None and not wanted.url and wanted.node not in app.settings.nodes:
        told = (wanted.host_key or noted.host_key, wanted.key or noted.key_file)
        wanted = replace(wanted, url=noted.store, host_key=told[0], key=told[1])
    row = node_row(app, receiver, wanted.node, wanted.url, wanted.host_key, wanted.key)
    stores = {name: node.store for name, node in app.settings.nodes.items() if name not in known}
    stores |= {name: other.store for name, other in rows.items()}
    whose = {f"the folder of node {name}": store for name, store in stores.items() if name != wanted.node}
    whose["the receiver's own folder"] = receiver.store
    taken = next((words for words, store in whose.items() if store.rstrip("/") == row.store.rstrip("/")), "")
    if taken:
        raise UsageError(
            f"{row.store} is {taken}: node {wanted.node} needs one of its own",
            hint="name another folder",
            subject=wanted.node,
        )
    return row


GIVEN_UP = "cluster.given_up"
"""In the audit: a change that was rolled back since its node cannot join."""

__all__ = ["GIVEN_UP", "ChangeResult", "PlanReport", "Wanted", "change_nodes", "init_cluster", "plan_change", "roll_back"]


@dataclass(frozen=True)
class ChangeResult:
    """Result of a change. `moved_slots`, `moved_bytes`: moved so far. `state`: swapped | migrating | done | rolled_back.

    `roads`: the path of files from node to node.
    """

    epoch: int
    moved_slots: int
    moved_bytes: int
    state: str
    roads: tuple[PathView, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self), "roads": [path.as_json() for path in self.roads]}


def init_cluster(app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress) -> ChangeResult:
    """Put the first table in force, with the nodes of the settings, and move the receiver's data to them. A repeated call
    continues, or does nothing.

    UsageError without `[cluster]`, with fewer nodes than copies, or if there is a table of other nodes.
    """
    settings = require_settings(app, receiver)
    rows = [joining_row(app, receiver, Wanted("add", name)) for name in sorted(app.settings.nodes)]
    table = first_table(
        [row.node for row in rows],
        settings.replicas,
        settings.slots,
        SlotHash(settings.hash),
        balance_of(settings.balance, {}) if settings.balance == "compat" else balance_of("slots", {}),
    )
    wanted = Wanted("init")
    if (done := done_before(app, receiver, wanted)) is not None:
        migrate_slots(app, receiver, progress)
        return _read_result(app, receiver, done)
    with hold_cluster_lease(app, receiver, str(wanted)) as lease, ExitStack() as held:
        change = _open_change(app, receiver, wanted, 0)
        if change.state == "planned":
            # A load that began without a table must not end with one: it would forward to no node.
            loads = Leases(app.ledger, app.identity)
            held.enter_context(loads.hold_lease(load_lease(receiver.name), f"cluster-{change.change_id}"))
            stores = held.enter_context(NodeStores(app, rows))
            with app.ledger.read() as connection:
                stock = read_stock(connection, receiver.name, table)
            plan = plan_init(table, stock.filled, stock.sizes_by_slot())
            quorum = min(settings.quorum, settings.replicas)
            phase = PhaseOne(
                app, receiver.name, lease, change, plan, stock, stores, change.change_id, rows, quorum, progress
            )
            phases.run_phase_one(phase)
    migrate_slots(app, receiver, progress)
    return _read_result(app, receiver, change.change_id)


def change_nodes(
    app: App,
    receiver: ReceiverSettings,
    wanted: Wanted,
    progress: Progress = ignore_progress,
    wait: bool = True,
    engine: EngineChoice = "pool",
) -> ChangeResult:
    """Do a change, or continue it: with `wait` until the data has moved, else until the new table is in force. A change that
    is already done is not repeated: its result is returned.

    UsageError for an impossible change (another node of a name, an unknown one, too few left), RetryableError while another
    change is open (named), UnreachableError for a joining node that is away, DiskFullError for one without room,
    NoQuorumError if too few nodes took the new table, PermanentError if the ledger is older than the nodes.
    Nothing is in force after these. Then errors as `migrate_slots`.
    """
    require_settings(app, receiver)
    known = wanted.request and _read_change_state(app, receiver, wanted.request) in table_rows.ENDED
    done = wanted.request if known else done_before(app, receiver, wanted)
    if done is not None:
        if wait:
            migrate_slots(app, receiver, progress, engine=engine)  # copies that it gave up may still be there
        return _read_result(app, receiver, done)
    with hold_cluster_lease(app, receiver, str(wanted)) as lease, require_cluster(app, receiver) as cluster:
        require_newest(cluster)
        change = _open_change(app, receiver, wanted, cluster.epoch)
        if change.state == "planned":
            wanted = replace(wanted, supersedes=wanted.supersedes or _read_superseded(app, change))
            joining = [joining_row(app, receiver, wanted)] if wanted.kind in ("add", "replace") else []
            plan, stock = plan_with_stock(app, cluster, wanted)
            if wanted.kind == "rebalance" and not plan.slots and not plan.handed:
                return ChangeResult(cluster.epoch, 0, 0, "done")
            for row in joining:
                cluster.stores.add_node(row)
            phase = PhaseOne(
                app,
                receiver.name,
                lease,
                change,
                plan,
                stock,
                cluster.stores,
                cluster.identity,
                joining,
                cluster.quorum,
                progress,
                wanted.supersedes,
            )
            phases.run_phase_one(phase)
            if wanted.supersedes:
                # A slot may be back at a group whose log never told that it went: who reads logs alone would believe it.
                # CRASH WINDOW: the table is in force, and no log tells of it: the end of the change records it.
                with suppress(NoQuorumError, LeaseHeldError):
                    record_slots(cluster.reload_table())
    if wait:
        migrate_slots(app, receiver, progress, engine=engine)
    return _read_result(app, receiver, change.change_id)


def roll_back(app: App, receiver: ReceiverSettings, *, given_up: str = "") -> ChangeResult:
    """Undo the open change, whose table is not in force yet; one that it was to supersede goes on. A second call changes
    nothing. `given_up`: undo this change alone, because its node cannot join; the audit has that, and it may be asked for
    again.

    NotFoundError if none is open and the last was not rolled back. UsageError if the table is in force: the reverse is a
    change of its own then. PermanentError if the ledger is older than the nodes.
    """
    require_settings(app, receiver)
    with hold_cluster_lease(app, receiver, "roll back") as lease:
        with open_cluster(app, receiver) as cluster:
            require_newest(cluster)  # its table may be in force by a newer ledger, and would be withdrawn from the nodes
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
            rows = table_rows.nodes_of_receiver(connection, receiver.name)
            identity = table_rows.cluster_identity(connection, receiver.name)
            joining = {row.node for row in rows if row.state == "joining"}
            back = {name for name in joining if copy_rows.copies_at(connection, receiver.name, name)}  # left earlier
            newest = table_rows.newest_changes(connection, receiver.name, 1)
        if given_up and (change is None or change.change_id != given_up):
            raise NotFoundError(
                f"the change {given_up} is not open any more", hint="./tidemark cluster show", subject=given_up
            )
        if change is None and newest and newest[0].state == "rolled_back":
            return ChangeResult(newest[0].from_epoch, 0, 0, "rolled_back")
        if change is None:
            raise NotFoundError(f"no change of the nodes of {receiver.name} is open", hint="./tidemark cluster show")
        if change.state != "planned":
            raise UsageError(
                f"{describe_change(change)}: its table is in force, it cannot be rolled back",
                hint="let it end (./tidemark cluster show), then the reverse is a change of its own",
                subject=change.change_id,
            )
        with NodeStores(app, rows) as stores:
            members = [row.node for row in rows]
            phases.withdraw_from_nodes(stores, change.from_epoch + 1, identity or change.change_id, joining - back, members)
        # CRASH WINDOW: nodes dropped the table, the ledger still plans it: rolled back again, or continued.
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            table_rows.set_change_state(connection, change.change_id, "rolled_back", database_time(connection))
            table_rows.reopen_change(connection, receiver.name, change.from_epoch)
            for name in joining - back:
                table_rows.forget_node(connection, receiver.name, name)
            for name in back:
                table_rows.set_node_state(connection, receiver.name, name, "left", database_time(connection))
                table_rows.note_node(connection, receiver.name, name, 1)  # it has an earlier table: to be released later
            if given_up:
                journal.record_decision(connection, GIVEN_UP, change.change_id, node=change.node)
            journal.record_decision(
                connection, "cluster.rolled_back", change.change_id, change=change.kind, node=change.node
            )
    return ChangeResult(change.from_epoch, 0, 0, "rolled_back")


def _open_change(app: App, receiver: ReceiverSettings, wanted: Wanted, epoch: int) -> ChangeRow:
    """Return the open change, or a new one that is not recorded yet."""
    with app.ledger.read() as connection:
        found = table_rows.open_change(connection, receiver.name)
    if found is None:
        return _make_change(app, receiver, wanted, epoch)
    if (found.kind, found.node, found.gone) == (wanted.kind, wanted.node, wanted.gone):
        return found
    if found.is_in_force and found.change_id == wanted.supersedes:
        return _make_change(app, receiver, wanted, epoch)
    if wanted.kind == "remove" and found.kind == "add" and found.node == wanted.node:
        raise RetryableError(
            f"node {wanted.node} is being filled: {describe_change(found)}",
            hint="./tidemark cluster show tells how far it is"
            + ("; ./tidemark cluster roll-back undoes it" if found.state == "planned" else "; remove it when that is done"),
            subject=found.change_id,
        )
    raise RetryableError(
        f"cannot {wanted} now: {describe_change(found)}",
        hint="./tidemark cluster show; the same command as before goes on with it"
        + ("; ./tidemark cluster roll-back undoes it" if found.state == "planned" else ""),
        subject=found.change_id,
    )


def _make_change(app: App, receiver: ReceiverSettings, wanted: Wanted, epoch: int) -> ChangeRow:
    change_id = wanted.request or f"{wanted.kind}-{uuid.uuid4().hex[:12]}"
    who = journal.user_at_host()
    return ChangeRow(change_id, receiver.name, wanted.kind, wanted.node, epoch, who, app.clock(), gone=wanted.gone)


def _read_superseded(app: App, change: ChangeRow) -> str:
    """Return the id of the change that this one superseded when it was recorded; "" for none."""
    with app.ledger.read() as connection:
        known = table_rows.newest_changes(connection, change.receiver)
    before = (change.from_epoch - 1, "superseded")
    return next((row.change_id for row in known if (row.from_epoch, row.state) == before), "")


def _read_change_state(app: App, receiver: ReceiverSettings, change_id: str) -> str:
    """Return the state; "" if there is no change of that id."""
    with app.ledger.read() as connection:
        found = _change_of(connection, receiver.name, change_id)
    return "" if found is None else found.state


def _change_of(connection: Connection, receiver: str, change_id: str) -> ChangeRow | None:
    known = table_rows.newest_changes(connection, receiver)
    return next((row for row in known if row.change_id == change_id), None)


def _read_result(app: App, receiver: ReceiverSettings, change_id: str) -> ChangeResult:
    with app.ledger.read() as connection:
        change = _change_of(connection, receiver.name, change_id)
        if change is None:
            return ChangeResult(table_rows.current_epoch(connection, receiver.name), 0, 0, "done")
        epoch = change.from_epoch + (change.state != "rolled_back")
        moves = move_rows.moves_of_epoch(connection, receiver.name, epoch) if change.state != "rolled_back" else []
        paths = paths_of_change(connection, receiver.name, epoch)
    moved = [move for move in moves if move.state != "moving" and set(move.old) != set(move.new)]
    return ChangeResult(epoch, len(moved), sum(move.bytes_done for move in moves), change.state, paths)


_UNMEASURED = 100e6  # bytes a second a plan reckons with before anything has moved


@dataclass(frozen=True)
class MoveGroup:
    """Slots that go from one group to another. `ranges`: (first, last), both inclusive; `bytes`: sent over the network."""

    slots: int
    ranges: tuple[tuple[int, int], ...]
    old: Group
    new: Group
    bytes: int


@dataclass(frozen=True)
class NodeGain:
    """What one node gains. `seconds`: at the rate of the last migration, or the cap of the settings."""

    node: str
    slots: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class PlanReport:
    """What a change would do; nothing was changed. `epoch`: of the table it would put in force."""

    epoch: int
    moves: tuple[MoveGroup, ...]
    nodes: tuple[NodeGain, ...]
    slots: int
    bytes: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        moves = [{"slots": m.slots, "ranges": m.ranges, "from": m.old, "to": m.new, "bytes": m.bytes} for m in self.moves]
        return {"ok": True, **asdict(self), "moves": moves}


def plan_change(app: App, receiver: ReceiverSettings, wanted: Wanted) -> PlanReport:
    """Report what a change would move and from where; change nothing. UsageError and RetryableError as `change_nodes`."""
    settings = require_settings(app, receiver)
    with require_cluster(app, receiver) as cluster:
        if wanted.kind == "add":
            joining_row(app, receiver, wanted)
        plan, stock = plan_with_stock(app, cluster, wanted)
        rate = _estimate_rate(app, receiver, settings)
    return _report_plan(plan, stock, rate)


def plan_with_stock(app: App, cluster: Cluster, wanted: Wanted) -> tuple[ChangePlan, Stock]:
    """Plan a change of the table in force, and read what there is to move. Errors as `membership.plan.plan_change`."""
    with app.ledger.read() as connection:
        stock = read_stock(connection, cluster.receiver.name, cluster.table)
        gone = {row.node for row in table_rows.nodes_of_receiver(connection, cluster.receiver.name) if row.state == "left"}
        left = move_rows.moves_of_epoch(connection, cluster.receiver.name, cluster.epoch, open_only=True)
    if wanted.kind == "remove" and wanted.node in gone:
        raise UsageError(f"{wanted.node} has left the cluster", hint="./tidemark cluster show", subject=wanted.node)
    sizes, by = stock.sizes_by_slot(), cluster.settings.balance
    balance = balance_of(by, dict(stock.writes) if by == "writes" else sizes)
    # A slot that all acknowledged has moved: who had it before may have dropped its schema already.
    through = [row.slot for row in left if row.state != "moving"] if wanted.supersedes else []
    planned = membership_plan.plan_change(
        cluster.table.with_moved(through),
        wanted.kind,
        wanted.node,
        sizes,
        balance,
        gone=wanted.gone,
        supersedes=bool(wanted.supersedes),
    )
    return planned, stock


def _report_plan(plan: ChangePlan, stock: Stock, rate: float) -> PlanReport:
    sizes = stock.sizes_by_slot()
    groups: dict[tuple[Group, Group], list[tuple[int, int]]] = {}
    for move in plan.moves:
        groups.setdefault((move.old, move.new), []).append((move.first, move.last))
    moves = tuple(_make_move_group(old, new, ranges, sizes) for (old, new), ranges in sorted(groups.items()))
    slots, gained = plan.gained_slots(), plan.gained_bytes(sizes)
    nodes = tuple(NodeGain(name, slots[name], gained[name], gained[name] / rate) for name in sorted(slots))
    return PlanReport(plan.new.epoch, moves, nodes, plan.slots, plan.bytes, plan.bytes / rate)


def _make_move_group(old: Group, new: Group, ranges: Sequence[tuple[int, int]], sizes: Mapping[int, int]) -> MoveGroup:
    slots = [slot for first, last in ranges for slot in range(first, last + 1)]
    lacking = sum(name not in old for name in new)
    return MoveGroup(len(slots), tuple(ranges), old, new, lacking * sum(sizes.get(slot, 0) for slot in slots))


def _estimate_rate(app: App, receiver: ReceiverSettings, settings: ClusterSettings) -> float:
    """Return bytes a second: the cap, or the rate of the last change that moved anything, pauses included."""
    caps = [cap for cap in (settings.bandwidth, receiver.bandwidth) if cap]
    if caps:
        return min(caps)
    with app.ledger.read() as connection:
        for row in table_rows.newest_changes(connection, receiver.name):
            if row.state == "done" and row.ended is not None and row.ended > row.begun:
                moved = sum(
                    move.bytes_done for move in move_rows.moves_of_epoch(connection, receiver.name, row.from_epoch + 1)
                )
                if moved:
                    return moved / (row.ended - row.begun)
    return _UNMEASURED
