"""`cluster check --repair`: make again what a check found wrong, from sound copies.

A missing or damaged copy stops counting, then comes again from the receiver or from a node whose digest is right. Unwanted
copies are marked and swept after the grace, as after a move. A file without a record is removed only if the catalog had it
once, or if it is the part of a finished transfer. Any other stays for the operator.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from tidemark.app import App
from tidemark.cluster.health.check import ClusterCheck, check_cluster, find_lost, node_stores
from tidemark.cluster.health.problems import DOCTOR, MEND, Problem, whole_name
from tidemark.cluster.nodes.cluster import HELD, Cluster, NodeStores, hold_cluster_lease, open_cluster, require_cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas.cache import places_of, recall_files
from tidemark.cluster.replicas.deliver import Delivery, deliver_all, record_delivered, stop_counting
from tidemark.cluster.replicas.plan import Piece, pieces_of
from tidemark.cluster.replicas.promote import require_newest
from tidemark.errors import CorruptionError, NotFoundError, TidemarkError
from tidemark.ledger import journal
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Lease, Leases, assert_held, load_lease
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ReceiverSettings
from tidemark.untrusted_files import MOST_MODS


@dataclass(frozen=True)
class _Work:
    app: App
    receiver: ReceiverSettings
    cluster: Cluster
    failed: dict[tuple[str, str], TidemarkError] = field(default_factory=dict)  # (node, location or "") → the error


def repair_cluster(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, lost: str = ""
) -> ClusterCheck:
    """Check, mend, check again: the result has the problems that are left. `repaired` counts those that are mended.

    `lost`: a node whose disk was replaced by an empty folder. The folder becomes the node's, and is filled. LeaseHeldError
    while a load or a change is at work. CorruptionError if no node has the table that the ledger lost, PermanentError if
    the folder of `lost` is another's, or if the ledger is older than the nodes.
    """
    with ExitStack() as held:
        lease = held.enter_context(hold_cluster_lease(app, receiver, "repair"))
        held.enter_context(Leases(app.ledger, app.identity).hold_lease(load_lease(receiver.name), lease.holder))
        if lost:
            _begin_anew(app, receiver, lost, lease)
        before = check_cluster(app, receiver, progress)
        if before.damaged:
            with node_stores(app, receiver) as stores:
                _restore_table(app, receiver, stores)
            before = replace(check_cluster(app, receiver, progress), repaired=1)
        if not before.problems:
            return before
        cluster = held.enter_context(open_cluster(app, receiver))
        if cluster is None:
            return before
        work = _Work(app, receiver, cluster)
        _repair_problems(work, before.problems)
        after = check_cluster(app, receiver, progress)
    repaired = before.repaired + max(0, len(before.problems) - len(after.problems))
    return replace(after, problems=tuple(_with_why(work, one) for one in after.problems), repaired=repaired)


def _with_why(work: _Work, left: Problem) -> Problem:
    """Add to an unmended problem the reason: the same command again would not help."""
    if left.next != MEND:
        return left
    if left.kind == "left_over" and left.location == whole_name(left.location):
        return replace(left, next="nothing needs it: look at it, and remove it there by hand (docs/runbooks/cluster.md)")
    error = work.failed.get((left.node, left.location)) or work.failed.get((left.node, ""))
    if error is None:
        return left
    return replace(left, problem=f"{left.problem}, and cannot be made again: {error.message}", next=error.hint or DOCTOR)


def _begin_anew(app: App, receiver: ReceiverSettings, node: str, lease: Lease) -> None:
    with require_cluster(app, receiver) as cluster:  # its own stores: the lost node counts as away in them
        require_newest(cluster)
    with open_cluster(app, receiver) as cluster:
        row = cluster.nodes.get(node) if cluster is not None else None
        if cluster is None or row is None or row.state not in HELD:
            raise NotFoundError(f"{node} is no node of the cluster", hint="./tidemark cluster show", subject=node)
        folder = cluster.stores.open_folder(node)
        if folder.read_owner() is not None:  # filled before, or not lost: what is missing there is repaired by name
            folder.require_owner(cluster.identity)
            return
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            gone = [copy.location for copy in copy_rows.copies_at(connection, receiver.name, node)]
            stop_counting(connection, cluster, node, gone)
            journal.record_decision(connection, "cluster.lost", node, copies=len(gone))
            known = catalog_rows.known_databases(
                connection, receiver.name, catalog_rows.list_databases(connection, receiver.name)
            )
            schemas = {database: schema_bytes_of(connection, receiver.name, database) for database in known}
        # CRASH WINDOW: its copies do not count and the folder has no owner: the node is away, and this is done again.
        folder.claim_folder(cluster.identity)
        # CRASH WINDOW: the folder is the node's, and empty: the copies that a check misses are made again.
        folder.put_table(cluster.epoch, cluster.table_bytes)
        for database, record in schemas.items():
            if node in cluster.table.route_schema(database).members:
                folder.put_schema(database, record)


def _restore_table(app: App, receiver: ReceiverSettings, stores: NodeStores) -> None:
    """Write the ledger's damaged row again from a node. CorruptionError if no node has the table whole."""
    lost = find_lost(app, receiver, stores)
    if not lost.whole:
        raise CorruptionError(
            f"no node has partition table {lost.epoch} of {receiver.name} whole",
            hint="./tidemark ledger backup keeps copies of the ledger: put one back",
            subject=receiver.name,
        )
    node, record = next(iter(sorted(lost.whole.items())))
    values = {
        "r": receiver.name,
        "e": lost.epoch,
        "paper": base64.b64encode(record).decode(),
        "sha256": hashlib.sha256(record).hexdigest(),
    }
    with app.ledger.write() as connection:
        table_rows.require_epoch(connection, receiver.name, lost.epoch)
        sql = "UPDATE cluster_table SET paper = :paper, sha256 = :sha256 WHERE receiver = :r AND epoch = :e"
        connection.execute(sa.text(sql), values)
        journal.record_decision(connection, "cluster restore-table", receiver.name, epoch=lost.epoch, node=node)


def _repair_problems(work: _Work, problems: Sequence[Problem]) -> None:
    by_kind: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_kind[problem.kind].append(problem)
    with work.app.ledger.write() as connection:
        counts = {kind: len(found) for kind, found in by_kind.items()}
        journal.record_decision(connection, "cluster.repair", work.receiver.name, **counts)
    _repair_tables(work, {one.node for one in by_kind["table"]})
    _repair_schemas(work, by_kind["schema"])
    _repair_copies(work, by_kind["copy"])
    _give_up_strangers(work, by_kind["stranger"])
    _remove_leftovers(work, by_kind["left_over"])


def _repair_tables(work: _Work, nodes: Iterable[str]) -> None:
    """Put the table in force into these nodes' folders. A newer one there was never in force."""
    cluster = work.cluster
    for node in sorted(nodes):
        try:
            _put_table(cluster.open_folder(node), cluster)
        except TidemarkError as error:
            work.failed[node, ""] = error
            continue
        with work.app.ledger.write() as connection:
            table_rows.note_node(connection, work.receiver.name, node, cluster.epoch)


def _repair_schemas(work: _Work, problems: Sequence[Problem]) -> None:
    """Put the schemas of databases as they are now."""
    for problem in problems:
        with work.app.ledger.read() as connection:
            record = schema_bytes_of(connection, work.receiver.name, problem.location)
        try:
            work.cluster.open_folder(problem.node).put_schema(problem.location, record)
        except TidemarkError as error:
            work.failed[problem.node, problem.location] = error


def _put_table(folder: NodeFolder, cluster: Cluster) -> None:
    """Put the table. Anything in the place of a newer one, whole or not, was never in force."""
    folder.withdraw_beyond(cluster.epoch)
    folder.put_table(cluster.epoch, cluster.table_bytes)


def _repair_copies(work: _Work, problems: Sequence[Problem]) -> None:
    """Make copies again from sound ones. No copy counts before it is proved again."""
    cluster, receiver = work.cluster, work.receiver.name
    wanted: dict[str, set[str]] = defaultdict(set)
    for problem in problems:
        wanted[problem.node].add(problem.location)
    with work.app.ledger.write() as connection:
        for node, locations in wanted.items():
            # CRASH WINDOW: it lacks them and is unsynced: the next repair, catch-up or recovery makes them again.
            stop_counting(connection, cluster, node, locations)
        asked = {location for locations in wanted.values() for location in locations}
        files = [f for f in catalog_rows.live_files(connection, receiver) if {f.location, f.mods_location} & asked]
    pieces = {piece.location: piece for piece in pieces_of(cluster.table, files)}
    with work.app.receiver_store(work.receiver) as store:
        gone = _recall_for_repair(work, files)
        parcels = [Delivery(node, pieces=_pieces_at(pieces, at - gone)) for node, at in sorted(wanted.items())]
        for delivered in deliver_all(cluster, store, [parcel for parcel in parcels if parcel.pieces]):
            record_delivered(cluster, delivered)
            if delivered.error is not None:
                work.failed.setdefault((delivered.node, ""), delivered.error)


def _pieces_at(pieces: Mapping[str, Piece], locations: Iterable[str]) -> tuple[Piece, ...]:
    return tuple(pieces[location] for location in sorted(locations) if location in pieces)


def _recall_for_repair(work: _Work, files: Sequence[CatalogFile]) -> set[str]:
    """Fetch files to the receiver, each proved by its digest; return the locations that nobody has. A damaged one at the
    receiver is fetched anew from a node."""
    gone: set[str] = set()
    with work.app.receiver_store(work.receiver) as store:
        for file in files:
            places = places_of(file)
            there = {at: (entry, digest) for at, digest in places if (entry := store.stat(at)) is not None}
            bounds = {file.location: file.size, file.mods_location: MOST_MODS}
            rotten = [at for at, (entry, digest) in there.items() if entry.size > bounds[at] or store.sha256(at) != digest]
            with work.app.ledger.read() as connection:
                copies = copy_rows.copies_of(connection, work.receiver.name, rotten)
            # The receiver's copy is removed only if a node has another, proved one.
            store.remove([at for at in rotten if any(row.state == "held" for row in copies.get(at, ()))])
            try:
                recall_files(work.cluster, [file])
            except TidemarkError:
                gone |= {at for at, _ in places}
    return gone


def _give_up_strangers(work: _Work, problems: Sequence[Problem]) -> None:
    """Mark unwanted copies. They stop counting; a later sweep removes their bytes after the grace."""
    with work.app.ledger.write() as connection:
        table_rows.require_epoch(connection, work.receiver.name, work.cluster.epoch)
        for problem in problems:
            at = database_time(connection)
            copy_rows.mark_to_remove(connection, work.receiver.name, problem.node, [problem.location], at)


def _remove_leftovers(work: _Work, problems: Sequence[Problem]) -> None:
    """Remove parts of finished transfers, and files that the catalog had once and gave up."""
    by_node: dict[str, list[str]] = defaultdict(list)
    with work.app.ledger.read() as connection:
        sql = "SELECT location, mods_location FROM catalog_file WHERE receiver = :r AND state = 'reclaimed'"
        rows = connection.execute(sa.text(sql), {"r": work.receiver.name})
        over = {location for row in rows for location in row if location}
        over -= catalog_rows.locations_in_use(connection, work.receiver.name, over)
    for problem in problems:
        if problem.location != whole_name(problem.location) or problem.location in over:
            by_node[problem.node].append(problem.location)
    for node, locations in by_node.items():
        try:
            work.cluster.open_folder(node).remove_files(locations)
        except TidemarkError:
            continue  # the check that follows names them again
