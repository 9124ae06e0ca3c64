"""Logs of a real server that are kept beside a store: byte for byte those of the server, whoever is killed meanwhile."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import run_here
from tests.dump_worlds import REAL_SERVERS, closed, start_pair, start_server
from tests.e2e.test_capture_server import Orders
from tests.services.mariadb import MariaDb
from tidemark.changes.binlog.layout import IN_USE, MAGIC

pytestmark = pytest.mark.full

IN_USE_AT = len(MAGIC) + 17
"""The flags of the first event."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("mariadb", {}), marks=pytest.mark.real("mariadb"), id="mariadb"),
        pytest.param(("mariadb", {"binlog_checksum": "NONE"}), marks=pytest.mark.real("mariadb"), id="no checksums"),
        pytest.param(("mysql", {}), marks=pytest.mark.real("mysql"), id="mysql"),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    name, options = request.param
    with closing(start_server(name, {"max_binlog_size": "8192", **options})) as found:
        yield found


@pytest.fixture
def orders(tmp_path: Path, server: MariaDb) -> Orders:
    server.run("DROP DATABASE IF EXISTS shop")
    server.reset()
    server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))")
    found = Orders(tmp_path, server)
    found.config.write_text(found.config.read_text() + "mirror = true\n")
    return found


def mirrored(orders: Orders, change_id: int = 1) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((orders.folder / "store" / "mirror" / str(change_id)).iterdir())}


def closed_logs(server: MariaDb) -> dict[str, bytes]:
    """As they lie at the server. It sends no log as one that is in use, also that in which it died."""
    found = {path.name: bytearray(path.read_bytes()) for path in server.logs[:-1]}
    in_use = [name for name, data in found.items() if data[IN_USE_AT] & IN_USE]
    assert len(in_use) <= 1
    for name in in_use:
        found[name][IN_USE_AT] &= ~IN_USE & 0xFF
    return {name: bytes(data) for name, data in found.items()}


def test_they_are_the_servers_own_whatever_is_killed(orders: Orders) -> None:
    choice = random.Random(5)
    for number in range(8):
        follower = orders.start("--follow")
        for _ in range(30):
            orders.change(choice)
            time.sleep(choice.uniform(0, 0.02))
        assert follower.poll() is None, follower.communicate()[1]
        follower.send_signal(signal.SIGKILL)
        follower.communicate()
        if number in (3, 5):  # the second time its log has no end
            (orders.server.stop if number == 3 else orders.server.kill)()
            orders.server.restart()
    orders.server.run("FLUSH BINARY LOGS")
    assert orders.run("capture", "orders").code == 0
    kept = mirrored(orders)
    assert len(kept) > 5
    assert {name: kept[name] for name in closed_logs(orders.server)} == closed_logs(orders.server)
    assert read_again(orders) == orders.read()


def read_again(orders: Orders) -> list[dict[str, Any]]:
    """What a new store has, captured from the logs that are kept."""
    other = orders.folder / "again.toml"
    other.write_text('[sources.again]\nstore = "again"\ntables = ["shop.*"]\n')
    logs = str(orders.folder / "store" / "mirror" / "1" / "*")
    assert run_here(other, "changes", "capture", "again", "--files", logs).code == 0
    out = orders.folder / "again.jsonl"
    assert run_here(other, "changes", "read", "again", "--out", str(out)).code == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_a_source_that_kept_none_before_has_the_log_that_it_is_in_whole(orders: Orders) -> None:
    orders.config.write_text(orders.config.read_text().replace("mirror = true\n", ""))
    orders.change(random.Random(1))
    orders.server.run("FLUSH BINARY LOGS", "INSERT INTO shop.orders VALUES (900, 'a', 1)")
    assert orders.run("capture", "orders").code == 0
    orders.config.write_text(orders.config.read_text() + "mirror = true\n")
    orders.server.run("INSERT INTO shop.orders VALUES (901, 'b', 1)", "FLUSH BINARY LOGS")
    assert orders.run("capture", "orders").code == 0
    last = orders.server.logs[-2]
    assert mirrored(orders)[last.name] == last.read_bytes()
    assert orders.server.logs[0].name not in mirrored(orders)


@pytest.mark.real("mariadb")
def test_a_server_that_keeps_its_logs_encrypted_is_refused_by_name(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"1;{'a7' * 32}\n")
    keys.chmod(0o644)
    options = {"plugin_load_add": "file_key_management", "file_key_management_filename": str(keys), "encrypt_binlog": "ON"}
    with closing(start_server("mariadb", options)) as server:
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
        orders = Orders(tmp_path, server)
        orders.config.write_text(orders.config.read_text() + "mirror = true\n")
        orders.run("capture", "orders").refused(6, "keeps its logs encrypted")


class TestAnotherServer:
    """A change id of which the store has nothing yet: the logs of one server are kept, and then those of another."""

    @pytest.fixture(params=REAL_SERVERS)
    def pair(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[MariaDb, MariaDb, Orders]]:
        table = "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))"
        with start_pair(request.param) as (first, second):
            for server in (first, second):
                server.run("CREATE DATABASE shop", table)
                server.reset()
            orders = Orders(tmp_path, first)
            orders.config.write_text(orders.config.read_text() + "mirror = true\n")
            yield first, second, orders

    def test_each_log_is_wholly_of_one_server(self, pair: tuple[MariaDb, MariaDb, Orders]) -> None:
        first, second, orders = pair
        first.run("FLUSH BINARY LOGS")
        assert orders.run("capture", "orders").json["transactions"] == 0
        assert len(mirrored(orders)) == 2, "of the first server"
        name_server(orders, second)
        second.commit("1-1-1", INSERT)
        assert orders.run("capture", "orders").json["transactions"] == 1
        assert mirrored(orders) == sent_logs(second)

        first.commit("1-1-1", INSERT)
        name_server(orders, first)
        assert orders.run("capture", "orders").json["transactions"] == 0
        time.sleep(1.1)  # a log of another second
        first.run("DELETE FROM shop.orders")
        first.reset()
        first.commit("1-1-1", INSERT)
        first.run("FLUSH BINARY LOGS")
        first.commit("2-2-1", "INSERT INTO shop.orders VALUES (2, 'b', 2)")
        assert orders.run("capture", "orders").json["transactions"] == 1
        assert orders.run("show").json["sources"][0]["change_id"] == 2
        last = first.logs[-1].name
        assert mirrored(orders, 2) == {last: sent_logs(first)[last]}, "by GTID the log before is left out"
        assert mirrored(orders) == sent_logs(second), "what is proved stays"


INSERT = "INSERT INTO shop.orders VALUES (1, 'a', 1)"


def name_server(orders: Orders, server: MariaDb) -> None:
    orders.config.write_text(orders.config.read_text().replace(str(orders.server.port), str(server.port)))
    orders.server = server


def sent_logs(server: MariaDb) -> dict[str, bytes]:
    """All logs of a server that runs, as it sends them."""
    return {path.name: closed(path.read_bytes()) for path in server.logs}
