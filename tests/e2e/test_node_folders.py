"""Nodes' folders over real OpenSSH servers: with python3, with POSIX tools only, with SFTP only; all as one cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.test_stores_conformance import KeptConnection
from tests.services.sshd import FarEnd, Sshd
from tests.unit.cluster.node_folder_conformance import NodeFolderConformance
from tests.unit.stores.store_conformance import FolderPlace, Place
from tidemark.app import open_app
from tidemark.cluster.nodes.cluster import NodeStores, node_row, open_cluster
from tidemark.cluster.slots.balance import first_owners
from tidemark.cluster.slots.hash_ring import Node, identifier_of
from tidemark.cluster.slots.table import begin_table, encode_table
from tidemark.errors import HostKeyError, UnreachableError
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.cluster.tables import TableRow
from tidemark.settings.model import ClusterSettings, NodeSettings, ReceiverSettings, Settings
from tidemark.stores.open_sftp import login_of, open_on
from tidemark.stores.protocol import Store, StoreAddress, Tier
from tidemark.stores.ssh.login import Limits

pytestmark = [pytest.mark.real("sshd"), pytest.mark.full]


@pytest.fixture(scope="module")
def logins() -> Iterator[dict[int, KeptConnection]]:
    kept: dict[int, KeptConnection] = {}
    yield kept
    for connection in kept.values():
        connection.end()


class FarNode(NodeFolderConformance):
    tier: Tier

    @pytest.fixture
    def connection(self, server: Sshd, logins: dict[int, KeptConnection]) -> KeptConnection:
        if server.port not in logins:
            login, _ = login_of(StoreAddress(server.url(), server.host_key, str(server.key)))
            logins[server.port] = KeptConnection(login, Limits())
        return logins[server.port]

    @pytest.fixture
    def root(self, server: Sshd) -> Path:
        return server.new_folder("node")

    @pytest.fixture
    def store(self, server: Sshd, connection: KeptConnection, root: Path) -> Iterator[Store]:
        store = open_on(connection, urlsplit(server.url(root)).path)
        assert store.properties.tier is self.tier
        yield store
        store.close()

    @pytest.fixture
    def place(self, root: Path) -> Place:
        return FolderPlace(root)


class TestPython(FarNode):
    tier = Tier.PYTHON

    @pytest.fixture
    def server(self, sshd: Sshd) -> Sshd:
        return sshd


class TestPosix(FarNode):
    tier = Tier.POSIX

    @pytest.fixture
    def server(self, sshd_posix: Sshd) -> Sshd:
        return sshd_posix


class TestSftpOnly(FarNode):
    tier = Tier.SFTP

    @pytest.fixture
    def server(self, sshd_sftp_only: Sshd) -> Sshd:
        return sshd_sftp_only


class Cluster3:
    """A cluster whose three nodes are three servers, one of each kind; `n3` is the test's own."""

    def __init__(self, folder: Path, servers: dict[str, Sshd]) -> None:
        self.places = {name: server.new_folder(name) for name, server in servers.items()}
        nodes = {
            name: NodeSettings(name, server.url(self.places[name]), server.host_key, key=str(server.key))
            for name, server in servers.items()
        }
        self.receiver = ReceiverSettings("centre", f"file://{folder}/centre")
        settings = Settings(
            path=folder / "tidemark.toml",
            receivers={"centre": self.receiver},
            cluster=ClusterSettings(replicas=2, quorum=1, slots=12),
            nodes=nodes,
        )
        self.app = open_app(settings)
        names = sorted(nodes)
        table = begin_table([Node(identifier_of(name), name) for name in names], 2, first_owners(12, names))
        rows = [node_row(self.app, self.receiver, name) for name in names]
        with NodeStores(self.app, rows) as stores, self.app.ledger.write() as connection:
            for row in rows:
                stores.open_folder(row.node).claim_folder("c1")
                cluster_rows.put_node(connection, replace(row, state="serving"))
            cluster_rows.swap_table(connection, TableRow("centre", 1, encode_table(table), "c1", 1.0))


@pytest.fixture
def over_ssh(
    tmp_path: Path, sshd: Sshd, sshd_posix: Sshd, start_sshd: Callable[..., Sshd]
) -> Iterator[tuple[Cluster3, Sshd]]:
    third = start_sshd(FarEnd.SFTP)
    made = Cluster3(tmp_path, {"n1": sshd, "n2": sshd_posix, "n3": third})
    yield made, third
    made.app.ledger.close()


def test_one_cluster_over_three_kinds_of_servers(over_ssh: tuple[Cluster3, Sshd]) -> None:
    made, _ = over_ssh
    with open_cluster(made.app, made.receiver) as cluster:
        assert cluster is not None
        tiers = {name: cluster.open_store(name).properties.tier for name in cluster.nodes}
        assert tiers == {"n1": Tier.PYTHON, "n2": Tier.POSIX, "n3": Tier.SFTP}
        for name in cluster.nodes:
            cluster.open_folder(name).put_table(cluster.epoch, cluster.table_bytes)
            assert cluster.open_folder(name).read_table() == (1, cluster.table_bytes)
    assert all((place / ".tidemark/table/1").is_file() for place in made.places.values())


def test_a_server_that_is_down_is_named_soon_and_the_others_serve(over_ssh: tuple[Cluster3, Sshd]) -> None:
    made, third = over_ssh
    third.stop()
    with open_cluster(made.app, made.receiver) as cluster:
        assert cluster is not None
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(UnreachableError, match="node n3 cannot be reached"):
                cluster.open_folder("n3")
        assert time.monotonic() - began < 20
        assert cluster.open_folder("n1").list_sizes() == cluster.open_folder("n2").list_sizes() == {}


def test_a_server_with_another_key_is_not_talked_to(over_ssh: tuple[Cluster3, Sshd]) -> None:
    made, third = over_ssh
    node = made.app.settings.nodes["n1"]
    wrong = replace(node, host_key=third.host_key)
    made.app.settings = replace(made.app.settings, nodes={**made.app.settings.nodes, "n1": wrong})
    with open_cluster(made.app, made.receiver) as cluster:
        assert cluster is not None
        with pytest.raises(HostKeyError):
            cluster.open_folder("n1")
        cluster.open_folder("n2")
