"""What every store must do, whatever carries it: one suite, bound to memory, local disks and each kind of SSH far end.

A binding gives two fixtures: `store`, empty, and `place`, a way to put files where the store looks and to see what it
made there. `DiskConformance` adds what only a real file system has.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Protocol

import pytest

from tidemark.errors import CorruptionError, PermanentError, SourceVanishedError, TidemarkError
from tidemark.stores.listing import list_names
from tidemark.stores.protocol import Entry, FileEnd, Range, Store, read_records
from tidemark.tsfiles.names import RESOURCE

BIG = bytes(range(256)) * 5000 + b"tail"  # 1.28 MB, no two pages alike in place


class Place(Protocol):
    def put(self, path: str, data: bytes, mtime: int = 0) -> None: ...

    def get(self, path: str) -> bytes | None: ...

    def names(self) -> list[str]: ...


class FolderPlace:
    """Files below a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, data: bytes, mtime: int = 0) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if mtime:
            os.utime(file, (mtime, mtime))

    def get(self, path: str) -> bytes | None:
        file = self.root / path
        return file.read_bytes() if file.is_file() else None

    def names(self) -> list[str]:
        return sorted(str(file.relative_to(self.root)) for file in self.root.rglob("*") if file.is_file())


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class StoreConformance:
    def test_lists_every_file_below_the_asked_folders_by_path(self, store: Store, place: Place) -> None:
        for path in ("data/b/2.tsfile", "data/a/1.tsfile", "data/a-b/3.tsfile", "data/ä/4.tsfile", "other/x"):
            place.put(path, path.encode(), mtime=1_700_000_001)

        listing = store.list_files(["data", "nowhere"])

        paths = [entry.path for entry in listing.entries]
        assert paths == ["data/a-b/3.tsfile", "data/a/1.tsfile", "data/b/2.tsfile", "data/ä/4.tsfile"]
        assert paths == sorted(paths, key=str.encode)
        assert {(entry.size, entry.mtime) for entry in listing.entries[:3]} == {(15, 1_700_000_001), (17, 1_700_000_001)}
        assert listing.missing == ("nowhere",)
        assert listing.odd == ()

    def test_lists_what_a_compaction_leaves_beside_tsfiles(self, store: Store, place: Place) -> None:
        """The sender tells by it that a compaction is at work (`shows_compaction`): no tier may leave such a name out."""
        folder = "data/sequence/root.a/0/7"
        logs = [f"{folder}/1-1-{c}.{e}.{e}-compaction.log" for c, e in (("1-0", "inner"), ("0-1", "cross"))]
        logs += [f"{folder}/1-1-0-0.tsfile.{kind}-compaction.log" for kind in ("insertion", "settle")]
        unfinished = [f"{folder}/1-1-1-0.{end}" for end in ("inner", "cross", "target", "settle", "tsfile.merge")]
        for path in (*logs, *unfinished):
            place.put(path, b"")
        for listing in (store.list_files(["data"]), list_names(store, ["data"], RESOURCE)):
            assert [entry.path for entry in listing.entries] == sorted([*logs, *unfinished])

    def test_lists_the_root_and_overlapping_folders_once(self, store: Store, place: Place) -> None:
        place.put("data/a/1", b"1")
        place.put("top", b"22")

        assert [entry.path for entry in store.list_files([""]).entries] == ["data/a/1", "top"]
        assert [entry.path for entry in store.list_files(["data/a", "data", "data/a/"]).entries] == ["data/a/1"]

    def test_inodes_are_there_exactly_when_declared_and_tell_files_apart(self, store: Store, place: Place) -> None:
        place.put("a/1", b"1")
        place.put("a/2", b"1")

        inodes = [entry.inode for entry in store.list_files(["a"]).entries]

        assert (0 not in inodes and len(set(inodes)) == 2) if store.properties.inodes else inodes == [0, 0]

    def test_a_record_is_read_up_to_its_bound(self, store: Store, place: Place) -> None:
        for name, size in (("whole", 99), ("long", 100), ("longer", 1 << 20)):
            place.put(f"decided/{name}", b"x" * size)
        whole, long, none, longer = read_records(store, [f"decided/{n}" for n in ("whole", "long", "none", "longer")], 99)
        assert (whole, none) == (b"x" * 99, None)
        for error, name in ((long, "long"), (longer, "longer")):
            assert isinstance(error, CorruptionError)
            assert f"decided/{name} has more than the 99 bytes" in error.message

    def test_of_two_that_make_a_file_the_second_is_told_and_changes_nothing(self, store: Store, place: Place) -> None:
        assert store.append_if("log/7/1.log", b"first", None) is True
        assert store.append_if("log/7/1.log", b"second", None) is False
        assert place.get("log/7/1.log") == b"first"
        assert place.names() == ["log/7/1.log"]

    def test_an_append_needs_the_end_that_its_caller_read(self, store: Store, place: Place) -> None:
        path = "log/it's $HOME/1.log"
        place.put(path, BIG)
        read = FileEnd(len(BIG), len(BIG), BIG[-300:])
        if not store.properties.appends:
            with pytest.raises(PermanentError):
                store.append_if(path, b"x", read)
            return

        assert store.append_if("log/none", b"x", read) is False
        for other in (FileEnd(len(BIG) - 1, len(BIG) - 1, BIG[-301:-1]), read._replace(tail=b"?" + BIG[-299:])):
            assert store.append_if(path, b"x", other) is False
        assert place.get(path) == BIG

        assert store.append_if(path, b"\0one\n", read) is True
        assert store.append_if(path, b"\0one\n", read) is False
        assert place.get(path) == BIG + b"\0one\n"
        assert place.names() == [path]

    def test_an_append_cuts_what_stands_behind_the_end_that_was_read(self, store: Store, place: Place) -> None:
        place.put("log/1", BIG + b"torn")
        read = FileEnd(len(BIG) + 4, len(BIG), BIG[-64:])
        if not store.properties.appends:
            with pytest.raises(PermanentError):
                store.append_if("log/1", b"new", read)
            assert place.get("log/1") == BIG + b"torn"
            return

        assert store.append_if("log/1", b"new", read) is True
        assert place.get("log/1") == BIG + b"new"

    def test_list_folder_names_files_and_folders(self, store: Store, place: Place) -> None:
        place.put("landing/s/run-1/a/b", b"")
        place.put("landing/s/manifest.json", b"{}")

        assert list(store.list_folder("landing/s")) == ["manifest.json", "run-1"]
        assert list(store.list_folder("landing/nowhere")) == []
        assert list(store.list_folder("")) == ["landing"]

    def test_a_made_folder_is_there_and_making_it_again_is_fine(self, store: Store) -> None:
        store.make_folders(["a/b/c", "a/b/c", "a/d"])
        store.make_folders(["a/b/c"])

        assert list(store.list_folder("a")) == ["b", "d"]
        assert store.list_files(["a/b/c"]).missing == ()

    def test_stat_tells_size_and_mtime_and_none_for_what_is_no_file(self, store: Store, place: Place) -> None:
        place.put("a/1", b"12345", mtime=1_600_000_000)

        entry = store.stat("a/1")

        assert entry is not None and (entry.path, entry.size, entry.mtime) == ("a/1", 5, 1_600_000_000)
        assert store.stat("a") is None
        assert store.stat("a/2") is None
        assert store.stat("a/1/2") is None
        assert list(store.stat_many(["x", "a/1", "a"])) == [None, entry, None]
        assert list(store.stat_many([])) == []

    def test_reads_ranges_and_stops_at_the_end(self, store: Store, place: Place) -> None:
        place.put("f", BIG)

        assert store.read("f") == BIG
        assert store.read("f", 1000, 300) == BIG[1000:1300]
        assert store.read("f", len(BIG) - 3, 100) == BIG[-3:]
        assert store.read("f", len(BIG) + 5, 100) == b""
        with pytest.raises(SourceVanishedError, match="nothing"):
            store.read("nothing")

    def test_reads_many_in_order_with_none_for_the_missing(self, store: Store, place: Place) -> None:
        wanted = [f"d/{number}" for number in range(300)]
        for number, path in enumerate(wanted):
            place.put(path, bytes([number % 256]) * number)
        asked = [*wanted[:100], "d/none", *wanted[100:], "d"]

        got = list(store.read_many(asked))

        assert [path for path, _ in got] == asked
        expected = [bytes([number % 256]) * number for number in range(300)]
        assert [data for _, data in got] == [*expected[:100], None, *expected[100:], None]
        assert list(store.read_many(["d/9", "d/200"], [4, 1000])) == [("d/9", b"\x09" * 4), ("d/200", bytes([200]) * 200)]

    def test_chunks_cover_the_range_in_bounded_pieces(self, store: Store, place: Place) -> None:
        place.put("f", BIG)

        pieces = list(store.read_chunks("f", 77, 700_000, 65_536))

        assert b"".join(pieces) == BIG[77:700_077]
        assert max(map(len, pieces)) <= 65_536
        assert list(store.read_chunks("f", 5, 0, 100)) == []

    def test_chunks_of_a_file_that_ends_early_say_so(self, store: Store, place: Place) -> None:
        place.put("f", b"short")
        with pytest.raises(SourceVanishedError):
            list(store.read_chunks("f", 0, 100, 10))
        with pytest.raises(SourceVanishedError):
            list(store.read_chunks("g", 0, 100, 10))

    def test_a_stream_left_early_does_not_disturb_the_next_calls(self, store: Store, place: Place) -> None:
        place.put("f", BIG)
        stream = store.read_chunks("f", 0, len(BIG), 1000)
        assert next(iter(stream)) == BIG[:1000]
        assert store.read("f", 0, 10) == BIG[:10]
        stream.close()  # type: ignore[attr-defined]
        assert store.sha256("f") == sha(BIG)

    def test_digests_of_files_prefixes_and_ranges(self, store: Store, place: Place) -> None:
        place.put("f", BIG)
        place.put("empty", b"")

        assert store.sha256("f") == sha(BIG)
        assert store.sha256("f", 1000) == sha(BIG[:1000])
        asked = [
            Range("f", 10, 20),
            Range("empty"),
            Range("none"),
            Range("f", 0, len(BIG) + 1),
            Range("f", 5),
            Range("empty", 0, 0),
        ]
        assert list(store.digest_ranges(asked)) == [sha(BIG[10:30]), sha(b""), None, None, sha(BIG[5:]), sha(b"")]
        with pytest.raises(SourceVanishedError):
            store.sha256("f", len(BIG) + 1)
        with pytest.raises(SourceVanishedError):
            store.sha256("none")

    def test_names_that_a_shell_would_misread(self, store: Store, place: Place) -> None:
        names = ["o'clock $HOME", "a  b", "-rf", 'quo"te', "back\\slash", "semi;colon&", "star*[a]?", "{x}", "%20", "#1~"]
        for name in names:
            place.put(f"odd names/{name}", name.encode())

        assert [entry.path for entry in store.list_files(["odd names"]).entries] == sorted(f"odd names/{n}" for n in names)
        assert list(store.digest_ranges([Range(f"odd names/{name}") for name in names])) == [sha(n.encode()) for n in names]
        assert [d for _, d in store.read_many([f"odd names/{name}" for name in names])] == [n.encode() for n in names]
        store.link([(f"odd names/{name}", f"linked/{name}") for name in names])
        assert [entry.path for entry in store.list_files(["linked"]).entries] == sorted(f"linked/{n}" for n in names)
        store.remove_tree("odd names")
        assert list(store.list_folder("")) == ["linked"]

    def test_publish_makes_and_replaces_whole_files(self, store: Store, place: Place) -> None:
        store.publish("landing/s/run/manifest.json", b"one")
        store.publish("landing/s/run/manifest.json", BIG)

        assert place.get("landing/s/run/manifest.json") == BIG
        assert place.names() == ["landing/s/run/manifest.json"]

    def test_parts_grow_are_cut_and_sealed(self, store: Store, place: Place) -> None:
        assert store.write_part("in/f.part", 0, [b"abc", b"def"]) == 6
        assert store.write_part("in/f.part", 6, [b"ghi"], sync=True) == 9
        assert store.write_part("in/f.part", 4, [b"X"]) == 5
        assert place.get("in/f.part") == b"abcdX"
        assert place.get("in/f") is None

        store.seal_parts([("in/f.part", "in/f")])

        assert place.names() == ["in/f"]
        assert place.get("in/f") == b"abcdX"

    def test_a_part_never_gets_a_hole(self, store: Store) -> None:
        store.write_part("f.part", 0, [b"abc"])
        with pytest.raises(CorruptionError):
            store.write_part("f.part", 10, [b"x"])
        with pytest.raises(CorruptionError):
            store.write_part("new.part", 1, [b"x"])

    def test_a_readers_trouble_passes_through_a_write(self, store: Store) -> None:
        def pieces():  # type: ignore[no-untyped-def]
            yield b"abc"
            raise SourceVanishedError("the reader's own")

        with pytest.raises(SourceVanishedError, match="the reader's own"):
            store.write_part("f.part", 0, pieces())
        assert store.write_part("f.part", 0, [b"again"]) == 5
        assert store.read("f.part") == b"again"

    def test_a_large_write_arrives_whole(self, store: Store, place: Place) -> None:
        pieces = [BIG] * 5

        assert store.write_part("f.part", 0, pieces) == 5 * len(BIG)
        assert store.sha256("f.part") == sha(BIG * 5)

    def test_a_bundle_of_parts_is_sealed_at_once_and_may_be_sealed_again(self, store: Store, place: Place) -> None:
        files = [(f"in/{number % 7}/{number}", os.urandom(number * 10)) for number in range(200)]
        store.write_parts([(path + ".part", data) for path, data in files])
        renames = [(path + ".part", path) for path, _ in files]

        store.seal_parts(renames)
        store.seal_parts(renames)

        assert place.names() == sorted(path for path, _ in files)
        assert all(place.get(path) == data for path, data in files)
        with pytest.raises(SourceVanishedError):
            store.seal_parts([("in/none.part", "in/none")])
        store.seal_parts([])
        store.write_parts([])

    def test_links_share_content_and_report_the_gone(self, store: Store, place: Place) -> None:
        place.put("data/1", b"one", mtime=1_650_000_000)
        place.put("data/2", b"two")
        place.put("snap/2", b"from an older run")
        pairs = [("data/1", "snap/deep/1"), ("data/none", "snap/none"), ("data/2", "snap/2")]

        assert list(store.link(pairs)) == ["data/none"]
        assert list(store.link(pairs)) == ["data/none"]

        assert place.get("snap/deep/1") == b"one"
        assert place.get("snap/2") == b"two"
        store.remove(["data/1"])
        linked = store.stat("snap/deep/1")
        assert linked is not None and linked.mtime == 1_650_000_000
        assert list(store.link([])) == []

    def test_remove_is_done_when_nothing_is_left(self, store: Store, place: Place) -> None:
        place.put("a/1", b"")
        place.put("a/b/2", b"")
        store.remove(["a/1", "a/none", "none/none"])
        assert place.names() == ["a/b/2"]
        store.remove_tree("a")
        store.remove_tree("a")
        store.remove([])
        assert list(store.list_folder("")) == []

    def test_the_root_is_never_removed(self, store: Store, place: Place) -> None:
        place.put("a", b"")
        for root in ("", "/"):
            with pytest.raises(TidemarkError):
                store.remove_tree(root)
        assert place.names() == ["a"]

    def test_rename_replaces_and_may_be_said_twice(self, store: Store, place: Place) -> None:
        place.put("x/a", b"new")
        place.put("y/b", b"old")

        store.rename("x/a", "y/b")
        store.rename("x/a", "y/b")

        assert place.names() == ["y/b"]
        assert place.get("y/b") == b"new"
        with pytest.raises(SourceVanishedError):
            store.rename("x/none", "y/none")
        store.rename("y/b", "z/new/c")
        assert place.names() == ["z/new/c"]

    @pytest.mark.parametrize("path", ["../x", "a/../../x", "a//b", "./a", "a/.", "", "a\0b"])
    def test_no_path_leaves_the_store(self, store: Store, path: str) -> None:
        for act in (
            lambda: store.read(path),
            lambda: store.publish(path, b""),
            lambda: store.write_part(path, 0, [b""]),
            lambda: store.link([("a", path)]),
            lambda: store.rename("a", path),
            lambda: store.remove([path]),
            lambda: store.digest_ranges([Range(path)]),
            lambda: store.stat(path),
        ):
            with pytest.raises(CorruptionError):
                act()

    def test_errors_name_the_path(self, store: Store) -> None:
        with pytest.raises(SourceVanishedError) as caught:
            store.sha256("data/root.sg/1-1-0-0.tsfile")
        assert "data/root.sg/1-1-0-0.tsfile" in caught.value.message
        assert caught.value.subject == "data/root.sg/1-1-0-0.tsfile"
        assert caught.value.hint

    def test_free_space_is_known_or_none(self, store: Store) -> None:
        for folder in ("", "not/there/yet"):
            free = store.free_bytes(folder)
            assert free is None or free > 0


class DiskConformance(StoreConformance):
    """What a store on a file system must do besides. The fixture `root` is its folder on this machine."""

    @pytest.mark.parametrize("path", ["first", "in/first"])
    def test_a_root_that_is_not_there_yet_is_made(self, store: Store, place: Place, root: Path, path: str) -> None:
        root.rmdir()
        store.publish(path, b"1")
        assert place.get(path) == b"1" and place.names() == [path]

    def test_symlinks_are_odd_and_never_followed(self, store: Store, place: Place, root: Path) -> None:
        secret = root.parent / f"{root.name}-secret"
        secret.mkdir()
        (secret / "key").write_bytes(b"secret")
        place.put("data/1", b"1")
        (root / "data" / "file").symlink_to(secret / "key")
        (root / "data" / "folder").symlink_to(secret)
        (root / "linked").symlink_to(root / "data")

        listing = store.list_files(["data", "linked"])

        assert [entry.path for entry in listing.entries] == ["data/1"]
        assert [path for path, _ in listing.odd] == ["data/file", "data/folder", "linked"]
        assert all("symlink" in reason for _, reason in listing.odd)
        assert dict(listing.odd)["linked"] == "cannot be listed: is a symlink"  # asked for: who asked knows nothing of it
        assert store.stat("data/file") is None
        assert store.stat("data/folder/key") is None
        assert list(store.digest_ranges([Range("data/file"), Range("data/folder/key")])) == [None, None]
        assert list(store.read_many(["data/file", "data/folder/key"])) == [("data/file", None), ("data/folder/key", None)]
        assert list(store.link([("data/file", "x/file"), ("data/folder/key", "x/key")])) == ["data/file", "data/folder/key"]
        for path in ("data/file", "data/folder/key"):
            with pytest.raises(SourceVanishedError):
                store.read(path)
        for path in ("data/folder/new", "data/file"):
            with pytest.raises(PermanentError):
                store.write_part(path, 0, [b"x"])
        with pytest.raises(PermanentError):
            store.publish("data/folder/new", b"x")
        store.remove_tree("data")
        assert sorted(file.name for file in secret.iterdir()) == ["key"]
        assert (secret / "key").read_bytes() == b"secret"

    def test_what_is_no_file_is_odd_and_does_not_hang(self, store: Store, place: Place, root: Path) -> None:
        place.put("data/1", b"1")
        os.mkfifo(root / "data" / "pipe")

        listing = store.list_files(["data", "data/1"])

        assert [entry.path for entry in listing.entries] == ["data/1"]
        assert [path for path, _ in listing.odd] == ["data/pipe"]
        assert store.stat("data/pipe") is None
        assert list(store.digest_ranges([Range("data/pipe")])) == [None]
        with pytest.raises(SourceVanishedError):
            store.read("data/pipe")

    def test_a_file_asked_as_a_folder_is_odd(self, store: Store, place: Place) -> None:
        place.put("a", b"1")
        listing = store.list_files(["a"])
        assert (list(listing.entries), [path for path, _ in listing.odd]) == ([], ["a"])
        with pytest.raises(TidemarkError):
            store.make_folders(["a"])

    def test_names_that_are_not_utf8_are_odd(self, store: Store, place: Place, root: Path) -> None:
        place.put("data/1", b"1")
        raw = os.fsencode(root) + b"/data/\xff\xfe.tsfile"
        try:
            Path(os.fsdecode(raw)).write_bytes(b"x")
        except OSError as error:
            assert error.errno == errno.EILSEQ  # a file system that takes UTF-8 only cannot have the trouble
            return
        (Path(os.fsdecode(os.fsencode(root) + b"/data/\xfffolder"))).mkdir()

        listing = store.list_files(["data"])

        assert [entry.path for entry in listing.entries] == ["data/1"]
        assert [path for path, _ in listing.odd] == ["data/\\xff\\xfe.tsfile", "data/\\xfffolder"]

    def test_mtimes_are_whole_seconds_cut_not_rounded(self, store: Store, place: Place, root: Path) -> None:
        place.put("a", b"1")
        os.utime(root / "a", ns=(0, 1_650_000_000_999_999_999))
        assert [entry.mtime for entry in store.list_files([""]).entries] == [1_650_000_000]
        entry = store.stat("a")
        assert entry is not None and entry.mtime == 1_650_000_000

    def test_absolute_paths_reach_other_disks(
        self, store: Store, place: Place, root: Path, elsewhere: tuple[str, Path]
    ) -> None:
        """`elsewhere`: a folder outside the root, as the far end names it and as this machine does."""
        far, near = elsewhere
        (near / "data").mkdir()
        (near / "data" / "1.tsfile").write_bytes(b"there")

        (entry,) = store.list_files([far + "/data"]).entries

        assert (entry.path, entry.size) == (f"{far}/data/1.tsfile", 5)
        assert store.read(entry.path) == b"there"
        assert store.link([(entry.path, f"{far}/.tidemark/1.tsfile")]) == [] or True
        assert (near / ".tidemark" / "1.tsfile").samefile(near / "data" / "1.tsfile")
        store.remove_tree(f"{far}/.tidemark")
        assert sorted(file.name for file in near.iterdir()) == ["data"]

    def test_links_are_the_same_inode(self, store: Store, place: Place, root: Path) -> None:
        assert store.properties.hard_links
        place.put("a", b"1")
        store.link([("a", "s/a")])
        assert (root / "a").samefile(root / "s" / "a")

    def test_a_listing_equals_the_file_system(self, store: Store, place: Place, root: Path) -> None:
        for number in range(500):
            place.put(f"d{number % 13}/e{number % 5}/{number}-1-0-0.tsfile", b"x" * number, 1_600_000_000 + number)

        expected = []
        for path in place.names():
            info = (root / path).stat()
            inode = info.st_ino if store.properties.inodes else 0
            expected.append(Entry(path, info.st_size, int(info.st_mtime), inode))
        assert list(store.list_files([""]).entries) == sorted(expected)
