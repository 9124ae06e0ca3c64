"""Debezium's engine 3.5.0 with its connector for MariaDB, as a peer: `bench/DebeziumRun.java`, compiled when asked for.

The jars come from Maven Central on first use (a JDK and Maven needed). Its queue, batches and threads are tuned: with the
defaults it is slower. What counts is its time from the first change to the last; the start of its engine does not count.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Contender
from bench.rows import REPOSITORY
from tests.services import maven
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tests.services.maven import Jars
from tests.services.processes import PartMissing

VERSION = "3.5.0.Final"
_ARTIFACTS = (
    f"io.debezium:debezium-embedded:{VERSION}",
    f"io.debezium:debezium-connector-mariadb:{VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
FORMATS = ("connect", "json")


@dataclass
class Debezium:
    """The engine in front of one server and table. `begun`: the place in the log at which all its runs begin."""

    classpath: str
    folder: Path
    server: MariaDb
    table: str

    @property
    def begun(self) -> Path:
        return self.folder / "begun"

    def command(self, place: Path, rows: int, form: str) -> list[str]:
        java = ["java", "-Xmx4g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", self.classpath, "DebeziumRun"]
        return [*java, str(self.server.port), str(place), self.table, str(rows), form]

    def begin(self) -> None:
        """Note where the server's log ends now. Raises subprocess.CalledProcessError."""
        self.begun.mkdir(parents=True)
        subprocess.run(self.command(self.begun, 0, "connect"), check=True, capture_output=True, timeout=120)

    def contend(self, rows: int, form: str) -> Rated:
        """A contender that reads `rows` changes, each time from where it begun."""
        place = self.folder / form
        copy = f'rm -rf {place} && cp -r {self.begun} {place} && exec "$@"'
        return Rated(f"{self.table} {form}", ["sh", "-c", copy, "sh", *self.command(place, rows, form)])


@dataclass
class Rated(Contender):
    """A contender that tells its rows and the seconds they took. `rates`: rows a second of each run."""

    rates: list[float] = field(default_factory=list)

    def run(self, cwd: Path) -> str:
        out = super().run(cwd)
        told = json.loads(out.strip().splitlines()[-1])
        self.rates.append(told["rows"] / told["seconds"])
        return out


def compile_engine(folder: Path) -> str:
    """Compile the program into `folder`. Returns its class path. Raises PartMissing without JDK, Maven or network."""
    jars = maven.fetch(Jars(f"debezium-{VERSION}", _ARTIFACTS, ()))
    if shutil.which("javac") is None:
        raise PartMissing("Debezium's engine needs javac (apt-get install openjdk-17-jdk-headless)")
    os.environ.update(BENCH_USER=USER, BENCH_PASSWORD=PASSWORD, LC_ALL="C.UTF-8")  # of all its runs: no argument tells them
    classpath = f"{folder}:{jars}/*"
    source = REPOSITORY / "bench" / "DebeziumRun.java"
    subprocess.run(["javac", "-cp", classpath, "-d", str(folder), str(source)], check=True, capture_output=True)
    return classpath


def best_rate(runs: Sequence[Contender]) -> float:
    """The largest of their medians of rows a second. A warm round does not count."""
    return max(statistics.median(one.rates[-len(one.samples) :]) for one in runs if isinstance(one, Rated))
