"""Run tasks as Spark jobs, by a driver in a process of its own that runs one job after another.

`spark_jobs/<kind>.py` is started with a pipe for its replies. It reads the folders of jobs from stdin and answers
each. Tasks and outcomes are exchanged by file. No row passes through the JVM: Spark distributes pickled tasks and
returns pickled outcomes. Each executor runs its tasks in children like the pool (research/spark-tsfile.md §3.3).

A start is slow, so a session is kept for the next jobs of this process and ends with the process, however that ends.
A job that finds no executor for its tasks within 600 s is given up. A session that failed or died is not used again:
the next job gets a new one.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tidemark.engines.java import ensure_java
from tidemark.engines.pool import package_root, run_in_kept_child
from tidemark.engines.task import KINDS, LIMITS, PLACE_FAR, Limits, Outcome
from tidemark.errors import RetryableError, UsageError
from tidemark.installation import ROOT
from tidemark.settings.model import SparkSettings
from tidemark.stores.protocol import StoreAddress

__all__ = ["PACKAGE", "SparkEngine", "read_tasks", "run_numbered", "write_results", "zip_package"]

TASKS, RESULTS = "tasks.pickle", "results.pickle"


@dataclass(frozen=True)
class SparkEngine:
    """Runs tasks on Spark at `master`. `java`: the home folder of the JDK or JRE.

    `files`: the address by which executors reach the receiver's files, None if they see them under the same paths."""

    master: str
    java: Path
    limits: Limits = field(default_factory=Limits)
    files: StoreAddress | None = None
    name: str = "spark"

    @staticmethod
    def from_settings(settings: SparkSettings) -> SparkEngine:
        """The engine for `[spark]` with this machine's Java. Raises as `ensure_java`."""
        files = StoreAddress(settings.files, settings.host_key, settings.key) if settings.files else None
        return SparkEngine(settings.master, ensure_java(), files=files)

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        """Yield all outcomes when the job is done. Raises RetryableError with the end of Spark's log if Spark fails."""
        if not tasks:
            return
        session = session_at(kind, self.master, self.java)
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=session.folder))
        try:
            (folder / TASKS).write_bytes(pickle.dumps((*self._place_tasks(kind, tasks), LIMITS.get(kind, self.limits))))
            session.run_job(kind, folder)
            yield from pickle.loads((folder / RESULTS).read_bytes())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _place_tasks(self, kind: str, tasks: Sequence[Any]) -> tuple[str, list[Any]]:
        """The kind and the tasks to send: the given ones, or remote tasks if executors reach the files by `files`."""
        if self.files is None:
            return kind, list(tasks)
        placed: tuple[str, list[Any]] = resolve_name(PLACE_FAR)(self.files, kind, tasks)
        return placed


def read_tasks(folder: str) -> tuple[str, list[tuple[int, Any]], Limits]:
    """Read a job's kind, numbered tasks and limits. Called by the driver."""
    kind, tasks, limits = pickle.loads(Path(folder, TASKS).read_bytes())
    return kind, list(enumerate(tasks)), limits


def write_results(folder: str, outcomes: Sequence[Outcome]) -> None:
    """Write all outcomes of a job atomically. Called by the driver."""
    part = Path(folder, RESULTS + ".tmp")
    part.write_bytes(pickle.dumps(list(outcomes)))
    part.rename(Path(folder, RESULTS))


def run_numbered(kind: str, limits: Limits, numbered: Iterator[tuple[int, Any]]) -> Iterator[Outcome]:
    """Run an executor's share of the tasks, one after another, in a child that is kept for its next share."""
    mine = list(numbered)
    for outcome in run_in_kept_child(KINDS[kind], [task for _, task in mine], limits):
        yield Outcome(mine[outcome.index][0], outcome.value, outcome.error)


JOBS = ROOT / "spark_jobs"
PACKAGE = "tidemark.zip"
DONE, WORKS = "done", "works"  # replies: at the end of a job; every BEAT_SECONDS while executors run its tasks
BEAT_SECONDS = 10.0
IDLE_SECONDS = 600.0  # after so long without an executor a job is given up: the limits of tasks do not cover waiting
_TAIL_LINES = 25
_STOP_SECONDS = 15.0


class Session:
    """A running Spark driver. Its folder holds the zip of the package for executors, and Spark's scratch files."""

    def __init__(self, kind: str, master: str, java: Path) -> None:
        job = JOBS / f"{kind}.py"
        if not job.exists():
            raise UsageError(f"the Spark job {job} is missing", hint="install Tidemark again", subject=kind)
        self.master = master
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-spark-"))
        zip_package(self.folder / PACKAGE)
        self._log = self.folder / "log"
        replies, answers = os.pipe()
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(job), str(self.folder), master, str(answers)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_driver_environment(java),
                pass_fds=(answers,),
            )
        os.close(answers)
        self._replies, self._heard = replies, b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run_job(self, kind: str, folder: Path) -> None:
        """Run the job whose tasks are in `folder`. Raises RetryableError with the end of the log if Spark fails."""
        begins = self._log.stat().st_size if self._log.exists() else 0
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            begins = 0  # the driver died earlier: its whole log matters
        while (reply := self._read_reply()) == WORKS:
            continue
        if reply == DONE:
            return
        if reply is None:
            self._process.kill()
            ended = f"found no executor for its tasks within {IDLE_SECONDS:.0f} s"
        else:
            ended = "failed" if reply else f"ended with {self._process.wait()}"
        tail = self._log_tail(begins)
        self.close()
        raise RetryableError(
            f"the Spark job {kind} at {self.master} {ended}:\n{tail}",
            hint='./tidemark doctor; or set [spark] engine = "pool"',
            subject=kind,
        )

    def _read_reply(self) -> str | None:
        """The next line. "" if the driver has ended, None if nothing came for IDLE_SECONDS."""
        while b"\n" not in self._heard:
            if not select.select([self._replies], [], [], IDLE_SECONDS)[0]:
                return None
            more = os.read(self._replies, 4096)
            if not more:
                return ""
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().strip()

    def close(self) -> None:
        """Stop the driver and remove its folder."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_STOP_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log_tail(self, begins: int) -> str:
        text = self._log.read_bytes()[begins:].decode(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
        return "\n".join(lines[-_TAIL_LINES:])


_OPEN: dict[tuple[int, str, Path], Session] = {}
"""Process (a fork has none of its parent's), master, Java → its session."""


def session_at(kind: str, master: str, java: Path) -> Session:
    """The session of this process at a master; starts one if there is none or it died."""
    key = (os.getpid(), master, java)
    found = _OPEN.get(key)
    if found is not None and not found.is_alive:
        found.close()
        found = None
    if found is None:
        found = _OPEN[key] = Session(kind, master, java)
    return found


@atexit.register
def close_sessions() -> None:
    """End the sessions of this process; the next job starts a new one."""
    for key in [key for key in _OPEN if key[0] == os.getpid()]:
        _OPEN.pop(key).close()


def zip_package(target: Path) -> None:
    """Write the package's Python and C sources as the zip that executors import."""
    root = package_root()
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted((root / "tidemark").rglob("*")):
            if path.suffix in (".py", ".c"):
                archive.write(path, path.relative_to(root))


def _driver_environment(java: Path) -> dict[str, str]:
    paths = [str(package_root()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "JAVA_HOME": str(java),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "TIDEMARK_PARENT": str(os.getpid()),
    }
