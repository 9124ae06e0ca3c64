"""Spark as its users have it: a local session of two threads, or a standalone cluster from the pip package alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.processes import PartMissing, die_with_parent, free_port, stop, wait_until
from tidemark.engines.java import java_home
from tidemark.engines.spark import close_sessions
from tidemark.errors import UsageError

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
QUICK_JAVA = {"JDK_JAVA_OPTIONS": _QUICK}
"""For the environment of a program of seconds: most of its CPU goes into compiling what runs once."""


@contextmanager
def session(folder: Path, master: str = "local[2]") -> Iterator[Any]:
    """A local session with our formats on its PYTHONPATH; scratch files, and its log of events, in `folder`. PartMissing
    without Java."""
    try:
        java = java_home()
    except UsageError as missing:
        raise PartMissing(missing.message) from missing
    before = dict(os.environ)
    os.environ |= {"JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PLUGINS)}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    events = folder / "events"
    events.mkdir(exist_ok=True)
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", events.as_uri())
    builder = builder.config("spark.eventLog.compress", "false")  # a test looks into it
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.local.dir", str(folder)).config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.extraJavaOptions", _QUICK)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class Cluster:
    """A running master at `address` with its workers, a process each. `page`: the port of its web page."""

    address: str
    page: int
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def cluster(java: Path, folder: Path) -> Iterator[Cluster]:
    """A master with two workers of one core each; they know this Python and nothing of the project."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port, page = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    worker = [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)],
        *([*worker, "--work-dir", str(folder / f"worker{n}"), address] for n in range(2)),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            log = folder / f"{number}.log"
            with log.open("wb") as out:
                running.append(
                    subprocess.Popen(
                        [home / "bin" / "spark-class", *command],
                        stdout=out,
                        stderr=out,
                        env={"JAVA_HOME": str(java), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **QUICK_JAVA},
                        preexec_fn=die_with_parent(),
                    )
                )
            sign = "New state: ALIVE" if number == 0 else "Successfully registered with master"
            wait_until(lambda log=log, sign=sign: sign in log.read_text(errors="replace"), running[-1], 60, command[0])
        yield Cluster(address, page, tuple(running[1:]))
    finally:
        close_sessions()
        for process in reversed(running):
            stop(process)
