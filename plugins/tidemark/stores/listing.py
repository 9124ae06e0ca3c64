"""Listings in packed columns. A site may have a million files, of which a sync needs ten.

`PackedEntries` is a sequence of entries, which are made anew at each iteration. `folders_of` yields a folder's columns,
without making entries for the files that have not changed.
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

_ROW = 1100  # bytes of a file's row at most: a name of up to 1023 bytes and three numbers
_FRAME = 256 << 20  # bytes of a frame at most; a folder of a million files takes about 60 MB


class FolderFiles(NamedTuple):
    """Consecutive files of one folder, ordered by path, in the columns of `Entry`."""

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
    """Some folders' files, packed by `agent.disk.pack_rows`, compressed or not. `groups`: (prefix, number of files)."""

    groups: Sequence[tuple[str, int]]
    data: bytes
    compressed: bool

    def unpack_folders(self) -> Iterator[FolderFiles]:
        """Unpack the folders. Raises UnreachableError where the columns differ in length."""
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
    """Decompress `rows` rows. Raises UnreachableError for torn data and for more bytes than so many rows can have."""
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(data, max(1, min(rows * _ROW, _FRAME)))
    except zlib.error:
        raw = b""
    if not unpacking.eof:
        raise UnreachableError("the far end's listing is torn", hint="run again")
    return raw


class PackedEntries(Sequence[Entry]):
    """Entries ordered by path, kept packed."""

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
    """Call `store.list_names` where the store has it, else list the files in full."""
    return store.list_names(folders, by_name) if isinstance(store, PartialListing) else store.list_files(folders)


def classify_files(store: Store, entries: Sequence[Entry], data_folders: Sequence[str]) -> Classified:
    """`classify_listing`, and assign a deletions file with an earlier name of its TsFile to that TsFile. Reads the
    `.resource` of the candidates only if there are such deletions."""
    found = classify_listing(entries, data_folders)
    asked = candidates_for_lone_mods(found)
    if not asked:
        return found
    resources = store.read_many([f.resource.path for f in asked], [f.resource_bytes for f in asked])
    names = {}
    for file, (path, data) in zip(asked, resources, strict=True):
        with suppress(CorruptionError):  # a corrupt .resource names no deletions
            names[file.entry.path] = read_mods_name(data, path) if data else ""
    return with_named_mods(found, names)


def all_files(store: Store, folders: Sequence[str]) -> Sequence[Entry]:
    """List the files below `folders`, for a caller that treats unlisted files as lost. Raises PermanentError where a part
    cannot be listed."""
    listing = store.list_files(folders)
    for path, why in listing.unlisted:
        raise PermanentError(
            f"{path} in {store.url} {why}",
            hint="let this user list it (its mode, the disk's health), then run it again; nothing was changed",
            subject=path,
        )
    return listing.entries


def odd_paths_to_report(odd: Iterable[tuple[str, str]], data_folders: Sequence[str]) -> list[tuple[str, str]]:
    """Return the odd paths of a site's data that an operator should see, without hidden folders. Where IoTDB may keep files,
    what a listing does not enter (a link, a special file) is marked as unlisted."""
    seen = [(path, why) for path, why in odd if not is_hidden(path, data_folders)]
    kept = {path for path, _ in seen if may_hold_files(path, data_folders)}
    return [pair for path, why in seen for pair in (mark_unlisted([(path, why)]) if path in kept else [(path, why)])]


def mark_unlisted(odd: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Mark all of `odd` as unlisted, but for files whose names are not UTF-8. For a folder in which every file counts."""
    return [(path, why if why.startswith((UNLISTED, BAD_NAME)) else UNLISTED + why) for path, why in odd]


def folders_of(entries: Iterable[Entry]) -> Iterator[FolderFiles]:
    """Group entries, ordered by path, by their folder. A folder with subfolders may come in several pieces."""
    if isinstance(entries, PackedEntries):
        yield from entries.unpack_folders()
        return
    for folder, group in groupby(entries, key=_folder_of):
        paths, sizes, mtimes, inodes = zip(*group, strict=True)
        start = len(folder)
        yield FolderFiles(folder, [path[start:] for path in paths], sizes, mtimes, inodes)


def entries_in(entries: Iterable[Entry], folders: set[str]) -> list[Entry]:
    """Return the entries that lie directly in one of `folders` (given without a trailing slash)."""
    if not folders:
        return []
    return [entry for files in folders_of(entries) if files.folder in folders for entry in files.iter_entries()]


def _folder_of(entry: Entry) -> str:
    return entry.path[: entry.path.rfind("/") + 1]
