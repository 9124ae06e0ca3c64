"""Housekeeping of a receiver's nodes: who is late catches up, what nobody needs goes, the cache stays in its bounds.

A copy that the catalog does not know and nobody is bringing now (a forward that never came to its end) is to go; so is a
file at a node that no row names. Operations that every member has are forgotten. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.cluster.health.problems import whole_name
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import cache
from tidemark.cluster.replicas.catch_up import catch_up, drop_databases, remove_everywhere
from tidemark.errors import TidemarkError
from tidemark.formats.layout import MERGED
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import operations as operation_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Progress, Tick
from tidemark.stores.protocol import Store

QUIET = 86_400.0  # seconds that a file nobody names must lie unchanged at a node before it is taken for left over


class Kept(NamedTuple):
    """`evicted`: files the cache gave up, `bytes` of them; `late`: node → why it has not got all it should."""

    evicted: int = 0
    bytes: int = 0
    late: Mapping[str, str] = {}


def keep_nodes(cluster: Cluster | None, store: Store, progress: Progress) -> Kept:
    """One round. `store`: the receiver's, whose load lease the caller holds. Without a cluster it is nothing."""
    if cluster is None:
        return Kept()
    progress(Tick("nodes"))
    with cluster.app.ledger.read() as connection:
        databases = catalog_rows.list_databases(connection, cluster.receiver.name)
    drop_databases(cluster, databases)
    late = dict(catch_up(cluster, store).away)
    _drop_strays(cluster)
    late |= _remove_left_over(cluster)
    _forget_operations(cluster)
    cache.sweep_dead_fetches(store, cluster.app.clock() - cache.GRACE)
    evicted, size = cache.evict_cache(cluster, store, cluster.settings.cache_bytes)
    return Kept(evicted, size, late)


def _drop_strays(cluster: Cluster) -> None:
    """Copies of what the catalog does not have, nor a merge is about to give it."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.write() as connection:  # so that no forward proposes between the two looks
        held = copy_rows.held_somewhere(connection, receiver)
        coming = {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
        strays = held - catalog_rows.known_places(connection, receiver, held) - coming
    remove_everywhere(cluster, strays)


def _remove_left_over(cluster: Cluster) -> dict[str, str]:
    """Files at nodes that no row names: what a forward brought that died before it could write it down.

    Not while a change is open, however old they seem: clocks may jump, and a move that goes on after days finds what it
    brought before.
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
                given_up = _given_up(connection, receiver)
            known = {row.location for row in rows} | coming
            left = set(folder.list_leftovers(known, before))
            left |= {path for path in folder.list_leftovers(known) if whole_name(path) in given_up}
            with cluster.app.ledger.read() as connection:  # looked again: it takes a while to list a node
                if table_rows.open_change(connection, receiver) is not None:
                    return away  # what a migration brought and proved has no row before it is written down
                left -= copy_rows.copies_of(connection, receiver, left).keys()
                left -= {row.subject for row in operation_rows.proposed_operations(connection, receiver)}
            folder.remove_files(left)
        except TidemarkError as error:
            away[node] = error.message
    return away


def _given_up(connection: Connection, receiver: str) -> set[str]:
    """Outputs of merges that died: each has a name of its own, so nobody will ever bring them again."""
    withdrawn = {location for location in operation_rows.withdrawn_puts(connection, receiver) if MERGED in location}
    return withdrawn - catalog_rows.known_places(connection, receiver, withdrawn)


def _forget_operations(cluster: Cluster) -> None:
    """Below what every member of a group has applied nobody looks."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.write() as connection:
        applied = operation_rows.applied_versions(connection, receiver)
        for header, members in cluster.table.groups_by_header().items():
            were = {
                node for of, node in applied if of == header and node in cluster.table.ring
            }  # some may have missed what the group has no more
            upto = min(applied.get((header, node), 0) for node in {*members, *were})
            if upto:
                operation_rows.forget_operations(connection, receiver, header, upto)
