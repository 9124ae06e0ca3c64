"""Append to a file that others append to as well: compare its end and append in one act, under a lock.

Runs at the far end (see `server`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from tidemark.stores.agent import durable


def append_after(place: bytes, data: bytes, size: int, offset: int, tail: bytes) -> bool:
    """Cut the file at `offset` and append `data`, if it has `size` bytes and its first `offset` bytes end with `tail`."""
    try:
        handle = durable.open_regular(place, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # ends with the handle
        if os.fstat(handle).st_size != size or os.pread(handle, len(tail), offset - len(tail)) != tail:
            return False
        try:
            os.ftruncate(handle, offset)
            os.lseek(handle, offset, os.SEEK_SET)
            # CRASH WINDOW: a part of `data` is there. Whoever reads it finds no end in it, and the next append cuts it.
            durable.write_all(handle, data)
            os.fsync(handle)
        except OSError:  # the disk is full, or broken
            with suppress(OSError):
                os.ftruncate(handle, offset)
            raise
        return True
    finally:
        os.close(handle)


def make_new(place: bytes, data: bytes) -> bool:
    """Make a file that appears whole, if there is none. A file system without hard links raises an error."""
    temp = b"%s.%s.tmp" % (place, os.urandom(4).hex().encode())
    durable.make_folder(os.path.dirname(place))
    handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        try:
            durable.write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        # CRASH WINDOW: a whole temp file without its name; nobody reads it.
        os.link(temp, place)
    except FileExistsError:
        return False
    finally:
        durable.remove_quietly(temp)
    durable.sync_folder(os.path.dirname(place))
    return True
