"""`login = "agent"`: a real ssh-agent proves who logs in, and nobody asks it where the settings do not say so."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commanded import Commanded, run_here
from tests.e2e.test_init_over_ssh import home_at
from tests.services.processes import die_with_parent, soon, stop
from tests.services.sshd import Sshd, make_key
from tidemark.errors import PermissionDeniedError
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]


@pytest.fixture
def agent(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent with a stranger's key and with the one that the server lets in. The home has no key."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:  # the name of a socket is short
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/socket")
        process = subprocess.Popen(["ssh-agent", "-D", "-a", f"{folder}/socket"], preexec_fn=die_with_parent())
        try:
            assert soon(Path(f"{folder}/socket").exists)
            for key in (make_key(tmp_path / "stranger"), sshd.key):
                subprocess.run(["ssh-add", "-q", str(key)], check=True)
            yield
        finally:
            stop(process)


@pytest.mark.full
@pytest.mark.usefixtures("agent")
def test_init_doctor_and_sync_log_in_by_the_agent(sshd: Sshd, tmp_path: Path) -> None:
    words = ["--site", f"edge={home_at(sshd)}", "--host-key", sshd.host_key, "--agent"]
    said = run_here(tmp_path / "none", "init", str(tmp_path), *words)
    assert said.code == 0, said
    assert 'login = "agent"' in (tmp_path / "tidemark.toml").read_text()
    assert run_here(tmp_path / "tidemark.toml", "doctor").code == 0
    assert run_here(tmp_path / "tidemark.toml", "sync", "edge").json["loaded"] > 0


@pytest.mark.usefixtures("agent")
def test_nobody_asks_the_agent_unless_the_settings_say_so(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Commanded(tmp_path, monkeypatch, store=sshd.url(tmp_path / "site"), site_keys={"host_key": sshd.host_key})
    said = edge.run("sync", "plant1")
    said.refused(6, "accepts none of the keys: there is none")
    assert 'login = "agent"' in said.json["hint"]


def test_an_agent_that_is_away_and_one_without_the_key_are_told_apart(
    sshd: Sshd, agent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = StoreAddress(sshd.url(), sshd.host_key, agent=True, tries=1)
    subprocess.run(["ssh-add", "-q", "-d", str(sshd.key)], check=True)
    with pytest.raises(PermissionDeniedError, match="accepts none of the keys: agent key SHA256:"):
        open_store(address)
    monkeypatch.setenv("SSH_AUTH_SOCK", f"{os.environ['SSH_AUTH_SOCK']}-gone")
    with pytest.raises(PermissionDeniedError, match="the SSH agent has no key") as refused:
        open_store(address)
    assert "SSH_AUTH_SOCK" in refused.value.hint
