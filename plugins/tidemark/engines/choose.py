"""Choose where the heavy tasks of load and merge run: in child processes here, or on Spark.

A **kind** of work names one picklable function `task -> result` (`task.KINDS`). An **engine** runs many tasks of a
kind and yields one `Outcome` for each, in any order. Unverified TsFiles can hang or crash a reader
(research/spark-tsfile.md §1.5). So every task runs alone in a child that was started with exec (never forked), under
a limit of CPU time, memory and wall time. A crash is an error of that task alone; the other tasks continue.

`begin_tasks` starts tasks ahead of the call that needs their outcomes (`run_begun`). A thread of this process gives
them to children. It keeps successful outcomes only, and for 60 s, because other users can write to the files. A task
without such an outcome is run again. So a task that is begun must change nothing.
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
    """Runs the tasks of a kind: a pool of child processes or Spark, with the same task functions."""

    @property
    def name(self) -> str: ...

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Run tasks; yields one outcome each, as they end. `kind`: a key of KINDS. Errors name a task by its `subject`."""
        ...


@dataclass(frozen=True)
class PoolEngine:
    """Runs tasks in child processes, which die with this process. `workers` 0: one for each core available to it."""

    workers: int = 0
    limits: Limits = field(default_factory=Limits)
    name: str = "pool"

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:

        return run_begun(KINDS[kind], tasks, self._worker_count(len(tasks)), LIMITS.get(kind, self.limits))

    def begin_tasks(self, kind: str, tasks: Sequence[Any]) -> None:
        """Start tasks now for a later `run`. They must be hashable and change nothing."""

        begin_tasks(KINDS[kind], tasks, self._worker_count(len(tasks)), LIMITS.get(kind, self.limits))

    def _worker_count(self, tasks: int) -> int:
        return min(self.workers or len(os.sched_getaffinity(0)), tasks)


def choose_engine(settings: SparkSettings, wanted: str, points: int) -> Engine:
    """The engine for work on `points` points.

    `[spark] engine` decides if it is "spark" or "pool". If it is "auto", the caller's `wanted` decides (Airflow's tasks
    want "spark"). If both are "auto", Spark runs work of `min_points` points or more, provided that it has a Java.
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
        return PoolEngine()  # no Java


def _open_spark_engine(settings: SparkSettings) -> Engine:
    from tidemark.engines.spark import SparkEngine

    return SparkEngine.from_settings(settings)


log = VisibleLog(__name__)

FRESH_SECONDS = 60.0  # an older outcome is dropped: other users can write to the file that it describes


class _Begun:
    """Tasks that run in the background. `came` receives (task, value, monotonic time), and None after the last."""

    def __init__(self, where: str, tasks: Sequence[Hashable], workers: int, limits: Limits) -> None:
        self.tasks = frozenset(tasks)
        self.came: queue.SimpleQueue[tuple[Hashable, Any, float] | None] = queue.SimpleQueue()
        self._forgotten = False
        running = run_in_children(where, tasks, workers, limits)
        threading.Thread(target=self._collect_outcomes, args=(tasks, running), name="begun tasks", daemon=True).start()

    def mark_forgotten(self) -> None:
        """Stop collecting: nobody will read the outcomes."""
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
    """Start tasks in `workers` children, for the next `run_begun` of this process that has any of them.

    Drops tasks of the same function that were begun and not requested."""
    before = _BEGUN.pop(where, None)
    if before is not None:
        before.mark_forgotten()
    if tasks:
        _BEGUN[where] = _Begun(where, tasks, workers, limits)


def run_begun(where: str, tasks: Sequence[Any], workers: int, limits: Limits) -> Iterator[Outcome]:
    """Run tasks as `run_in_children` does, but reuse the fresh outcomes of tasks that were begun."""
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
