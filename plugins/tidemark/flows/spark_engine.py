"""Runs tasks as a Spark job: `spark_jobs/<kind>.py` in a process of its own, tasks in by file, outcomes out by file.

No row passes through the JVM: Spark hands out pickled tasks and brings back pickled outcomes; each executor runs its
tasks in fresh children like the pool (research/spark-tsfile.md §3.3). The driver process ends with the job, so a caller
(an Airflow task) never holds a JVM.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.errors import RetryableError, UsageError
from tidemark.flows.engine_children import package_root, run_in_kept_child
from tidemark.flows.engines import KINDS, Limits, Outcome
from tidemark.flows.java import ensure_java

JOBS = Path(__file__).parents[3] / "spark_jobs"
TASKS, RESULTS, PACKAGE = "tasks.pickle", "results.pickle", "tidemark.zip"
_TAIL_LINES = 25


@dataclass(frozen=True)
class SparkEngine:
    """Spark at `master`; `java` is the JDK's or JRE's home folder."""

    master: str
    java: Path
    limits: Limits = field(default_factory=Limits)
    name: str = "spark"

    @staticmethod
    def found(master: str) -> SparkEngine:
        """The engine with the Java of this machine; UsageError where there is none."""
        return SparkEngine(master, ensure_java())

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Outcomes come when the job is done. RetryableError when Spark itself fails, with the end of its log."""
        if not tasks:
            return
        folder = Path(tempfile.mkdtemp(prefix="tidemark-spark-"))
        try:
            (folder / TASKS).write_bytes(pickle.dumps((kind, list(tasks), self.limits)))
            zip_package(folder / PACKAGE)
            self._submit(kind, folder)
            yield from pickle.loads((folder / RESULTS).read_bytes())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _submit(self, kind: str, folder: Path) -> None:
        job = JOBS / f"{kind}.py"
        if not job.exists():
            raise UsageError(f"the Spark job {job} is missing", hint="run Tidemark from its own folder", subject=kind)
        log = folder / "log"
        with log.open("wb") as out:
            done = subprocess.run(
                [sys.executable, str(job), str(folder), self.master],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                check=False,
            )
        if done.returncode or not (folder / RESULTS).exists():
            lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
            tail = "\n".join(lines[-_TAIL_LINES:])
            raise RetryableError(
                f"the Spark job {kind} at {self.master} ended with {done.returncode}:\n{tail}",
                hint='./tidemark doctor; or set [spark] engine = "pool"',
                subject=kind,
            )

    def _environment(self) -> dict[str, str]:
        paths = [str(package_root()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        return {
            **os.environ,
            "JAVA_HOME": str(self.java),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "TIDEMARK_PARENT": str(os.getpid()),
        }


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


def zip_package(target: Path) -> None:
    """The package as executors get it."""
    root = package_root()
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted((root / "tidemark").rglob("*")):
            if path.suffix in (".py", ".c"):
                archive.write(path, path.relative_to(root))
