"""Bring files (and before them their schema) to nodes, record the copies, tell who lacks some.

A file that is already at the node with the right bytes is not sent again: an earlier process died before it could record the
copy. Different machines work at once, nodes of one machine one after another. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.plan import Piece, applied_upto, due_operations, held_of, pieces_of, put_operations
from tidemark.cluster.slots.hash_ring import Group
from tidemark.cluster.slots.table import PartitionTable
from tidemark.errors import NotFoundError, SourceVanishedError, TidemarkError, UnreachableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import operations as operation_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.sender.bandwidth import SharedLine, place_on
from tidemark.stores.protocol import Entry, Range, Store
from tidemark.transfer import engine
from tidemark.transfer.engine import SendItem, SendOptions, Sent
from tidemark.untrusted_files import MOST_MODS

MACHINES = 8  # at most so many at once
# A member that stays away catches up later: the others do not wait long for it.
_RETRIES = 3
_OPTIONS = SendOptions.of_cluster(None, _RETRIES)


@contextmanager
def share_line(cluster: Cluster, holder: str) -> Iterator[SendOptions]:
    """Yield the options of what a node gets that missed it: within the bandwidth of the cluster and of its receiver.

    `holder`: who sends. Raises what the ledger raises.
    """
    receiver, most = cluster.receiver, cluster.settings.bandwidth
    line = SharedLine(cluster.app.ledger, receiver.name, receiver.bandwidth)
    with place_on(line, holder, cluster.app.identity, most) as place:
        yield SendOptions.of_cluster(cluster.settings, _RETRIES, place)


@dataclass(frozen=True)
class Delivery:
    """Work for one node: schemas by database first, then files."""

    node: str
    schemas: Mapping[str, bytes] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Delivered:
    """Outcome of a delivery. `schemas`, `pieces`: proved at the node now. `error`: the first reason why some are missing."""

    node: str
    schemas: frozenset[str]
    pieces: tuple[Piece, ...]
    error: TidemarkError | None = None


def deliver_all(cluster: Cluster, source: Store, parcels: Collection[Delivery]) -> Iterator[Delivered]:
    """Deliver every parcel, and yield each outcome as it ends. `source`: the store that files are read from."""
    machines: dict[str, list[Delivery]] = {}
    for parcel in parcels:
        machines.setdefault(cluster.stores.machine_of(parcel.node), []).append(parcel)
    if len(machines) < 2:
        yield from (deliver_to_node(cluster, source, parcel) for mine in machines.values() for parcel in mine)
        return

    def one_machine(mine: Sequence[Delivery]) -> list[Delivered]:
        return [deliver_to_node(cluster, source, parcel) for parcel in mine]

    with ThreadPoolExecutor(min(MACHINES, len(machines))) as pool:
        for finished in as_completed([pool.submit(one_machine, mine) for mine in machines.values()]):
            yield from finished.result()


def deliver_to_node(cluster: Cluster, source: Store, parcel: Delivery, options: SendOptions = _OPTIONS) -> Delivered:
    """Deliver to one node. A TidemarkError is returned in the outcome, not raised."""
    schemas: set[str] = set()
    done: dict[str, Piece] = {}
    error: TidemarkError | None = None
    try:
        folder = cluster.open_folder(parcel.node)
        for database, record in parcel.schemas.items():
            folder.put_schema(database, record)
            schemas.add(database)
        for piece, failed in _send_pieces(source, folder.store, parcel.pieces, options):
            if failed is None:
                done[piece.location] = piece
            error = error or failed
    except TidemarkError as broken:
        error = broken
    if isinstance(error, UnreachableError):
        cluster.stores.mark_away(parcel.node, error)
    return Delivered(parcel.node, frozenset(schemas), tuple(done.values()), error)


def bring_to_node(
    cluster: Cluster,
    store: Store,
    parcel: Delivery,
    holders: Mapping[str, Sequence[str]],
    *,
    options: SendOptions = _OPTIONS,
) -> Delivered:
    """Deliver to one node from the receiver's `store`, or from another node for files missing there; record what came.

    `holders`: location → nodes that hold it. `error` is None only if everything came.
    """
    left = {piece.location: piece for piece in parcel.pieces}
    schemas = dict(parcel.schemas)
    error: TidemarkError | None = None
    for name in ("", *sorted({name for names in holders.values() for name in names if name != parcel.node})):
        pieces = [piece for piece in left.values() if not name or name in holders.get(piece.location, ())]
        if name and not pieces:
            continue
        try:
            source = cluster.open_store(name) if name else store
            here = source.stat_many([piece.location for piece in pieces])
        except TidemarkError as away:
            error = away
            continue
        there = tuple(piece for piece, entry in zip(pieces, here, strict=True) if entry is not None)
        if there or schemas:
            delivered = deliver_to_node(cluster, source, Delivery(parcel.node, schemas, there), options)
            error = delivered.error or error
            record_delivered(cluster, delivered)
            left = {at: piece for at, piece in left.items() if at not in {done.location for done in delivered.pieces}}
            schemas = {} if delivered.schemas >= schemas.keys() else schemas
    if left and error is None:
        lacking = min(left)
        error = NotFoundError(f"nobody has {lacking} any more", hint="./tidemark verify --repair", subject=lacking)
    came = tuple(piece for piece in parcel.pieces if piece.location not in left)
    told = frozenset() if schemas else frozenset(parcel.schemas)
    return Delivered(parcel.node, told, came, error if left or schemas else None)


def _send_pieces(
    source: Store, target: Store, pieces: Sequence[Piece], options: SendOptions
) -> Iterator[tuple[Piece, TidemarkError | None]]:
    """Yield each piece with None once it is proved at the target, else with its error."""
    there = target.stat_many([piece.location for piece in pieces])
    here = source.stat_many([piece.location for piece in pieces])
    known = _find_present(target, pieces, there)
    by_path: dict[str, Piece] = {}
    items = []
    for piece, entry in zip(pieces, here, strict=True):
        if piece.location in known:
            yield piece._replace(size=known[piece.location]), None
        elif entry is None or not _fits(piece, entry):
            yield piece, _unsound_error(source, piece, entry)
        else:
            by_path[piece.location] = piece._replace(size=entry.size)
            items.append(SendItem(piece.location, piece.location, entry.size, piece.sha256))
    # CRASH WINDOW: some are sealed at the node without a row: the next delivery finds them by digest, or a sweep removes
    # them.
    for outcome in engine.send_files(source, target, items, options) if items else ():
        yield by_path[outcome.item.target_path], None if isinstance(outcome, Sent) else outcome.error


def _find_present(target: Store, pieces: Sequence[Piece], there: Sequence[Entry | None]) -> dict[str, int]:
    """Return location → size of the pieces that are at the target already with the right bytes."""
    found = [(p, e.size) for p, e in zip(pieces, there, strict=True) if e is not None and _fits(p, e)]
    digests = target.digest_ranges([Range(piece.location) for piece, _ in found]) if found else ()
    return {p.location: size for (p, size), digest in zip(found, digests, strict=True) if digest == p.sha256}


def _fits(piece: Piece, entry: Entry) -> bool:
    """Return whether the length is right. The size of mods is unknown, and none is longer than can be read."""
    return entry.size == piece.size or (not piece.size and entry.size <= MOST_MODS)


def _unsound_error(source: Store, piece: Piece, entry: Entry | None) -> TidemarkError:
    if entry is None:
        return SourceVanishedError(f"{piece.location} is gone from {source.url}", subject=piece.location)
    return NotFoundError(
        f"{piece.location} has {entry.size} bytes at {source.url}, {piece.size or f'at most {MOST_MODS}'} are recorded",
        hint="./tidemark verify --repair",
        subject=piece.location,
    )


def record_delivered(cluster: Cluster, delivered: Delivered, done: Collection[OperationRow] = ()) -> None:
    """Record a node's new copies and its `applied` versions. `done`: operations on databases that it has done."""
    if not delivered.pieces and not done:
        return
    receiver, at = cluster.receiver.name, cluster.app.clock()
    rows = [CopyRow(receiver, delivered.node, p.location, p.home, p.sha256, p.size, "held", at) for p in delivered.pieces]
    with cluster.app.ledger.write() as connection:
        copy_rows.put_copies(connection, rows)
        advance_applied(connection, cluster, delivered.node, done)


def advance_applied(connection: Connection, cluster: Cluster, node: str, done: Collection[OperationRow] = ()) -> None:
    """Record, for each group of the node, up to which version it has everything. Runs in the caller's transaction.

    `done`: operations on databases that it has done. If the table is not in force, nothing is recorded. A group that the
    node left is forgotten once the node needs nothing of it.
    """
    receiver, table = cluster.receiver.name, cluster.table
    if table_rows.current_epoch(connection, receiver) != table.epoch:
        return
    applied = operation_rows.applied_versions(connection, receiver)
    finished = {(operation.header, operation.version) for operation in done}
    for header in logs_of(table, applied).get(node, ()):
        before = applied.get((header, node), 0)
        operations = operation_rows.operations_above(connection, receiver, header, before)
        settled = _make_settled_check(connection, cluster, node, operations, finished)
        upto = applied_upto(operations, before, settled)
        if upto > before:
            operation_rows.put_applied(connection, receiver, header, node, upto, cluster.app.clock())
        if (not operations or upto == operations[-1].version) and node not in members_of_header(table, header):
            operation_rows.forget_member(connection, receiver, header, node)


def logs_of(table: PartitionTable, applied: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return node → headers of the groups whose operations it needs: it is a member, or was one and missed something.

    `applied`: the (header, node) pairs that the ledger has a version for.
    """
    pairs = {(header, node) for header, group in table.groups_by_header().items() for node in group}
    found: dict[str, list[str]] = {}
    for header, node in sorted(pairs.union(applied)):
        if node in table.ring:
            found.setdefault(node, []).append(header)
    return found


def members_of_header(table: PartitionTable, header: str) -> Group:
    """Return the members of the header's group; none if the header left."""
    return table.ring.group_of_header(header, table.replicas) if header in table.ring else ()


def _make_settled_check(
    connection: Connection,
    cluster: Cluster,
    node: str,
    operations: Sequence[OperationRow],
    finished: Collection[tuple[str, int]],
) -> Callable[[OperationRow], bool]:
    """Make a check whether an operation's outcome is at the node, or is not (any more) wanted there."""
    receiver, table = cluster.receiver.name, cluster.table
    files = [operation.subject for operation in operations if not operation.kind.endswith("_database")]
    copies = copy_rows.copies_of(connection, receiver, files)
    here = {location: row for location, rows in copies.items() for row in rows if row.node == node}
    known = catalog_rows.locations_in_use(connection, receiver, set(files) - set(here))

    def settled(operation: OperationRow) -> bool:
        if (operation.header, operation.version) in finished or node not in table.group_of(operation.slot):
            return True
        row = here.get(operation.subject)
        if operation.kind == "remove":
            return row is None
        if operation.kind != "put":
            return False
        if row is None:
            return operation.state == "committed" and operation.subject not in known  # no reader needs it any more
        return row.state == "held" and row.sha256 == operation.sha256

    return settled


def stop_counting(connection: Connection, cluster: Cluster, node: str, locations: Collection[str]) -> None:
    """Let copies at a node count no more. It lacks these files from now on, and is unsynced in their groups, until they are
    proved there again. Runs in the caller's transaction."""
    receiver, table, at = cluster.receiver.name, cluster.table, cluster.app.clock()
    copy_rows.forget_copies(connection, receiver, node, locations)
    wanted = set(locations)
    pieces = [piece for piece in pieces_of(table, catalog_rows.live_files(connection, receiver)) if piece.location in wanted]
    held = held_of(copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces]))
    made = operation_rows.propose_operations(connection, put_operations(table, receiver, pieces, held, at))
    operation_rows.set_operation_state(connection, made, "committed", at)


def doubt_copies(connection: Connection, cluster: Cluster, header: str, names: Collection[str]) -> None:
    """Let the group's files at members whose logs were put back count no more: their folders may be older too. A recovery
    compares them by digest, and sends what is not there. Runs in the caller's transaction.

    A file that nobody else has goes on counting, or nobody would read it: a check proves it.
    """
    table = cluster.table
    pieces = pieces_of(table, catalog_rows.live_files(connection, cluster.receiver.name))
    mine = [piece.location for piece in pieces if any(table.owners[slot] == header for slot in piece.slots)]
    copies = copy_rows.copies_of(connection, cluster.receiver.name, mine)
    held = {at: {row.node for row in rows if row.state == "held"} for at, rows in copies.items()}
    for name in names:
        doubtful = sorted(at for at, nodes in held.items() if name in nodes and nodes - set(names))
        if doubtful:
            stop_counting(connection, cluster, name, doubtful)


def lacking_members(connection: Connection, receiver: str, table: PartitionTable) -> dict[tuple[str, str], int]:
    """Return (header, member) → how many committed files of the group it lacks. Such a member is unsynced."""
    late = late_members(connection, receiver, table)
    return Counter((operation.header, node) for node, rows in late.items() for operation in rows if operation.kind == "put")


def late_members(connection: Connection, receiver: str, table: PartitionTable) -> dict[str, list[OperationRow]]:
    """Return node → committed operations it lacks: files without a proved copy there, databases not put there.

    It compares with the copies, not with the recorded `applied` version: a member that got its slots by moving has their
    files before that is recorded. Files that a slot's move still brings are left out. The ledger is not sure of databases:
    to know, compare with the node's folder (`catch_up.as_now`, `catch_up.schema_digest`).
    """
    newest, applied = (
        operation_rows.committed_versions(connection, receiver),
        operation_rows.applied_versions(connection, receiver),
    )
    states = None
    found: dict[str, list[OperationRow]] = defaultdict(list)
    for header, members in table.groups_by_header().items():
        for node in members:
            before = applied.get((header, node), 0)
            if before >= newest.get(header, 0):
                continue
            states = move_rows.slot_states(connection, receiver) if states is None else states
            waiting = due_operations(operation_rows.operations_above(connection, receiver, header, before))
            here = [o for o in waiting if table.owners[o.slot] == header and (node, o.slot) not in states]
            found[node] += _find_missing(connection, receiver, node, here)
    return {node: rows for node, rows in found.items() if rows}


def _find_missing(connection: Connection, receiver: str, node: str, operations: list[OperationRow]) -> list[OperationRow]:
    files = [operation.subject for operation in operations if operation.kind == "put"]
    copies = copy_rows.copies_of(connection, receiver, files)
    known = catalog_rows.locations_in_use(connection, receiver, files)

    def lacks(operation: OperationRow) -> bool:
        if operation.kind == "put":
            proved = ((row.node, row.state, row.sha256) for row in copies.get(operation.subject, ()))
            return operation.subject in known and (node, "held", operation.sha256) not in proved
        return operation.kind.endswith("_database")

    return [operation for operation in operations if lacks(operation)]
