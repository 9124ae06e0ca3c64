"""Runs tasks as a Spark job: `spark_jobs/<kind>.py` in a process of its own, tasks in by file, outcomes out by file.

No row passes through the JVM: Spark hands out pickled tasks and brings back pickled outcomes; each executor runs its
tasks in children like the pool (research/spark-tsfile.md §3.3). The driver stays for the next job of this process
(`spark_session`) and ends with it.
"""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tidemark.flows.engine_children import run_in_kept_child
from tidemark.flows.engines import KINDS, LIMITS, PLACE_FAR, Limits, Outcome
from tidemark.flows.java import ensure_java
from tidemark.flows.spark_session import PACKAGE, session_at, zip_package
from tidemark.settings.model import SparkSettings
from tidemark.stores.protocol import StoreAddress

__all__ = ["PACKAGE", "SparkEngine", "read_tasks", "run_numbered", "write_results", "zip_package"]

TASKS, RESULTS = "tasks.pickle", "results.pickle"


@dataclass(frozen=True)
class SparkEngine:
    """Spark at `master`; `java` is the JDK's or JRE's home folder. `files`: how executors reach the receiver's files,
    None: by the same paths."""

    master: str
    java: Path
    limits: Limits = field(default_factory=Limits)
    files: StoreAddress | None = None
    name: str = "spark"

    @staticmethod
    def found(settings: SparkSettings) -> SparkEngine:
        """The engine of `[spark]` with the Java of this machine; UsageError where there is none."""
        files = StoreAddress(settings.files, settings.host_key, settings.key) if settings.files else None
        return SparkEngine(settings.master, ensure_java(), files=files)

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Outcomes come when the job is done. RetryableError when Spark itself fails, with the end of its log."""
        if not tasks:
            return
        session = session_at(kind, self.master, self.java)
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=session.folder))
        try:
            (folder / TASKS).write_bytes(pickle.dumps((*self._placed(kind, tasks), LIMITS.get(kind, self.limits))))
            session.run(kind, folder)
            yield from pickle.loads((folder / RESULTS).read_bytes())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _placed(self, kind: str, tasks: Sequence[Any]) -> tuple[str, list[Any]]:
        """The tasks as executors can run them, and what runs them there."""
        if self.files is None:
            return kind, list(tasks)
        placed: tuple[str, list[Any]] = resolve_name(PLACE_FAR)(self.files, kind, tasks)
        return placed


def read_tasks(folder: str) -> tuple[str, list[tuple[int, Any]], Limits]:
    """For the job: the kind, the numbered tasks and their limits."""
    kind, tasks, limits = pickle.loads(Path(folder, TASKS).read_bytes())
    return kind, list(enumerate(tasks)), limits


def write_results(folder: str, outcomes: Sequence[Outcome]) -> None:
    """For the job: all outcomes, whole or not at all."""
    part = Path(folder, RESULTS + ".tmp")
    part.write_bytes(pickle.dumps(list(outcomes)))
    part.rename(Path(folder, RESULTS))


def run_numbered(kind: str, limits: Limits, numbered: Iterator[tuple[int, Any]]) -> Iterator[Outcome]:
    """For the executor: its share of the tasks, one after another, in a child that stays for its next share."""
    mine = list(numbered)
    for outcome in run_in_kept_child(KINDS[kind], [task for _, task in mine], limits):
        yield Outcome(mine[outcome.index][0], outcome.value, outcome.error)
