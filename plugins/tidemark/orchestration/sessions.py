"""Processes that end together: each part of Airflow leads a session, and whatever it forked is found again by it.

Airflow's executor workers and task processes get process groups of their own, some survive their parent, none leaves
the session. So "all children gone" is asked of the session, from /proc. Run as a script this module is the watcher:
it is told the sessions over a pipe, waits until its parent's end of it closes, which also happens when the parent is
killed with -9, then ends them. Only the standard library: the watcher starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

GRACE_SECONDS = 20.0


def members(leaders: Collection[int]) -> list[int]:
    """Every live process whose session is led by one of `leaders`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields and int(fields[3]) in leaders and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def end_sessions(leaders: Collection[int], grace: float = GRACE_SECONDS, reap: Callable[[], object] = lambda: None) -> int:
    """SIGTERM to the leaders, SIGKILL after `grace` seconds to all that is left. Returns how many had to be killed."""
    for leader in leaders:
        if leader in members({leader}):
            _send(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (left := members(leaders)) and time.monotonic() < deadline:
        reap()
        orphans_only = not set(left) & set(leaders)
        if orphans_only:  # their leader ended well and left them behind: nobody will ever end them
            break
        time.sleep(0.05)
    killed = len(left)
    while left := members(leaders):
        for pid in left:
            _send(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)
    return killed


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()  # state, parent, process group, session, …


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _watch() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_sessions({int(line) for line in sys.stdin})  # one leader a line, as they are started; the end of the pipe ends us


if __name__ == "__main__":
    _watch()
