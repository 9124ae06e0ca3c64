"""Pull and push over a real sshd: what arrives is what the source has, whatever happens on the way, and each byte once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.engine_world import every_line_is_long
from tests.e2e.store_ends import disk, needs_root
from tests.services.processes import descendants, soon
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import CorruptionError, DiskFullError, PermissionDeniedError, SourceVanishedError, UnreachableError
from tidemark.stores import retrying
from tidemark.stores.agent.block_journal import journal_of, part_of
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.open_sftp import login_of, open_on
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.stores.python import bundle as far_source
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh import packets
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

pytestmark = pytest.mark.real("sshd")

OLD = 1_600_000_000
MB = 1 << 20


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.05)


@pytest.fixture(params=["pull", "push"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wire(sshd: Sshd, way: str) -> Iterator[Wire]:
    with Wire(sshd.port, upwards=way == "push") as between:
        yield between


@pytest.fixture
def site(sshd: Sshd) -> Path:
    return sshd.new_folder("site")


@pytest.fixture
def centre(tmp_path: Path) -> Path:
    return tmp_path / "centre"


Remote = Callable[[Path], PythonStore]


@pytest.fixture
def remote(sshd: Sshd, wire: Wire) -> Iterator[Remote]:
    """Opens stores through a wire that tests may cut."""
    opened: list[Store] = []

    def open_remote(folder: Path) -> PythonStore:
        url = sshd.url(folder).replace(f":{sshd.port}/", f":{wire.port}/")
        login, _ = login_of(StoreAddress(url, sshd.host_key, str(sshd.key)))
        store = open_on(SshConnection(login, Limits()), str(folder))
        assert isinstance(store, PythonStore)
        opened.append(store)
        return store

    yield open_remote
    for store in opened:
        store.close()


@dataclass
class Ends:
    """`source` has the files of `site`, `target` those of `centre`; one of them is `far`."""

    source: Store
    target: Store
    far: PythonStore


@pytest.fixture
def between(way: str, remote: Remote) -> Callable[[Path, Path], Ends]:
    def ends(site: Path, centre: Path) -> Ends:
        far = remote(site if way == "pull" else centre)
        return Ends(far, LocalStore(str(centre)), far) if way == "pull" else Ends(LocalStore(str(site)), far, far)

    return ends


@pytest.fixture
def ends(between: Callable[[Path, Path], Ends], site: Path, centre: Path) -> Ends:
    return between(site, centre)


def put(site: Path, name: str, size: int, seed: int = 1) -> SendItem:
    place = site / name
    place.parent.mkdir(parents=True, exist_ok=True)
    pattern = hashlib.sha512(f"{name} {seed}".encode()).digest()
    place.write_bytes((pattern * (size // 64 + 1))[:size])
    os.utime(place, (OLD, OLD))
    return SendItem(name, f"landing/{name}", size)


def same(site: Path, centre: Path, item: SendItem) -> bool:
    return (site / item.source_path).read_bytes()[: item.size] == (centre / item.target_path).read_bytes()


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.full_after(1)
def test_files_of_every_size_arrive_with_their_digest(site: Path, centre: Path, ends: Ends) -> None:
    sizes = [0, 1, 4096, MB - 1, MB, MB + 1, 5 * MB, 9 * MB + 17, *range(100, 130)]
    items = [put(site, f"d{n % 3}/{n} ü 'x'\n{n}.tsfile", size) for n, size in enumerate(sizes)]
    crossed: list[int] = []

    sent = list(send_files(ends.source, ends.target, items, SendOptions(), crossed.append))

    assert {one.item for one in sent if isinstance(one, Sent)} == set(items)
    for one in sent:
        assert isinstance(one, Sent) and same(site, centre, one.item)
        assert one.sha256 == hashlib.sha256((site / one.item.source_path).read_bytes()).hexdigest()
        assert one.wire_bytes == one.item.size and one.verified == "source"
    assert sum(crossed) == sum(sizes)
    assert files_in(centre) == sorted(item.target_path for item in items)
    again = list(send_files(ends.source, ends.target, items, SendOptions()))
    assert {one.wire_bytes for one in again} == {0} and len(again) == len(items)


@pytest.mark.full_after(1)
def test_paramiko_of_another_shape_carries_the_same(
    between: Callable[[Path, Path], Ends], site: Path, centre: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packets, "KNOWN", ())
    assert packets.packetizer_class() is not packets.BulkPacketizer
    ends = between(site, centre)
    items = [put(site, f"{n}", size) for n, size in enumerate([0, 10, 2 * MB, 7 * MB + 3])]
    for _ in range(2):  # the session is whole afterwards
        sent = list(send_files(ends.source, ends.target, items, SendOptions()))
        assert all(isinstance(one, Sent) and same(site, centre, one.item) for one in sent) and len(sent) == len(items)
        for item in items:
            (centre / item.target_path).unlink()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("who", ["server", "client"])
def test_keys_are_made_anew_on_the_way(
    start_sshd: Callable[..., Sshd], tmp_path: Path, way: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd(FarEnd.SHELL, {"RekeyLimit": "3M"} if who == "server" else {})
    if who == "client":
        monkeypatch.setattr(packets.BulkPacketizer, "REKEY_BYTES", 3 * MB)
    keys: list[str] = []
    real = packets.BulkPacketizer.set_inbound_cipher

    def counted(packetizer: packets.BulkPacketizer, *new: Any, **more: Any) -> None:
        keys.append("new")
        real(packetizer, *new, **more)

    monkeypatch.setattr(packets.BulkPacketizer, "set_inbound_cipher", counted)
    site, centre = tmp_path / "site", tmp_path / "centre"
    items = [put(site, "large", 24 * MB), *(put(site, f"s{n}", 40_000) for n in range(100))]
    far = open_store(StoreAddress(server.url(site if way == "pull" else centre), server.host_key, str(server.key)))
    near = LocalStore(str(centre if way == "pull" else site))
    sent = list(send_files(*((far, near) if way == "pull" else (near, far)), items, SendOptions()))
    assert all(isinstance(one, Sent) and same(site, centre, one.item) for one in sent) and len(sent) == len(items)
    assert sum(one.wire_bytes for one in sent) == sum(item.size for item in items)  # over one connection
    assert len(keys) > 3
    far.close()


@pytest.mark.full_after(1)
def test_companions_get_their_names_before_the_file_they_belong_to(site: Path, centre: Path, ends: Ends) -> None:
    items = [put(site, "x.tsfile", 10), put(site, "x.tsfile.resource", 30 * MB), put(site, "x.tsfile.mods", 5)]
    early: list[str] = []

    def look(_count: int) -> None:
        if any(name.endswith("x.tsfile") for name in files_in(centre)):
            there = files_in(centre)  # what has its name since before is listed now
            early.extend(end for end in (".resource", ".mods") if not any(name.endswith(end) for name in there))

    sent = list(send_files(ends.source, ends.target, items, SendOptions(bandwidth=60e6), look))

    assert len(sent) == 3 and all(isinstance(one, Sent) for one in sent) and early == []
    named = {item.target_path: (centre / item.target_path).stat().st_ctime_ns for item in items}  # a rename sets it
    assert named["landing/x.tsfile"] == max(named.values())


@pytest.mark.full_after(1)
def test_without_a_digest_at_the_source_it_says_so(site: Path, centre: Path, ends: Ends) -> None:
    items = [put(site, "small", 1000), put(site, "large", 6 * MB + 5)]
    sent = list(send_files(ends.source, ends.target, items, SendOptions(digest_at_source=False)))
    assert [one.verified for one in sent if isinstance(one, Sent)] == ["target"] * 2
    assert all(same(site, centre, item) for item in items)


@pytest.mark.full_after(2)
@pytest.mark.parametrize("cut_at", [1, 3 * MB, 11 * MB + 12_345, 19 * MB])
def test_a_cut_connection_is_made_again_and_costs_at_most_a_block(
    site: Path, centre: Path, ends: Ends, wire: Wire, cut_at: int
) -> None:
    item = put(site, "large.tsfile", 20 * MB)
    wire.cut_after(cut_at)

    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())

    assert isinstance(sent, Sent) and same(site, centre, item)
    assert sent.wire_bytes <= 20 * MB + 4 * MB
    assert wire.cuts == 1
    assert files_in(centre) == [item.target_path]


def stopped_in_the_middle(ends: Ends, item: SendItem, wire: Wire) -> int:
    """Bytes that crossed until the caller, told of a fifth of them, stopped the sending. The line waits for that."""
    crossed: list[int] = []
    stopped = threading.Event()

    def stop() -> bool:
        if sum(crossed) > item.size // 5:
            stopped.set()
        return stopped.is_set()

    wire.once_at(item.size // 3, lambda: stopped.wait(10))
    assert not list(send_files(ends.source, ends.target, [item], SendOptions(should_stop=stop), crossed.append))
    return sum(crossed)


@pytest.mark.full_after(1)
def test_a_stopped_sending_goes_on_from_its_blocks(site: Path, centre: Path, ends: Ends, wire: Wire) -> None:
    item = put(site, "large.tsfile", 32 * MB)
    first = stopped_in_the_middle(ends, item, wire)
    assert (centre / part_of(item.target_path)).exists() and not (centre / item.target_path).exists()

    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())

    assert isinstance(sent, Sent) and same(site, centre, item)
    assert sent.wire_bytes == 32 * MB - first


@pytest.mark.full_after(1)
def test_rot_in_the_part_costs_its_blocks_alone(site: Path, centre: Path, ends: Ends, way: str, wire: Wire) -> None:
    item = put(site, "large.tsfile", 32 * MB)
    first = stopped_in_the_middle(ends, item, wire)
    part = centre / part_of(item.target_path)
    with part.open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"rot")

    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())

    assert isinstance(sent, Sent) and same(site, centre, item)
    again = 4 * MB if way == "pull" else first - MB  # its block; all behind the first megabyte
    assert sent.wire_bytes == 32 * MB - first + again


@pytest.mark.full_after(1)
def test_a_source_that_changed_meanwhile_is_sent_anew(site: Path, centre: Path, ends: Ends, wire: Wire) -> None:
    item = put(site, "large.tsfile", 16 * MB)
    stopped_in_the_middle(ends, item, wire)
    put(site, "large.tsfile", 16 * MB, seed=2)  # same size, same mtime, same inode

    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())

    assert isinstance(sent, Sent) and same(site, centre, item) and sent.wire_bytes == 16 * MB


@pytest.mark.full_after(1)
def test_what_is_wrong_with_a_file_is_its_own_trouble(site: Path, centre: Path, ends: Ends) -> None:
    good = [put(site, "a", 100), put(site, "b", 3 * MB)]
    gone, gone_large = SendItem("gone", "landing/gone", 10), SendItem("gone too", "landing/gone too", 4 * MB)
    short = put(site, "short", 50)
    short = SendItem(short.source_path, short.target_path, 60)
    (site / "link").symlink_to("a")
    link = SendItem("link", "landing/link", 100)
    other = put(site, "other", 70)
    other = SendItem(other.source_path, other.target_path, 70, "0" * 64)
    blocked = put(site, "blocked/x", 10)
    (centre / "landing").mkdir(parents=True)
    (centre / "landing" / "blocked").write_bytes(b"a file where a folder should be")

    items = [*good, gone, gone_large, short, link, other, blocked]
    outcomes = {one.item: one for one in send_files(ends.source, ends.target, items, SendOptions(retries=1))}

    assert set(outcomes) == set(items)
    assert all(isinstance(outcomes[item], Sent) and same(site, centre, item) for item in good)
    for item, kind in ((gone, SourceVanishedError), (gone_large, SourceVanishedError), (short, SourceVanishedError)):
        failed = outcomes[item]
        assert isinstance(failed, Failed) and isinstance(failed.error, kind) and item.source_path in failed.error.message
    assert isinstance(outcomes[link], Failed)
    assert isinstance(outcomes[other], Failed) and isinstance(outcomes[other].error, CorruptionError)
    assert isinstance(outcomes[blocked], Failed)
    assert not (centre / "landing" / "other").exists()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [1000, 3 * MB])
def test_a_growing_file_is_sent_up_to_what_was_selected(site: Path, centre: Path, ends: Ends, size: int) -> None:
    put(site, "x.tsfile.mods", size + 77)
    item = SendItem("x.tsfile.mods", "landing/x.tsfile.mods", size)
    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())
    assert isinstance(sent, Sent) and same(site, centre, item)


@pytest.mark.full_after(1)
def test_a_silent_line_is_given_up_and_made_again(site: Path, centre: Path, ends: Ends, wire: Wire) -> None:
    item = put(site, "large.tsfile", 20 * MB)
    ends.far.connection.limits = Limits(stall=2.0)
    wire.stall_after(5 * MB)
    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())
    assert isinstance(sent, Sent) and same(site, centre, item)
    assert sent.wire_bytes <= 24 * MB


def test_an_end_that_stays_away_fails_all_with_a_hint(site: Path, centre: Path, ends: Ends, wire: Wire) -> None:
    items = [put(site, f"{n}", 2 * MB) for n in range(5)]
    wire.cut_after(1)
    wire.refuse()
    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(retries=2)))
    assert {one.item for one in outcomes} == set(items)
    assert all(isinstance(one, Failed) and isinstance(one.error, UnreachableError) and one.error.hint for one in outcomes)
    assert not any((centre / item.target_path).exists() for item in items)


def test_a_full_disk_is_seen_before_the_first_byte(
    site: Path, centre: Path, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [put(site, "large", 8 * MB), put(site, "small", 10)]
    monkeypatch.setattr(ends.target, "free_bytes", lambda _folder="": 5 * MB)
    outcomes = {one.item: one for one in send_files(ends.source, ends.target, items, SendOptions())}
    failed = outcomes[items[0]]
    assert isinstance(failed, Failed) and isinstance(failed.error, DiskFullError) and failed.wire_bytes == 0
    assert isinstance(outcomes[items[1]], Sent)


@pytest.mark.full_after(1)
@needs_root
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_disk_that_fills_up_ends_the_run_and_nothing_is_half(
    site: Path, tmp_path: Path, between: Callable[[Path, Path], Ends], percent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [put(site, f"{n}", 1 << 19) for n in range(40)]
    with disk(tmp_path / "disk", "size=16m") as place:
        (place / "ballast").write_bytes(bytes(16 * MB * (100 - percent) // 100 // 4096 * 4096))
        ends = between(site, place)
        monkeypatch.setattr(ends.target, "free_bytes", lambda _folder="": 1 << 40)  # it fills up after we looked
        outcomes = list(send_files(ends.source, ends.target, items, SendOptions()))
        ends.far.close()
        assert {one.item for one in outcomes} == set(items)
        assert any(isinstance(one, Failed) and isinstance(one.error, DiskFullError) for one in outcomes)
        for one in outcomes:
            assert (place / one.item.target_path).exists() is isinstance(one, Sent)
            assert isinstance(one, Failed) or same(site, place, one.item)


@pytest.mark.full_after(1)
def test_the_bandwidth_is_kept(site: Path, centre: Path, ends: Ends) -> None:
    items = [put(site, "large", 6 * MB), *(put(site, f"s{n}", 20_000) for n in range(100))]
    began = time.monotonic()
    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(bandwidth=4e6)))
    seconds = time.monotonic() - began
    assert all(isinstance(one, Sent) for one in outcomes)
    assert seconds > 0.85 * sum(item.size for item in items) / 4e6


@pytest.mark.full_after(1)
def test_a_long_line_gets_more_connections_and_no_descriptor_is_left(
    site: Path, centre: Path, ends: Ends, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_line_is_long(monkeypatch)
    items = [put(site, "large", 40 * MB), put(site, "second", 20 * MB), *(put(site, f"s{n}", 5000) for n in range(200))]
    before = open_descriptors()
    wire.pace(20e6)

    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(connections=4)))

    assert all(isinstance(one, Sent) and same(site, centre, one.item) for one in outcomes) and len(outcomes) == len(items)
    assert 2 <= wire.most_at_once <= 4
    ends.far.close()
    assert soon(lambda: open_descriptors() <= before)  # the wire's own close after ours
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("tidemark-")]
    assert soon(lambda: not [t for t in threading.enumerate() if t.name.startswith("tidemark-")]), names


@pytest.mark.full_after(1)
def test_cut_connections_among_many_are_made_up_for(
    site: Path, centre: Path, ends: Ends, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_line_is_long(monkeypatch)
    items = [put(site, f"f{n}", 7 * MB + n) for n in range(6)]
    wire.pace(30e6)
    wire.cut_after(4 * MB, times=3)
    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(connections=4)))
    assert all(isinstance(one, Sent) and same(site, centre, one.item) for one in outcomes) and len(outcomes) == len(items)
    assert wire.cuts == 3
    assert not [name for name in files_in(centre) if name.endswith((".part", ".blocks"))]


def test_a_journal_of_a_landed_file_is_cleared_away(site: Path, centre: Path, ends: Ends) -> None:
    item = put(site, "large", 3 * MB)
    (centre / "landing").mkdir(parents=True)
    (centre / journal_of(item.target_path)).write_bytes(b"torn")
    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())
    assert isinstance(sent, Sent) and files_in(centre) == [item.target_path]


@needs_root
def test_a_read_only_target_is_named(site: Path, tmp_path: Path, between: Callable[[Path, Path], Ends]) -> None:
    items = [put(site, "x", 10), put(site, "large", 3 * MB)]
    with disk(tmp_path / "disk", "size=16m") as place:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        ends = between(site, place)
        outcomes = list(send_files(ends.source, ends.target, items, SendOptions()))
        ends.far.close()
    for one in outcomes:
        assert isinstance(one, Failed) and isinstance(one.error, PermissionDeniedError) and one.error.hint
    assert len(outcomes) == 2


@pytest.fixture
def without_far_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a program that never wakes lasts for 45 seconds: longer than a silence that a test can wait for."""
    whole = far_source._strip_module
    monkeypatch.setattr(far_source, "_strip_module", lambda name: whole(name).replace("fcntl.F_SETSIG", "fcntl.NO_LEASES"))


@pytest.mark.full_after(1)
@pytest.mark.usefixtures("without_far_leases")
@pytest.mark.parametrize("wakes", [True, False])
def test_a_far_end_that_is_busy_for_long_is_waited_for_but_not_for_ever(
    site: Path, centre: Path, ends: Ends, way: str, wakes: bool, sshd: Sshd, wire: Wire
) -> None:
    """Its program stands still, as one that waits for its disk; its server answers all the while."""
    item = put(site, "large", 30 * MB)
    ends.far.connection.limits = Limits(stall=2.0, silence=6.0)
    still: list[psutil.Process] = []

    def stand_still() -> None:
        still.extend(process for process in descendants(sshd.pid) if process.name().startswith("python"))
        for process in still:
            process.suspend()
        if wakes:
            threading.Timer(3.0, lambda: [process.resume() for process in still]).start()

    wire.once_at(8 * MB, stand_still)
    (sent,) = send_files(ends.source, ends.target, [item], SendOptions())

    assert still and isinstance(sent, Sent) and same(site, centre, item)
    if way == "push" and wakes:
        assert sent.wire_bytes == item.size  # a pull asks another, a push waits for what it has sent
    for process in still:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
