"""A receiver with data nodes for tests: folders of this machine, claimed, with a table in force."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.centre import Centre, d1
from tests.crash.explorer import CrashingStore, Effects
from tests.group_logs import records_at
from tests.small_files import source
from tidemark.cluster.health.watch import Watched, watch_groups
from tidemark.cluster.membership.plan import first_table
from tidemark.cluster.nodes.cluster import Cluster, open_cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.replicas import plan as deliveries
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.segment import MARK_BYTES, decode_mark
from tidemark.cluster.replicas.records.change import headers_of, read_entries
from tidemark.cluster.replicas.records.fold import fold_group, join_groups
from tidemark.cluster.slots import table as table_paper
from tidemark.cluster.slots.balance import even_slots
from tidemark.cluster.slots.hash_ring import SlotHash
from tidemark.cluster.slots.routing import slots_of_file
from tidemark.cluster.slots.table import PartitionTable
from tidemark.errors import LeaseHeldError, UnreachableError
from tidemark.ledger.cluster import group_logs
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.cluster.tables import NodeRow, TableRow
from tidemark.ledger.database import Ledger
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.progress import Tick
from tidemark.receiver.proved_files import sha256_of
from tidemark.settings.model import ClusterSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

SLOTS = 100


@dataclass
class Clustered(Centre):
    """A `Centre` whose files lie at nodes `n1`, `n2`, … below `nodes/`."""

    replicas: int = 3
    quorum: int = 2
    cache_bytes: int = 0

    def __post_init__(self) -> None:
        self.away: set[str] = set()
        super().__post_init__()

    def reopen(self) -> None:
        super().reopen()
        settings = ClusterSettings(self.name, self.replicas, self.quorum, SLOTS, cache_bytes=self.cache_bytes)
        self.app.settings = replace(self.app.settings, cluster=settings)
        self.app.opener = self.open_store

    def open_store(self, address: StoreAddress) -> Store:
        """As ever; nodes that are `away` cannot be reached."""
        if address.url.rpartition("/")[2] in self.away:
            raise UnreachableError(f"{address.url}: nobody answers")
        return open_store(address)

    def begin(self, *nodes: str) -> PartitionTable:
        """The first table, with these nodes."""
        return self.swap(first_table(nodes, self.replicas, SLOTS, SlotHash.FULL, even_slots))

    def swap(self, table: PartitionTable) -> PartitionTable:
        """Put a table in force; whoever is new in it is claimed and serves."""
        with self.app.ledger.write() as connection:
            known = {row.node for row in cluster_rows.nodes_of_receiver(connection, self.name)}
            change = cluster_rows.cluster_identity(connection, self.name) or uuid.uuid4().hex
            row = TableRow(self.name, table.epoch, table_paper.encode_table(table), change, self.app.clock())
            cluster_rows.swap_table(connection, row)
            for node in table.ring:
                if node.name not in known:
                    store = f"file://{self.node(node.name)}"
                    joined = NodeRow(self.name, node.name, node.identifier, store, state="serving", epoch=table.epoch)
                    cluster_rows.put_node(connection, joined)
        for node in table.ring:
            folder = NodeFolder(LocalStore(str(self.node(node.name))), node.name)
            if node.name not in known:
                folder.claim_folder(change)
            folder.put_table(table.epoch, row.table_bytes)
        return table

    def node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def at(self, name: str) -> list[str]:
        """Files of the catalog that lie at a node."""
        place = self.node(name) / "data"
        return sorted(p.relative_to(place.parent).as_posix() for p in place.rglob("*") if p.is_file())

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        with open_cluster(self.app, self.receiver) as cluster:
            assert cluster is not None
            yield cluster

    def empty_cache(self) -> None:
        """The receiver gave everything up."""
        shutil.rmtree(self.root / "data", ignore_errors=True)

    def copies(self) -> dict[str, set[str]]:
        """Location → nodes that hold it, as the ledger says."""
        found: dict[str, set[str]] = {}
        for location, node in self.sql("SELECT location, node FROM node_copy WHERE state = 'held'"):
            found.setdefault(location, set()).add(node)
        return found


class LoadedCentre(Clustered):
    """Its files are of one group: all lie in one partition of one database."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begin("n1", "n2", "n3")
        self.site = self.sender()

    @property
    def header(self) -> str:
        """Of the group that has the files."""
        with self.app.ledger.read() as connection:
            file = catalog_rows.live_files(connection, self.name)[0]
        with self.cluster() as cluster:
            (header,) = headers_of(cluster.table, file)
        return header

    def land(self, *numbers: int) -> None:
        for number in numbers:
            self.site.land({source(number): d1((number, number * 10))})


def watch_at_once(centre: Clustered) -> list[Watched]:
    """Two schedulers run a round each on the same ledger: neither acts before both have heard the nodes and noted it."""
    both = threading.Barrier(2)

    def meet(tick: Tick) -> None:
        if tick.phase == "watch":
            both.wait(60)

    def run_round(_number: int) -> Watched:
        ledger = Ledger(centre.app.ledger.url)
        app = replace(centre.app, ledger=ledger)
        try:
            while True:
                try:
                    return watch_groups(app, centre.receiver, meet)
                except LeaseHeldError:  # the other round is being noted
                    time.sleep(0.01)
        finally:
            ledger.close()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run_round, range(2)))


def one_of_two_schedulers_acts(centre: LoadedCentre) -> None:
    """Masters go away one after another while two schedulers watch: a group that loses its master gets one new epoch, by one
    of them, and no member ever obeyed two masters of an epoch."""
    for turn in range(3):
        with centre.app.ledger.read() as connection:
            before = group_logs.read_group_logs(connection, centre.name)
        header = centre.header
        centre.away = {before[header].master}
        acted = [watched for _ in range(2) for watched in watch_at_once(centre) if watched.masters]
        with centre.app.ledger.read() as connection:
            after = group_logs.read_group_logs(connection, centre.name)
        given = [(h, master) for watched in acted for h, master in watched.masters.items()]
        assert header in dict(given) and len(given) == len(dict(given)), given
        assert {h: row.master for h, row in after.items() if row.epoch > before[h].epoch} == dict(given)
        assert all(row.epoch <= before[h].epoch + 1 for h, row in after.items())
        centre.land(10 + turn)
        assert centre.load().exit_code == 0
        centre.away = set()
        while any(watched.files or watched.recovered or watched.home for watched in watch_at_once(centre)):
            continue
    masters: dict[tuple[str, int], set[str]] = {}
    for file in centre.folder.glob("nodes/*/.tidemark/log/of-*/*.log"):
        for fence in _fences_in(file.read_bytes()):
            masters.setdefault((file.parent.name.partition(".")[0], fence.epoch), set()).add(fence.master)
    assert len(masters) > 3 and all(len(names) == 1 for names in masters.values()), masters
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def _fences_in(data: bytes) -> Iterator[Fence]:
    """Whom the members obeyed, by all marks of a log's file."""
    for at in range(len(data) - MARK_BYTES + 1):
        mark = decode_mark(data[at : at + MARK_BYTES]) if data[at : at + 4] == b"TMLM" else None
        if mark is not None:
            yield mark.fence


def swapping_once(centre: Clustered, table: PartitionTable) -> Callable[[StoreAddress], Store]:
    """An opener that swaps the table before the first change at a node."""
    left = [table]

    class Swapping(Effects):
        def point(self, name: str) -> None:
            if left:
                centre.swap(left.pop())

    def opener(address: StoreAddress) -> Store:
        store = open_store(address)
        return CrashingStore(store, Swapping(), "node") if "/nodes/" in address.url else store

    return opener


def everything_is_held(centre: Clustered, table: PartitionTable | None = None) -> None:
    """Every live file lies at all members of its slots' groups, with its digest, and nothing else lies there."""
    with centre.app.ledger.read() as connection:
        files = catalog_rows.live_files(connection, centre.name)
    if table is None:
        with centre.cluster() as cluster:
            table = cluster.table
    pieces = deliveries.pieces_of(table, files)
    copies = centre.copies()
    assert copies == {piece.location: set(deliveries.wanting_nodes(table, piece)) for piece in pieces}
    for piece in pieces:
        for node in copies[piece.location]:
            assert sha256_of(centre.node(node), piece.location) == piece.sha256
    for node in table.ring.names:
        assert centre.at(node) == sorted(at for at, nodes in copies.items() if node in nodes)


def logs_tell_the_catalog(centre: Clustered) -> None:
    """The logs of all groups tell together what the ledger's catalog has, and members in step have the same records."""
    with centre.app.ledger.read() as connection:
        rows = group_logs.read_group_logs(connection, centre.name)
        known = {entry.key: entry for entry in read_entries(connection, catalog_rows.live_files(connection, centre.name))}
        owners = {row.device: row for row in refusal_rows.all_owners(connection, centre.name)}
        widths = catalog_rows.table_widths(connection, centre.name)
        sites = landing_rows.read_sites(connection)
        databases = sorted({entry.file.database for entry in known.values()})
        series = [row for name in databases for row in schema_rows.series_of_database(connection, centre.name, name)]
    with centre.cluster() as cluster:
        slots = partial(slots_of_file, cluster.table)
    groups = {}
    for header, row in rows.items():
        logs = [records_at(LocalStore(str(centre.node(name))), header) for name in row.in_step]
        assert logs and all(log == logs[0] for log in logs)
        assert not row.operation and row.settled == (logs[0][-1].head.position.epoch, logs[0][-1].head.position.version)
        groups[header] = fold_group(logs[0], slots)
    told = join_groups(groups, slots)
    assert told.files == known
    live = {device.device for entry in known.values() for device in entry.devices}
    assert {device: row for device, row in told.owners.items() if device in live} == {
        d: owners[d] for d in live & owners.keys()
    }
    assert {key: width.tags for key, width in told.widths.items()} == widths
    assert set(databases) <= told.databases
    assert {(row.site_id, row.series): replace(row, receiver="") for row in series} == {
        key: row for key, row in told.series.items() if row.database_name in databases
    }
    assert told.sites.items() <= sites.items() and {entry.file.site_id for entry in known.values()} <= told.sites.keys()
