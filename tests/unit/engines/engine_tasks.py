"""Task functions for the engine's tests; the children import them by name."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import CorruptionError


@dataclass(frozen=True)
class Task:
    what: str
    subject: str = ""


def perform(task: Task) -> object:
    match task.what:
        case "segfault":
            ctypes.string_at(0)
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(60)
        case "exit":
            sys.exit(3)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            return len(bytearray(64 << 30))
        case "hoard":
            return _hoard()
        case "brim":
            with _all_but(1 << 20):
                time.sleep(1)
        case "greed":
            pieces = []
            while True:
                with contextlib.suppress(MemoryError):
                    pieces.append(bytearray(1 << 18))
        case "corrupt":
            raise CorruptionError("page 3 is torn", subject=task.subject)
        case "surprise":
            raise KeyError("what?")
        case "print":
            print("this may not disturb the answers")
        case "pid":
            return os.getpid()
        case "open":
            with contextlib.ExitStack() as opened:
                return len([opened.enter_context(Path(__file__).open()) for _ in range(300)])
    return task.what.upper()


def _all_but(left: int) -> mmap.mmap:
    """All the address space that this process may have but `left` bytes, in one piece."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    return mmap.mmap(-1, resource.getrlimit(resource.RLIMIT_AS)[0] - used - left)


def _hoard() -> int:
    """Fills the memory with ints before an `except` that stands behind the 256th instruction of its function."""
    scope: dict[str, Callable[[list[int]], int]] = {}
    exec(
        "def fill(things):\n"
        "    try:\n"
        "        for place in range(len(things)):\n"
        "            things[place] = place + 1_000_000\n"
        f"        {'; '.join(['place += 1'] * 100)}\n"
        "    except KeyError:\n"
        "        place = 0\n"
        "    return place\n",
        scope,
    )
    return scope["fill"]([0] * 10_000_000)
