"""The child process of `pool`: reads tasks from stdin, runs each, answers on stdout, ends with its parent.

    python -m tidemark.engines.worker MODULE:FUNCTION PARENT_PID CPU_SECONDS MEMORY_BYTES

A frame is 8 bytes of length (big-endian) and a pickle: a task on the way in, `(value, error)` on the way out. Whatever
the task prints goes to stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from tidemark.errors import TaskLimitError, TidemarkError, limit_met
from tidemark.native import collect_seldom

_LENGTH = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1

LENT_BYTES = 16 << 20
"""What a task that stands at its limit of memory may be lent, by whoever waits for its answer, so that it can end."""


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None if the stream ends, even in the middle of a frame."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length: int = _LENGTH.unpack(head)[0]
    data = stream.read(length)
    return data if len(data) == length else None


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def run_task(function: Callable[[Any], Any], task: Any) -> tuple[Any, TidemarkError | None]:
    """Run a task: (result, None), or (None, error). An unexpected error carries its traceback. Raises MemoryError."""
    try:
        return function(task), None
    except TidemarkError as known:
        return None, known
    except MemoryError:
        raise
    except Exception as surprise:
        limit = limit_met(surprise)
        if limit is not None:
            return None, limit
        text = "".join(traceback.format_exception(surprise)[-4:])
        name = f"{type(surprise).__name__}: {surprise}"
        return None, TidemarkError(f"{subject_of(task)}: {name}\n{text}", subject=subject_of(task))


def answer_task(function: Callable[[Any], Any], frame: bytes) -> bytes:
    """Run a pickled task; returns its pickled answer, even if the task used up its memory.

    In that case it lifts the memory limit, then frees what the task holds. `pool` ends a child that answers with an error.
    """
    task = pickle.loads(frame)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)  # before `pool` raises it
    try:
        return pickle.dumps(run_task(function, task), pickle.HIGHEST_PROTOCOL)
    except MemoryError as full:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        traceback.clear_frames(full.__traceback__)
        return pickle.dumps((None, out_of_memory(subject_of(task), soft)), pickle.HIGHEST_PROTOCOL)


def out_of_memory(subject: str, most: int) -> TaskLimitError:
    """The error of a task that needs more than `most` bytes of address space."""
    text = f"{subject}: needs more memory than a task may use, {most / (1 << 30):.2g} GiB of address space"
    return TaskLimitError(text, subject=subject)


def subject_of(task: Any) -> str:
    """The name of a task in errors: its `subject`, else its type."""
    return str(getattr(task, "subject", "") or type(task).__name__)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit(0)


def _limit_cpu(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    _set_limit(resource.RLIMIT_CPU, int(used) + seconds + 1)


def _set_limit(what: int, most: int, below: int = 0) -> None:
    """Set a soft limit. It stays at least `below` under a finite hard limit, so that it can be raised by so much."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (at_most(most, hard if hard == resource.RLIM_INFINITY else hard - below), hard))


def at_most(most: int, hard: int) -> int:
    """The lower of `most` and the `hard` limit."""
    return most if hard == resource.RLIM_INFINITY else min(most, hard)


def main(arguments: list[str]) -> None:
    where, parent, cpu_seconds, memory_bytes = arguments[0], *(int(a) for a in arguments[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this child
    collect_seldom()
    _die_with(parent)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _set_limit(resource.RLIMIT_AS, memory_bytes, LENT_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most_open = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a hard limit above the system's own cannot be reached
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_open, most_open))  # a merge has all its sources open
    module, name = where.split(":")
    function = getattr(importlib.import_module(module), name)
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        _limit_cpu(cpu_seconds)
        _set_limit(resource.RLIMIT_AS, memory_bytes, LENT_BYTES)  # `pool` may have raised it for the task before
        write_frame(answers, answer_task(function, frame))


if __name__ == "__main__":
    main(sys.argv[1:])
