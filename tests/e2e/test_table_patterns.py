"""Patterns of a source that mean no table of a real server: nobody is to wait for rows in vain, and nothing said."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.commanded import run_here
from tests.dump_worlds import start_server
from tests.e2e.test_capture_server import Orders
from tests.services.mariadb import MariaDb
from tidemark.cli.main import main

pytestmark = pytest.mark.full


@pytest.fixture(scope="module", params=["0", "1"], ids=["case", "lower"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server("mariadb", {"lower_case_table_names": request.param})) as found:
        yield found


class Shop(Orders):
    """A source with the patterns that a test writes, of a server with the tables `Orders` and `Lines`."""

    def __init__(self, folder: Path, server: MariaDb) -> None:
        super().__init__(folder, server)
        self.is_lower = server.run("SELECT @@lower_case_table_names")[0][0] == 1
        server.run("DROP DATABASE IF EXISTS Shop")
        server.reset()
        server.run("CREATE DATABASE Shop")
        for table in ("Orders", "Lines"):
            server.run(f"CREATE TABLE Shop.{table} (id INT PRIMARY KEY)", f"INSERT INTO Shop.{table} VALUES (1)")

    def write(self, line: str) -> None:
        self.config.write_text(self.config.read_text().replace('tables = ["shop.*"]', line))

    def capture(self) -> list[str]:
        """The warnings of a capture: those of its answer, which a terminal shows, too."""
        said = self.run("capture", "orders")
        assert said.code == 0, said
        return list(said.json["idle_patterns"])

    def examine(self) -> str:
        """What doctor says of the patterns."""
        said = self.run("doctor", "orders")
        [*found] = [one for one in said.json["checks"] if one["name"] == "patterns"]
        assert all(one["ok"] for one in found)
        return str(found[0]["detail"]) if found else ""

    def read_tables(self) -> set[str]:
        return {line["table"] for line in self.read() if line["k"] == "row"}


@pytest.fixture
def shop(tmp_path: Path, server: MariaDb) -> Shop:
    return Shop(tmp_path, server)


def test_names_that_the_server_keeps_in_lower_case(shop: Shop) -> None:
    """What is written as its statements have it means nothing at a server that keeps `orders`, and is named."""
    shop.write('tables = ["Shop.*", "shop.*"]\nexclude = ["Shop.Lines"]')
    found = shop.examine()
    told = shop.capture()
    assert all(one in found for one in told)
    if shop.is_lower:
        assert told == [
            'tables: "Shop.*" means no table that is there now; in another case: shop.lines, shop.orders',
            'exclude: "Shop.Lines" means no table that is there now; in another case: shop.lines',
        ]
        assert shop.read_tables() == {"lines", "orders"}
    else:
        [only] = told
        assert only.startswith('tables: "shop.*" means no table that is there now; in another case: Shop.Lines, Shop.Orders')
        assert shop.read_tables() == {"Orders"}


def test_a_pattern_whose_table_comes_later(shop: Shop) -> None:
    shop.write('tables = ["[Ss]hop.*", "[Ss]hop.later"]')
    assert shop.capture() == ['tables: "[Ss]hop.later" means no table that is there now']
    said = run_here(shop.config, "changes", "doctor", "orders")
    assert "[Ss]hop.later" in shop.examine(), said
    shop.server.run("CREATE TABLE Shop.later (id INT PRIMARY KEY)", "INSERT INTO Shop.later VALUES (1)")
    assert (shop.capture(), shop.examine()) == ([], "")
    assert "later" in shop.read_tables()


def test_what_is_asked_to_be_read_and_is_no_table(shop: Shop) -> None:
    """The others are read, and a terminal is told as `--json` is."""
    shop.write('tables = ["[Ss]hop.*"]')
    assert shop.capture() == []
    orders, other = ("shop.orders", "Shop.Orders") if shop.is_lower else ("Shop.Orders", "shop.orders")
    said = shop.run("bootstrap", "orders", "--tables", orders, other)
    assert said.code == 0, said
    assert {one["name"]: one["rows"] for one in said.json["tables"]} == {orders: 1}
    told = f'tables: "{other}" means no table that is there now; in another case: {orders}'
    assert said.json["idle_patterns"] == [told]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(["--config", str(shop.config), "changes", "bootstrap", "orders", "--tables", other]) == 0
    assert f"warning: {told}" in shown.getvalue()


def test_a_sink_of_tables_that_are_not_there(shop: Shop) -> None:
    shop.write('tables = ["[Ss]hop.*"]')
    other = "shop.orders" if not shop.is_lower else "Shop.Orders"
    sink = f'[sinks.lake]\nsource = "orders"\nkind = "history"\ntarget = "lake"\ntables = ["[Ss]hop.*", "{other}"]\n'
    shop.config.write_text(shop.config.read_text() + sink)
    assert shop.examine().startswith(f'warning: tables of sink lake: "{other}" means no table that is there now')
    checks = run_here(shop.config, "doctor").json["checks"]
    assert [one for one in checks if "patterns" in one["name"] and other in one["detail"]]
