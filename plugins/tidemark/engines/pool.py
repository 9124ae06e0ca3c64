"""Run tasks in child processes: each child has one task at a time, and a child that dies costs only its task.

Children are started with exec, so they inherit no threads, open TsFiles or Airflow. They end when their stdin closes,
and the kernel kills them when this process dies (`worker`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import tidemark
from tidemark.engines.task import Limits, Outcome
from tidemark.engines.worker import LENT_BYTES, at_most, out_of_memory, read_frame, subject_of, write_frame
from tidemark.errors import CorruptionError, RetryableError, TaskLimitError, TidemarkError

_OURS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
_TAIL_BYTES = 2000
_LOOK_SECONDS = 1.0
_LITTLE_BYTES = 2 << 20  # CPython requests memory in steps of 1 MiB: less than this is left when a request fails


def run_in_children(where: str, tasks: Sequence[Any], workers: int, limits: Limits) -> Iterator[Outcome]:
    """Run tasks in up to `workers` children; yields outcomes as they end. `where`: the task function as `module:name`."""
    waiting = deque(range(len(tasks)))
    selector = selectors.DefaultSelector()
    children: list[_Child] = []
    try:
        while waiting or children:
            while waiting and len(children) < workers:
                children.append(_Child(where, limits).wait_with(selector))
                children[-1].give_task(waiting.popleft(), tasks)
            for child in _wait_for_ready(children):
                outcome = child.read_outcome(tasks)
                if child.alive and waiting and outcome.error is None:  # after an error the child may still hold memory
                    child.give_task(waiting.popleft(), tasks)
                else:
                    child.kill_process()
                    children.remove(child)
                yield outcome
    finally:
        for child in children:
            child.kill_process()
        selector.close()


def run_in_kept_child(where: str, tasks: Sequence[Any], limits: Limits) -> Iterator[Outcome]:
    """Run tasks in order in one child that is kept for the next call of this process; yields one outcome a task.

    For Spark executors, which receive a few tasks at a time. Starting a child may cost as much as a task.
    """
    for index in range(len(tasks)):
        child = _KEPT.pop((where, limits), None) or _Child(where, limits).wait_with(selectors.DefaultSelector())
        try:
            child.give_task(index, tasks)
            _wait_for_ready([child])
            outcome = child.read_outcome(tasks)
        except BaseException:
            child.kill_process()
            raise
        if child.alive and outcome.error is None:
            _KEPT[where, limits] = child  # only while idle: a caller must not read the answer to another's task
        else:
            child.kill_process()
        yield outcome


class _Child:
    """One worker process and its current task."""

    def __init__(self, where: str, limits: Limits) -> None:
        self.limits = limits
        self.selector: selectors.BaseSelector | None = None
        self.index = -1
        self.deadline = 0.0
        self.lent = self.spent = False
        self.alive = True
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        words = (where, os.getpid(), limits.cpu_seconds, limits.memory_bytes)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemark.engines.worker", *(str(w) for w in words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=_child_environment(),
        )
        assert self.process.stdin is not None and self.process.stdout is not None  # both are pipes
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def wait_with(self, selector: selectors.BaseSelector) -> _Child:
        """Register the child's stdout with the selector that waits for its answers."""
        self.selector = selector
        selector.register(self.stdout, selectors.EVENT_READ, self)
        return self

    def give_task(self, index: int, tasks: Sequence[Any]) -> None:
        self.index = index
        self.lent = False
        self.deadline = time.monotonic() + self.limits.wall_seconds
        with contextlib.suppress(BrokenPipeError):  # it died before it read its task: `read_outcome` finds stdout closed
            write_frame(self.stdin, pickle.dumps(tasks[index], pickle.HIGHEST_PROTOCOL))

    def read_outcome(self, tasks: Sequence[Any]) -> Outcome:
        """The outcome of the child's task: its answer, or the error that explains why it died or was stopped."""
        if self.deadline <= time.monotonic():
            self.alive = False
            return Outcome(self.index, error=self._ended_by_clock(subject_of(tasks[self.index])))
        frame = read_frame(self.stdout)
        if frame is None:
            self.alive = False
            return Outcome(self.index, error=self._death_error(subject_of(tasks[self.index])))
        value, error = pickle.loads(frame)
        return Outcome(self.index, value, error)

    def check_memory(self) -> None:
        """Raise the memory limit once for a task that reached it. Kill the child if it reaches the limit again.

        With no memory left a task might never end. Up to 3.13, CPython allocates an int when it leaves an `except` or a
        `with` beyond the 256th instruction of a function, and retries for ever if that fails (its issue 132508).
        """
        pid = self.process.pid
        with contextlib.suppress(OSError):  # it ended meanwhile
            soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            if soft == resource.RLIM_INFINITY or soft - used > _LITTLE_BYTES:
                return
            if self.lent:
                self.spent, self.alive = True, False
                self.process.kill()
            else:
                self.lent = True
                resource.prlimit(pid, resource.RLIMIT_AS, (at_most(soft + LENT_BYTES, hard), hard))

    def kill_process(self) -> None:
        """Kill the child and close its streams. It is idle, or nobody waits for its answer."""
        if self.selector:
            self.selector.unregister(self.stdout)
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):  # a frame it never read was still buffered
                stream.close()

    def _ended_by_clock(self, subject: str) -> TidemarkError:
        seconds = self.limits.wall_seconds
        return TaskLimitError(f"{subject}: not done after {seconds} s, which is all a task may take", subject=subject)

    def _death_error(self, subject: str) -> TidemarkError:
        code = self.process.wait()
        tail = self._stderr_tail()
        if -code == signal.SIGXCPU:
            used = f"used up its CPU time, the {self.limits.cpu_seconds} s that a task may take"
            return TaskLimitError(f"{subject}: the process that read it {used}{tail}", subject=subject)
        if -code in _OURS:
            how = f"crashed ({signal.Signals(-code).name})"
            return CorruptionError(f"{subject}: the process that read it {how}{tail}", subject=subject)
        if self.spent or "MemoryError" in tail:  # it had too little memory left to send an answer
            return out_of_memory(subject, self.limits.memory_bytes)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return RetryableError(
            f"{subject}: its process {how}{tail}", hint="run the command again; ./tidemark doctor", subject=subject
        )

    def _stderr_tail(self) -> str:
        self.stderr.seek(max(0, self.stderr.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = self.stderr.read().decode(errors="replace").strip()
        return f"\n{text}" if text else ""


_KEPT: dict[tuple[str, Limits], _Child] = {}
"""Idle children of `run_in_kept_child`; the kernel ends them with this process."""


def _wait_for_ready(children: Sequence[_Child]) -> list[_Child]:
    """Wait until a child answers, ends or runs out of time; returns those that did. Checks their memory meanwhile."""
    selector = children[0].selector
    assert selector is not None  # all children have the same one
    while True:
        wait = max(0.0, min(child.deadline for child in children) - time.monotonic())
        answered: list[_Child] = [key.data for key, _ in selector.select(min(wait, _LOOK_SECONDS))]
        if ready := answered or [child for child in children if child.deadline <= time.monotonic()]:
            return ready
        for child in children:
            child.check_memory()


def package_root() -> Path:
    """The folder, or the zip on a Spark executor, from which `tidemark` is imported."""
    return Path(tidemark.__file__).parent.parent


def _child_environment() -> dict[str, str]:
    paths = [str(package_root()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
