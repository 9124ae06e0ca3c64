"""Nodes' folders over real OpenSSH servers: with python3, with POSIX tools only, with SFTP only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.test_stores_conformance import KeptConnection
from tests.services.sshd import Sshd
from tests.unit.cluster.node_folder_conformance import NodeFolderConformance
from tests.unit.stores.store_conformance import FolderPlace, Place
from tidemark.stores.login import Limits
from tidemark.stores.opening import StoreAddress
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.sftp import login_of, open_on

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
