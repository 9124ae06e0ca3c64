"""Rows that are read of a table are those that its log gives, each once, whatever its types and its key are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import OperationalError

from tests.bootstrap_worlds import fold, read, read_in_chunks, write_settings
from tests.commanded import run_here
from tests.dump_worlds import MARIADB, MYSQL_SERVER, NEWEST_MARIADB, REAL_SERVERS, start_server
from tests.services.mariadb import MariaDb
from tests.services.mysql import MySql
from tidemark.changes.bootstrap.between import DOUBTS
from tidemark.changes.bootstrap.chunks import Tables
from tidemark.changes.bootstrap.state import read_state
from tidemark.changes.bootstrap.tables import quote_name
from tidemark.changes.store.disk import Disk

pytestmark = pytest.mark.full

MARIADBS = [MARIADB, NEWEST_MARIADB]

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


EVERY_TYPE_OF_MYSQL = """CREATE TABLE d.t (id BIGINT UNSIGNED PRIMARY KEY, a TINYINT, b INT UNSIGNED NOT NULL,
 c DECIMAL(65,30), d DECIMAL(9,0) UNSIGNED,
 e FLOAT, f DOUBLE, g BIT(64), h ENUM('x','it''s','ü'), i SET('p','q'), j DATE, k DATETIME(6),
 l TIMESTAMP(3) NULL, m TIME(2), o BINARY(8), p VARBINARY(20), q CHAR(5),
 r VARCHAR(40) CHARACTER SET latin1, s LONGTEXT CHARACTER SET utf8mb4, u BLOB, v JSON,
 w YEAR, aa POINT, ab GEOMETRY, ac LINESTRING NOT NULL, ad
 VARCHAR(10) CHARACTER SET sjis, ae CHAR(4) CHARACTER SET ucs2, af TEXT CHARACTER SET utf16, ag VARCHAR(5) CHARACTER
 SET dec8, ah CHAR(5) CHARACTER SET swe7, ai TEXT CHARACTER SET keybcs2, aj ENUM('a','ж') CHARACTER SET cp1251,
 am INT AS (a + 1) VIRTUAL, an INT AS (a + 2) STORED, ao INT INVISIBLE, ap INT(7) ZEROFILL, aq DECIMAL(8,2) ZEROFILL,
 ar VARCHAR(9) COLLATE utf8mb4_0900_ai_ci, at VECTOR(3), au GEOMETRYCOLLECTION, av CHAR(9) CHARACTER SET gb18030)
 ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
ROWS_OF_MYSQL = (
    f"""INSERT INTO d.t SET id = 18446744073709551615, a = -128, b = 4294967295, c = -12345678901234567890123456789012345.5,
 d = 999999999, e = 0.1, f = 1e-300, g = b'{"1" * 64}', h = 'it''s', i = 'p,q', j = '0000-00-00',
 k = '2026-11-26 01:02:03.000004', l = '2026-01-01 00:00:00.5', m = '-838:59:58.25', o = 'ab', p = x'00ff00', q = 'x  ',
 r = 'ü%s', s = '日本', u = x'00', w = 2155, aa = POINT(1, 2), ab = ST_GeomFromText('LINESTRING(0 0,1 1)', 4326), {LINE},
 ad = '日', ae = 'äb', af = 'жß', ag = 'ä', ah = 'a', ai = 'č', aj = 'ж', ao = 7, ap = 5, aq = 5.5, ar = 'é',
 at = TO_VECTOR('[1, -2.5, 3e38]'), au = ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))'), av = '中',
 v = '{{"ä": [1, 2.50, -0.0, 1e30, 18446744073709551615, true, null, "q\\\\"\\\\\\\\\\\\u0001"], "b": {{}}, "": ""}}\'""",
    f"INSERT INTO d.t SET id = 1, b = 0, {LINE},"
    " v = JSON_OBJECT('t', TIMESTAMP'2026-11-26 01:02:03.5', 'd', 1.50, 'b', x'00')",
    f"INSERT INTO d.t SET id = 2, b = 7, e = 16777217, f = 1.7976931348623157e308, h = 'ü', i = '', j = '2026-02-00',"
    f" s = '', w = 0, v = 'null', {LINE}",
)


@pytest.fixture(scope="module", params=REAL_SERVERS)
def shared_server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param, {"sql_mode": ""})) as started:
        yield started


@pytest.fixture
def server(shared_server: MariaDb) -> MariaDb:
    """One without tables and without logs of before."""
    shared_server.run("DROP DATABASE IF EXISTS d", "SET time_zone = DEFAULT")
    shared_server.reset()
    shared_server.run("CREATE DATABASE d")
    return shared_server


def test_rows_that_are_read_are_the_rows_that_are_logged(tmp_path: Path, server: MariaDb) -> None:
    definition, rows = (EVERY_TYPE_OF_MYSQL, ROWS_OF_MYSQL) if isinstance(server, MySql) else (EVERY_TYPE, ROWS)
    server.run(
        definition, *rows, "CREATE TABLE d.unique_alone (a INT NOT NULL UNIQUE)", "INSERT INTO d.unique_alone VALUES (1)"
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


@pytest.mark.parametrize("shared_server", [MARIADB], indirect=True)
def test_a_table_with_a_type_that_is_not_read_is_refused_by_name(tmp_path: Path, server: MariaDb) -> None:
    server.run("CREATE TABLE d.u (id INT PRIMARY KEY, u YEAR(2))", "INSERT INTO d.u VALUES (1, 99)")
    config = write_settings(tmp_path, server)
    run_here(config, "changes", "bootstrap", "orders").refused(6, "d.u", "year(2)")


@pytest.mark.parametrize("shared_server", [MARIADB], indirect=True)
def test_a_log_has_the_whole_year_of_a_column_with_two_digits(tmp_path: Path, server: MariaDb) -> None:
    server.run("FLUSH BINARY LOGS", "CREATE TABLE d.u (id INT PRIMARY KEY, u YEAR(2))")
    server.run("INSERT INTO d.u VALUES (1, 99), (2, 0), (3, 70), (4, 2155), (5, 69), (6, NULL)")
    config = write_settings(tmp_path, server)
    assert run_here(config, "changes", "capture", "orders", "--from", f"{server.logs[-1].name}:4").code == 0
    years = [line["after"][1] for line in read(config) if line["k"] == "row"]
    assert years == [1999, 2000, 1970, 2155, 2069, None]


def test_a_table_that_gets_its_name_behind_the_snapshot_is_read_again(
    tmp_path: Path, server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rows in (("a", "(1)"), ("b", "(1), (2)")):
        server.run(f"CREATE TABLE d.{name} (id INT PRIMARY KEY)", f"INSERT INTO d.{name} VALUES {rows}")
    server.run("FLUSH BINARY LOGS")
    config, look_at = write_settings(tmp_path, server), Tables.look_at
    renamed: list[Any] = []

    def rename_and_look(tables: Tables, name: str) -> Any:
        if name == "d.b" and not renamed:
            renamed.append(server.run("RENAME TABLE d.a TO d.c, d.b TO d.a, d.c TO d.b"))
        return look_at(tables, name)

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "look_at", rename_and_look)
        assert run_here(config, "changes", "capture", "orders").code == 0
    assert run_here(config, "changes", "capture", "orders").code == 0
    lines = read(config)
    for name, there in (("a", [[1], [2]]), ("b", [[1]])):
        begin = [line["seq"] for line in lines if line["k"] == "bootstrap_begin" and line["text"] == f"d.{name}"][-1]
        found = [line["after"] for line in lines if line.get("op") == "R" and line["table"] == name and line["seq"] >= begin]
        assert found == there, name
        assert begin > [line["seq"] for line in lines if line["k"] == "ddl"][-1], name


@pytest.mark.parametrize("shared_server", [MARIADB], indirect=True)
def test_a_datetime_whose_digits_the_log_does_not_tell_is_refused(tmp_path: Path, server: MariaDb) -> None:
    server.run("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        server.run("CREATE TABLE d.h (id INT PRIMARY KEY, a DATETIME(6), b DATETIME)", "FLUSH BINARY LOGS")
    finally:
        server.run("SET GLOBAL mysql56_temporal_format = ON")
    server.run("INSERT INTO d.h VALUES (1, NULL, '9999-12-31 23:59:59'), (2, '2026-11-28 12:34:56.654321', '2026-00-31')")
    config = write_settings(tmp_path, server)
    start = f"{server.logs[-1].name}:4"
    run_here(config, "changes", "capture", "orders", "--from", start).refused(7, "DATETIME")
    server.run("DELETE FROM d.h WHERE id = 2", "ALTER TABLE d.h FORCE", "FLUSH BINARY LOGS")
    server.run("INSERT INTO d.h VALUES (2, '2026-11-28 12:34:56.654321', '2026-00-31')")
    start = f"{server.logs[-1].name}:4"
    assert run_here(config, "changes", "capture", "orders", "--from", start).code == 0
    rows = [line["after"] for line in read(config) if line["k"] == "row"]
    assert rows == [[2, "2026-11-28 12:34:56.654321", "2026-00-31 00:00:00"]]


NUMBERS = "FROM numbers"
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
    "no_pad_char": ("a CHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY", "VALUES ('a'), ('a\t'), ('a\t\t'), ('b'), ('b\t')"),
    "thai": (
        "a CHAR(9) CHARACTER SET tis620 PRIMARY KEY",
        "VALUES ('โ่'), ('โ้'), ('โ๊'), ('โ1aโ'), ('โ1กำ๑'), ('โA'), ('โ๊ข๊')",
    ),
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
    "empty": ("a INT PRIMARY KEY", f"SELECT 1 {NUMBERS} WHERE FALSE"),
    "o`dd.ü": ('`k``"e%s` INT PRIMARY KEY, `b``a` INT', f"SELECT seq, 1 {NUMBERS}"),
}
WHOLE = {"no_pad_char", "thai", "nulls", "label", "prefix", "none"}
AT_MYSQL = {
    "no_pad": ("a VARCHAR(9) COLLATE utf8mb4_0900_bin PRIMARY KEY", KEYS["no_pad"][1]),
    "no_pad_char": ("a INT, b CHAR(9) CHARACTER SET tis620, PRIMARY KEY (a, b)", "VALUES (1, 'โ๊'), (1, 'โA'), (1, 'โ1aโ')"),
    "no_case": ("a VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY", KEYS["no_case"][1]),
    "uuid": ("a BINARY(16) PRIMARY KEY, b INT", f"SELECT UUID_TO_BIN(UUID()), 1 {NUMBERS}"),
    "ignored": ("a INT NOT NULL, b INT NOT NULL, UNIQUE y (a), UNIQUE x (b) INVISIBLE", KEYS["ignored"][1]),
}


def test_each_row_is_read_once_whatever_the_key_is(tmp_path: Path, server: MariaDb) -> None:
    server.run("SET time_zone = '+00:00'", "USE d")
    numbers = f"FROM (SELECT seq - 1 AS seq FROM {server.numbers(100)}) AS n"
    for table, (columns, rows) in (KEYS | (AT_MYSQL if isinstance(server, MySql) else {})).items():
        name = quote_name(table)
        server.run(
            f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
            f"INSERT INTO {name} {rows.replace(NUMBERS, numbers)}",
        )
    server.run("FLUSH BINARY LOGS", f"UPDATE {next(iter(KEYS))} SET b = b + 1000")
    chunked = read_in_chunks(tmp_path / "chunks", server, 3)
    whole = read_in_chunks(tmp_path / "whole", server, 1000)
    for folder in ("chunks", "whole"):
        states = read_state(Disk(tmp_path / folder)).tables
        assert {name: (one.state, one.why) for name, one in states.items()} == dict.fromkeys(states, ("done", ""))
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


def test_a_server_that_is_set_to_give_few_rows_of_an_answer_gives_all(tmp_path: Path, server: MariaDb) -> None:
    server.run("USE d", "CREATE TABLE d.none (a INT)", f"INSERT INTO d.none SELECT seq FROM {server.numbers(30)}")
    server.run(*(f"CREATE TABLE d.t{number} (a INT PRIMARY KEY)" for number in range(9)), "SET GLOBAL sql_select_limit = 7")
    try:
        server.run("INSERT INTO d.t8 VALUES (1)", "FLUSH BINARY LOGS")
        config = write_settings(tmp_path, server)
        assert run_here(config, "changes", "capture", "orders").code == 0
        rows = [line["table"] for line in read(config) if line.get("op") == "R"]
        assert (rows.count("none"), rows.count("t8")) == (30, 1)
        assert run_here(config, "changes", "verify", "orders").code == 0
    finally:
        server.run("SET GLOBAL sql_select_limit = DEFAULT")


def test_a_server_that_is_set_to_end_long_answers_gives_all(tmp_path: Path, server: MariaDb) -> None:
    server.run("USE d", "CREATE TABLE d.none (a INT)", f"INSERT INTO d.none SELECT seq FROM {server.numbers(200_000)}")
    name, least = ("max_execution_time", "10") if isinstance(server, MySql) else ("max_statement_time", "0.01")
    server.run("FLUSH BINARY LOGS", f"SET GLOBAL {name} = {least}")
    try:
        said = run_here(write_settings(tmp_path, server), "changes", "capture", "orders")
    finally:
        server.run(f"SET GLOBAL {name} = 0")
    assert (said.code, said.json.get("rows")) == (0, 200_000), said


@pytest.mark.parametrize("kind", ["RELEASE", "CHAIN"])
def test_a_server_that_is_set_to_do_more_at_a_commit_gives_all(tmp_path: Path, server: MariaDb, kind: str) -> None:
    """It ends a login there, or begins the next transaction, in which a table looks as it did."""
    server.run(
        "USE d", "CREATE TABLE d.t (id INT PRIMARY KEY, a INT)", f"INSERT INTO d.t SELECT seq, 0 FROM {server.numbers(9)}"
    )
    server.run("FLUSH BINARY LOGS", f"SET GLOBAL completion_type = '{kind}'")
    try:
        lines = read_in_chunks(tmp_path / "chunks", server, 4)
        config = write_settings(tmp_path, server)
        assert run_here(config, "changes", "capture", "orders").code == 0
        server.run("UPDATE d.t SET a = 1 WHERE id = 3")
        assert run_here(config, "changes", "capture", "orders").code == 0
    finally:
        server.run("SET GLOBAL completion_type = DEFAULT")
    assert fold(lines) == [(number, 0) for number in range(1, 10)]
    assert fold(read(config)) == sorted(server.run("SELECT * FROM d.t"))


@pytest.mark.parametrize("shared_server", [MYSQL_SERVER], indirect=True)
def test_a_key_that_the_server_made_and_hides_is_read_as_it_is_logged(tmp_path: Path, server: MariaDb) -> None:
    name = "show_gipk_in_create_table_and_information_schema"
    server.run("SET sql_generate_invisible_primary_key = ON", "CREATE TABLE d.t (a INT)", "INSERT INTO d.t VALUES (5), (5)")
    server.run("SET sql_generate_invisible_primary_key = DEFAULT", f"SET GLOBAL {name} = OFF", "FLUSH BINARY LOGS")
    try:
        config = write_settings(tmp_path, server)
        assert run_here(config, "changes", "capture", "orders").code == 0
        server.run("UPDATE d.t SET a = 6 LIMIT 1")
        assert run_here(config, "changes", "capture", "orders").code == 0
        assert fold(read(config)) == [(1, 6), (2, 5)]
    finally:
        server.run(f"SET GLOBAL {name} = DEFAULT")


@pytest.mark.parametrize("shared_server", MARIADBS, indirect=True)
def test_hashes_that_a_server_logs_of_unique_texts_are_no_columns(tmp_path: Path, server: MariaDb) -> None:
    server.run("CREATE TABLE d.keyed (id INT PRIMARY KEY, a TEXT, b BLOB, UNIQUE (a), UNIQUE (b))")
    server.run("CREATE TABLE d.loose (a TEXT NOT NULL UNIQUE, n INT)", "INSERT INTO d.loose VALUES ('x', 1), ('y', 2)")
    server.run("INSERT INTO d.keyed VALUES (1, 'x', 'y'), (2, NULL, 'z')", "FLUSH BINARY LOGS")
    config = write_settings(tmp_path, server)
    assert run_here(config, "changes", "capture", "orders").code == 0
    server.run("UPDATE d.keyed SET a = 'ä', b = NULL WHERE id = 1", "DELETE FROM d.loose WHERE n = 1")
    server.run("ALTER TABLE d.loose ADD COLUMN c INT DEFAULT 7", "UPDATE d.loose SET n = 3")
    for image, number in (("MINIMAL", 4), ("NOBLOB", 5)):
        server.run(f"SET binlog_row_image = {image}", f"UPDATE d.keyed SET id = {number}, a = 'b{number}' WHERE id = 2")
        server.run(f"UPDATE d.keyed SET id = 2 WHERE id = {number}")
    server.run("SET binlog_row_image = FULL")
    assert run_here(config, "changes", "capture", "orders").code == 0
    lines = [line for line in read(config) if line["k"] == "row"]
    left_out = {"absent": True}
    assert [(line["table"], line["before"], line["after"]) for line in lines] == [
        ("keyed", None, [1, "x", {"hex": "79"}]),
        ("keyed", None, [2, None, {"hex": "7a"}]),
        ("loose", None, ["x", 1]),
        ("loose", None, ["y", 2]),
        ("keyed", [1, "x", {"hex": "79"}], [1, "ä", None]),
        ("loose", ["x", 1], None),
        ("loose", ["y", 2, 7], ["y", 3, 7]),
        ("keyed", [2, left_out, left_out], [4, "b4", left_out]),
        ("keyed", [4, left_out, left_out], [2, left_out, left_out]),
        ("keyed", [2, left_out, left_out], [5, "b5", left_out]),
        ("keyed", [5, left_out, left_out], [2, left_out, left_out]),
    ]
    assert run_here(config, "changes", "verify", "orders", "--deep").code == 0


def test_a_row_that_takes_many_packets(tmp_path: Path, server: MariaDb) -> None:
    server.run("CREATE TABLE d.t (a LONGBLOB, b INT) ENGINE=InnoDB", "INSERT INTO d.t VALUES ('x', 1), (NULL, 2)")
    server.run("INSERT INTO d.t VALUES (REPEAT('y', 16777216 + 16777000), 3), (REPEAT('z', 70000), 4)")
    lines = read_in_chunks(tmp_path, server, 4)
    found = [
        (line["after"][0] and len(line["after"][0]["hex"]) // 2, line["after"][1]) for line in lines if line.get("op") == "R"
    ]
    assert found == [(1, 1), (None, 2), (16777216 + 16777000, 3), (70000, 4)]


@pytest.mark.parametrize("shared_server", [MYSQL_SERVER], indirect=True)
def test_keys_that_change_while_a_snapshot_is_opened_are_as_the_changes_say(tmp_path: Path, server: MariaDb) -> None:
    """MySQL does not tell where a snapshot stands: before it and behind it something changes, each time."""
    server.run("CREATE TABLE d.plain (id INT)", "INSERT INTO d.plain VALUES (1)")
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, n INT)", f"INSERT INTO d.t SELECT seq, 0 FROM {server.numbers(12)}")
    changes = iter(
        [
            *("INSERT INTO d.plain VALUES (2)", "DO 1"),  # without a key it is read again
            *("DO 1", "DO 1"),
            *("UPDATE d.t SET n = 1 WHERE id = 1", "UPDATE d.t SET n = 7, id = -id WHERE id IN (2, 3)"),
            *("ALTER TABLE d.t COMMENT = 'read again'", "DELETE FROM d.t WHERE id = 5"),
            *("INSERT INTO d.t VALUES (100, 1)", "DELETE FROM d.t WHERE id = 6"),
        ]
    )

    def change(question: str) -> None:
        if question.startswith(("START TRANSACTION", "SHOW BINARY LOG STATUS")):
            server.run(next(changes, "DO 1"))

    lines = read_in_chunks(tmp_path, server, 4, before=change)
    rows = [(line["table"], line["after"][0]) for line in lines if line.get("op") == "R"]
    first = (4, 1, -2, -3)  # who begins anew with the first chunk has none of the changes before it
    assert rows == [("plain", 1), ("plain", 2), *(("t", number) for number in (*first, 7, 8, 9, 10, 11, 12, 100))]
    of_table = [line for line in lines if "t" in (line.get("table"), line.get("text", "")[2:])]
    assert fold(of_table) == fold_behind_begin(of_table) == sorted(server.run("SELECT * FROM d.t"))
    assert read_state(Disk(tmp_path)).tables["d.t"].rows == 11


def fold_behind_begin(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A table as one has it who forgets what was before its reading began."""
    [begin] = [number for number, line in enumerate(lines) if line["k"] == "bootstrap_begin"]
    return fold(lines[begin:])


@pytest.mark.parametrize("shared_server", MARIADBS, indirect=True)
@pytest.mark.parametrize("is_before", [True, False], ids=["prepared before", "begun behind"])
def test_an_xa_transaction_that_is_logged_before_its_engine_has_it(tmp_path: Path, server: MariaDb, is_before: bool) -> None:
    """The place of a MariaDB's snapshot is behind XA COMMIT, which the engine does only then: it is told as later here."""
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
    server.run("INSERT INTO d.t SELECT seq, 0 FROM d.seq_1_to_9")
    changes = ["UPDATE d.t SET n = 1 WHERE id = 1", "DELETE FROM d.t WHERE id = 2", "INSERT INTO d.t VALUES (-5, 1)"]
    prepare = ["XA START 'x', 'y', 7", *changes, "XA END 'x', 'y', 7", "XA PREPARE 'x', 'y', 7"]
    if is_before:
        server.run(*prepare)
    told: list[dict[str, Any]] = []

    def answer(question: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not question.startswith("SHOW STATUS") or told:
            return rows
        server.run(*([] if is_before else prepare), "XA COMMIT 'x', 'y', 7")
        places = server.run("SHOW GLOBAL STATUS LIKE 'binlog_snapshot_%'")
        told.extend({"name": name, "value": value} for name, value in places)
        server.run("UPDATE d.t SET n = n + 2 WHERE id IN (1, 3)")
        return told

    lines = read_in_chunks(tmp_path, server, 4, answer=answer)
    assert [line["k"] for line in lines].count("xa_commit") == 1
    of_table = [line for line in lines if "t" in (line.get("table"), line.get("text", "")[2:])]
    first = next(line for line in of_table if line.get("op") == "R")
    assert first["seq"] > max(line["seq"] for line in lines if line["k"] == "xa_commit"), "the chunk is behind it"
    assert fold(of_table) == fold_behind_begin(of_table) == sorted(server.run("SELECT * FROM d.t"))


@pytest.mark.parametrize("shared_server", [MARIADB], indirect=True)
@pytest.mark.parametrize("seen", [3, 1000], ids=["it ends", "it stays"])
def test_an_xa_transaction_of_which_the_store_has_nothing(tmp_path: Path, server: MariaDb, seen: int) -> None:
    """It may be one that is logged, and that the engine does not have yet: the chunk is read again until it is gone, or has
    been there so long that nobody is about to commit it."""
    server.run("CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t SELECT seq FROM d.seq_1_to_9")
    server.run("CREATE TABLE d.u (id INT PRIMARY KEY)", "INSERT INTO d.u VALUES (1)")
    asked: list[str] = []

    def answer(question: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        asked.append(question)
        if question == "XA RECOVER" and asked.count(question) <= seen:
            return [{"formatID": 1, "gtrid_length": 1, "bqual_length": 0, "data": b"z"}]
        return rows

    lines = read_in_chunks(tmp_path, server, 100, answer=answer)
    tries = asked.count("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    assert tries == 2 + min(seen, DOUBTS), "a chunk a table, and those in doubt"
    assert [line["after"][0] for line in lines if line.get("op") == "R"] == [*range(1, 10), 1]


@pytest.mark.real("mysql")
def test_a_mysql_without_gtids_has_its_tables_locked(tmp_path: Path) -> None:
    locked: list[str] = []
    with closing(start_server("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})) as server:
        server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, n INT)", "SET lock_wait_timeout = 1")
        server.run(f"INSERT INTO d.t SELECT seq, 0 FROM {server.numbers(9)}")

        def change(question: str) -> None:
            if question.startswith("SHOW BINARY LOG STATUS") and not locked:
                with pytest.raises(OperationalError, match="Lock wait timeout") as refused:
                    server.run("UPDATE d.t SET n = 1 WHERE id = 9")
                locked.append(str(refused.value))
            elif question.startswith("LOCK TABLES") and locked:
                server.run("UPDATE d.t SET n = n + 1")

        lines = read_in_chunks(tmp_path, server, 4, before=change)
        assert locked
        assert fold([line for line in lines if line.get("table") == "t"]) == sorted(server.run("SELECT * FROM d.t"))
    assert [line["after"][0] for line in lines if line.get("op") == "R"] == [*range(1, 10)]
