"""A store in memory that knows what a power loss leaves: for the crash explorer and for tests of flows.

Model (research/aesthetics.md §4.4): a file's bytes are safe only once synced; names reach the disk in the order in which a
folder changed, at any time, and for certain when the folder is synced. `crash` keeps what is safe and, with a random
source, any of the rest that such a disk may keep. A killed process without a power loss loses nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from tidemark.errors import CorruptionError, PermanentError, SourceVanishedError
from tidemark.stores.os_errors import Where
from tidemark.stores.protocol import (
    Entry,
    FileEnd,
    Listing,
    Range,
    StoreProperties,
    Tier,
    check_folder,
    check_path,
    finish_listing,
    gone_error,
)


@dataclass
class _Node:
    """A file's content; several names may share it."""

    inode: int
    data: bytes = b""
    safe: bytes = b""  # what a power loss leaves for certain
    mtime: int = 0


@dataclass
class MemoryStore:
    """`on_effect(effect, path)` is called before every single change; what it raises stops the store there.

    Effects: write, sync, rename, link, remove, sync_folder. `tier` makes the transfer engine treat it as such a far end.
    """

    name: str = "store"
    tier: Tier = Tier.LOCAL
    on_effect: Callable[[str, str], None] = lambda _effect, _path: None
    clock: Callable[[], float] = time.time
    free: int | None = None
    _names: dict[str, _Node] = field(default_factory=dict)
    _safe_names: dict[str, _Node] = field(default_factory=dict)
    _pending: list[dict[str, _Node | None]] = field(default_factory=list)  # changes of names no folder sync has covered
    _folders: set[str] = field(default_factory=set)
    _inodes: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 32)))  # a count cannot be copied since 3.14

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    @property
    def _where(self) -> Where:
        return Where(self.url, "")

    @property
    def properties(self) -> StoreProperties:
        return StoreProperties(tier=self.tier, hard_links=True, inodes=True, appends=self.tier is not Tier.SFTP)

    # what tests do to a site

    def put(self, path: str, data: bytes, mtime: int = 0) -> None:
        """A file that was always there: safe, with the given mtime (0: now)."""
        node = _Node(next(self._inodes), data, data, mtime or int(self.clock()))
        self._names[path] = self._safe_names[path] = node
        self._make_folder(_parent(path))

    def crash(self, choice: Random | None = None) -> None:
        """Lose power: what is not safe is lost, or with `choice` kept where a disk may keep it, bytes torn included."""
        for folder in {_parent(path) for change in self._pending for path in change} if choice else ():
            here = [change for change in self._pending if any(_parent(path) == folder for path in change)]
            for change in here[: choice.randint(0, len(here))] if choice else ():
                self._settle(change)
        self._pending.clear()
        self._names = dict(self._safe_names)
        for node in {id(node): node for node in self._names.values()}.values():
            node.data = _torn(node, choice)
            node.safe = node.data

    # the store

    def list_files(self, folders: Sequence[str]) -> Listing:
        asked = [check_folder(folder) for folder in folders]
        missing = [folder for folder in asked if folder and not self._is_folder(folder)]
        entries = [self._entry(path) for path in self._names if any(_below(path, folder) for folder in asked)]
        return finish_listing(entries, missing, [])

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        found = self.list_files(folders)
        entries = [Entry(e.path, -1, 0, 0) if e.path.endswith(by_name) else e for e in found.entries]
        return replace(found, entries=entries, partial=True)

    def list_folder(self, folder: str) -> Sequence[str]:
        above = check_folder(folder)
        return sorted({_child(path, above) for path in {*self._names, *self._folders} if path and _below(path, above)})

    def stat(self, path: str) -> Entry | None:
        return self._entry(path) if check_path(path) in self._names else None

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        return [self.stat(path) for path in paths]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if check_path(path) not in self._names:
            raise gone_error(self._where, path)
        return self._names[path].data[offset : None if length is None else offset + length]

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        for number, path in enumerate(paths):
            known = check_path(path) in self._names
            yield path, self.read(path, 0, lengths[number] if lengths else None) if known else None

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        for start in range(offset, offset + length, size):
            wanted = min(size, offset + length - start)
            piece = self.read(path, start, wanted)
            if len(piece) < wanted:
                raise gone_error(self._where, path, offset + length)
            yield piece

    def sha256(self, path: str, length: int | None = None) -> str:
        digest = self.digest_ranges([Range(path, 0, length)])[0]
        if digest is None:
            raise gone_error(self._where, path, length)
        return digest

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        found: list[str | None] = []
        for path, offset, length in ranges:
            data = self.read(path, offset, length) if check_path(path) in self._names else None
            short = data is None or (length is not None and len(data) < length)
            found.append(None if short or data is None else hashlib.sha256(data).hexdigest())
        return found

    def publish(self, path: str, data: bytes) -> None:
        temp = f"{check_path(path)}.{next(self._inodes)}.tmp"
        self.write_part(temp, 0, [data], sync=True)
        self._rename(temp, path)
        self._sync_folder(_parent(path))

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        node = self._names.get(check_path(path))
        if end is None:
            temp = f"{path}.{next(self._inodes)}.tmp"
            self.write_part(temp, 0, [data], sync=True)
            if node is None:
                self.link([(temp, path)])
            self.remove([temp])
            self._sync_folder(_parent(path))
            return node is None
        if not self.properties.appends:
            raise PermanentError(f"{self.url}: {path} cannot be appended to")
        if node is None or len(node.data) != end.size or not node.data[: end.offset].endswith(end.tail):
            return False
        self.write_part(path, end.offset, [data], sync=True)
        return True

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        node = self._names.get(check_path(path))
        if offset > (len(node.data) if node else 0):
            raise CorruptionError(f"{self.url}: {path} is shorter than the offset to go on from", subject=path)
        self.on_effect("write", path)
        if node is None:
            node = _Node(next(self._inodes))
            self._change({path: node})
            self._make_folder(_parent(path))
        got = [node.data[:offset]]
        try:
            got.extend(pieces)
        finally:  # what came before a reader's trouble is written, as on a disk
            node.data = b"".join(got)
            node.mtime = int(self.clock())
        if sync:
            self._sync(path)
        return len(node.data)

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.write_part(path, 0, [data])

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        waiting = [pair for pair in renames if not self._renamed_before(*pair)]
        for pair in renames:
            self._sync(pair[0] if pair in waiting else pair[1])
        for part, final in waiting:
            self._rename(part, final)
        for folder in sorted({_parent(final) for _, final in renames}):
            self._sync_folder(folder)

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        missing = []
        for source, target in pairs:
            node, present = self._names.get(check_path(source)), self._names.get(check_path(target))
            if node is None:
                missing.append(source)
            elif present is not node:
                self.on_effect("link", target)
                self._change({target: node})
                self._make_folder(_parent(target))
        return missing

    def make_folders(self, folders: Sequence[str]) -> None:
        for folder in folders:
            self._make_folder(check_folder(folder))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            if check_path(path) in self._names:
                self.on_effect("remove", path)
                self._change({path: None})

    def remove_tree(self, folder: str) -> None:
        if not folder.strip("/"):
            raise PermanentError(f"{self.url}: the root of a store is never removed")
        self.remove([path for path in sorted(self._names) if _below(path, check_path(folder))])
        self._folders = {path for path in self._folders if path != folder and not _below(path, folder)}

    def rename(self, source: str, target: str) -> None:
        if not self._renamed_before(check_path(source), check_path(target)):
            self._rename(source, target)
        for folder in sorted({_parent(source), _parent(target)}):
            self._sync_folder(folder)

    def free_bytes(self, folder: str = "") -> int | None:
        check_folder(folder)
        return self.free

    def close(self) -> None:
        """Nothing is held open."""

    # names and their safety

    def _entry(self, path: str) -> Entry:
        node = self._names[path]
        return Entry(path, len(node.data), node.mtime, node.inode)

    def _change(self, change: dict[str, _Node | None]) -> None:
        self._pending.append(change)
        for path, node in change.items():
            if node is None:
                self._names.pop(path, None)
            else:
                self._names[path] = node

    def _settle(self, change: dict[str, _Node | None]) -> None:
        for path, node in change.items():
            if node is None:
                self._safe_names.pop(path, None)
            else:
                self._safe_names[path] = node

    def _sync(self, path: str) -> None:
        self.on_effect("sync", path)
        node = self._names.get(path)
        if node is None:
            raise SourceVanishedError(f"{self.url}: {path} is gone", subject=path)
        node.safe = node.data

    def _rename(self, source: str, target: str) -> None:
        if source not in self._names:
            raise gone_error(self._where, source)
        self.on_effect("rename", target)
        self._change({source: None, target: self._names[source]})
        self._make_folder(_parent(target))

    def _renamed_before(self, source: str, target: str) -> bool:
        return source not in self._names and target in self._names

    def _sync_folder(self, folder: str) -> None:
        self.on_effect("sync_folder", folder)
        for change in [change for change in self._pending if any(_parent(path) == folder for path in change)]:
            self._settle(change)
            self._pending.remove(change)

    def _make_folder(self, folder: str) -> None:
        while folder and folder not in self._folders:
            self._folders.add(folder)
            folder = _parent(folder)

    def _is_folder(self, folder: str) -> bool:
        return folder in self._folders or any(_below(path, folder) for path in self._names)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") if folder else not path.startswith("/")


def _child(path: str, folder: str) -> str:
    return path[len(folder) + 1 if folder else 0 :].split("/", 1)[0]


def _torn(node: _Node, choice: Random | None) -> bytes:
    """What a power loss leaves of a file: its safe bytes, or with `choice` those, all of it, or some of what came since.
    Safe bytes that nobody wrote over stay."""
    if choice is None or node.safe == node.data:
        return node.safe
    kept = choice.randint(_common_bytes(node.safe, node.data), len(node.data))
    return choice.choice([node.safe, node.data, node.data[:kept], node.data[:kept] + bytes(len(node.data) - kept)])


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many first bytes of both are the same."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


class EndlessStore(MemoryStore):
    """`stat` tells a small size of files whose names end with `endless`; a read of one gets all bytes that it asks for."""

    endless = "\0"

    def stat(self, path: str) -> Entry | None:
        return Entry(path, 9, 0) if path.endswith(self.endless) else super().stat(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if not path.endswith(self.endless):
            return super().read(path, offset, length)
        assert length is not None, f"{path} is read without a bound"
        return bytes(length)

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        for number, path in enumerate(paths):
            there = self.stat(path) is not None
            yield path, self.read(path, 0, lengths[number] if lengths else None) if there else None
