"""A member that was away gets what it missed: every committed operation of its groups above what it has applied.

It gets files from the receiver's cache, or from another node that holds them. Files to be removed are removed too, unless a
recovery is at work. A log
that fell out of step with its group's is recovered. Operations that a dead forward left proposed are withdrawn: the caller
holds the receiver's load lease, so no forward is at work. Nodes that cannot be reached are named.

Source: seed 001 "Data group"; docs/decisions/0015.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas.commit import append_change, hold_groups, settle_commit
from tidemark.cluster.replicas.deliver import Delivery, advance_applied, bring_to_node, logs_of
from tidemark.cluster.replicas.forward import withdraw_left
from tidemark.cluster.replicas.plan import Piece, due_operations
from tidemark.cluster.replicas.promote import require_newest
from tidemark.cluster.replicas.records.change import Change
from tidemark.cluster.replicas.recover import hold_node, recover_logs
from tidemark.errors import CorruptionError, TidemarkError
from tidemark.formats.layout import MERGED
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
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.cluster.recoveries import is_source_pinned
from tidemark.ledger.leases import Leases
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.stores.protocol import Store


@dataclass(frozen=True)
class CaughtUp:
    """Result of a catch-up. `files`: that nodes got; `removed`: that they lost; `away`: node → why it is still late."""

    files: int = 0
    removed: int = 0
    away: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Late:
    """The work due at one node. `drops`: databases to drop; `going`: locations to remove."""

    node: str
    databases: tuple[OperationRow, ...]
    schemas: Mapping[str, bytes]
    drops: tuple[str, ...]
    pieces: tuple[Piece, ...]
    holders: Mapping[str, Sequence[str]]  # location → other nodes that hold it
    going: tuple[str, ...]


def catch_up(cluster: Cluster | None, store: Store, most: int | None = None) -> CaughtUp:
    """Bring every late node up to date. `store`: the receiver's. Nodes that cannot be reached are named.

    `most`: bytes for each node; the rest waits for the next call, so that a load does not wait for a node that missed weeks.

    The caller holds the receiver's load lease. Without a cluster, or without late nodes, it costs a query or two.
    PermanentError if the ledger is older than the nodes.
    """
    if cluster is None:
        return CaughtUp()
    withdraw_left(cluster, lambda row: MERGED not in row.subject)  # merges propose under leases of their own
    files = removed = 0
    away: dict[str, str] = {}
    behind = list(_find_late_nodes(cluster, most))
    if behind:
        require_newest(cluster)  # what it would remove may be read by a newer ledger
    for late in behind:
        try:
            with hold_node(cluster, late.node):  # one that is recovered meanwhile gets its files there
                files += _put_files(cluster, store, late)
                removed += _remove_files(cluster, late)
        except TidemarkError as error:
            away[late.node] = error.message
    recover_logs(cluster)
    return CaughtUp(files, removed, away)


def remove_everywhere(cluster: Cluster | None, locations: Iterable[str]) -> None:
    """Mark copies that nobody reads to be removed, at every node. Nodes that answer lose them at once, the others when they
    catch up. The caller holds the lease under which such files are made."""
    wanted = sorted(set(locations))
    if cluster is None or not wanted:
        return
    receiver, at = cluster.receiver.name, cluster.app.clock()
    with cluster.app.ledger.write() as connection:
        copies = copy_rows.copies_of(connection, receiver, wanted)
        by_node: dict[str, list[str]] = {}
        for rows in copies.values():
            for row in rows:
                by_node.setdefault(row.node, []).append(row.location)
        for name, mine in by_node.items():
            copy_rows.mark_to_remove(connection, receiver, name, mine, at)
        slots = {location: rows[0].slot for location, rows in copies.items()}
        rows_ = [_removal_operation(cluster, location, slot, at) for location, slot in slots.items()]
        operation_rows.set_operation_state(connection, operation_rows.propose_operations(connection, rows_), "committed", at)
    # CRASH WINDOW: marked, and still there: every catch-up removes marked copies that the catalog does not have.
    for name in sorted(by_node):
        late = _Late(name, (), {}, (), (), {}, tuple(by_node[name]))
        try:
            _remove_files(cluster, late)
        except TidemarkError:
            continue  # it is away or refuses: its rows say `going`, the next catch-up names it


def drop_databases(cluster: Cluster | None, databases: Iterable[str]) -> None:
    """Commit, at their schema's group, the drop of those databases that have no live file; the next catch-up does it. The
    caller holds the receiver's load lease."""
    if cluster is None:
        return
    receiver, at, rows = cluster.receiver.name, cluster.app.clock(), []
    with cluster.app.ledger.read() as connection:
        if table_rows.current_epoch(connection, receiver) != cluster.epoch:
            return  # the next round routes it
        for database in sorted(set(databases) - catalog_rows.known_databases(connection, receiver, databases)):
            route = cluster.table.route_schema(database)
            last = operation_rows.last_of_database(connection, receiver, route.header, database)
            if last is not None and last.kind == "create_database":
                rows.append(OperationRow(receiver, route.header, route.epoch, route.slot, "drop_database", database, at=at))
    if not rows:
        return
    with hold_groups(cluster) as lease:
        appended = append_change(cluster, lease, Change(dropped=tuple(row.subject for row in rows)))
        # CRASH WINDOW: recorded, not committed: the next commit takes it back, the next round drops them.
        with cluster.app.ledger.write() as connection:
            table_rows.require_epoch(connection, receiver, cluster.epoch)
            settle_commit(connection, cluster, lease, appended)
            done = operation_rows.propose_operations(connection, rows)
            operation_rows.set_operation_state(connection, done, "committed", at)


def _removal_operation(cluster: Cluster, location: str, slot: int, at: float) -> OperationRow:
    header = cluster.table.owners[slot]
    return OperationRow(cluster.receiver.name, header, cluster.epoch, slot, "remove", location, at=at)


def _find_late_nodes(cluster: Cluster, most: int | None) -> list[_Late]:
    receiver, table = cluster.receiver.name, cluster.table
    found = []
    with cluster.app.ledger.read() as connection:
        newest = operation_rows.committed_versions(connection, receiver)
        applied = operation_rows.applied_versions(connection, receiver)
        going = _find_going(connection, receiver)
        behind = {
            node: late
            for node, headers in logs_of(table, applied).items()
            if (late := [h for h in headers if applied.get((h, node), 0) < newest.get(h, 0)])
        }
        states = move_rows.slot_states(connection, receiver) if behind else {}
        for node in sorted({*behind, *going}):
            operations = [
                operation
                for header in behind.get(node, ())
                for operation in due_operations(
                    operation_rows.operations_above(connection, receiver, header, applied.get((header, node), 0))
                )
                if node in table.group_of(operation.slot) and (node, operation.slot) not in states
            ]
            found.append(_collect_late(connection, cluster, node, operations, tuple(going.get(node, ())), most))
    return found


def _collect_late(
    connection: Connection,
    cluster: Cluster,
    node: str,
    operations: Sequence[OperationRow],
    going: tuple[str, ...],
    most: int | None,
) -> _Late:
    """Collect a node's work. `operations`: due there. Files that it has, or that the catalog no more has, are left out.
    Files above `most` bytes wait for the next call."""
    receiver = cluster.receiver.name
    puts = [operation for operation in operations if operation.kind == "put"]
    places = [operation.subject for operation in puts]
    copies = copy_rows.copies_of(connection, receiver, places)
    known = catalog_rows.locations_in_use(connection, receiver, places)
    pieces: dict[str, Piece] = {}
    for put in puts:
        rows = [row for row in copies.get(put.subject, ()) if row.state == "held"]
        if put.subject in known and not any(row.node == node and row.sha256 == put.sha256 for row in rows):
            home = rows[0].slot if rows else put.slot
            if most is not None and most <= 0:
                break
            most = None if most is None else most - put.size
            pieces[put.subject] = Piece(put.subject, put.sha256, put.size, home, (put.slot,), "")
    created = [operation for operation in operations if operation.kind == "create_database"]
    return _Late(
        node,
        tuple(operation for operation in operations if operation.kind.endswith("_database")),
        {operation.subject: schema_bytes_of(connection, receiver, operation.subject) for operation in created},
        tuple(operation.subject for operation in operations if operation.kind == "drop_database"),
        tuple(pieces.values()),
        {at: [row.node for row in copies.get(at, ()) if row.state == "held" and row.node != node] for at in pieces},
        going,
    )


def _find_going(connection: Connection, receiver: str) -> dict[str, list[str]]:
    """Return node → marked copies that the catalog does not have. Others belong to slots that move."""
    rows = copy_rows.copies_to_remove(connection, receiver)
    known = catalog_rows.known_places(connection, receiver, [row.location for row in rows])
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.location not in known:
            found.setdefault(row.node, []).append(row.location)
    return found


def _put_files(cluster: Cluster, store: Store, late: _Late) -> int:
    """Put schemas and files; return the number of files. Raises the first error after everything was tried."""
    folder = cluster.open_folder(late.node)
    for database in late.drops:
        folder.drop_schema(database)
    brought = bring_to_node(cluster, store, Delivery(late.node, late.schemas, late.pieces), late.holders)
    if brought.schemas >= late.schemas.keys():
        with cluster.app.ledger.write() as connection:
            advance_applied(connection, cluster, late.node, late.databases)
    if brought.error is not None:
        raise brought.error
    return len(brought.pieces)


def _remove_files(cluster: Cluster, late: _Late) -> int:
    """Remove marked copies. While a recovery may read them, they stay for the next catch-up."""
    if not late.going:
        return 0
    with cluster.app.ledger.read() as connection:
        leases = Leases(cluster.app.ledger, cluster.app.identity)
        if is_source_pinned(connection, leases, cluster.receiver.name):
            return 0
    cluster.open_folder(late.node).remove_files(late.going)
    # CRASH WINDOW: removed, their rows say `going`: removed again, which changes nothing.
    with cluster.app.ledger.write() as connection:
        copy_rows.forget_copies(connection, cluster.receiver.name, late.node, late.going)
        advance_applied(connection, cluster, late.node)
    return len(late.going)


def as_now(connection: Connection, late: Mapping[str, Sequence[OperationRow]]) -> dict[str, list[OperationRow]]:
    """Set `sha256` of operations on databases to the digest of the schema as it is now, '' for none. Series may have been
    added since the operation was written."""
    digests: dict[tuple[str, str], str] = {}

    def now(operation: OperationRow) -> OperationRow:
        if operation.kind == "put":
            return operation
        if operation.kind == "drop_database":
            return replace(operation, sha256="")
        about = operation.receiver, operation.subject
        if about not in digests:
            digests[about] = hashlib.sha256(schema_bytes_of(connection, *about)).hexdigest()
        return replace(operation, sha256=digests[about])

    return {node: [now(operation) for operation in operations] for node, operations in late.items()}


def schema_digest(folder: NodeFolder, database: str) -> str:
    """Return the digest of the schema at the node; '' if it has none, or a damaged one."""
    try:
        record = folder.read_schema(database)
    except CorruptionError:
        return ""
    return "" if record is None else hashlib.sha256(record).hexdigest()
