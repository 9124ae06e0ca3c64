"""Every change of a cluster's catalog: new files go to the nodes of their slots before they become visible.

    propose (epoch checked) → deliver, each member recorded as it ends → a quorum of every group → the record in the logs
    of the groups, at a quorum → commit (epoch checked again, in the transaction that makes the files visible)

If the table is swapped meanwhile, the proposed operations are withdrawn and the files routed anew. Files already at the
right nodes are not sent again. Source: seed 001 "Phase 1" and "Data group"; docs/decisions/0015, 0024.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.engine import Connection

from tidemark.app import App, change_receiver
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas import plan as replicas_plan
from tidemark.cluster.replicas.cache import recall_files
from tidemark.cluster.replicas.commit import Appended, append_change, dry_run_change, hold_groups, settle_commit
from tidemark.cluster.replicas.deliver import Delivered, Delivery, deliver_all, record_delivered
from tidemark.cluster.replicas.plan import Piece
from tidemark.cluster.replicas.records.change import Change, read_change
from tidemark.errors import NoQuorumError, StaleEpochError, TidemarkError
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
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.touched import watch_catalog
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store

T = TypeVar("T")

_ROUNDS = 5  # how often files are routed anew because the table was swapped, before it is left to the next load


@dataclass(frozen=True)
class Forwarded:
    """Files that a quorum of every group has, by the table of `epoch`. `commit_forwarded` commits them.

    `strangers`: node → locations that an earlier try brought there by a table that is not in force any more.
    """

    epoch: int
    operations: tuple[OperationRow, ...]
    strangers: Mapping[str, Sequence[str]]


def make_visible(
    app: App,
    receiver: ReceiverSettings,
    cluster: Cluster | None,
    store: Store,
    files: Sequence[CatalogFile],
    act: Callable[[Connection], T],
    logs: bool = False,
) -> T:
    """Bring `files` to their nodes, then run `act` in one write transaction; return its result.

    `store`: the receiver's, with the files. `act`: makes them visible, or does nothing and returns None; it runs twice or
    more, each time in another transaction, and only the last one stays. Without files it is any change of the catalog.
    `logs`: schema logs come too, of any database. Raises NoQuorumError, and nothing is visible then; StaleEpochError if the
    table was swapped again and again.
    """
    if cluster is None:
        with change_receiver(app, receiver.name, store) as connection:
            if files and app.settings.cluster is not None:  # a first table since this began: nobody forwarded the files
                table_rows.require_epoch(connection, files[0].receiver, 0)
            return act(connection)
    for left in reversed(range(_ROUNDS)):
        forwarded: Forwarded | None = None
        try:
            if files or logs:
                forwarded = forward_files(cluster, files, store)
            # CRASH WINDOW: at a quorum, nothing visible: the next load finds its landing unanswered and the files at the
            # nodes. Files that it does not need any more are swept.
            with hold_groups(cluster) as lease:
                made, change = dry_run_change(cluster, act)
                if made is not None:
                    appended = append_change(cluster, lease, change) if change else Appended()
                    # CRASH WINDOW: the record is at a quorum, nothing visible: the next commit of the group takes it back.
                    with change_receiver(app, receiver.name, store) as connection:
                        made = _act_as_recorded(connection, cluster, act, change)
                        settle_commit(connection, cluster, lease, appended)
                        if forwarded is not None:
                            commit_forwarded(connection, cluster, forwarded)
                            databases = {file.database for file in files if file.role == "source"}
                            _propose_schema_updates(connection, cluster, databases, logs)
        except StaleEpochError:
            if forwarded is not None:
                withdraw_operations(cluster, forwarded.operations)
            if not left:
                raise
            cluster.reload_table()
        except TidemarkError:
            if forwarded is not None:
                withdraw_operations(cluster, forwarded.operations)
            raise
        else:
            if made is None and forwarded is not None:
                withdraw_operations(cluster, forwarded.operations)
            return made
    raise AssertionError("unreachable")


def _act_as_recorded(connection: Connection, cluster: Cluster, act: Callable[[Connection], T], recorded: Change) -> T:
    """Run `act` for good. StaleEpochError if it changes the catalog otherwise than its records say."""
    with watch_catalog(connection) as touched:
        made = act(connection)
    if read_change(connection, cluster.receiver.name, touched) != recorded:
        raise StaleEpochError(
            "the catalog changed while this was committed", hint="run it again", subject=cluster.receiver.name
        )
    return made


def withdraw_left(cluster: Cluster | None, mine: Callable[[OperationRow], bool]) -> None:
    """Withdraw the proposed operations for which `mine` is true. The caller's lease ensures that nobody works on them."""
    if cluster is not None:
        with cluster.app.ledger.read() as connection:
            left = [row for row in operation_rows.proposed_operations(connection, cluster.receiver.name) if mine(row)]
        withdraw_operations(cluster, left)


def forward_files(cluster: Cluster, files: Sequence[CatalogFile], store: Store) -> Forwarded:
    """Bring files (with their mods) to a quorum of every group of their slots. `store`: where they are read.

    A database's first file creates it at the group of its schema. Raises NoQuorumError naming the group and each member's
    error, StaleEpochError if the table is not in force any more. The proposed operations are then withdrawn.
    """
    plan = _propose_operations(cluster, _fill_sizes(replicas_plan.pieces_of(cluster.table, files), store), files)
    # CRASH WINDOW: proposed, some at some members: the next catch-up withdraws it, the files are forwarded again.
    try:
        _bring_here(cluster, store, plan, files)
        failed = _deliver_missing(cluster, store, plan)
        if plan.find_short_groups(cluster):
            cluster.stores.forget_away()  # a member that was away may be back
            failed |= _deliver_missing(cluster, store, plan)
        short = plan.find_short_groups(cluster)
        if short:
            raise _no_quorum(cluster, short[0], failed)
    except TidemarkError:
        withdraw_operations(cluster, plan.operations)
        raise
    return Forwarded(cluster.epoch, plan.operations, replicas_plan.find_strangers(cluster.table, plan.pieces, plan.held))


def commit_forwarded(connection: Connection, cluster: Cluster, forwarded: Forwarded) -> None:
    """Commit, in the transaction that makes the files visible. StaleEpochError if another table is in force now."""
    table_rows.require_epoch(connection, cluster.receiver.name, forwarded.epoch)
    operation_rows.set_operation_state(connection, forwarded.operations, "committed", cluster.app.clock())
    for node, locations in forwarded.strangers.items():
        copy_rows.mark_to_remove(connection, cluster.receiver.name, node, locations, database_time(connection))


def _propose_schema_updates(connection: Connection, cluster: Cluster, databases: Collection[str], logs: bool) -> None:
    """Commit operations that put the databases' schemas again, as they are when a member applies them: the files may have
    added series. An operation that no member has applied yet is enough."""
    receiver, at = cluster.receiver.name, cluster.app.clock()
    applied = operation_rows.applied_versions(connection, receiver)
    if logs:
        databases = catalog_rows.known_databases(connection, receiver, catalog_rows.list_databases(connection, receiver))
    rows = []
    for database in sorted(databases):
        route = cluster.table.route_schema(database)
        last = operation_rows.last_of_database(connection, receiver, route.header, database)
        newest = max(applied.get((route.header, node), 0) for node in route.members)
        if last is None or last.kind != "create_database" or last.version <= newest:
            kind = "create_database"
            rows.append(OperationRow(receiver, route.header, route.epoch, route.slot, kind, database, at=at))
    operation_rows.set_operation_state(connection, operation_rows.propose_operations(connection, rows), "committed", at)


def withdraw_operations(cluster: Cluster, operations: Collection[OperationRow]) -> None:
    """Mark operations that will not be committed. Their files at nodes are used by the next that needs them, or swept."""
    if operations:
        with cluster.app.ledger.write() as connection:
            operation_rows.set_operation_state(connection, operations, "withdrawn", cluster.app.clock())


@dataclass
class _Plan:
    """What must be at which node. `held` and `created` grow as members end."""

    operations: tuple[OperationRow, ...]
    pieces: tuple[Piece, ...]
    held: dict[str, dict[str, str]]  # location → node → digest
    schema_bytes: Mapping[str, bytes]  # database → its schema, of databases that are new or that a node lacks
    new: frozenset[str]  # databases
    pulling: frozenset[tuple[str, int]]  # (node, slot) without schema
    created: dict[str, set[str]]  # new database → nodes that have its schema

    def list_deliveries(self, cluster: Cluster) -> list[Delivery]:
        """Return what each node still lacks."""
        table = cluster.table
        lacking = replicas_plan.lacking_pieces(table, self.pieces, self.held)
        schemas: dict[str, dict[str, bytes]] = {}
        for database in sorted(self.new):
            for node in table.route_schema(database).members:
                if node not in self.created[database]:
                    schemas.setdefault(node, {})[database] = self.schema_bytes[database]
        for node, pieces in lacking.items():
            for piece in pieces:
                if any((node, slot) in self.pulling for slot in piece.slots):
                    schemas.setdefault(node, {})[piece.database] = self.schema_bytes[piece.database]
        return [Delivery(node, schemas.get(node, {}), lacking.get(node, ())) for node in sorted({*schemas, *lacking})]

    def find_short_groups(self, cluster: Cluster) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
        """Return (members, holders, subject) of each group without a quorum."""
        table, quorum = cluster.table, cluster.quorum
        found = [
            (s.members, s.holders, s.piece.location)
            for s in replicas_plan.find_shortages(table, self.pieces, self.held, quorum)
        ]
        for database in sorted(self.new):
            members = table.route_schema(database).members
            holders = tuple(node for node in members if node in self.created[database])
            if len(holders) < min(quorum, len(members)):
                found.append((members, holders, f"the schema of {database}"))
        return found


def _fill_sizes(pieces: Sequence[Piece], store: Store) -> tuple[Piece, ...]:
    """Fill in sizes that the catalog does not have (of mods) from the store."""
    unknown = [piece.location for piece in pieces if not piece.size]
    sizes = {entry.path: entry.size for entry in store.stat_many(unknown) if entry} if unknown else {}
    return tuple(piece._replace(size=piece.size or sizes.get(piece.location, 0)) for piece in pieces)


def _propose_operations(cluster: Cluster, pieces: tuple[Piece, ...], files: Sequence[CatalogFile]) -> _Plan:
    """Propose the operations in one transaction that checks the epoch. StaleEpochError."""
    receiver, table, at = cluster.receiver.name, cluster.table, cluster.app.clock()
    databases = sorted({file.database for file in files})
    with cluster.app.ledger.write() as connection:
        table_rows.require_epoch(connection, receiver, table.epoch)
        held = replicas_plan.held_of(copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces]))
        states = move_rows.slot_states(connection, receiver)
        pulling = frozenset(key for key, (state, _) in states.items() if state == "pulling")
        known = catalog_rows.known_databases(connection, receiver, databases)
        new = frozenset(databases) - known
        late = {piece.database for piece in pieces for _, slot in pulling if slot in piece.slots}
        records = {database: schema_bytes_of(connection, receiver, database) for database in sorted(new | late)}
        rows = [_creation_operation(cluster, database, records[database], at) for database in sorted(new)]
        rows += replicas_plan.put_operations(table, receiver, pieces, held, at)
        operations = operation_rows.propose_operations(connection, rows)
    return _Plan(tuple(operations), pieces, held, records, new, pulling, {database: set() for database in new})


def _creation_operation(cluster: Cluster, database: str, record: bytes, at: float) -> OperationRow:
    from hashlib import sha256

    route = cluster.table.route_schema(database)
    digest = sha256(record).hexdigest()
    return OperationRow(
        cluster.receiver.name, route.header, route.epoch, route.slot, "create_database", database, digest, at=at
    )


def _deliver_missing(cluster: Cluster, store: Store, plan: _Plan) -> dict[str, TidemarkError]:
    """Send what is missing and record what came; return node → why some did not."""
    failed: dict[str, TidemarkError] = {}
    for delivered in deliver_all(cluster, store, plan.list_deliveries(cluster)):
        record_delivered(cluster, delivered, _done_creations(plan, delivered))
        for piece in delivered.pieces:
            plan.held.setdefault(piece.location, {})[delivered.node] = piece.sha256
        for database in delivered.schemas & plan.new:
            plan.created[database].add(delivered.node)
        if delivered.error is not None:
            failed[delivered.node] = delivered.error
    return failed


def _bring_here(cluster: Cluster, store: Store, plan: _Plan, files: Sequence[CatalogFile]) -> None:
    """Fetch files that a node lacks and the cache evicted: new deletions came for an old file."""
    lacking = {piece.location for parcel in plan.list_deliveries(cluster) for piece in parcel.pieces}
    wanted = sorted(lacking)
    gone = {place for place, entry in zip(wanted, store.stat_many(wanted), strict=True) if entry is None}
    if gone:
        recall_files(cluster, [file for file in files if {file.location, file.mods_location} & gone])


def _done_creations(plan: _Plan, delivered: Delivered) -> list[OperationRow]:
    """Return the creations of databases that a node has done."""
    return [o for o in plan.operations if o.kind == "create_database" and o.subject in delivered.schemas]


def _no_quorum(
    cluster: Cluster, short: tuple[tuple[str, ...], tuple[str, ...], str], failed: Mapping[str, TidemarkError]
) -> NoQuorumError:
    members, holders, what = short
    why = "; ".join(f"{node}: {failed[node].message}" for node in members if node in failed)
    return NoQuorumError(
        f"{len(holders)} of the {len(members)} members of group {members[0]} ({', '.join(members)}) have {what},"
        f" {min(cluster.quorum, len(members))} are needed: {why or 'the others do not have it'}",
        hint="./tidemark cluster check names what is wrong with the nodes; then run it again, nothing is lost",
        subject=members[0],
    )
