"""Copies that nobody counts on any more: after the grace their bytes go, then their rows; a node that left is let go last.

A copy goes only where the table in force wants none, and of a live file only while every node that is to hold it does: looked
at again before each removal. The grace is counted by the database's clock, from when the copy was given up.
Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.cluster.routing import wanted_copies
from tidemark.errors import PermanentError, UnreachableError
from tidemark.flows.cluster_nodes import Cluster
from tidemark.ledger import cluster_rows, copy_rows
from tidemark.ledger.copy_rows import CopyRow
from tidemark.ledger.database import now
from tidemark.ledger.leases import Lease, check_in
from tidemark.ledger.live_rows import live_files

_HOUR = 3600.0
_AT_ONCE = 512  # files removed, then forgotten


@dataclass(frozen=True)
class Swept:
    """`files`, `bytes`: gone by this call; `waiting`: files whose grace lasts, or whose node is away."""

    files: int = 0
    bytes: int = 0
    waiting: int = 0


def sweep(cluster: Cluster, lease: Lease) -> Swept:
    """Remove what is due at every node that can be reached. `lease`: of the receiver's cluster, held by the caller."""
    files = size = waiting = 0
    due, later = _due(cluster)
    for name, rows in due.items():
        left = cluster.nodes[name].state == "left"
        gone = sum(1 for _ in ())
        try:
            for some in _chunks(rows):
                gone += _remove(cluster, lease, name, some)
            files, size = files + gone, size + sum(row.size for row in rows)
            if left and not later.get(name):
                _let_go(cluster, name)
        except UnreachableError:
            waiting += len(rows) - gone
        except PermanentError:
            if not left:
                raise
            _forget(cluster, lease, name, rows)  # released already, or given to somebody else: nothing of ours is there
    return Swept(files, size, waiting + sum(later.values()))
