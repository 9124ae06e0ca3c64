"""A receiver's cluster, opened for one flow: the table in force, the nodes, and their folders over stores that stay open.

    with open_cluster(app, receiver) as cluster:      # None: the receiver alone has its data
        if cluster is not None: cluster.open_folder("n1").compute_digests(…)

Source: docs/decisions/0015.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from tidemark.app import App
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.nodes.stores import NodeStores, node_address, node_row
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import CorruptionError, LeaseHeldError, NotFoundError, UnreachableError, UsageError
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow
from tidemark.ledger.leases import Lease, Leases
from tidemark.settings.model import ClusterSettings, ReceiverSettings
from tidemark.stores.protocol import Store

__all__ = ["HELD", "Cluster", "NodeStores", "cluster_settings", "node_address", "node_row", "open_cluster"]

HELD = ("serving", "leaving")
"""States of nodes whose copies are read."""


def cluster_settings(app: App, receiver: ReceiverSettings) -> ClusterSettings | None:
    """Return the `[cluster]` settings if they belong to this receiver: it is named there, or no receiver is."""
    settings = app.settings.cluster
    if settings is None or settings.receiver not in ("", receiver.name):
        return None
    return settings


@dataclass
class Cluster:
    """The nodes of one receiver. `table` is as of `open` or the last `reload_table`: check its epoch again to commit."""

    app: App
    receiver: ReceiverSettings
    settings: ClusterSettings
    identity: str  # of the cluster: a node's folder is claimed for it
    table: PartitionTable
    table_bytes: bytes  # the table as bytes, as stored in the ledger and at nodes
    nodes: Mapping[str, NodeRow]
    stores: NodeStores = field(repr=False)
    kept: dict[tuple[str, str], object] = field(default_factory=dict, repr=False)
    """Group and node → the end of the log there when this process saw it last: a hint, which the node compares."""
    looked: dict[str, Store] = field(default_factory=dict, repr=False)
    """Node → its store when this process saw last that the files there are those that the ledger has."""
    _proved: dict[str, Store] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, app: App, receiver: ReceiverSettings) -> Cluster | None:
        """Open the cluster. None if the settings have no `[cluster]` of this receiver, or the ledger has no table yet.

        CorruptionError for a damaged table. A node is connected only when it is first used.
        """
        settings = cluster_settings(app, receiver)
        if settings is None:
            return None
        found = _read_in_force(app, receiver.name)
        if found is None:
            return None
        return cls(
            app, receiver, settings, found.identity, found.table, found.table_bytes, found.nodes, _make_stores(app, found)
        )

    @property
    def epoch(self) -> int:
        return self.table.epoch

    @property
    def quorum(self) -> int:
        """Members of a group that must have an operation before it is committed."""
        return min(self.settings.quorum, self.table.replicas)

    def open_store(self, node: str) -> Store:
        """Return the node's store, checked once to be its folder. UnreachableError names the node, also if its disk is not
        mounted. PermanentError for the folder of another node."""
        return self.open_folder(node).store

    def open_folder(self, node: str) -> NodeFolder:
        """Return the node's folder. Errors as `open_store`."""
        folder = self.stores.open_folder(node)
        if self._proved.get(node) is not folder.store:  # a store opened anew may be another disk
            try:
                folder.require_owner(self.identity)
            except UnreachableError as away:
                raise self.stores.mark_away(node, away) from away
            self._proved[node] = folder.store
        return folder

    def reload_table(self) -> Cluster:
        """Read the newest table and nodes; nodes that were away are tried again. Returns itself."""
        found = _read_in_force(self.app, self.receiver.name)
        if found is None:
            raise NotFoundError(
                f"{self.receiver.name} has no partition table any more",
                hint="./tidemark cluster init",
                subject=self.receiver.name,
            )
        self.identity, self.table, self.table_bytes, self.nodes = found.identity, found.table, found.table_bytes, found.nodes
        for row in found.nodes.values():
            self.stores.add_node(row)
        self.stores.forget_away()
        return self

    def close(self) -> None:
        self.stores.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextmanager
def open_cluster(app: App, receiver: ReceiverSettings) -> Iterator[Cluster | None]:
    """Run `Cluster.open`, and close the cluster at the end."""
    cluster = Cluster.open(app, receiver)
    try:
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()


@dataclass(frozen=True)
class _InForce:
    identity: str
    table: PartitionTable
    table_bytes: bytes
    nodes: Mapping[str, NodeRow]


def _read_in_force(app: App, receiver: str) -> _InForce | None:
    """Read the table in force in one transaction. Its bytes date from the swap: slots moved since leave `moving`."""
    with app.ledger.read() as connection:
        row = table_rows.current_table(connection, receiver)
        if row is None:
            return None
        table = decode_table(row.table_bytes)
        if table.epoch != row.epoch:
            raise CorruptionError(
                f"the ledger has the partition table of epoch {table.epoch} as that of {row.epoch}",
                hint="./tidemark cluster check names a node that has it whole",
                subject=receiver,
            )
        if table.moving:
            left = {move.slot for move in move_rows.moves_of_epoch(connection, receiver, row.epoch, open_only=True)}
            table = table.with_moved(set(table.moving) - left)
        rows = table_rows.nodes_of_receiver(connection, receiver)
        identity = table_rows.cluster_identity(connection, receiver)
    return _InForce(identity, table, row.table_bytes, {node.node: node for node in rows})


def _make_stores(app: App, found: _InForce) -> NodeStores:
    return NodeStores(app, found.nodes.values())


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


@contextmanager
def hold_cluster_lease(app: App, receiver: ReceiverSettings, what: str) -> Iterator[Lease]:
    """Hold the lease under which nodes and slots change. LeaseHeldError names the running change and its holder."""
    holder = f"{what.replace(' ', '-')}-{uuid.uuid4().hex[:12]}"
    with ExitStack() as held:
        try:
            lease = held.enter_context(Leases(app.ledger, app.identity).hold_lease(f"cluster:{receiver.name}", holder))
        except LeaseHeldError as busy:
            with app.ledger.read() as connection:
                change = table_rows.open_change(connection, receiver.name)
            going_on = f"{describe_change(change)}: " if change is not None else ""
            raise LeaseHeldError(
                f"{going_on}{busy.message}",
                hint="wait for it: ./tidemark cluster show tells what goes on and how far it is",
                subject=busy.subject,
            ) from busy
        yield lease


def command_of_change(change: str) -> str:
    """Return the command that goes on with a change, given in words as `str(ChangeRow)`."""
    return "./tidemark replica replace" if change.startswith("replace ") else f"./tidemark cluster {change}"


def describe_change(change: ChangeRow) -> str:
    """Describe a change in words: what it is, who began it, when, and its state."""
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(change.begun))
    return f"“{change}” of {change.actor}, begun {begun}, is {change.state}"
