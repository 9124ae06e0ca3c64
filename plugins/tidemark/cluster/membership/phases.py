"""Phase 1 of a change: it is recorded, every node gets the new table, and one transaction puts it in force.

Until that transaction nothing acts on the new table and the change can be rolled back. Each step may be repeated by another
process. A node's table counts only in the run that put it there, since a repeated plan may differ. Source: seed 001
"Two-phase method", phase 1; docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.membership.plan import ChangePlan, SlotStates
from tidemark.cluster.migration.inventory import Stock, Stored
from tidemark.cluster.nodes.cluster import NodeStores
from tidemark.cluster.nodes.formats import NodeClaim
from tidemark.cluster.slots.hash_ring import Group
from tidemark.cluster.slots.states import SlotState
from tidemark.cluster.slots.table import encode_table
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    NoQuorumError,
    OutcomeUnknownError,
    PermanentError,
    StaleEpochError,
    TidemarkError,
    UnreachableError,
)
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow, TableRow
from tidemark.ledger.database import database_time
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import Lease, assert_held
from tidemark.progress import Progress, Tick


@dataclass(frozen=True)
class PhaseOne:
    """A change before its swap. `joining`: nodes that join by it; for the first table, all of them."""

    app: App
    receiver: str
    lease: Lease
    change: ChangeRow
    plan: ChangePlan
    stock: Stock
    stores: NodeStores
    identity: str  # of the cluster
    joining: Collection[NodeRow]
    quorum: int
    progress: Progress
    supersedes: str = ""  # the id of a change whose table is in force: it does not go on, this one does what is left


def run_phase_one(phase: PhaseOne) -> None:
    """Run phase 1 to the swap, from the start or from where an earlier run ended.

    UnreachableError for a joining node, DiskFullError if a node has no room for its new files, PermanentError for the folder
    of another cluster, NoQuorumError if too few nodes took the table: nothing is in force then.
    """
    for row in phase.joining:
        _require_free_folder(phase, row)
    _require_room(phase)
    _write_down(phase)
    # CRASH WINDOW: recorded, no node knows it: the same command continues here, or it is rolled back.
    for row in phase.joining:
        phase.stores.open_folder(row.node).claim_folder(phase.identity)
    taken, away = _publish_table(phase)
    # CRASH WINDOW: nodes have a table that is not in force, nothing acts on it: published again, or withdrawn.
    lacking = phase.plan.without_quorum(taken, phase.quorum)
    if lacking:
        raise NoQuorumError(
            f"the group of {lacking[0][0]} ({', '.join(lacking[0])}) has no quorum of {phase.quorum} for the new table: "
            + "; ".join(error.message for error in away.values()),
            hint="nothing was changed; bring the nodes back and run it again, or ./tidemark cluster roll-back"
            + _without_it(phase, lacking, away),
            subject=lacking[0][0],
        )
    _swap_table(phase, taken)
    # CRASH WINDOW: in force, nothing has moved: `migrate` goes on from what the transaction wrote.


def leaving_node(change: ChangeRow) -> str:
    """Return the node that leaves by the change; "" for none."""
    return change.node if change.kind == "remove" else change.gone


def _without_it(phase: PhaseOne, lacking: Collection[Group], away: Collection[str]) -> str:
    """Advise the administrator of a lost leaving node, if its missing vote alone prevents the quorum; else ""."""
    leaving = leaving_node(phase.change)
    enough = min(sum(name not in away for name in group) for group in lacking)
    if leaving not in away or not enough or any(leaving not in group for group in lacking):
        return ""
    return f"; where {leaving} is lost for good: [cluster] quorum = {enough} in the settings until it has left"


def withdraw_from_nodes(
    phase_nodes: NodeStores, epoch: int, identity: str, joining: Collection[str], members: Collection[str]
) -> list[str]:
    """Remove a table that was never in force from the reachable nodes, and release the folders of nodes that joined by it.

    `identity`: of the cluster; a folder of another one is left alone. Returns the unreachable nodes: they keep the table
    until they get the next one.
    """
    away = []
    for name in sorted({*joining, *members}):
        try:
            folder = phase_nodes.open_folder(name)
            if name in joining:
                folder.release_folder(identity)
            else:
                folder.withdraw_table(epoch)
        except TidemarkError:
            away.append(name)
    return away


def _require_free_folder(phase: PhaseOne, row: NodeRow) -> None:
    """Check, before anything is recorded, that a joining node is reachable and its folder is free."""
    try:
        owner = phase.stores.open_folder(row.node).read_owner()
    except UnreachableError as away:  # not `cluster check`: it is no node yet
        hint = "nothing was changed; is its sshd up, the address right? Then the same command again"
        raise type(away)(away.message, hint=hint, subject=row.node) from away
    except CorruptionError as torn:
        hint = "nothing was changed; give the node an empty folder of its own"
        raise CorruptionError(torn.message, hint=hint, subject=row.node) from torn
    if owner is not None and owner != NodeClaim(phase.identity, row.node):
        raise PermanentError(
            f"{row.store} is the folder of node {owner.node} of cluster {owner.cluster} already",
            hint="give the node a folder of its own; nothing was changed",
            subject=row.node,
        )


def _require_room(phase: PhaseOne) -> None:
    """Raise DiskFullError if a node has no room for its new files. Files already there need none."""
    for name, needed in sorted(phase.plan.gained_bytes(phase.stock.sizes_by_slot()).items()):
        try:
            folder = phase.stores.open_folder(name)
            free = folder.free_bytes()
            if free is None or free >= needed:
                continue
            present = folder.list_sizes()
        except TidemarkError:
            continue  # the quorum decides whether it is needed; its room is checked again when it is filled
        missing = sum(f.size for f in _coming_files(phase, name) if present.get(f.location) != f.size)
        if free < missing:
            raise DiskFullError(
                f"node {name} has room for {free:,} bytes, {missing:,} would come to it",
                hint="nothing was changed; free space there, or add a node with more",
                subject=name,
            )


def _coming_files(phase: PhaseOne, name: str) -> list[Stored]:
    gained = [s for move in phase.plan.moves if name in move.new and name not in move.old for s in move.slots]
    return phase.stock.files_of_slots(gained)


def _write_down(phase: PhaseOne) -> None:
    """Record the planned change, in the place of the one that it supersedes. A second call changes nothing."""
    with phase.app.ledger.write() as connection:
        assert_held(connection, phase.lease)
        table_rows.require_epoch(connection, phase.receiver, phase.change.from_epoch)
        if phase.supersedes:
            table_rows.set_change_state(connection, phase.supersedes, "superseded", database_time(connection))
        table_rows.put_change(connection, phase.change)
        for row in phase.joining:
            table_rows.put_node(connection, replace(row, state="joining", epoch=0, at=database_time(connection)))


def _publish_table(phase: PhaseOne) -> tuple[set[str], dict[str, TidemarkError]]:
    """Put the table at every node. Return the nodes that have it durably, and the errors of the others."""
    epoch, record = phase.plan.new.epoch, encode_table(phase.plan.new)
    joining = {row.node for row in phase.joining}
    taken: set[str] = set()
    away: dict[str, TidemarkError] = {}
    for number, name in enumerate(sorted(phase.plan.takers), 1):
        try:
            phase.stores.open_folder(name).require_owner(phase.identity)
            phase.stores.open_folder(name).put_table(epoch, record)
            taken.add(name)
        except StaleEpochError as newer:
            raise PermanentError(
                f"node {name} knows a newer partition table than the ledger: the ledger is older than its nodes",
                hint="nothing was changed. Is it this node alone: ./tidemark cluster check --repair takes it away; is the"
                " ledger the old one: ./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)",
                subject=name,
            ) from newer
        except TidemarkError as error:  # a full disk or a damaged folder counts as away
            if name in joining:
                raise
            away[name] = error
        phase.progress(Tick("publish table", number, len(phase.plan.takers)))
    return taken, away


def _swap_table(phase: PhaseOne, taken: Collection[str]) -> None:
    """Put the new table in force in one transaction. From then on nobody can commit by the old one."""
    plan, receiver = phase.plan, phase.receiver
    with phase.app.ledger.write() as connection:
        assert_held(connection, phase.lease)
        at = database_time(connection)
        open_now = table_rows.open_change(connection, receiver)
        if open_now is None or open_now.change_id != phase.change.change_id or open_now.state != "planned":
            raise StaleEpochError(
                f"the change {phase.change.change_id} was ended by somebody else", hint="./tidemark cluster show"
            )
        table_rows.swap_table(
            connection, TableRow(receiver, plan.new.epoch, encode_table(plan.new), phase.change.change_id, at)
        )
        move_rows.add_moves(
            connection,
            [
                MoveRow(receiver, plan.new.epoch, s, m.old, m.new, at=at)
                for m in (*plan.moves, *plan.handed)
                for s in m.slots
            ],
        )
        move_rows.add_moves(connection, [replace(row, at=at) for row in _moves_left(connection, phase)])
        states = plan.swap_states(_read_slot_states(connection, receiver), supersedes=bool(phase.supersedes))
        move_rows.put_slot_states(connection, receiver, states, plan.new.epoch)
        for name in taken:
            table_rows.note_node(connection, receiver, name, plan.new.epoch)
        for row in phase.joining:
            table_rows.set_node_state(connection, receiver, row.node, "serving", at)
        if leaving := leaving_node(phase.change):
            table_rows.set_node_state(connection, receiver, leaving, "leaving", at)
        table_rows.set_change_state(connection, phase.change.change_id, "swapped")
        record_event(
            connection,
            "cluster.swapped",
            epoch=plan.new.epoch,
            slots=plan.slots,
            change=phase.change.kind,
            node=phase.change.node,
        )


def _moves_left(connection: Connection, phase: PhaseOne) -> list[MoveRow]:
    """Return moves of a superseded change that go on by this one: slots that were handed to another group of the same
    nodes. Slots of other nodes are in the plan."""
    new = phase.plan.new
    left = move_rows.moves_of_epoch(connection, phase.receiver, new.epoch - 1, open_only=True)
    return [
        MoveRow(phase.receiver, new.epoch, row.slot, row.old, new.group_of(row.slot))
        for row in left
        if row.state == "moving" and row.slot not in new.moving
    ]


def _read_slot_states(connection: Connection, receiver: str) -> SlotStates:
    found: Mapping[tuple[str, int], tuple[str, int]] = move_rows.slot_states(connection, receiver)
    try:
        return {key: SlotState(state) for key, (state, _) in found.items()}
    except ValueError as odd:
        raise OutcomeUnknownError(f"a slot's state in the ledger is no word of ours: {odd}") from odd
