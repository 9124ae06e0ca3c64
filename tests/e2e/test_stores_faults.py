"""What can go wrong between two ends that are real: logins, keys, networks, disks, files that move, senders that die."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.chaos_proxy import chaos
from tests.services.sshd import FarEnd, Sshd, make_key
from tidemark.errors import (
    DiskFullError,
    HostKeyError,
    PermanentError,
    PermissionDeniedError,
    SourceVanishedError,
    UnreachableError,
    UsageError,
)
from tidemark.stores import retrying
from tidemark.stores.local import LocalStore
from tidemark.stores.opening import StoreAddress, open_store
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.retrying import RetryingStore
from tidemark.stores.sftp import open_sftp
from tidemark.stores.ssh import Limits
from tidemark.stores.transfer import Failed, SendItem, SendOptions, Sent, send

pytestmark = pytest.mark.real("sshd")

TIERS = [Tier.PYTHON, Tier.POSIX, Tier.SFTP]
FASTEST_FIRST = [Tier.PYTHON, *(pytest.param(tier, marks=pytest.mark.full) for tier in TIERS[1:])]
QUICK = Limits(connect=10, handshake=20, stall=10)  # a busy machine keeps them too
IMPATIENT = Limits(connect=5, handshake=8, stall=1.5)  # where the limit itself is waited for
BLOCK = 1 << 20
OPTIONS = SendOptions(block_bytes=BLOCK, retries=5)
MAC_ROOM = 400_000  # bytes of handshakes, packets and answers in a proxy's count


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retrying, "LONGEST_PAUSE", 0.1)


def address(server: Sshd, folder: Path | None = None, port: int = 0, **changes: str) -> StoreAddress:
    url = server.url(folder).replace(f":{server.port}/", f":{port or server.port}/")
    return StoreAddress(**{"url": url, "host_key": server.host_key, "key": str(server.key), **changes})


def write(folder: Path, *sizes: int) -> list[SendItem]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"{number}.tsfile").write_bytes(os.urandom(size))
    return [SendItem(f"{number}.tsfile", f"l/{number}.tsfile", size) for number, size in enumerate(sizes)]


def same(items: list[SendItem], source: Path, target: Path) -> bool:
    return all((source / i.source_path).read_bytes() == (target / i.target_path).read_bytes() for i in items)


# --- both ways, every tier


@pytest.mark.parametrize("tier", FASTEST_FIRST)
@pytest.mark.parametrize("way", ["pull", "push", pytest.param("both remote", marks=pytest.mark.full)])
def test_files_cross_between_every_kind_of_ends(sshd: Sshd, tmp_path: Path, tier: Tier, way: str) -> None:
    far, near = sshd.new_folder("far"), tmp_path / "near"
    remote = open_store(address(sshd, far), tier)
    there = near if way == "push" else far
    items = write(there, 0, 1, 20_000, 1 << 20, (1 << 20) + 1, 5_000_000)
    source: Store = LocalStore(str(near)) if way == "push" else remote
    if way == "pull":
        target, arrived = LocalStore(str(near)), near
    else:
        arrived = sshd.new_folder("centre")
        target = open_store(address(sshd, arrived), tier)  # type: ignore[assignment]

    sent = list(send(source, target, items, OPTIONS))

    assert [type(one) for one in sent] == [Sent] * len(items)
    assert same(items, there, arrived)
    digests = {one.item: one.sha256 for one in sent}
    assert all(digests[i] == hashlib.sha256((there / i.source_path).read_bytes()).hexdigest() for i in items)
    proven = "target" if way != "push" and tier is Tier.SFTP else "source"
    assert {one.verified for one in sent if isinstance(one, Sent)} == {proven}
    assert sorted(file.name for file in (arrived / "l").iterdir()) == sorted(i.source_path for i in items)
    source.close()
    target.close()


# --- logins


def test_a_missing_host_key_is_asked_for_and_shown(sshd: Sshd) -> None:
    with pytest.raises(HostKeyError) as caught:
        open_store(address(sshd, host_key=""))
    assert sshd.host_key in caught.value.message and sshd.host_key in caught.value.hint
    assert f"127.0.0.1:{sshd.port}" in caught.value.message


def test_a_changed_host_key_is_refused_and_named(sshd: Sshd) -> None:
    other = "SHA256:" + "A" * 43
    started = time.monotonic()
    with pytest.raises(HostKeyError) as caught:
        open_store(address(sshd, host_key=other))
    assert other in caught.value.message and sshd.host_key in caught.value.message
    assert time.monotonic() - started < 10  # one look, not five
    assert caught.value.kind == 6


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
    "url", ["sftp:///path", "ftp://host/x", "sftp://h:port/x", "sftp://h/a/../b", "file://relative/x", "file:///a/../b", "x"]
)
def test_an_address_that_cannot_be_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(StoreAddress(url))
    assert url in caught.value.message


def test_an_airflow_connection_without_its_key_says_who_knows_it() -> None:
    with pytest.raises(UsageError, match="plant1_ssh"):
        open_store(StoreAddress("sftp://h/x", "SHA256:x", connection="plant1_ssh"))


def test_nobody_listens(sshd: Sshd) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{port} refuses connections"):
            open_store(address(sshd, port=port))


@pytest.mark.full
def test_a_server_that_never_greets_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        started = time.monotonic()
        with pytest.raises(UnreachableError):
            open_sftp(StoreAddress(f"sftp://u@127.0.0.1:{mute.getsockname()[1]}/x", "SHA256:x", "k"), limits=IMPATIENT)
        assert time.monotonic() - started < 3 * IMPATIENT.handshake


def test_a_server_of_one_session_a_connection_gets_a_connection_a_session(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL, {"MaxSessions": "1"})
    content = os.urandom(5_000_000)
    (server.files / "f").write_bytes(content)
    store = open_sftp(address(server), limits=QUICK)
    stream = store.chunks("f", 0, len(content), 100_000)
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


@pytest.mark.parametrize("far_end", [FarEnd.SHELL, pytest.param(FarEnd.POSIX, marks=pytest.mark.full)])
def test_a_login_script_that_talks_does_not_disturb(start_sshd: Callable[..., Sshd], far_end: FarEnd) -> None:
    server = start_sshd(far_end)
    inner = "sh -c" if far_end is FarEnd.SHELL else str(server.folder / "posix_shell") + " -c"
    script = server.folder / "talks"
    script.write_text(
        "#!/bin/sh\n"
        'case "$SSH_ORIGINAL_COMMAND" in *sftp-server*|internal-sftp) ;; *) echo "Welcome, tidemark of this house";; esac\n'
        f'exec {inner} "$SSH_ORIGINAL_COMMAND"\n'
    )
    script.chmod(0o755)
    server.stop()
    config = (server.folder / "sshd_config").read_text()
    kept = [line for line in config.splitlines() if not line.startswith("ForceCommand")]
    (server.folder / "sshd_config").write_text("\n".join([*kept, f"ForceCommand {script}"]) + "\n")
    server.restart()

    store = open_store(address(server))

    assert store.properties.tier is (Tier.PYTHON if far_end is FarEnd.SHELL else Tier.POSIX)
    store.publish("a", b"1")
    assert [entry.path for entry in store.list_files([""]).entries] == ["a"]
    store.close()


def test_an_account_without_shell_and_sftp_is_told_so(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd(FarEnd.SHELL, {"ForceCommand": "/bin/echo This account is not available."})
    with pytest.raises(PermissionDeniedError, match="gives no SFTP"):
        open_store(address(server))


def test_a_tier_that_is_not_there_cannot_be_forced(sshd_posix: Sshd, sshd_sftp_only: Sshd) -> None:
    for server, tier in ((sshd_posix, Tier.PYTHON), (sshd_sftp_only, Tier.PYTHON), (sshd_sftp_only, Tier.POSIX)):
        with pytest.raises(PermanentError, match=tier.value):
            open_store(address(server), tier)


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


# --- networks


@pytest.mark.parametrize("tier", FASTEST_FIRST)
@pytest.mark.parametrize("way", ["pull", pytest.param("push", marks=pytest.mark.full)])
def test_a_link_that_drops_again_and_again_resends_a_block_each_time(
    sshd: Sshd, tmp_path: Path, tier: Tier, way: str
) -> None:
    far, near = sshd.new_folder("far"), tmp_path / "near"
    items = write(far if way == "pull" else near, 8 * BLOCK + 17)
    near.mkdir(exist_ok=True)
    local = LocalStore(str(near))
    drops = [("drop", 3 * BLOCK + MAC_ROOM)] * 2
    with chaos(sshd.port, *drops) as proxy:
        remote = open_sftp(address(sshd, far, proxy.port), tier, QUICK)
        source, target = (remote, local) if way == "pull" else (local, remote)

        (sent,) = send(source, target, items, OPTIONS)

        assert proxy.connections == 3
        remote.close()
    assert isinstance(sent, Sent)
    assert same(items, *((far, near) if way == "pull" else (near, far)))
    if tier is not Tier.SFTP or way == "pull":
        assert items[0].size <= sent.wire_bytes <= items[0].size + 2 * (BLOCK + (1 << 18))


@pytest.mark.full
@pytest.mark.parametrize("tier", FASTEST_FIRST)
def test_a_link_that_stalls_is_dropped_and_made_again(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far = sshd.new_folder("far")
    items = write(far, 6 * BLOCK, 1000, 2000)
    with chaos(sshd.port, ("stall", 3 * BLOCK)) as proxy:
        remote = open_sftp(address(sshd, far, proxy.port), tier, IMPATIENT)
        started = time.monotonic()

        sent = list(send(remote, LocalStore(str(tmp_path)), items, OPTIONS))

        assert [type(one) for one in sent] == [Sent] * 3
        assert time.monotonic() - started < 40
        remote.close()
    assert same(items, far, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_a_push_into_a_stalled_link_is_given_up_in_time(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far = sshd.new_folder("far")
    items = write(tmp_path, 20 * BLOCK, 20 * BLOCK)
    with chaos(sshd.port, ("stall", 2 * BLOCK), for_ever=True) as proxy:
        remote = open_sftp(address(sshd, far, proxy.port), tier, IMPATIENT)
        outcomes = list(send(LocalStore(str(tmp_path)), remote, items, SendOptions(16 * BLOCK, retries=1)))
        remote.close()
    assert [type(one) for one in outcomes] == [Failed] * 2
    assert all(isinstance(one.error, UnreachableError) for one in outcomes if isinstance(one, Failed))
    assert not (far / "l" / "0.tsfile").exists()


def test_single_calls_survive_drops_and_refusals(sshd: Sshd) -> None:
    far = sshd.new_folder("far")
    write(far, *[100] * 50)
    with chaos(sshd.port, ("drop", 16_000), ("refuse", 0), ("drop", 16_000)) as proxy:
        store = RetryingStore(open_sftp(address(sshd, far, proxy.port), Tier.PYTHON, QUICK))
        for number in range(50):
            assert store.sha256(f"{number}.tsfile") == hashlib.sha256((far / f"{number}.tsfile").read_bytes()).hexdigest()
            store.publish(f"m/{number}", b"x" * 500)
        assert len(store.list_files(["m"]).entries) == 50
        assert [len(data or b"") for _, data in store.read_many([f"m/{n}" for n in range(50)])] == [500] * 50
        store.close()
        assert proxy.connections >= 3


def test_a_dead_server_fails_the_whole_send_soon_and_the_next_send_goes_on(
    start_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    server = start_sshd()
    far = server.new_folder()
    items = write(far, *[2 * BLOCK] * 30)
    store = open_sftp(address(server, far), limits=QUICK)
    outcomes: list[Sent | Failed] = []
    slowly = SendOptions(BLOCK, retries=2, bandwidth=10e6)
    for one in send(store, LocalStore(str(tmp_path)), items, slowly):
        outcomes.append(one)
        if len(outcomes) == 3:
            server.stop()
    arrived = {one.item for one in outcomes if isinstance(one, Sent)}
    assert 3 <= len(arrived) < 30 and all(isinstance(one, Failed) for one in outcomes[len(arrived) :])
    assert {one.item for one in outcomes} == set(items)
    server.restart()

    again = list(send(store, LocalStore(str(tmp_path)), items, OPTIONS))

    assert [type(one) for one in again] == [Sent] * 30
    assert {one.item for one in again if not one.wire_bytes} == arrived
    assert same(items, far, tmp_path)
    store.close()


@pytest.mark.full
def test_a_frozen_far_end_that_computes_is_not_mistaken_for_a_stall(start_sshd: Callable[..., Sshd]) -> None:
    """A digest that takes longer than the stall limit: the server is asked for a sign of life instead."""
    server = start_sshd(FarEnd.POSIX)
    slow = server.folder / "tools" / "sha256sum"
    real = slow.resolve()
    slow.unlink()
    slow.write_text(f"#!/bin/sh\nsleep 2\nexec {real}\n")
    slow.chmod(0o755)
    (server.files / "f").write_bytes(b"x")
    store = open_sftp(address(server), Tier.POSIX, Limits(stall=0.7))
    assert store.sha256("f") == hashlib.sha256(b"x").hexdigest()
    store.close()


# --- disks and permissions


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=False).returncode
    ):
        pytest.skip("a small disk needs root and mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("tier", [Tier.LOCAL, *FASTEST_FIRST])
def test_a_full_disk_is_named_and_holds_no_half_file(sshd: Sshd, tmp_path: Path, small_disk: Path, tier: Tier) -> None:
    items = write(tmp_path / "site", 900_000, 3_000_000, 6_000_000, 900_000, *[400_000] * 12)
    target = LocalStore(str(small_disk)) if tier is Tier.LOCAL else open_sftp(address(sshd, small_disk), tier, QUICK)

    outcomes = list(send(LocalStore(str(tmp_path / "site")), target, items, OPTIONS))

    failed = [one for one in outcomes if isinstance(one, Failed)]
    assert failed[0].item == items[2] and len(failed) > 3
    assert all(isinstance(one.error, DiskFullError) and str(small_disk) in one.error.message for one in failed)
    for item in items:
        final = small_disk / item.target_path
        assert not final.exists() or final.read_bytes() == (tmp_path / "site" / item.source_path).read_bytes()
    with pytest.raises(DiskFullError):
        target.publish("manifest.json", bytes(9_000_000))
    assert not list(small_disk.glob("manifest*"))
    target.close()


@pytest.mark.parametrize("tier", FASTEST_FIRST)
def test_a_place_we_may_not_write_is_named(sshd: Sshd, small_disk: Path, tier: Tier) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    store = open_sftp(address(sshd, small_disk), tier, QUICK)
    for act in (
        lambda: store.publish("m", b"x"),
        lambda: store.write_part("f.part", 0, [b"x"]),
        lambda: store.make_folders(["a/b"]),
    ):
        with pytest.raises(PermanentError) as caught:
            act()
        assert str(small_disk) in caught.value.message
    store.close()


# --- files that move


@pytest.mark.parametrize("tier", FASTEST_FIRST)
def test_a_file_that_goes_away_in_the_middle_fails_alone(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far = sshd.new_folder("far")
    items = write(far, 10, 6 * BLOCK, 20)
    store = open_sftp(address(sshd, far), tier, QUICK)

    def on_bytes(_count: int) -> None:
        (far / "1.tsfile").unlink(missing_ok=True)

    slowly = SendOptions(BLOCK, bandwidth=8e6)
    outcomes = {one.item: one for one in send(store, LocalStore(str(tmp_path)), items, slowly, on_bytes)}

    assert [type(outcomes[item]) for item in items] == [Sent, Failed, Sent]
    failed = outcomes[items[1]]
    assert isinstance(failed, Failed) and isinstance(failed.error, SourceVanishedError)
    assert not (tmp_path / "l" / "1.tsfile").exists()
    store.close()


@pytest.mark.parametrize("tier", FASTEST_FIRST)
def test_a_file_rewritten_in_the_middle_arrives_as_one_of_its_contents(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far = sshd.new_folder("far")
    (item,) = write(far, 6 * BLOCK)
    other = os.urandom(6 * BLOCK)
    store = open_sftp(address(sshd, far), tier, QUICK)
    seen: list[int] = []

    def on_bytes(count: int) -> None:
        if sum(seen) < 3 * BLOCK <= sum(seen) + count:
            (far / "0.tsfile").write_bytes(other)
            os.utime(far / "0.tsfile", (1_600_000_000, 1_600_000_000))
        seen.append(count)

    (sent,) = send(store, LocalStore(str(tmp_path)), [item], OPTIONS, on_bytes)

    assert isinstance(sent, Sent)
    assert (tmp_path / "l" / "0.tsfile").read_bytes() == other
    store.close()


@pytest.mark.parametrize("tier", FASTEST_FIRST)
def test_a_file_that_grows_meanwhile_arrives_as_its_selected_prefix(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far = sshd.new_folder("far")
    items = write(far, 3 * BLOCK, 5000)
    first = [(far / i.source_path).read_bytes() for i in items]
    store = open_sftp(address(sshd, far), tier, QUICK)

    def on_bytes(_count: int) -> None:
        for item in items:
            with (far / item.source_path).open("ab") as file:
                file.write(b"one more entry")

    sent = list(send(store, LocalStore(str(tmp_path)), items, OPTIONS, on_bytes))

    assert [type(one) for one in sent] == [Sent, Sent]
    assert [(tmp_path / i.target_path).read_bytes() for i in items] == first
    store.close()


# --- senders that die

SENDER = """
import json, sys
from tidemark.stores.opening import StoreAddress, open_store
from tidemark.stores.transfer import SendItem, SendOptions, send
source, target, key, host_key, rate, items = json.loads(sys.argv[1])
ends = [open_store(StoreAddress(url, host_key, key)) for url in (source, target)]
options = SendOptions(block_bytes=262144, bandwidth=rate)
print("begin", flush=True)
for one in send(*ends, [SendItem(*item) for item in items], options, lambda count: print(count, flush=True)):
    print(type(one).__name__, one.item.source_path, one.wire_bytes, flush=True)
print("end", flush=True)
"""


def sender(sshd: Sshd, source: str, target: str, items: list[SendItem], rate: float) -> subprocess.Popen[str]:
    asked = json.dumps([source, target, str(sshd.key), sshd.host_key, rate, [list(vars(i).values()) for i in items]])
    plugins = Path(__file__).parent.parent.parent / "plugins"
    return subprocess.Popen(
        [sys.executable, "-c", SENDER, asked],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(plugins)},
    )


@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.full) for way in ("pull", "push")), "local"])
def test_a_sender_killed_with_9_resends_a_block_at_most(sshd: Sshd, tmp_path: Path, way: str) -> None:
    far, near = sshd.new_folder("far"), tmp_path / "near"
    begin, end = (near, far) if way == "push" else (far, near)
    items = write(begin, 3_000_000, *[20_000] * 20)
    urls = {far: sshd.url(far) if way != "local" else f"file://{far}", near: f"file://{near}"}
    whole = sum(item.size for item in items)
    crossed = 0
    for _ in range(4):
        running = sender(sshd, urls[begin], urls[end], items, 3_000_000)
        assert running.stdout is not None
        mine = 0
        for line in running.stdout:
            mine += int(line) if line.strip().isdigit() else 0
            if mine >= 700_000:
                running.send_signal(signal.SIGKILL)
                break
        mine += sum(int(line) for line in running.stdout if line.strip().isdigit())
        running.wait()
        crossed += mine
        assert not [f for f in end.rglob("*.tsfile") if f.read_bytes() != (begin / f.name).read_bytes()]

    running = sender(sshd, urls[begin], urls[end], items, 0)
    out = running.communicate()[0].splitlines()

    crossed += sum(int(line) for line in out if line.isdigit())
    assert out[-1] == "end" and sum(line.startswith("Sent") for line in out) == len(items)
    assert same(items, begin, end)
    assert whole <= crossed <= whole + 4 * (262_144 + 262_144)  # the block under way, and what was read but not yet counted
    assert not list(end.rglob("*.part*"))
