"""Open and read files in folders that other users can write to: `landing/`, `data/`, `quarantine/`, data nodes, sites.

Such a user can place a FIFO, a symlink to a device or to a private file, or a file of a terabyte. He can swap one for
the other between two calls. So a file is opened folder by folder from a trusted root. No symlink is followed, opening
never blocks, only a regular file is accepted, and the size is checked before a file is read whole. The agent has the
standard library alone and opens by `stores.agent.durable.open_regular`. `tests/unit/test_house.py` lists the modules that
open by themselves, and why.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

from tidemark.errors import CorruptionError, PermissionDeniedError

MOST_DOCUMENT = 1 << 29
"""Bytes of a manifest or a receipt: a site of a million files tells about 400 MB at once."""
MOST_MODS = 1 << 26
"""Bytes of a file of deletions: about a million of them."""
MOST_RECORD = 1 << 26
"""Bytes of a decision, a settled merge or a merge's intent: the owners of a million devices."""
MOST_SMALL = 1 << 24
"""Bytes of a record that tells of one thing: a mark, the blocks of a part."""
NO_LINK = "put the folder or file itself in the link's place; one that lies on another disk is mounted there (mount --bind)"
"""What helps where a symlink stands in what is ours."""

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class UntrustedFile(NamedTuple):
    """A file at `path` below `root`. The root and the folders above it are trusted; nothing below the root is.

    An absolute path ignores `root`: its own folder is trusted, since the operator's settings name it.
    """

    root: str
    path: str

    def __str__(self) -> str:
        return self.path if self.path.startswith("/") else f"{self.root.rstrip('/')}/{self.path}"

    def open_file(self) -> FileIO:
        """Open the file for reading. Returns a context manager.

        Raises FileNotFoundError if there is none, CorruptionError if it is no regular file or a part of its path is a
        symlink, and PermissionDeniedError.
        """
        return FileIO(self.open_handle(), "rb")

    def open_handle(self) -> int:
        """Open the file and return its descriptor, which the caller closes. Raises as `open_file`."""
        handle = _open_below(self)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise self._corruption_error("not a regular file")

    def read(self, most: int) -> bytes:
        """Read the whole file. Raises CorruptionError, before it reads any byte, if the file has more than `most`."""
        with self.open_file() as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise self._corruption_error(f"{size} bytes long; at most {most} are read")
            pieces = []
            while size and (piece := file.read(size)):
                pieces.append(piece)
                size -= len(piece)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def compute_sha256(self) -> str:
        """The file's SHA-256 in hex."""
        with self.open_file() as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _corruption_error(self, what: str) -> CorruptionError:
        return CorruptionError(f"{self.path} is {what}", subject=self.path)


def _open_below(file: UntrustedFile) -> int:
    root, below = file.root, file.path
    if below.startswith("/"):
        root, _, below = below.rpartition("/")
    *folders, name = below.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in (*folders, name)):
        raise CorruptionError(f"{file.path!r} is no path below {root}", subject=file.path)
    opened: list[int] = []
    try:
        above = _open_step(file, root or "/", None, _FOLDER)
        opened.append(above)
        for folder in folders:
            above = _open_step(file, folder, above, _FOLDER | os.O_NOFOLLOW)
            opened.append(above)
        return _open_step(file, name, above, _FILE)
    finally:
        for handle in opened:
            os.close(handle)


def _open_step(file: UntrustedFile, name: str, above: int | None, how: int) -> int:
    try:
        return os.open(name, how, dir_fd=above)
    except PermissionError as refused:
        raise PermissionDeniedError(
            f"cannot open {file}: {refused.strerror}",
            hint=f"give the user id {os.geteuid()} access to it, then run again",
            subject=file.path,
        ) from refused
    except OSError as broken:
        if above is not None and broken.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, above):
            raise CorruptionError(
                f"{file.path} is or lies below a symlink; links are not followed", hint=NO_LINK, subject=file.path
            ) from broken
        if broken.errno in _NOT_THERE:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(file)) from broken
        if broken.errno == errno.ENXIO:
            raise CorruptionError(f"{file.path} is not a regular file", subject=file.path) from broken
        raise


def _is_link(name: str, above: int | None) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    return False
