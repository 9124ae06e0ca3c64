"""Translate an operating system's errors into Tidemark's. Each names the host and the path. Its class decides on retries."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.errors import (
    MORE_ROOM,
    CorruptionError,
    DiskFullError,
    PermanentError,
    PermissionDeniedError,
    SourceVanishedError,
    TidemarkError,
    UnreachableError,
)
from tidemark.stores.agent.limits import TOO_MUCH

_VANISHED = {errno.ENOENT, errno.ENOTDIR}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_AGAIN = {errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_NO_LINK = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}


@dataclass(frozen=True)
class Where:
    """The store that an error concerns. `host` is "" for this machine; `root` is the store's folder there."""

    host: str
    root: str

    def full_path(self, path: str) -> str:
        """Return the absolute path, preceded by its host."""
        place = path if path.startswith("/") else f"{self.root.rstrip('/')}/{path}"
        return f"{self.host}:{place}" if self.host else place


@contextmanager
def translate_os_errors(where: Where, path: str, *, reading: bool = False) -> Iterator[None]:
    """Translate an OSError inside the block by `os_error`."""
    try:
        yield
    except OSError as error:
        raise os_error(error, where, path, reading=reading) from error


def os_error(error: OSError, where: Where, path: str, *, reading: bool = False) -> TidemarkError:
    """Return Tidemark's error for `error` at `path`. ERANGE means for `reading` that the file has become shorter, else that
    a part would get a hole."""
    number = error.errno or 0
    place = where.full_path(path if error.filename is None else os.fsdecode(error.filename))
    said = error.strerror or os.strerror(number)
    if number in _VANISHED:
        return SourceVanishedError(f"{place} is gone", hint="the next run lists again", subject=path)
    if number == errno.ERANGE:
        shorter = SourceVanishedError if reading else CorruptionError
        return shorter(f"{place} {said}", hint="the next run goes on from what is whole", subject=path)
    if number == errno.ELOOP:
        return PermissionDeniedError(
            f"{place} is a symlink or lies below one; none is followed", hint="name the real folder", subject=path
        )
    if number == errno.ENXIO:
        return PermanentError(
            f"{place} is not a regular file", hint="see who put it there (ls -l), remove it, then run again", subject=path
        )
    if number in _DENIED:
        who = "the login" if where.host else f"the user id {os.geteuid()}"
        return PermissionDeniedError(
            f"{place}: {said}", hint=f"give {who} access to it, then run again; ./tidemark doctor checks", subject=path
        )
    if number in _FULL:
        return DiskFullError(f"no space at {place}: {said}", hint=MORE_ROOM[number], subject=path)
    if said == TOO_MUCH:
        return PermanentError(f"{place}: {said}", hint="raise far_memory of the site in the settings", subject=path)
    if number in _AGAIN:
        return UnreachableError(f"{place}: {said}", hint="run again", subject=path)
    if number in _NO_LINK:
        return PermanentError(
            f"{place} cannot be hard-linked: {said}",
            hint='keep the site\'s `snapshot` folder on the same disk, or set snapshot = ""',
            subject=path,
        )
    if number == errno.ENAMETOOLONG:
        return PermanentError(
            f"{place}: {said}", hint="shorten it, or use a file system there that takes longer names", subject=path
        )
    if number == errno.EFBIG:
        return PermanentError(f"{place} is larger than a file may be there: {said}", hint=MORE_ROOM[number], subject=path)
    return PermanentError(
        f"{place}: {said}", hint="look at the disk, the user's quota and the system log there", subject=path
    )
