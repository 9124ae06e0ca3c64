"""Whole runs among faults of disks, permissions, databases, clocks: each named, and the next run ends in step."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.crash.edge import path_of
from tests.crash.sync_world import SyncWorld
from tests.e2e.edges import large_file, pulling
from tests.services import postgres as postgres_service
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.ledger import database

pytestmark = pytest.mark.usefixtures("short_limits")
ROOT = Path(__file__).resolve().parents[2]
SLOW = {"bandwidth": "150 KB/s", "block_bytes": 65_536}  # the large file takes three seconds, block by block


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    return Commanded(tmp_path, monkeypatch)


@pytest.fixture
def anybody() -> Iterator[None]:
    try:
        with as_anybody():
            yield
    except PartMissing as missing:
        pytest.skip(str(missing))


# --- disks


@contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Path]:
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs root and mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.full
def test_a_receiver_without_room_is_told_before_the_first_byte_and_goes_on_with_room(edge: Commanded) -> None:
    with tmpfs(edge.root, "size=80m"):
        ballast = edge.root / "ballast"
        ballast.write_bytes(bytes(60_000_000))
        for number in range(1, 4):
            edge.seal(number)

        edge.sync().refused(6, "receiver centre has", "bytes free")

        assert not list((edge.root / "landing").rglob("*.tsfile"))
        status = edge.run("status").json["links"][0]
        assert "bytes free" in str(status["reason"])
        ballast.unlink()
        assert edge.sync().code == 0
        edge.assert_in_step()


def test_a_receiver_that_fills_up_meanwhile_ends_the_run_and_the_next_goes_on(
    edge: Commanded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemark.sync.send import transfer_files as sending

    monkeypatch.setattr(sending, "HEADROOM_BYTES", 0)
    with tmpfs(edge.root, "size=128k,nr_inodes=40"):
        for number in range(1, 31):
            edge.seal(number)

        first = edge.sync()

        first.refused(6, "no space at", str(edge.root))
        edge.assert_no_half_file()
        subprocess.run(["mount", "-o", "remount,size=80m,nr_inodes=4000", str(edge.root)], check=True)
        again = edge.sync()
        assert again.code == 0, again
        assert len(edge.devices()) == 30
        edge.assert_in_step()


def test_a_full_disk_at_the_edge_takes_nothing_from_the_run(edge: Commanded) -> None:
    """No room for the folders of a snapshot: the files are read in place."""
    data = edge.site / "data"
    shutil.rmtree(data)
    with tmpfs(edge.site, "size=1m,nr_inodes=22"):
        for number in range(1, 4):
            edge.seal(number)
        (edge.site / "data/unsequence").mkdir()
        while True:
            try:
                (edge.site / f"fill{time.monotonic_ns()}").touch()
            except OSError:
                break
        said = edge.sync()
        assert said.code in (0, 6), said
        if said.code == 6:
            said.refused(6, "no space at", str(edge.site))
            for file in edge.site.glob("fill*"):
                file.unlink()
            assert edge.sync().code == 0
        assert len(edge.devices()) == 3
        edge.assert_in_step()


@pytest.mark.full
def test_a_ledger_without_room_is_named_and_nothing_is_lost(edge: Commanded) -> None:
    with tmpfs(edge.folder / "var", "size=3m"):
        for number in range(1, 4):
            edge.seal(number)
        assert edge.sync().code == 0
        ballast = edge.folder / "var" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        edge.seal(4, points=2)
        edge.sync().refused(6, "ledger", "full")
        ballast.unlink()
        assert edge.sync().code == 0
        edge.assert_in_step()


def test_a_load_without_room_leaves_the_landing_and_is_done_later(edge: Commanded) -> None:
    with tmpfs(edge.root, "size=80m,nr_inodes=2000"):
        for number in range(1, 6):
            edge.seal(number, f"root.db{number}")
        assert edge.sync("--no-load").code == 0
        filled = fill_inodes(edge.root / "fill")

        said = edge.run("load")

        said.refused(6, "no space at", str(edge.root))
        edge.assert_no_half_file()
        shutil.rmtree(filled)
        assert edge.run("load").code == 0
        assert len(edge.devices()) == 5
        edge.assert_in_step()


def test_a_merge_without_room_changes_nothing_and_is_done_later(edge: Commanded) -> None:
    with tmpfs(edge.root, "size=80m,nr_inodes=2000"):
        for number in range(1, 4):
            edge.seal(number, device="root.sg.d")
        assert edge.sync().code == 0
        before = edge.rows()
        filled = fill_inodes(edge.root / "fill")

        said = edge.run("merge")

        said.refused(6, str(edge.root))
        assert edge.rows() == before
        shutil.rmtree(filled)
        assert edge.run("merge").json["groups"] == 1
        assert edge.rows() == before
        assert edge.run("verify", "--deep").code == 0


def fill_inodes(folder: Path) -> Path:
    """Leave no room for another name on that disk."""
    folder.mkdir()
    with contextlib.suppress(OSError):
        for number in itertools.count():
            (folder / str(number)).touch()
    return folder


@pytest.mark.real("sshd")
@pytest.mark.parametrize(
    "far_end",
    [FarEnd.SHELL, pytest.param(FarEnd.POSIX, marks=pytest.mark.full), pytest.param(FarEnd.SFTP, marks=pytest.mark.full)],
)
def test_a_far_receiver_that_is_full_or_closed_is_named_and_gets_the_rest_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_sshd: Callable[..., Sshd], far_end: FarEnd
) -> None:
    from tidemark.sync.send import transfer_files as sending

    monkeypatch.setattr(sending, "HEADROOM_BYTES", 0)
    server = start_sshd(far_end)
    far = server.files / "centre"
    with tmpfs(far, "size=80m,nr_inodes=16"):
        keys = {"host_key": server.host_key, "key": str(server.key)}
        edge = Commanded(tmp_path, monkeypatch, centre=server.url(far), receiver_keys=keys)
        for number in range(1, 9):
            edge.seal(number)

        full = edge.sync()
        assert full.code in (6, 23), full  # version 3 of SFTP has no number for a full disk
        full.refused(full.code)
        assert {p.read_bytes() for p in far.rglob("*.tsfile")} <= edge.ever
        subprocess.run(["mount", "-o", "remount,ro", str(far)], check=True)
        closed = edge.sync()
        closed.refused(6, server.host, str(far))
        subprocess.run(["mount", "-o", "remount,rw,nr_inodes=4000", str(far)], check=True)
        said = edge.sync()

        assert (said.code, said.json["state"]) == (0, "landed"), said
        assert edge.sync().json["state"] == "nothing"
        assert not [p for p in far.rglob("*") if p.name.endswith((".part", ".blocks", ".tmp"))]
        assert sorted(p.read_bytes() for p in far.rglob("*.tsfile")) == sorted(edge.ever)


# --- permissions


@pytest.mark.full_after(1)
@pytest.mark.parametrize("what", ["landing", "data", "."])
def test_a_receiver_folder_that_may_not_be_written_is_named(edge: Commanded, anybody: None, what: str) -> None:
    edge.seal(1)
    assert edge.sync().code == 0
    edge.seal(2)
    closed = [edge.root / what, *(p for p in (edge.root / what).rglob("*") if p.is_dir() and what != ".")]
    if what == ".":
        shutil.rmtree(edge.root / "landing")
    for folder in closed:
        folder.chmod(0o555)
    try:
        said = edge.sync()
    finally:
        for folder in closed:
            folder.chmod(0o755)
    said.refused(6, str(edge.root), "Permission denied")
    edge.assert_no_half_file()
    assert edge.sync().code == 0
    assert edge.devices() == ["root.sg.d1", "root.sg.d2"]


def test_a_site_folder_that_may_not_be_entered_is_named_and_drops_nothing(edge: Commanded, anybody: None) -> None:
    edge.seal(1)
    assert edge.sync().code == 0
    edge.site.chmod(0)
    try:
        said = edge.sync()
    finally:
        edge.site.chmod(0o755)
    assert said.code in (6, 22), said
    assert "Traceback" not in said.err and said.json["hint"]
    assert edge.sync().json["dropped"] == 0
    edge.assert_in_step()


def test_a_ledger_that_may_not_be_written_is_named(edge: Commanded, anybody: None) -> None:
    edge.seal(1)
    assert edge.sync().code == 0
    edge.seal(2)
    closed = [edge.folder / "var", *(edge.folder / "var").glob("ledger.db*")]
    for place in closed:
        place.chmod(0o555)
    try:
        said = edge.sync()
    finally:
        for place in closed:
            place.chmod(0o755)
    said.refused(6, "ledger", "cannot be written")
    assert edge.sync().code == 0
    edge.assert_in_step()


# --- databases


@contextmanager
def writing_elsewhere(file: Path) -> Iterator[None]:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@pytest.mark.full
def test_a_ledger_that_somebody_keeps_locked_is_tried_again_later(edge: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    edge.seal(1)
    assert edge.sync().code == 0
    edge.seal(2)
    with writing_elsewhere(edge.folder / "var" / "ledger.db"):
        with monkeypatch.context() as patch:
            patch.setattr(database, "BUSY_TIMEOUT_MS", 300)
            edge.sync().refused(5, "ledger", "locked")
        assert edge.run("status").code == 0  # readers are not in the way
    assert edge.sync().code == 0
    edge.assert_in_step()


def test_a_damaged_ledger_is_told_with_the_way_out(edge: Commanded) -> None:
    edge.seal(1)
    assert edge.sync().code == 0
    for file in (edge.folder / "var").glob("ledger.db*"):
        file.write_bytes(b"no database at all" * 500)
    said = edge.sync()
    said.refused(7, "ledger")
    assert "rebuild" in said.json["hint"]


@pytest.mark.full
@pytest.mark.real("postgresql")
def test_a_database_that_stops_in_the_middle_of_a_run_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        base = postgres_service.start()
    except PartMissing as missing:
        pytest.skip(str(missing))
    try:
        url = base.new_database()
        edge = Commanded(tmp_path, monkeypatch, ledger=url, link_keys=SLOW)
        edge.seal(1)
        large_file(edge, 2)
        stopping = threading.Thread(target=once_sending, args=(edge, base.stop))
        stopping.start()
        said = edge.sync()
        stopping.join()
        said.refused(5, "ledger does not answer")
        assert "tidemark:" in said.err and url.split("@")[1].split("/")[0] in said.json["error"]
        edge.run("status").refused(5, "ledger does not answer")
        base.restart()
        edge.link_keys = {}
        edge.write_settings()
        again = edge.sync()
        assert again.code == 0, again
        edge.assert_in_step()
    finally:
        base.close()


def once_sending(edge: Commanded, act: Callable[[], None], size: int = 100_000) -> None:
    """Do `act` when so many bytes lie in the landing."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if (
            sum(bytes_at(Path(folder) / name) for folder, _, names in os.walk(edge.root / "landing") for name in names)
            > size
        ):
            act()
            return
        time.sleep(0.01)
    raise AssertionError("nothing was sent")


def bytes_at(place: Path) -> int:
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_receipt_that_rots_stops_the_link_until_the_receiver_writes_it_again(edge: Commanded) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    assert edge.run("load").code == 0
    (receipt,) = (edge.root / "landing").rglob("receipt.json")
    receipt.write_bytes(receipt.read_bytes()[:-30])
    edge.seal(2)

    said = edge.sync()

    said.refused(7, "receipt of", receipt.parent.name)
    assert "./tidemark load" in said.json["hint"]
    receipt.unlink()
    assert edge.run("load").code == 0
    assert edge.sync().code == 0
    edge.assert_in_step()


# --- processes and clocks


@pytest.mark.full
@pytest.mark.real("sshd")
def test_two_runs_at_once_the_second_names_the_first_and_both_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd
) -> None:
    sending, go_on = threading.Event(), threading.Event()
    with Wire(sshd.port) as wire:
        edge = pulling(tmp_path, monkeypatch, sshd, wire.port)
        edge.seal(1)
        large_file(edge, 2)
        wire.once_at(200_000, lambda: (sending.set(), go_on.wait(60)))
        command = ["--config", str(edge.folder / "tidemark.toml"), "sync", "plant1", "--json"]
        first = subprocess.Popen(
            [sys.executable, "-m", "tidemark.cli", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "plugins")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert sending.wait(60)
        second = edge.sync()
        go_on.set()
        out, err = first.communicate()
        second.refused(5, str(first.pid), "plant1")
        assert first.returncode == 0, (out, err)
        edge.assert_in_step()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("jump", [-86_400.0, -3_600.0, 86_400.0 * 3650])
def test_a_clock_that_jumps_between_runs_changes_no_order(jump: float) -> None:
    """Runs and landings go by their numbers, leases by the boot clock: a wall clock set back or on is only what is shown."""
    world = SyncWorld.in_memory()
    try:
        world.edge.seal(path_of(1))
        world.sync()
        world.edge.clock += int(jump)
        world.edge.seal(path_of(2))
        world.sync()
        world.edge.clock -= int(jump) // 2
        world.edge.seal(path_of(3, partition=1))
        world.sync()
        world.check()
    finally:
        world.close()


def test_files_from_the_future_and_from_before_1970_are_files_like_others(edge: Commanded) -> None:
    for number, mtime in ((1, 4_000_000_000), (2, 0), (3, -86_400)):
        path = edge.seal(number)
        os.utime(edge.site / path, (mtime, mtime))
    assert edge.sync().code == 0
    edge.assert_in_step()
