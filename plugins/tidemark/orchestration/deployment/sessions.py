"""Processes that end together: each part of Airflow leads a session, and whatever it forked is found again by it.

Airflow's executor workers and task processes get process groups of their own, some survive their parent, none leaves
the session. So "all children gone" is asked of the session, from /proc. Only the standard library.
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
REPORT_SECONDS = 6.0  # its supervisor says so to the API server, and the scheduler ends, within this one
SERVER_SECONDS = 6.0
TRIGGERER_SECONDS = 1.5  # it notices its runner's end 10 s late (its select() waits on the runner's closed sockets)

Reap = Callable[[], object]


def reap_nothing() -> None:
    """The reap of who has no children there."""


def list_members(leaders: Collection[int]) -> list[int]:
    """Every live process whose session is led by one of `leaders`."""
    return [pid for pid, fields in _list_processes() if int(fields[3]) in leaders and fields[0] != "Z"]


def is_live(pid: int) -> bool:
    """Whether the process runs; also right in the moment between its fork and its leading a session."""
    fields = _read_stat(pid)
    return bool(fields) and fields[0] != "Z"


def end_parts(parts: Mapping[str, int], reap: Reap = reap_nothing) -> None:
    """End Airflow's parts so that tasks still run are told of: {name: session leader}. Returns when all are gone.

    The scheduler waits for its running tasks for ever, and a task cannot report without its server. So the servers
    go last, and tasks that do not end in TASK_SECONDS are killed: their supervisors report that, the next start
    retries them, and they continue (any step of a run may die anywhere).
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
    """SIGTERM to the leaders, SIGKILL after `grace` seconds to all that is left. Returns how many had to be killed."""
    terminate_leaders(leaders)
    wait_gone(leaders, grace, reap)
    return kill_sessions(leaders, reap)


def terminate_leaders(leaders: Collection[int]) -> None:
    """SIGTERM to those leaders that still lead."""
    for leader in set(leaders) & set(list_members(leaders)):
        _send_signal(leader, signal.SIGTERM)


def wait_gone(leaders: Collection[int], seconds: float, reap: Reap = reap_nothing) -> bool:
    """Wait until no leader is left, at most `seconds`; False when one is. What a leader left behind ends by no wait."""
    deadline = time.monotonic() + seconds
    while set(list_members(leaders)) & set(leaders):
        if time.monotonic() > deadline:
            return False
        reap()
        time.sleep(0.05)
    return True


def kill_sessions(leaders: Collection[int], reap: Reap = reap_nothing) -> int:
    """SIGKILL to every process of these sessions until none is left. Returns how many there were."""
    killed = len(list_members(leaders))
    while left := list_members(leaders):
        for pid in left:
            _send_signal(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)
    return killed


def kill_tasks(leaders: Collection[int]) -> None:
    """SIGKILL to what the leaders' children started: below an executor's workers, the tasks and all that is theirs."""
    ours = {pid: int(fields[1]) for pid, fields in _list_processes() if int(fields[3]) in leaders}
    for pid, parent in ours.items():
        if pid not in leaders and parent not in leaders:
            _send_signal(pid, signal.SIGKILL)


def _list_processes() -> list[tuple[int, list[str]]]:
    """(pid, [state, parent, process group, session, …]) of all there are."""
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
