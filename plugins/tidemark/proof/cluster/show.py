"""The cluster from the ledger alone: no node is asked, so this works while a node is away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration.pull import paths_of_change
from tidemark.cluster.replicas.deliver import late_members
from tidemark.cluster.slots.hash_ring import schema_slot
from tidemark.cluster.slots.routing import slots_of
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import CorruptionError, NotFoundError, UsageError
from tidemark.formats.layout import catalog_partition
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.node_watch import read_ahead
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow
from tidemark.proof.cluster.view import ChangeView, ClusterView, GroupView, MovingView, NodeView, RouteView, spans_of
from tidemark.proof.status import ClusterStatus
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.times import parse_time_bound


def show_cluster(app: App, receiver: ReceiverSettings) -> ClusterView:
    """Return the table in force, what each node holds, what moves. NotFoundError before `cluster init`, CorruptionError for
    a damaged table."""
    with app.ledger.read() as connection:
        return view_of(connection, receiver.name, app.clock())


def view_of(connection: Connection, receiver: str, at: float, with_left: bool = False) -> ClusterView:
    """As `show_cluster`, in the caller's transaction. `with_left`: include nodes that left and hold nothing."""
    table = table_of(connection, receiver)
    moves = move_rows.moves_of_epoch(connection, receiver, table.epoch, open_only=True)
    change = table_rows.open_change(connection, receiver)
    nodes = _build_nodes(
        table, table_rows.nodes_of_receiver(connection, receiver), copy_rows.bytes_by_node(connection, receiver)
    )
    return ClusterView(
        receiver=receiver,
        epoch=table.epoch,
        replicas=table.replicas,
        owners=table.owners,
        nodes=tuple(one for one in nodes if with_left or one.state != "left" or one.bytes),
        groups=_build_groups(table),
        moving=_group_moves(moves, copy_rows.bytes_by_slot(connection, receiver)),
        change=_build_change(change),
        made=at,
        roads=paths_of_change(connection, receiver, table.epoch),
        ahead=read_ahead(connection, receiver),
    )


def status_of(connection: Connection, receiver: str) -> ClusterStatus | None:
    """Return the state for `status`; None before `cluster init` or for a damaged table, which `cluster check` reports."""
    if not table_rows.current_epoch(connection, receiver):
        return None
    try:
        view = view_of(connection, receiver, 0.0)
        behind = late_members(connection, receiver, table_of(connection, receiver))
    except CorruptionError:
        return None
    return ClusterStatus(
        receiver=receiver,
        epoch=view.epoch,
        nodes=tuple((node.name, node.state, node.bytes) for node in view.nodes),
        moving=view.moving_slots,
        bytes=view.moving_bytes,
        done=view.moved_bytes,
        change=view.change.command if view.change else "",
        change_state=view.change.state if view.change else "",
        behind=tuple(sorted(behind)),
        ahead=view.ahead,
    )


def find_route(app: App, receiver: ReceiverSettings, database: str, time: str = "") -> RouteView:
    """Return where data of a database at a time is written; without a time, where its schema is. A device gives its
    database.

    `time`: ISO 8601, or an integer in the unit of the receiver's sites (milliseconds where they differ). NotFoundError
    before `cluster init`, UsageError for a malformed time, or one that no TsFile can hold.
    """
    with app.ledger.read() as connection:
        table = table_of(connection, receiver.name)
        left = {
            move.slot: move.old for move in move_rows.moves_of_epoch(connection, receiver.name, table.epoch, open_only=True)
        }
        known = _read_databases(connection, receiver.name)
    named = _database_of(database, known)
    unit = _find_time_unit(app, receiver)
    at = parse_time_bound(time, unit)
    if at is not None and not -(1 << 63) <= at < 1 << 63:
        raise UsageError(f"{time}: no TsFile holds such a time", hint="./tidemark cluster route --help", subject=time)
    if at is None:
        partition, slot = None, schema_slot(named, table.slots, table.hash)
    else:
        partition = catalog_partition(at, receiver.partition_interval_ms, unit)
        slot = slots_of(table, named, partition, partition)[0]
    return RouteView(named, partition, slot, table.group_of(slot), left.get(slot, ()), table.epoch, named in known)


def table_of(connection: Connection, receiver: str) -> PartitionTable:
    """Return the table in force. NotFoundError before `cluster init`, CorruptionError for a damaged one."""
    row = table_rows.current_table(connection, receiver)
    if row is None:
        raise NotFoundError(
            f"{receiver} has no partition table: its data lies at the receiver alone",
            hint="./tidemark cluster init, with [cluster] and [nodes.NAME] in the settings",
            subject=receiver,
        )
    return decode_table(row.table_bytes)


def _build_nodes(table: PartitionTable, rows: Sequence[NodeRow], sizes: Mapping[str, int]) -> tuple[NodeView, ...]:
    owned: dict[str, int] = defaultdict(int)
    for name in table.owners:
        owned[name] += 1
    held: dict[str, int] = defaultdict(int)
    for header, members in table.groups_by_header().items():
        for name in members:
            held[name] += owned[header]
    return tuple(
        NodeView(row.node, row.state, owned[row.node], held[row.node], sizes.get(row.node, 0), row.store, row.epoch)
        for row in rows
    )


def _build_groups(table: PartitionTable) -> tuple[GroupView, ...]:
    slots: dict[str, list[int]] = defaultdict(list)
    for slot, name in enumerate(table.owners):
        slots[name].append(slot)
    return tuple(GroupView(header, members, spans_of(slots[header])) for header, members in table.groups_by_header().items())


def _group_moves(moves: Iterable[MoveRow], sizes: Mapping[int, int]) -> tuple[MovingView, ...]:
    """Group the moves that have the same old and new nodes and the same state."""
    ways: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[MoveRow]] = defaultdict(list)
    for move in moves:
        ways[move.old, move.new, move.state].append(move)
    found = []
    for (old, new, state), rows in ways.items():
        lacking = len(set(new) - set(old))
        whole = lacking * sum(sizes.get(row.slot, 0) for row in rows)
        # Files loaded during the move count as copied bytes, not as bytes to move.
        came = sum(min(lacking * sizes.get(row.slot, 0), row.bytes_done) for row in rows)
        done = whole if state == "acknowledged" else came
        found.append(MovingView(spans_of(row.slot for row in rows), old, new, state, whole, done))
    return tuple(sorted(found, key=lambda one: one.spans))


def _build_change(row: ChangeRow | None) -> ChangeView | None:
    return None if row is None else ChangeView(row.change_id, row.kind, row.node, row.state, row.actor, row.begun, row.gone)


def _read_databases(connection: Connection, receiver: str) -> frozenset[str]:
    sql = "SELECT DISTINCT database_name FROM catalog_file WHERE receiver = :r"
    return frozenset(str(row[0]) for row in connection.execute(sa.text(sql), {"r": receiver}))


def _database_of(named: str, known: frozenset[str]) -> str:
    """Return the database itself, or the longest one that contains the named device; else the name unchanged."""
    if named in known:
        return named
    inside = [database for database in known if named.startswith(f"{database}.")]
    return max(inside, key=len, default=named)


def _find_time_unit(app: App, receiver: ReceiverSettings) -> str:
    sites = {link.site for link in app.settings.links.values() if link.receiver == receiver.name}
    units = {app.settings.sites[name].time_unit for name in sites}
    return units.pop() if len(units) == 1 else "ms"
