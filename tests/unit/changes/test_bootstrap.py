"""The rows that tables of a real MariaDB have when their capture begins: begun, killed, cancelled, asked for, refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests import bootstrap_worlds
from tests.bootstrap_worlds import fold, read, read_in_chunks, write_settings
from tests.change_worlds import DyingDisk, Power
from tests.commanded import run_here
from tests.crash.explorer import Effects, explore
from tests.dump_worlds import settings_for
from tests.services import mariadb
from tidemark.changes.bootstrap.requests import Request, list_requests, write_request
from tidemark.changes.bootstrap.run import Pace, bootstrap_tables
from tidemark.changes.bootstrap.state import Table, read_state, write_state
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Job, Place, capture_into, open_writer
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import Dump, FilePosition, RawEvent
from tidemark.changes.delivery.export import Exported, Query, make_lines
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.errors import CorruptionError, RetryableError, UnsupportedError

pytestmark = [pytest.mark.full, pytest.mark.real("mariadb")]


@pytest.fixture
def server() -> Iterator[mariadb.MariaDb]:
    with closing(mariadb.start({"sql_mode": ""})) as started:
        started.run("CREATE DATABASE d")
        yield started


def test_a_table_whose_engine_has_no_snapshot_is_locked(tmp_path: Path, server: mariadb.MariaDb) -> None:
    """Writers do not rest; so a place that is not that of the rows leaves a row that is wrong."""
    for engine in ("Aria", "MyISAM"):
        server.run(f"CREATE TABLE d.{engine} (id INT PRIMARY KEY, n INT) ENGINE={engine}")
        server.run(f"INSERT INTO d.{engine} SELECT seq, 0 FROM d.seq_1_to_2000")
        server.run(
            f"CREATE TABLE d.plain_{engine} (id INT, n INT) ENGINE={engine}", f"INSERT INTO d.plain_{engine} VALUES (1, 2)"
        )
    ended = threading.Event()

    def write() -> None:
        writer = mariadb.MariaDb(server.folder, server.port, server.options, server.process)
        while not ended.is_set():
            writer.run("UPDATE d.Aria SET n = n + 1 WHERE id % 7 = 0", "UPDATE d.MyISAM SET n = n + 1 WHERE id % 7 = 0")
            writer.run(
                "DELETE FROM d.Aria ORDER BY RAND() LIMIT 1", "UPDATE d.MyISAM SET id = id - 9999 ORDER BY RAND() LIMIT 1"
            )

    thread = threading.Thread(target=write)
    thread.start()
    try:
        read_in_chunks(tmp_path, server, 100)
    finally:
        ended.set()
        thread.join()
    lines = read_in_chunks(tmp_path, server, 100, fence=2)
    for engine in ("Aria", "MyISAM"):
        found = fold([line for line in lines if line.get("table") == engine])
        assert found == sorted(server.run(f"SELECT id, n FROM d.{engine}"))


def test_a_key_that_is_made_anew_is_read_anew(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(
        "CREATE TABLE d.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB", "INSERT INTO d.t SELECT seq, -seq FROM d.seq_1_to_10"
    )
    disk = Disk(tmp_path)
    write_state(disk, read_state(disk).with_table("d.t", Table("reading", 1, 3, ("a int not null number",), (b"3".hex(),))))
    lines = read_in_chunks(tmp_path, server, 4)
    assert [line["after"][0] for line in lines if line.get("op") == "R"] == [4, 5, 6, 7, 8, 9, 10]
    assert "bootstrap_begin" not in [line["k"] for line in lines]
    write_state(disk, read_state(disk).with_table("d.t", Table("reading", 1, 3, ("c int not null number",), (b"3".hex(),))))
    shutil.rmtree(tmp_path / "holders")
    shutil.rmtree(tmp_path / "data")
    lines = read_in_chunks(tmp_path, server, 4)
    assert [line["after"][0] for line in lines if line.get("op") == "R"] == [*range(1, 11)]
    assert [line["k"] for line in lines].count("bootstrap_begin") == 1


def test_definitions_that_change_meanwhile(tmp_path: Path, server: mariadb.MariaDb) -> None:
    for name in ("gone", "made_anew", "t"):
        server.run(f"CREATE TABLE d.{name} (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        server.run(f"INSERT INTO d.{name} SELECT seq, seq FROM d.seq_1_to_10")
    changes = iter(
        [
            "ALTER TABLE d.made_anew ADD c INT",  # behind the snapshot of the chunk that is read next
            "DROP TABLE d.gone",
            "UPDATE d.made_anew SET c = 1 WHERE a = 9",
            "CREATE OR REPLACE TABLE d.made_anew (b VARCHAR(9), a INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO d.made_anew VALUES ('x', 1), ('y', 20)",
            "ALTER TABLE d.t DROP PRIMARY KEY",
            "ALTER TABLE d.t DROP b",
        ]
    )

    def change(question: str) -> None:
        if question.startswith("SHOW STATUS"):
            server.run(next(changes, "DO 1"))

    lines = read_in_chunks(tmp_path, server, 3, before=change)
    tables = read_state(Disk(tmp_path)).tables
    assert {name: table.state for name, table in tables.items()} == {
        "d.gone": "refused",
        "d.made_anew": "done",
        "d.t": "done",
    }
    assert "(1146)" in tables["d.gone"].why
    last = [line["seq"] for line in lines if line.get("sql", "").startswith("CREATE OR REPLACE TABLE d.made_anew")][-1]
    found = [line for line in lines if line.get("table") == "made_anew" and line["k"] == "row" and line["seq"] > last]
    rows = {line["after"][1]: line["after"] for line in found}
    assert sorted(map(tuple, rows.values())) == sorted(server.run("SELECT b, a FROM d.made_anew"))
    begins = [line["seq"] for line in lines if line["k"] == "bootstrap_begin" and line["text"] == "d.t"]
    whole = [line["after"] for line in lines if line.get("op") == "R" and line["table"] == "t" and line["seq"] >= begins[-1]]
    assert sorted(map(tuple, whole)) == sorted(server.run("SELECT * FROM d.t"))
    again = read_in_chunks(tmp_path, server, 3, fence=2)
    assert read_state(Disk(tmp_path)).tables["d.gone"].state == "gone"
    assert len(again) == len(lines)


def test_a_right_that_is_missing_is_told_by_table(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.closed (a INT PRIMARY KEY)", "CREATE TABLE d.open (a INT PRIMARY KEY)")
    server.run("CREATE TABLE d.half (a INT PRIMARY KEY, b INT)", "INSERT INTO d.half VALUES (1, 2)")
    server.run("CREATE USER some@'127.0.0.1'", "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO some@'127.0.0.1'")
    server.run("GRANT SELECT ON d.open TO some@'127.0.0.1'", "GRANT INSERT ON d.closed TO some@'127.0.0.1'")
    server.run("GRANT SELECT (a) ON d.half TO some@'127.0.0.1'")
    config = write_settings(tmp_path, server)
    config.write_text(config.read_text().replace(f"{mariadb.USER}@", "some@").replace('password_file = "password"\n', ""))
    run_here(config, "changes", "capture", "orders").refused(6, "closed")
    assert {name: table.state for name, table in read_state(Disk(tmp_path / "store")).tables.items()} == {
        "d.closed": "refused",
        "d.half": "refused",
        "d.open": "done",
    }


def test_a_capture_of_a_new_source_reads_its_tables(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1), (2)",
        "CREATE TABLE d.u (id INT PRIMARY KEY, p POINT, y YEAR(2))",
        "CREATE TABLE d.v (id INT PRIMARY KEY)",
        "FLUSH BINARY LOGS",
        "UPDATE d.t SET id = 3 WHERE id = 1",
    )
    config = write_settings(tmp_path, server)
    run_here(config, "changes", "capture", "orders", "--until", "seq:1")
    tables = run_here(config, "changes", "show", "orders").json["sources"][0]["tables"]
    assert [(table["name"], table["state"]) for table in tables] == [(f"d.{name}", "waiting") for name in "tuv"]
    run_here(config, "changes", "capture", "orders").refused(6, "d.u")
    shown = run_here(config, "changes", "show", "orders").json["sources"][0]["bootstrap"]
    assert [(one["state"], one["rows"]) for one in shown] == [("done", 2), ("refused", 0), ("done", 0)]
    lines = read(config)
    assert [line["op"] for line in lines if line["k"] == "row"] == ["U", "R", "R"], "nothing of an older log"
    server.run("DROP TABLE d.u", "CREATE TABLE d.w (id INT PRIMARY KEY)", "INSERT INTO d.w VALUES (1)")
    said = run_here(config, "changes", "capture", "orders")
    assert (said.code, said.json["bootstrapped"], said.json["rows"]) == (0, [], 1)
    run_here(config, "changes", "capture", "orders", "--from", "earliest").refused(2, "has changes already")


def test_a_new_store_may_begin_elsewhere(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)")
    server.run(*(f"INSERT INTO d.t VALUES ({number})" for number in range(4)))
    config = write_settings(tmp_path, server)
    run_here(config, "changes", "capture", "orders", "--from", "now").refused(2, "no place")
    gtid = server.run("SELECT @@gtid_binlog_pos")[0][0]
    said = run_here(config, "changes", "capture", "orders", "--from", gtid)
    assert (said.json["transactions"], said.json["rows"], said.json["bootstrapped"]) == (1, 1, [])
    (tmp_path / "o").mkdir()
    other = write_settings(tmp_path / "o", server)
    assert run_here(other, "changes", "capture", "orders", "--no-bootstrap").json["rows"] == 4
    assert "bootstrap_begin" not in [line["k"] for line in read(other)]


def test_it_is_cancelled_and_goes_on(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO d.t SELECT seq FROM d.seq_1_to_1000",
        "CREATE TABLE d.u (id INT PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO d.u VALUES (1)",
    )
    config = write_settings(tmp_path, server)
    config.write_text(config.read_text() + "bootstrap_rows = 100\nheartbeat_seconds = 1\n")
    disk = Disk(tmp_path / "store")
    follower = start_follower(config)
    try:
        wait_until(lambda: read_state(disk).tables.get("d.t", Table()).chunks >= 2, "two chunks")
        said = run_here(config, "changes", "bootstrap", "orders", "--cancel")
        assert (said.code, said.json["state"]) == (0, "cancelled")
        table = read_state(disk).tables["d.t"]
        assert table.rows == 100 * table.chunks < 1000
        server.run("INSERT INTO d.t VALUES (5000)")
        wait_until(lambda: any(line.get("after") == [5000] for line in read(config)), "a change, captured")
        config.write_text(config.read_text().replace("= 100\n", "= 0\n"))
        assert run_here(config, "changes", "bootstrap", "orders", "--tables", "d.u", "--no-wait").json["state"] == "asked"
        wait_until(lambda: read_state(disk).tables["d.u"].state == "done", "the other table")
        run_here(config, "changes", "capture", "orders").refused(5, "capture:orders")
    finally:
        follower.kill()
        follower.wait()
    begun = read_state(disk).tables["d.t"]
    assert begun.state == "cancelled"
    server.run("DELETE FROM d.t WHERE id = 999")
    said = run_here(config, "changes", "bootstrap", "orders")
    assert (said.code, said.json["state"]) == (0, "done")
    lines = read(config)
    rows = [line["after"][0] for line in lines if line.get("op") == "R" and line["table"] == "t"]
    assert rows == [*range(1, 999), 1000, 5000]
    assert fold([line for line in lines if line.get("table") == "t"]) == sorted(server.run("SELECT id FROM d.t"))
    assert run_here(config, "changes", "bootstrap", "orders", "--cancel").json["state"] == "done"


def test_a_table_of_which_changes_are_not_known_is_read_again(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(*(f"CREATE TABLE d.{name} (id INT PRIMARY KEY) ENGINE=InnoDB" for name in "tu"), "INSERT INTO d.t VALUES (1)")
    config = write_settings(tmp_path, server)
    assert run_here(config, "changes", "capture", "orders").json["bootstrapped"] == ["d.t", "d.u"]
    server.run("SET binlog_format = 'STATEMENT'", "INSERT INTO d.t VALUES (2)", "DELETE FROM d.t WHERE id = 1")
    said = run_here(config, "changes", "capture", "orders")
    said.refused(6, "came as a statement")
    assert "--tables NAME --again" in said.json["hint"]
    config.write_text(config.read_text() + 'unsafe = "mark"\n')
    assert run_here(config, "changes", "capture", "orders").code == 0
    run_here(config, "changes", "bootstrap", "orders", "--again").refused(2, "--again")
    run_here(config, "changes", "bootstrap", "orders", "--tables", "d.t", "--again", "--cancel").refused(2, "--again")
    assert run_here(config, "changes", "bootstrap", "orders", "--tables", "d.*").json["state"] == "done"
    assert [line["after"] for line in read(config) if line.get("op") == "R"] == [[1]], "what is read already is not read"
    assert run_here(config, "changes", "bootstrap", "orders", "--tables", "d.t", "--again").json["state"] == "done"
    lines = read(config)
    assert [line["text"] for line in lines if line["k"] == "bootstrap_begin"] == ["d.t", "d.u", "d.t"]
    assert [line["after"] for line in lines if line.get("op") == "R"] == [[1], [2]]
    assert max(line["seq"] for line in lines if line["k"] == "unproved") < lines[-1]["seq"]


def start_follower(config: Path) -> subprocess.Popen[bytes]:
    plugins = str(Path(tidemark.__file__).parents[1])
    path = os.pathsep.join([plugins, *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "tidemark.cli", "--config", str(config), "changes", "capture", "orders", "--follow"]
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.DEVNULL)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < limit, what
        time.sleep(0.1)


def test_a_server_whose_logs_hold_no_transaction_yet(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)", "RESET MASTER")
    config = write_settings(tmp_path, server)
    assert run_here(config, "changes", "bootstrap", "orders").code == 0
    assert run_here(config, "changes", "capture", "orders").json["state"] == "nothing new"
    shown = run_here(config, "changes", "show", "orders")
    assert shown.code == 0 and shown.json["sources"][0]["lag_seconds"] >= 0, shown
    server.run("DELETE FROM d.t WHERE id = 1")
    assert run_here(config, "changes", "capture", "orders").json["rows"] == 1
    assert run_here(config, "changes", "capture", "orders").json["state"] == "nothing new"
    assert fold(read(config)) == [(2,)]


class ShortDump:
    """Events of a server up to before the last transaction, and then none, as of a server that says too soon that it has
    no more."""

    def __init__(self, dump: Dump, end: int) -> None:
        self.dump, self.end = dump, end
        self.close = dump.close

    @property
    def file(self) -> str:
        return self.dump.file

    def events(self) -> Iterator[RawEvent]:
        return (event for event in self.dump.events() if event.end <= self.end)

    blocks = events


def test_rows_do_not_come_before_changes_that_were_not_read(
    tmp_path: Path, server: mariadb.MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, n INT)", "INSERT INTO d.t VALUES (1, 1)")
    [(log, end, *_)] = server.run("SHOW MASTER STATUS")
    server.run("UPDATE d.t SET n = 2")
    [(_, place, *_)] = server.run("SHOW MASTER STATUS")
    with monkeypatch.context() as patched:
        patched.setattr(bootstrap_worlds, "open_dump", lambda *given: ShortDump(open_dump(*given), int(end)))
        with pytest.raises(RetryableError, match=rf"ended at {log}:{end}, before {log}:{place}, .* d\.t"):
            read_in_chunks(tmp_path, server, 100)
    assert not [rows for rows in Reader(Disk(tmp_path)).read_whole() if not rows[1].gtid], "no row was appended"
    lines = read_in_chunks(tmp_path, server, 100, fence=2)
    assert [line["after"] for line in lines if line["k"] == "row"] == [[1, 1], [1, 2], [1, 2]]


def test_a_damaged_record_of_it_is_told(tmp_path: Path) -> None:
    for text, error in (("[]", CorruptionError), ('{"format": 1}', CorruptionError), ('{"format": 9}', UnsupportedError)):
        (tmp_path / "bootstrap.json").write_text(text)
        with pytest.raises(error, match=r"bootstrap\.json"):
            read_state(Disk(tmp_path))


class BootstrapWorld:
    """A table of three chunks, or without a key; the store begins with a log without its rows. Before each chunk the table
    is written to."""

    def __init__(self, root: Path, server: mariadb.MariaDb, key: str) -> None:
        self.root, self.server, self.fence = root, server, 0
        self.login = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
        server.run(
            f"CREATE OR REPLACE TABLE d.k (id INT {key}, n INT) ENGINE=InnoDB",
            "INSERT INTO d.k SELECT seq, seq FROM d.numbers",
            "FLUSH BINARY LOGS",
        )
        self.first = FilePosition(server.logs[-1].name)
        server.run("UPDATE d.k SET n = -1 WHERE id = 8000")

    def open_dump(self, end: Place | None) -> tuple[Any, bool]:
        server = open_server(self.login)
        return open_dump(server, end.position if end else self.first), end is not None

    def live(self, effects: Effects) -> None:
        self.fence += 1
        disk = DyingDisk(self.root, effects, Power())
        job = Job(disk, self.fence, Rules(lambda *_: True), self.open_dump)

        def open_written() -> Server:
            server = open_server(self.login)
            ask = server.ask

            def write_and_ask(question: str, *values: object) -> list[dict[str, Any]]:
                if question.startswith("START"):
                    self.server.run(
                        "UPDATE d.k SET n = n + 1 WHERE id % 1000 = 3",
                        "DELETE FROM d.k WHERE id % 1000 = 5 LIMIT 1",
                        "UPDATE d.k SET id = -id WHERE id > 8100 LIMIT 1",
                    )
                return ask(question, *values)

            server.ask = write_and_ask  # type: ignore[method-assign]
            return server

        if not read_state(disk).tables and not list_requests(disk):
            write_request(disk, Request(["d.k"]), lambda: 1)
        with open_writer(job) as writer:
            bootstrap_tables(job, writer, open_written, Pace(chunk_rows=4096))
            capture_into(job, writer)

    def lose_power(self) -> None:
        """A process dies; the machine does not."""

    def check(self) -> None:
        reader = Reader(Disk(self.root))
        query = Query(reader.first, reader.view.end.seq + 1, lambda *_: True)
        lines = list(make_lines(reader, read_origin(Disk(self.root)), query, Exported()))
        assert fold(lines) == sorted(self.server.run("SELECT id, n FROM d.k"))
        marks = [line["k"] for line in lines if line["k"].startswith("bootstrap")]
        assert marks == ["bootstrap_begin", "bootstrap_end"]
        keys = [line["after"][0] for line in lines if line.get("op") == "R"]
        assert len(set(keys)) == len(keys), "each chunk stands once"
        table = read_state(Disk(self.root)).tables["d.k"]
        assert (table.state, table.rows) == ("done", len(keys))

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_killed_anywhere_it_goes_on(tmp_path: Path, server: mariadb.MariaDb, key: str) -> None:
    server.run("CREATE TABLE d.numbers ENGINE=InnoDB AS SELECT seq FROM d.seq_1_to_9000")
    explored = explore(lambda: BootstrapWorld(tmp_path / "s", server, key))
    assert explored.all_died
    assert any(name.startswith("after publish bootstrap.json") for name in explored.names)
