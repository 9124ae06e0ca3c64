"""Runs one command as the child of a small process and says what it took, as one JSON line on stdout.

    python -I -S bench/alone.py OUT FAR COMMAND…

OUT takes the command's standard output; FAR is the process id of a server whose descendants are watched as well, or 0.
A process of its own, because the kernel counts what a parent held at the start of its child to the child's peak memory,
and a benchmark that just made a million files is no small parent. The standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
EVERY = 0.02  # seconds between two looks at the memory
PATIENCE = 2.0  # seconds for the server's sessions to end after the command
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Watch(threading.Thread):
    """The largest sum of resident memory that a process and all below it had at once; what they share counts for each."""

    def __init__(self, root: int, itself: bool) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.itself = itself
        self.peak_mb = 0.0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(EVERY):
            pids = ([self.root] if self.itself else []) + below(self.root)
            self.peak_mb = max(self.peak_mb, sum(resident_mb(pid) for pid in pids))


def below(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in map(int, children.read().split()):
                    found += [child, *below(child)]
    except OSError:
        pass  # it has ended
    return found


def resident_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm") as sizes:
            return int(sizes.read().split()[1]) * PAGE_MB
    except OSError:
        return 0.0


def reaped_seconds(pid: int, patience: float = 0.0) -> float:
    """CPU seconds of all that ever ended below a process; waits `patience` seconds at most for those still running."""
    if not pid:
        return 0.0
    until = time.monotonic() + patience
    while below(pid) and time.monotonic() < until:
        time.sleep(EVERY)
    with open(f"/proc/{pid}/stat") as stat:
        children_user, children_system = stat.read().rpartition(")")[2].split()[13:15]
    return (int(children_user) + int(children_system)) / TICKS


def end_with_us() -> None:
    """The command ends when the benchmark does, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def measure(out: str, far: int, command: list[str]) -> None:
    far_before = reaped_seconds(far)
    with open(out, "wb") as output:
        began = time.monotonic()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, preexec_fn=end_with_us
        )
        watches = [Watch(child.pid, itself=True), *([Watch(far, itself=False)] if far else [])]
        for watch in watches:
            watch.start()
        trouble = child.stderr.read() if child.stderr else b""
        _pid, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - began
    for watch in watches:
        watch.done.set()
        watch.join()
    taken = {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": max(watches[0].peak_mb, usage.ru_maxrss * 1024 / 1e6),
        "far_peak_mb": watches[1].peak_mb if far else 0.0,
        "far_cpu_seconds": reaped_seconds(far, PATIENCE) - far_before,
        "exit_code": os.waitstatus_to_exitcode(status),
    }
    print(json.dumps({"taken": taken, "trouble": trouble.decode(errors="replace")[-2000:]}))


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
