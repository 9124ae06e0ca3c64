"""A site behind a bastion, reached by what ~/.ssh/config says of it; the file counts only where the settings name it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.services.sshd import Sshd
from tidemark.errors import HostKeyError, PermissionDeniedError, UnreachableError, UsageError
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
BEHIND = """
Host ship7
    HostName 127.0.0.1
    Port {site.port}
    User {site.user}
    IdentityFile /not/there
    IdentityFile {site.key}
    ProxyJump gate
Host gate
    HostName 127.0.0.1
    Port {gate.port}
    User {gate.user}
    IdentityFile {gate.key}
    UserKnownHostsFile {known}
"""


@pytest.fixture
def gate(start_sshd: Callable[..., Sshd]) -> Sshd:
    """The bastion."""
    return start_sshd()


@pytest.fixture
def config(sshd: Sshd, gate: Sshd, tmp_path: Path) -> Path:
    file = tmp_path / "ssh_config"
    file.write_text(BEHIND.format(site=sshd, gate=gate, known=gate.folder / "known_hosts"))
    return file


def reach(server: Sshd, config: Path, **change: Any) -> Store:
    where = {"host_key": server.host_key, "ssh_config": str(config), "tries": 1, **change}
    return open_store(StoreAddress(f"sftp://ship7{server.files}", **where))


@pytest.mark.full
def test_a_sync_goes_through_the_bastion(
    sshd: Sshd, gate: Sshd, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"ssh_config": str(config), "host_key": sshd.host_key}
    edge = Commanded(tmp_path, monkeypatch, store=f"sftp://ship7{tmp_path / 'site'}", site_keys=keys)
    edge.seal(1)
    assert edge.run("doctor").code == 0
    assert edge.sync().code == 0
    edge.assert_in_step()
    assert "Accepted publickey" in gate.log() and "Accepted publickey" in sshd.log()


def test_what_the_settings_say_comes_first(sshd: Sshd, config: Path) -> None:
    config.write_text(config.read_text().replace(f"Port {sshd.port}", "Port 1"))
    with closing(
        open_store(StoreAddress(f"sftp://ship7:{sshd.port}{sshd.files}", sshd.host_key, ssh_config=str(config)))
    ) as one:
        assert f"@127.0.0.1:{sshd.port}/" in one.url


def test_the_file_counts_only_where_it_is_named(sshd: Sshd, config: Path) -> None:
    with pytest.raises(UnreachableError, match="ship7"):
        reach(sshd, config, ssh_config="", key=str(sshd.key))


@pytest.mark.full
def test_the_server_s_key_is_compared_behind_a_bastion_too(sshd: Sshd, config: Path) -> None:
    with pytest.raises(HostKeyError, match="is another one"):
        reach(sshd, config, host_key=f"SHA256:{'A' * 43}")


def test_a_bastion_that_lets_nobody_through_is_named_with_what_ssh_says(sshd: Sshd, gate: Sshd, config: Path) -> None:
    known = (gate.folder / "known_hosts").read_text()
    (gate.folder / "known_hosts").write_text("")
    with pytest.raises(HostKeyError, match=r"gate does not connect: .*Host key verification failed") as unknown:
        reach(sshd, config)
    assert f"ssh -F {config}" in unknown.value.hint
    (gate.folder / "known_hosts").write_text(known)
    (gate.folder / "authorized_keys").write_text("")
    with pytest.raises(PermissionDeniedError, match=r"gate does not connect: .*Permission denied"):
        reach(sshd, config)
    gate.stop()
    with pytest.raises(UnreachableError, match=r"gate does not connect: .*refused"):
        reach(sshd, config)


WRONG = {
    "Host ship7\n  ProxyCommand nc %h %p\n": "ProxyJump HOST",
    "Host ship7\n  Port many\n": "-G ship7",
    None: "-G ship7",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=["command", "port", "missing"])
def test_a_file_that_cannot_be_used_says_so(sshd: Sshd, tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "wrong").write_text(text)
    with pytest.raises(UsageError, match="ssh_config") as refused:
        reach(sshd, tmp_path / "wrong")
    assert said in refused.value.hint
