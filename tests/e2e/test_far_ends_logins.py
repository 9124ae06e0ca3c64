"""Servers that allow little: with what is ours they work, without it is named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_FAILURE

from tests.e2e.store_ends import QUICK, address
from tests.services.sshd import Sshd, make_key
from tidemark.errors import PermanentError, Retry
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import StoreAddress, Tier

pytestmark = pytest.mark.real("sshd")


@pytest.mark.parametrize(
    ("allowed", "named", "ours"),
    [
        ({"Ciphers": "chacha20-poly1305@openssh.com"}, "Ciphers", "aes128-gcm@openssh.com"),
        ({"Ciphers": "aes128-ctr", "MACs": "umac-64@openssh.com"}, "MACs", "hmac-sha2-256"),
        ({"KexAlgorithms": "diffie-hellman-group14-sha1"}, "KexAlgorithms", "ecdh-sha2-nistp256"),
    ],
)
def test_a_server_that_allows_none_of_ours_is_told_which_ones(
    start_sshd: Callable[..., Sshd], allowed: dict[str, str], named: str, ours: str
) -> None:
    with pytest.raises(PermanentError, match=f"allows none of our {named}") as caught:
        open_sftp(address(start_sshd(options=allowed)), limits=QUICK)
    assert f"sshd_config: {named} " in caught.value.hint and ours in caught.value.hint
    assert caught.value.retry is Retry.OPERATOR


def test_curve25519_by_its_name_of_today(start_sshd: Callable[..., Sshd]) -> None:
    store = open_sftp(address(start_sshd(options={"KexAlgorithms": "curve25519-sha256"})), limits=QUICK)
    assert store.properties.tier is Tier.PYTHON
    store.close()


class RunsNoCommands(paramiko.ServerInterface):
    """Lets everybody in, opens sessions, and refuses each request for a command (paramiko's default)."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return int(paramiko.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)


class HangsUp(paramiko.Transport):
    """As ProFTPD's mod_sftp when something is written to a command that it refused, before it could be heard of."""

    def _send_user_message(self, message: paramiko.Message) -> None:
        super()._send_user_message(message)
        if message.asbytes()[0] == MSG_CHANNEL_FAILURE:
            self.close()


@pytest.mark.parametrize("server", [paramiko.Transport, HangsUp])
def test_a_server_that_runs_no_commands_has_sftp(tmp_path: Path, server: type[paramiko.Transport]) -> None:
    key = paramiko.PKey.from_path(make_key(tmp_path / "key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):  # who was hung up on comes again
                transport = server(listener.accept()[0])
                transport.add_server_key(key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, paramiko.SFTPServerInterface)
                transport.start_server(server=RunsNoCommands())

        threading.Thread(target=serve, daemon=True).start()
        url = f"sftp://u@127.0.0.1:{listener.getsockname()[1]}/x"
        store = open_sftp(StoreAddress(url, key.fingerprint, str(tmp_path / "key")), limits=QUICK)
        assert store.properties.tier is Tier.SFTP
        store.close()
