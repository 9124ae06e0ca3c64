"""What the providers of real parts share: a free port, a child that dies with the test process, waiting, stopping."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import psutil

PR_SET_PDEATHSIG = 1
IS_ROOT = os.geteuid() == 0
OURS_TO_CHOOSE = range(12_000, 32_768)  # ports below those that Linux gives by itself (ip_local_port_range)
_JAVA_TERMINATED = 128 + signal.SIGTERM  # a JVM's status after its shutdown hooks
_GIVEN: set[int] = set()  # ports that this process was told are free


class PartMissing(Exception):
    """This machine lacks the real part; the message says what to install. Tests skip, and fail where CI=true."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now, another one each time. Somebody may take it before we do:
    starting is retried.

    None of those that the kernel gives to whoever connects: a server that stopped finds it free when it starts again.
    """
    chance = random.SystemRandom()  # of the other one Hypothesis sets the seed: all workers would try the same ports
    while True:
        port = chance.choice(OURS_TO_CHOOSE)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port


def die_with_parent(with_signal: int = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn`: the kernel sends `with_signal` to the child when the test process dies, however it dies."""
    libc = ctypes.CDLL(None, use_errno=True)

    def apply() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(with_signal))

    return apply


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float, what: str) -> None:
    """Poll `ready`; RuntimeError when the process ends first, TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not ready after {seconds} s")
        time.sleep(0.02)


def soon(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether `true` becomes so in time; a busy machine has all of it."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stop(process: subprocess.Popen[bytes], with_signal: int = signal.SIGTERM, seconds: float = 10) -> None:
    """End a process and all its descendants, by their pids."""
    family = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(with_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    for left in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    if process.poll() is None:
        process.kill()
        process.wait()


def stop_java(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a JVM end as an operator does, through its own shutdown. RuntimeError where it did not."""
    stop(process, signal.SIGTERM, seconds)
    if process.returncode != _JAVA_TERMINATED:
        raise RuntimeError(f"{process.args!r} did not end in order within {seconds:.0f} s: {process.returncode}")


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def descendants_named(pid: int, word: str) -> list[psutil.Process]:
    """Those of `descendants` with `word` in their command line; who ended meanwhile, a zombie too, is left out."""
    found = []
    for one in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            if word in " ".join(one.cmdline()):
                found.append(one)
    return found
