"""Many folders at once: all are there, and one that cannot be made does not make the others' names less durable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.stores import durable


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
