"""Logs of a real server that are gone before they were captured: a gap on record, and what comes before it is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.commanded import run_here
from tests.dump_worlds import REAL_SERVERS, start_server
from tests.e2e.test_capture_server import Orders, await_purge
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tidemark.changes.sources import repair

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param)) as found:
        yield found


@pytest.fixture
def orders(tmp_path: Path, server: MariaDb) -> Orders:
    server.run("DROP DATABASE IF EXISTS shop")
    server.reset()
    server.run("CREATE DATABASE shop")
    server.run("CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))")
    found = Orders(tmp_path, server)
    assert found.run("capture", "orders").code == 0
    choice = random.Random(1)
    for _ in range(4):
        for _ in range(10):
            found.change(choice)
        server.run("FLUSH BINARY LOGS")
    return found


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_log_that_somebody_removed_behind_the_servers_back(orders: Orders, number: int) -> None:
    logs = [log.name for log in orders.server.logs]
    orders.server.logs[number - 1].unlink()
    orders.run("capture", "orders").refused(31, "gap 1 of source orders")
    [gap] = orders.run("show").json["sources"][0]["gaps"]
    assert gap["to"] == f"{logs[number]}:4" and gap["tables"] == ["shop.orders"]
    assert gap["from"].startswith(logs[max(0, number - 2)]), "what lies before it is captured"
    orders.run("verify", "orders").refused(31)
    position = next(one for one in orders.run("doctor", "orders").json["checks"] if one["name"] == "position")
    assert not position["ok"] and logs[number] in position["detail"]


def purge(orders: Orders) -> None:
    """What is not captured yet is in no log any more: rows were changed, added and deleted meanwhile."""
    server = orders.server
    server.run("DELETE FROM shop.orders", "INSERT INTO shop.orders VALUES (1, 'old', 1), (2, 'old', 2), (3, 'old', 3)")
    assert orders.run("capture", "orders").code == 0
    server.run("DELETE FROM shop.orders WHERE id = 1", "UPDATE shop.orders SET paid = 9 WHERE id = 2")
    server.run("INSERT INTO shop.orders VALUES (4, 'lost', 4)")
    await_purge(orders)
    server.run("UPDATE shop.orders SET name = 'new' WHERE id = 3", "INSERT INTO shop.orders VALUES (5, 'new', 5)")
    orders.run("capture", "orders").refused(31, "gap 1 of source orders")


def fold(orders: Orders) -> dict[int, list[Any]]:
    """The table as a consumer has it who drops the keys that a reading did not bring."""
    table: dict[int, list[Any]] = {}
    seen: set[int] | None = None
    for line in orders.read():
        if line["k"] == "bootstrap_begin":
            seen = set()
        elif line["k"] == "bootstrap_end":
            assert seen is not None
            table, seen = {key: row for key, row in table.items() if key in seen}, None
        elif line["k"] == "row":
            if line["before"]:
                table.pop(line["before"][0], None)
            if line["after"]:
                table[line["after"][0]] = line["after"]
                if seen is not None:
                    seen.add(line["after"][0])
    return table


def check_repaired(orders: Orders) -> None:
    assert orders.run("capture", "orders").code == 0
    assert fold(orders) == orders.select()
    [shown] = orders.run("show").json["sources"]
    assert (shown["state"], [gap["state"] for gap in shown["gaps"]]) == ("idle", ["repaired"])
    assert [line["text"] for line in orders.read() if line["k"] == "gap"] == ["1"]
    said = orders.run("verify", "orders", "--deep")
    assert said.code == 0 and said.json["differences"] == [], said


def test_a_gap_is_repaired_by_reading_its_tables(orders: Orders) -> None:
    purge(orders)
    said = orders.run("repair", "orders")
    assert said.code == 0 and (said.json["gaps"], said.json["tables"]) == (["1"], ["shop.orders"]), said
    check_repaired(orders)
    assert orders.run("repair", "orders").json["gaps"] == []
    orders.server.run("DELETE FROM shop.orders WHERE id = 5")
    check_repaired(orders)
    orders.run("repair", "orders", "--gap", "7").refused(3, "no gap 7")


@pytest.mark.parametrize("step", ["pass_gap", "write_state", "update_gap", "bootstrap_source", "capture_source"])
@pytest.mark.parametrize("after", [False, True])
def test_a_repair_that_died_is_made_good(orders: Orders, monkeypatch: pytest.MonkeyPatch, step: str, after: bool) -> None:
    purge(orders)
    whole = getattr(repair, step)

    def die(*given: Any) -> None:
        if after:
            whole(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repair, step, die)
        assert orders.run("repair", "orders").code != 0
    assert orders.run("repair", "orders").code == 0
    check_repaired(orders)


def test_a_table_that_was_dropped_or_renamed_in_the_gap_is_named(orders: Orders) -> None:
    """Of those that were read, and of those of a sink."""
    server = orders.server
    names = ("dropped", "former", "later")
    server.run(*(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY)" for name in names[:2]))
    assert orders.run("bootstrap", "orders").code == 0
    server.run("CREATE TABLE shop.later (id INT PRIMARY KEY)", *(f"INSERT INTO shop.{name} VALUES (1)" for name in names))
    with orders.config.open("a", encoding="utf-8") as file:
        file.write('[sinks.lake]\nsource = "orders"\nkind = "delta"\ntarget = "lake"\n')
    assert orders.run("capture", "orders").code == 0
    assert orders.run("deliver", "lake").code == 0
    assert show_states(orders) == dict.fromkeys(["shop.dropped", "shop.former", "shop.later", "shop.orders"], "captured")
    server.run("DROP TABLE shop.dropped", "RENAME TABLE shop.former TO shop.new", "DROP TABLE shop.later")
    await_purge(orders)
    orders.run("capture", "orders").refused(31)
    said = orders.run("repair", "orders")
    gone = ["shop.dropped", "shop.former", "shop.later"]
    assert (said.code, said.json["tables"], said.json["gone"]) == (0, ["shop.new", "shop.orders"], gone), said
    assert show_states(orders) == {**dict.fromkeys(gone, "gone"), "shop.new": "captured", "shop.orders": "captured"}
    said = run_here(orders.config, "why", "table:shop.dropped")
    assert (said.code, said.json["state"]) == (0, "gone"), said


def show_states(orders: Orders) -> dict[str, str]:
    [shown] = orders.run("show").json["sources"]
    return {table["name"]: table["state"] for table in shown["tables"]}


def test_an_xa_transaction_whose_rows_a_gap_swallowed(orders: Orders) -> None:
    """Its COMMIT is captured, its rows are not: that stops, or stands in their place."""
    server = orders.server
    server.run("DELETE FROM shop.orders")
    assert orders.run("capture", "orders").code == 0
    with closing(pymysql.connect(host="127.0.0.1", port=server.port, user=USER, password=PASSWORD.encode())) as other:
        with other.cursor() as cursor:
            for statement in ("XA START 'x'", "INSERT INTO shop.orders VALUES (7, 'xa', 7)", "XA END 'x'", "XA PREPARE 'x'"):
                cursor.execute(statement)
    await_purge(orders)
    server.run("INSERT INTO shop.orders VALUES (8, 'new', 8)")
    orders.run("capture", "orders").refused(31, "gap 1 of source orders")
    assert orders.run("repair", "orders").code == 0
    server.run("XA COMMIT 'x'", "INSERT INTO shop.orders VALUES (9, 'behind', 9)")
    for _ in range(2):
        orders.run("capture", "orders").refused(31, "commits the XA transaction x", "or in a gap")
    assert sorted(fold(orders)) == [8], "what comes before it is captured"
    orders.config.write_text(orders.config.read_text(encoding="utf-8") + 'unsafe = "mark"\n', encoding="utf-8")
    assert orders.run("capture", "orders").code == 0
    marks = [
        (line["k"], line.get("text", line.get("xid"))) for line in orders.read() if line["k"] in ("unproved", "xa_commit")
    ]
    assert marks == [("unproved", "XA transaction x"), ("xa_commit", "x")]
    assert sorted(fold(orders)) == [8, 9]
    said = orders.run("verify", "orders", "--deep")
    assert (said.code, said.json["differences"]) == (0, []), said
