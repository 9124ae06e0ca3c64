"""Phase 2 of a change: what a new group lacks comes to it, each member says so by name, the old one lets go.

Batch by batch of slots with the same groups, under the lease `cluster:<receiver>`; every record checks lease and epoch in
its own transaction, so a task of an earlier epoch that wakes up records nothing. Whatever ended it anywhere, the next call
goes on from the ledger. Source: seed 001 "Data migration"; docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration_plan import Batch
from tidemark.cluster.migration_plan import batches as batched
from tidemark.cluster.slot_states import SlotEvent, SlotState, after
from tidemark.errors import CorruptionError, DiskFullError, RetryableError, StaleEpochError, TidemarkError
from tidemark.flows.cluster_deliver import advance
from tidemark.flows.cluster_going import sweep
from tidemark.flows.cluster_moves import Moving, drop_snapshots, pull
from tidemark.flows.cluster_nodes import Cluster, opened
from tidemark.flows.cluster_schemas import drop_schemas, put_schemas, tell_databases
from tidemark.flows.cluster_stock import Stock, read_stock
from tidemark.flows.cluster_wanted import alone
from tidemark.ledger.bandwidth import SharedLine, place_on
from tidemark.ledger.cluster import (
    copies as copy_rows,
)
from tidemark.ledger.cluster import (
    moves as move_rows,
)
from tidemark.ledger.cluster import (
    operations as operation_rows,
)
from tidemark.ledger.cluster import (
    tables as table_rows,
)
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.database import now
from tidemark.ledger.journal import record
from tidemark.ledger.leases import Lease, check_in
from tidemark.progress import Progress, silent
from tidemark.proof.cluster_view import RoadView
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class MigrateResult:
    """`slots`, `bytes`: of this call; `left`: slots that still move. `state`: of the change: migrating | done, "" where
    none was open. `roads`: which way files went in this call."""

    epoch: int
    slots: int
    bytes: int
    left: int
    state: str
    roads: tuple[RoadView, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self), "roads": [road.as_json() for road in self.roads]}


def migrate(
    app: App,
    receiver: ReceiverSettings,
    progress: Progress = silent,
    slots: Iterable[int] | None = None,
    engine: str = "pool",
) -> MigrateResult:
    """Everything that is left of phase 2, or what is left of these `slots`. `engine`: as `cluster_carry`.

    What one slot lacks does not stop the others; the first trouble is raised at the end: DiskFullError where there is one,
    else as RetryableError, since it may pass (a node that is away). LeaseHeldError while another one is at it.
    """
    with alone(app, receiver, "migrate") as lease, opened(app, receiver) as cluster:
        if cluster is None:
            return MigrateResult(0, 0, 0, 0, "")
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
        _tell(cluster, lease)
        if change is None or change.state == "planned":
            sweep(cluster, lease)
            return MigrateResult(cluster.epoch, 0, 0, 0, "")
        with app.receiver_store(receiver) as store:
            work = _begin(app, cluster, lease, store, progress, change.change_id)
            work.engine = engine
            line = SharedLine(app.ledger, receiver.name, receiver.bandwidth)
            with place_on(line, lease.holder, app.identity, cluster.settings.bandwidth) as work.line:
                failed = _move(work, None if slots is None else frozenset(slots))
            drop_snapshots(work)
            tell_databases(work)
            state, left = _end(work, change.change_id)
        if not failed:
            sweep(cluster, lease)
    if failed:
        raise _trouble(failed, left)
    roads = tuple(RoadView(source or "the receiver", node, road) for (source, node), road in sorted(work.roads.items()))
    return MigrateResult(work.cluster.epoch, work.slots_done, work.moved, left, state, roads)


def open_batches(app: App, receiver: ReceiverSettings) -> list[Batch]:
    """What is left to move, in batches as `migrate` makes them: for whoever wants a task for each."""
    with opened(app, receiver) as cluster:
        if cluster is None:
            return []
        with app.ledger.read() as connection:
            stock = read_stock(connection, receiver.name, cluster.table)
            rows = _rows(connection, cluster)
    return list(_batches(cluster.epoch, rows, stock))


def _begin(app: App, cluster: Cluster, lease: Lease, store: Any, progress: Progress, change_id: str) -> Moving:
    receiver = cluster.receiver.name
    with app.ledger.write() as connection:
        check_in(connection, lease)
        table_rows.require_epoch(connection, receiver, cluster.epoch)
        table_rows.set_change_state(connection, change_id, "migrating")
    with app.ledger.read() as connection:
        stock = read_stock(connection, receiver, cluster.table)
        rows = move_rows.moves(connection, receiver, cluster.epoch)
    sizes = stock.sizes()
    total = sum(sizes.get(row.slot, 0) * sum(name not in row.old for name in row.new) for row in rows)
    done = sum(row.bytes_done for row in rows)
    return Moving(app, receiver, lease, cluster, stock, store, progress, max(total, done), done)


def _tell(cluster: Cluster, lease: Lease) -> None:
    """The table to nodes that could not take it when it came into force; one that still cannot stays behind until the
    next call."""
    taken = []
    for row in cluster.nodes.values():
        if row.epoch < cluster.epoch and row.state in ("serving", "leaving"):
            try:
                cluster.folder(row.node).put_table(cluster.epoch, cluster.paper)
                taken.append(row.node)
            except TidemarkError:
                continue
    if taken:
        with cluster.app.ledger.write() as connection:
            check_in(connection, lease)
            for name in taken:
                table_rows.note_node(connection, cluster.receiver.name, name, cluster.epoch)


def _rows(connection: Connection, cluster: Cluster) -> list[MoveRow]:
    rows = move_rows.moves(connection, cluster.receiver.name, cluster.epoch, open_only=True)
    return [row for row in rows if row.state == "moving"]


def _batches(epoch: int, rows: Iterable[MoveRow], stock: Stock) -> tuple[Batch, ...]:
    return batched(epoch, ((row.slot, row.old, row.new) for row in rows), stock.sizes())


def _move(work: Moving, only: Collection[int] | None) -> list[TidemarkError]:
    """Batch by batch; returns what went wrong, by batch."""
    with work.app.ledger.read() as connection:
        rows = [row for row in _rows(connection, work.cluster) if only is None or row.slot in only]
    work.slots = len(rows)
    work.beat()
    failed: list[TidemarkError] = []
    for batch in _batches(work.cluster.epoch, rows, work.stock):
        troubles = _move_batch(work, batch)
        failed += troubles
        if not troubles:
            work.slots_done += len(batch.slots)
            work.beat()
    return failed


def _move_batch(work: Moving, batch: Batch) -> list[TidemarkError]:
    """A member that is away or full does not keep the others from theirs."""
    troubles: list[TidemarkError] = []
    with work.app.ledger.read() as connection:
        told = move_rows.acknowledged(connection, work.receiver, batch.epoch)
    for member in batch.new:
        if all(member in told.get(slot, ()) for slot in batch.slots):
            continue
        try:
            if member in batch.gaining:
                put_schemas(work, batch, member)
            pull(work, batch, member)
            _acknowledge(work, batch, member)
        except StaleEpochError:
            raise
        except (RetryableError, DiskFullError, CorruptionError) as trouble:
            troubles.append(trouble)
    if not troubles:
        _let_go(work, batch)
        drop_schemas(work, batch)
    return troubles


def _acknowledge(work: Moving, batch: Batch, member: str) -> None:
    """The member has all of it, by name and at this epoch, and with it what operations of its group brought before."""
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        move_rows.acknowledge(connection, work.receiver, batch.epoch, batch.slots, member, now(connection))
        if member in batch.gaining:
            _step(connection, work, batch, [member], SlotEvent.FILES_LOADED)
        advance(connection, work.cluster, member)


def _let_go(work: Moving, batch: Batch) -> None:
    """Every member of the new group has said so: nobody counts on the old copies any more, in the same transaction."""
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        told = move_rows.acknowledged(connection, work.receiver, batch.epoch)
        late = [slot for slot in batch.slots if not told.get(slot, frozenset()) >= set(batch.new)]
        if late:
            raise RetryableError(
                f"slot {late[0]} is not acknowledged by all of {', '.join(batch.new)}", hint="./tidemark cluster show"
            )
        at = now(connection)
        _step(connection, work, batch, batch.deleting, SlotEvent.ALL_ACKNOWLEDGED)
        move_rows.set_move_state(connection, work.receiver, batch.epoch, batch.slots, "acknowledged", at)
        still = {row.slot: row.old for row in _rows(connection, work.cluster)}
        copies = copy_rows.copies_of(connection, work.receiver, [file.location for file in work.stock.of(batch.slots)])
        for node in batch.deleting:
            going = [
                location
                for location, rows in copies.items()
                if any(row.node == node and row.state == "held" for row in rows) and not _kept(work, location, node, still)
            ]
            copy_rows.mark_going(connection, work.receiver, node, going, at)


def _kept(work: Moving, location: str, node: str, still: dict[int, tuple[str, ...]]) -> bool:
    """Whether the node is to have the file for another slot that it touches, or until that one has moved."""
    slots = work.stock.files[location].slots
    return any(work.cluster.table.holds(node, slot) or node in still.get(slot, ()) for slot in slots)


def _step(connection: Connection, work: Moving, batch: Batch, nodes: Iterable[str], event: SlotEvent) -> None:
    known = move_rows.slot_states(connection, work.receiver)
    null = (SlotState.NULL.value, batch.epoch)
    states = {
        (node, slot): after(SlotState(known.get((node, slot), null)[0]), event).value
        for node in nodes
        for slot in batch.slots
    }
    move_rows.put_slot_states(connection, work.receiver, states, batch.epoch)


def _end(work: Moving, change_id: str) -> tuple[str, int]:
    """Once every slot is acknowledged: the change is done, a leaving node has left. (state, slots that still move)."""
    cluster, receiver = work.cluster, work.receiver
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        table_rows.require_epoch(connection, receiver, cluster.epoch)
        left = len(_rows(connection, cluster))
        if left:
            return "migrating", left
        at = now(connection)
        rows = move_rows.moves(connection, receiver, cluster.epoch)
        sent = {
            key: after(SlotState(state), SlotEvent.FILES_GONE).value
            for key, (state, _) in move_rows.slot_states(connection, receiver).items()
        }
        move_rows.put_slot_states(connection, receiver, sent, cluster.epoch)
        move_rows.set_move_state(connection, receiver, cluster.epoch, [row.slot for row in rows], "done", at)
        for node in table_rows.nodes(connection, receiver, ["leaving"]):
            held = [row.location for row in copy_rows.copies_at(connection, receiver, node.node) if row.state == "held"]
            copy_rows.mark_going(connection, receiver, node.node, held, at)
            table_rows.set_node_state(connection, receiver, node.node, "left", at)
            record(connection, "cluster.left", node=node.node, epoch=cluster.epoch)
        for header, name in operation_rows.applied(connection, receiver):
            if header not in cluster.table.ring or name not in cluster.table.ring.group(header, cluster.table.replicas):
                operation_rows.forget_member(connection, receiver, header, name)
        table_rows.set_change_state(connection, change_id, "done", at)
        moved = sum(row.bytes_done for row in rows)
        record(connection, "cluster.moved", epoch=cluster.epoch, slots=len(rows), bytes=moved)
    return "done", 0


def _trouble(failed: list[TidemarkError], left: int) -> TidemarkError:
    first = next((error for error in failed if isinstance(error, DiskFullError)), failed[0])  # it does not pass by itself
    return type(first)(f"{left:,} slots still move: {first.message}", hint=first.hint, subject=first.subject)
