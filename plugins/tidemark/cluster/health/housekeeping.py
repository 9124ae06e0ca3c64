"""Housekeeping of a receiver's nodes: late nodes catch up, unneeded files are removed, the cache stays in its bounds.

Logs of groups tell of all their slots afterwards, if enough members answer; long ones are begun anew by what they tell.

A copy is removed if the catalog does not know it and nobody is bringing it (its forward died). A file at a node without a
row is removed too. Operations that every member has are forgotten. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tidemark.cluster.health.problems import whole_name
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import cache
from tidemark.cluster.replicas.catch_up import catch_up, drop_databases, remove_everywhere
from tidemark.cluster.replicas.commit import record_slots, retain_logs
from tidemark.errors import NoQuorumError, TidemarkError
from tidemark.formats.layout import MERGED
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import operations as operation_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.stores.protocol import Store

QUIET = 86_400.0  # seconds that a file without a row must be unchanged before it counts as left over


class Kept(NamedTuple):
    """Result of a round. `evicted`: files evicted from the cache, of `bytes` in all; `late`: node → why it is still late."""

    evicted: int = 0
    bytes: int = 0
    late: Mapping[str, str] = {}


def keep_nodes(cluster: Cluster | None, store: Store) -> Kept:
    """Run one round. `store`: the receiver's, whose load lease the caller holds. Without a cluster nothing is done.

    The caller knows that the ledger is not older than the nodes (`promote.require_newest`): else what it does not know would
    go as left over.
    """
    if cluster is None:
        return Kept()
    with cluster.app.ledger.read() as connection:
        databases = catalog_rows.list_databases(connection, cluster.receiver.name)
    drop_databases(cluster, databases)
    with suppress(NoQuorumError):  # groups that lack members get it in a later round
        record_slots(cluster)
    late = dict(catch_up(cluster, store).away)
    _drop_strays(cluster)
    late |= _remove_left_over(cluster)
    _forget_operations(cluster)
    retain_logs(cluster)
    cache.sweep_dead_fetches(store, cluster.app.clock() - cache.GRACE)
    evicted, size = cache.evict_cache(cluster, store, cluster.settings.cache_bytes)
    return Kept(evicted, size, late)


def _drop_strays(cluster: Cluster) -> None:
    """Remove copies of files that the catalog does not have and no merge is about to add."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.write() as connection:  # so that no forward proposes between the two reads
        held = copy_rows.held_somewhere(connection, receiver)
        coming = {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
        strays = held - catalog_rows.known_places(connection, receiver, held) - coming
    remove_everywhere(cluster, strays)


def _remove_left_over(cluster: Cluster) -> dict[str, str]:
    """Remove files at nodes that have no row: a forward brought them and died before it could record them.

    An output of a merge goes at once. Each has a name of its own and an operation before its first byte, so nobody brings
    one without an operation again. A ledger that was made anew from its nodes knows nothing of a dead merge.

    Nothing is removed while a change is open, even if the files seem old: clocks may jump, and a move that continues after
    days finds the files it brought before.
    """
    receiver = cluster.receiver.name
    away: dict[str, str] = {}
    before = cluster.app.clock() - QUIET
    for node in sorted(cluster.nodes):
        if cluster.nodes[node].state != "serving":
            continue
        try:
            folder = cluster.open_folder(node)
            with cluster.app.ledger.read() as connection:
                rows = copy_rows.copies_at(connection, receiver, node)
                coming = {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
            known = {row.location for row in rows} | coming
            left = set(folder.list_leftovers(known, before))
            merged = {path for path in folder.list_leftovers(known) if MERGED in path.rpartition("/")[2]}
            with cluster.app.ledger.read() as connection:  # read again: listing a node takes a while
                live = catalog_rows.known_places(connection, receiver, {whole_name(path) for path in merged})
                coming = {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
                left |= {path for path in merged if whole_name(path) not in live | coming}
                if table_rows.open_change(connection, receiver) is not None:
                    return away  # a migration records a file only after it brought and proved it
                left -= copy_rows.copies_of(connection, receiver, left).keys()
                left -= coming
            folder.remove_files(left)
            folder.remove_half_written(before)
        except TidemarkError as error:
            away[node] = error.message
    return away


def _forget_operations(cluster: Cluster) -> None:
    """Forget the operations that every member of a group has applied: nobody reads them."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.write() as connection:
        applied = operation_rows.applied_versions(connection, receiver)
        for header, members in cluster.table.groups_by_header().items():
            were = {
                node for of, node in applied if of == header and node in cluster.table.ring
            }  # a former member may have missed some
            upto = min(applied.get((header, node), 0) for node in {*members, *were})
            if upto:
                operation_rows.forget_operations(connection, receiver, header, upto)
