"""Phase 2 of a change: a new group gets what it lacks, each member acknowledges by name, the old members give up theirs.

It moves batches of slots with the same groups, under the lease `cluster:<receiver>`. Every record checks lease and epoch in
its own transaction, so a late task of an earlier epoch records nothing. After any failure, the next call continues from the
ledger.

A member gets the series of a slot's databases before its files (`put_schemas`). One slot has the schema of a database, by
its name alone. Nodes that lose a slot drop its schema. A node that is away keeps it, which is harmless.

Source: seed 001 "Data migration", "Installing a snapshot"; docs/decisions/0015.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration.cleanup import sweep_given_up_copies
from tidemark.cluster.migration.inventory import Stock, read_stock
from tidemark.cluster.migration.plan import Batch
from tidemark.cluster.migration.plan import group_into_batches as batched
from tidemark.cluster.migration.pull import PathView, SlotMigration, drop_snapshots, pull_batch
from tidemark.cluster.nodes.cluster import Cluster, hold_cluster_lease, open_cluster
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.deliver import advance_applied, late_members
from tidemark.cluster.replicas.promote import require_newest
from tidemark.cluster.slots.states import SlotEvent, SlotState, next_state
from tidemark.engines.choose import EngineChoice
from tidemark.errors import CorruptionError, DiskFullError, RetryableError, StaleEpochError, TidemarkError
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
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.database import database_time
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.sender.bandwidth import SharedLine, place_on
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class MigrateResult:
    """Result of a call. `slots`, `bytes`: moved by it; `left`: slots that still move. `state`: of the change: migrating |
    done, "" if none was open. `roads`: the paths of files."""

    epoch: int
    slots: int
    bytes: int
    left: int
    state: str
    roads: tuple[PathView, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self), "roads": [path.as_json() for path in self.roads]}


def migrate_slots(
    app: App,
    receiver: ReceiverSettings,
    progress: Progress = ignore_progress,
    slots: Iterable[int] | None = None,
    engine: EngineChoice = "pool",
) -> MigrateResult:
    """Do the rest of phase 2, or that of these `slots`. `engine`: as `send.Route`.

    A slot's error does not stop the others. The first one is raised at the end: DiskFullError if there is one, else as
    RetryableError, since it may pass (a node that is away). LeaseHeldError while another process migrates, PermanentError if
    the ledger is older than the nodes.
    """
    with hold_cluster_lease(app, receiver, "migrate") as lease, open_cluster(app, receiver) as cluster:
        if cluster is None:
            return MigrateResult(0, 0, 0, 0, "")
        require_newest(cluster)
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
        _put_missed_tables(cluster, lease)
        if change is None or change.state == "planned":
            drop_snapshots(cluster)  # of a node that was away when a change ended
            sweep_given_up_copies(cluster, lease)
            return MigrateResult(cluster.epoch, 0, 0, 0, "")
        with app.receiver_store(receiver) as store:
            work = _begin_migration(app, cluster, lease, store, progress, change.change_id)
            work.engine = engine
            line = SharedLine(app.ledger, receiver.name, receiver.bandwidth)
            with place_on(line, lease.holder, app.identity, cluster.settings.bandwidth) as work.line:
                failed = _move_batches(work, None if slots is None else frozenset(slots))
            drop_snapshots(cluster)
            if not failed:
                record_slots(cluster)
            catch_up_databases(work)
            state, left = _end_change(work, change.change_id)
        if not failed:
            sweep_given_up_copies(cluster, lease)
    if failed:
        raise _migration_error(failed, left)
    paths = tuple(PathView(source or "the receiver", node, path) for (source, node), path in sorted(work.roads.items()))
    return MigrateResult(work.cluster.epoch, work.slots_done, work.moved, left, state, paths)


def open_batches(app: App, receiver: ReceiverSettings) -> list[Batch]:
    """Return what is left to move, in the batches of `migrate_slots`, for one task each."""
    with open_cluster(app, receiver) as cluster:
        if cluster is None:
            return []
        with app.ledger.read() as connection:
            stock = read_stock(connection, receiver.name, cluster.table)
            rows = _moving_rows(connection, cluster)
    return list(_make_batches(cluster.epoch, rows, stock))


def _begin_migration(
    app: App, cluster: Cluster, lease: Lease, store: Any, progress: Progress, change_id: str
) -> SlotMigration:
    receiver = cluster.receiver.name
    with app.ledger.write() as connection:
        assert_held(connection, lease)
        table_rows.require_epoch(connection, receiver, cluster.epoch)
        table_rows.set_change_state(connection, change_id, "migrating")
    with app.ledger.read() as connection:
        stock = read_stock(connection, receiver, cluster.table)
        rows = move_rows.moves_of_epoch(connection, receiver, cluster.epoch)
    sizes = stock.sizes_by_slot()
    total = sum(sizes.get(row.slot, 0) * sum(name not in row.old for name in row.new) for row in rows)
    done = sum(row.bytes_done for row in rows)
    return SlotMigration(app, receiver, lease, cluster, stock, store, progress, max(total, done), done)


def _put_missed_tables(cluster: Cluster, lease: Lease) -> None:
    """Put the table at nodes that missed it when it came into force. One that fails again waits for the next call."""
    taken = []
    for row in cluster.nodes.values():
        if row.epoch < cluster.epoch and row.state in ("serving", "leaving"):
            try:
                cluster.open_folder(row.node).put_table(cluster.epoch, cluster.table_bytes)
                taken.append(row.node)
            except TidemarkError:
                continue
    if taken:
        with cluster.app.ledger.write() as connection:
            assert_held(connection, lease)
            for name in taken:
                table_rows.note_node(connection, cluster.receiver.name, name, cluster.epoch)


def _moving_rows(connection: Connection, cluster: Cluster) -> list[MoveRow]:
    rows = move_rows.moves_of_epoch(connection, cluster.receiver.name, cluster.epoch, open_only=True)
    return [row for row in rows if row.state == "moving"]


def _make_batches(epoch: int, rows: Iterable[MoveRow], stock: Stock) -> tuple[Batch, ...]:
    return batched(epoch, ((row.slot, row.old, row.new) for row in rows), stock.sizes_by_slot())


def _move_batches(work: SlotMigration, only: Collection[int] | None) -> list[TidemarkError]:
    """Move batch by batch; return the errors in order of batches."""
    with work.app.ledger.read() as connection:
        rows = [row for row in _moving_rows(connection, work.cluster) if only is None or row.slot in only]
    work.slots = len(rows)
    work.report_progress()
    failed: list[TidemarkError] = []
    for batch in _make_batches(work.cluster.epoch, rows, work.stock):
        troubles = _move_batch(work, batch)
        failed += troubles
        if not troubles:
            work.slots_done += len(batch.slots)
            work.report_progress()
    return failed


def _move_batch(work: SlotMigration, batch: Batch) -> list[TidemarkError]:
    """Move one batch; return its errors. A member that is away or full does not stop the others."""
    troubles: list[TidemarkError] = []
    with work.app.ledger.read() as connection:
        told = move_rows.acknowledged_nodes(connection, work.receiver, batch.epoch)
    for member in batch.new:
        if all(member in told.get(slot, ()) for slot in batch.slots):
            continue
        try:
            if member in batch.gaining:
                put_schemas(work, batch, member)
            pull_batch(work, batch, member)
            _acknowledge_batch(work, batch, member)
        except StaleEpochError:
            raise
        except (RetryableError, DiskFullError, CorruptionError) as trouble:
            troubles.append(trouble)
    if not troubles:
        _give_up_old_copies(work, batch)
        drop_schemas(work, batch)
    return troubles


def _acknowledge_batch(work: SlotMigration, batch: Batch, member: str) -> None:
    """Record that a member has all of the batch, by name and epoch, and its `applied` versions that follow from it."""
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        move_rows.acknowledge_slots(connection, work.receiver, batch.epoch, batch.slots, member, database_time(connection))
        if member in batch.gaining:
            _apply_event(connection, work, batch, [member], SlotEvent.FILES_LOADED)
        advance_applied(connection, work.cluster, member)


def _give_up_old_copies(work: SlotMigration, batch: Batch) -> None:
    """Once every new member acknowledged, mark the old copies to be removed, in the same transaction."""
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        told = move_rows.acknowledged_nodes(connection, work.receiver, batch.epoch)
        late = [slot for slot in batch.slots if not told.get(slot, frozenset()) >= set(batch.new)]
        if late:
            raise RetryableError(
                f"slot {late[0]} is not acknowledged by all of {', '.join(batch.new)}", hint="./tidemark cluster show"
            )
        at = database_time(connection)
        _apply_event(connection, work, batch, batch.deleting, SlotEvent.ALL_ACKNOWLEDGED)
        move_rows.set_move_state(connection, work.receiver, batch.epoch, batch.slots, "acknowledged", at)
        still = {row.slot: row.old for row in _moving_rows(connection, work.cluster)}
        copies = copy_rows.copies_of(
            connection, work.receiver, [file.location for file in work.stock.files_of_slots(batch.slots)]
        )
        for node in batch.deleting:
            going = [
                location
                for location, rows in copies.items()
                if any(row.node == node and row.state == "held" for row in rows)
                and not _is_still_wanted(work, location, node, still)
            ]
            copy_rows.mark_to_remove(connection, work.receiver, node, going, at)


def _is_still_wanted(work: SlotMigration, location: str, node: str, still: dict[int, tuple[str, ...]]) -> bool:
    """Return whether the node must have the file for another slot that it touches, for good or until that slot has moved."""
    slots = work.stock.files[location].slots
    return any(work.cluster.table.holds_slot(node, slot) or node in still.get(slot, ()) for slot in slots)


def _apply_event(connection: Connection, work: SlotMigration, batch: Batch, nodes: Iterable[str], event: SlotEvent) -> None:
    known = move_rows.slot_states(connection, work.receiver)
    null = (SlotState.NULL.value, batch.epoch)
    states = {
        (node, slot): next_state(SlotState(known.get((node, slot), null)[0]), event).value
        for node in nodes
        for slot in batch.slots
    }
    move_rows.put_slot_states(connection, work.receiver, states, batch.epoch)


def _end_change(work: SlotMigration, change_id: str) -> tuple[str, int]:
    """End the change once every slot is acknowledged: a leaving node has left. Return (state, slots that still move)."""
    cluster, receiver = work.cluster, work.receiver
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        table_rows.require_epoch(connection, receiver, cluster.epoch)
        left = len(_moving_rows(connection, cluster))
        if left:
            return "migrating", left
        at = database_time(connection)
        rows = move_rows.moves_of_epoch(connection, receiver, cluster.epoch)
        sent = {
            key: next_state(SlotState(state), SlotEvent.FILES_GONE).value
            for key, (state, _) in move_rows.slot_states(connection, receiver).items()
        }
        move_rows.put_slot_states(connection, receiver, sent, cluster.epoch)
        move_rows.set_move_state(connection, receiver, cluster.epoch, [row.slot for row in rows], "done", at)
        for node in table_rows.nodes_of_receiver(connection, receiver, ["leaving"]):
            held = [row.location for row in copy_rows.copies_at(connection, receiver, node.node) if row.state == "held"]
            copy_rows.mark_to_remove(connection, receiver, node.node, held, at)
            table_rows.set_node_state(connection, receiver, node.node, "left", at)
            record_event(connection, "cluster.left", node=node.node, epoch=cluster.epoch)
        for header, name in operation_rows.applied_versions(connection, receiver):
            if header not in cluster.table.ring or name not in cluster.table.ring.group_of_header(
                header, cluster.table.replicas
            ):
                operation_rows.forget_member(connection, receiver, header, name)
        table_rows.set_change_state(connection, change_id, "done", at)
        moved = sum(row.bytes_done for row in rows)
        record_event(connection, "cluster.moved", epoch=cluster.epoch, slots=len(rows), bytes=moved)
    return "done", 0


def _migration_error(failed: list[TidemarkError], left: int) -> TidemarkError:
    first = next((error for error in failed if isinstance(error, DiskFullError)), failed[0])  # it does not pass by itself
    return type(first)(f"{left:,} slots still move: {first.message}", hint=first.hint, subject=first.subject)


def put_schemas(work: SlotMigration, batch: Batch, member: str) -> None:
    """Put the schemas of the batch's slots at a gaining member: they become writable. A second call changes nothing."""
    databases = [name for slot in batch.slots for name in work.stock.schemas.get(slot, ())]
    folder = work.cluster.open_folder(member)
    for database in databases:
        with work.app.ledger.read() as connection:
            record = schema_bytes_of(connection, work.receiver, database)
        folder.put_schema(database, record)
    # CRASH WINDOW: the schemas are there, the slots still `pulling`: put again, to the same bytes.
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        known = move_rows.slot_states(connection, work.receiver, member)
        pulling = {
            (member, slot): next_state(SlotState.PULLING, SlotEvent.SCHEMA_LOADED).value
            for slot in batch.slots
            if known.get((member, slot), ("", 0))[0] == SlotState.PULLING
        }
        move_rows.put_slot_states(connection, work.receiver, pulling, batch.epoch)


def catch_up_databases(work: SlotMigration) -> None:
    """Do late operations on databases whose slots have come. A member that got the schemas with its slots is not recorded to
    have done them, and would count as late. The next load serves a node that is away."""
    with work.app.ledger.read() as connection:
        late = late_members(connection, work.receiver, work.cluster.table)
    for node, rows in late.items():
        operations = [row for row in rows if row.kind.endswith("_database")]
        if not operations:
            continue
        try:
            put = _put_late_schemas(work, node, operations)
        except TidemarkError:  # away or full: it stays late, and the change ends all the same
            continue
        # CRASH WINDOW: done and not recorded: done again, to the same bytes.
        with work.app.ledger.write() as connection:
            assert_held(connection, work.lease)
            # A load may have added series meanwhile: the member then has the old schema of that database.
            as_it_is = {
                row: schema_bytes_of(connection, work.receiver, row.subject) for row, record in put.items() if record
            }
            advance_applied(connection, work.cluster, node, [row for row in put if put[row] == as_it_is.get(row)])


def _put_late_schemas(
    work: SlotMigration, node: str, operations: Sequence[OperationRow]
) -> dict[OperationRow, bytes | None]:
    """Do the operations; return the schema put for each, None if the database is dropped."""
    records: dict[OperationRow, bytes | None] = {}
    folder = work.cluster.open_folder(node)
    for row in operations:
        records[row] = None
        if row.kind == "drop_database":
            folder.drop_schema(row.subject)
            continue
        with work.app.ledger.read() as connection:
            records[row] = record = schema_bytes_of(connection, work.receiver, row.subject)
        folder.put_schema(row.subject, record)
    return records


def drop_schemas(work: SlotMigration, batch: Batch) -> None:
    """Drop the slots' schemas at nodes that lost them. A node that is away keeps them, which is harmless."""
    for node in batch.deleting:
        with contextlib.suppress(TidemarkError):
            for slot in batch.slots:
                for database in work.stock.schemas.get(slot, ()):
                    work.cluster.open_folder(node).drop_schema(database)
