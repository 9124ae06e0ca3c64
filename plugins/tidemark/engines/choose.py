"""Where the heavy tasks of load and merge run: in child processes here, or spread by Spark.

A **kind** of work names one picklable function `task -> result` (`task.KINDS`). An **engine** runs many tasks of a
kind and gives one `Outcome` for each, in any order. TsFiles that are not verified can hang or crash a reader
(research/spark-tsfile.md §1.5). So every task runs in a child that was started fresh (never forked), one task at a
time, under a limit of CPU time, memory and wall time. What a task does to its child is a named error of that task
alone, and the rest carries on.

`[spark] engine` decides between "pool" and "spark". Where it says "auto", the caller does; where that is "auto" too,
Spark gets work of `min_points` points or more, if there is a Java to run it.

`begin` starts tasks that are known to come, while whoever will ask for their answers is busy with other things. A
thread of this process gives them to children. Only answers are kept. One counts for 60 s, since the file that it is
of lies where others can write. What came to no answer, for whatever reason, is run again by whoever asks, as if it
had not been begun. So a task that is begun must change nothing.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tidemark.engines.pool import run_in_children
from tidemark.engines.task import KINDS, LIMITS, Limits, Outcome
from tidemark.errors import PermanentError, UsageError
from tidemark.settings.model import SparkSettings
from tidemark.visible_log import VisibleLog


class Engine(Protocol):
    """What merges: in Spark or in a pool of processes, by the same code."""

    @property
    def name(self) -> str: ...

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """One outcome a task, as they come. `kind` is a word of KINDS; a task's `subject`, if any, names it in errors."""
        ...


@dataclass(frozen=True)
class PoolEngine:
    """Child processes of this one; they die with it. `workers` 0: as many as there are cores for us."""

    workers: int = 0
    limits: Limits = field(default_factory=Limits)
    name: str = "pool"

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:

        return run_begun(KINDS[kind], tasks, self._worker_count(len(tasks)), LIMITS.get(kind, self.limits))

    def begin_tasks(self, kind: str, tasks: Sequence[Any]) -> None:
        """Run these tasks now: somebody will ask for them (`run`) soon. They must be hashable, and change nothing."""

        begin_tasks(KINDS[kind], tasks, self._worker_count(len(tasks)), LIMITS.get(kind, self.limits))

    def _worker_count(self, tasks: int) -> int:
        return min(self.workers or len(os.sched_getaffinity(0)), tasks)


def choose_engine(settings: SparkSettings, wanted: str, points: int) -> Engine:
    """The engine for work on `points` points.

    `[spark] engine` decides where it says "spark" or "pool". Where it says "auto", the caller's `wanted` does (Airflow's
    tasks want "spark"); where that is "auto" too, Spark gets what has `min_points` or more, if there is a Java to run it.
    """
    for word in (settings.engine, wanted):
        if word == "pool":
            return PoolEngine()
        if word == "spark":
            return _open_spark_engine(settings)
        if word != "auto":
            raise UsageError(f"no engine named {word!r}; there are auto, pool, spark", subject="spark.engine")
    if points < settings.min_points:
        return PoolEngine()
    try:
        return _open_spark_engine(settings)
    except (UsageError, PermanentError):
        return PoolEngine()  # without Java the pool does the same work, by itself


def _open_spark_engine(settings: SparkSettings) -> Engine:
    from tidemark.engines.spark import SparkEngine

    return SparkEngine.from_settings(settings)


log = VisibleLog(__name__)

FRESH_SECONDS = 60.0  # so old an answer counts; the file that it is of lies where others can write


class _Begun:
    """Tasks under way. `came` gets (task, its answer, when by the monotonic clock), None when there are no more."""

    def __init__(self, where: str, tasks: Sequence[Hashable], workers: int, limits: Limits) -> None:
        self.tasks = frozenset(tasks)
        self.came: queue.SimpleQueue[tuple[Hashable, Any, float] | None] = queue.SimpleQueue()
        self._forgotten = False
        running = run_in_children(where, tasks, workers, limits)
        threading.Thread(target=self._collect_outcomes, args=(tasks, running), name="begun tasks", daemon=True).start()

    def mark_forgotten(self) -> None:
        """Nobody will ask."""
        self._forgotten = True

    def _collect_outcomes(self, tasks: Sequence[Hashable], running: Iterator[Outcome]) -> None:
        try:
            for outcome in running:
                if self._forgotten:
                    return
                if outcome.error is None:
                    self.came.put((tasks[outcome.index], outcome.value, time.monotonic()))
        except Exception as error:
            log.debug("begun tasks ended: %r", error)
        finally:
            self.came.put(None)


_BEGUN: dict[str, _Begun] = {}
"""By the task function. Their children end with this process."""


def begin_tasks(where: str, tasks: Sequence[Hashable], workers: int, limits: Limits) -> None:
    """Run these tasks now, by `workers` children, for the next `run_begun` of this process that has any of them. What was
    begun before for the same function, and nobody asked for, is forgotten."""
    before = _BEGUN.pop(where, None)
    if before is not None:
        before.mark_forgotten()
    if tasks:
        _BEGUN[where] = _Begun(where, tasks, workers, limits)


def run_begun(where: str, tasks: Sequence[Any], workers: int, limits: Limits) -> Iterator[Outcome]:
    """One outcome a task, as they come, as of `run_in_children`: of tasks that were begun, what they came to just now."""
    left = list(range(len(tasks)))
    begun = _BEGUN.get(where)
    if begun is not None and not begun.tasks.isdisjoint(tasks):
        del _BEGUN[where]
        waiting, known = {task: index for index, task in enumerate(tasks)}, set[int]()
        while (answer := begun.came.get()) is not None:
            task, value, at = answer
            index = waiting.pop(task, None)
            if index is not None and time.monotonic() - at <= FRESH_SECONDS:
                known.add(index)
                yield Outcome(index, value)
        left = [index for index in left if index not in known]
    for outcome in run_in_children(where, [tasks[index] for index in left], min(workers, len(left)), limits):
        yield replace(outcome, index=left[outcome.index])
