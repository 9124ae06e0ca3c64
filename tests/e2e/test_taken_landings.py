"""What an edge can write is never what readers read: its hard links and open files reach no file of the catalog.

A landing that a run of this ledger carried is placed by link, as it always was; every other one is copied first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre, d1, rows
from tests.commanded import Commanded
from tests.landing_maker import SITE_A, SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.errors import CorruptionError, DiskFullError
from tidemark.operations.decisions import owners_transfer, quarantine_release
from tidemark.receiver.load import examine as taking
from tidemark.receiver.load import load as load_landings
from tidemark.stores.local import copy_files

GOOD = source(1)


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


class Edge:
    """It keeps a hard link of every file of a landing and an open file, and writes to them when it likes."""

    def __init__(self, landing: Path, aside: Path) -> None:
        aside.mkdir()
        self.handles = []
        for number, place in enumerate(p for p in sorted(landing.rglob("*")) if p.is_file() and not p.is_symlink()):
            os.link(place, aside / str(number))
            self.handles += [os.open(aside / str(number), os.O_RDWR), os.open(place, os.O_RDWR)]

    def spoil(self) -> None:
        for handle in self.handles:
            os.pwrite(handle, b"\xff" * 40, max(0, os.fstat(handle).st_size // 2 - 20))
            os.close(handle)


def contents(centre: Centre, *folders: str) -> dict[str, bytes]:
    """Every file below these folders of the receiver."""
    return {
        f"{below}/{path}": (centre.root / below / path).read_bytes() for below in folders for path in centre.files(below)
    }


def test_links_and_open_files_reach_nothing_that_was_loaded(centre: Centre, tmp_path: Path) -> None:
    """TsFiles, deletions, schema logs."""
    schema = [("system/schema/mlog.txt", 1, 0, b"2,root.sg\n0,root.sg.d1.s,2,0,1,,,\n")]
    deleted = d1((1, 10), (2, 20), mods=deletion("root.sg.d1.s", 2, 2))
    edge = Edge(centre.sender().land({GOOD: deleted}, schema=schema), tmp_path / "edge")
    assert centre.load().exit_code == 0
    before, kept = contents(centre, "data"), contents(centre, "schema", "answered")
    assert len(before) == 2 and len(kept) == 4
    edge.spoil()
    assert (contents(centre, "data"), contents(centre, "schema", "answered")) == (before, kept)
    assert centre.rows() == rows((1, 10))
    assert centre.files("taken") == []


@pytest.mark.full
def test_nor_anything_that_is_held_or_refused(centre: Centre, tmp_path: Path) -> None:
    centre.sender().land({GOOD: d1((1, 10))})
    centre.load()
    other = centre.sender(SITE_B, name="plant2")
    edge = Edge(other.land({GOOD: d1((5, 50)), source(2): {"": b"no TsFile"}}), tmp_path / "edge")
    result = centre.load()
    assert (result.refused, result.quarantined) == (1, 1)
    waiting = contents(centre, "refused", "quarantine")
    assert len(waiting) >= 2
    edge.spoil()
    assert contents(centre, "refused", "quarantine") == waiting
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", SITE_B)
    assert centre.rows() == rows((1, 10), (5, 50))


def test_what_waits_since_before_is_copied_when_it_is_let_in(centre: Centre, tmp_path: Path) -> None:
    """An older Tidemark put it there by a link, which the edge may still have."""
    centre.sender().land({GOOD: d1((1, 10))})
    centre.load()
    centre.sender(SITE_B, name="plant2").land({GOOD: d1((5, 50))})
    centre.load()
    [waits] = [path for path in contents(centre, "refused") if path.endswith(".tsfile")]
    os.link(centre.root / waits, tmp_path / "link")
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", SITE_B)
    spoiled = (tmp_path / "link").stat()
    assert spoiled.st_ino not in {p.stat().st_ino for p in (centre.root / "data").rglob("*") if p.is_file()}
    assert (spoiled.st_nlink, centre.files("taken")) == (1, [])
    assert centre.rows() == rows((1, 10), (5, 50))


def test_a_released_file_is_a_copy_too(centre: Centre, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by a check that was wrong; the edge has a link to what waits. Held again, nothing is left over."""
    centre.sender().land({GOOD: d1((1, 10))})
    with monkeypatch.context() as patched:
        patched.setattr("tidemark.receiver.load.check.check_and_describe", _refuse)
        assert centre.load().quarantined == 1
        [waits] = [path for path in contents(centre, "quarantine") if path.endswith(".tsfile")]
        os.link(centre.root / waits, tmp_path / "link")
        with pytest.raises(CorruptionError, match="still cannot be loaded"):
            quarantine_release(centre.app, centre.receiver, "1", centre.engine)
        assert centre.files("taken") == []
    quarantine_release(centre.app, centre.receiver, "1", centre.engine)
    handle = os.open(tmp_path / "link", os.O_RDWR)
    os.pwrite(handle, b"\xff" * 40, 20)
    os.close(handle)
    assert centre.rows() == rows((1, 10))


def _refuse(*_: object) -> Any:
    raise CorruptionError("a false alarm")


def test_bytes_that_change_between_the_check_and_the_catalog(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was checked is what is placed, whatever becomes of the landing meanwhile."""
    landing = centre.sender().land({GOOD: d1((1, 10))})
    checked = load_landings.decide_files

    def meanwhile(*args: Any) -> Any:
        (landing / GOOD).write_bytes(sealed({"root.sg.victim": {"s": [(1, 66)]}})[""])
        return checked(*args)

    monkeypatch.setattr(load_landings, "decide_files", meanwhile)
    assert centre.load().loaded == 1
    assert centre.rows() == rows((1, 10))
    assert centre.sql("SELECT device FROM owner") == [("root.sg.d1",)]


def test_what_a_load_had_copied_when_it_died_goes_with_the_next(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    centre.sender(SITE_B, name="plant2").land({GOOD: sealed({"root.sg.d2": {"s": [(1, 1)]}})})
    assert centre.load().loaded == 1
    centre.sender().land({GOOD: d1((1, 10))})
    with monkeypatch.context() as patched:
        patched.setattr(load_landings, "keep_manifest", _die)
        with pytest.raises(KeyboardInterrupt):
            centre.load()
    assert len(centre.files("taken")) == 2
    centre.reopen()
    assert centre.load(site=SITE_B).loaded == 0
    assert centre.files("taken") == []
    assert centre.load().loaded == 1


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_disk_without_room_for_the_copy(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """The landing waits as it is, nothing is left over, and the next load takes it."""
    centre.sender().land({GOOD: d1((1, 10))})

    def full(root: Path, pairs: Any) -> None:
        source, target = next(iter(pairs))
        copy_files(root, [(source, target)])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(taking, "copy_files", full)
        with pytest.raises(DiskFullError):
            centre.load()
    assert centre.files("taken") == []
    assert centre.load().loaded == 1
    assert centre.rows() == rows((1, 10))


def inode(place: Path) -> int:
    return place.stat().st_ino


@pytest.mark.parametrize("mode", [0o755, 0o775])
def test_what_this_ledgers_own_run_carried_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """Unless others may write where it landed."""
    deployed = Commanded(tmp_path, monkeypatch)
    deployed.seal(1)
    deployed.run("sync", "plant1", "--no-load")
    [landed] = (deployed.root / "landing").rglob("*.tsfile")
    landed.parents[5].chmod(mode)
    before = inode(landed)
    deployed.run("load")
    [loaded] = (deployed.root / "data").rglob("*.tsfile")
    assert (inode(loaded) == before) is (mode == 0o755)


def test_a_landing_of_a_rebuilt_ledger_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild finds landings; who carried them no paper proves."""
    deployed = Commanded(tmp_path, monkeypatch)
    deployed.seal(1)
    deployed.run("sync", "plant1", "--no-load")
    [landed] = (deployed.root / "landing").rglob("*.tsfile")
    before = inode(landed)
    assert deployed.run("ledger", "rebuild", "--replace", "--yes").code == 0
    deployed.run("load")
    [loaded] = (deployed.root / "data").rglob("*.tsfile")
    assert inode(loaded) != before


def test_two_sites_whose_files_would_have_the_same_names(centre: Centre) -> None:
    """The names of data files begin with eight characters of their site's id."""
    centre.sender().land({GOOD: d1((1, 10))})
    centre.load()
    alike = SITE_A[:8] + SITE_B[8:]
    centre.sender(alike, name="alike").land({GOOD: sealed({"root.sg.d2": {"s": [(1, 1)]}})})
    result = centre.load()
    assert (result.rejected, result.loaded) == (1, 0)
    assert "begins with" in result.troubles[0].reason
    assert centre.rows() == rows((1, 10))


class TestCopies:
    def test_holes_stay_holes(self, tmp_path: Path) -> None:
        """A file of a terabyte that takes nothing at the edge takes nothing here."""
        place = tmp_path / "sparse"
        with place.open("wb") as opened:
            opened.write(b"begin")
            opened.truncate(1 << 40)
            opened.seek(1 << 39)
            opened.write(b"middle")
        copy_files(tmp_path, [("sparse", "copy")])
        copy = tmp_path / "copy"
        assert (copy.stat().st_size, copy.stat().st_blocks <= place.stat().st_blocks) == (1 << 40, True)
        with copy.open("rb") as opened:
            assert opened.read(6) == b"begin\0"
            opened.seek(1 << 39)
            assert opened.read(7) == b"middle\0"

    def test_only_plain_files_below_plain_folders(self, tmp_path: Path) -> None:
        (tmp_path / "in" / "folder").mkdir(parents=True)
        (tmp_path / "in" / "file").write_bytes(b"here")
        (tmp_path / "in" / "link").symlink_to("file")
        (tmp_path / "in" / "way").symlink_to("folder")
        (tmp_path / "in" / "folder" / "file").write_bytes(b"there")
        (tmp_path / "in" / "zero").symlink_to("/dev/zero")
        os.mkfifo(tmp_path / "in" / "fifo")
        names = ("file", "link", "zero", "fifo", "folder", "way/file", "folder/file", "gone", "file/file")
        copy_files(tmp_path, [(f"in/{name}", f"out/{name}") for name in names if name != "file/file"])
        copy_files(tmp_path, [("in/file/file", "out/other")])
        out = tmp_path / "out"
        found = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert found == {"file": b"here", "folder/file": b"there"}

    def test_without_the_kernels_help(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = os.urandom(3_000_001)
        (tmp_path / "one").write_bytes(data)

        def unknown(*_: object) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "copy_file_range", unknown)
        copy_files(tmp_path, [("one", "a/two"), ("one", "a/three")])
        assert (tmp_path / "a/two").read_bytes() == (tmp_path / "a/three").read_bytes() == data
