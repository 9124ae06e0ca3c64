"""The only Python module that gives files on a disk their final names: temp name, write, fsync, rename, fsync the folder.

It runs in two places: in this process for `file://` stores, and inside the far end's python3 for `sftp://` ones (see
`server`). So it imports the standard library alone, uses Python 3.6 and raises plain OSError.
Source: research/aesthetics.md §4.4: every shorter sequence can leave a torn or empty file behind after a power loss.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

SYNC_ONCE = 16  # number of files from which one syncfs of the disk is cheaper than an fsync of each
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(place: bytes, how: int) -> int:
    """Open a regular file. No symlink at `place` is followed, and a FIFO there does not hang us.

    Raises ENXIO for anything else than a regular file, ELOOP for a symlink.
    """
    handle = os.open(place, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if modes.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.ENXIO, "is not a regular file", place)


class SyncFailed(OSError):
    """A sync failed: the disk lost bytes. `parts` are removed, since a second sync of them would succeed: Linux reports an
    error once (Documentation/core-api/errseq.rst). `disk`: the failed sync was of a whole disk, and concerns anything
    written to it before."""

    def __init__(self, error: OSError, parts: Sequence[bytes], disk: bool) -> None:
        super().__init__(error.errno, f"the disk lost what was written: {os.strerror(error.errno or errno.EIO)}")
        self.parts = list(parts)
        self.disk = disk


class Proof(namedtuple("Proof", "inode size mtime_ns ctime_ns")):
    """The stat of a part whose bytes were verified. While a stat shows the same, the bytes are the same.

    Linux counts file times in ticks of 1-10 ms: two changes within one tick cannot be told apart. From 6.13 on, the first
    change after a stat gets its own time (Documentation/filesystems/multigrain-ts.rst). Before 6.13, a change within the
    stat's tick goes unnoticed.
    """

    __slots__ = ()

    @classmethod
    def from_stat(cls, info: os.stat_result) -> Proof:
        return cls(info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def shown_by(self, info: os.stat_result, renamed: bool = False) -> bool:
        """Whether `info` shows this state. `renamed`: the file was renamed meanwhile, so its ctime may differ."""
        return (
            info.st_ino == self[0]
            and info.st_size == self[1]
            and info.st_mtime_ns == self[2]
            and (renamed or info.st_ctime_ns == self[3])
        )


class DiskHandles:
    """One open handle for each disk that is written to, opened before the first byte. Linux reports a lost write once to
    each handle that was open at that time. A handle opened later gets only errors not yet reported to any other
    (errseq.rst), and other processes sync, too."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}  # by device

    def watch_disk(self, folder: bytes) -> None:
        device = os.stat(folder).st_dev
        if device not in self._handles:
            self._handles[device] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def handle_of(self, device: int) -> int:
        """Return the device's handle, or -1."""
        return self._handles.get(device, -1)

    def close(self) -> None:
        while self._handles:
            with suppress(OSError):  # nothing was written through it
                os.close(self._handles.popitem()[1])


def publish(place: bytes, pieces: Iterable[bytes]) -> None:
    """Replace the file at `place` by `pieces`, durably. The temp name is unique, so two writers cannot mix their bytes."""
    temp = b"%s.%s.tmp" % (place, os.urandom(4).hex().encode())
    make_folder(os.path.dirname(place))
    handle = os.open(temp, _WRITE | os.O_EXCL, 0o644)
    try:
        try:
            for piece in pieces:
                write_all(handle, piece)
            os.fsync(handle)
        finally:
            os.close(handle)
        # CRASH WINDOW: the temp file is whole but has no final name; nobody reads it, the rerun publishes again.
        # Housekeeping removes it at a receiver and at its nodes, `clean_landing` in a landing.
        os.rename(temp, place)
    except BaseException:  # the iterator of pieces may raise, too
        remove_quietly(temp)
        raise
    sync_folder(os.path.dirname(place))


def is_half_written(path: str) -> bool:
    """Whether a temp file of `publish` is named so, of any store's. Each has a name of its own: nobody replaces one left."""
    end = path[-len(".0a1b2c3d.tmp") :]
    return end[:1] == "." and end[9:] == ".tmp" and set(end[1:9]) <= set("0123456789abcdef")


def publish_within(root: bytes, path: bytes, data: bytes) -> None:
    """`publish` of `path` below `root`, safe against symlinks: opens the folders below `root` one by one. Raises ELOOP where
    one of them is no folder. What lies above `root` is trusted."""
    folder, _, name = path.rpartition(b"/")
    temp = b"%s.%s.tmp" % (name, os.urandom(4).hex().encode())
    try:
        above = _open_folder(root, folder)
        try:
            handle = os.open(temp, _WRITE | os.O_EXCL, 0o644, dir_fd=above)
            try:
                try:
                    write_all(handle, data)
                    os.fsync(handle)
                finally:
                    os.close(handle)
                # CRASH WINDOW: as in `publish`.
                os.rename(temp, name, src_dir_fd=above, dst_dir_fd=above)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=above)
                raise
            os.fsync(above)
        finally:
            os.close(above)
    except OSError as error:
        error.filename, error.filename2 = os.path.join(root, path), None
        raise


def _open_folder(root: bytes, path: bytes) -> int:
    """Open the folder at `path` below `root`. Makes it where it is missing."""
    make_folder(root)
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split(b"/"):
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=handle)
                os.fsync(handle)
            except FileExistsError:
                pass
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        except NotADirectoryError as error:  # Linux raises it for a symlink, too
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
        finally:
            os.close(handle)
        handle = below
    return handle


def write_part(place: bytes, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
    """Cut the file at `offset` and append `pieces`. Returns the new length. Raises ERANGE when that would leave a hole."""
    make_folder(os.path.dirname(place))
    handle = open_regular(place, _WRITE)
    try:
        if os.fstat(handle).st_size < offset:
            raise OSError(errno.ERANGE, "is shorter than the offset to go on from")
        os.ftruncate(handle, offset)
        os.lseek(handle, offset, os.SEEK_SET)
        for piece in pieces:
            write_all(handle, piece)
            offset += len(piece)
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    return offset


def seal(renames: Sequence[tuple[bytes, bytes]]) -> None:
    """Make every part durable, rename all, make the folders durable. Raises SyncFailed.

    A pair that was renamed before is synced again: that process may have died between the rename and the sync.
    """
    make_durable(renames)
    # CRASH WINDOW: durable parts without final names, or some with: the rerun finds the rest as parts and seals them.
    give_names(renames)


def make_durable(renames: Sequence[tuple[bytes, bytes]], singly: bool = False, disks: DiskHandles | None = None) -> None:
    """Do the first half of `seal`. `singly`: fsync each file, never the whole disk at once. Raises SyncFailed."""
    folders = {final.rpartition(b"/")[0] for _, final in renames}
    if len(renames) >= SYNC_ONCE and not singly:
        try:
            if _sync_disks({part.rpartition(b"/")[0] for part, _ in renames}.union(folders), disks):
                return
        except OSError as error:
            raise _remove_lost_parts(error, [part for part, _ in renames], True) from error
    lost, last = [], OSError()
    for part, final in renames:
        handle = open_regular(final if _sealed_before(part, final) else part, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            lost.append(part)
            last = error
        finally:
            os.close(handle)
    if lost:
        raise _remove_lost_parts(last, lost, False)


def give_names(
    renames: Sequence[tuple[bytes, bytes]], same: Callable[[int], bool] | None = None, disks: DiskHandles | None = None
) -> list[int]:
    """Do the second half of `seal`. Raises SyncFailed where the names may not last.

    `same(number)`: whether the file that now has the pair's final name is the verified one. Another process may have
    replaced the part just before. Returns the numbers of the pairs that fail: they are parts again, or an older file stays.
    """
    others = []
    for number, (part, final) in enumerate(renames):
        named = True
        try:
            os.rename(part, final)
        except FileNotFoundError:
            if not _sealed_before(part, final):
                raise
            named = False
        if same is not None and not same(number):
            others.append(number)
            # CRASH WINDOW: an unverified file has the name; the rerun compares its digest and sends it again.
            if named and os.path.lexists(final):
                os.rename(final, part)
    sync_names(renames, disks)
    return others


def sync_names(renames: Sequence[tuple[bytes, bytes]], disks: DiskHandles | None) -> None:
    """Make the folders of the final names durable. Raises SyncFailed."""
    folders = sorted({final.rpartition(b"/")[0] for _, final in renames})
    try:
        if len(folders) >= SYNC_ONCE and _sync_disks(folders, disks):
            return
    except OSError as error:  # it may concern bytes that were written after the parts were made durable
        raise SyncFailed(error, [], True) from error
    lost, last = set(), OSError()
    for folder in folders:
        try:
            sync_folder(folder)
        except OSError as error:
            lost.add(folder)
            last = error
    if lost:
        raise SyncFailed(last, [part for part, final in renames if final.rpartition(b"/")[0] in lost], False)


def rename_durably(source: bytes, target: bytes) -> None:
    """Rename `source` to `target` atomically and make both folders durable. A rename that was done before is success."""
    make_folder(os.path.dirname(target))
    try:
        os.rename(source, target)
    except FileNotFoundError:
        if not _sealed_before(source, target):
            raise
    for folder in {os.path.dirname(source), os.path.dirname(target)}:
        sync_folder(folder)


def make_folder(folder: bytes) -> None:
    """Make `folder` and its parents. Makes each new one's name durable in the folder above."""
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    except FileNotFoundError:
        make_folder(os.path.dirname(folder))
        make_folder(folder)
        return
    sync_folder(os.path.dirname(folder))


def make_folders(folders: Iterable[bytes]) -> None:
    """`make_folder` each, but sync each parent once, however many new folders it has."""
    seen, grown = set(), set()
    try:
        for folder in folders:
            parent = os.path.dirname(folder)
            if parent not in seen:
                make_folder(parent)
                seen.add(parent)
            try:
                os.mkdir(folder, 0o755)
                grown.add(parent)
            except FileExistsError:
                if not os.path.isdir(folder):
                    raise
    finally:  # a later call finds those made before an error, and expects their names to be durable
        for parent in grown:
            sync_folder(parent)


def sync_folder(folder: bytes) -> None:
    """Make renames within a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_quietly(place: bytes) -> None:
    """Remove a file. A missing one is success."""
    try:
        os.unlink(place)
    except FileNotFoundError:
        return


def _sealed_before(part: bytes, final: bytes) -> bool:
    """Whether `part` was renamed to `final` before. For a rename that found no `part` or no target folder."""
    return not os.path.lexists(part) and os.path.lexists(final)


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data`, however little the system takes at once."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _remove_lost_parts(error: OSError, parts: Sequence[bytes], disk: bool) -> SyncFailed:
    for part in parts:  # a file that has its final name stays: it may be in use
        remove_quietly(part)
    return SyncFailed(error, parts, disk)


def _sync_disks(folders: Iterable[bytes], watched: DiskHandles | None = None) -> bool:
    """Call syncfs once for each disk of `folders`. Returns False where it is missing or, before Linux 5.8, hides errors."""
    system = os.uname()
    version = [int(digits) for digits in system.release.split("-")[0].split(".")[:2] if digits.isdigit()]
    if system.sysname != "Linux" or version < [5, 8]:
        return False
    try:
        import ctypes
    except ImportError:  # a slim python has none
        return False
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    disks = {os.stat(folder).st_dev: folder for folder in folders}
    for device, folder in disks.items():
        open_handle = -1 if watched is None else watched.handle_of(device)
        handle = open_handle if open_handle >= 0 else os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if syncfs(handle) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            if handle != open_handle:
                os.close(handle)
    return True
