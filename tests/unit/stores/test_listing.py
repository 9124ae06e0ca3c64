"""A listing keeps its files packed, in the order of paths, and hands them out as entries or as folders' columns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemark.errors import UnreachableError
from tidemark.stores.agent import disk
from tidemark.stores.agent.disk import Disk, pack_rows
from tidemark.stores.listing import Frame, PackedEntries, entries_in, folders_of, list_names
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Entry

NAMES = ("b", "a/x", "a/x.y", "a/x/1", "a/x/2", "a-b/1", "a.b", "a/xy", "é/1", "zz/y/1", "zz/1", "a/z/z/z")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        if name == "a/x":
            continue  # a folder here
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return tmp_path


def test_files_come_in_the_order_of_their_paths_bytes(root: Path) -> None:
    paths = [entry.path for entry in LocalStore(str(root)).list_files([""]).entries]
    assert paths == sorted((name for name in NAMES if name != "a/x"), key=str.encode)


def test_asked_folders_come_in_the_order_of_their_paths_too(root: Path) -> None:
    paths = [entry.path for entry in LocalStore(str(root)).list_files(["a", "zz", "a-b", "a/x"]).entries]
    assert paths == sorted(paths, key=str.encode)
    assert len(paths) == 8


def test_a_python_that_cannot_list_by_handle_lists_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "link").symlink_to("a")
    by_handle = LocalStore(str(root)).list_files([""])
    monkeypatch.setattr(disk, "_BY_HANDLE", False)
    by_path = LocalStore(str(root)).list_files([""])
    assert (list(by_path.entries), by_path.odd) == (list(by_handle.entries), by_handle.odd)


def test_packed_entries_are_a_sequence_like_any_other(root: Path) -> None:
    entries = LocalStore(str(root)).list_files([""]).entries
    one_by_one = [Entry(p, (root / p).stat().st_size, 1_700_000_000, (root / p).stat().st_ino) for p in map(_path, entries)]
    assert list(entries) == one_by_one
    assert (len(entries), entries[0], list(entries[2:4])) == (len(one_by_one), one_by_one[0], one_by_one[2:4])


def test_a_folder_that_holds_folders_comes_in_pieces(root: Path) -> None:
    found = [(files.prefix, list(files.names)) for files in walked(root, "a")]
    assert found == [("a/", ["x.y"]), ("a/x/", ["1", "2"]), ("a/", ["xy"]), ("a/z/z/", ["z"])]


def test_plain_lists_of_entries_have_the_same_folders(root: Path) -> None:
    packed = LocalStore(str(root)).list_files([""]).entries
    ours = [(f.prefix, list(f.names), list(f.sizes), list(f.inodes)) for f in folders_of(packed)]
    assert ours == [(f.prefix, list(f.names), list(f.sizes), list(f.inodes)) for f in folders_of(list(packed))]


def test_the_files_of_some_folders_alone(root: Path) -> None:
    entries = LocalStore(str(root)).list_files([""]).entries
    assert [_path(e) for e in entries_in(entries, {"a", ""})] == ["a.b", "a/x.y", "a/xy", "b"]
    assert entries_in(entries, set()) == []


def test_columns_of_unequal_length_are_a_torn_listing() -> None:
    whole = pack_rows([("a", 1, 2, 3), ("b", 1, 2, 3)])
    with pytest.raises(UnreachableError, match="torn"):
        list(PackedEntries([Frame([("x/", 3)], whole, compressed=False)]))


def walked(root: Path, folder: str) -> list:
    rows = Disk(str(root)).walk_folders([folder], [], [])
    return [
        f for prefix, some in rows for f in Frame([(prefix, len(some))], pack_rows(some), compressed=False).unpack_folders()
    ]


def _path(entry: Entry) -> str:
    return entry.path


def test_a_glance_takes_some_files_by_their_names_alone(root: Path) -> None:
    store = LocalStore(str(root))
    found = list_names(store, ["a-b", "zz"], "1")
    assert found.partial
    whole = {e.path: e for e in store.list_files(["a-b", "zz"]).entries}
    by_name = [Entry(path, -1, 0, 0) for path in ("a-b/1", "zz/1", "zz/y/1")]
    assert list(found.entries) == by_name
    assert set(whole) == {e.path for e in by_name}


class Carried:
    """A store that can only list, as one behind SFTP: its listing carries everything anyway."""

    def __init__(self, store: LocalStore) -> None:
        self.list_files = store.list_files


def test_a_store_that_cannot_glance_lists(root: Path) -> None:
    store = LocalStore(str(root))
    found = list_names(Carried(store), ["a-b"], "1")  # type: ignore[arg-type]
    assert (found.partial, list(found.entries)) == (False, list(store.list_files(["a-b"]).entries))
