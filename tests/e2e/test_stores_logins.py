"""What can go wrong when a store is opened: host keys, logins, servers that limit, talk or lack what we need."""

from __future__ import annotations

import errno
import getpass
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chaos_proxy import chaos
from tests.e2e.engine_world import MB, World
from tests.e2e.store_ends import IMPATIENT, QUICK, address
from tests.services.sshd import FarEnd, Sshd, fingerprint, make_key
from tidemark.errors import HostKeyError, PermanentError, PermissionDeniedError, UnreachableError, UsageError
from tidemark.stores.open import TIERS, open_store
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Range, StoreAddress, Tier
from tidemark.stores.ssh import dial as dialling
from tidemark.stores.ssh import login
from tidemark.stores.ssh.connection import SshConnection

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]


def test_a_missing_host_key_is_asked_for_and_shown(sshd: Sshd) -> None:
    with pytest.raises(HostKeyError) as caught:
        open_store(address(sshd, host_key=""))
    assert sshd.host_key in caught.value.message and sshd.host_key in caught.value.hint
    assert f"127.0.0.1:{sshd.port}" in caught.value.message


@pytest.mark.full_after(1)
@pytest.mark.parametrize("form", [(), ("-m", "PEM", "-t", "rsa", "-b", "2048")])
def test_a_key_with_a_passphrase_is_named_and_what_opens_it(sshd: Sshd, tmp_path: Path, form: tuple[str, ...]) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", *(form or ("-t", "ed25519")), "-N", "secret", "-f", str(locked)], check=True)
    with pytest.raises(PermissionDeniedError) as caught:
        open_store(address(sshd, key=str(locked)))
    assert caught.value.message == f"key {locked} has a passphrase"
    assert f"ssh-add {locked}" in caught.value.hint


def test_a_file_that_is_no_private_key_is_named_and_what_looks_at_it(sshd: Sshd) -> None:
    public = f"{sshd.key}.pub"
    with pytest.raises(PermanentError) as caught:
        open_store(address(sshd, key=public))
    assert caught.value.message.startswith(f"key {public} cannot be read") and "http" not in caught.value.message
    assert f"ssh-keygen -y -f {public}" in caught.value.hint


def test_a_changed_host_key_is_refused_and_named(sshd: Sshd) -> None:
    other = "SHA256:" + "A" * 43
    started = time.monotonic()
    with pytest.raises(HostKeyError) as caught:
        open_store(address(sshd, host_key=other))
    assert other in caught.value.message and sshd.host_key in caught.value.message
    assert time.monotonic() - started < 10  # one look, not five
    assert caught.value.kind == 6


def test_a_changed_host_key_is_named_though_the_other_kinds_cannot_be_asked_for(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials: list[object] = []

    def dial(*given: Any) -> socket.socket:
        dials.append(given)
        if len(dials) > 1:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return dialling.dial_server(*given)

    monkeypatch.setattr(login, "dial_server", dial)
    asked = login.Login("127.0.0.1", sshd.port, getpass.getuser(), "SHA256:" + "A" * 43, str(sshd.key))
    with pytest.raises(UnreachableError) as caught:
        SshConnection(asked, login.Limits()).host_and_user_keys()
    assert "refuses connections" in caught.value.message and sshd.host_key in caught.value.message


@pytest.mark.full
def test_a_server_of_several_host_keys_is_known_by_each_of_them(start_sshd: Callable[..., Sshd], tmp_path: Path) -> None:
    """`ssh-keyscan` shows all of them, and any may stand in the settings."""
    keys = [tmp_path / kind for kind in ("ed25519", "ecdsa", "rsa")]
    for key in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", key.name, "-N", "", "-f", str(key)], check=True)
    server = start_sshd(FarEnd.SHELL, {"HostKey": "\nHostKey ".join(map(str, keys))})
    for key in keys:
        shown = fingerprint(key.with_name(f"{key.name}.pub"))
        with chaos(server.port) as wire:
            for _ in range(2):
                store = open_store(address(server, port=wire.port, host_key=shown))
                assert store.properties.tier is Tier.PYTHON
                store.close()
            assert wire.connections <= 1 + len(keys), "which kind it is was found out once"
    with pytest.raises(HostKeyError, match="another one"):
        open_store(address(server, host_key=server.host_key))


def test_a_host_key_that_changes_while_we_work_is_refused(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    store = open_store(address(server))
    server.stop()
    (server.folder / "host_key").unlink()
    make_key(server.folder / "host_key")
    server.restart()
    with pytest.raises(HostKeyError):
        store.list_files([""])


def test_a_login_that_is_refused_names_user_host_and_keys(sshd: Sshd, tmp_path: Path) -> None:
    stranger = make_key(tmp_path / "stranger")
    with pytest.raises(PermissionDeniedError) as caught:
        open_store(address(sshd, key=str(stranger)))
    assert str(stranger) in caught.value.message and f"@127.0.0.1:{sshd.port}" in caught.value.message
    with pytest.raises(UsageError, match="no-such-key"):
        open_store(address(sshd, key=str(tmp_path / "no-such-key")))
    (tmp_path / "text").write_text("not a key")
    with pytest.raises(PermanentError, match="text"):
        open_store(address(sshd, key=str(tmp_path / "text")))


@pytest.mark.parametrize(
    "url",
    [
        "sftp:///path",
        "ftp://host/x",
        "sftp://h:port/x",
        "sftp://h/a/../b",
        "sftp://[::1/x",
        "sftp://h/disk#1",
        "sftp://h/what?",
        "file://relative/x",
        "file:///a/../b",
        "x",
    ],
)
def test_an_address_that_cannot_be_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(StoreAddress(url))
    assert url in caught.value.message


def test_nobody_listens(sshd: Sshd) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{port} refuses connections"):
            open_store(address(sshd, port=port))


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(UnreachableError, match=r"u@no-such-host.*has a name that nobody knows here"):
        open_sftp(StoreAddress("sftp://u@no-such-host.invalid/x", "SHA256:x", "k"))


def test_a_server_of_one_session_a_connection_gets_a_connection_a_session(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL, {"MaxSessions": "1"})
    content = os.urandom(5_000_000)
    (server.files / "f").write_bytes(content)
    store = open_sftp(address(server), limits=QUICK)
    stream = store.read_chunks("f", 0, len(content), 100_000)
    first = next(stream)
    assert store.stat("f") is not None
    assert first + b"".join(stream) == content
    store.close()


def test_a_server_without_sessions_is_told(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL, {"MaxSessions": "0"})
    with pytest.raises(UnreachableError, match="refuses another session") as caught:
        open_sftp(address(server), limits=QUICK)
    assert "MaxSessions" in caught.value.hint


@contextmanager
def login_under_way(server: Sshd) -> Iterator[None]:
    """Someone who is greeted and says nothing. Whoever looked before may still count, so it takes a few tries."""
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", server.port)) as waiting:
            if waiting.recv(4) == b"SSH-":
                yield
                return
        time.sleep(0.05)
    raise AssertionError("sshd greets nobody")


@pytest.mark.full
def test_a_server_that_limits_logins_lets_us_in_later(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL, {"MaxStartups": "1:100:1"})
    with login_under_way(server):
        with pytest.raises(UnreachableError):
            open_sftp(address(server), limits=QUICK)
    deadline = time.monotonic() + 20
    while True:
        try:
            open_store(address(server)).close()
            break
        except UnreachableError:
            assert time.monotonic() < deadline


@pytest.mark.full
def test_a_far_end_that_is_slow_to_say_what_it_can_run_is_unreachable_not_a_lesser_tier(
    start_sshd: Callable[..., Sshd],
) -> None:
    server = start_sshd(FarEnd.POSIX)
    slow = server.folder / "tools" / "python3"
    slow.write_text("#!/bin/sh\nsleep 4\n")
    slow.chmod(0o755)
    with pytest.raises(UnreachableError, match="did not answer in time"):
        open_sftp(address(server), limits=IMPATIENT)
    slow.unlink()
    assert open_sftp(address(server), limits=QUICK).properties.tier is Tier.POSIX


@pytest.mark.full
def test_a_connection_cut_while_the_far_end_is_asked_tells_no_tier(sshd: Sshd) -> None:
    """At every kilobyte of a probe: python3, or no store at all."""
    opened = 0
    for after in range(2000, 30_000, 1000):
        with chaos(sshd.port, ("drop", after)) as proxy:
            try:
                store = open_sftp(address(sshd, port=proxy.port), limits=QUICK)
            except UnreachableError:
                continue
            opened += 1
            assert store.properties.tier is Tier.PYTHON
            store.close()
    assert opened


@pytest.mark.full_after(1)
@pytest.mark.parametrize("far_end", [FarEnd.SHELL, pytest.param(FarEnd.POSIX, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "said", ["Welcome, tidemark of this house\\n", "tidemark edge 7\\n", "\\033]0;edge 7\\007", "f1 2 3 4"]
)
def test_a_login_script_that_talks_does_not_disturb(
    start_sshd: Callable[..., Sshd], tmp_path: Path, far_end: FarEnd, said: str
) -> None:
    """Lines, and what is meant for a terminal: words without an end of their line."""
    server = start_sshd(far_end)
    inner = "sh -c" if far_end is FarEnd.SHELL else str(server.folder / "posix_shell") + " -c"
    script = server.folder / "talks"
    script.write_text(
        "#!/bin/sh\n"
        f"case \"$SSH_ORIGINAL_COMMAND\" in *sftp-server*|internal-sftp) ;; *) printf '{said}';; esac\n"
        f'exec {inner} "$SSH_ORIGINAL_COMMAND"\n'
    )
    script.chmod(0o755)
    server.stop()
    config = (server.folder / "sshd_config").read_text()
    kept = [line for line in config.splitlines() if not line.startswith("ForceCommand")]
    (server.folder / "sshd_config").write_text("\n".join([*kept, f"ForceCommand {script}"]) + "\n")
    server.restart()

    tier = Tier.PYTHON if far_end is FarEnd.SHELL else Tier.POSIX
    store = open_store(address(server))
    assert store.properties.tier is tier
    store.publish("a", b"1")
    assert [entry.path for entry in store.list_files([""]).entries] == ["a"]
    assert store.digest_ranges([Range("a", 0, 1), Range("a", 1, 0)]) == [sha256(b"1").hexdigest(), sha256(b"").hexdigest()]
    store.close()
    world = World.of(server, tmp_path, "pull", tier)
    assert world.arrived(world.move([world.put(f"{n}", size) for n, size in enumerate([5, 3 * MB, 33 * MB])]))


@pytest.mark.parametrize(
    ("command", "says"),
    [("/bin/echo This account is not available.", "it says 'This acco' …"), ("/bin/false", "it ends without a word")],
)
def test_an_account_without_shell_and_sftp_is_told_so(start_sshd: Callable[..., Sshd], command: str, says: str) -> None:
    server = start_sshd(FarEnd.SHELL, {"ForceCommand": command})
    with pytest.raises(PermissionDeniedError) as caught:
        open_store(address(server))
    assert caught.value.message.endswith(f"gives no SFTP: {says}")


def test_a_tier_that_is_not_there_cannot_be_forced(sshd_posix: Sshd, sshd_sftp_only: Sshd) -> None:
    for server, tier in ((sshd_posix, Tier.PYTHON), (sshd_sftp_only, Tier.PYTHON), (sshd_sftp_only, Tier.POSIX)):
        with pytest.raises(PermanentError, match=tier.value) as caught:
            open_store(address(server), tier)
        assert ("no python3" if server is sshd_posix else "SFTP only") in caught.value.message
        assert "./tidemark doctor" in caught.value.hint


@pytest.mark.parametrize("tier", ["python", "posix", "sftp"])
def test_the_settings_force_a_tier(sshd: Sshd, tier: str) -> None:
    store = open_store(address(sshd, tier=tier))
    assert store.properties.tier is TIERS[tier]
    store.close()


def test_an_sftp_server_without_openssh_extensions_is_declared_and_still_works(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SFTP, {"ForceCommand": "internal-sftp -P hardlink,fsync,posix-rename,statvfs,limits"})
    store = open_store(address(server))
    (server.files / "f").write_bytes(b"old")

    store.write_part("f.part", 0, [b"new"])
    store.seal_parts([("f.part", "f")])

    assert (server.files / "f").read_bytes() == b"new"
    with pytest.raises(PermanentError) as caught:
        store.link([("f", "snap/f")])
    assert "snapshot" in caught.value.hint or "hard link" in caught.value.message
    store.close()
