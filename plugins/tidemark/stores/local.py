"""A store on a disk of this machine: `agent.disk` and `agent.durable` as a `Store`, with Tidemark's errors.

`copy_files` copies files that other processes may still write to. Each copy is a new inode, made from one opening of the
source. The kernel copies. File systems that can share blocks (btrfs, XFS) share them until one side is written to. Holes
stay holes, so a sparse file takes no more space here. A source that is no regular file, or lies below a symlink, is
skipped.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tidemark.errors import CorruptionError, PermanentError, SourceVanishedError
from tidemark.native import without_collector
from tidemark.stores.agent import appender, durable
from tidemark.stores.agent.disk import Disk, pack_rows
from tidemark.stores.listing import Frame, PackedEntries
from tidemark.stores.os_errors import Where, translate_os_errors
from tidemark.stores.protocol import (
    LANDING,
    Entry,
    FileEnd,
    Listing,
    Range,
    StoreProperties,
    Tier,
    check_folder,
    check_path,
    gone_error,
)
from tidemark.untrusted_files import MOST_DOCUMENT, UntrustedFile


class LocalStore:
    """A store below `root`, an absolute path that need not exist before the first write."""

    def __init__(self, root: str) -> None:
        self.disk = self._disk = Disk(root)
        self.where = self._where = Where("", root)
        self.url = "file://" + (root.rstrip("/") or "/")
        self.properties = StoreProperties(tier=Tier.LOCAL, hard_links=True, inodes=True, appends=True)

    def list_files(self, folders: Sequence[str]) -> Listing:
        return self._make_listing(folders, "")

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        return self._make_listing(folders, by_name)

    def _make_listing(self, folders: Sequence[str], by_name: str) -> Listing:
        frames: list[Frame] = []
        missing: list[str] = []
        odd: list[tuple[str, str]] = []
        with translate_os_errors(self._where, ""), without_collector():
            for prefix, rows in self._disk.walk_folders([check_folder(f) for f in folders], missing, odd, by_name):
                frames.append(Frame([(prefix, len(rows))], pack_rows(rows), compressed=False))
        return Listing(PackedEntries(frames), tuple(sorted(missing)), tuple(sorted(odd)), partial=bool(by_name))

    def list_folder(self, folder: str) -> Sequence[str]:
        with translate_os_errors(self._where, folder):
            return self._disk.list_folder(check_folder(folder))

    def stat(self, path: str) -> Entry | None:
        return self.stat_many([path])[0]

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        with translate_os_errors(self._where, paths[0] if paths else ""):
            facts = self._disk.stat_all([check_path(path) for path in paths])
        return [Entry(path, *fact) if fact else None for path, fact in zip(paths, facts, strict=True)]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._read_if_there(path, offset, length)
        if data is None:
            raise gone_error(self._where, path)
        return data

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        for number, path in enumerate(paths):
            yield path, self._read_if_there(path, 0, None if lengths is None else lengths[number])

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        with translate_os_errors(self._where, check_path(path), reading=True):
            yield from self._disk.read_pieces(path, offset, length, size)

    def sha256(self, path: str, length: int | None = None) -> str:
        digest = self.digest_ranges([Range(path, 0, length)])[0]
        if digest is None:
            raise gone_error(self._where, path, length)
        return digest

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        found = []
        for path, offset, length in ranges:
            with translate_os_errors(self._where, check_path(path), reading=True):
                found.append(self._disk.digest_range(path, offset, length))
        return found

    def publish(self, path: str, data: bytes) -> None:
        with translate_os_errors(self._where, check_path(path)):
            if path.startswith(f"{LANDING}/"):  # its sender may write there, too
                durable.publish_within(self._disk.locate(""), path.encode(), data)
            else:
                durable.publish(self._disk.locate(path), (data,))

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        with translate_os_errors(self._where, check_path(path)):
            place = self._disk.locate(path)
            return appender.make_new(place, data) if end is None else appender.append_after(place, data, *end)

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        with translate_os_errors(self._where, check_path(path)):
            return durable.write_part(self._disk.locate(path), offset, pieces, sync)

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            with translate_os_errors(self._where, check_path(path)):
                durable.write_part(self._disk.locate(path), 0, (data,))

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        with translate_os_errors(self._where, renames[0][1] if renames else ""):
            parts = self._disk.locate_all([check_path(part) for part, _ in renames])
            finals = self._disk.locate_all([check_path(final) for _, final in renames])
            durable.seal(list(zip(parts, finals, strict=True)))

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        with translate_os_errors(self._where, pairs[0][1] if pairs else ""):
            return self._disk.link([(check_path(source), check_path(target)) for source, target in pairs])

    def make_folders(self, folders: Sequence[str]) -> None:
        for folder in folders:
            with translate_os_errors(self._where, folder):
                durable.make_folder(self._disk.locate(check_folder(folder)))

    def remove(self, paths: Sequence[str]) -> None:
        with translate_os_errors(self._where, paths[0] if paths else ""):
            self._disk.remove([check_path(path) for path in paths])

    def remove_tree(self, folder: str) -> None:
        with translate_os_errors(self._where, folder):
            self._disk.remove_tree(check_path(folder))

    def rename(self, source: str, target: str) -> None:
        with translate_os_errors(self._where, check_path(source)):
            durable.rename_durably(self._disk.locate(source), self._disk.locate(check_path(target)))

    def free_bytes(self, folder: str = "") -> int:
        with translate_os_errors(self._where, folder):
            return self._disk.free_bytes(check_folder(folder))

    def close(self) -> None:
        """Nothing is held open."""

    def _read_if_there(self, path: str, offset: int, length: int | None) -> bytes | None:
        try:
            with translate_os_errors(self._where, check_path(path)):
                if (length is None or length > MOST_DOCUMENT) and (found := self._disk.stat(path)):
                    self._check_size(path, found[0] - offset)
                return self._disk.read(path, offset, length)
        except SourceVanishedError:
            return None

    def _check_size(self, path: str, size: int) -> None:
        """Raise CorruptionError for a file that is too large to be read into memory at once."""
        if size > MOST_DOCUMENT:
            text = f"{self._where.full_path(path)} has {size} bytes, more than the {MOST_DOCUMENT} that are read at once"
            raise CorruptionError(text, hint="look at who wrote it, and remove it there", subject=path)


_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 30  # requested from the kernel at once; it may copy less
_BLOCK = 1 << 20
_NOT_BY_KERNEL = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EIO)
_LOOK = "look at the disk and the system log there, then ./tidemark load"


class _Unreadable(Exception):
    """Reading the source failed, not writing the copy."""


def copy_files(root: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Copy each source to its target, both relative to `root`, up to the source's size at its opening.

    Skips a source that is no regular file or lies below a symlink. Raises PermissionDeniedError for one that cannot be
    opened, PermanentError for one whose bytes cannot be read, OSError where the target cannot be written.
    """
    for source, target in pairs:
        try:
            handle = UntrustedFile(str(root), source).open_handle()
        except (FileNotFoundError, CorruptionError):
            continue
        try:
            place = root / target
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = os.open(place, _WRITE, 0o644)
            try:
                _copy_data_ranges(handle, copy, os.fstat(handle).st_size)
            except _Unreadable as silent:
                refused = silent.args[0]
                raise PermanentError(f"cannot read {source}: {refused.strerror}", hint=_LOOK, subject=source) from refused
            finally:
                os.close(copy)
        finally:
            os.close(handle)


def _copy_data_ranges(source: int, copy: int, size: int) -> None:
    """Copy the ranges with data. Leaves out the holes."""
    os.ftruncate(copy, size)
    at = 0
    while at < size:
        end = size
        with suppress(OSError):  # the file system does not report holes: copy everything
            try:
                at = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # the rest is a hole
                raise
            end = min(size, os.lseek(source, at, os.SEEK_HOLE))
        while at < end:
            count = _copy_piece(source, copy, at, end - at)
            if not count:
                return  # cut while it was read: its digest will differ
            at += count


def _copy_piece(source: int, copy: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, copy, min(count, _PIECE), at, at)
    except OSError as error:
        if error.errno not in _NOT_BY_KERNEL:
            raise
    try:
        block = os.pread(source, min(count, _BLOCK), at)
    except OSError as error:
        raise _Unreadable(error) from error
    return os.pwrite(copy, block, at)
