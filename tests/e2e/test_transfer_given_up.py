"""Who stops, gives up or runs out of room in the middle of a transfer: at once, with the reason, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.store_ends import QUICK, address, needs_root, same, write
from tests.services.processes import descendants
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.errors import DiskFullError, PermissionDeniedError, UnreachableError
from tidemark.stores import retrying
from tidemark.stores.agent import part_file as head_room
from tidemark.stores.agent.block_journal import journal_of, part_of
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Range, Store
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.stream.verify import VerifiedPart

pytestmark = pytest.mark.real("sshd")
MB = 1 << 20
LONG_AGO = 1_600_000_000
SILENT = 60.0  # seconds that nobody waits for here: that a line which moves nothing is borne, or more than that


@dataclass
class Ends:
    source: Store
    target: Store
    far: PythonStore
    site: Path
    centre: Path


Between = Callable[[Path], Ends]


@pytest.fixture(params=["pull", "push"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def wire(way: str, sshd: Sshd) -> Iterator[Wire]:
    with Wire(sshd.port, upwards=way == "push") as line:
        yield line


@pytest.fixture
def between(way: str, sshd: Sshd, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Ends of which the target lies where the test says."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.05)
    opened: list[Store] = []

    def ends(centre: Path) -> Ends:
        site = tmp_path / "site"
        site.mkdir()
        far = open_sftp(address(sshd, site if way == "pull" else centre, wire.port), limits=QUICK)
        assert isinstance(far, PythonStore)
        opened.append(far)
        if way == "pull":
            return Ends(far, LocalStore(str(centre)), far, site, centre)
        return Ends(LocalStore(str(site)), far, far, site, centre)

    yield ends
    for store in opened:
        store.close()


@pytest.fixture
def ends(between: Between, tmp_path: Path) -> Ends:
    (tmp_path / "centre").mkdir()
    return between(tmp_path / "centre")


@pytest.fixture
def hang(sshd: Sshd) -> Iterator[Callable[[], None]]:
    """The far end's programs stand still from now on, as ones whose disk does not answer; its server lives."""
    still: list[psutil.Process] = []

    def suspend() -> None:
        for process in descendants(sshd.pid):
            if process.name().startswith("python"):
                process.suspend()
                still.append(process)

    yield suspend
    for process in still:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def old(ends: Ends, *sizes: int) -> list[SendItem]:
    """Files whose times show every change."""
    items = write(ends.site, *sizes)
    for item in items:
        os.utime(ends.site / item.source_path, (LONG_AGO, LONG_AGO))
    return items


def seconds_since(began: float) -> float:
    return time.monotonic() - began


class Interrupted(Exception):
    pass


@pytest.mark.full_after(1)
def test_who_gives_up_does_not_wait_for_a_far_end_that_hangs(ends: Ends, hang: Callable[[], None]) -> None:
    items = old(ends, 40 * MB)
    began = 0.0

    def on_bytes(_count: int) -> None:
        nonlocal began
        hang()
        began = time.monotonic()
        raise Interrupted

    with pytest.raises(Interrupted):
        list(send_files(ends.source, ends.target, items, SendOptions(bandwidth=20e6), on_bytes))
    assert began and seconds_since(began) < SILENT
    ends.far.close()
    assert not (ends.centre / items[0].target_path).exists()


@pytest.mark.full_after(1)
def test_who_is_to_stop_cuts_a_far_end_off_that_hangs(ends: Ends, hang: Callable[[], None]) -> None:
    items = old(ends, 40 * MB)
    ends.far.connection.limits = Limits(stall=1.5)
    hung: list[float] = []

    def on_bytes(_count: int) -> None:
        if not hung:
            hang()
            hung.append(time.monotonic())

    options = SendOptions(bandwidth=20e6, should_stop=lambda: bool(hung))
    assert list(send_files(ends.source, ends.target, items, options, on_bytes)) == []
    assert seconds_since(hung[0]) < SILENT


@pytest.mark.full_after(1)
def test_who_is_to_stop_does_not_wait_for_the_end_of_a_look(ends: Ends, hang: Callable[[], None]) -> None:
    """Digesting what earlier tries left may take minutes; nothing was asked yet, so nothing is waited for."""
    items = old(ends, *[3 * MB] * 4)
    ends.far.connection.limits = Limits(stall=SILENT)
    hang()
    began = time.monotonic()
    assert (
        list(send_files(ends.source, ends.target, items, SendOptions(should_stop=lambda: seconds_since(began) > 0.3))) == []
    )
    assert seconds_since(began) < SILENT


@pytest.mark.full_after(1)
def test_a_stop_while_parts_are_looked_at_keeps_them(
    ends: Ends, way: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = old(ends, 18 * MB)
    crossed: list[int] = []
    stopped = threading.Event()

    def stop() -> bool:
        if sum(crossed) > 8 * MB:
            stopped.set()
        return stopped.is_set()

    wire.once_at(12 * MB, lambda: stopped.wait(8))
    list(send_files(ends.source, ends.target, items, SendOptions(block_bytes=1 << 20, should_stop=stop), crossed.append))
    left = {path: path.read_bytes() for path in ends.centre.rglob("*.part")}
    assert left
    looked: list[bool] = []
    reading, digests = ends.source.read_chunks, ends.source.digest_ranges

    def look() -> None:
        looked.append(True)
        time.sleep(0.5)  # longer than it takes to be told to stop

    def chunks(path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        look()
        return reading(path, offset, length, size)

    def digested(ranges: Sequence[Range]) -> Sequence[str | None]:
        if ranges:
            look()
        return digests(ranges)

    monkeypatch.setattr(ends.source, "read_chunks", chunks)
    monkeypatch.setattr(ends.source, "digest_ranges", digested)
    if way == "pull":  # which looks while more comes
        monkeypatch.setattr(VerifiedPart, "keep_block", lambda *_: look())
    assert list(send_files(ends.source, ends.target, items, SendOptions(should_stop=lambda: bool(looked)))) == []
    assert looked and set(ends.centre.rglob("*.part")) == set(left)
    assert way == "pull" or {path: path.read_bytes() for path in left} == left
    monkeypatch.undo()
    again: list[int] = []
    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(), again.append))
    assert all(isinstance(one, Sent) for one in outcomes) and same([one.item for one in outcomes], ends.site, ends.centre)
    assert sum(again) < 18 * MB - sum(crossed) + 2 * MB


def young(ends: Ends) -> list[SendItem]:
    """The times of the first cannot show a change, so its source is digested again before it is sealed."""
    items = write(ends.site, 3 * MB, 100)
    os.utime(ends.site / items[1].source_path, (LONG_AGO, LONG_AGO))
    return items


@pytest.mark.parametrize("way", ["push"], indirect=True)
def test_a_source_that_cannot_be_read_again_is_its_own_trouble(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests(ranges: Sequence[Range]) -> list[str]:
        if ranges:
            raise PermissionDeniedError("0.tsfile: Permission denied", hint="give access")
        return []

    items = young(ends)
    ends.far.connection.limits = Limits(stall=SILENT)
    monkeypatch.setattr(ends.source, "digest_ranges", digests)
    began = time.monotonic()
    outcomes = {one.item: one for one in send_files(ends.source, ends.target, items, SendOptions(retries=1))}
    failed = outcomes[items[0]]
    assert isinstance(failed, Failed) and isinstance(failed.error, PermissionDeniedError)
    assert isinstance(outcomes[items[1]], Sent)
    assert seconds_since(began) < SILENT


@pytest.mark.parametrize("way", ["push"], indirect=True)
def test_a_source_that_is_away_for_a_moment_is_tried_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Range]] = []
    items, digests = young(ends), ends.source.digest_ranges

    def stale_once(ranges: Sequence[Range]) -> list[str | None]:
        if ranges and not asked:
            asked.append(ranges)
            raise UnreachableError("stale handle", hint="run again")
        return list(digests(ranges))

    monkeypatch.setattr(ends.source, "digest_ranges", stale_once)
    outcomes = list(send_files(ends.source, ends.target, items, SendOptions(retries=2)))
    assert asked and all(isinstance(one, Sent) for one in outcomes) and same(items, ends.site, ends.centre)


@pytest.mark.parametrize("way", ["push"], indirect=True)
def test_a_bug_in_a_thread_that_sends_is_raised_and_not_waited_for(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def digests(ranges: Sequence[Range]) -> list[str]:
        if ranges:
            raise ZeroDivisionError("nobody expected this")
        return []

    items = young(ends)
    monkeypatch.setattr(ends.source, "digest_ranges", digests)
    with pytest.raises(ZeroDivisionError):
        list(send_files(ends.source, ends.target, items, SendOptions()))
    assert not (ends.centre / items[0].target_path).exists()


@pytest.mark.full_after(1)
@needs_root
def test_the_room_on_the_disk_is_looked_at_all_the_way(
    between: Between, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else fills the disk meanwhile: the run ends while there is room for what must still be written."""
    centre = tmp_path / "centre"
    centre.mkdir()
    monkeypatch.setattr(head_room, "LOOK_SECONDS", 0.1)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(centre)], check=True)
    try:
        ends = between(centre)
        items = old(ends, 48 * MB, *[20_000] * 50)
        filled: list[int] = []

        def on_bytes(_count: int) -> None:
            if not filled:
                filled.append(1)
                (centre / "ballast").write_bytes(bytes(70 * MB))

        outcomes = list(send_files(ends.source, ends.target, items, SendOptions(bandwidth=16e6, reserve=32 * MB), on_bytes))
        room = os.statvfs(centre)
        free = room.f_bavail * room.f_frsize
        ends.far.close()
        failed = {one.item: one.error for one in outcomes if isinstance(one, Failed)}
        assert isinstance(failed[items[0]], DiskFullError)
        assert "bytes free" in str(failed[items[0]]) and f"{32 * MB} are to stay free" in str(failed[items[0]])
        assert 8 * MB < free < 64 * MB
        assert (centre / part_of(items[0].target_path)).exists() and (centre / journal_of(items[0].target_path)).exists()
        for one in outcomes:
            assert (centre / one.item.target_path).exists() is isinstance(one, Sent)
        (centre / "ballast").unlink()
        crossed: list[int] = []
        ends.far.connection.drop()
        again = list(send_files(ends.source, ends.target, list(failed), SendOptions(reserve=32 * MB), crossed.append))
        assert all(isinstance(one, Sent) for one in again) and same(items, ends.site, centre)
        assert sum(crossed) < 48 * MB
        ends.far.close()
    finally:
        subprocess.run(["umount", str(centre)], check=True)
