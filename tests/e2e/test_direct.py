"""Two nodes that reach each other: files go from the one to the other, and this process only says which."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.e2e.store_ends import IMPATIENT, MAC_ROOM, QUICK, address
from tests.e2e.test_relay import assert_whole, fill
from tests.services.processes import descendants, wait_until
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import DiskFullError, HostKeyError
from tidemark.stores.agent.block_journal import journal_of, part_of
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Store
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, open_direct_path, send_files
from tidemark.transfer.stream import direct

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

MB = 1 << 20
OPTIONS = SendOptions(retries=3, direct=True)
OLD = 1_600_000_000


KNOWN = Path("/tmp")  # where a node's files of known hosts are, for the moment of a login


@dataclass
class Nodes:
    """Two servers with keys of their own; `near` and `far` are ports to reach them by, where a line is between."""

    first: Sshd
    second: Sshd
    begin: Path
    end: Path
    before: frozenset[Path] = field(default_factory=lambda: frozenset(KNOWN.glob("tidemark-known-*")))

    @contextmanager
    def opened(self, near: int = 0, far: int = 0, limits: Limits = QUICK) -> Iterator[tuple[Store, Store]]:
        source = open_sftp(address(self.first, self.begin, near), limits=limits)
        target = open_sftp(address(self.second, self.end, far), limits=limits)
        with closing(source), closing(target):
            yield source, target

    def large(self, size: int = 12 * MB) -> list[SendItem]:
        (self.begin / "large.tsfile").write_bytes(os.urandom(size))
        os.utime(self.begin / "large.tsfile", (OLD, OLD))
        return [SendItem("large.tsfile", "l/large.tsfile", size)]


@pytest.fixture
def nodes(sshd: Sshd, start_sshd: Callable[..., Sshd]) -> Nodes:
    other = start_sshd(FarEnd.SHELL)
    return Nodes(sshd, other, sshd.new_folder("n1"), other.new_folder("n2"))


def roads(outcomes: list[Sent | Failed]) -> set[str]:
    return {one.path for one in outcomes if isinstance(one, Sent)}


def leftovers(before: frozenset[Path]) -> list[Path]:
    """Those that came and stay: another test's may be there for the moment of its login, or after the kill it is about."""
    found: list[Path] = []
    for _ in range(100):
        found = [one for one in KNOWN.glob("tidemark-known-*") if one not in before]
        if not found:
            break
        time.sleep(0.1)
    return found


@pytest.mark.full
def test_files_go_from_node_to_node_and_not_through_this_process(nodes: Nodes) -> None:
    items = [*fill(nodes.begin), *nodes.large(30 * MB)]
    with Wire(nodes.first.port, both=True) as line, nodes.opened(near=line.port) as (source, target):
        crossed: list[int] = []

        outcomes = list(send_files(source, target, items, OPTIONS, crossed.append))

        assert line.came < 4 * MAC_ROOM  # all that this process and the source said to each other
        assert sum(crossed) == sum(item.size for item in items)
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert {(one.verified, one.path) for one in outcomes if isinstance(one, Sent)} == {("source", "direct")}
    assert not leftovers(nodes.before)


@pytest.mark.full
def test_an_rsa_key_is_lent_too(nodes: Nodes) -> None:
    """It signs by another name than its own, and by SHA-2 alone."""
    items, key = fill(nodes.begin), nodes.second.folder / "rsa_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(key)], check=True)
    with (nodes.second.folder / "authorized_keys").open("a") as keys:
        keys.write(key.with_suffix(".pub").read_text())
    source = open_sftp(address(nodes.first, nodes.begin), limits=QUICK)
    target = open_sftp(address(nodes.second, nodes.end, key=str(key)), limits=QUICK)
    with closing(source), closing(target):
        outcomes = list(send_files(source, target, items, OPTIONS))
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert roads(outcomes) == {"direct"}


@pytest.mark.full
def test_what_is_there_is_not_sent_again_and_a_line_serves_many_sendings(nodes: Nodes) -> None:
    items = fill(nodes.begin)
    with nodes.opened() as (source, target):
        first = list(send_files(source, target, items[:5], OPTIONS))
        second = list(send_files(source, target, items, OPTIONS))
        assert isinstance(source, PythonStore) and len(source.direct_routes) == 1
    wire_bytes = {one.item.source_path: one.wire_bytes for one in second}
    assert_whole(items, nodes.begin, nodes.end, second)
    assert {wire_bytes[one.item.source_path] for one in first} == {0}
    assert roads([*first, *second]) == {"direct"}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("at", [MB // 2, 5 * MB, 11 * MB])
def test_the_line_between_the_nodes_may_be_cut(nodes: Nodes, at: int) -> None:
    items = nodes.large()
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):
        line.cut_after(at, times=1)

        outcomes = list(send_files(source, target, items, OPTIONS))

        assert line.cuts == 1
        assert line.came <= 12 * MB + OPTIONS.block_bytes + MAC_ROOM
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert roads(outcomes) == {"direct"}
    assert outcomes[0].wire_bytes <= 12 * MB + OPTIONS.block_bytes


@pytest.mark.full_after(1)
@pytest.mark.parametrize("upwards", [True, False])
def test_the_line_to_the_source_may_be_cut(nodes: Nodes, upwards: bool) -> None:
    """Handshakes and the program take about 60 KB up and 20 KB down: the cuts come while files go."""
    items = nodes.large(40 * MB)
    with Wire(nodes.first.port, upwards=upwards) as line, nodes.opened(near=line.port) as (source, target):
        list(send_files(source, target, [], OPTIONS))
        assert isinstance(source, PythonStore) and isinstance(target, PythonStore)
        open_direct_path(source, target)
        line.cut_after(1000, times=1)

        outcomes = list(send_files(source, target, items, OPTIONS))

        assert line.cuts == 1
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert outcomes[0].wire_bytes <= 40 * MB + OPTIONS.block_bytes


@pytest.mark.full
def test_a_killed_server_at_either_end_is_gone_on_from(nodes: Nodes) -> None:
    items, killed = nodes.large(24 * MB), list[Sshd]()
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):

        def kill(server: Sshd) -> None:
            server.drop_connections()
            killed.append(server)

        def kill_one_and_then_the_other() -> None:
            line.once_at(8 * MB, lambda: kill(nodes.first))
            kill(nodes.second)

        line.once_at(6 * MB, kill_one_and_then_the_other)
        outcomes = list(send_files(source, target, items, OPTIONS))
        assert killed == [nodes.second, nodes.first]

    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert outcomes[0].wire_bytes <= 24 * MB + 2 * OPTIONS.block_bytes
    assert not leftovers(nodes.before)


@pytest.mark.full
def test_a_line_between_the_nodes_that_stalls_is_given_up(nodes: Nodes) -> None:
    items = nodes.large()
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port, limits=IMPATIENT) as (source, target):
        line.stall_after(5 * MB)

        outcomes = list(send_files(source, target, items, OPTIONS))

    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert roads(outcomes) == {"direct"}
    assert outcomes[0].wire_bytes <= 12 * MB + OPTIONS.block_bytes


@pytest.mark.full
def test_nothing_runs_on_at_either_node(nodes: Nodes) -> None:
    """Not even where this process stops listening in the middle."""
    items = [*nodes.large(40 * MB), *fill(nodes.begin)]
    with nodes.opened() as (source, target):
        going = send_files(source, target, items, OPTIONS)
        next(going)
        going.close()  # type: ignore[attr-defined]
    for server in (nodes.first, nodes.second):
        wait_until(lambda server=server: not descendants(server.pid), server.process, 20, "the sessions' end")  # type: ignore[misc]
    assert not leftovers(nodes.before)


@pytest.mark.full
def test_the_relay_goes_on_where_a_direct_sending_stopped(nodes: Nodes) -> None:
    """And the other way round: both keep the same journal."""
    items, came = nodes.large(16 * MB), [0]
    for options, until in ((OPTIONS, 6 * MB), (SendOptions(), 12 * MB)):
        stopped, before = threading.Event(), came[0]

        def stop(until: int = until, stopped: threading.Event = stopped) -> bool:
            if came[0] >= until:
                stopped.set()
            return stopped.is_set()

        def count(size: int) -> None:
            came[0] += size

        with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):
            line.once_at(until - before + MB, lambda stopped=stopped: stopped.wait(8))  # type: ignore[misc]
            assert not list(send_files(source, target, items, replace(options, should_stop=stop), count))
            assert before < came[0] <= until + OPTIONS.block_bytes + MB
        assert all((nodes.end / of("l/large.tsfile")).exists() for of in (part_of, journal_of))
    with nodes.opened() as (source, target):
        outcomes = list(send_files(source, target, items, OPTIONS))
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert came[0] + outcomes[0].wire_bytes <= 16 * MB + 2 * OPTIONS.block_bytes


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [20_000, 12 * MB])
def test_a_source_that_changes_during_the_sending_is_never_mixed(nodes: Nodes, size: int) -> None:
    items, new = nodes.large(size), os.urandom(size)
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):

        def change() -> None:
            with (nodes.begin / "large.tsfile").open("r+b") as there:  # one that is shorter for a moment has failed
                there.write(new)

        line.once_at(min(size, 4 * MB), change)
        (sent,) = send_files(source, target, items, OPTIONS)

    there = (nodes.end / "l" / "large.tsfile").read_bytes()
    assert isinstance(sent, Sent)
    assert there == new or size == 20_000  # a small one was there whole before


@pytest.mark.full
def test_a_source_whose_mtime_is_set_back_after_a_change_is_never_mixed(nodes: Nodes) -> None:
    items, size = nodes.large(), 12 * MB
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):

        def change() -> None:
            with (nodes.begin / "large.tsfile").open("r+b") as there:
                there.write(b"B" * size)
            os.utime(nodes.begin / "large.tsfile", (OLD, OLD))

        line.once_at(4 * MB, change)
        (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent) and sent.wire_bytes > size
    assert (nodes.end / "l" / "large.tsfile").read_bytes() == b"B" * size


@pytest.mark.full
def test_a_file_that_is_gone_or_shorter_fails_alone(nodes: Nodes) -> None:
    items = fill(nodes.begin)
    (nodes.begin / items[0].source_path).unlink()
    (nodes.begin / items[-1].source_path).write_bytes(b"short")
    with nodes.opened() as (source, target):
        outcomes = list(send_files(source, target, items, OPTIONS))
    failed = {one.item for one in outcomes if isinstance(one, Failed)}
    assert failed == {items[0], items[-1]}
    assert len(outcomes) == len(items)


@pytest.mark.full
def test_a_bad_digest_gets_no_name(nodes: Nodes) -> None:
    (item,) = nodes.large()
    with nodes.opened() as (source, target):
        (failed,) = send_files(source, target, [SendItem(item.source_path, item.target_path, item.size, "1" * 64)], OPTIONS)
    assert isinstance(failed, Failed)
    assert not (nodes.end / item.target_path).exists()


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own, so root")
def test_a_full_target_ends_the_sending_before_its_disk_is_full(nodes: Nodes) -> None:
    items, filled = nodes.large(48 * MB), [0]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(nodes.end)], check=True)
    try:

        def fill_up(_count: int) -> None:
            if not filled[0]:
                filled[0] = 1
                (nodes.end / "ballast").write_bytes(bytes(80 * MB))

        options = SendOptions(bandwidth=8e6, reserve=32 * MB, direct=True)
        with nodes.opened() as (source, target):
            (failed,) = send_files(source, target, items, options, fill_up)
        room = os.statvfs(nodes.end)
        assert isinstance(failed, Failed) and isinstance(failed.error, DiskFullError)
        assert room.f_bavail * room.f_frsize > 8 * MB
    finally:
        subprocess.run(["umount", "--lazy", str(nodes.end)], check=True)


# --- where there is no road


def without_ssh(first: Sshd) -> None:
    """Its sessions find python3 and the tools, and no ssh."""
    tools = first.folder / "few"
    tools.mkdir()
    for name in ("python3", "sh", "cat", "renice", "ionice"):
        if found := shutil.which(name, path="/usr/local/bin:/usr/bin:/bin"):
            (tools / name).symlink_to(found)
    config = first.folder / "sshd_config"
    config.write_text(config.read_text().replace("SetEnv SHLVL=2", f"SetEnv SHLVL=2 PATH={tools}"))
    first.stop()
    first.restart()


def assert_relayed(nodes: Nodes, reason: str, far: int = 0) -> None:
    items = fill(nodes.begin)
    with nodes.opened(far=far) as (source, target):
        outcomes = list(send_files(source, target, items, OPTIONS))
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    (road,) = roads(outcomes)
    assert road.startswith(f"relayed: {nodes.first.user}@127.0.0.1:{nodes.first.port} does not reach it: ")
    assert reason in road
    assert not leftovers(nodes.before)


@pytest.mark.full
def test_a_source_without_an_ssh_client_is_relayed(start_sshd: Callable[..., Sshd], sshd: Sshd) -> None:
    first = start_sshd(FarEnd.SHELL)
    without_ssh(first)
    assert_relayed(Nodes(first, sshd, first.new_folder("n1"), sshd.new_folder("n2")), "it has no ssh client")


@pytest.mark.full
def test_a_source_that_forwards_no_agent_is_relayed(start_sshd: Callable[..., Sshd], sshd: Sshd) -> None:
    first = start_sshd(FarEnd.SHELL, {"AllowAgentForwarding": "no"})
    nodes = Nodes(first, sshd, first.new_folder("n1"), sshd.new_folder("n2"))
    assert_relayed(nodes, "its sshd forwards no agent (AllowAgentForwarding)")


@pytest.mark.full
def test_a_target_that_the_source_does_not_reach_is_relayed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall: this process gets there by a line that is open to it alone."""
    with Wire(nodes.second.port) as line:
        made = direct.ssh_command

        def elsewhere(login: direct.Login, limits: direct.Limits, remote: str) -> list[str]:
            return ["1" if word == str(line.port) else word for word in made(login, limits, remote)]

        monkeypatch.setattr(direct, "ssh_command", elsewhere)
        assert_relayed(nodes, "Connection refused", far=line.port)


@pytest.mark.full
def test_a_key_that_the_source_may_not_log_in_with_is_relayed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.transfer.stream.direct.AgentRequests._is_login", lambda *_: False)
    assert_relayed(nodes, "Permission denied")


@pytest.mark.full
def test_a_line_that_is_lost_for_good_is_relayed_from_where_it_was(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    items = nodes.large()
    with Wire(nodes.second.port, upwards=True) as line, nodes.opened(far=line.port) as (source, target):

        def lose() -> None:
            monkeypatch.setattr(direct, "ssh_command", lambda *_: ["false"])
            nodes.second.drop_connections()

        line.once_at(5 * MB, lose)
        outcomes = list(send_files(source, target, items, OPTIONS))

    assert_whole(items, nodes.begin, nodes.end, outcomes)
    (road,) = roads(outcomes)
    assert road.startswith("relayed: ")
    assert outcomes[0].wire_bytes <= 12 * MB + OPTIONS.block_bytes


@pytest.mark.full
def test_another_host_key_seen_by_the_source_is_an_error_and_no_reason_to_relay(
    nodes: Nodes, start_sshd: Callable[..., Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who answers the source at the target's address is not the target."""
    impostor = start_sshd(FarEnd.SHELL)
    items = fill(nodes.begin)
    made = direct.ssh_command

    def astray(login: direct.Login, limits: direct.Limits, remote: str) -> list[str]:
        return [str(impostor.port) if word == str(nodes.second.port) else word for word in made(login, limits, remote)]

    monkeypatch.setattr(direct, "ssh_command", astray)
    with nodes.opened() as (source, target):
        outcomes = list(send_files(source, target, items, OPTIONS))

    assert {type(one) for one in outcomes} == {Failed} and len(outcomes) == len(items)
    assert all(isinstance(one.error, HostKeyError) for one in outcomes if isinstance(one, Failed))
    assert not list(nodes.end.rglob("*"))


def test_nobody_who_did_not_ask_for_it_sends_directly(nodes: Nodes) -> None:
    """A site's machine is lent no key to the centre."""
    items = fill(nodes.begin)
    with nodes.opened() as (source, target):
        outcomes = list(send_files(source, target, items, SendOptions()))
        assert isinstance(source, PythonStore) and not source.direct_routes
    assert_whole(items, nodes.begin, nodes.end, outcomes)
    assert roads(outcomes) == {""}
