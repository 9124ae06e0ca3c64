"""A store's operations on a disk, at either end: list, read, digest, link, remove below one root.

No call follows a symlink. The module runs in this process for `file://`, and inside the far end's python3 for `sftp://`.
So it uses the standard library alone, Python 3.6 and plain OSError. Paths are those of `stores.protocol`. On the disk they
are bytes, independent of the far end's locale. Only `durable` gives files their final names.

A listing goes down to 64 folders below a requested one. A folder's path may have 2048 bytes. A name that is not UTF-8 is
reported as odd. What cannot be listed is reported with `UNLISTED`: whether files are there is unknown.

Files and folders are removed at any depth: without recursion, and with no path longer than two names. A user with write
permission can replace a folder by a symlink between any two calls. So the folders above a removed file are opened one by
one from the root, and symlinks are removed, not followed.
"""

from __future__ import annotations

import array
import bisect
import errno
import hashlib
import os
import stat as modes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, groupby
from operator import itemgetter

from tidemark.stores.agent import durable

UNLISTED = "cannot be listed: "
"""How the reason begins where nobody knows what is there: neither that it is, nor that it has gone."""
BAD_NAME = "name is not UTF-8"  # of a file
BAD_FOLDER = "is a folder whose name is not UTF-8"
TOO_MANY = "it holds too many files for the memory that may be used (far_memory)"
DEPTH = 64  # folders below a requested one; IoTDB keeps its files four deep
PATH_BYTES = 2048  # of a folder below the root; the system allows 4096 for root, folder and file name together
_UTF8 = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def outermost_folders(folders: Sequence[str]) -> list[str]:
    """Return `folders` without those that lie below another of them."""
    kept: list[str] = []
    above: set[str] = set()  # those in `kept`, without the trailing slash
    for folder in sorted(set(folders)):
        if kept[:1] == [""] and not folder.startswith("/"):
            continue
        if not any(char == "/" and folder[:at] in above for at, char in enumerate(folder)):
            kept.append(folder)
            above.add(folder.rstrip("/"))
    return kept


def why_unreached(folder: str, depth: int) -> str:
    """Return why a folder, `depth` below the requested one, is not listed; "" where it is listed."""
    if depth > DEPTH:
        return f"lies more than {DEPTH} folders deep"
    if len(folder) > PATH_BYTES or len(folder.encode()) > PATH_BYTES:
        return f"its path is longer than {PATH_BYTES} bytes"
    return ""


def pack_rows(rows: list[tuple[str, int, int, int]]) -> bytes:
    """Pack the names, each ended by a NUL, then all sizes, mtimes, inodes as little-endian int64."""
    names, sizes, mtimes, inodes = zip(*rows)  # noqa: B905 Python 3.6
    numbers = array.array("q", sizes + mtimes + inodes)
    if sys.byteorder == "big":
        numbers.byteswap()
    return "\0".join(names).encode() + b"\0" + numbers.tobytes()


def printable_name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def keep_utf8_rows(
    rows: list[tuple[str, int, int, int]], prefix: str, odd: list[tuple[str, str]]
) -> list[tuple[str, int, int, int]]:
    """Return the rows whose names are UTF-8, whatever the process's encoding is. The others are added to `odd`."""
    if _UTF8:
        try:
            "".join([row[0] for row in rows]).encode()
            return rows
        except UnicodeEncodeError:
            pass  # find it below, row by row
    kept = []
    for row in rows:
        name = os.fsencode(row[0])
        try:
            kept.append((name.decode(), row[1], row[2], row[3]))
        except UnicodeDecodeError:
            odd.append((prefix + printable_name(name), BAD_NAME))
    return kept


_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
RAISED = ".tidemark-removing-"
"""How a folder's name begins that was moved up while the tree above it is removed."""


def remove_files(root: bytes, paths: Sequence[str]) -> None:
    """Remove files, given by store paths: below `root` or absolute. Skips what is missing or lies below a symlink."""
    for folder, group in groupby(map(_split_path, paths), key=itemgetter(0)):
        above = _open_folder(root, folder)
        if above < 0:
            continue
        try:
            for _, name in group:
                with suppress(FileNotFoundError):
                    os.unlink(name.encode(), dir_fd=above)
        finally:
            os.close(above)


def remove_tree(root: bytes, folder: str) -> None:
    """Remove a folder, given by its store path. Removes symlinks in it, never follows them. A missing one is success."""
    above, name = _split_path(folder.rstrip("/"))
    handle = _open_folder(root, above)
    if handle >= 0:
        try:
            _remove_below(handle, name.encode())
        finally:
            os.close(handle)


def _split_path(path: str) -> tuple[str, str]:
    """Return (folder, name)."""
    folder, slash, name = path.rpartition("/")
    return folder or (slash if path.startswith("/") else ""), name


def _open_folder(root: bytes, folder: str) -> int:
    """Open a folder. Returns -1 where it is missing or was replaced by something else. An absolute path is trusted."""
    start, names = (folder.encode(), []) if folder.startswith("/") else (root, folder.split("/") if folder else [])
    handle = -1
    try:
        handle = os.open(start, _FOLDER & ~os.O_NOFOLLOW)
        for name in names:
            below = os.open(name.encode(), _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return -1
    return handle


def _remove_below(above: int, name: bytes) -> None:
    try:
        top = os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=above)
        return
    try:
        numbers = count()
        while True:
            names = os.listdir(top)
            if not names:
                break
            for inner in map(os.fsencode, names):
                if not _unlink_file(top, inner):
                    _remove_one_level(top, inner, numbers)
    finally:
        os.close(top)
    try:
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return


def _unlink_file(above: int, name: bytes) -> bool:
    """Remove a file. Returns False for a folder."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        try:
            os.close(os.open(name, _FOLDER, dir_fd=above))
        except OSError:
            raise error from None
        return False
    return True


def _remove_one_level(top: int, name: bytes, numbers: count[int]) -> None:
    """Remove the folder `name` in `top`. First moves its folders up into `top`, where the caller finds them next."""
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in map(os.fsencode, os.listdir(folder)):
            if not _unlink_file(folder, inner):
                # CRASH WINDOW: it lies in `top` under another name; the next removal of `top` removes it there.
                # A listing of `top` recognizes such names by RAISED.
                _move_up(folder, inner, top, numbers)
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _move_up(folder: int, inner: bytes, top: int, numbers: count[int]) -> None:
    try:
        os.rmdir(inner, dir_fd=folder)  # nearly all are deep in nothing
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    while True:
        try:
            os.rename(inner, b"%s%d" % (RAISED.encode(), next(numbers)), src_dir_fd=folder, dst_dir_fd=top)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # in use: the next number
                raise


PIECE = 1 << 20  # bytes read at once
_BY_HANDLE = os.scandir in os.supports_fd  # not in Python 3.6
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)


def _ignore_progress() -> None:
    """Do nothing: no progress was asked for."""


class Disk:
    """The files below one root. The root, and the folders of an absolute path, are trusted: they are the operator's."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/").encode() or b"/"
        self._plain: dict[str, bytes] = {}  # folder → its place with a slash; checked by this bulk call: no symlink
        self.tell: Callable[[], None] = _ignore_progress  # called about once a piece during long work

    @contextmanager
    def reporting_progress(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` repeatedly during long work within the block. Not safe while another thread uses this disk."""
        self.tell = tell
        try:
            yield
        finally:
            self.tell = _ignore_progress

    def locate(self, path: str) -> bytes:
        """Return the place of `path` on this disk. Raises ELOOP when a folder between the root and it is a symlink."""
        if path.startswith("/"):
            return path.encode()
        folder, _, name = path.rpartition("/")
        return self._folder_place(folder) + name.encode() if path else self.root

    def _folder_place(self, folder: str) -> bytes:
        names: list[tuple[str, str]] = []  # (folder, its name) of those that `_plain` lacks, innermost first
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
        self.forget_folders()
        return [self.locate(path) for path in paths]

    def walk_folders(
        self, folders: Sequence[str], missing: list[str], odd: list[tuple[str, str]], by_name: str = ""
    ) -> Iterator[tuple[str, list[tuple[str, int, int, int]]]]:
        """Yield (folder with its slash, rows (name, size, mtime in whole seconds, inode)) ordered by the paths' bytes.

        A folder with subfolders comes in pieces, with the subfolders' rows in between. Files whose name ends with `by_name`
        are not stat'ed: they come as (name, -1, 0, 0). A folder that is too deep or too large is added to `odd` and skipped.
        """
        self._plain.clear()
        # Folders to list. An item without a place has rows to yield.
        stack: list[tuple[str, bytes, int, list[tuple[str, int, int, int]]]] = []
        for prefix, folder in sorted([(_prefix_of(folder), folder) for folder in outermost_folders(folders)], reverse=True):
            found = self._locate_folder(folder, missing, odd)
            if found is not None:
                stack.append((prefix, found, 0, []))
        while stack:
            prefix, place, depth, rows = stack.pop()
            below: list[tuple[str, bytes]] = []
            if place:
                try:
                    rows = sorted(keep_utf8_rows(self._scan_folder(prefix, place, below, odd, by_name), prefix, odd))
                except MemoryError:
                    rows, below = [], []
                    odd.append((prefix.rstrip("/"), UNLISTED + TOO_MANY))
            end = len(rows)
            for inner, inner_place in sorted(below, reverse=True):
                start = bisect.bisect_left(rows, (inner[len(prefix) :], 0, 0, 0), 0, end)
                if start < end:
                    stack.append((prefix, b"", depth, rows[start:end]))
                why = why_unreached(inner, depth + 1)
                if why:
                    odd.append((inner.rstrip("/"), UNLISTED + why))
                else:
                    stack.append((inner, inner_place, depth + 1, []))
                end = start
            if end:
                yield prefix, rows[:end] if below else rows

    def _scan_folder(
        self, prefix: str, place: bytes, below: list[tuple[str, bytes]], odd: list[tuple[str, str]], by_name: str
    ) -> list[tuple[str, int, int, int]]:
        """Return a folder's files, unordered. Adds its folders to `below` and anything else to `odd`."""
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
                                continue  # removed meanwhile
                            rows.append((entry.name, info[modes.ST_SIZE], int(info[modes.ST_MTIME]), info[modes.ST_INO]))
                        else:
                            self._note_no_file(entry, prefix, place, below, odd)
            finally:
                os.close(handle)
        except (FileNotFoundError, NotADirectoryError):
            return rows
        except OSError as error:
            odd.append((prefix.rstrip("/"), UNLISTED + os.strerror(error.errno or 0)))
        return rows

    def list_folder(self, folder: str) -> list[str]:
        try:
            return sorted(printable_name(name) for name in os.listdir(self.locate(folder)))
        except OSError as error:
            if error.errno in _NO_FILE:
                return []
            raise

    def stat(self, path: str) -> tuple[int, int, int] | None:
        """Return (size, mtime in whole seconds, inode) of a regular file, else None."""
        try:
            info = os.lstat(self.locate(path))
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        return (info.st_size, info.st_mtime_ns // 1_000_000_000, info.st_ino) if modes.S_ISREG(info.st_mode) else None

    def stat_all(self, paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
        """`stat` each path. A missing folder costs one call, however many paths lie in it."""
        self.forget_folders()
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
                    there = False  # or it lies below a symlink: `stat` returns None for that, too
                folders[folder] = there
            found.append(self.stat(path) if there else None)
        return found

    def read_pieces(self, path: str, offset: int, length: int | None, size: int = PIECE) -> Iterator[bytes]:
        """Yield bytes from `offset` in pieces of at most `size`. Raises ERANGE where the file ends before `length`."""
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
        """Return `length` bytes from `offset`, or fewer where the file ends."""
        return b"".join(self.read_available(path, offset, length))

    def read_available(self, path: str, offset: int, length: int | None) -> Iterator[bytes]:
        """`read` in pieces, up to the file's size at its opening. Yields fewer bytes where the file was cut meanwhile."""
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

    def digest_range(self, path: str, offset: int, length: int | None) -> str | None:
        """Return the SHA-256 of a range in hex; None where the file is missing or too short."""
        total = hashlib.sha256()
        try:
            for piece in self.read_pieces(path, offset, length):
                total.update(piece)
                self.tell()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ERANGE):
                return None
            raise
        return total.hexdigest()

    def link(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Hard-link each source to its target. Returns the missing sources. Replaces a target that is another file."""
        self._plain.clear()
        gone = [source for source, _ in pairs if self.stat(source) is None]
        missing = set(gone)
        there = [(source, target) for source, target in pairs if source not in missing]
        durable.make_folders({os.path.dirname(self.locate(target)) for _, target in there})
        for source, target in there:
            try:
                self._link_one(self.locate(source), self.locate(target))
            except FileNotFoundError:
                gone.append(source)
        return gone

    def remove(self, paths: Sequence[str]) -> None:
        self.locate_all(paths)  # refuse paths below a symlink before anything is removed
        remove_files(self.root, paths)

    def remove_tree(self, folder: str) -> None:
        """Remove a folder with its content. Removes symlinks, never follows them. Raises EINVAL for the root itself."""
        if not folder.strip("/"):
            raise OSError(errno.EINVAL, "is the root of the store, which is never removed")
        self.locate(folder)
        remove_tree(self.root, folder)

    def free_bytes(self, folder: str) -> int:
        """Return the free bytes of the disk of `folder`; of the root's disk where `folder` lies below a symlink, since
        nothing is written there."""
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

    def forget_folders(self) -> None:
        """Forget which folders are no symlinks. To be called at the start of a bulk call."""
        self._plain.clear()

    def open(self, path: str) -> int:
        """Open a regular file for reading. Raises ENOENT for anything else."""
        try:
            return durable.open_regular(self.locate(path), os.O_RDONLY)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise FileNotFoundError(errno.ENOENT, "No such file") from error
            raise

    def _note_no_file(
        self, entry: os.DirEntry[str], prefix: str, place: bytes, below: list[tuple[str, bytes]], odd: list[tuple[str, str]]
    ) -> None:
        name = os.fsencode(entry.name)
        if not entry.is_dir(follow_symlinks=False):
            odd.append(
                (prefix + printable_name(name), "is a symlink" if entry.is_symlink() else "is neither file nor folder")
            )
            return
        try:
            below.append((prefix + name.decode() + "/", os.path.join(place, name)))
        except UnicodeDecodeError:
            odd.append((prefix + printable_name(name), BAD_FOLDER))

    def _locate_folder(self, folder: str, missing: list[str], odd: list[tuple[str, str]]) -> bytes | None:
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

    def _link_one(self, origin: bytes, place: bytes) -> None:
        try:
            os.link(origin, place, follow_symlinks=False)
        except FileExistsError:
            there, here = os.lstat(origin), os.lstat(place)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
            # CRASH WINDOW: the old target is removed, the new link is not there yet; the rerun links it.
            durable.remove_quietly(place)
            os.link(origin, place, follow_symlinks=False)


def read_at(handle: int, length: int, offset: int) -> bytes:
    """Read `length` bytes at `offset`, in as many reads as needed. Returns fewer only where the file ends."""
    data = more = os.pread(handle, length, offset)
    while more and len(data) < length:
        more = os.pread(handle, length - len(data), offset + len(data))
        data += more
    return data


def _prefix_of(folder: str) -> str:
    return folder + "/" if folder and folder != "/" else folder
