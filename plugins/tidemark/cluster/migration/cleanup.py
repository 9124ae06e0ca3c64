"""Remove copies that were given up: after the grace their bytes, then their rows. A node that left is released last.

A copy is removed only if the table in force wants none there. One of a live file is removed only while every node that must
hold the file does, under the lease of table changes. The grace counts by the database's clock, from when the copy was given
up. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.slots.routing import members_of
from tidemark.errors import CorruptionError, PermanentError, UnreachableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import operations as operation_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.recoveries import is_source_pinned
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows

_HOUR = 3600.0
_WAITED_FOR = 7 * 86_400.0  # seconds that a node which left may be away before its copies are forgotten
_AT_ONCE = 512  # files removed, then forgotten, at a time


@dataclass(frozen=True)
class Swept:
    """Result of a sweep. `files`, `bytes`: removed; `waiting`: files within their grace, or at a node that is away."""

    files: int = 0
    bytes: int = 0
    waiting: int = 0


def sweep_given_up_copies(cluster: Cluster, lease: Lease) -> Swept:
    """Remove what is due at every reachable node. `lease`: of the receiver's cluster, held by the caller.

    While a recovery is at work nothing is removed: it may read there.
    """
    cluster.reload_table()
    _restart_future_grace(cluster, lease)
    with cluster.app.ledger.read() as connection:
        going = copy_rows.copies_to_remove(connection, cluster.receiver.name)
        leases = Leases(cluster.app.ledger, cluster.app.identity)
        pinned = is_source_pinned(connection, leases, cluster.receiver.name)
        due = _find_due(connection, cluster, going) if going and not pinned else []
    gone: list[CopyRow] = []
    by_node: dict[str, list[CopyRow]] = defaultdict(list)
    for row in due:
        by_node[row.node].append(row)
    for node, rows in by_node.items():
        gone += _remove_at(cluster, lease, node, rows)
    waiting = {row.node for row in set(going) - set(gone)}
    for left in cluster.nodes.values():
        if left.state == "left" and left.epoch and left.node not in waiting:
            _release_node(cluster, lease, left)
    return Swept(len(gone), sum(row.size for row in gone), len(going) - len(gone))


def _restart_future_grace(cluster: Cluster, lease: Lease) -> None:
    """Restart the grace of copies given up while the database's clock was ahead: they would stay until that time."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.read() as connection:
        at = database_time(connection)
        ahead = [row for row in copy_rows.copies_to_remove(connection, receiver) if row.at > at]
    if ahead:
        with cluster.app.ledger.write() as connection:
            assert_held(connection, lease)
            copy_rows.begin_grace_anew(connection, receiver, at)


def _find_due(connection: Connection, cluster: Cluster, going: Sequence[CopyRow]) -> list[CopyRow]:
    """Return copies past their grace that are not wanted there, and whose file all its nodes hold if it is live."""
    receiver = cluster.receiver.name
    before = database_time(connection) - cluster.settings.grace_hours * _HOUR
    old = [row for row in going if row.at <= before]
    asked = {row.location for row in old}
    wanted = _wanted_holders(connection, cluster, asked)
    copies = copy_rows.copies_of(connection, receiver, wanted)
    held = {at: {row.node for row in rows if row.state == "held"} for at, rows in copies.items()}
    return [
        row
        for row in old
        if row.location not in wanted
        or (row.node not in wanted[row.location] and wanted[row.location] <= held.get(row.location, set()))
    ]


def _wanted_holders(connection: Connection, cluster: Cluster, locations: set[str]) -> Mapping[str, set[str]]:
    """Return, for each of these locations that is live, the nodes that must hold it, also while its slots move."""
    found: dict[str, set[str]] = {}
    for file in catalog_rows.live_files(connection, cluster.receiver.name):
        for location in {file.location, file.mods_location} & locations:
            found.setdefault(location, set()).update(members_of(cluster.table, file))
    return found


def _remove_at(cluster: Cluster, lease: Lease, node: str, rows: Sequence[CopyRow]) -> list[CopyRow]:
    """Remove files at a node and their rows; return the rows."""
    gone: list[CopyRow] = []
    try:
        folder = cluster.open_folder(node)
        for start in range(0, len(rows), _AT_ONCE):
            some = _still_going(cluster, lease, rows[start : start + _AT_ONCE])
            folder.remove_files([row.location for row in some])
            # CRASH WINDOW: files removed, their rows still `going`: removed again, which changes nothing.
            _forget_copies(cluster, lease, node, some)
            gone += some
    except UnreachableError:
        if not _is_given_up(cluster, node):
            return gone
        _forget_copies(cluster, lease, node, rows)
        return list(rows)
    except CorruptionError:  # the owner is unknown: it waits, `cluster check` names it
        return gone
    except PermanentError:
        if cluster.nodes[node].state != "left":
            raise
        _forget_copies(cluster, lease, node, rows)  # released, or another's by now: no file of ours is there
        return list(rows)
    return gone


def _is_given_up(cluster: Cluster, node: str) -> bool:
    """Return whether a node left so long ago that its copies no more wait for it."""
    row = cluster.nodes[node]
    with cluster.app.ledger.read() as connection:
        return row.state == "left" and row.at + cluster.settings.grace_hours * _HOUR + _WAITED_FOR < database_time(
            connection
        )


def _release_node(cluster: Cluster, lease: Lease, row: NodeRow) -> None:
    """Release the folder of a node that left and holds nothing of ours, and record that it has no table."""
    try:
        cluster.open_folder(row.node).release_folder(cluster.identity)
    except UnreachableError:
        if not _is_given_up(cluster, row.node):
            return
    except CorruptionError:
        return
    except PermanentError:
        pass  # released, or another's by now
    # CRASH WINDOW: released, the ledger does not know: found without an owner, and recorded.
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        table_rows.put_node(connection, replace(row, epoch=0))


def _still_going(cluster: Cluster, lease: Lease, rows: Sequence[CopyRow]) -> list[CopyRow]:
    """Check right before bytes are removed: a process that slept while another went on fails here. Files that a load brought
    again, or is bringing, are left out."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        table_rows.require_epoch(connection, receiver, cluster.epoch)
        coming = {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
        known = copy_rows.copies_of(connection, receiver, [row.location for row in rows])
    return [row for row in rows if row.location not in coming and row in known.get(row.location, ())]


def _forget_copies(cluster: Cluster, lease: Lease, node: str, rows: Sequence[CopyRow]) -> None:
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        copy_rows.forget_copies(connection, cluster.receiver.name, node, [row.location for row in rows])
