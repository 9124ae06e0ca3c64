"""Look again and again whether the disk that is written to still has room, and say so before it has none.

Both ends run it, whichever is written to (see `far_program`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import errno
import time
from typing import Any

LOOK_BYTES = 64 << 20  # written since the last look, at most
LOOK_SECONDS = 1.0  # others write to the disk, too


class NoRoom(OSError):
    """Fewer bytes are free than are to be written and kept free."""

    def __init__(self, free: int) -> None:
        super().__init__(errno.ENOSPC, f"{free} bytes are free")
        self.free = free


class HeadRoom:
    """Of the disk that `folder` is on, or will be; `disk` says its `free_bytes`. `reserve` bytes of it are to stay free.
    `rarely`: so many times LOOK_SECONDS lie between two looks, where one costs a round trip."""

    def __init__(self, disk: Any, folder: str, reserve: int, rarely: int = 1) -> None:
        self._disk = disk
        self._folder = folder
        self._reserve = reserve
        self._rarely = rarely
        self._left = 0  # may be written before the next look
        self._until = 0.0  # by `time.monotonic`

    def take(self, size: int) -> None:
        """`size` bytes are to be written. Raises NoRoom, and OSError where nobody can look."""
        self._left -= size
        now = time.monotonic()
        if self._left >= 0 and now < self._until:
            return
        free = self._disk.free_bytes(self._folder)
        if free < self._reserve + size:
            raise NoRoom(free)
        self._left = min(LOOK_BYTES, free - self._reserve - size)
        self._until = now + LOOK_SECONDS * self._rarely
