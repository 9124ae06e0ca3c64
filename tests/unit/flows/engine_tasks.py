"""Task functions for the engine's tests; the children import them by name."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

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
        case "corrupt":
            raise CorruptionError("page 3 is torn", subject=task.subject)
        case "surprise":
            raise KeyError("what?")
        case "print":
            print("this may not disturb the answers")
        case "pid":
            return os.getpid()
    return task.what.upper()
