"""What an edge can make us read or remember is bounded: companions, folders, the far program's memory, its line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.commanded import Commanded
from tests.e2e.store_ends import QUICK, TIERS, address
from tests.e2e.test_sync_bad_files import WAYS_IN, site_over
from tests.services.processes import descendants
from tests.services.sshd import Sshd
from tidemark.errors import PermanentError
from tidemark.stores.agent.disk import DEPTH, Disk
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Store, Tier
from tidemark.tsfiles.sealed import COMPANION_BYTES

HUGE = 20_000_000_000
MIB = 1 << 20


def programs(server: Sshd) -> list[psutil.Process]:
    found = []
    for process in descendants(server.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("python"):
                found.append(process)
    return found


@contextlib.contextmanager
def most_memory(server: Sshd) -> Iterator[list[int]]:
    """The most bytes that a program of ours took at the far end while the block ran: `VmHWM` of /proc."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            for process in programs(server):
                with contextlib.suppress(OSError, psutil.NoSuchProcess):
                    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                    most[0] = max([most[0], *(int(x.split()[1]) << 10 for x in lines if x.startswith("VmHWM"))])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


# --- companions


def make_sparse(place: Path, size: int) -> None:
    with place.open("ab") as file:
        file.truncate(size)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_companion_of_any_size_counts_as_missing_and_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, way: str
) -> None:
    edge = site_over(way, tmp_path, monkeypatch, request)
    sound, no_resource, no_mods = edge.seal(1), edge.seal(2), edge.seal(3)
    make_sparse(edge.site / f"{no_resource}.resource", HUGE)
    make_sparse(edge.site / f"{no_mods}.mods", HUGE)

    with most_memory(request.getfixturevalue(way)) if way == "sshd" else contextlib.nullcontext([0]) as most:
        planned = {one["path"]: one["reason"] for one in edge.run("plan", "plant1").json["skipped"]}
        said = edge.sync()

    assert most[0] < 100 * MIB
    assert (said.code, said.json["files"], said.json["loaded"]) == (0, 3, 3), said
    assert edge.devices() == [f"root.sg.d{n}" for n in (1, 2, 3)]
    for path in (f"{no_resource}.resource", f"{no_mods}.mods"):
        assert "counts as missing" in planned[path] and f"{HUGE:,} bytes" in planned[path]
        for told in (said.json["notes"], edge.run("status").json["links"][0]["notes"]):
            assert [note for note in told if note.startswith(f"{path}: ") and "counts as missing" in note], told
    again = edge.sync()
    assert (again.code, again.json["files"]) == (0, 0), "what counts as missing is no change"
    assert edge.run("verify").code == 0
    assert sound not in str(said.json["notes"])


@pytest.mark.full
def test_a_companion_as_large_as_may_be_is_read_in_little_memory(sshd: Sshd) -> None:
    folder = sshd.new_folder()
    (folder / "small").write_bytes(b"x" * 300_000)
    (folder / "large").write_bytes(os.urandom(MIB) * (COMPANION_BYTES // MIB))
    (folder / "uneven").write_bytes(os.urandom(2 * MIB + 7))
    store = open_sftp(address(sshd, folder), Tier.PYTHON, QUICK)
    lengths = [5, 7, 2 * MIB + 3]
    paths = ["small", "large", "gone", "small", "uneven", "uneven", "gone"]
    with most_memory(sshd) as most:
        read = list(store.read_many(paths))
        short = list(store.read_many(["large", "small", "uneven"], lengths))
        whole = store.read("large")
    for path, data in read:
        assert data == ((folder / path).read_bytes() if path != "gone" else None), path
    assert [data for _, data in short] == [(folder / p).read_bytes()[:n] for (p, _), n in zip(short, lengths, strict=True)]
    assert whole == read[1][1]
    assert most[0] < 60 * MIB
    store.close()


# --- folders


def deep_folder(place: Path, depth: int, name: str = "d") -> None:
    """Made by handles: its path may be longer than a system takes."""
    place.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("depth, name", [(1500, "d"), (5000, "d"), (60, "n" * 200)])
@pytest.mark.parametrize("way", WAYS_IN)
def test_folders_that_are_too_deep_are_a_gap_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, way: str, depth: int, name: str
) -> None:
    edge = site_over(way, tmp_path, monkeypatch, request)
    edge.seal(1)
    edge.seal(2, "root.z")
    deep_folder(edge.site / "data/sequence/root.deep", depth, name)
    try:
        said = edge.sync()
        assert (said.code, said.json["files"], said.json["loaded"]) == (23, 2, 2), said
        (left,) = said.json["left_out"]
        assert left["path"].startswith("data/sequence/root.deep/")
        assert left["reason"].startswith("cannot be listed: "), left
        assert edge.run("status").json["links"][0]["state"] == "partial"
        assert edge.sync().code == 23
    finally:
        LocalStore(str(edge.site)).remove_tree("data/sequence/root.deep")
    assert not (edge.site / "data/sequence/root.deep").exists()
    assert edge.sync().code == 0


@pytest.mark.parametrize("tier", TIERS)
def test_a_listing_goes_as_deep_as_it_says_and_no_deeper(sshd: Sshd, tier: Tier) -> None:
    folder = sshd.new_folder()
    here = folder / "data"
    for _ in range(DEPTH):
        here = here / "d"
    (here / "e").mkdir(parents=True)
    (here / "last").touch()
    (here / "e" / "beyond").touch()
    store = open_sftp(address(sshd, folder), tier, QUICK)
    for asked in ("data", ""):
        listing = store.list_files([asked])
        top = "/".join(["data", *["d"] * (DEPTH - (not asked))])
        deeper = f"{top}/e" if asked else f"{top}/d"
        assert [e.path for e in listing.entries] == ([f"{top}/last"] if asked else [])
        assert list(listing.odd) == [(deeper, f"cannot be listed: lies more than {DEPTH} folders deep")]
    store.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", TIERS)
def test_a_folder_is_removed_however_deep_it_is(sshd: Sshd, tier: Tier) -> None:
    folder = sshd.new_folder()
    deep_folder(folder / "a/b", 1200)
    (folder / "a/b/link").symlink_to(folder)
    (folder / "kept").touch()
    store: Store = open_sftp(address(sshd, folder), tier, QUICK)
    store.remove_tree("a")
    assert [place.name for place in folder.iterdir()] == ["kept"]
    store.close()


def test_a_path_of_any_depth_is_looked_at_without_recursion(tmp_path: Path) -> None:
    deep_folder(tmp_path / "d", 1500)
    path = "/".join(["d"] * 1501)
    disk = Disk(str(tmp_path))
    try:
        assert disk.read(f"{path}/file", 0, None) == b""
    finally:
        disk.remove_tree("d")


# --- memory


@pytest.mark.full
def test_a_folder_of_more_files_than_the_memory_takes_is_a_gap(sshd: Sshd) -> None:
    folder = sshd.new_folder()
    (folder / "many").mkdir()
    for number in range(60_000):
        os.close(os.open(folder / "many" / f"{number}-{'n' * 200}", os.O_CREAT))
    (folder / "sound").touch()
    store = open_sftp(address(sshd, folder, memory=24_000_000), Tier.PYTHON, QUICK)
    listing = store.list_files([""])
    assert [entry.path for entry in listing.entries] == ["sound"]
    ((path, why),) = listing.odd
    assert path == "many" and why.startswith("cannot be listed: ") and "far_memory" in why
    assert store.list_folder("") == ["many", "sound"], "the program goes on"
    store.close()


@pytest.mark.full
def test_what_needs_more_memory_than_it_may_take_names_the_setting(sshd: Sshd) -> None:
    folder = sshd.new_folder()
    for number in range(60_000):
        os.close(os.open(folder / f"{number}-{'n' * 200}", os.O_CREAT))
    store = open_sftp(address(sshd, folder, memory=12_000_000), Tier.PYTHON, QUICK)
    with pytest.raises(PermanentError, match="more memory") as caught:
        store.list_folder("")
    assert "far_memory" in caught.value.hint
    assert store.stat("none") is None, "the program goes on"
    store.close()


# --- its line


READER = """
import sys
from tidemark.stores.open import open_store; from tidemark.stores.protocol import StoreAddress
from tidemark.stores.protocol import Range
store = open_store(StoreAddress(*sys.argv[1:4]))
print("open", flush=True)
store.digest_ranges([Range("huge")])
"""


@pytest.mark.full
def test_the_far_program_ends_soon_after_its_line_whatever_it_is_at(start_sshd: Callable[..., Sshd]) -> None:
    """The near end is killed in the middle of a read that takes hours."""
    server = start_sshd()
    make_sparse(server.files / "huge", 100 * HUGE)
    near = subprocess.Popen(
        [sys.executable, "-c", READER, server.url(), server.host_key, str(server.key)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "plugins"},
    )
    try:
        assert near.stdout is not None and near.stdout.readline() == b"open\n"
        (program,) = programs(server)
        deadline = time.monotonic() + 30
        while program.cpu_times().user < 0.5:
            assert time.monotonic() < deadline, "it is at work"
            time.sleep(0.05)
    finally:
        near.kill()
        near.wait()
    gone, alive = psutil.wait_procs([program], timeout=10)
    assert gone and not alive


def test_a_schema_log_of_a_terabyte_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch, site_keys={"schema": "schema"})
    edge.seal(1)
    (edge.site / "schema").mkdir()
    with (edge.site / "schema/mlog.bin").open("wb") as log:
        log.truncate(1 << 40)
    assert "schema/mlog.bin" in str(edge.run("plan", "plant1").json["skipped"])
    edge.sync().refused(23, "schema/mlog.bin was left out", "1,099,511,627,776 bytes")
    assert edge.devices() == ["root.sg.d1"]
