"""Processes that end together, whatever they forked and however their owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemark.orchestration import sessions

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
    while sessions.members({leader}) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_members_are_found_across_process_groups() -> None:
    tree = start_tree("meek")
    assert len(sessions.members({tree.pid})) == 2
    sessions.end_sessions({tree.pid}, reap=tree.poll)


@pytest.mark.parametrize("mood", ["meek", "stubborn"])
def test_ending_a_session_leaves_nobody(mood: str) -> None:
    tree = start_tree(mood)
    killed = sessions.end_sessions({tree.pid}, grace=5, reap=tree.poll)
    assert sessions.members({tree.pid}) == []
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
    assert 0.3 <= time.monotonic() - began < 3
    assert deaf.poll() == -signal.SIGKILL


def test_the_watcher_ends_the_sessions_when_their_owner_is_killed() -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "w = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE, text=True, start_new_session=True)\n"
            "t = subprocess.Popen([sys.executable, '-c', sys.argv[2], 'stubborn'], start_new_session=True)\n"
            "w.stdin.write(f'{t.pid}\\n'); w.stdin.flush(); print(t.pid, w.pid, flush=True); time.sleep(600)",
            sessions.__file__,
            TREE,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    words: list[str] = []
    while len(words) < 3:  # the tree's own "up" comes over the same pipe
        words += owner.stdout.readline().split()
    tree, watcher = (int(word) for word in words if word != "up")
    assert len(sessions.members({tree})) == 2
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_until_gone(tree)
    wait_until_gone(watcher)
    assert sessions.members({tree, watcher}) == []


def test_a_session_that_is_gone_already_is_no_trouble() -> None:
    short = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    short.wait()
    assert sessions.end_sessions({short.pid}) == 0
    assert not Path(f"/proc/{short.pid}").exists()
