"""A receiver and its data nodes in memory over a real ledger: files come by the doors of loading, nodes by those of change.

`stores` outlive processes; `app()` is a new process. `audit` looks at what must hold at every instant, `settled` at what
must hold once nothing moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, identity
from tests.memory_store import MemoryStore
from tidemark.app import App
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.nodes.cluster import Cluster, open_cluster
from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.slots.routing import members_of
from tidemark.cluster.slots.table import decode_table
from tidemark.errors import UnreachableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.database import Ledger
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.progress import ignore_progress
from tidemark.proof.verify.nodes import verify_nodes
from tidemark.settings.model import ClusterSettings, LedgerSettings, NodeSettings, ReceiverSettings, Settings
from tidemark.stores.protocol import Store, StoreAddress

SITE = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
RECEIVER = "centre"


@dataclass
class MovingWorld:
    """`names`: nodes of the first table; `others`: nodes of the settings that may join."""

    folder: Path
    names: tuple[str, ...] = ("n1", "n2", "n3")
    others: tuple[str, ...] = ("n4", "n5")
    cluster: ClusterSettings = field(
        default_factory=lambda: ClusterSettings(replicas=2, quorum=1, slots=8, grace_hours=0, cache_bytes=0)
    )
    stores: dict[str, MemoryStore] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    epoch: int = 0  # the highest seen by `audit`
    before_open: Callable[[str], None] = lambda _name: None

    def __post_init__(self) -> None:
        for name in (RECEIVER, *self.names, *self.others):
            self.stores.setdefault(name, MemoryStore(name))
        self.url = f"sqlite:///{self.folder / 'ledger.db'}"
        ledger = Ledger(self.url)
        migrate_ledger(ledger)
        ledger.close()

    @property
    def receiver(self) -> ReceiverSettings:
        return ReceiverSettings(RECEIVER, f"memory://{RECEIVER}")

    def settings(self, *nodes: str) -> Settings:
        return Settings(
            path=self.folder / "tidemark.toml",
            ledger=LedgerSettings(self.url),
            receivers={RECEIVER: self.receiver},
            cluster=self.cluster,
            nodes={name: NodeSettings(name, f"memory://{name}") for name in nodes or (*self.names, *self.others)},
        )

    @contextmanager
    def app(self, effects: Effects | None = None, nodes: tuple[str, ...] = ()) -> Iterator[App]:
        """A process; with `effects` one that may die at each of them. `nodes`: of its settings, all by default."""
        ledger = Ledger(self.url) if effects is None else CrashingLedger(self.url, effects)

        def opener(address: StoreAddress) -> Store:
            name = address.url.removeprefix("memory://")
            self.before_open(name)
            if name in self.away:
                raise UnreachableError(f"{address.url} does not answer")
            return self.stores[name] if effects is None else CrashingStore(self.stores[name], effects, name)

        try:
            yield App(self.settings(*nodes), ledger, identity(), opener=opener)
        finally:
            ledger.close()

    def put(self, database: str, first: int, last: int | None = None, mods: str = "", content: str = "") -> CatalogFile:
        """A file of partitions `first` to `last` becomes visible, by loading's doors."""
        with self.app() as app:
            return put(app, self.receiver, database, first, first if last is None else last, mods, content)

    def sql(self, query: str) -> list[tuple[object, ...]]:
        with self.app() as app, app.ledger.read() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]

    def open(self, app: App) -> Cluster:
        found = Cluster.open(app, self.receiver)
        assert found is not None
        return found

    # what must hold

    def audit(self) -> None:
        """At every instant, whoever died where: one table in force, each slot one group of serving nodes; every held copy is
        there, byte for byte; every live file is readable from a node whose copies are read, or lies at the receiver yet."""
        with self.app() as app, app.ledger.read() as connection:
            files = catalog_rows.live_files(connection, RECEIVER)
            row = cluster_rows.current_table(connection, RECEIVER)
            nodes = {node.node: node for node in cluster_rows.nodes_of_receiver(connection, RECEIVER)}
            copies = copy_rows.copies_of(connection, RECEIVER, [at for file in files for at in _places(file)])
            moves = move_rows.moves_of_epoch(connection, RECEIVER, row.epoch) if row else []
            told = move_rows.acknowledged_nodes(connection, RECEIVER, row.epoch) if row else {}
        if row is None:
            return
        assert row.epoch >= self.epoch, "an epoch went back"
        self.epoch = row.epoch
        table = decode_table(row.table_bytes)
        assert (table.epoch, table.slots, len(table.owners)) == (row.epoch, self.cluster.slots, self.cluster.slots)
        for slot in range(table.slots):
            group = table.group_of(slot)
            assert len(set(group)) == table.replicas and all(nodes[name].state == "serving" for name in group)
        for file in files:
            for location, sha256 in _places(file).items():
                held = [copy for copy in copies.get(location, ()) if copy.state == "held"]
                assert held or any(not move.old and move.state == "moving" for move in moves), f"nobody holds {location}"
                for copy in held:
                    assert self.digest(copy.node, location) == sha256 == copy.sha256, f"{copy.node} lost {location}"
                read = [copy.node for copy in held if nodes[copy.node].state in ("serving", "leaving")]
                assert read or self.digest(RECEIVER, location) == sha256, f"{location} cannot be read"
        for move in moves:
            if move.state != "moving":
                assert told[move.slot] >= set(move.new), f"slot {move.slot} was let go before all acknowledged"

    def settled(self) -> None:
        """Once nothing moves: the members of each file's groups hold it and nobody else, and no trace of the way is left."""
        self.audit()
        with self.app() as app, app.ledger.read() as connection:
            assert cluster_rows.open_change(connection, RECEIVER) is None
            row = cluster_rows.current_table(connection, RECEIVER)
            assert row is not None
            table = decode_table(row.table_bytes)
            assert move_rows.slot_states(connection, RECEIVER) == {}
            assert {move.state for move in move_rows.moves_of_epoch(connection, RECEIVER, row.epoch)} <= {"done"}
            nodes = cluster_rows.nodes_of_receiver(connection, RECEIVER)
            wanted: dict[str, set[str]] = {name: set() for name in self.stores if name != RECEIVER}
            for file in catalog_rows.live_files(connection, RECEIVER):
                for name in members_of(table, file):
                    wanted[name] |= set(_places(file))
            for name, locations in wanted.items():
                rows = copy_rows.copies_at(connection, RECEIVER, name)
                assert {copy.location for copy in rows} == locations and {copy.state for copy in rows} <= {"held"}
                assert {e.path for e in self.stores[name].list_files(["data"]).entries} == locations, name
                assert not self.stores[name].list_files([".tidemark/snapshot"]).entries
        serving = {node.node for node in nodes if node.state == "serving"}
        assert serving == set(table.ring.names)
        for node in nodes:
            assert node.state in ("serving", "left")
            if node.node in serving:
                assert node.epoch == table.epoch
                assert max(map(int, self.stores[node.node].list_folder(".tidemark/table"))) == table.epoch
            else:
                assert not self.stores[node.node].list_files([""]).entries, f"{node.node} left and has something"

    def proved(self) -> None:
        """At every instant with all nodes there: neither `cluster check` nor `verify` calls wrong what merely goes on."""
        with self.app() as app, open_cluster(app, self.receiver) as cluster:
            if cluster is not None:
                assert check_cluster(app, self.receiver).problems == ()
                assert verify_nodes(cluster, {SITE: "plant1"}, [SITE], None, ignore_progress).differences == []

    def digest(self, name: str, location: str) -> str | None:
        store = self.stores[name]
        return store.sha256(location) if store.stat(location) is not None else None


def put(app: App, receiver: ReceiverSettings, database: str, first: int, last: int, mods: str, content: str) -> CatalogFile:
    """As `load` does it: bytes at the receiver, then to the nodes, then visible."""
    data = (content or f"{database} {first} {last}").encode() * 3
    sha256, mods_sha256 = _sha(data), _sha(mods.encode())
    location = f"data/{database}/{first}/{SITE[:8]}-{sha256[:12]}-1.tsfile"
    file = CatalogFile(
        receiver=receiver.name,
        site_id=SITE,
        role="source",
        path=f"data/sequence/{database}/{first}-{sha256[:8]}.tsfile",
        generation=1,
        database=database,
        model="tree",
        format=3,
        partition_from=first,
        partition_to=last,
        location=location,
        sha256=sha256,
        size=len(data),
        mods_location=f"{location}.{mods_sha256[:12]}.mods" if mods else "",
        mods_sha256=mods_sha256 if mods else "",
        points=1,
        rank=(0, 1, 0, 0, 1),
        created=1.0,
    )
    with app.receiver_store(receiver) as store:
        for path, content_ in ((file.location, data), (file.mods_location, mods.encode())):
            if path:
                store.publish(path, content_)
        cluster = Cluster.open(app, receiver)
        make_visible(app, receiver, cluster, store, [file], lambda rows: catalog_rows.add_file(rows, file, []))
    return file


def _places(file: CatalogFile) -> dict[str, str]:
    found = {file.location: file.sha256}
    return found | {file.mods_location: file.mods_sha256} if file.mods_location else found


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
