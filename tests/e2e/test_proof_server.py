"""A real server's logs beside what was captured of it: all is in the store once, and what is planted is found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.dump_worlds import REAL_SERVERS, start_server
from tests.e2e.test_capture_server import Orders, await_purge
from tests.services.mariadb import MariaDb
from tests.unit.changes.test_proof import Change, twice, with_one_value_changed, without
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Writer

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param, {"max_binlog_size": "8192"})) as found:
        yield found


@pytest.fixture
def orders(tmp_path: Path, server: MariaDb) -> Orders:
    server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    server.run("CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))")
    return Orders(tmp_path, server)


def test_every_transaction_of_the_server_is_in_the_store_once(orders: Orders) -> None:
    choice = random.Random(5)
    for _ in range(60):
        orders.change(choice)
    orders.server.run(
        *("XA START 'a'", "INSERT INTO shop.orders VALUES (900, 'xa', 1)", "XA END 'a'", "XA PREPARE 'a'"),
        *("XA COMMIT 'a'", "ALTER TABLE shop.orders ADD more INT", "UPDATE shop.orders SET more = id"),
    )
    assert orders.run("bootstrap", "orders").code == 0
    for _ in range(20):
        orders.server.run(f"DELETE FROM shop.orders WHERE id = {choice.randrange(40)}")
    assert orders.run("capture", "orders").code == 0
    orders.server.run("INSERT INTO shop.orders VALUES (901, 'later', 1, 2)")
    said = orders.run("verify", "orders", "--deep")
    assert said.code == 0, said
    logs = said.json["logs"]
    assert logs["compared"] + 1 == said.json["checked"], "all but the one chunk of the bootstrap"
    await_purge(orders)
    said = orders.run("verify", "orders", "--deep")
    assert said.code == 0 and said.json["logs"]["purged"] == logs["compared"], said


def test_a_table_that_came_in_later(orders: Orders) -> None:
    """Its rows are judged from where it came in: those before that stand in the log alone."""
    server = orders.server
    server.run("CREATE TABLE shop.lines (id INT PRIMARY KEY)", "INSERT INTO shop.lines VALUES (1)")
    orders.config.write_text(orders.config.read_text().replace('"shop.*"', '"shop.orders"'))
    server.run("BEGIN", "INSERT INTO shop.orders VALUES (1, 'a', 1)", "INSERT INTO shop.lines VALUES (2)", "COMMIT")
    assert orders.run("capture", "orders").code == 0
    orders.config.write_text(orders.config.read_text().replace('"shop.orders"', '"shop.*"'))
    assert orders.run("verify", "orders", "--deep").json["differences"] == []
    server.run("INSERT INTO shop.lines VALUES (3)")
    assert orders.run("bootstrap", "orders", "--tables", "shop.lines").code == 0
    server.run("BEGIN", "DELETE FROM shop.orders", "DELETE FROM shop.lines WHERE id = 1", "COMMIT")
    assert orders.run("capture", "orders").code == 0
    said = orders.run("verify", "orders", "--deep")
    assert (said.code, said.json["differences"]) == (0, []), said


@pytest.mark.parametrize(
    ("change", "what"), [(without(20), "missing"), (twice(20), "double"), (with_one_value_changed, "changed")]
)
def test_what_is_planted_in_the_store_is_found(orders: Orders, change: Change, what: str) -> None:
    choice = random.Random(6)
    for _ in range(40):
        orders.change(choice)
    assert orders.run("capture", "orders").code == 0
    assert orders.run("verify", "orders", "--deep").code == 0
    store = orders.folder / "store"
    store.rename(orders.folder / "sound")
    store.mkdir()
    (store / "source.json").write_bytes((orders.folder / "sound" / "source.json").read_bytes())
    reader = Reader(Disk(orders.folder / "sound"))
    with Writer(Disk(store), 1) as writer:
        for transaction in change(one for _, one in reader.read_whole()):
            writer.append(transaction, reader.view.gtids)
    said = orders.run("verify", "orders", "--deep")
    assert said.code == 20, said
    assert [one["what"] for one in said.json["differences"]] == [what]
