"""A server whose log does not name its columns: names come from its catalog, where no definition can lie in between."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests.bootstrap_worlds import fold, read
from tests.change_worlds import DyingDisk, Power
from tests.commanded import Said, run_here
from tests.crash.explorer import Effects, explore
from tests.dump_worlds import MARIADB, NEWEST_MARIADB, REAL_SERVERS, settings_for, start_server
from tests.services import mariadb
from tests.services.mariadb import MariaDb
from tests.services.mysql import MySql
from tests.services.processes import wait_until
from tests.unit.changes.test_bootstrap_rows import EVERY_TYPE, EVERY_TYPE_OF_MYSQL, ROWS, ROWS_OF_MYSQL
from tidemark.changes.bootstrap.catalog import PATH, Catalog, read_known
from tidemark.changes.bootstrap.state import Table, read_state, write_state
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Job, Place, capture
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import open_server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.delivery.export import Exported, Query, make_lines
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=REAL_SERVERS)
def running(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param, {"sql_mode": "", "binlog_row_metadata": "MINIMAL"})) as started:
        yield started


@pytest.fixture
def server(running: MariaDb) -> MariaDb:
    """The server with an empty database `d`, at the beginning of a log."""
    running.run("DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "FLUSH BINARY LOGS")
    return running


class Orders:
    """A source of the database `d`. Its store begins where it was made."""

    def __init__(self, folder: Path, server: MariaDb, metadata: str = "catalog", name: str = "store") -> None:
        (folder / "password").write_text(mariadb.PASSWORD, encoding="utf-8")
        self.config, self.store = folder / f"{name}.toml", folder / name
        self.config.write_text(
            f'[sources.orders]\nurl = "mysql://{mariadb.USER}@127.0.0.1:{server.port}"\ntls = "off"\nstore = "{name}"\n'
            f'password_file = "password"\ntables = ["d.*"]\nheartbeat_seconds = 1\nmetadata = "{metadata}"\n'
        )
        self.start = f"{server.logs[-1].name}:4"

    def capture(self, *words: str) -> Said:
        begin = [] if (self.store / "source.json").exists() else ["--from", self.start]
        return run_here(self.config, "changes", "capture", "orders", *begin, *words)

    def run(self, *words: str) -> Said:
        return run_here(self.config, "changes", words[0], "orders", *words[1:])

    def read(self) -> list[dict[str, Any]]:
        return read(self.config)

    def rows(self, table: str = "t") -> list[Any]:
        return [line["after"] or line["before"] for line in self.read() if line["k"] == "row" and line["table"] == table]

    def unproved(self) -> list[str]:
        return [line["text"] for line in self.read() if line["k"] == "unproved"]


def tell_columns(server: MariaDb, level: str) -> None:
    server.run(f"SET GLOBAL binlog_row_metadata = '{level}'", "FLUSH TABLES")  # an open table keeps the old level


@pytest.mark.parametrize("level", ["MINIMAL", "NO_LOG"])
def test_every_type_is_as_a_log_with_names_has_it(tmp_path: Path, server: MariaDb, level: str) -> None:
    is_mysql = isinstance(server, MySql)
    level = "MINIMAL" if is_mysql else level  # MySQL has no other
    definition, rows = (EVERY_TYPE_OF_MYSQL, ROWS_OF_MYSQL) if is_mysql else (EVERY_TYPE, ROWS)
    odd = r"CREATE TABLE d.odd (id INT, e ENUM('a,b','it''s ''','x\\y','n\nz',' unsigned','ü)')) DEFAULT CHARSET utf8mb4"
    found = {}
    for metadata, written in (("catalog", level), ("full", "FULL")):
        orders = Orders(tmp_path, server, metadata, metadata)
        tell_columns(server, written)
        server.run(definition, *rows, odd)
        server.run("INSERT INTO d.odd VALUES (1,1),(2,2),(3,3),(4,4),(5,5),(6,6)", "UPDATE d.t SET a = 5 WHERE id = 1")
        server.run("DELETE FROM d.t WHERE id = 2")
        said = orders.capture()
        assert said.code == 0, said
        keys = ("k", "db", "table", "columns", "op", "before", "after", "i")
        lines = orders.read()
        found[metadata] = [[line.get(key) for key in keys] for line in lines if line["k"] in ("row", "schema", "unproved")]
        server.run("DROP TABLE d.t, d.odd", "FLUSH BINARY LOGS")
    tell_columns(server, "MINIMAL")
    assert len(found["full"]) == 3 + 6 + 2 + 2
    for ours, theirs in zip(found["catalog"], found["full"], strict=True):
        assert ours == theirs


def test_a_log_that_ends_with_rows_is_verified(tmp_path: Path, server: MariaDb) -> None:
    """Statements are compared, rows that the log does not describe are not; none of them is called unknown."""
    orders = Orders(tmp_path, server)
    for name in ("t", "u"):
        server.run(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)", f"INSERT INTO d.{name} VALUES (1)")
    assert orders.capture().code == 0
    said = orders.run("verify", "--deep")
    assert (said.code, said.json["differences"], said.json["logs"]["compared"]) == (0, [], 4), said


@pytest.mark.parametrize("running", [MARIADB, NEWEST_MARIADB], indirect=True)
@pytest.mark.parametrize("level", ["MINIMAL", "NO_LOG"])
def test_hashes_of_unique_texts_are_no_columns(tmp_path: Path, server: MariaDb, level: str) -> None:
    """MariaDB logs one for each, behind the columns, whatever is defined later; MEMORY has none."""
    orders = Orders(tmp_path, server)
    tell_columns(server, level)
    server.run("CREATE TABLE d.t (id INT, n BIGINT UNSIGNED, a TEXT UNIQUE, b BLOB UNIQUE)")
    server.run("INSERT INTO d.t VALUES (1, 1, 'ü', 'b'), (2, 2, NULL, NULL)", "UPDATE d.t SET n = 18446744073709551615")
    server.run("CREATE TABLE d.m (id INT PRIMARY KEY, a CHAR(3), UNIQUE (a) USING HASH) ENGINE=MEMORY")
    server.run("INSERT INTO d.m VALUES (1, 'ü')")
    assert orders.capture().code == 0
    server.run("DELETE FROM d.t WHERE id = 2", "ALTER TABLE d.t ADD x BIGINT UNSIGNED, DROP INDEX a, ADD UNIQUE (a, n)")
    server.run("INSERT INTO d.t VALUES (3, 3, 'c', 'd', 3)")
    assert orders.capture().code == 0
    server.run("ALTER TABLE d.t DROP INDEX b", "UPDATE d.t SET a = 'e' WHERE id = 3")
    said = orders.capture()
    assert said.code == 0, said
    most, b, d = 18_446_744_073_709_551_615, {"hex": "62"}, {"hex": "64"}
    assert orders.rows("m") == [[1, "ü"]]
    assert orders.rows() == [
        *([1, 1, "ü", b], [2, 2, None, None], [1, most, "ü", b], [2, most, None, None], [2, most, None, None]),
        *([3, 3, "c", d, 3], [3, 3, "e", d, 3]),
    ]


def test_definitions_between_the_rows_and_the_catalog(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, a INT UNSIGNED)", "CREATE TABLE d.other (id INT PRIMARY KEY)")
    server.run("INSERT INTO d.t VALUES (1, 1)", "INSERT INTO d.other VALUES (1)")
    server.run("ALTER TABLE d.t CHANGE a b INT", "INSERT INTO d.t VALUES (2, -2)", "ANALYZE TABLE d.other")
    said = orders.capture()
    said.refused(6, "d.t is parked: its definition changed behind")
    assert said.json["hint"] == "./tidemark changes bootstrap orders --tables d.t"
    assert (orders.unproved(), orders.rows(), orders.rows("other")) == (["d.t"], [[2, -2]], [[1]])
    [schema] = [line for line in orders.read() if line["k"] == "schema" and line["table"] == "t"]
    assert [column["name"] for column in schema["columns"]] == ["id", "b"]
    orders.capture().refused(6, "d.t is parked")
    [shown] = orders.run("show").json["sources"]
    assert {table["name"]: table["state"] for table in shown["tables"]} == {"d.other": "captured", "d.t": "parked"}
    said = orders.run("verify", "--deep")
    assert (said.code, said.json["differences"]) == (0, []), said
    assert orders.run("bootstrap", "--tables", "d.t").code == 0
    assert orders.capture().code == 0
    [shown] = orders.run("show").json["sources"]
    assert {table["name"]: table["state"] for table in shown["tables"]} == {"d.other": "captured", "d.t": "captured"}
    begun = next(number for number, line in enumerate(orders.read()) if line["k"] == "bootstrap_begin")
    assert fold([line for line in orders.read()[begun:] if line.get("table") == "t"]) == [(1, 1), (2, -2)]


def test_what_was_proved_is_known_to_a_later_capture(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, a INT)", "INSERT INTO d.t VALUES (1, 1)")
    assert orders.capture().code == 0
    server.run("INSERT INTO d.t VALUES (2, 2)", "ALTER TABLE d.t ADD b INT UNSIGNED", "INSERT INTO d.t VALUES (3, 3, 3)")
    assert orders.capture().code == 0
    server.run("INSERT INTO d.t VALUES (4, 4, 4)", "RENAME TABLE d.t TO d.was", "CREATE TABLE d.t (x CHAR(3))")
    server.run("INSERT INTO d.t VALUES ('ü')", "FLUSH BINARY LOGS", "UPDATE d.was SET b = 4000000000 WHERE id = 3")
    said = orders.capture()
    assert said.code == 0, said
    assert (orders.unproved(), orders.rows()) == ([], [[1, 1], [2, 2], [3, 3, 3], [4, 4, 4], ["ü"]])
    assert orders.rows("was") == [[3, 3, 4_000_000_000]]
    server.run("UPDATE d.was SET b = 1 WHERE id = 3")
    (orders.store / PATH).unlink()  # what was known of `was` is read anew
    assert orders.capture().code == 0
    server.run("UPDATE d.was SET b = 2 WHERE id = 3", "ALTER TABLE d.was DROP a")
    (orders.store / PATH).unlink()
    orders.capture().refused(6, "d.was is parked")


def test_a_table_that_is_made_with_its_rows_and_one_that_is_gone(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t AS SELECT 1 AS a UNION SELECT 2", "CREATE TABLE d.u (a INT)", "INSERT INTO d.u VALUES (1)")
    server.run("DROP TABLE d.u", "CREATE TABLE d.`o``d ü` (a INT)", "INSERT INTO d.`o``d ü` VALUES (7)")
    said = orders.capture()
    said.refused(6, "d.u is parked")
    assert (orders.unproved(), orders.rows(), orders.rows("o`d ü")) == (["d.u"], [[1], [2]], [[7]])
    server.run("ALTER TABLE d.`o``d ü` ADD b INT", "INSERT INTO d.`o``d ü` VALUES (8, 8)")
    server.run("ALTER TABLE d.`o``d ü` DROP a", "INSERT INTO d.`o``d ü` VALUES (9)")
    orders.capture().refused(6, "parked")
    assert orders.rows("o`d ü") == [[7], [9]]
    assert set(read_known(Disk(orders.store)).parked) == {"d.o`d ü"}, "one that is gone is told once"


@pytest.mark.parametrize("running", [MARIADB], indirect=True)
def test_a_parked_table_that_is_gone_or_not_wanted_ends_no_capture(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    for name in ("gone", "left"):
        server.run(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)", f"INSERT INTO d.{name} VALUES (1)")
        server.run(f"ALTER TABLE d.{name} ADD a INT")
    orders.capture().refused(6, "d.gone is parked")
    server.run("DROP TABLE d.gone")
    disk = Disk(orders.store)
    write_state(disk, read_state(disk).with_table("d.gone", Table("gone")))  # a death, before the catalog knows it
    orders.capture().refused(6, "d.left is parked")
    assert list(read_known(Disk(orders.store)).parked) == ["d.left"]
    [shown] = orders.run("show").json["sources"]
    assert {table["name"]: table["state"] for table in shown["bootstrap"]} == {"d.gone": "gone", "d.left": "parked"}
    orders.config.write_text(orders.config.read_text() + 'exclude = ["d.left"]\n')
    said = orders.capture()
    assert said.code == 0, said


@pytest.mark.parametrize("running", [MARIADB], indirect=True)
def test_a_parked_table_is_parked_under_its_new_name(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)", "ALTER TABLE d.t ADD a INT")
    server.run("CREATE TABLE d.new LIKE d.t", "INSERT INTO d.new VALUES (2, 2)")
    orders.capture().refused(6, "d.t is parked")
    server.run("RENAME TABLE d.new TO d.more,d.t TO`d`.`old`,d.more TO d.t", "ALTER TABLE d.old RENAME`d`.`o ld`")
    orders.capture().refused(6, "d.o ld is parked: its definition changed behind")
    assert list(read_known(Disk(orders.store)).parked) == ["d.o ld"]
    orders.capture().refused(6, "d.o ld is parked")  # the statement that the store ends with came again
    assert list(read_known(Disk(orders.store)).parked) == ["d.o ld"]
    assert orders.run("bootstrap", "--tables", "d.o ld").code == 0
    assert orders.capture().code == 0
    [shown] = orders.run("show").json["sources"]
    states = {table["name"]: table["state"] for table in shown["bootstrap"]}
    assert states == {"d.o ld": "done"}
    lines = orders.read()
    begun = next(number for number, line in enumerate(lines) if line["k"] == "bootstrap_begin")
    assert fold([line for line in lines[begun:] if line.get("table") == "o ld"]) == [(1, None)]
    assert fold([line for line in lines if line.get("table") == "new"]) == [(2, 2)]


def test_files_have_no_catalog_and_end_what_was_proved(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, a INT)", "INSERT INTO d.t VALUES (1, 1)")
    assert orders.capture().code == 0
    server.run("ALTER TABLE d.t CHANGE a b INT", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (2, 2)")
    files = [str(log) for log in server.logs]
    said = run_here(orders.config, "changes", "capture", "orders", "--files", *files)
    said.refused(6, "does not tell the")
    assert orders.capture().code == 0
    assert [line["columns"][1]["name"] for line in orders.read() if line["k"] == "schema"] == ["a", "b"]


@pytest.mark.parametrize("running", [MARIADB], indirect=True)
def test_following_while_definitions_change(tmp_path: Path, server: MariaDb) -> None:
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (0)")
    assert orders.capture().code == 0
    path = os.pathsep.join([str(Path(tidemark.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [
        sys.executable,
        "-m",
        "tidemark.cli",
        "--config",
        str(orders.config),
        "changes",
        "capture",
        "orders",
        "--follow",
    ]
    with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE) as follower:
        try:
            for number in range(1, 6):
                zeros = ", 0" * number
                server.run(f"ALTER TABLE d.t ADD c{number} INT", f"INSERT INTO d.t VALUES ({number}{zeros})")
                wait_until(lambda n=number: orders.rows()[-1][0] == n, follower, 60, "a row")  # type: ignore[misc]
                follower.send_signal(signal.SIGSTOP)  # so that what follows comes together
                server.run(*(f"INSERT INTO d.t VALUES ({number * 1000 + one}{zeros})" for one in range(100)))
                follower.send_signal(signal.SIGCONT)
                last = number * 1000 + 99
                wait_until(lambda n=last: orders.rows()[-1][0] == n, follower, 60, "many rows")  # type: ignore[misc]
        finally:
            follower.kill()
            follower.communicate()
    expected = [[0]]
    for number in range(1, 6):
        expected += [[one, *[0] * number] for one in (number, *range(number * 1000, number * 1000 + 100))]
    assert orders.rows() == expected
    assert orders.unproved() == []


@pytest.mark.parametrize("running", [MARIADB], indirect=True)
def test_definitions_at_random_beside_a_bootstrap(tmp_path: Path, server: MariaDb) -> None:
    """Whatever is parked is read anew; then the changes fold to the table."""
    orders = Orders(tmp_path, server)
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, a INT)")
    server.run("INSERT INTO d.t SELECT seq, seq FROM d.seq_1_to_500")
    ended = threading.Event()

    def write(run: Callable[..., Any]) -> None:
        number = 0
        while not ended.wait(0.01):
            number += 1
            run(f"UPDATE d.t SET a = a + 1 WHERE id = {number % 500 + 1}")
            if number % 20 == 0:
                run(f"ALTER TABLE d.t MODIFY a {('INT', 'BIGINT', 'MEDIUMINT')[number // 20 % 3]}")

    import pymysql

    other = pymysql.connect(
        host="127.0.0.1", port=server.port, user=mariadb.USER, password=mariadb.PASSWORD.encode(), autocommit=True
    )
    thread = threading.Thread(target=write, args=(other.cursor().execute,))
    thread.start()
    try:
        codes = {orders.capture().code for _ in range(6)}
    finally:
        ended.set()
        thread.join()
        other.close()
    assert codes <= {0, 6}
    assert orders.run("bootstrap", "--tables", "d.t").code == 0
    assert orders.capture().code == 0
    begun = [number for number, line in enumerate(orders.read()) if line["k"] == "bootstrap_begin"]
    assert fold(orders.read()[begun[-1] :] if begun else orders.read()) == server.run("SELECT * FROM d.t ORDER BY id")


class CatalogWorld:
    """A store that knows a definition; then rows come, a change, rows that nothing describes, a change, rows."""

    def __init__(self, root: Path, server: MariaDb) -> None:
        self.root, self.server, self.fence = root, server, 0
        self.login = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
        server.run("DROP TABLE IF EXISTS d.t", "CREATE TABLE d.t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
        self.first = FilePosition(server.logs[-1].name)
        server.run("INSERT INTO d.t VALUES (1)")
        self.capture(Disk(root))
        server.run("INSERT INTO d.t VALUES (2)", "ALTER TABLE d.t ADD a INT", "INSERT INTO d.t VALUES (3, 3)")
        server.run("ALTER TABLE d.t ADD b INT", "INSERT INTO d.t VALUES (4, 4, 4)")

    def open_dump(self, end: Place | None) -> tuple[Any, bool]:
        return open_dump(open_server(self.login), end.position if end else self.first), end is not None

    def capture(self, disk: Disk) -> None:
        self.fence += 1
        catalog = Catalog(disk, self.login)
        capture(Job(disk, self.fence, Rules(lambda database, _: database == "d", catalog=catalog), self.open_dump))

    def live(self, effects: Effects) -> None:
        self.capture(DyingDisk(self.root, effects, Power()))

    def lose_power(self) -> None:
        """A process dies; the machine does not."""

    def check(self) -> None:
        reader = Reader(Disk(self.root))
        query = Query(reader.first, reader.view.end.seq + 1, lambda *_: True)
        lines = list(make_lines(reader, read_origin(Disk(self.root)), query, Exported()))
        told = [line["after"] if line["k"] == "row" else "lost" for line in lines if line["k"] in ("row", "unproved")]
        assert told == [[1], [2], "lost", [4, 4, 4]]
        assert list(read_known(Disk(self.root)).parked) == ["d.t"]

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.mark.parametrize("running", [MARIADB], indirect=True)
def test_killed_anywhere_it_parks_the_same(tmp_path: Path, server: MariaDb) -> None:
    explored = explore(lambda: CatalogWorld(tmp_path / "s", server))
    assert explored.all_died
    assert any(name.startswith("after publish catalog.json") for name in explored.names)
