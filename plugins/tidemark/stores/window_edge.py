"""The edge of a window: once the caller said so, no more than a block comes, of all files over all connections."""

from __future__ import annotations

import threading


class WindowEdge:
    """Any thread may ask, and say what passes."""

    def __init__(self, block_bytes: int) -> None:
        self._left = block_bytes
        self._reached = threading.Event()
        self._door = threading.Lock()

    def reach(self) -> None:
        self._reached.set()

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def passes(self, size: int) -> bool:
        """So many bytes are to pass, or did: whether they are within the block that may."""
        if not self._reached.is_set():
            return True
        with self._door:
            self._left -= size
            return self._left >= 0

    def lets(self, size: int) -> bool:
        """Whether so many more might pass."""
        return not self._reached.is_set() or self._left >= size
