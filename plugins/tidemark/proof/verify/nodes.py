"""Compare the nodes' copies of the catalog's files byte by byte: part of `verify`, with a cluster.

Every copy is read at its node and compared by digest. A different or missing copy is reported with its node. A repair copies
the file from the receiver or from a node whose copy is right. A file that fewer nodes hold than a quorum is reported too. A
late member is no difference: it catches up. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import plan
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.cluster.replicas.deliver import Delivery, bring_to_node
from tidemark.cluster.replicas.plan import Piece
from tidemark.errors import TidemarkError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.progress import Progress, Tick
from tidemark.proof.verify.differences import DAMAGED, MISSING, Difference
from tidemark.stores.protocol import Store

_AT_ONCE = 512  # digests per request


@dataclass
class NodesChecked:
    """`differences` with what was done about each. `checked`: copies that were read. `away`: (node, error)."""

    checked: int = 0
    differences: list[Difference] = field(default_factory=list)
    away: list[tuple[str, TidemarkError]] = field(default_factory=list)


@dataclass(frozen=True)
class _NodeCopies:
    """What to compare: pieces of live files, their sites, their holders by the ledger, the moving slots."""

    pieces: Mapping[str, Piece]
    sites: Mapping[str, str]  # location → site id
    copies: Mapping[str, tuple[str, ...]]  # location → nodes
    sizes: Mapping[str, int]  # location → bytes of its copies, as recorded
    moving: frozenset[int]  # slots


def verify_nodes(
    cluster: Cluster, names: Mapping[str, str], sites: Collection[str], store: Store | None, progress: Progress
) -> NodesChecked:
    """Compare the copies of these sites' files (ids). `names`: site id → name. `store`: the receiver's, to repair; the
    caller then holds its load lease. Nodes that cannot be asked are reported, the rest goes on."""
    found = NodesChecked()
    if store is not None:
        catch_up(cluster, store)
    look = _read_copies(cluster, sites)
    good: dict[str, list[str]] = {location: [] for location in look.pieces}
    wrong: list[tuple[str, str, str]] = []
    for node in sorted({node for nodes in look.copies.values() for node in nodes}):
        progress(Tick(f"verify node {node}"))
        mine = {location: look.sizes[location] for location, nodes in look.copies.items() if node in nodes}
        try:
            for location, digest in _read_digests(cluster, node, mine):
                found.checked += 1
                if digest == look.pieces[location].sha256:
                    good[location].append(node)
                else:
                    wrong.append((node, location, _describe_mismatch(node, digest, look.pieces[location].sha256)))
        except TidemarkError as away:  # any error: the other nodes are verified
            found.away.append((node, away))
    for node, location, why in wrong:
        told = Difference(DAMAGED, names.get(look.sites[location], look.sites[location]), location, f"node {node}", why)
        found.differences.append(_repair_copy(cluster, store, told, node, look.pieces[location], good))
    found.differences += _find_shortages(cluster, look, names, store, good)
    return found


def _read_copies(cluster: Cluster, sites: Collection[str]) -> _NodeCopies:
    receiver = cluster.receiver.name
    with cluster.app.ledger.read() as connection:
        files = [file for file in catalog_rows.live_files(connection, receiver) if file.site_id in sites]
        pieces = {piece.location: piece for piece in plan.pieces_of(cluster.table, files)}
        copies = copy_rows.copies_of(connection, receiver, pieces)
        epoch = table_rows.current_epoch(connection, receiver)
        moves = move_rows.moves_of_epoch(
            connection, receiver, epoch, open_only=True
        )  # no file records the moves of the first table
    held = {at: tuple(row.node for row in copies.get(at, ()) if row.state == "held") for at in pieces}
    sizes = {at: max((row.size for row in copies.get(at, ()) if row.state == "held"), default=0) for at in pieces}
    return _NodeCopies(pieces, dict(_pair_with_sites(files)), held, sizes, frozenset(move.slot for move in moves))


def _pair_with_sites(files: Collection[CatalogFile]) -> Iterator[tuple[str, str]]:
    for file in files:
        yield file.location, file.site_id
        yield file.mods_location, file.site_id


def _read_digests(cluster: Cluster, node: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, str | int | None]]:
    folder, locations = cluster.open_folder(node), list(sizes)
    for start in range(0, len(locations), _AT_ONCE):
        yield from folder.compute_digests({at: sizes[at] for at in locations[start : start + _AT_ONCE]}).items()


def _describe_mismatch(node: str, digest: str | int | None, recorded: str) -> str:
    if digest is None:
        return f"it is gone from node {node}"
    if isinstance(digest, int):
        return f"at node {node} it has {digest} bytes, not as many as were recorded"
    return f"at node {node} it has digest {digest[:12]}…, {recorded[:12]}… was recorded"


def _find_shortages(
    cluster: Cluster, look: _NodeCopies, names: Mapping[str, str], store: Store | None, good: Mapping[str, list[str]]
) -> Iterator[Difference]:
    """Yield files of which fewer than a quorum hold a copy, by the ledger. Moving slots are no difference."""
    held = {at: dict.fromkeys(nodes, look.pieces[at].sha256) for at, nodes in look.copies.items()}
    still = [piece for piece in look.pieces.values() if look.moving.isdisjoint(piece.slots)]
    for piece in still:
        for short in plan.find_shortages(cluster.table, [piece], held, cluster.quorum):
            why = f"{len(short.holders)} of the group {', '.join(short.members)} hold it, {cluster.quorum} are to"
            told = Difference(
                MISSING, names.get(look.sites[piece.location], ""), piece.location, f"node {short.header}", why
            )
            for node in short.members:
                if node not in short.holders:
                    told = _repair_copy(cluster, store, told, node, piece, good)
            yield told


def _repair_copy(
    cluster: Cluster, store: Store | None, told: Difference, node: str, piece: Piece, good: Mapping[str, list[str]]
) -> Difference:
    """Repair a copy if `store` is given. Return the difference with what was done; `repaired` is "" if nothing was."""
    following = "./tidemark verify --repair" if store is None else "./tidemark cluster check"
    if store is not None:
        brought = bring_to_node(cluster, store, Delivery(node, {}, (piece,)), {piece.location: good[piece.location]})
        if brought.error is None:
            good[piece.location].append(node)
            return Difference(
                told.what, told.site, told.path, told.where, told.detail, "copied again from where it is right"
            )
    return Difference(told.what, told.site, told.path, told.where, told.detail, told.repaired, following)
