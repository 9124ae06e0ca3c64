"""Remove files, and folders with all below them, however deep: no recursion, and no path longer than two names.

Whoever may write there can swap a folder for a symlink between any two calls. So what is removed is reached by folders that
are opened one by one from the root. Runs at the far end, too (see `far_program`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, groupby
from operator import itemgetter

_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
RAISED = ".tidemark-removing-"
"""How a folder's name begins that was moved up while the tree above it is removed."""


def remove_files(root: bytes, paths: Sequence[str]) -> None:
    """Paths as a store has them, below `root` or absolute. What is gone, or lies below a symlink, is passed over."""
    for folder, group in groupby(map(_split, paths), key=itemgetter(0)):
        above = _opened(root, folder)
        if above < 0:
            continue
        try:
            for _, name in group:
                with suppress(FileNotFoundError):
                    os.unlink(name.encode(), dir_fd=above)
        finally:
            os.close(above)


def remove_tree(root: bytes, folder: str) -> None:
    """A folder as a store has it. Symlinks in it are removed, not followed. What is gone already is success."""
    above, name = _split(folder.rstrip("/"))
    handle = _opened(root, above)
    if handle >= 0:
        try:
            _remove_below(handle, name.encode())
        finally:
            os.close(handle)


def _split(path: str) -> tuple[str, str]:
    """(folder, name)."""
    folder, slash, name = path.rpartition("/")
    return folder or (slash if path.startswith("/") else ""), name


def _opened(root: bytes, folder: str) -> int:
    """A handle, -1 where the folder is gone or was swapped for something else. What an absolute path names is trusted."""
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
                if not _unlinked(top, inner):
                    _empty(top, inner, numbers)
    finally:
        os.close(top)
    try:
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        return


def _unlinked(above: int, name: bytes) -> bool:
    """False for a folder."""
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


def _empty(top: int, name: bytes, numbers: count[int]) -> None:
    """Remove the folder `name` in `top`; the folders in it come to lie in `top`, where they are found next."""
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in map(os.fsencode, os.listdir(folder)):
            if not _unlinked(folder, inner):
                # CRASH WINDOW: it lies in `top` under another name; whoever removes `top` again removes it there.
                # Who looks what lies in `top` first knows such names by RAISED.
                _raise(folder, inner, top, numbers)
    finally:
        os.close(folder)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _raise(folder: int, inner: bytes, top: int, numbers: count[int]) -> None:
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
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # of an earlier try: the next number
                raise
