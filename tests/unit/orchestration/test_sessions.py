"""Processes that end together, whatever they forked and however their owner ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemark.orchestration.deployment import sessions

# A leader that ignores nothing, with a child in its own process group that ignores SIGTERM: Airflow's task runners do so.
TREE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if sys.argv[1] == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""


def start_tree(mood: str) -> subprocess.Popen[str]:
    tree = subprocess.Popen([sys.executable, "-c", TREE, mood], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert tree.stdout is not None
    assert tree.stdout.readline() == "up\n"
    return tree


def wait_until_gone(leader: int) -> None:
    deadline = time.monotonic() + 10
    while sessions.list_members({leader}) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_members_are_found_across_process_groups() -> None:
    tree = start_tree("meek")
    assert len(sessions.list_members({tree.pid})) == 2
    sessions.end_sessions({tree.pid}, reap=tree.poll)


@pytest.mark.parametrize("mood", ["meek", "stubborn"])
def test_ending_a_session_leaves_nobody(mood: str) -> None:
    tree = start_tree(mood)
    killed = sessions.end_sessions({tree.pid}, grace=60, reap=tree.poll)
    assert sessions.list_members({tree.pid}) == []
    assert tree.poll() == -signal.SIGTERM
    assert killed == 1, "the leader went by itself, the child it left was ended at once"


def test_a_leader_that_does_not_listen_is_killed_after_its_grace() -> None:
    deaf = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert deaf.stdout is not None
    deaf.stdout.readline()
    began = time.monotonic()
    assert sessions.end_sessions({deaf.pid}, grace=0.3, reap=deaf.poll) == 1
    assert 0.3 <= time.monotonic() - began < 15
    assert deaf.poll() == -signal.SIGKILL


# A part as Airflow's scheduler is: it waits for its worker, the worker for its task, and all three ignore SIGTERM to end
# a task before its time. "server" must outlive it: the task's end is written only while the server is there.
SCHEDULER = """
import os, pathlib, signal, sys, time
server, told = int(sys.argv[1]), pathlib.Path(sys.argv[2])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = os.fork()
if worker == 0:
    task = os.fork()
    if task == 0:
        time.sleep(600)
    _, status = os.waitpid(task, 0)
    os.kill(server, 0)
    told.write_text(f"task ended by {os.WTERMSIG(status)}")
    os._exit(0)
print("up", flush=True)
os.waitpid(worker, 0)
"""


def test_a_running_task_is_ended_and_told_of_before_the_server_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "TASK_SECONDS", 0.3)
    monkeypatch.setattr(sessions, "TRIGGERER_SECONDS", 0.1)
    server, triggerer = start_tree("stubborn"), start_tree("stubborn")
    told = tmp_path / "told"
    command = [sys.executable, "-c", SCHEDULER, str(server.pid), str(told)]
    scheduler = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert scheduler.stdout is not None
    assert scheduler.stdout.readline() == "up\n"
    parts = {"api-server": server.pid, "scheduler": scheduler.pid, "triggerer": triggerer.pid}
    sessions.end_parts(parts, reap=lambda: [p.poll() for p in (server, scheduler, triggerer)])
    assert told.read_text() == f"task ended by {int(signal.SIGKILL)}"
    assert scheduler.wait() == 0, "nobody had to kill the scheduler itself"
    assert sessions.list_members(set(parts.values())) == []


def test_a_process_is_live_until_it_is_dead_even_unreaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert sessions.is_live(child.pid)
    child.kill()
    deadline = time.monotonic() + 10
    while sessions.is_live(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not sessions.is_live(child.pid)
    assert child.wait() == -signal.SIGKILL
    assert not sessions.is_live(child.pid)


def test_a_session_that_is_gone_already_is_no_trouble() -> None:
    short = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    short.wait()
    assert sessions.end_sessions({short.pid}) == 0
    assert not Path(f"/proc/{short.pid}").exists()
