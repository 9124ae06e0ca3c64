"""Whether anybody else opened a part while it was ours to write: the kernel knows, where times cannot tell.

A write of somebody else between two looks at a file's times vanishes behind our own. So the part is held under a lease
(fcntl(2), F_SETLEASE): whoever opens it breaks the lease, and waits until we look again, which is soon. What was read back
under a lease that held is what is in the file; where it broke, or a file system has none, all is read back at the end. At
both ends: Python 3.6.
"""

from __future__ import annotations

import fcntl
import signal
import threading


class PartLease:
    """Of an open file that nobody else has open. `held` once broken stays false."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._door = threading.Lock()  # one thread looks now and then, another may close the file
        self.held = False
        try:
            fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # who breaks it sends us that: by itself it does nothing
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            self.held = True
        except (OSError, AttributeError):
            return  # somebody has it open, or there are no leases here

    def look(self) -> bool:
        """Whether it holds; if somebody waits to open the file, let them."""
        with self._door:
            if self.held and fcntl.fcntl(self._handle, fcntl.F_GETLEASE) != fcntl.F_WRLCK:
                self._end()
            return self.held

    def end(self) -> None:
        """Before the file is closed or opened once more."""
        with self._door:
            if self.held:
                self._end()

    def _end(self) -> None:
        self.held = False
        try:
            fcntl.fcntl(self._handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return  # who waited too long for us has it already
