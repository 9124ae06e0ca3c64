"""Where the heavy tasks of load and merge run: in child processes here, or spread by Spark.

A **kind** of work names one picklable function `task -> result`; an **engine** runs many tasks of a kind and gives one
`Outcome` for each, in any order. TsFiles that are not verified can hang or crash a reader (research/spark-tsfile.md
§1.5), so every task runs in a child that was started fresh (never forked), one task at a time, under a limit of CPU time,
memory and wall time: what a task does to its child is a named error of that task alone, and the rest carries on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemark.errors import PermanentError, TidemarkError, UsageError
from tidemark.settings.model import SparkSettings

KINDS: Mapping[str, str] = {
    "load_check": "tidemark.load.check:examine",
    "describe_kept": "tidemark.load.check:describe_kept",  # for a rebuilt ledger: in the pool only
    "surviving_points": "tidemark.load.surviving_points:look_for_points",  # in the pool only
    "merge": "tidemark.load.merge_task:run_merge_task",
    "slot_migrate": "tidemark.cluster.move_task:run_move",
    "far": "tidemark.flows.far_tasks:run_far",  # any of them, for an executor that reaches the files over SFTP
}
"""The function behind each kind, as `module:name`; `spark_jobs/<kind>.py` is its Spark job."""

PLACE_FAR = "tidemark.flows.far_tasks:place_far"
"""What makes tasks for executors that do not see this machine's folders: a word, as the kinds are."""


@dataclass(frozen=True)
class Limits:
    """What one task may use before its child is ended."""

    cpu_seconds: int = 900
    wall_seconds: int = 1800
    memory_bytes: int = 6 << 30  # of address space, which libraries reserve generously


LIMITS: Mapping[str, Limits] = {"slot_migrate": Limits(cpu_seconds=86_400, wall_seconds=14 * 86_400)}
"""Kinds with limits of their own. A move reads no TsFile, and what hangs on its lines the transfer ends by itself."""


@dataclass(frozen=True)
class Outcome:
    """What became of the task at `index` of those given: `value`, or the `error` that names why there is none.

    CorruptionError: the task crashed its child; TaskLimitError: it hit a limit; RetryableError: something else ended it.
    """

    index: int
    value: Any = None
    error: TidemarkError | None = None


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
        from tidemark.flows.engine_begun import run_begun

        return run_begun(KINDS[kind], tasks, self._workers(len(tasks)), LIMITS.get(kind, self.limits))

    def begin(self, kind: str, tasks: Sequence[Any]) -> None:
        """Run these tasks now: somebody will ask for them (`run`) soon. They must be hashable, and change nothing."""
        from tidemark.flows.engine_begun import begin

        begin(KINDS[kind], tasks, self._workers(len(tasks)), LIMITS.get(kind, self.limits))

    def _workers(self, tasks: int) -> int:
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
            return _spark(settings)
        if word != "auto":
            raise UsageError(f"no engine named {word!r}; there are auto, pool, spark", subject="spark.engine")
    if points < settings.min_points:
        return PoolEngine()
    try:
        return _spark(settings)
    except (UsageError, PermanentError):
        return PoolEngine()  # without Java the pool does the same work, by itself


def _spark(settings: SparkSettings) -> Engine:
    from tidemark.flows.spark_engine import SparkEngine

    return SparkEngine.found(settings)
