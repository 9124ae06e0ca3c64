"""A member gets back into step: its files by the catalog, then its log by the master's, while loading goes on.

    recovered = recover_node(cluster, store, "n2")       # files and logs of all its groups
    recover_logs(cluster)                                # the logs alone; if all are in step, one query

What a node lacks is what the catalog wants there and no proved copy is of. It comes from the receiver's cache or from
another node, by digest; what an earlier try brought whole is not sent again. Then its logs get what the masters have behind
their ends, and it is in step by the ledger. Files that are committed meanwhile are looked for once more. One process at a
time recovers a node: lease `recover:RECEIVER:NODE`. Source: seed 003 "Data recovery flow"; seed 004; docs/decisions/0024.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.cluster.replicas.commit import hold_groups
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.deliver import Delivery, advance_applied, bring_to_node, late_members
from tidemark.cluster.replicas.members import MemberLogs
from tidemark.cluster.replicas.plan import Piece, pieces_of, wanting_nodes
from tidemark.cluster.replicas.promote import open_group, write_row
from tidemark.errors import NoQuorumError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.stores.protocol import Store

_ROUNDS = 5  # of files that were committed while others came

Member = tuple[str, str]
"""Header of a group, and a node of it."""


@dataclass(frozen=True)
class Recovered:
    """What a node got. `groups`: those whose log is in step again; `left`: those whose log is not."""

    node: str
    files: int = 0
    bytes: int = 0
    groups: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@contextmanager
def hold_node(cluster: Cluster, node: str) -> Iterator[Lease]:
    """Hold the lease under which a node gets what it lacks. LeaseHeldError while another process brings it."""
    leases = Leases(cluster.app.ledger, cluster.app.identity)
    with leases.hold_lease(f"recover:{cluster.receiver.name}:{node}", f"recover-{uuid.uuid4().hex[:12]}") as lease:
        yield lease


def recover_node(cluster: Cluster, store: Store, node: str, headers: Collection[str] | None = None) -> Recovered:
    """Bring a node back into step in its groups, or in those of `headers`. `store`: the receiver's.

    The first error of the files, once everything was tried; UnreachableError if the node is away, LeaseHeldError if another
    process recovers it, PermanentError if the nodes are ahead of the ledger.
    """
    files = size = 0
    with hold_node(cluster, node) as lease:
        for _ in range(_ROUNDS):
            pieces, holders, schemas = _find_lacking(cluster, node)
            brought = bring_to_node(cluster, store, Delivery(node, schemas, pieces), holders)
            files += len(brought.pieces)
            size += sum(piece.size for piece in brought.pieces)
            if brought.error is not None:
                raise brought.error
            if not pieces:
                break
        # CRASH WINDOW: files are there, some are recorded: those that are not are found by their digests, not sent again.
        with cluster.app.ledger.write() as connection:
            assert_held(connection, lease)
            advance_applied(connection, cluster, node)
        before = _find_fallen(cluster, node, headers)
        recover_logs(cluster, nodes=[node], headers=headers)
        left = _find_fallen(cluster, node, headers)
    return Recovered(node, files, size, tuple(sorted(before - left)), tuple(sorted(left)))


def recover_logs(
    cluster: Cluster,
    *,
    nodes: Collection[str] | None = None,
    headers: Collection[str] | None = None,
    doubted: Collection[Member] = (),
) -> None:
    """Bring members whose logs are not in step back into it: what they lack comes from the master, and a log that parted
    from the master's is set aside. `nodes`, `headers`: only these. `doubted`: in step by the ledger, and do not answer so.

    A group without a master waits for its next record. PermanentError if the nodes are ahead of the ledger.
    """

    def fallen_of(row: GroupLogRow) -> list[str]:
        if not row.epoch or not row.in_step or (headers is not None and row.header not in headers):
            return []
        in_step = {name for name in row.in_step if (row.header, name) not in doubted}
        names = cluster.table.groups_by_header().get(row.header, ())
        return [name for name in names if name not in in_step and (nodes is None or name in nodes)]

    def find_fallen() -> dict[str, list[str]]:
        return {header: names for header, row in read_rows(cluster).items() if (names := fallen_of(row))}

    if not find_fallen():
        return
    with hold_groups(cluster) as lease:
        for header, fallen in find_fallen().items():
            logs, row = MemberLogs(cluster, header, lease), read_rows(cluster)[header]
            stays = tuple(name for name in row.in_step if (header, name) not in doubted)
            if stays and stays != row.in_step:
                row = write_row(logs, row, replace(row, in_step=stays), lease)
            # CRASH WINDOW: it is unsynced by the ledger, its log is as it was: the next recovery goes on.
            try:
                row, end = open_group(logs, row, lease)
            except NoQuorumError:
                continue
            back = logs.recover(fallen, Fence(cluster.identity, row.epoch, row.master), end)
            # CRASH WINDOW: its log is whole, the ledger does not know: the next record or recovery tells.
            if back:
                write_row(logs, row, replace(row, in_step=tuple(dict.fromkeys((*row.in_step, *back)))), lease)


def read_rows(cluster: Cluster) -> dict[str, GroupLogRow]:
    """Return header → what the ledger knows of the group's log."""
    with cluster.app.ledger.read() as connection:
        return read_group_logs(connection, cluster.receiver.name)


def _find_fallen(cluster: Cluster, node: str, headers: Collection[str] | None) -> set[str]:
    """Return headers of the node's groups in which it is not in step."""
    mine = {
        h for h, names in cluster.table.groups_by_header().items() if node in names and (headers is None or h in headers)
    }
    return {header for header, row in read_rows(cluster).items() if header in mine and row.epoch and node not in row.in_step}


def _find_lacking(cluster: Cluster, node: str) -> tuple[tuple[Piece, ...], Mapping[str, Sequence[str]], Mapping[str, bytes]]:
    """Return the files that the node lacks, who has each, and the schemas that belong there. What moves to it by a change of
    the nodes comes by that."""
    receiver, table = cluster.receiver.name, cluster.table
    with cluster.app.ledger.read() as connection:
        coming = {slot for name, slot in move_rows.slot_states(connection, receiver) if name == node}
        held = {row.location: row.sha256 for row in copy_rows.copies_at(connection, receiver, node) if row.state == "held"}
        wanted = {
            piece.location: piece
            for piece in pieces_of(table, catalog_rows.live_files(connection, receiver))
            if node in wanting_nodes(table, piece) and coming.isdisjoint(piece.slots)
        }
        for late in late_members(connection, receiver, table).get(node, ()):  # retired, and still a source of a merge
            if late.kind == "put":
                piece = Piece(late.subject, late.sha256, late.size, late.slot, (late.slot,), "")
                wanted.setdefault(late.subject, piece)
        pieces = tuple(piece for at, piece in sorted(wanted.items()) if held.get(at) != piece.sha256)
        copies = copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces])
        schemas = _schemas_at(connection, cluster, node)
    holders = {at: [row.node for row in rows if row.state == "held" and row.node != node] for at, rows in copies.items()}
    return pieces, holders, schemas


def _schemas_at(connection: Connection, cluster: Cluster, node: str) -> dict[str, bytes]:
    receiver = cluster.receiver.name
    known = catalog_rows.known_databases(connection, receiver, catalog_rows.list_databases(connection, receiver))
    mine = [name for name in sorted(known) if node in cluster.table.route_schema(name).members]
    return {name: schema_bytes_of(connection, receiver, name) for name in mine}
