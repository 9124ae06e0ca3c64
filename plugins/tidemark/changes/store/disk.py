"""All effects of a store on its folder, and all openings. Paths are below the store's root.

Everything that counts is durable when a call returns. Indexes are not: they can be derived. A process may die before and
after each call, and within `append`.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.stores.agent import durable
from tidemark.stores.os_errors import Where, translate_os_errors

T = TypeVar("T")


class OpenFile:
    """A file that is read at any offset. `size` is as it was when it was opened: what is appended meanwhile is not seen.
    `taken`: the bytes of the disk that it takes, roughly."""

    def __init__(self, handle: int, path: str) -> None:
        self._handle = handle
        self.path = path
        found = os.fstat(handle)
        self.size, self.taken = found.st_size, found.st_blocks * 512

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from `offset` on, fewer at the end of the file."""
        pieces = []
        while length > 0 and (piece := os.pread(self._handle, min(length, 1 << 30), offset)):
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._handle)


class Disk:
    """The folder of one store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root = str(root)

    # reading; FileNotFoundError where there is no such file

    def list_names(self, folder: str) -> Sequence[str]:
        """The names in a folder; none where there is no such folder."""
        with suppress(FileNotFoundError):
            return os.listdir(f"{self._root}/{folder}")  # noqa: PTH208 (names alone, of many folders)
        return []

    def open_file(self, path: str) -> OpenFile:
        try:
            return OpenFile(durable.open_regular(os.fsencode(self._place(path)), os.O_RDONLY), path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CorruptionError(f"{self._place(path)} cannot be opened: {error.strerror}", subject=path) from error

    def read(self, path: str) -> bytes:
        with self.open_file(path) as file:
            return file.read(0, file.size)

    def map_file(self, path: str) -> mmap.mmap | bytes:
        """The file mapped into memory; nothing where it is missing or empty."""
        try:
            handle = durable.open_regular(os.fsencode(self._place(path)), os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if os.fstat(handle).st_size else b""
        finally:
            os.close(handle)

    # effects

    def append(self, path: str, offset: int, data: bytes) -> None:
        """Cut the file at `offset`, append `data`, durably. Makes the file for offset 0."""
        with self._translated(path):
            place = os.fsencode(self._place(path))
            durable.write_part(place, offset, [data], sync=True)
            if offset == 0:
                # CRASH WINDOW: the file may be there, empty or torn; readers leave out what is no whole block.
                durable.sync_folder(os.path.dirname(place))  # noqa: PTH120 (bytes)

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Write `data` at `offset`, durably. What the file has behind it stays. Makes the file for offset 0."""
        with self._translated(path):
            place = self._place(path)
            durable.make_folder(os.fsencode(place.parent))
            is_new = not place.exists()
            handle = durable.open_regular(os.fsencode(place), os.O_WRONLY | os.O_CREAT)
            try:
                if os.fstat(handle).st_size < offset:
                    raise OSError(errno.ERANGE, "is shorter than the offset to write at")
                os.lseek(handle, offset, os.SEEK_SET)
                durable.write_all(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            if is_new:
                durable.sync_folder(os.fsencode(place.parent))

    def publish(self, path: str, data: bytes) -> None:
        """Replace a file whole, durably."""
        with self._translated(path):
            durable.publish(os.fsencode(self._place(path)), [data])

    def replace_thinly(self, path: str, pieces: Iterable[tuple[bytes, int]]) -> bool:
        """Replace a file whole, durably, by pieces and as many zeros behind each, which take no disk. False: it is gone."""
        temp = f"{path}.{os.urandom(4).hex()}.tmp"
        with self._translated(path):
            try:
                handle = os.open(self._place(temp), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                try:
                    end = 0
                    for data, zeros in pieces:
                        durable.write_all(handle, data)
                        end += len(data) + zeros
                        os.lseek(handle, end, os.SEEK_SET)
                    os.ftruncate(handle, end)
                    os.fsync(handle)
                finally:
                    os.close(handle)
                # CRASH WINDOW: whole, and without its name: nobody reads it, and the next round removes it.
                self._place(temp).rename(self._place(path))
            except FileNotFoundError:  # its folder went out of sight meanwhile
                return False
            finally:
                durable.remove_quietly(os.fsencode(self._place(temp)))
            durable.sync_folder(os.fsencode(self._place(path).parent))
        return True

    def append_index(self, path: str, offset: int, data: bytes) -> None:
        """Append to an index, which may be lost."""
        with self._translated(path):
            durable.write_part(os.fsencode(self._place(path)), offset, [data])

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._translated(path):
                durable.remove_quietly(os.fsencode(self._place(path)))

    def remove_half_written(self, folders: Iterable[str], before: float) -> None:
        """Remove temp files of `publish` that were last changed before `before` (seconds since 1970)."""
        for path in (f"{folder}/{name}".lstrip("/") for folder in folders for name in self.list_names(folder)):
            if durable.is_half_written(path):
                with self._translated(path), suppress(FileNotFoundError):
                    if self._place(path).stat(follow_symlinks=False).st_mtime < before:
                        self.remove([path])

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder, durably."""
        with self._translated(source):
            durable.rename_durably(os.fsencode(self._place(source)), os.fsencode(self._place(target)))

    def remove_tree(self, folder: str) -> None:
        with self._translated(folder), suppress(FileNotFoundError):
            shutil.rmtree(self._place(folder))

    def _place(self, path: str) -> Path:
        return self.root / path

    def _translated(self, path: str) -> AbstractContextManager[None]:
        return translate_os_errors(Where("", str(self.root)), path)


def read_document(
    disk: Disk, path: str, newest: int, decode: Callable[[dict[str, Any]], T], *, hint: str = "bring it back from a copy"
) -> T | None:
    """What `decode` makes of a JSON document with a `format`; None where there is none.

    UnsupportedError for a format above `newest`. CorruptionError, with the hint, for what is no such document.
    """
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        if found["format"] > newest:
            raise UnsupportedError(f"{path} is of a newer format", hint="upgrade Tidemark", subject=path)
        return decode(found)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise CorruptionError(f"{path} of the store is damaged: {wrong}", hint=hint, subject=path) from wrong
