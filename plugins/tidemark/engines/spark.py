"""Runs tasks as a Spark job, by a driver that is a process of its own and takes one job after another.

`spark_jobs/<kind>.py` is started with a pipe for its replies: it reads folders of jobs from stdin and answers each.
Tasks go in by file, outcomes come out by file. No row passes through the JVM: Spark distributes pickled tasks and
brings back pickled outcomes. Each executor runs its tasks in children like the pool (research/spark-tsfile.md §3.3).

A start costs ten seconds, a job one. So a session stays for the next job of this process (a merge in rounds, a load
and its merges) and ends with the process, however it ends. A job that finds no executor for its tasks within 600 s
is given up. A session that failed or died is not used again: the next job gets a new one.
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
    def from_settings(settings: SparkSettings) -> SparkEngine:
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
            (folder / TASKS).write_bytes(pickle.dumps((*self._place_tasks(kind, tasks), LIMITS.get(kind, self.limits))))
            session.run_job(kind, folder)
            yield from pickle.loads((folder / RESULTS).read_bytes())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _place_tasks(self, kind: str, tasks: Sequence[Any]) -> tuple[str, list[Any]]:
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


JOBS = Path(__file__).parents[3] / "spark_jobs"
PACKAGE = "tidemark.zip"
DONE, WORKS = "done", "works"  # replies: at the end of a job; now and then while an executor has one of its tasks
BEAT_SECONDS = 10.0
IDLE_SECONDS = 600.0  # without an executor for its tasks a job is given up: each task has its own clock, waiting has none
_TAIL_LINES = 25
_STOP_SECONDS = 15.0


class Session:
    """A driver at `master` with the Java at `java`; its folder holds the zip that executors get, and their scratch files."""

    def __init__(self, kind: str, master: str, java: Path) -> None:
        job = JOBS / f"{kind}.py"
        if not job.exists():
            raise UsageError(f"the Spark job {job} is missing", hint="run Tidemark from its own folder", subject=kind)
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
        """Run the job whose tasks wait in `folder`. RetryableError, with the end of the log, when Spark fails."""
        begins = self._log.stat().st_size if self._log.exists() else 0
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            begins = 0  # it died before it was asked
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
        """The next line; "" where the driver has ended, None where it has said nothing for too long."""
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
        """Stop Spark and forget everything."""
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
    """The session of this process at a master; a new one where there is none, or where it died."""
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
    """The package as executors get it."""
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
