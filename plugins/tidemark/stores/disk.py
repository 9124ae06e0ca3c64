"""What a store does on a disk, for both ends: list, read, digest, link, remove below one root. No call follows a symlink.

Runs in this process for `file://` and inside the far end's python3 for `sftp://` (see `far_program`): the standard library
alone, Python 3.6, plain OSError. Paths are the protocol's; on the disk they are bytes, so that a far end's locale has no
say. Only `durable` gives files their final names.
"""

from __future__ import annotations

import bisect
import errno
import hashlib
import os
import stat as modes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tidemark.stores import durable, tree_removal
from tidemark.stores.disk_rows import BAD_FOLDER, TOO_MANY, UNLISTED, outermost, readable, show, unreached

PIECE = 1 << 20  # bytes read at once
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hang us
_LEASE_SECONDS = 120.0  # longer than /proc/sys/fs/lease-break-time, 45 s as it comes
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_BY_HANDLE = os.scandir in os.supports_fd  # not in Python 3.6
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)


def _silently() -> None:
    """Nobody wants to hear."""


class Disk:
    """A root folder. The root, and what lies above an absolute path's last component, are the operator's: trusted."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/").encode() or b"/"
        self._plain: dict[str, bytes] = {}  # places of folders, with a slash; of the bulk call under way: no symlinks
        self.tell: Callable[[], None] = _silently  # called while long work gets on, about each piece

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """`tell` hears of long work within the block. Not where another thread uses this disk."""
        self.tell = tell
        try:
            yield
        finally:
            self.tell = _silently

    def locate(self, path: str) -> bytes:
        """The place of `path` on this disk. ELOOP when a folder between the root and it is a symlink."""
        if path.startswith("/"):
            return path.encode()
        folder, _, name = path.rpartition("/")
        return self._folder_place(folder) + name.encode() if path else self.root

    def _folder_place(self, folder: str) -> bytes:
        names: list[tuple[str, str]] = []  # folders whose places are not known, and their names, the innermost first
        while folder not in self._plain and folder:
            above, _, name = folder.rpartition("/")
            names.append((folder, name))
            folder = above
        place = self._plain.setdefault(folder, self.root.rstrip(b"/") + b"/")
        for folder, name in reversed(names):
            place += name.encode()
            if os.path.islink(place):
                raise OSError(errno.ELOOP, "lies below a symlink")
            place += b"/"
            self._plain[folder] = place
        return place

    def locate_all(self, paths: Sequence[str]) -> list[bytes]:
        self.forget()
        return [self.locate(path) for path in paths]

    def walk(
        self, folders: Sequence[str], missing: list[str], odd: list[tuple[str, str]], by_name: str = ""
    ) -> Iterator[tuple[str, list[tuple[str, int, int, int]]]]:
        """(folder with its slash, rows (name, size, mtime in whole seconds, inode)) in the order of paths, in bytes.

        A folder that holds folders too comes in pieces, with theirs in between. Files whose name ends with `by_name` are
        not looked at: they come as (name, -1, 0, 0). What is too deep, or too much, is odd and not looked into.
        """
        self._plain.clear()
        # Folders to look into; rows to hand out, where there is no place.
        stack: list[tuple[str, bytes, int, list[tuple[str, int, int, int]]]] = []
        for prefix, folder in sorted([(_prefix(folder), folder) for folder in outermost(folders)], reverse=True):
            found = self._folder(folder, missing, odd)
            if found is not None:
                stack.append((prefix, found, 0, []))
        while stack:
            prefix, place, depth, rows = stack.pop()
            below: list[tuple[str, bytes]] = []
            if place:
                try:
                    rows = sorted(readable(self._scan(prefix, place, below, odd, by_name), prefix, odd))
                except MemoryError:
                    rows, below = [], []
                    odd.append((prefix.rstrip("/"), UNLISTED + TOO_MANY))
            end = len(rows)
            for inner, inner_place in sorted(below, reverse=True):
                start = bisect.bisect_left(rows, (inner[len(prefix) :], 0, 0, 0), 0, end)
                if start < end:
                    stack.append((prefix, b"", depth, rows[start:end]))
                why = unreached(inner, depth + 1)
                if why:
                    odd.append((inner.rstrip("/"), UNLISTED + why))
                else:
                    stack.append((inner, inner_place, depth + 1, []))
                end = start
            if end:
                yield prefix, rows[:end] if below else rows

    def _scan(
        self, prefix: str, place: bytes, below: list[tuple[str, bytes]], odd: list[tuple[str, str]], by_name: str
    ) -> list[tuple[str, int, int, int]]:
        """A folder's files as they come; the folders in it go to `below`, what is neither to `odd`."""
        rows: list[tuple[str, int, int, int]] = []
        try:
            # By handle: the kernel then looks each name up in this folder, not from the root of the disk.
            handle = os.open(place, _FOLDER)
            try:
                with os.scandir(handle if _BY_HANDLE else os.fsdecode(place)) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            if by_name and entry.name.endswith(by_name):
                                rows.append((entry.name, -1, 0, 0))  # a stat is most of what a listing costs
                                continue
                            try:
                                info = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue  # went away while we looked
                            rows.append((entry.name, info[modes.ST_SIZE], int(info[modes.ST_MTIME]), info[modes.ST_INO]))
                        else:
                            self._no_file(entry, prefix, place, below, odd)
            finally:
                os.close(handle)
        except (FileNotFoundError, NotADirectoryError):
            return rows
        except OSError as error:
            odd.append((prefix.rstrip("/"), UNLISTED + os.strerror(error.errno or 0)))
        return rows

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(show(name) for name in os.listdir(self.locate(folder)))
        except OSError as error:
            if error.errno in _NO_FILE:
                return []
            raise

    def stat(self, path: str) -> tuple[int, int, int] | None:
        """(size, mtime, inode) of a regular file, else None."""
        try:
            info = os.lstat(self.locate(path))
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        return (info.st_size, info.st_mtime_ns // 1_000_000_000, info.st_ino) if modes.S_ISREG(info.st_mode) else None

    def stat_all(self, paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
        """`stat` of each; a folder that does not exist is asked for once."""
        self.forget()
        folders: dict[str, bool] = {}
        found = []
        for path in paths:
            folder = path.rpartition("/")[0]
            there = folders.get(folder)
            if there is None:
                try:
                    os.lstat(self.locate(folder) if folder else self.root)
                    there = True
                except OSError as error:
                    if error.errno not in _NO_FILE:
                        raise
                    there = False  # or it lies below a symlink, as `stat` says too
                folders[folder] = there
            found.append(self.stat(path) if there else None)
        return found

    def pieces(self, path: str, offset: int, length: int | None, size: int = PIECE) -> Iterator[bytes]:
        """Bytes from `offset` in pieces of at most `size`; with a `length`, ERANGE when the file ends before it."""
        handle = self.open(path)
        try:
            left = (1 << 62) if length is None else length
            while left:
                piece = os.pread(handle, min(size, left), offset)
                if not piece:
                    break
                yield piece
                offset += len(piece)
                left -= len(piece)
            if left and length is not None:
                raise OSError(errno.ERANGE, "ends before the asked range does")
        finally:
            os.close(handle)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Bytes from `offset`, fewer where the file ends."""
        return b"".join(self.there(path, offset, length))

    def there(self, path: str, offset: int, length: int | None) -> Iterator[bytes]:
        """`read` in pieces: what a file had when it was opened, fewer bytes where it has become shorter."""
        handle = self.open(path)
        try:
            there = max(0, os.fstat(handle).st_size - offset)
            left = there if length is None else min(length, there)
            while left:
                piece = read_at(handle, min(PIECE, left), offset)
                yield piece
                offset += len(piece)
                left = left - len(piece) if piece else 0
        finally:
            os.close(handle)

    def digest(self, path: str, offset: int, length: int | None) -> str | None:
        """SHA-256 in hex; None where the file is gone or shorter than asked."""
        total = hashlib.sha256()
        try:
            for piece in self.pieces(path, offset, length):
                total.update(piece)
                self.tell()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ERANGE):
                return None
            raise
        return total.hexdigest()

    def link(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Hard-link source → target each; returns the sources that are gone. An unequal target is replaced."""
        self._plain.clear()
        gone = [source for source, _ in pairs if self.stat(source) is None]
        missing = set(gone)
        there = [(source, target) for source, target in pairs if source not in missing]
        durable.make_folders({os.path.dirname(self.locate(target)) for _, target in there})
        for source, target in there:
            try:
                self._link(self.locate(source), self.locate(target))
            except FileNotFoundError:
                gone.append(source)
        return gone

    def remove(self, paths: Sequence[str]) -> None:
        self.locate_all(paths)  # what lies below a symlink is refused before anything goes
        tree_removal.remove_files(self.root, paths)

    def remove_tree(self, folder: str) -> None:
        """Remove the folder and all below it; symlinks in it are removed, not followed. EINVAL for the root itself."""
        if not folder.strip("/"):
            raise OSError(errno.EINVAL, "is the root of the store, which is never removed")
        self.locate(folder)
        tree_removal.remove_tree(self.root, folder)

    def free_bytes(self, folder: str) -> int:
        """On the disk of `folder`; where that lies below a symlink, of the root: nothing goes there."""
        try:
            place = self.locate(folder)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            place = self.root
        while not os.path.lexists(place) and place != b"/":
            place = os.path.dirname(place)
        room = os.statvfs(place)
        return room.f_bavail * room.f_frsize

    def forget(self) -> None:
        """A bulk call begins: which folders are no symlinks is looked at anew."""
        self._plain.clear()

    def open(self, path: str, writing: bool = False) -> int:
        """A handle for reading a regular file, for `writing` too; ENOENT for whatever is none."""
        try:
            handle = self._open(self.locate(path), _READ | os.O_RDWR if writing else _READ)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise FileNotFoundError(errno.ENOENT, "No such file") from error
            raise
        if modes.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "is not a regular file")

    def _open(self, place: bytes, how: int) -> int:
        """A part may be under lease (`part_lease`): who writes it lets us in soon, for one that hangs the kernel does."""
        until = time.monotonic() + _LEASE_SECONDS
        while True:
            try:
                return os.open(place, how)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                self.tell()
                time.sleep(0.05)

    def _no_file(
        self, entry: os.DirEntry[str], prefix: str, place: bytes, below: list[tuple[str, bytes]], odd: list[tuple[str, str]]
    ) -> None:
        name = os.fsencode(entry.name)
        if not entry.is_dir(follow_symlinks=False):
            odd.append((prefix + show(name), "is a symlink" if entry.is_symlink() else "is neither file nor folder"))
            return
        try:
            below.append((prefix + name.decode() + "/", os.path.join(place, name)))
        except UnicodeDecodeError:
            odd.append((prefix + show(name), BAD_FOLDER))

    def _folder(self, folder: str, missing: list[str], odd: list[tuple[str, str]]) -> bytes | None:
        try:
            place = self.locate(folder)
            mode = (os.stat if place == self.root else os.lstat)(place).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                missing.append(folder)
            else:
                odd.append((folder, UNLISTED + (error.strerror or os.strerror(error.errno or 0))))
            return None
        if modes.S_ISDIR(mode):
            return os.path.realpath(place) if place == self.root else place
        odd.append((folder, UNLISTED + ("is a symlink" if modes.S_ISLNK(mode) else "is not a folder")))
        return None

    def _link(self, origin: bytes, place: bytes) -> None:
        try:
            os.link(origin, place, follow_symlinks=False)
        except FileExistsError:
            there, here = os.lstat(origin), os.lstat(place)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
            # CRASH WINDOW: the old target is gone, the new link is not there yet; the rerun links it.
            durable.remove_quietly(place)
            os.link(origin, place, follow_symlinks=False)


def read_at(handle: int, length: int, offset: int) -> bytes:
    """Fewer bytes only where the file ends: one read may bring fewer than there are."""
    data = more = os.pread(handle, length, offset)
    while more and len(data) < length:
        more = os.pread(handle, length - len(data), offset + len(data))
        data += more
    return data


def _prefix(folder: str) -> str:
    return folder + "/" if folder and folder != "/" else folder
