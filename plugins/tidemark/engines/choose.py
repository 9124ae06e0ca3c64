"""Choose where the heavy tasks of load and merge run: in child processes here, or on Spark.

A **kind** of work names one picklable function `task -> result` (`task.KINDS`). An **engine** runs many tasks of a
kind and yields one `Outcome` for each, in any order. Unverified TsFiles can hang or crash a reader
(research/spark-tsfile.md §1.5). So every task runs alone in a child that was started with exec (never forked), under
a limit of CPU time, memory and wall time. A crash is an error of that task alone; the other tasks continue.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemark.engines.pool import run_in_children
from tidemark.engines.task import KINDS, LIMITS, Limits, Outcome
from tidemark.errors import PermanentError, UsageError
from tidemark.settings.model import SparkSettings


class Engine(Protocol):
    """Runs the tasks of a kind: a pool of child processes or Spark, with the same task functions."""

    @property
    def name(self) -> str: ...

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Run tasks; yields one outcome each, as they end. `kind`: a key of KINDS. Errors name a task by its `subject`."""
        ...


EngineChoice = Engine | str
"""What a caller wants: "auto", "pool" or "spark", and the settings have the last word; or an engine, which does it all."""


@dataclass(frozen=True)
class PoolEngine:
    """Runs tasks in child processes, which die with this process. `workers` 0: one for each core available to it."""

    workers: int = 0
    limits: Limits = field(default_factory=Limits)
    name: str = "pool"

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        workers = min(self.workers or len(os.sched_getaffinity(0)), len(tasks))
        return run_in_children(KINDS[kind], tasks, workers, LIMITS.get(kind, self.limits))


def choose_engine(settings: SparkSettings, wanted: EngineChoice, points: int) -> Engine:
    """The engine for work on `points` points. An engine that is `wanted` itself is returned.

    `[spark] engine` decides if it is "spark" or "pool". If it is "auto", the caller's `wanted` decides (Airflow's tasks
    want "spark", and get the pool in an Airflow without the extra `spark`). If both are "auto", Spark runs work of
    `min_points` points or more, provided that it is installed and has a Java.
    """
    if not isinstance(wanted, str):
        return wanted
    for word in (settings.engine, wanted):
        if word == "pool":
            return PoolEngine()
        if word == "spark" and (word == settings.engine or _is_installed()):
            return _open_spark_engine(settings)
        if word == "spark":
            return PoolEngine()
        if word != "auto":
            raise UsageError(f"no engine named {word!r}; there are auto, pool, spark", subject="spark.engine")
    if points < settings.min_points:
        return PoolEngine()
    try:
        return _open_spark_engine(settings)
    except (UsageError, PermanentError):
        return PoolEngine()  # no Spark, or no Java for it


def choose_pool(wanted: EngineChoice, limits: Limits | None = None) -> Engine:
    """The engine for work that Spark has no job for: the pool, unless an engine is `wanted` itself."""
    return PoolEngine(limits=limits or Limits()) if isinstance(wanted, str) else wanted


def _is_installed() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def _open_spark_engine(settings: SparkSettings) -> Engine:
    from tidemark.engines.spark import SparkEngine
    from tidemark.installation import describe_absent

    if not _is_installed() and (absent := describe_absent(ModuleNotFoundError(name="pyspark"))):
        raise absent
    return SparkEngine.from_settings(settings)
