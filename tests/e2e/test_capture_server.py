"""A real server captured over the line, by the commands that users type: killed, purged, restarted, followed."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.commanded import Said, run_here
from tests.dump_worlds import MARIADB, MYSQL_SERVER, REAL_SERVERS, start_server
from tests.services.command_forks import Forked, start_command
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tests.services.mysql import MySql

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param, {"max_binlog_size": "8192"})) as found:
        yield found


class Orders:
    """The source `orders` of a server, and what a reader sees of it."""

    def __init__(self, folder: Path, server: MariaDb) -> None:
        self.folder, self.server = folder, server
        self.config = folder / "tidemark.toml"
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        self.config.write_text(
            f'[sources.orders]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{server.port}"\n'
            'password_file = "password"\ntls = "off"\ntables = ["shop.*"]\nheartbeat_seconds = 1\nstart = "earliest"\n'
        )

    def run(self, *words: str) -> Said:
        return run_here(self.config, "changes", *words)

    def start(self, *words: str) -> Forked:
        return start_command(["--config", str(self.config), "changes", "capture", "orders", *words], os.environ)

    def read(self) -> list[dict[str, Any]]:
        out = self.folder / "changes.jsonl"
        said = self.run("read", "orders", "--out", str(out))
        assert said.code == 0, said
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    def fold(self) -> dict[int, list[Any]]:
        """The table as its changes leave it."""
        table: dict[int, list[Any]] = {}
        for line in self.read():
            if line["k"] == "row":
                if line["before"]:
                    assert table.pop(line["before"][0]) == line["before"]
                if line["after"]:
                    assert line["after"][0] not in table
                    table[line["after"][0]] = line["after"]
        return table

    def select(self) -> dict[int, list[Any]]:
        return {row[0]: list(row) for row in self.server.run("SELECT id, name, CAST(paid AS CHAR) FROM shop.orders")}

    def change(self, choice: random.Random) -> None:
        number = choice.randrange(40)
        self.server.run(
            choice.choice(
                [
                    f"INSERT IGNORE INTO shop.orders VALUES ({number}, 'ü{number}', {number}.25)",
                    f"UPDATE shop.orders SET paid = paid + 1 WHERE id < {number}",
                    f"UPDATE IGNORE shop.orders SET id = id + 40 WHERE id = {number}",
                    f"DELETE FROM shop.orders WHERE id = {number}",
                ]
            )
        )


@pytest.fixture
def orders(tmp_path: Path, server: MariaDb) -> Orders:
    server.run("DROP DATABASE IF EXISTS shop", "SET GLOBAL max_binlog_size = 8192")
    server.reset()
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))")
    return Orders(tmp_path, server)


def test_changes_folded_by_key_are_the_table(orders: Orders) -> None:
    choice = random.Random(1)
    for _ in range(3):
        for _ in range(40):
            orders.change(choice)
        said = orders.run("capture", "orders")
        assert said.code == 0, said
        assert orders.fold() == orders.select()
    [shown] = orders.run("show").json["sources"]
    assert shown["gtid_set"] == orders.server.gtids
    assert orders.run("capture", "orders").json["state"] == "nothing new"


def test_a_capture_that_is_killed_again_and_again(orders: Orders) -> None:
    choice = random.Random(2)
    for _ in range(6):
        for _ in range(30):
            orders.change(choice)
        process = orders.start()
        time.sleep(choice.uniform(0.2, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    said = orders.run("capture", "orders")
    assert said.code == 0, said
    assert orders.fold() == orders.select()
    assert orders.run("verify", "orders").json["differences"] == []


def test_xa_rows_outlive_the_log_that_has_them(orders: Orders) -> None:
    server = orders.server
    server.run(
        "XA START 'a','b',7", "INSERT INTO shop.orders VALUES (1, 'xa', 1)", "XA END 'a','b',7", "XA PREPARE 'a','b',7"
    )
    assert orders.run("capture", "orders").code == 0
    assert orders.fold() == {}
    server.stop()
    server.restart()
    await_purge(orders)
    assert orders.run("capture", "orders").code == 0
    server.run("XA COMMIT 'a','b',7")
    assert orders.run("capture", "orders").code == 0
    assert orders.fold() == {1: [1, "xa", "1.00"]}


@pytest.mark.parametrize("server", [MARIADB], indirect=True)  # MySQL with GTIDs refuses it
def test_rows_that_a_session_took_back_to_a_savepoint(orders: Orders) -> None:
    orders.server.run(
        *("CREATE TABLE shop.notes (id INT PRIMARY KEY) ENGINE=MyISAM", "BEGIN"),
        *("INSERT INTO shop.orders VALUES (1, 'a', 1)", "SAVEPOINT s", "INSERT INTO shop.orders VALUES (2, 'b', 2)"),
        *("INSERT INTO shop.notes VALUES (7)", "ROLLBACK TO s", "INSERT INTO shop.orders VALUES (3, 'c', 3)", "COMMIT"),
    )
    said = orders.run("capture", "orders")
    assert said.code == 0, said
    rows = [(line["table"], line["after"][0]) for line in orders.read() if line["k"] == "row"]
    assert rows == [("notes", 7), ("orders", 1), ("orders", 3)]


@pytest.mark.parametrize("server", [MYSQL_SERVER], indirect=True)
def test_what_mysql_alone_logs(orders: Orders) -> None:
    """GTIDs with tags, JSON that is changed in parts, transactions that are compressed, vectors."""
    server = orders.server
    server.run(
        *("CREATE TABLE shop.notes (id INT PRIMARY KEY, j JSON, v VECTOR(2), b TEXT)", "SET gtid_next = 'AUTOMATIC:blue'"),
        """INSERT INTO shop.notes VALUES (1, '{"a": [1, {"b": "long enough to be changed in place"}], "c": 2.50}',"""
        " TO_VECTOR('[1, -2.5]'), 'ü')",
        "SET gtid_next = 'AUTOMATIC', binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE shop.notes SET j = JSON_SET(j, '$.a[1].b', 'short')",
        "UPDATE shop.notes SET j = JSON_REMOVE(JSON_SET(j, '$.a[0]', JSON_ARRAY(1.5, NULL)), '$.c')",
        "UPDATE shop.notes SET j = JSON_SET(j, '$.a[last].b', 'x', '$.a[last-1][last]', 7)",
        "SET binlog_transaction_compression = ON",
        f"INSERT INTO shop.notes (id, b) SELECT seq + 1, REPEAT('é', seq) FROM {server.numbers(200)}",
        "SET binlog_row_value_options = '', binlog_transaction_compression = OFF",
    )
    for number in (1, 2):
        assert orders.run("capture", "orders").code == 0
        rows = {line["after"][0]: line["after"] for line in orders.read() if line["k"] == "row"}
        select = "SELECT id, CAST(j AS CHAR), LOWER(HEX(v)), b FROM shop.notes"
        assert sorted(rows.values()) == [
            [row[0], row[1], row[2] and {"hex": row[2]}, row[3]] for row in sorted(server.run(select))
        ]
        server.run(f"SET gtid_next = 'AUTOMATIC:red{number}'", "DELETE FROM shop.notes WHERE id = -1")
        server.run(f"INSERT INTO shop.notes (id) VALUES ({number} + 1000)", "SET gtid_next = 'AUTOMATIC'")
    [shown] = orders.run("show").json["sources"]
    assert ":blue:1" in shown["gtid_set"] and ":red1:1" in shown["gtid_set"]
    await_purge(orders)
    orders.run("capture", "orders").refused(31)
    said = orders.run("repair", "orders")
    assert said.code == 0, said
    assert orders.run("verify", "orders", "--deep").code == 0


def test_rows_that_came_as_a_statement_are_told_however_it_is_written(orders: Orders) -> None:
    """A definition among them fills its table: the log has its rows nowhere else."""
    server = orders.server
    with orders.config.open("a", encoding="utf-8") as file:
        file.write('unsafe = "mark"\n')
    said = [
        "/*!40000 UPDATE */ shop.orders SET name = 'x'",
        "CREATE TABLE shop.copied (PRIMARY KEY (id)) SELECT id FROM shop.orders",
    ]
    if not isinstance(server, MySql):
        said += [
            "SET STATEMENT max_statement_time = 9 FOR UPDATE shop.orders SET name = 'y'",
            "ANALYZE UPDATE shop.orders SET name = 'z'",
        ]
    server.run("SET SESSION binlog_format = STATEMENT", *said, "SET SESSION binlog_format = ROW", "DROP TABLE shop.copied")
    assert orders.run("capture", "orders").code == 0
    told = [line["text"] for line in orders.read() if line["k"] == "unproved"]
    assert len(told) == len(said), told
    assert all(" came as a statement: " in text for text in told), told


def test_a_log_that_was_purged_is_a_gap(orders: Orders) -> None:
    assert orders.run("capture", "orders").code == 0
    orders.change(random.Random(3))
    orders.server.run("INSERT INTO shop.orders VALUES (99, 'x', 1)")
    await_purge(orders)
    orders.run("capture", "orders").refused(31)


def test_following_outlives_the_server(orders: Orders) -> None:
    follow_over_ends(orders, [orders.server.stop, orders.server.stop])


@pytest.mark.soak
def test_following_outlives_a_server_that_dies(orders: Orders) -> None:
    """It leaves a log without an end. The one with which it starts again has a time of creation."""
    follow_over_ends(orders, [orders.server.kill] * 10)


def follow_over_ends(orders: Orders, ends: Sequence[Callable[[], None]]) -> None:
    process = orders.start("--follow")
    try:
        choice = random.Random(4)
        for end in ends:
            # Without this, tables are older than the log of a server that was killed.
            orders.server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
            for _ in range(30):
                orders.change(choice)
            await_table(orders)
            before = orders.select()
            end()
            orders.server.restart()
            assert orders.select() == before, "the server has its rows"
        orders.change(choice)
        await_table(orders)
        orders.run("capture", "orders").refused(5, "capture:orders")
    finally:
        process.terminate()
        assert process.wait() == 143


def test_a_new_store_is_cleaned_while_it_is_followed(orders: Orders) -> None:
    """It has no bucket yet, or nothing at all."""
    assert orders.run("retain", "orders").json["oldest"] is None
    orders.server.run("INSERT INTO shop.orders VALUES (1, 'a', 1)")
    process = orders.start("--follow")
    try:
        await_table(orders)
        assert not list(orders.folder.glob("store/data/*/*.data"))
        said = orders.run("retain", "orders")
        assert (said.code, said.json["oldest"], said.json["compressed"]) == (0, "seq:1", []), said
    finally:
        process.terminate()
        assert process.wait() == 143
    assert orders.fold() == orders.select()


def await_table(orders: Orders) -> None:
    ends = time.monotonic() + 120
    while orders.run("show").json["sources"][0]["transactions"] == 0 or orders.fold() != orders.select():
        assert time.monotonic() < ends
        time.sleep(0.2)


def await_purge(orders: Orders) -> None:
    """Purge all logs but the newest. The server keeps one while it believes that a replica reads it."""
    orders.server.run("FLUSH BINARY LOGS")
    ends = time.monotonic() + 60
    while len(orders.server.logs) > 1:
        orders.server.run(f"PURGE BINARY LOGS TO '{orders.server.logs[-1].name}'")
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_a_bootstrap_that_is_killed_again_and_again_among_changes(orders: Orders) -> None:
    """8,000 rows a second, with a writer at work, killed at random: at last the tables are as the changes fold."""
    orders.config.write_text(orders.config.read_text().replace('start = "earliest"', "bootstrap_rows = 8000"))
    orders.server.run(
        "USE shop",
        "INSERT INTO orders SELECT seq, CONCAT('n', seq), seq / 4 FROM " + orders.server.numbers(20000),
        "CREATE TABLE plain ENGINE=InnoDB AS SELECT * FROM orders WHERE id <= 8000",
        "CREATE TABLE places (a VARCHAR(9) COLLATE utf8mb4_general_ci, b INT, PRIMARY KEY (a, b)) ENGINE=InnoDB",
        "INSERT INTO places SELECT CONCAT(seq % 7, 'Ö'), seq FROM " + orders.server.numbers(20000),
        "SET GLOBAL max_binlog_size = 1048576",
        "FLUSH BINARY LOGS",
    )
    ended = threading.Event()

    def write() -> None:
        writer = type(orders.server)(orders.server.folder, orders.server.port, orders.server.options, orders.server.process)
        choice = random.Random(5)
        while not ended.is_set():
            number = choice.randrange(1, 20000)
            writer.run(
                f"UPDATE shop.orders SET paid = paid + 1 WHERE id BETWEEN {number} AND {number + 20}",
                f"UPDATE shop.orders SET id = -id WHERE id = {number}",
                f"DELETE FROM shop.orders WHERE id = {number + 1}",
                f"UPDATE IGNORE shop.places SET b = -b WHERE b BETWEEN {number} AND {number + 3}",
                f"INSERT IGNORE INTO shop.places VALUES ('é', {number})",
                f"UPDATE shop.plain SET paid = 0 WHERE id = {number}",
            )
            if choice.random() < 0.01:
                writer.run(f"ALTER TABLE shop.orders COMMENT = '{number}'")

    thread = threading.Thread(target=write)
    thread.start()
    choice = random.Random(4)
    try:
        for _ in range(12):
            follower = orders.start("--follow")
            time.sleep(choice.uniform(0.4, 1.6))
            follower.send_signal(signal.SIGKILL)
            follower.wait()
    finally:
        ended.set()
        thread.join()
    said = orders.run("capture", "orders")
    assert said.code == 0, said
    lines = orders.read()
    marks = [line["text"] for line in lines if line["k"] in ("bootstrap_begin", "bootstrap_end")]
    assert sorted(marks) == sorted([f"shop.{name}" for name in ("orders", "places", "plain")] * 2)
    for table, key in (("orders", 1), ("places", 2), ("plain", 1)):
        rows: dict[tuple[Any, ...], list[Any]] = {}
        for line in lines:
            if line.get("table") == table and line["k"] == "row":
                if line["before"]:
                    assert rows.pop(tuple(line["before"][:key]), line["before"]) == line["before"]
                if line["after"]:
                    assert rows.setdefault(tuple(line["after"][:key]), line["after"]) == line["after"]
        columns = "id, name, CAST(paid AS CHAR)" if key == 1 else "a, b"
        assert sorted(map(tuple, rows.values())) == sorted(orders.server.run(f"SELECT {columns} FROM shop.{table}"))
    read = [tuple(line["after"]) for line in lines if line.get("op") == "R" and line["table"] == "places"]
    assert len(set(read)) == len(read), "each chunk stands once"
    assert orders.run("verify", "orders").code == 0


@contextmanager
def slow_line(port: int, bytes_a_second: float) -> Iterator[int]:
    """The port of a line to another one of 127.0.0.1, that brings so much from there and takes everything."""

    def copy(source: socket.socket, target: socket.socket, speed: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                time.sleep(len(data) / speed)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
                for ends in ((near, far, inf), (far, near, bytes_a_second)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("server", [MARIADB], indirect=True)
def test_a_capture_that_does_not_follow_ends_before_a_faster_writer(tmp_path: Path, server: MariaDb) -> None:
    """Each statement writes more than the line brings meanwhile."""
    ended, most = threading.Event(), 20
    server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    server.run("CREATE TABLE shop.orders (id INT, name VARCHAR(2000), paid DECIMAL(10,2))")
    server.reset()
    writer = MariaDb(server.folder, server.port, server.options, server.process)
    written = 0

    def write() -> None:
        nonlocal written
        writer.run("INSERT INTO shop.orders SELECT seq, REPEAT('x', 1000), 1.25 FROM shop.seq_1_to_5000")
        written += 5_000

    def go_on() -> None:
        while written < most * 5_000 and not ended.wait(0.05):
            write()

    write()
    with slow_line(server.port, 10e6) as port:
        orders = Orders(tmp_path, server)
        orders.config.write_text(orders.config.read_text().replace(f":{server.port}", f":{port}"))
        thread = threading.Thread(target=go_on)
        thread.start()
        said = orders.run("capture", "orders")
        ended.set()
        thread.join()
    assert said.code == 0 and 5_000 <= said.json["rows"] < written, (said, written)
    orders = Orders(tmp_path, server)
    assert orders.run("capture", "orders").json["rows"] == written - said.json["rows"]


@pytest.mark.parametrize("server", [MARIADB], indirect=True)
def test_a_gtid_that_the_server_jumped_over_is_no_point(orders: Orders) -> None:
    orders.server.run("INSERT INTO shop.orders VALUES (1, 'a', 1)")
    orders.server.commit("0-1-500", "INSERT INTO shop.orders VALUES (2, 'b', 1)")
    later = "SET timestamp = UNIX_TIMESTAMP() + 7200"  # in the hour behind it, in a file of its own
    orders.server.run(later, "INSERT INTO shop.orders VALUES (3, 'c', 1)", "SET timestamp = DEFAULT")
    assert orders.run("capture", "orders").code == 0
    for gtid in ("0-1-300", "0-7-500"):
        orders.run("find", "orders", gtid).refused(3, f"no transaction {gtid}")
        orders.run("read", "orders", "--to", gtid, "--out", str(orders.folder / "out.jsonl")).refused(3, gtid)
    found = orders.run("find", "orders", "0-1-501")
    assert found.json["point"] == orders.run("find", "orders", "latest").json["point"]


@pytest.mark.parametrize("server", [MARIADB], indirect=True)
def test_an_alter_table_in_two_phases_counts_once_and_only_if_it_was_done(orders: Orders) -> None:
    orders.server.run("INSERT INTO shop.orders VALUES (1, 'a', 1), (2, 'a', 1)", "SET binlog_alter_two_phase = 1")
    with pytest.raises(pymysql.err.IntegrityError):
        orders.server.run("ALTER TABLE shop.orders ADD UNIQUE (name), RENAME TO shop.given_up, ALGORITHM = INPLACE")
    done = "ALTER TABLE shop.orders ADD INDEX (name), RENAME TO shop.done"
    orders.server.run(done, "SET binlog_alter_two_phase = DEFAULT", "INSERT INTO shop.done VALUES (3, 'c', 1)")
    assert orders.run("capture", "orders").code == 0
    lines = orders.read()
    assert [line["sql"] for line in lines if line["k"] == "ddl" and "ALTER" in line["sql"]] == [done]
    assert [line["table"] for line in lines if line["k"] == "row"] == ["orders", "orders", "done"]
    assert orders.run("verify", "orders", "--deep").code == 0
