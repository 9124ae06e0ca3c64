"""What the program at a far end neither outlives nor outgrows: its line, and so much memory.

Runs at the far end (see `server`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

MEMORY_BYTES = 256_000_000  # beside what a bare python3 takes there
TOO_MUCH = "python3 there would need more memory than it may take (far_memory)"
ENDING_SECONDS = 5.0  # for what came before the line went: proven, journaled, named
_OVER = select.POLLHUP | select.POLLERR | select.POLLNVAL
_CLOSED = getattr(select, "POLLRDHUP", 0)  # of a socket whose other end sends no more


def limit_memory(size: int) -> None:
    """Of this process, from now on: what needs more meets MemoryError. 0: no limit."""
    import resource

    if not size:
        return
    try:
        with open("/proc/self/statm") as pages:  # what is mapped already, such as a system's locales, may be much
            size += int(pages.read().split()[0]) * resource.getpagesize()
        known, most = resource.getrlimit(resource.RLIMIT_AS)
        limits = [size] + [limit for limit in (known, most) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), most))
    except (OSError, ValueError):
        return  # no such system; its users' limits hold


def end_with(line: int, before: Callable[[], None]) -> None:
    """This process ends at most ENDING_SECONDS after whoever feeds `line` has gone, whatever it is at then. `before`: it."""
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
        # CRASH WINDOW: as by kill -9. A part goes on from what its journal says, a name is given again.
        os._exit(1)
