"""A sink that has not got all transactions, or whose source has not: a table is not called whole before it is read anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.sink_worlds import ORDERS, SinkWorld, inserted, read
from tests.unit.changes.sinks.test_catalog import CatalogWorld, row
from tidemark.changes.sinks.deliver import Request
from tidemark.changes.store.model import Ddl, Mark, Rows
from tidemark.ledger.delivery import SinkTable


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    world = SinkWorld(tmp_path, "delta")
    world.bootstrap(read(1, "a", "1.00"))
    world.deliver()
    return world


def table_of(world: SinkWorld) -> SinkTable:
    return world.deliver().tables["shop.orders"]


def rewind(world: SinkWorld, to: str) -> None:
    assert world.run("rewind", "lake", "--to", to, "--yes").code == 0


def test_a_table_is_partial_until_it_is_read_anew(world: SinkWorld) -> None:
    world.append([inserted(2, "left out", "1.00")])
    rewind(world, "now")
    world.append([inserted(3, "c", "1.00")])
    table = table_of(world)
    assert (table.state, "from seq:4 to seq:5" in table.why) == ("partial", True)
    world.append([inserted(4, "d", "1.00")])
    assert table_of(world).state == "partial"
    world.bootstrap(*(read(number, "a", "1.00") for number in range(1, 5)))
    assert table_of(world).state == "whole"


def test_a_reading_that_was_left_out_in_part_makes_no_table_whole(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "1.00"))
    world.deliver(Request(to="seq:5"))
    rewind(world, "seq:6")  # behind the rows that were read
    assert table_of(world).state == "partial"


def test_a_rewind_that_is_undone_leaves_nothing_out(world: SinkWorld) -> None:
    world.append([inserted(2, "b", "1.00")])
    for to in ("now", "seq:1", "seq:4"):
        rewind(world, to)
    assert table_of(world).state == "whole"


def test_what_retention_took_before_the_sink_had_it(world: SinkWorld) -> None:
    text = world.config.read_text(encoding="utf-8")
    choice = Random(3)
    for first in (10, 50):
        world.append(*([inserted(first + n, choice.randbytes(2_000).hex(), "1.00")] for n in range(40)))
        world.count += 7_200  # a transaction a second
    world.config.write_text(text.replace('"store"\n', '"store"\nretain_hours = 1\nretain_bytes = "1 kB"\n', 1))
    assert int(world.run("retain", "orders").json["oldest"].removeprefix("seq:")) > 4
    assert world.run("deliver", "lake").code == 31
    rewind(world, "earliest")
    assert table_of(world).state == "partial"


def test_a_catalog_too(tmp_path: Path) -> None:
    world = CatalogWorld(tmp_path)
    world.read_all([read(*row(1, "m1", 1))])
    world.deliver()
    world.change([inserted(*row(2, "m1", 2))])
    rewind(world, "now")
    world.change([inserted(*row(3, "m1", 3))])
    assert world.deliver().tables["plant.readings"].state == "partial"


def captures(world: SinkWorld, tables: str) -> None:
    """Have the source capture these tables alone."""
    text = world.config.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("exclude")]
    world.config.write_text("\n".join(lines).replace('"store"', f'"store"\nexclude = {tables}') + "\n", encoding="utf-8")


def test_a_table_that_is_made_where_the_source_does_not_capture_it(world: SinkWorld) -> None:
    """Its first rows are in no store, so that it is not whole once it is captured."""
    captures(world, '["shop.later"]')
    world.append(Ddl("shop", "CREATE TABLE later (id BIGINT PRIMARY KEY)"), [inserted(2, "b", "1.00")])
    assert [*world.deliver().tables] == ["shop.orders"]
    captures(world, "[]")
    world.append(Rows.of(replace(ORDERS, table="later"), [inserted(5, "e", "1.00")]))
    states = {name: table.state for name, table in world.deliver().tables.items()}
    assert states == {"shop.later": "partial", "shop.orders": "whole"}


def test_a_table_that_is_not_captured_for_a_while(world: SinkWorld) -> None:
    captures(world, '["shop.orders"]')
    world.append(Mark("heartbeat", ""))
    table = table_of(world)
    assert (table.state, table.why) == ("partial", "the source does not capture it (tables, exclude)")
    captures(world, "[]")
    world.append([inserted(2, "b", "1.00")])
    assert table_of(world).state == "partial"
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "1.00"))
    assert table_of(world).state == "whole"
