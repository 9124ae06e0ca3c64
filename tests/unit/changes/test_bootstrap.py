"""Rows that a table has when its capture begins, read from a real MariaDB, are equal to the same rows in its log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.change_worlds import DyingDisk, Power
from tests.commanded import run_here
from tests.crash.explorer import Effects, explore
from tests.dump_worlds import settings_for
from tests.services import mariadb
from tidemark.changes.bootstrap.run import bootstrap_tables
from tidemark.changes.bootstrap.state import read_state, write_state
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Job, Place, capture_into, open_writer
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.dump import open_dump
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.export import Exported, Query, make_lines
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.errors import CorruptionError, UnsupportedError

pytestmark = [pytest.mark.full, pytest.mark.real("mariadb")]

EVERY_TYPE = """CREATE TABLE d.t (id BIGINT UNSIGNED PRIMARY KEY, a TINYINT, b INT UNSIGNED NOT NULL, c DECIMAL(65,30),
 d DECIMAL(9,0) UNSIGNED, e FLOAT, f DOUBLE, g BIT(64), h ENUM('x','it''s','ü'), i SET('p','q'), j DATE, k DATETIME(6),
 l TIMESTAMP(3) NULL, m TIME(2), o BINARY(8), p VARBINARY(20), q CHAR(5), r VARCHAR(40) CHARACTER SET latin1,
 s LONGTEXT CHARACTER SET utf8mb4, u BLOB, v JSON) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
ROWS = (
    "INSERT INTO d.t VALUES (18446744073709551615, -128, 4294967295, -12345678901234567890123456789012345.5, 999999999,"
    " 0.1, 1e-300, b'1111111111111111111111111111111111111111111111111111111111111111', 'it''s', 'p,q', '0000-00-00',"
    " '2026-11-26 01:02:03.000004', '2026-01-01 00:00:00.5', '-838:59:58.25', 'ab', x'00ff00', 'x  ', 'ü%s', '日本', x'00',"
    " '{\"a\": 1}')",
    "INSERT INTO d.t (id, b) VALUES (1, 0)",
    "INSERT INTO d.t (id, b, e, f, h, i, j, s) VALUES (2, 7, 16777217, 1.7976931348623157e308, 'ü', '', '2026-02-00', '')",
)


@pytest.fixture
def server() -> Iterator[mariadb.MariaDb]:
    started = mariadb.start({"sql_mode": ""})
    try:
        started.run("CREATE DATABASE d")
        yield started
    finally:
        started.close()


def write_settings(folder: Path, server: mariadb.MariaDb) -> Path:
    (folder / "password").write_text(mariadb.PASSWORD, encoding="utf-8")
    config = folder / "tidemark.toml"
    config.write_text(
        f'[sources.orders]\nurl = "mariadb://{mariadb.USER}@127.0.0.1:{server.port}"\ntls = "off"\n'
        'store = "store"\npassword_file = "password"\ntables = ["d.*"]\n'
    )
    return config


def read(config: Path) -> list[dict[str, Any]]:
    out = config.parent / "out.jsonl"
    assert run_here(config, "changes", "read", "orders", "--out", str(out)).code == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_rows_that_are_read_are_the_rows_that_are_logged(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(
        EVERY_TYPE, *ROWS, "CREATE TABLE d.unique_alone (a INT NOT NULL UNIQUE)", "INSERT INTO d.unique_alone VALUES (1)"
    )
    config = write_settings(tmp_path, server)
    said = run_here(config, "changes", "bootstrap", "orders")
    assert said.code == 0, said
    assert [(t["name"], t["state"], t["rows"]) for t in said.json["tables"]] == [
        ("d.t", "done", 3),
        ("d.unique_alone", "done", 1),
    ]
    assert [line["table"] for line in read(config) if line["k"] == "schema"] == ["t", "unique_alone"]
    lines = [line for line in read(config) if "unique_alone" not in (line.get("table"), line.get("text", "")[2:])]
    logged = {line["after"][0]: line["after"] for line in lines if line.get("op") == "I"}
    found = {line["after"][0]: line["after"] for line in lines if line.get("op") == "R"}
    assert found == logged
    words = [line["k"] for line in lines if line["k"].startswith("bootstrap")]
    assert words == ["bootstrap_begin", "bootstrap_end"]
    server.run("UPDATE d.t SET a = 5 WHERE id = 1")
    assert run_here(config, "changes", "capture", "orders").json["rows"] == 1
    assert run_here(config, "changes", "bootstrap", "orders").code == 0
    assert [line["k"] for line in read(config)].count("bootstrap_begin") == 2
    assert run_here(config, "changes", "verify", "orders").code == 0


def test_a_table_with_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.u (id INT PRIMARY KEY, u UUID)", "INSERT INTO d.u VALUES (1, UUID())")
    config = write_settings(tmp_path, server)
    run_here(config, "changes", "bootstrap", "orders").refused(6, "d.u", "uuid")


def test_a_capture_of_a_new_source_reads_its_tables(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run(
        "CREATE TABLE d.t (id INT PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1), (2)",
        "CREATE TABLE d.u (id INT PRIMARY KEY, p POINT)",
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


def fold(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A table with a key in its first column, as the changes leave it."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for line in lines:
        if line["k"] == "row":
            if line["before"]:
                rows.pop(line["before"][0], None)
            if line["after"]:
                rows[line["after"][0]] = tuple(line["after"])
    return sorted(rows.values())


def test_a_server_whose_logs_hold_no_transaction_yet(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)", "RESET MASTER")
    config = write_settings(tmp_path, server)
    assert run_here(config, "changes", "bootstrap", "orders").code == 0
    assert run_here(config, "changes", "capture", "orders").json["state"] == "nothing new"
    assert run_here(config, "changes", "show", "orders").json["sources"][0]["lag_seconds"] >= 0
    server.run("DELETE FROM d.t WHERE id = 1")
    assert run_here(config, "changes", "capture", "orders").json["rows"] == 1
    assert run_here(config, "changes", "capture", "orders").json["state"] == "nothing new"
    assert fold(read(config)) == [(2,)]


def test_a_damaged_record_of_it_is_told(tmp_path: Path) -> None:
    for text, error in (("[]", CorruptionError), ('{"format": 1}', CorruptionError), ('{"format": 9}', UnsupportedError)):
        (tmp_path / "bootstrap.json").write_text(text)
        with pytest.raises(error, match=r"bootstrap\.json"):
            read_state(Disk(tmp_path))


class BootstrapWorld:
    """A table of three chunks; the store begins with a log without its rows. Before each chunk the table is written to."""

    def __init__(self, root: Path, server: mariadb.MariaDb) -> None:
        self.root, self.server, self.fence = root, server, 0
        self.login = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
        server.run(
            "CREATE OR REPLACE TABLE d.k (id INT PRIMARY KEY, n INT) ENGINE=InnoDB",
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

        write_state(disk, read_state(disk).with_waiting(["d.k"]))
        with open_writer(job) as writer:
            bootstrap_tables(job, writer, open_written)
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
        assert sorted(set(keys)) == keys, "each chunk stands once"
        table = read_state(Disk(self.root)).tables["d.k"]
        assert (table.state, table.rows) == ("done", len(keys))

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def test_killed_anywhere_it_goes_on(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.numbers ENGINE=InnoDB AS SELECT seq FROM d.seq_1_to_9000")
    explored = explore(lambda: BootstrapWorld(tmp_path / "s", server))
    assert explored.all_died
    assert any(name.startswith("after publish bootstrap.json") for name in explored.names)
