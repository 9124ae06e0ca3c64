"""Remove a folder and all below it, however deep: no recursion, and no path longer than two names below it.

Runs at the far end, too (see `far_program`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import errno
import os
from itertools import count

_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_DIRECTORY
_RAISED = b".tidemark-removing-%d"


def remove_tree(place: bytes) -> None:
    """Symlinks in it are removed, not followed. What is gone already is success."""
    try:
        top = os.open(place, _FOLDER)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(place)
        return
    try:
        numbers = count()
        while True:
            names = os.listdir(top)
            if not names:
                break
            for name in names:
                if not _unlinked(top, os.fsencode(name)):
                    _empty(top, os.fsencode(name), numbers)
    finally:
        os.close(top)
    try:
        os.rmdir(place)
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
            os.rename(inner, _RAISED % next(numbers), src_dir_fd=folder, dst_dir_fd=top)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # of an earlier try: the next number
                raise
