"""Another server under a source's address, or the same one with other logs: only where GTIDs prove the point it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dump_worlds import REAL_SERVERS, start_pair
from tests.e2e.test_capture_server import Orders
from tests.services.command_forks import Forked
from tests.services.mariadb import MariaDb
from tests.services.mysql import MySql
from tests.services.processes import soon
from tidemark.app import open_app
from tidemark.changes.bootstrap.chunks import Chunk, Tables
from tidemark.changes.sources.source import Request, capture_source, find_source
from tidemark.settings.load import load_settings

pytestmark = pytest.mark.full

TABLE = "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))"


@pytest.fixture(scope="module", params=REAL_SERVERS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[MariaDb, MariaDb]]:
    with start_pair(request.param) as both:
        yield both


@dataclass
class Pair:
    """Two servers with the same empty table and empty logs. The source names the first one."""

    first: MariaDb
    second: MariaDb
    orders: Orders

    def name(self, server: MariaDb) -> None:
        text = self.orders.config.read_text()
        self.orders.config.write_text(text.replace(str(self.orders.server.port), str(server.port)))
        self.orders.server = server

    def name_both(self, *servers: MariaDb) -> None:
        """The source names both, in this order."""
        text = self.orders.config.read_text()
        ports = ",127.0.0.1:".join(str(server.port) for server in servers)
        self.orders.config.write_text(text.replace(f":{self.orders.server.port}", f":{ports}"))


@pytest.fixture
def pair(tmp_path: Path, servers: tuple[MariaDb, MariaDb]) -> Pair:
    for server in servers:
        server.run(
            "SET sql_log_bin = 0", "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", TABLE, "SET sql_log_bin = 1"
        )
        server.reset()
    return Pair(*servers, Orders(tmp_path, servers[0]))


def name_missing(server: MariaDb, gtid: str) -> str:
    """How a transaction is named that a server lacks."""
    named, (domain, _, number) = server.name_gtid(gtid), gtid.split("-")
    return f"domain {domain}: {number} to {number}" if named == gtid else named


def insert(number: int, name: str = "ü") -> str:
    return f"INSERT INTO shop.orders VALUES ({number}, '{name}', {number}.5)"


CHANGES = {
    "1-1-1": insert(1),
    "2-1-1": insert(2),
    "1-1-2": "UPDATE shop.orders SET paid = 7 WHERE id = 1",
    "2-1-2": "DELETE FROM shop.orders WHERE id = 2",
    "1-1-3": insert(3),
}
MARIA_STATE = "SET GLOBAL gtid_binlog_state = '0-1-9'"
OTHER_ORDER = ("2-1-1", "2-1-2", "1-1-1", "1-1-2", "1-1-3")


def fold_with_rows(orders: Orders) -> dict[int, list[Any]]:
    """The table as its changes leave it, and rows that were read between them."""
    table: dict[int, list[Any]] = {}
    for line in orders.read():
        if line["k"] == "row":
            row = line["before"] or line["after"]
            assert line["before"] in (None, table.pop(row[0], None))
            table |= {line["after"][0]: line["after"]} if line["after"] else {}
    return table


def change_id(orders: Orders) -> int:
    return int(orders.run("show").json["sources"][0]["change_id"])


def test_a_server_that_committed_in_another_order_goes_on(pair: Pair) -> None:
    orders = pair.orders
    for gtid, statement in CHANGES.items():
        pair.first.commit(gtid, statement)
    for gtid in OTHER_ORDER:
        pair.second.commit(gtid, CHANGES[gtid])
    assert orders.run("capture", "orders").code == 0
    pair.name(pair.second)
    assert orders.run("capture", "orders").json["state"] == "nothing new"
    pair.second.commit("2-2-3", insert(4))
    pair.second.commit("1-2-4", "UPDATE shop.orders SET name = 'new' WHERE id = 3")
    assert orders.run("capture", "orders").json["transactions"] == 2
    assert change_id(orders) == 2
    assert orders.fold() == orders.select()
    pair.second.run("FLUSH BINARY LOGS", insert(5))
    assert orders.run("capture", "orders").json["transactions"] == 1
    assert change_id(orders) == 2
    assert orders.fold() == orders.select()
    said = orders.run("verify", "orders", "--deep")
    assert said.code == 0 and said.json["logs"]["compared"] == said.json["checked"] == 8, said
    found = orders.run("find", "orders", f"{pair.second.logs[-1].name}:4").json
    assert found["point"] == "seq:8"


def test_a_server_that_lacks_what_the_store_has_is_refused_by_name(pair: Pair) -> None:
    orders = pair.orders
    for gtid, statement in CHANGES.items():
        pair.first.commit(gtid, statement)
        if gtid != "2-1-2":
            pair.second.commit(gtid, statement)
    assert orders.run("capture", "orders").code == 0
    pair.name(pair.second)
    pair.second.commit("1-2-4", insert(9))
    before = orders.read()
    orders.run("capture", "orders").refused(6, name_missing(pair.first, "2-1-2"))
    assert orders.read() == before
    pair.name(pair.first)
    assert orders.run("capture", "orders").code == 0


def test_an_address_that_lacks_what_the_store_has_is_passed_over(pair: Pair) -> None:
    """The one that is preferred is behind. It is refused only where no other has all."""
    orders = pair.orders
    for gtid, statement in CHANGES.items():
        pair.first.commit(gtid, statement)
        if gtid in ("1-1-1", "2-1-1"):
            pair.second.commit(gtid, statement)
    assert orders.run("capture", "orders").code == 0
    pair.name_both(pair.second, pair.first)
    pair.first.commit("1-1-4", insert(4))
    assert orders.run("capture", "orders").json["transactions"] == 1
    assert orders.run("bootstrap", "orders", "--tables", "shop.orders").code == 0
    assert (change_id(orders), fold_with_rows(orders)) == (1, orders.select())

    pair.first.stop()
    orders.run("capture", "orders").refused(6, f":{pair.second.port} lacks what the store has")
    for gtid in ("1-1-2", "2-1-2", "1-1-3"):
        pair.second.commit(gtid, CHANGES[gtid])
    pair.second.commit("1-1-4", insert(4))
    pair.second.commit("1-2-5", insert(5))
    assert orders.run("capture", "orders").json["transactions"] == 1
    pair.first.restart()
    assert orders.run("capture", "orders").json["state"] == "nothing new"
    orders.server = pair.second
    assert (change_id(orders), fold_with_rows(orders)) == (2, orders.select())


def test_a_server_that_was_reset_is_refused_by_name(pair: Pair) -> None:
    orders = pair.orders
    pair.first.run(insert(1), insert(2))
    assert orders.run("capture", "orders").code == 0
    pair.first.reset()
    pair.first.run(insert(3))
    orders.run("capture", "orders").refused(6, name_missing(pair.first, "0-1-2"))


def test_a_server_that_is_reset_while_it_is_followed(pair: Pair) -> None:
    """It ends a dump as where logs were purged. The capture says what the next one would say."""
    orders, first = pair.orders, pair.first
    first.run(insert(1), "FLUSH BINARY LOGS", insert(2))
    process = orders.start("--follow")
    try:
        assert soon(lambda: is_followed(orders), 60), process.poll()
        first.reset()
        first.run(insert(3))
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.wait() == 6, (out, err)
    assert b"lacks what the store has" in err
    orders.run("capture", "orders").refused(6, "lacks what the store has")


def test_a_server_that_is_reset_while_its_first_log_is_followed(pair: Pair) -> None:
    """The new log has the name of the one that is read, so the server ends no dump. It rotates, and the dump goes on behind
    changes that were never read."""
    orders, first = pair.orders, pair.first
    first.run(insert(1), insert(2))
    process = orders.start("--follow")
    try:
        assert soon(lambda: is_followed(orders), 60), process.poll()
        first.reset()
        first.run(insert(3), "FLUSH BINARY LOGS", insert(4), insert(5))
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.wait() == 6, (out, err)
    assert [*orders.fold()] == [1, 2]
    orders.run("capture", "orders").refused(6, first.name_gtid("0-1-2"))


def test_a_restored_server_that_gave_its_numbers_again(pair: Pair) -> None:
    orders = pair.orders
    pair.first.run(insert(1), insert(2))
    assert orders.run("capture", "orders").code == 0
    pair.first.reset()
    pair.first.run(insert(3), insert(4), insert(5))
    orders.run("capture", "orders").refused(6, pair.first.name_gtid("0-1-2"))


def test_a_preferred_server_that_gave_its_numbers_again_is_passed_over(pair: Pair) -> None:
    """Another address goes on with the store's history, in the logs that the store is from, then in its own."""
    orders, first, second = pair.orders, pair.first, pair.second
    for gtid in ("1-1-1", "1-1-2", "1-1-3"):
        for server in (first, second):
            server.commit(gtid, CHANGES[gtid])
    pair.name(second)
    assert orders.run("capture", "orders").code == 0
    first.reset()
    for number, gtid in enumerate(("1-1-1", "1-1-2", "1-1-3", "1-1-4"), start=10):
        first.commit(gtid, insert(number))
    pair.name_both(first, second)
    orders.server = second
    second.commit("1-2-4", insert(4))
    app, told = open_app(load_settings(orders.config, {})), []
    with closing(app.ledger):
        done = capture_source(find_source(app, "orders"), Request(), lambda tick: told.append(str(tick)))
    assert done.captured.transactions == 1 and change_id(orders) == 1
    assert any(f":{first.port} is passed over" in tick for tick in told), told
    assert orders.run("bootstrap", "orders", "--tables", "shop.orders").code == 0
    assert fold_with_rows(orders) == orders.select()
    assert orders.run("verify", "orders", "--deep").code == 0
    said = orders.run("doctor", "orders")
    [told] = [check for check in said.json["checks"] if not check["ok"]]
    assert (said.code, told["name"]) == (6, "identity") and f" at 127.0.0.1:{first.port} than in the store" in told["detail"]
    before = orders.read()
    second.stop()
    orders.run("capture", "orders").refused(
        6, f"{first.name_gtid('1-2-4')} is another transaction at 127.0.0.1:{first.port}"
    )
    assert orders.read() == before
    second.restart()


@pytest.mark.parametrize("logs", [0, 2])
def test_a_server_that_was_made_of_a_dump_from_behind_the_store(pair: Pair, logs: int) -> None:
    """It was told what the dump has: what the store lacks stands in no log of it. The former server goes on."""
    orders, first, second = pair.orders, pair.first, pair.second
    first.run(*["FLUSH BINARY LOGS"] * logs, *map(insert, (1, 2)))
    assert orders.run("capture", "orders").code == 0
    first.run(*map(insert, range(3, 10)))
    time.sleep(1.1)  # a log is known by the second in which it was begun
    second.reset()
    second.run(f"SET GLOBAL gtid_purged = '{first.name_gtid('0-1-1')}-9'" if isinstance(first, MySql) else MARIA_STATE)
    second.run(insert(20))
    pair.name(second)
    orders.run("capture", "orders").refused(31, f":{second.port} has other logs than the store, and no more what follows")
    said = orders.run("doctor", "orders")
    told = next(check for check in said.json["checks"] if not check["ok"])
    assert (said.code, told["name"]) == (31, "position") and "has other logs than the store" in told["detail"], said
    assert said.json["hint"].startswith("let url name a server that has it"), said
    pair.name(first)
    assert orders.run("capture", "orders").code == 0
    assert orders.fold() == orders.select()
    assert orders.run("doctor", "orders").code == orders.run("verify", "orders", "--deep").code == 0


def test_a_server_with_another_transaction_under_the_last_number_is_refused(pair: Pair) -> None:
    """At MariaDB it has a server id of its own: its position says nothing of that."""
    orders = pair.orders
    for server in (pair.first, pair.second):
        server.commit("1-1-1", insert(1))
    pair.first.commit("1-1-2", insert(2))
    assert orders.run("capture", "orders").code == 0
    pair.second.commit("1-2-2", insert(7))
    pair.second.commit("1-2-3", insert(8))
    pair.name(pair.second)
    before = orders.read()
    orders.run("capture", "orders").refused(6, f"{pair.first.name_gtid('1-1-2')} is another transaction at")
    assert orders.read() == before


def test_a_log_made_again_under_its_old_name_goes_on_where_gtids_prove_it(pair: Pair) -> None:
    orders = pair.orders
    pair.first.run(insert(1), insert(2))
    assert orders.run("capture", "orders").code == 0
    pair.first.reset(last=2)
    pair.first.run(insert(3))
    assert orders.run("capture", "orders").code == 0
    assert change_id(orders) == 2
    assert orders.fold() == orders.select()
    assert orders.run("verify", "orders", "--deep").code == 0


def test_rows_are_placed_in_the_logs_of_the_server_that_they_were_read_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address answers again while rows are read at the second, which is behind, and ends in a log of the same
    name as one of the first."""
    orders, first, second = pair.orders, pair.first, pair.second
    for server in (first, second):
        for gtid in ("1-1-1", "2-1-1"):
            server.commit(gtid, CHANGES[gtid])
    assert orders.run("capture", "orders").code == 0
    first.commit("1-1-2", CHANGES["1-1-2"])
    second.run("FLUSH BINARY LOGS")
    pair.name_both(first, second)
    first.stop()
    whole, opened = Tables.open_chunk, []

    @contextmanager
    def open_and_restart(tables: Tables, *given: Any) -> Iterator[Chunk]:
        with whole(tables, *given) as chunk:
            if not opened:
                first.restart()
                first.run("FLUSH BINARY LOGS")
            opened.append(tables.server.address[1])
            yield chunk

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "open_chunk", open_and_restart)
        said = orders.run("bootstrap", "orders", "--tables", "shop.orders")
    assert said.code == 0 and opened == [second.port], said
    assert [line["op"] for line in orders.read() if line["k"] == "row"] == ["I", "I", "R", "R"]
    assert orders.run("capture", "orders").json["transactions"] == 1, "from the first again"
    assert fold_with_rows(orders) == orders.select()
    assert orders.run("verify", "orders", "--deep").code == 0


def test_rows_from_before_every_transaction_are_of_one_servers_log(pair: Pair) -> None:
    """The logs of both have one name, and neither has a transaction when the rows are read."""
    orders = pair.orders
    for server in (pair.first, pair.second):
        server.run("SET sql_log_bin = 0", insert(1), "SET sql_log_bin = 1")
    orders.config.write_text(orders.config.read_text().replace('"earliest"', '"bootstrap"'))
    assert orders.run("capture", "orders").json["rows"] == 1
    pair.second.run(insert(2))
    pair.name(pair.second)
    orders.run("capture", "orders").refused(6, "its log was begun at", "by server id 2")
    pair.first.run(insert(3))
    pair.name(pair.first)
    assert orders.run("capture", "orders").json["transactions"] == 1
    assert orders.fold() == orders.select()


def follow(orders: Orders) -> Forked:
    """A capture that begins with a bootstrap and follows, once the first server sends it events."""
    orders.config.write_text(orders.config.read_text().replace('"earliest"', '"bootstrap"'))
    process = orders.start("--follow")
    sends = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
    assert soon(lambda: orders.server.run(sends)[0][0] > 0, 60), process.communicate()
    return process


def is_followed(orders: Orders) -> bool:
    transactions = orders.run("show").json["sources"][0]["transactions"]
    return transactions > 0 and fold_with_rows(orders) == orders.select()


def test_a_store_without_a_transaction_is_begun_at_another_server_where_the_first_one_died(pair: Pair) -> None:
    orders = pair.orders
    for server in (pair.first, pair.second):
        server.run("SET sql_log_bin = 0", "DROP TABLE shop.orders", "SET sql_log_bin = 1")
    pair.name_both(pair.first, pair.second)
    orders.server = pair.first
    process = follow(orders)
    try:
        pair.first.stop()
        orders.server = pair.second
        pair.second.run(TABLE, insert(1))
        assert soon(lambda: is_followed(orders), 60), process.poll()
        pair.second.run(insert(2))
        assert soon(lambda: is_followed(orders), 60), process.poll()
    finally:
        process.terminate()
        assert process.wait() == 143
        pair.first.restart()
    assert change_id(orders) == 1
    assert orders.run("verify", "orders", "--deep").code == 0


def test_rows_from_before_every_transaction_are_gone_on_from_at_another_server(pair: Pair) -> None:
    """The store has the set of GTIDs that its first log begins with."""
    orders = pair.orders
    for server in (pair.first, pair.second):
        server.commit("1-1-1", insert(1))
        server.run("FLUSH BINARY LOGS")
    pair.name_both(pair.first, pair.second)
    orders.server = pair.first
    process = follow(orders)
    try:
        assert soon(lambda: is_followed(orders), 60)
        pair.first.stop()
        orders.server = pair.second
        pair.second.commit("1-2-2", insert(2))
        assert soon(lambda: is_followed(orders), 60), process.poll()
    finally:
        process.terminate()
        assert process.wait() == 143
        pair.first.restart()
    assert [line["op"] for line in orders.read() if line["k"] == "row"] == ["R", "I"]
    assert change_id(orders) == 2
    assert orders.run("verify", "orders", "--deep").code == 0


def test_a_bootstrap_goes_to_another_server_where_its_first_one_died(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies before the first chunk. What the first server had beyond the second one is in no store."""
    orders, whole, opened = pair.orders, Tables.open_chunk, []
    orders.config.write_text(orders.config.read_text().replace('"earliest"', '"bootstrap"'))
    for server in (pair.first, pair.second):
        server.commit("1-1-1", insert(1))
    pair.first.commit("1-1-2", insert(2))
    pair.name_both(pair.first, pair.second)

    @contextmanager
    def stop_and_open(tables: Tables, *given: Any) -> Iterator[Chunk]:
        with whole(tables, *given) as chunk:
            opened.append(tables.server.address[1])
            if len(opened) == 1:
                pair.first.stop()
            yield chunk

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "open_chunk", stop_and_open)
        orders.run("capture", "orders").refused(5, f":{pair.first.port}")
        said = orders.run("capture", "orders")
    assert said.code == 0 and opened == [pair.first.port, pair.second.port], (said, opened)
    orders.server = pair.second
    assert fold_with_rows(orders) == orders.select()
    assert sorted(orders.select()) == [1]
    pair.first.restart()
