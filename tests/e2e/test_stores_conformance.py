"""The stores' suite over real OpenSSH servers: with python3, with POSIX tools only, with SFTP only, in a chroot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.services.sshd import FarEnd, Sshd
from tests.unit.stores.store_conformance import DiskConformance, FolderPlace, Place
from tidemark.stores.open_sftp import login_of, open_on
from tidemark.stores.protocol import Store, StoreAddress, Tier
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits

pytestmark = pytest.mark.real("sshd")


class KeptConnection(SshConnection):
    """One login for the many tests of a server: a store that is closed ends its own channels alone."""

    def drop(self) -> None:
        """The connection outlives the stores on it."""

    def end(self) -> None:
        super().drop()


@pytest.fixture(scope="module")
def logins() -> Iterator[dict[int, KeptConnection]]:
    kept: dict[int, KeptConnection] = {}
    yield kept
    for connection in kept.values():
        connection.end()


class FarConformance(DiskConformance):
    found: Tier
    forced: Tier | None = None

    @pytest.fixture
    def connection(self, server: Sshd, logins: dict[int, KeptConnection]) -> KeptConnection:
        if server.port not in logins:
            login, _ = login_of(StoreAddress(server.url(), server.host_key, str(server.key)))
            logins[server.port] = KeptConnection(login, Limits())
        return logins[server.port]

    @pytest.fixture
    def root(self, server: Sshd) -> Path:
        return server.new_folder()

    @pytest.fixture
    def store(self, server: Sshd, connection: KeptConnection, root: Path) -> Iterator[Store]:
        store = open_on(connection, urlsplit(server.url(root)).path, self.forced)
        yield store
        store.close()

    @pytest.fixture
    def place(self, root: Path) -> Place:
        return FolderPlace(root)

    @pytest.fixture
    def elsewhere(self, server: Sshd) -> tuple[str, Path]:
        folder = server.new_folder("disk2")
        jail = server.folder / "jail"
        return ("/" + str(folder.relative_to(jail)) if server.far_end is FarEnd.CHROOT else str(folder)), folder

    def test_the_probe_finds_the_tier(self, store: Store) -> None:
        properties = store.properties
        assert properties.tier is self.found
        assert properties.inodes is (self.found is not Tier.SFTP)


class TestPython(FarConformance):
    found = Tier.PYTHON

    @pytest.fixture
    def server(self, sshd: Sshd) -> Sshd:
        return sshd


class TestPosix(FarConformance):
    found = Tier.POSIX

    @pytest.fixture
    def server(self, sshd_posix: Sshd) -> Sshd:
        return sshd_posix


class TestSftpForced(TestPython):
    found = forced = Tier.SFTP


class TestSftpOnly(FarConformance):
    found = Tier.SFTP

    @pytest.fixture
    def server(self, sshd_sftp_only: Sshd) -> Sshd:
        return sshd_sftp_only


class TestChroot(FarConformance):
    found = Tier.SFTP

    @pytest.fixture
    def server(self, sshd_chroot: Sshd) -> Sshd:
        return sshd_chroot
