"""A change of the nodes as it is asked for, and what it needs to begin: the settings, the cluster, the row of who joins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.errors import NotFoundError, UsageError
from tidemark.flows.app import App
from tidemark.flows.cluster_nodes import Cluster, cluster_settings, node_row
from tidemark.ledger.cluster_rows import NodeRow
from tidemark.settings import ClusterSettings, ReceiverSettings


@dataclass(frozen=True)
class Wanted:
    """The change asked for. `kind`: add | remove | rebalance. `url`, `host_key`, `key` (a private key file): of a node that
    joins, as in `[nodes.NAME]`; empty where the settings have the node. `request`: the caller's id of this very request, ""
    for none: asked again under it after it was done, it is answered, not done again."""

    kind: str
    node: str = ""
    url: str = ""
    host_key: str = ""
    key: str = ""
    request: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.node}".rstrip()


@contextmanager
def require_cluster(app: App, receiver: ReceiverSettings) -> Iterator[Cluster]:
    cluster = Cluster.open(app, receiver)
    if cluster is None:
        raise NotFoundError(f"{receiver.name} has no nodes yet", hint="./tidemark cluster init", subject=receiver.name)
    with cluster:
        yield cluster


def require_settings(app: App, receiver: ReceiverSettings) -> ClusterSettings:
    settings = cluster_settings(app, receiver)
    if settings is None:
        raise UsageError(
            f"the settings have no [cluster] for {receiver.name}",
            hint='[cluster] receiver = "…" and [nodes.NAME] store = "…" in tidemark.toml',
            subject=receiver.name,
        )
    return settings


def joining_row(app: App, receiver: ReceiverSettings, wanted: Wanted) -> NodeRow:
    """The row of the node that joins. UsageError where nobody says where it is, or it is the receiver's own folder."""
    row = node_row(app, receiver, wanted.node, wanted.url, wanted.host_key, wanted.key)
    if row.store.rstrip("/") == receiver.store.rstrip("/"):
        raise UsageError(
            f"{row.store} is the receiver's own folder: node {wanted.node} needs one of its own",
            hint="name another folder",
            subject=wanted.node,
        )
    return row
