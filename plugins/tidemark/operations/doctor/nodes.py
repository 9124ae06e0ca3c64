"""The checks of a data node, and of the IoTDB of a receiver.

A node: reached, host key, right to write, space, owner of the folder, its table. A server: reached, login, version, unit of
time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.app import App
from tidemark.cluster.nodes.cluster import open_cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.nodes.formats import NodeClaim
from tidemark.cluster.replicas.promote import require_newest
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import CorruptionError, RetryableError, TidemarkError, UsageError
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.ledger.database import Ledger, is_unmade
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import known_migrations, schema_version
from tidemark.operations.doctor.stores import Check, Clock, Opener, check_store, check_writable, fail_check, pass_check
from tidemark.settings.model import ClusterSettings, ReceiverSettings, Settings
from tidemark.stores.protocol import Store, StoreAddress


@dataclass(frozen=True)
class KnownCluster:
    """The ledger's records of the cluster; epoch 0 and no identity before `cluster init`."""

    identity: str = ""
    epoch: int = 0
    rows: Mapping[str, NodeRow] = field(default_factory=dict)
    table: PartitionTable | None = None  # None also if it is damaged: `cluster check` reports that
    left: frozenset[str] = frozenset()  # former members


def known_cluster(settings: Settings) -> KnownCluster:
    """Read the cluster from a ledger of this version, if there is one; creates none. Raises the errors of opening it."""
    if settings.cluster is None:
        return KnownCluster()
    receiver = settings.cluster_receiver
    if is_unmade(settings.ledger.url, settings.root):
        return KnownCluster()
    ledger = Ledger(settings.ledger.url, settings.root)
    try:
        if schema_version(ledger) != len(known_migrations()):
            return KnownCluster()
        with ledger.read() as connection:
            nodes = table_rows.nodes_of_receiver(connection, receiver)
            rows = {row.node: row for row in nodes if row.state != "left"}
            left = frozenset(row.node for row in nodes if row.state == "left")
            identity = table_rows.cluster_identity(connection, receiver)
            with contextlib.suppress(CorruptionError):
                table = table_rows.current_table(connection, receiver)
                decoded = decode_table(table.table_bytes) if table is not None else None
                return KnownCluster(identity, table.epoch if table is not None else 0, rows, decoded, left)
            return KnownCluster(identity, table_rows.current_epoch(connection, receiver), rows, left=left)
    finally:
        ledger.close()


def check_cluster(settings: ClusterSettings, known: KnownCluster) -> list[Check]:
    """Check the settings that the table fixes for the life of the cluster."""
    table = known.table
    if table is None:
        return []
    pairs = {
        "replicas": (settings.replicas, table.replicas),
        "slots": (settings.slots, table.slots),
        "hash": (settings.hash, table.hash.value),
    }
    apart = [f"{key} = {said}, the table has {has}" for key, (said, has) in pairs.items() if said != has]
    if not apart:
        return [pass_check("cluster", f"{table.replicas} copies, {table.slots:,} slots, epoch {table.epoch}")]
    told = UsageError(f"[cluster] {'; '.join(apart)}: that is for the life of a cluster")
    return [fail_check("cluster", told, "write what the table has into the settings: nothing else is in force")]


def check_newest(settings: Settings, known: KnownCluster, opener: Opener) -> list[Check]:
    """Check that no group's log at the nodes is ahead of the ledger. Nodes that do not answer tell nothing."""
    if known.table is None:
        return []
    ledger = Ledger(settings.ledger.url, settings.root)
    try:
        app = App(settings, ledger, this_process(), opener=opener)
        with open_cluster(app, app.receiver_settings(settings.cluster_receiver)) as cluster:
            require_newest(cluster)
        return [pass_check("cluster: ledger", "no group at the nodes is ahead of it")]
    except TidemarkError as trouble:
        return [fail_check("cluster: ledger", trouble)]
    finally:
        ledger.close()


def node_addresses(settings: Settings, known: KnownCluster) -> dict[str, StoreAddress]:
    """Return every node by name: of the settings, and those that joined by the command line."""
    found = {name: StoreAddress(row.store, row.host_key, row.key_file) for name, row in known.rows.items()}
    return found | {name: StoreAddress.of(node) for name, node in settings.nodes.items()}


def check_node(name: str, address: StoreAddress, known: KnownCluster, opener: Opener, clock: Clock) -> Sequence[Check]:
    """Check one node. Nothing of it is changed but a small file that is written and removed."""
    label = f"node {name}"

    def check_node_store(store: Store) -> Iterator[Check]:
        yield from check_writable(label, store, clock)
        yield from _check_folder(label, NodeFolder(store, name), known)

    return check_store(label, address, opener, check_node_store)


def _check_folder(label: str, folder: NodeFolder, known: KnownCluster) -> Iterator[Check]:
    try:
        if folder.name not in known.rows:
            owner = folder.read_owner()
            if owner is None:
                yield pass_check(f"{label}: folder", "nobody's yet; ./tidemark cluster init or add claims it")
                return
            if folder.name in known.left and owner == NodeClaim(known.identity, folder.name):
                yield pass_check(f"{label}: folder", "it has left the cluster; what it had goes when its grace is over")
                return
        folder.require_owner(known.identity)
        yield pass_check(f"{label}: folder", f"of this cluster ({known.identity})")
        table = folder.read_table()
    except TidemarkError as trouble:
        yield fail_check(f"{label}: folder", trouble)
        return
    theirs = table[0] if table else 0
    said = f"epoch {theirs}, as the ledger's" if theirs == known.epoch else f"epoch {theirs}, the ledger's is {known.epoch}"
    if theirs < known.epoch:
        yield fail_check(f"{label}: table", RetryableError(said), "./tidemark cluster check")
    else:
        yield pass_check(f"{label}: table", said)


def check_iotdb(receiver: ReceiverSettings, settings: Settings) -> Sequence[Check]:
    """Check an IoTDB server. Whether it sees the receiver's folder shows only at the first LOAD."""
    from tidemark.receiver.iotdb.load import server_of
    from tidemark.receiver.iotdb.server import Connected

    name = f"receiver {receiver.name}: iotdb"
    try:
        if not receiver.store.startswith("file://"):
            return [pass_check(name, "not used here: a remote receiver is loaded by the Tidemark on its own machine")]
        with Connected(server_of(receiver)) as server:
            version, unit = server.version, server.unit
    except TidemarkError as trouble:
        return [fail_check(name, trouble)]
    sites = {settings.sites[link.site] for link in settings.links.values() if link.receiver == receiver.name}
    others = sorted(site.name for site in sites if unit and site.time_unit != unit)
    told = f"{receiver.iotdb}: IoTDB {version.text}, times in {unit or 'a unit it does not say'}"
    if others:
        mistaken = TidemarkError(f"{told}; sites with another unit cannot be loaded into it: {', '.join(others)}")
        return [fail_check(name, mistaken, "set time_unit of those sites, or timestamp_precision of a server without data")]
    return [pass_check(name, f"{told}; files are LOADed from {receiver.store}")]
