"""Logs of a real MariaDB that are gone before they were captured: a gap on record, and what comes before it is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_capture_server import Orders
from tests.services import mariadb
from tests.services.mariadb import MariaDb

pytestmark = [pytest.mark.full, pytest.mark.real("mariadb")]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    found = mariadb.start()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def orders(tmp_path: Path, server: MariaDb) -> Orders:
    server.run("DROP DATABASE IF EXISTS shop", "RESET MASTER", "CREATE DATABASE shop")
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
