"""Processes that end together: each part of Airflow leads a session, by which all its forks are found.

Airflow's executor workers and task processes get process groups of their own. Some survive their parent, none leaves the
session. So /proc is searched for the session to see whether all have ended. Only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

GRACE_SECONDS = 20.0
TASK_SECONDS = 4.0  # a task that runs while Airflow stops may end by itself within this time
REPORT_SECONDS = 6.0  # its supervisor reports to the API server, and the scheduler ends, within this time
SERVER_SECONDS = 6.0
TRIGGERER_SECONDS = 1.5  # it notices its runner's end 10 s late (its select() waits on the runner's closed sockets)

Reap = Callable[[], object]


def reap_nothing() -> None:
    """The `reap` of a process that has no children there."""


def list_members(leaders: Collection[int]) -> list[int]:
    """Return every live process whose session is led by one of `leaders`."""
    return [pid for pid, fields in _list_processes() if int(fields[3]) in leaders and fields[0] != "Z"]


def is_live(pid: int) -> bool:
    """Return whether the process runs; also right between its fork and its `setsid`."""
    fields = _read_stat(pid)
    return bool(fields) and fields[0] != "Z"


def end_parts(parts: Mapping[str, int], reap: Reap = reap_nothing) -> None:
    """End Airflow's parts so that running tasks are reported: {name: session leader}. Returns when all have ended.

    The scheduler waits forever for its running tasks, and a task cannot report without its server. So the servers end last,
    and tasks that do not end in TASK_SECONDS are killed: their supervisors report that, the next start retries them, and
    they continue (any step of a run may die anywhere).
    """
    server = {pid for name, pid in parts.items() if name in ("api-server", "execution-api")}
    triggerer = {pid for name, pid in parts.items() if name == "triggerer"}
    others = {pid for pid in parts.values() if pid not in server | triggerer}
    terminate_leaders(others | triggerer)
    wait_gone(triggerer, TRIGGERER_SECONDS, reap)
    kill_sessions(triggerer, reap)
    if not wait_gone(others, TASK_SECONDS - TRIGGERER_SECONDS, reap):
        kill_tasks(others)
        wait_gone(others, REPORT_SECONDS, reap)
    kill_sessions(others, reap)
    end_sessions(server, SERVER_SECONDS, reap)


def end_sessions(leaders: Collection[int], grace: float = GRACE_SECONDS, reap: Reap = reap_nothing) -> int:
    """Send SIGTERM to the leaders, and SIGKILL after `grace` seconds to all that are left. Return how many were killed."""
    terminate_leaders(leaders)
    wait_gone(leaders, grace, reap)
    return kill_sessions(leaders, reap)


def terminate_leaders(leaders: Collection[int]) -> None:
    """Send SIGTERM to the leaders that still lead."""
    for leader in set(leaders) & set(list_members(leaders)):
        _send_signal(leader, signal.SIGTERM)


def wait_gone(leaders: Collection[int], seconds: float, reap: Reap = reap_nothing) -> bool:
    """Wait until no leader is left, at most `seconds`; False if one is. Children of ended leaders are not waited for."""
    deadline = time.monotonic() + seconds
    while set(list_members(leaders)) & set(leaders):
        if time.monotonic() > deadline:
            return False
        reap()
        time.sleep(0.05)
    return True


def kill_sessions(leaders: Collection[int], reap: Reap = reap_nothing) -> int:
    """Send SIGKILL to every process of these sessions until none is left. Return how many there were."""
    killed = len(list_members(leaders))
    while left := list_members(leaders):
        for pid in left:
            _send_signal(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)
    return killed


def kill_tasks(leaders: Collection[int]) -> None:
    """Send SIGKILL to grandchildren of the leaders and below: tasks of an executor's workers, and their children."""
    ours = {pid: int(fields[1]) for pid, fields in _list_processes() if int(fields[3]) in leaders}
    for pid, parent in ours.items():
        if pid not in leaders and parent not in leaders:
            _send_signal(pid, signal.SIGKILL)


def _list_processes() -> list[tuple[int, list[str]]]:
    """Return (pid, [state, parent, process group, session, …]) of all processes."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [(pid, fields) for pid in pids if (fields := _read_stat(pid))]


def _read_stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
