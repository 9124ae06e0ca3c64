"""Copies of files that somebody else may still write to: new inodes, made from one look, that nobody else has a name of.

The kernel copies: file systems that can share blocks (btrfs, XFS) share them until one side is written to. Holes stay holes,
so that a file that takes nothing where it lies takes nothing here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tidemark.errors import CorruptionError, PermanentError
from tidemark.untrusted_files import UntrustedFile

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 30  # asked of the kernel at once; it gives less
_BLOCK = 1 << 20
_NOT_BY_KERNEL = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EIO)
_LOOK = "look at the disk and the system log there, then ./tidemark load"


class _Unreadable(Exception):
    """The source, not the copy, met an OSError."""


def copy_files(root: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Copy source → target each, both relative to `root`, as large as the source is when it is opened.

    A source that is no regular file, or that no plain folders lead to, is passed over. PermissionDeniedError for one that
    cannot be opened, PermanentError for one whose bytes cannot be read; OSError where the target cannot be written.
    """
    for source, target in pairs:
        try:
            handle = UntrustedFile(str(root), source).handle()
        except (FileNotFoundError, CorruptionError):
            continue
        try:
            place = root / target
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = os.open(place, _WRITE, 0o644)
            try:
                _copy(handle, copy, os.fstat(handle).st_size)
            except _Unreadable as silent:
                refused = silent.args[0]
                raise PermanentError(f"cannot read {source}: {refused.strerror}", hint=_LOOK, subject=source) from refused
            finally:
                os.close(copy)
        finally:
            os.close(handle)


def _copy(source: int, copy: int, size: int) -> None:
    """Data by data, the holes between left out."""
    os.ftruncate(copy, size)
    at = 0
    while at < size:
        end = size
        with suppress(OSError):  # a file system that cannot tell
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
                return  # it was cut while it was read: its digest tells
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
