"""The connections of a transfer: none hangs, none is asked too much, refused ones come later, a changed host is told."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.engine_world import BIDING, every_line_is_long
from tests.e2e.store_ends import BLOCK, QUICK, address, same, write
from tests.services.processes import descendants, soon
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import HostKeyError, Retry, UnreachableError
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.python import bundle as far_source
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits
from tidemark.transfer import limits as file_deadline
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.stream import connections as line
from tidemark.transfer.stream import publish as sealing
from tidemark.transfer.stream.connection import open_another
from tidemark.transfer.stream.push import PushConnection, Seal

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]


@pytest.fixture
def long_line(monkeypatch: pytest.MonkeyPatch) -> None:
    every_line_is_long(monkeypatch)


def opened(server: Sshd, folder: Path, limits: Limits = QUICK, port: int = 0) -> PythonStore:
    store = open_sftp(address(server, folder, port), limits=limits)
    assert isinstance(store, PythonStore)
    return store


def far_programs(server: Sshd) -> list[psutil.Process]:
    return [process for process in descendants(server.pid) if process.name().startswith("python")]


def ends(store: Store, near: Path, way: str) -> tuple[Any, Any]:
    return (store, LocalStore(str(near))) if way == "pull" else (LocalStore(str(near)), store)


# --- never more asked than a far end reads


@pytest.mark.full
def test_very_many_tiny_files_with_long_names_arrive(sshd: Sshd, tmp_path: Path) -> None:
    """All requests together are larger than any window: asked at once, nobody would read what lets them go on."""
    far = sshd.new_folder("far")
    deep = "/".join(["d" * 240] * 4)
    (far / deep).mkdir(parents=True)
    for number in range(12_000):
        (far / deep / f"{number}").write_bytes(b"0123456789")
    items = [SendItem(f"{deep}/{number}", f"l/{number}", 10) for number in range(12_000)]
    store = opened(sshd, far)
    give_up = time.monotonic() + 120
    options = SendOptions(retries=0, should_stop=lambda: time.monotonic() > give_up)

    sent = sum(isinstance(one, Sent) for one in send_files(store, LocalStore(str(tmp_path)), items, options))

    assert sent == len(items)
    store.close()


def test_a_request_that_finds_the_window_full_holds_nobody_up(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a server's window is: here far more is asked than OpenSSH's takes, and the slabs are few."""
    monkeypatch.setattr(line, "FILES_AHEAD", 1 << 30)
    monkeypatch.setattr(line, "REQUESTS_AHEAD", 1 << 40)
    monkeypatch.setattr(line, "FRAMES", 2)
    far = sshd.new_folder("far")
    deep = "/".join(["d" * 200] * 15)
    (far / deep).mkdir(parents=True)
    for number in range(2000):
        (far / deep / f"{number}").write_bytes(b"x" * 3000)
    items = [SendItem(f"{deep}/{number}", f"l/{number}", 3000) for number in range(2000)]
    rounds: list[int] = []
    real = line.Connections.start_connections
    monkeypatch.setattr(line.Connections, "start_connections", lambda *with_options: rounds.append(1) or real(*with_options))  # type: ignore[func-returns-value]
    store = opened(sshd, far, BIDING)
    outcomes = list(send_files(store, LocalStore(str(tmp_path)), items, SendOptions()))
    assert sum(isinstance(one, Sent) for one in outcomes) == 2000 and len(rounds) == 1
    store.close()


# --- rounds that get nowhere end


@pytest.mark.full
def test_a_far_end_that_dies_at_every_seal_is_given_up(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of small files come again with each try: they are no progress."""
    whole = far_source._strip_module
    deadly = "\ndef give_names(*_):\n    os._exit(1)\n"
    monkeypatch.setattr(far_source, "_strip_module", lambda name: whole(name) + (deadly if name == "durable" else ""))
    items = write(tmp_path / "site", *[1000] * 40)
    store = opened(sshd, sshd.new_folder("far"))
    crossed: list[int] = []
    give_up = time.monotonic() + 120
    options = SendOptions(retries=2, should_stop=lambda: time.monotonic() > give_up)
    outcomes = list(send_files(LocalStore(str(tmp_path / "site")), store, items, options, crossed.append))
    assert len(outcomes) == 40 and all(isinstance(one, Failed) for one in outcomes)
    assert all(isinstance(one.error, UnreachableError) and one.error.hint for one in outcomes if isinstance(one, Failed))
    assert sum(crossed) <= 3 * 40_000
    store.close()


def test_rounds_without_outcome_and_without_error_are_few_and_end(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = sshd.new_folder("far")
    items = write(far, 1000, 1000)
    rounds: list[int] = []

    def nothing(self: sealing.Publisher, _wholes: object) -> None:
        rounds.append(1)

    monkeypatch.setattr(sealing.Publisher, "queue_files", nothing)
    store = opened(sshd, far)
    give_up = time.monotonic() + 120
    options = SendOptions(retries=2, should_stop=lambda: time.monotonic() > give_up)
    outcomes = list(send_files(store, LocalStore(str(tmp_path)), items, options))
    assert len(outcomes) == 2 and len(rounds) <= 12
    assert all(isinstance(one, Failed) and one.error.retry is Retry.SOON and one.error.hint for one in outcomes)
    store.close()


# --- silence has an end


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_a_far_end_that_hangs_behind_a_living_server_is_given_up(sshd: Sshd, tier: Tier) -> None:
    """Its disk hangs, or somebody stopped it: sshd answers all the while."""
    far = sshd.new_folder("far")
    store = open_sftp(address(sshd, far), tier, QUICK)
    connection = store.connection if isinstance(store, PythonStore) else store._connection  # type: ignore[attr-defined]
    before = set(descendants(sshd.pid))
    assert store.list_folder("") == []
    connection.limits = Limits(stall=2.0, silence=3.0)
    hung = far_programs(sshd) if tier is Tier.PYTHON else sftp_servers(before)
    for process in hung:
        process.suspend()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="did not answer in time") as caught:
        store.list_folder("")
    assert hung and caught.value.hint and caught.value.retry is Retry.SOON
    if tier is Tier.PYTHON:  # with SFTP it is the server itself that stands still
        assert time.monotonic() - began >= 3.0
    assert time.monotonic() - began < 30
    for process in hung:
        if process.is_running():
            process.resume()
    connection.limits = QUICK
    assert store.list_folder("") == []  # on a new connection
    store.close()


def sftp_servers(among: set[psutil.Process]) -> list[psutil.Process]:
    """internal-sftp runs in the process of the session: the last child of each connection."""
    return [process for process in among if process.is_running() and not process.children()]


@pytest.mark.full
def test_a_far_end_that_computes_for_long_says_so(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest may take longer than any silence we bear: signs of life come from the work itself."""
    real = far_source._strip_module

    def slow(name: str) -> str:  # a digest that gets on by a megabyte each fifth of a second, and says so as often
        text = real(name).replace("BEAT_SECONDS = 3.0", "BEAT_SECONDS = 0.2")
        return text.replace("total.update(piece)", "total.update(piece); __import__('time').sleep(0.2)")

    monkeypatch.setattr(far_source, "_strip_module", slow)
    far = sshd.new_folder("far")
    (far / "long").write_bytes(bytes(24 * BLOCK))
    store = open_sftp(address(sshd, far), Tier.PYTHON, Limits(stall=3.0, silence=3.0))
    assert store.sha256("long") == hashlib.sha256(bytes(24 * BLOCK)).hexdigest()
    store.close()


# --- a file has its time


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("tier", "way"),
    [
        (Tier.PYTHON, "pull"),
        (Tier.SFTP, "push"),
        pytest.param(Tier.PYTHON, "push", marks=pytest.mark.full),
        pytest.param(Tier.SFTP, "pull", marks=pytest.mark.full),
        pytest.param(Tier.POSIX, "pull", marks=pytest.mark.full),
        pytest.param(Tier.POSIX, "push", marks=pytest.mark.full),
    ],
)
def test_a_file_that_trickles_is_given_up_and_goes_on_next_time(
    sshd: Sshd, tmp_path: Path, tier: Tier, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_deadline, "LEAST_SECONDS", 1.0)
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin, end = (far, near) if way == "pull" else (near, far)
    items = write(begin, 30 * BLOCK)
    with Wire(sshd.port, upwards=way == "push") as wire:
        store = open_sftp(address(sshd, far, wire.port), tier, QUICK)
        wire.pace(4e6)
        options = SendOptions(BLOCK, slowest=20e6, retries=3)
        (failed,) = send_files(*ends(store, near, way), items, options)
        assert isinstance(failed, Failed) and failed.error.retry is Retry.SOON and "slowest" in failed.error.hint
        assert "0.tsfile" in failed.error.message and not (end / items[0].target_path).exists()
        wire.pace(0)
        (sent,) = send_files(*ends(store, near, way), items, SendOptions(BLOCK))
        assert isinstance(sent, Sent) and same(items, begin, end)
        assert 0 < sent.wire_bytes < 30 * BLOCK
        store.close()


# --- as many connections as the server lets us have


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("limits", "way"),
    [
        pytest.param({"MaxStartups": "2:100:2"}, "pull", id="few starts-pull"),
        pytest.param({"MaxSessions": "1"}, "push", id="one session-push"),
        pytest.param({"MaxStartups": "2:100:2"}, "push", marks=pytest.mark.full, id="few starts-push"),
        pytest.param({"MaxSessions": "1"}, "pull", marks=pytest.mark.full, id="one session-pull"),
    ],
)
@pytest.mark.usefixtures("long_line")
def test_connections_that_are_refused_come_later_and_none_is_missed(
    start_sshd: Callable[..., Sshd], tmp_path: Path, way: str, limits: dict[str, str]
) -> None:
    server = start_sshd(FarEnd.SHELL, limits)
    far, near = server.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin, end = (far, near) if way == "pull" else (near, far)
    items = write(begin, *[4 * BLOCK] * 8, *[5000] * 100)
    with Wire(server.port, upwards=way == "push") as wire:
        store = opened(server, far, port=wire.port)
        wire.pace(3e6)
        outcomes = list(send_files(*ends(store, near, way), items, SendOptions(BLOCK, connections=4)))
        assert all(isinstance(one, Sent) for one in outcomes) and same(items, begin, end)
        assert wire.most_at_once >= 2
        store.close()
        assert soon(lambda: wire.open == 0)


@pytest.mark.full
@pytest.mark.usefixtures("long_line")
def test_a_refused_connection_is_tried_again_after_a_pause(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = sshd.new_folder("far")
    items = write(far, *[4 * BLOCK] * 6)
    tries: list[str] = []

    def refused_twice(first: SshConnection, root: str) -> Any:
        tries.append(root)
        answer = open_another(first, root)
        if len(tries) <= 2:
            answer.connection.drop()
            return answer._replace(session=None)
        wire.pace(0)
        return answer

    monkeypatch.setattr(line, "open_another", refused_twice)
    with Wire(sshd.port) as wire:
        store = opened(sshd, far, port=wire.port)
        wire.pace(1e6)  # until it was
        assert all(isinstance(one, Sent) for one in send_files(store, LocalStore(str(tmp_path)), items, SendOptions(BLOCK)))
        store.close()
    assert len(tries) > 2


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_the_connection_that_waits_takes_over_in_the_same_round(
    sshd: Sshd, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a long line that loses nothing one connection carries; a second is open, for the case that it does not."""
    monkeypatch.setattr(line, "SHORT_ROUND_TRIP", 0.0)
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    begin, end = (far, near) if way == "pull" else (near, far)
    items = write(begin, *[8 * BLOCK] * 3, *[5000] * 50)
    lines: list[line.Connections] = []
    carried: list[int] = []
    real = line.Connections.start_connections

    def seen(self: line.Connections, options: SendOptions) -> None:
        lines.append(self)
        real(self, options)

    def cut_the_first() -> None:
        assert soon(lambda: bool(lines and lines[0]._waiting and lines[0].active[0].bytes))
        carried.append(len(lines[0].active))
        lines[0].active[0].connection.drop()
        wire.pace(0)

    monkeypatch.setattr(line.Connections, "start_connections", seen)
    with Wire(sshd.port, upwards=way == "push") as wire:
        store = opened(sshd, far, port=wire.port)
        wire.pace(1e6)  # until then
        cutting = threading.Thread(target=cut_the_first)
        cutting.start()
        outcomes = list(send_files(*ends(store, near, way), items, SendOptions(BLOCK)))
        cutting.join()
        assert carried == [1] and len(lines) == 1
        assert all(isinstance(one, Sent) for one in outcomes) and same(items, begin, end)
        store.close()
        assert soon(lambda: wire.open == 0)


@pytest.mark.usefixtures("long_line")
def test_another_connection_gives_the_names_that_a_lost_one_was_to_give(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same round, and without a byte of the files again."""
    far, near = sshd.new_folder("far"), tmp_path / "near"
    items = write(near, *[5000] * 20)
    rounds: list[int] = []
    lost: list[set[int]] = []
    start, publish = line.Connections.start_connections, PushConnection.publish_files

    def counted(self: line.Connections, options: SendOptions) -> None:
        rounds.append(1)
        start(self, options)

    def lost_before(carrier: PushConnection, seals: list[Seal]) -> None:
        if not lost:
            lost.append({seal.number for seal in seals})
            carrier.connection.drop()
        publish(carrier, seals)

    monkeypatch.setattr(line.Connections, "start_connections", counted)
    monkeypatch.setattr(PushConnection, "publish_files", lost_before)
    store = opened(sshd, far)
    outcomes = list(send_files(LocalStore(str(near)), store, items, SendOptions(BLOCK)))
    store.close()
    assert all(isinstance(one, Sent) for one in outcomes) and same(items, near, far)
    assert lost and len(rounds) == 1
    assert {one.wire_bytes for one in outcomes if items.index(one.item) in lost[0]} == {5000}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.usefixtures("long_line")
def test_a_line_that_was_cut_is_as_long_as_before(
    start_sshd: Callable[..., Sshd], tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round has several connections too, though it begins with none."""
    monkeypatch.setattr(line, "SHORT_ROUND_TRIP", 1e-6)
    sshd = start_sshd()
    far, near = sshd.new_folder("far"), tmp_path / "near"
    near.mkdir()
    items = write(far if way == "pull" else near, *[8 * BLOCK] * 4)
    lines: list[line.Connections] = []
    real = line.Connections.__init__

    def seen(self: line.Connections, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        lines.append(self)

    monkeypatch.setattr(line.Connections, "__init__", seen)
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.once_at(2 * BLOCK, sshd.drop_connections)
        store = opened(sshd, far, port=wire.port)
        options = SendOptions(BLOCK, connections=1)  # so that a cut ends the round
        sent = list(send_files(*ends(store, near, way), items, options))
        assert all(isinstance(one, Sent) for one in sent)
        assert len(lines) >= 2 and all(one.is_long for one in lines)
        store.close()


# --- another host than before


@pytest.mark.usefixtures("long_line")
def test_another_host_key_on_a_further_connection_ends_the_run_and_is_told(
    start_sshd: Callable[..., Sshd], sshd: Sshd, tmp_path: Path
) -> None:
    far = sshd.new_folder("far")
    items = write(far, *[8 * BLOCK] * 4)
    with Wire(sshd.port) as wire:
        store = opened(sshd, far, port=wire.port)
        wire.pace(1e6)
        wire._server = start_sshd().port  # who connects now meets somebody else
        outcomes = list(send_files(store, LocalStore(str(tmp_path)), items, SendOptions(BLOCK)))
        failed = [one for one in outcomes if isinstance(one, Failed)]
        assert failed and all(isinstance(one.error, HostKeyError) for one in failed)
        assert "is another one" in failed[0].error.message and failed[0].error.hint
        store.close()


@pytest.mark.usefixtures("long_line")
def test_a_bug_while_a_connection_is_opened_is_not_silent(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = sshd.new_folder("far")
    items = write(far, *[4 * BLOCK] * 4)
    store = opened(sshd, far)
    monkeypatch.setattr("tidemark.transfer.stream.connection.start_far_end", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        list(send_files(store, LocalStore(str(tmp_path)), items, SendOptions(BLOCK, bandwidth=1e6)))
    store.close()
