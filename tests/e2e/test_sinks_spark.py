"""Sinks by Spark at a real MariaDB: the tables and files that one process makes, also where drivers and executors are killed
or the engine changes from run to run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.commanded import Said, run_here
from tests.dump_worlds import start_server
from tests.services import spark as spark_service
from tests.services.command_forks import Forked, start_command
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tests.services.processes import descendants_named, soon
from tests.services.spark import Cluster
from tidemark.app import open_app
from tidemark.changes.sinks.deliver import find_sink, read_sink_table
from tidemark.changes.sinks.engine import STAGING
from tidemark.engines.java import java_home
from tidemark.engines.spark import close_sessions
from tidemark.errors import RetryableError, UsageError
from tidemark.settings.load import load_settings

pytestmark = [pytest.mark.full, pytest.mark.real("spark")]
KINDS = {"lake": "delta", "past": "history", "series": "catalog"}
TABLES = {
    "orders": "id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(20) CHARACTER SET utf8mb4, paid DECIMAL(12,3), at DATETIME(3)",
    "ticks": "at DATETIME(3), machine VARCHAR(9), n INT, rate DOUBLE, photo BLOB, PRIMARY KEY (at, machine)",
}
SITE = 'id = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"'


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    try:
        java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    with closing(start_server("mariadb")) as found:
        yield found
    close_sessions()


class Lakes:
    """The source `orders` and a sink of each kind, by settings that say `engine`; each word of it has settings of its own, a
    ledger of its own and targets of its own, and all have one store."""

    def __init__(self, folder: Path, server: MariaDb, master: str = "local[2]") -> None:
        self.folder, self.server, self.master, self.count = folder, server, master, 0
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        for name in ("here", "there"):
            self.write_settings(name, "spark" if name == "there" else "pool")
        server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
        server.run(*(f"CREATE TABLE shop.{table} ({columns})" for table, columns in TABLES.items()))

    def write_settings(self, name: str, engine: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        told = [
            f'[sinks.{sink}]\nsource = "orders"\nkind = "{kind}"\ntarget = "{sink}"\nengine = "{engine}"\n'
            + ('tables = ["shop.ticks"]\n' if kind == "catalog" else "")
            for sink, kind in KINDS.items()
        ]
        (self.folder / name / "tidemark.toml").write_text(
            f'[sources.orders]\nstore = "{self.folder}/store"\nurl = "mysql://{USER}@127.0.0.1:{self.server.port}"\n'
            f'password_file = "{self.folder}/password"\ntls = "off"\ntables = ["shop.*"]\n'
            f'[sites.series]\n{SITE}\nstore = "series"\n[spark]\nmaster = "{self.master}"\n' + "".join(told)
        )

    def change(self) -> None:
        """Change rows of both tables, in many transactions, and capture them in several groups."""
        for _ in range(3):
            self.count += 1
            base = self.count * 1000
            orders = ", ".join(f"({base + n}, 'ü{n}', {n}.125, '2026-11-27 10:00:00.{n:03}')" for n in range(300))
            ticks = ", ".join(
                f"('2026-11-{1 + self.count % 20:02} 10:00:00.{n:03}', 'm{n % 3}', {n}, {n} / 3, x'00ff{n % 256:02x}')"
                for n in range(200)
            )
            self.server.run(
                f"INSERT INTO shop.orders VALUES {orders}",
                f"INSERT IGNORE INTO shop.ticks VALUES {ticks}",
                *(f"UPDATE shop.orders SET paid = paid + {n} WHERE id % 50 = {n}" for n in range(20)),
                f"UPDATE shop.ticks SET n = NULL, rate = {base} WHERE n % 11 = 0",
                f"DELETE FROM shop.orders WHERE id % 37 = {self.count % 37}",
                f"DELETE FROM shop.ticks WHERE n = {self.count}",
                f"UPDATE IGNORE shop.orders SET id = id + 100000 WHERE id % 41 = {self.count % 41}",
            )
            self.run("here", "capture", "orders")

    def run(self, name: str, *words: str) -> Said:
        said = run_here(self.folder / name / "tidemark.toml", "changes", *words)
        assert said.code == 0, said
        return said

    def deliver(self, name: str) -> None:
        for sink in KINDS:
            self.run(name, "deliver", sink)

    def start(self, sink: str) -> Forked:
        config = self.folder / "there" / "tidemark.toml"
        return start_command(["--config", str(config), "changes", "deliver", sink], os.environ)

    def look(self, name: str) -> dict[str, Any]:
        """The files of `history` and `catalog` with their bytes, and the rows of `delta`."""
        root = self.folder / name
        found: dict[str, Any] = {}
        for sink in ("past", "series"):
            paths = [path for path in sorted((root / sink).rglob("*")) if path.is_file()]
            found |= {str(path.relative_to(root)): path.read_bytes() for path in paths}
        lake = find_sink(open_app(load_settings(root / "tidemark.toml", {}), whose_ever=True), "lake")
        for table in TABLES:
            found[table] = [row for batch in read_sink_table(lake, f"shop.{table}") for row in batch.to_pylist()]
        return found

    def assert_equal(self) -> None:
        here, there = self.look("here"), self.look("there")
        assert here.keys() == there.keys()
        assert [name for name in here if here[name] != there[name]] == []
        assert len(here["orders"]) > 500 and len(here["ticks"]) > 300 and len(here) > 6


@pytest.fixture
def cluster(server: MariaDb, tmp_path: Path) -> Iterator[Cluster]:
    with spark_service.cluster(java_home(), tmp_path) as running:
        yield running


def was_at_work(tmp_path: Path) -> bool:
    """Whether each worker of the cluster had executors."""
    return all(any((tmp_path / f"worker{number}").glob("app-*/*")) for number in range(2))


@pytest.mark.timeout(1500)
def test_both_engines_make_the_same_and_it_is_as_at_the_source(tmp_path: Path, server: MariaDb, cluster: Cluster) -> None:
    """The one is a standalone cluster, whose executors know nothing of the project."""
    lakes = Lakes(tmp_path, server, cluster.address)
    for engine in ("spark", "pool", "spark"):
        lakes.write_settings("there", engine)
        lakes.change()
        lakes.deliver("here")
        lakes.deliver("there")
        lakes.assert_equal()
        assert descendants_named(os.getpid(), "spark_jobs/")  # it stays for the next run of this process
    assert was_at_work(tmp_path)
    for name in ("there", "here"):
        for sink in ("lake", "series"):
            said = lakes.run(name, "verify", "orders", "--sink", sink)
            assert said.json["differences"] == []
            assert said.json["checked"] > 300


def wait_for_middle(command: Forked, staging: Path, victim: str) -> None:
    """Wait until a task is at work, or has left rows; or all is done."""

    def is_there() -> bool:
        rows = [path for path in staging.rglob("*") if path.is_file()]
        at_work = descendants_named(command.pid, victim) if victim.endswith("worker") else rows
        return bool(at_work) or command.poll() is not None

    assert soon(is_there, 300)


@pytest.mark.timeout(1500)
def test_drivers_executors_and_commands_that_are_killed(tmp_path: Path, server: MariaDb) -> None:
    """The command is asked for again, as Airflow does. It ends the batch that was begun, and nothing is there twice."""
    lakes = Lakes(tmp_path, server)
    lakes.change()
    lakes.deliver("here")
    close_sessions()
    for victim, sink in zip(("spark_jobs", "tidemark.engines.worker", ""), KINDS, strict=True):
        command = lakes.start(sink)
        wait_for_middle(command, lakes.folder / "there" / sink / STAGING, victim)
        for one in descendants_named(command.pid, victim) if victim else ():
            with suppress(psutil.NoSuchProcess):
                one.kill()
        if not victim:
            command.kill()
        command.communicate(timeout=300)
        assert command.returncode in (0, RetryableError.kind, -signal.SIGKILL)
    lakes.deliver("there")
    lakes.assert_equal()
    assert not list((lakes.folder / "there").rglob(STAGING))
    for sink in ("lake", "series"):
        assert lakes.run("there", "verify", "orders", "--sink", sink).json["differences"] == []
