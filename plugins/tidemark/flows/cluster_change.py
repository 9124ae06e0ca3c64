"""Change who the nodes are: plan it, do it in two phases, continue it, roll it back before the first one has ended.

One change at a time, under the lease `cluster:<receiver>`: a second administrator is told whose it is. Phase 1 is
`cluster_phases`, phase 2 `cluster_migrate`. Source: seed 001 "Two-phase method"; docs/decisions/0015.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.balance import balance_of
from tidemark.cluster.change_plan import first_table, plan_init
from tidemark.cluster.slot_hash import SlotHash
from tidemark.errors import NotFoundError, RetryableError, UsageError
from tidemark.flows import cluster_phases
from tidemark.flows.cluster_migrate import migrate
from tidemark.flows.cluster_nodes import NodeStores
from tidemark.flows.cluster_phases import PhaseOne
from tidemark.flows.cluster_plan import PlanReport, plan_change, planned
from tidemark.flows.cluster_show import roads_of
from tidemark.flows.cluster_stock import read_stock
from tidemark.flows.cluster_wanted import (
    Wanted,
    alone,
    done_before,
    joining_row,
    require_cluster,
    require_settings,
    words_of,
)
from tidemark.ledger import journal
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import ChangeRow
from tidemark.ledger.database import now
from tidemark.ledger.leases import Leases, check_in
from tidemark.progress import Progress, silent
from tidemark.proof.cluster_view import RoadView
from tidemark.settings.model import ReceiverSettings

__all__ = ["ChangeResult", "PlanReport", "Wanted", "change", "init", "plan_change", "roll_back"]

_MANY = 10_000  # changes that are looked at


@dataclass(frozen=True)
class ChangeResult:
    """`moved_slots`, `moved_bytes`: come to their new groups so far. `state`: swapped | migrating | done | rolled_back.

    `roads`: which way files went from node to node.
    """

    epoch: int
    moved_slots: int
    moved_bytes: int
    state: str
    roads: tuple[RoadView, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self), "roads": [road.as_json() for road in self.roads]}


def init(app: App, receiver: ReceiverSettings, progress: Progress = silent) -> ChangeResult:
    """The first table, with the nodes of the settings; what the receiver has comes to them. Again, it goes on, or has
    nothing to do.

    UsageError without `[cluster]`, with fewer nodes than copies, or where there is a table already, of other nodes.
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
        migrate(app, receiver, progress)
        return _result(app, receiver, done)
    with alone(app, receiver, str(wanted)) as lease, ExitStack() as held:
        change = _open_change(app, receiver, wanted, 0)
        if change.state == "planned":
            # A load that began without a table must not end with one: it would forward to nobody.
            loads = Leases(app.ledger, app.identity)
            held.enter_context(loads.hold(f"load:{receiver.name}", f"cluster-{change.change_id}"))
            stores = held.enter_context(NodeStores(app, rows))
            with app.ledger.read() as connection:
                stock = read_stock(connection, receiver.name, table)
            plan = plan_init(table, stock.filled, stock.sizes())
            quorum = min(settings.quorum, settings.replicas)
            phase = PhaseOne(
                app, receiver.name, lease, change, plan, stock, stores, change.change_id, rows, quorum, progress
            )
            cluster_phases.run(phase)
    migrate(app, receiver, progress)
    return _result(app, receiver, change.change_id)


def change(
    app: App,
    receiver: ReceiverSettings,
    wanted: Wanted,
    progress: Progress = silent,
    wait: bool = True,
    engine: str = "pool",
) -> ChangeResult:
    """Do it, or go on with it; with `wait` until the data has moved, else until the new table is in force. What was done
    before, and stands, is not done again: that is its result.

    UsageError for what cannot be (another node of a name, an unknown one, too few left), RetryableError while another
    change is open (named), UnreachableError for a joining node that is away, DiskFullError for one without room,
    NoQuorumError where too few nodes took the new table. Nothing is in force after these. Once it is, what `migrate` raises.
    """
    require_settings(app, receiver)
    known = wanted.request and _state(app, receiver, wanted.request) in ("done", "rolled_back")
    done = wanted.request if known else done_before(app, receiver, wanted)
    if done is not None:
        if wait:
            migrate(app, receiver, progress, engine=engine)  # what went with it may lie there still
        return _result(app, receiver, done)
    with alone(app, receiver, str(wanted)) as lease, require_cluster(app, receiver) as cluster:
        change = _open_change(app, receiver, wanted, cluster.epoch)
        if change.state == "planned":
            joining = [joining_row(app, receiver, wanted)] if wanted.kind == "add" else []
            plan, stock = planned(app, cluster, wanted)
            if wanted.kind == "rebalance" and not plan.slots and not plan.handed:
                return ChangeResult(cluster.epoch, 0, 0, "done")
            for row in joining:
                cluster.stores.add(row)
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
            )
            cluster_phases.run(phase)
    if wait:
        migrate(app, receiver, progress, engine=engine)
    return _result(app, receiver, change.change_id)


def roll_back(app: App, receiver: ReceiverSettings) -> ChangeResult:
    """Undo the open change, whose table is not in force yet. Again, it changes nothing more.

    NotFoundError where none is open, and none was rolled back last; UsageError where the table is in force: the reverse is a
    change of its own then.
    """
    require_settings(app, receiver)
    with alone(app, receiver, "roll back") as lease:
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
            rows = table_rows.nodes(connection, receiver.name)
            identity = table_rows.cluster_identity(connection, receiver.name)
            joining = {row.node for row in rows if row.state == "joining"}
            back = {name for name in joining if copy_rows.copies_at(connection, receiver.name, name)}  # left a while ago
            newest = table_rows.changes(connection, receiver.name, 1)
        if change is None and newest and newest[0].state == "rolled_back":
            return ChangeResult(newest[0].from_epoch, 0, 0, "rolled_back")
        if change is None:
            raise NotFoundError(f"no change of the nodes of {receiver.name} is open", hint="./tidemark cluster show")
        if change.state != "planned":
            raise UsageError(
                f"{words_of(change)}: its table is in force, it cannot be rolled back",
                hint="let it end (./tidemark cluster show), then the reverse is a change of its own",
                subject=change.change_id,
            )
        with NodeStores(app, rows) as stores:
            members = [row.node for row in rows]
            cluster_phases.withdraw(stores, change.from_epoch + 1, identity or change.change_id, joining - back, members)
        # CRASH WINDOW: nodes forgot the table, the ledger still plans it: rolled back again, or gone on with.
        with app.ledger.write() as connection:
            check_in(connection, lease)
            table_rows.set_change_state(connection, change.change_id, "rolled_back", now(connection))
            for name in joining - back:
                table_rows.forget_node(connection, receiver.name, name)
            for name in back:
                table_rows.set_node_state(connection, receiver.name, name, "left", now(connection))
                table_rows.note_node(connection, receiver.name, name, 1)  # it has a table of before: to be let go later
            journal.record_decision(
                connection, "cluster.rolled_back", change.change_id, change=change.kind, node=change.node
            )
    return ChangeResult(change.from_epoch, 0, 0, "rolled_back")


def _open_change(app: App, receiver: ReceiverSettings, wanted: Wanted, epoch: int) -> ChangeRow:
    """The change as it stands, or a new one that is not written down yet."""
    with app.ledger.read() as connection:
        found = table_rows.open_change(connection, receiver.name)
    if found is None:
        change_id = wanted.request or f"{wanted.kind}-{uuid.uuid4().hex[:12]}"
        return ChangeRow(change_id, receiver.name, wanted.kind, wanted.node, epoch, journal.who(), app.clock())
    if (found.kind, found.node) == (wanted.kind, wanted.node):
        return found
    if wanted.kind == "remove" and found.kind == "add" and found.node == wanted.node:
        raise RetryableError(
            f"node {wanted.node} is being filled: {words_of(found)}",
            hint="./tidemark cluster show tells how far it is"
            + ("; ./tidemark cluster roll-back undoes it" if found.state == "planned" else "; remove it when that is done"),
            subject=found.change_id,
        )
    raise RetryableError(
        f"cannot {wanted} now: {words_of(found)}",
        hint="./tidemark cluster show; the same command as before goes on with it"
        + ("; ./tidemark cluster roll-back undoes it" if found.state == "planned" else ""),
        subject=found.change_id,
    )


def _state(app: App, receiver: ReceiverSettings, change_id: str) -> str:
    """ "" where there is none of that id."""
    with app.ledger.read() as connection:
        found = _change_of(connection, receiver.name, change_id)
    return "" if found is None else found.state


def _change_of(connection: Connection, receiver: str, change_id: str) -> ChangeRow | None:
    known = table_rows.changes(connection, receiver, _MANY)
    return next((row for row in known if row.change_id == change_id), None)


def _result(app: App, receiver: ReceiverSettings, change_id: str) -> ChangeResult:
    with app.ledger.read() as connection:
        change = _change_of(connection, receiver.name, change_id)
        if change is None:
            return ChangeResult(table_rows.current_epoch(connection, receiver.name), 0, 0, "done")
        epoch = change.from_epoch + (change.state != "rolled_back")
        moves = move_rows.moves(connection, receiver.name, epoch) if change.state != "rolled_back" else []
        roads = roads_of(connection, receiver.name, epoch)
    moved = [move for move in moves if move.state != "moving" and set(move.old) != set(move.new)]
    return ChangeResult(epoch, len(moved), sum(move.bytes_done for move in moves), change.state, roads)
