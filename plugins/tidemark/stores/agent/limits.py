"""Limits of the program at a far end: it ends with its connection, and its memory is limited.

Runs at the far end (see `server`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

MEMORY_BYTES = 256_000_000  # on top of what python3 itself takes there
TOO_MUCH = "python3 there would need more memory than it may take (far_memory)"
ENDING_SECONDS = 5.0  # to verify, journal and rename what came before the connection ended
_OVER = select.POLLHUP | select.POLLERR | select.POLLNVAL
_CLOSED = getattr(select, "POLLRDHUP", 0)  # the socket's other end sends no more


def limit_memory(size: int) -> None:
    """Let this process allocate at most `size` more bytes. Beyond that Python raises MemoryError. 0: no limit."""
    import resource

    if not size:
        return
    try:
        with open("/proc/self/statm") as pages:  # what is mapped already, such as the locales, may be large
            size += int(pages.read().split()[0]) * resource.getpagesize()
        known, most = resource.getrlimit(resource.RLIMIT_AS)
        limits = [size] + [limit for limit in (known, most) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
    except (OSError, ValueError):
        return  # the system has no such limits


def end_with(line: int, before: Callable[[], None]) -> None:
    """End this process ENDING_SECONDS after the other end of `line` is closed, whatever it does. Calls `before` first."""
    watcher = threading.Thread(target=_exit_after_hangup, args=(line, before), name="line")
    watcher.daemon = True
    watcher.start()


def _exit_after_hangup(line: int, before: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(line, _CLOSED)
    while not any(event & (_OVER | _CLOSED) for _, event in poll.poll()):
        continue
    time.sleep(ENDING_SECONDS)
    try:
        before()
    finally:
        # CRASH WINDOW: as by kill -9. The rerun resumes parts by their journals and repeats the renames.
        os._exit(1)
