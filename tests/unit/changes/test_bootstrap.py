"""Rows that a table has when its capture begins, read from a real MariaDB, are equal to the same rows in its log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark
from tests.change_worlds import DyingDisk, Power
from tests.commanded import run_here
from tests.crash.explorer import Effects, explore
from tests.dump_worlds import settings_for
from tests.services import mariadb
from tidemark.changes.bootstrap.requests import Request, list_requests, write_request
from tidemark.changes.bootstrap.run import Pace, bootstrap_tables
from tidemark.changes.bootstrap.state import Table, read_state, write_state
from tidemark.changes.bootstrap.tables import list_tables, quote_name
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
 l TIMESTAMP(3) NULL, m TIME(2), o BINARY(8), p VARBINARY(20), q CHAR(5),
 r VARCHAR(40) CHARACTER SET latin1, s LONGTEXT CHARACTER SET utf8mb4, u BLOB, v JSON,
 w YEAR, x UUID, y INET6, z INET4, aa POINT, ab GEOMETRY, ac LINESTRING NOT NULL, ad
 VARCHAR(10) CHARACTER SET sjis, ae CHAR(4) CHARACTER SET ucs2, af TEXT CHARACTER SET utf16, ag VARCHAR(5) CHARACTER
 SET dec8, ah CHAR(5) CHARACTER SET swe7, ai TEXT CHARACTER SET keybcs2, aj ENUM('a','ж') CHARACTER SET cp1251, ak
 VARCHAR(100) COMPRESSED, al BLOB COMPRESSED, am INT AS (a + 1) VIRTUAL, an INT AS (a + 2) STORED, ao INT INVISIBLE, ap
 INT(7) ZEROFILL, aq DECIMAL(8,2) ZEROFILL, ar VARCHAR(9) COLLATE uca1400_ai_ci, at VARBINARY(30) COMPRESSED)
 ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
LINE = "ac = ST_GeomFromText('LINESTRING(0 0,1 1)')"
ROWS = (
    f"""INSERT INTO d.t SET id = 18446744073709551615, a = -128, b = 4294967295, c = -12345678901234567890123456789012345.5,
 d = 999999999, e = 0.1, f = 1e-300, g = b'{"1" * 64}', h = 'it''s', i = 'p,q', j = '0000-00-00',
 k = '2026-11-26 01:02:03.000004', l = '2026-01-01 00:00:00.5', m = '-838:59:58.25', o = 'ab', p = x'00ff00', q = 'x  ',
 r = 'ü%s', s = '日本', u = x'00', v = '{{"a": 1}}', w = 2155, x = '123e4567-e89b-12d3-a456-426655440000',
 y = '::ffff:1.2.3.4', z = '1.2.3.4',
 aa = POINT(1, 2), ab = ST_GeomFromText('LINESTRING(0 0,1 1)', 4326), {LINE}, ad = '日',
 ae = 'äb', af = 'жß',
 ag = 'ä', ah = 'a', ai = 'č', aj = 'ж', ak = REPEAT('é', 60), al = REPEAT('y', 60), ao = 7, ap = 5, aq = 5.5, ar = 'é',
 at = 'abc'""",
    f"INSERT INTO d.t SET id = 1, b = 0, {LINE}",
    f"INSERT INTO d.t SET id = 2, b = 7, e = 16777217, f = 1.7976931348623157e308, h = 'ü', i = '', j = '2026-02-00',"
    f" s = '', w = 0, x = '01234567-89ab-7def-8123-456789abcdef', ad = x'fd', {LINE}",
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
    server.run("CREATE TABLE d.u (id INT PRIMARY KEY, u YEAR(2))", "INSERT INTO d.u VALUES (1, 99)")
    config = write_settings(tmp_path, server)
    run_here(config, "changes", "bootstrap", "orders").refused(6, "d.u", "year(2)")


NUMBERS = "FROM seq_0_to_99"
KEYS = {
    "two": (
        "a VARCHAR(9) COLLATE latin1_german1_ci, b INT, PRIMARY KEY (a, b)",
        f"SELECT CONCAT('k', seq % 3), seq {NUMBERS}",
    ),
    "three": (
        "a DATE, b DECIMAL(5,2), c TIME(3), PRIMARY KEY (a, b, c)",
        f"SELECT '2026-01-01' + INTERVAL seq % 2 DAY, seq % 5 - 2.5, SEC_TO_TIME(seq - 50.125) {NUMBERS}",
    ),
    "no_case": (
        "a VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY",
        "VALUES ('A'), ('b'), ('C'), ('d'), ('É'), ('ß'), (''), (' x'), ('Ω'), ('日')",
    ),
    "no_pad": ("a VARCHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY", "VALUES ('a'), ('a '), ('a  '), ('a\t'), ('A'), ('')"),
    "pad": ("a CHAR(9) COLLATE utf8mb4_bin PRIMARY KEY", "VALUES ('a'), ('a\t'), ('a\t\t'), ('a!'), ('b'), ('c')"),
    "foreign": ("a VARCHAR(9) CHARACTER SET sjis PRIMARY KEY", "VALUES ('日'), ('本'), ('ア'), ('ｱ'), ('a'), ('b')"),
    "bytes": ("a VARBINARY(9) PRIMARY KEY", "VALUES (''), (x'00'), (x'0000'), (x'ff'), ('%s'), ('a'), ('\\'')"),
    "fixed": ("a BINARY(3) PRIMARY KEY", "VALUES (''), ('a'), ('ab'), (x'ff'), ('b'), ('c')"),
    "uuid": ("a UUID PRIMARY KEY, b INET6", f"SELECT UUID(), '::1' {NUMBERS}"),
    "bits": ("a BIT(20), b YEAR, PRIMARY KEY (a, b)", f"SELECT seq % 9, 1990 + seq {NUMBERS}"),
    "time": ("a TIMESTAMP(6) PRIMARY KEY", f"SELECT '2026-10-25 00:59:50' + INTERVAL seq SECOND {NUMBERS}"),
    "down": ("a INT, b INT, PRIMARY KEY (a DESC, b)", f"SELECT CAST(seq AS SIGNED) % 7 - 3, seq {NUMBERS}"),
    "unique_alone": (
        "a BIGINT UNSIGNED NOT NULL, b INT, UNIQUE (b), UNIQUE (a)",
        f"SELECT 18446744073709551615 - seq, NULL {NUMBERS}",
    ),
    "ignored": ("a INT NOT NULL, b INT NOT NULL, UNIQUE y (a), UNIQUE x (b) IGNORED", f"SELECT seq, -seq {NUMBERS}"),
    "nulls": ("a INT, UNIQUE (a)", "VALUES (NULL), (NULL), (1)"),
    "label": ("a ENUM('z','a') PRIMARY KEY", "VALUES ('a'), ('z')"),
    "prefix": ("a TEXT, PRIMARY KEY (a(3))", "VALUES ('abc'), ('abd'), ('b')"),
    "none": ("a INT, b VARCHAR(9)", f"SELECT seq % 3, 'x' {NUMBERS}"),
    "empty": ("a INT PRIMARY KEY", "SELECT 1 FROM seq_0_to_99 WHERE FALSE"),
    "o`dd.ü": ('`k``"e%s` INT PRIMARY KEY, `b``a` INT', f"SELECT seq, 1 {NUMBERS}"),
}
WHOLE = {"nulls", "label", "prefix", "none"}


def read_in_chunks(
    root: Path, server: mariadb.MariaDb, chunk_rows: int, fence: int = 1, before: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Bootstrap every table of `d`, and return the lines of the store."""
    login = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
    first = FilePosition(server.logs[-1].name)

    def open_logs(end: Place | None) -> tuple[Any, bool]:
        return open_dump(open_server(login), end.position if end else first), end is not None

    job = Job(Disk(root), fence, Rules(lambda *_: True), open_logs)

    def open_asked() -> Server:
        asked = open_server(login)
        ask = asked.ask

        def ask_it(question: str, *values: object) -> list[dict[str, Any]]:
            before(question)
            return ask(question, *values)

        asked.ask = ask_it  # type: ignore[method-assign]
        return asked

    with open_server(login) as asked:
        write_state(job.disk, read_state(job.disk).with_waiting(list_tables(asked)))
    with open_writer(job) as writer:
        bootstrap_tables(job, writer, open_asked, Pace(chunk_rows=chunk_rows))
        capture_into(job, writer)
    reader = Reader(job.disk)
    query = Query(reader.first, reader.view.end.seq + 1, lambda *_: True)
    return list(make_lines(reader, read_origin(job.disk), query, Exported()))


def test_each_row_is_read_once_whatever_the_key_is(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("SET time_zone = '+00:00'", "USE d")
    for table, (columns, rows) in KEYS.items():
        name = quote_name(table)
        server.run(f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4", f"INSERT INTO {name} {rows}")
    server.run("FLUSH BINARY LOGS", f"UPDATE {next(iter(KEYS))} SET b = b + 1000")
    chunked = read_in_chunks(tmp_path / "chunks", server, 3)
    whole = read_in_chunks(tmp_path / "whole", server, 1000)
    tables = {str(line.get("table")): line for line in chunked if line["k"] == "row"}
    assert len(tables) == len(KEYS) - 1, "one is empty"
    for table in tables:
        found, expected = (
            [json.dumps(line["after"]) for line in lines if line.get("op") == "R" and line["table"] == table]
            for lines in (chunked, whole)
        )
        count = server.run(f"SELECT COUNT(*) FROM {quote_name(table)}")[0][0]
        assert len(found) == len(expected) == count, table
        assert found == expected, table
        assert table in WHOLE or len(set(found)) == count
    chunks = {name: table.chunks for name, table in read_state(Disk(tmp_path / "chunks")).tables.items()}
    assert {name for name, number in chunks.items() if number == 1} == {f"d.{name}" for name in WHOLE} | {"d.empty"}


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
    server.run("CREATE USER some@'127.0.0.1'", "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO some@'127.0.0.1'")
    server.run("GRANT SELECT ON d.open TO some@'127.0.0.1'", "GRANT INSERT ON d.closed TO some@'127.0.0.1'")
    config = write_settings(tmp_path, server)
    config.write_text(config.read_text().replace(f"{mariadb.USER}@", "some@").replace('password_file = "password"\n', ""))
    run_here(config, "changes", "capture", "orders").refused(6, "closed")
    assert {name: table.state for name, table in read_state(Disk(tmp_path / "store")).tables.items()} == {
        "d.closed": "refused",
        "d.open": "done",
    }


def test_a_row_that_takes_many_packets(tmp_path: Path, server: mariadb.MariaDb) -> None:
    server.run("CREATE TABLE d.t (a LONGBLOB, b INT) ENGINE=InnoDB", "INSERT INTO d.t VALUES ('x', 1), (NULL, 2)")
    server.run("INSERT INTO d.t VALUES (REPEAT('y', 16777216 + 16777000), 3), (REPEAT('z', 70000), 4)")
    lines = read_in_chunks(tmp_path, server, 4)
    found = [
        (line["after"][0] and len(line["after"][0]["hex"]) // 2, line["after"][1]) for line in lines if line.get("op") == "R"
    ]
    assert found == [(1, 1), (None, 2), (16777216 + 16777000, 3), (70000, 4)]


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


def fold(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A table with a key in its first column, as the changes leave it. A known row is as the next line of it says."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for line in lines:
        if line["k"] == "row":
            before, after = (tuple(line[side] or ()) for side in ("before", "after"))
            if before:
                assert rows.pop(before[0], before) == before, line
            if after:
                assert line["op"] == "R" or after[0] not in rows, line
                assert rows.setdefault(after[0], after) == after, line
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
