"""A listing in columns, packed as it came: a site may have a million files of which a sync concerns itself with ten.

Whoever wants entries gets them as from any sequence, made anew each time; whoever can work on a folder's columns at once
(`folders_of`) makes nothing of the files that did not change.
"""

from __future__ import annotations

import array
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, overload

from tidemark.errors import CorruptionError, PermanentError, UnreachableError
from tidemark.stores.agent.disk import BAD_NAME, UNLISTED
from tidemark.stores.protocol import Entry, Listing, PartialListing, Store
from tidemark.tsfiles.companions.resource import read_mods_name
from tidemark.tsfiles.names import may_hold_files
from tidemark.tsfiles.sealed import Classified, candidates_for_lone_mods, classify_listing, is_hidden, with_named_mods

_ROW = 1100  # bytes of a file's row at most: its name, of 1023 bytes on the disks that take the longest, and three numbers
_FRAME = 256 << 20  # of a folder of a million files 60 MB


class FolderFiles(NamedTuple):
    """Files of one folder that follow each other in the order of paths, in columns as `Entry` has them."""

    prefix: str  # the folder with its slash
    names: Sequence[str]
    sizes: Sequence[int]
    mtimes: Sequence[int]
    inodes: Sequence[int]

    @property
    def folder(self) -> str:
        return self.prefix[:-1]

    def iter_entries(self) -> Iterator[Entry]:
        prefix = self.prefix
        paths = [prefix + name for name in self.names]
        return map(Entry._make, zip(paths, self.sizes, self.mtimes, self.inodes, strict=True))


class Frame(NamedTuple):
    """Some folders' files as `agent.disk.pack_rows` makes them, compressed or not; `groups`: (prefix, number of files)."""

    groups: Sequence[tuple[str, int]]
    data: bytes
    compressed: bool

    def unpack_folders(self) -> Iterator[FolderFiles]:
        """Raises UnreachableError where the columns are not of one length."""
        total = sum(count for _, count in self.groups)
        raw = _decompress_rows(self.data, total) if self.compressed else self.data
        split = len(raw) - total * 24  # three int64 a row
        names = raw[: max(0, split - 1)].decode().split("\0")
        if len(names) != total:
            raise UnreachableError("the far end's listing is torn", hint="run again")
        numbers = array.array("q", raw[split:])
        if sys.byteorder == "big":
            numbers.byteswap()
        start = 0
        for prefix, count in self.groups:
            end = start + count
            columns = (numbers[start + shift : end + shift] for shift in (0, total, 2 * total))
            yield FolderFiles(prefix, names[start:end], *columns)
            start = end


def _decompress_rows(data: bytes, rows: int) -> bytes:
    """What `rows` of a listing take at most; more is no listing. Raises UnreachableError."""
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(data, max(1, min(rows * _ROW, _FRAME)))
    except zlib.error:
        raw = b""
    if not unpacking.eof:
        raise UnreachableError("the far end's listing is torn", hint="run again")
    return raw


class PackedEntries(Sequence[Entry]):
    """Entries ordered by path that are kept packed."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames

    def unpack_folders(self) -> Iterator[FolderFiles]:
        for frame in self._frames:
            yield from frame.unpack_folders()

    def __len__(self) -> int:
        return sum(count for frame in self._frames for _, count in frame.groups)

    def __iter__(self) -> Iterator[Entry]:
        for files in self.unpack_folders():
            yield from files.iter_entries()

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | Sequence[Entry]:
        return self._all_entries[at]

    @cached_property
    def _all_entries(self) -> list[Entry]:
        return list(self)


def list_names(store: Store, folders: Sequence[str], by_name: str) -> Listing:
    """`store.glance` where the store can, else a whole listing."""
    return store.list_names(folders, by_name) if isinstance(store, PartialListing) else store.list_files(folders)


def classify_files(store: Store, entries: Sequence[Entry], data_folders: Sequence[str]) -> Classified:
    """`classify_listing`, with deletions under an earlier name of their TsFile given to it: where such lie about, the
    `.resource` of the files that may be meant is read."""
    found = classify_listing(entries, data_folders)
    asked = candidates_for_lone_mods(found)
    if not asked:
        return found
    resources = store.read_many([f.resource.path for f in asked], [f.resource_bytes for f in asked])
    names = {}
    for file, (path, data) in zip(asked, resources, strict=True):
        with suppress(CorruptionError):  # it tells nothing
            names[file.entry.path] = read_mods_name(data, path) if data else ""
    return with_named_mods(found, names)


def all_files(store: Store, folders: Sequence[str]) -> Sequence[Entry]:
    """The files below `folders`, for who takes what is not listed for lost. Raises PermanentError where part of them cannot
    be listed."""
    listing = store.list_files(folders)
    for path, why in listing.unlisted:
        raise PermanentError(
            f"{path} in {store.url} {why}",
            hint="let this user list it (its mode, the disk's health), then run it again; nothing was changed",
            subject=path,
        )
    return listing.entries


def odd_paths_to_report(odd: Iterable[tuple[str, str]], data_folders: Sequence[str]) -> list[tuple[str, str]]:
    """What a person should know of `odd` in a site's data: hidden folders left out; where IoTDB may keep files, whatever no
    listing looks into (a link, a special file) is one more place of which nobody knows what is there."""
    seen = [(path, why) for path, why in odd if not is_hidden(path, data_folders)]
    kept = {path for path, _ in seen if may_hold_files(path, data_folders)}
    return [pair for path, why in seen for pair in (mark_unlisted([(path, why)]) if path in kept else [(path, why)])]


def mark_unlisted(odd: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """`odd` of a folder in which everything counts: of all but files whose names are no text nobody knows what is there."""
    return [(path, why if why.startswith((UNLISTED, BAD_NAME)) else UNLISTED + why) for path, why in odd]


def folders_of(entries: Iterable[Entry]) -> Iterator[FolderFiles]:
    """Entries ordered by path, by the folders they lie in: a folder that holds folders too may come in pieces."""
    if isinstance(entries, PackedEntries):
        yield from entries.unpack_folders()
        return
    for folder, group in groupby(entries, key=_folder_of):
        paths, sizes, mtimes, inodes = zip(*group, strict=True)
        start = len(folder)
        yield FolderFiles(folder, [path[start:] for path in paths], sizes, mtimes, inodes)


def entries_in(entries: Iterable[Entry], folders: set[str]) -> list[Entry]:
    """Those that lie directly in one of `folders` (without a slash at the end)."""
    if not folders:
        return []
    return [entry for files in folders_of(entries) if files.folder in folders for entry in files.iter_entries()]


def _folder_of(entry: Entry) -> str:
    return entry.path[: entry.path.rfind("/") + 1]
