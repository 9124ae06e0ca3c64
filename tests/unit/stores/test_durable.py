"""Many folders at once: all are there, and one that cannot be made does not make the others' names less durable."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from tidemark.stores.agent import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The folders that were synced, in order."""
    found: list[bytes] = []
    sync = durable.sync_folder
    monkeypatch.setattr(durable, "sync_folder", lambda folder: (found.append(folder), sync(folder)))
    return found


def test_what_lies_above_is_synced_once_for_all(tmp_path: Path, synced: list[bytes]) -> None:
    wanted = [tmp_path / "new" / f"{n}" for n in range(40)] + [tmp_path / "other" / "0"]
    durable.make_folders(os.fsencode(folder) for folder in wanted)
    assert all(folder.is_dir() for folder in wanted)
    assert sorted(synced) == sorted(os.fsencode(p) for p in (tmp_path, tmp_path, tmp_path / "new", tmp_path / "other"))
    synced.clear()
    durable.make_folders(os.fsencode(folder) for folder in wanted)
    assert synced == []


def test_those_made_before_one_fails_are_durable(tmp_path: Path, synced: list[bytes]) -> None:
    (tmp_path / "b").write_text("in the way")
    with pytest.raises(FileExistsError):
        durable.make_folders(os.fsencode(tmp_path / name) for name in ("a", "b", "c"))
    assert synced == [os.fsencode(tmp_path)]
    assert (tmp_path / "a").is_dir() and not (tmp_path / "c").exists()


def test_a_part_the_disk_lost_bytes_of_is_removed_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sync would say that all is well, so nothing may be left that a rerun could take for durable."""
    pairs = [(os.fsencode(tmp_path / f"{n}.part"), os.fsencode(tmp_path / f"{n}")) for n in range(3)]
    for part, _ in pairs:
        Path(os.fsdecode(part)).write_bytes(b"x")
    sync, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(durable.SyncFailed) as found:
        durable.seal(pairs)
    assert (found.value.errno, found.value.parts, found.value.disk) == (errno.EIO, [pairs[1][0]], False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.part", "2.part"]
    with pytest.raises(FileNotFoundError):
        durable.seal(pairs)


def test_what_had_its_name_before_is_kept_when_its_sync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"x")

    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(durable.SyncFailed):
        durable.seal([(os.fsencode(tmp_path / "f.part"), os.fsencode(tmp_path / "f"))])
    assert (tmp_path / "f").exists()


def test_a_python_without_ctypes_syncs_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    for n in range(durable.SYNC_ONCE):
        (tmp_path / f"{n}.part").write_bytes(b"x")
    durable.seal([(os.fsencode(tmp_path / f"{n}.part"), os.fsencode(tmp_path / f"{n}")) for n in range(durable.SYNC_ONCE)])
    assert (tmp_path / "0").exists() and not list(tmp_path.glob("*.part"))


def test_a_disk_is_asked_by_the_handle_from_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else's sync was told of meanwhile, a handle opened only now would not hear of."""
    disks, names = durable.DiskHandles(), [f"{n}" for n in range(durable.SYNC_ONCE)]
    disks.watch_disk(os.fsencode(tmp_path))
    pairs = [(os.fsencode(tmp_path / f"{name}.part"), os.fsencode(tmp_path / name)) for name in names]
    for part, _ in pairs:
        Path(os.fsdecode(part)).write_bytes(b"x")
    really_opened, opened = os.open, []

    def open_it(place: bytes, flags: int, mode: int = 0o777) -> int:
        opened.append(place)
        return really_opened(place, flags, mode)

    monkeypatch.setattr(os, "open", open_it)
    durable.make_durable(pairs, disks=disks)
    assert opened == []
    disks.close()
    durable.make_durable(pairs, disks=disks)
    assert opened == [os.fsencode(tmp_path)]
    assert durable.give_names(pairs, disks=disks) == [] and (tmp_path / "0").exists()
