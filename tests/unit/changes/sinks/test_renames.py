"""What a sink knows nothing of: views, sequences, tables that were never read or are not there. Names in another case."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from tests.crash.explorer import Died
from tests.sink_worlds import ORDERS, SinkWorld, inserted, read, updated
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.sinks.deliver import Request, read_sink_table
from tidemark.changes.store.model import Column, Ddl, Kind, Mark, Rows, Shape

ROW = (1, "a", Decimal("1.00"))


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    """With a table `orders` of one row."""
    world = SinkWorld(tmp_path, "delta")
    world.bootstrap(read(1, "a", "1.00"))
    assert states_of(world) == {"shop.orders": "whole"}
    return world


def states_of(world: SinkWorld) -> dict[str, str]:
    """Each table's state, once all is delivered."""
    return {name: table.state for name, table in world.deliver().tables.items()}


def rows_of(world: SinkWorld, table: str = "shop.orders") -> list[tuple[object, ...]]:
    return [tuple(row.values()) for batch in read_sink_table(world.sink(), table) for row in batch.to_pylist()]


def test_a_view_that_is_renamed_is_no_table(world: SinkWorld) -> None:
    world.append(
        Ddl("shop", "CREATE VIEW v AS SELECT * FROM orders"), Ddl("shop", "RENAME TABLE v TO v2, orders TO o, v2 TO w")
    )
    assert world.run("deliver", "lake").code == 0
    assert states_of(world) == {"shop.o": "whole", "shop.orders": "whole"}
    assert (rows_of(world, "shop.o"), rows_of(world)) == ([ROW], [])


def test_a_view_in_the_place_of_a_table_does_not_fail(world: SinkWorld) -> None:
    """Nothing tells it from a table that was never read: it is not whole."""
    world.append(Ddl("shop", "RENAME TABLE orders TO o, v TO orders"))
    done = world.deliver()
    assert (done.tables["shop.o"].state, done.tables["shop.orders"].state, done.stopped) == ("whole", "partial", [])
    assert "was shop.v before" in done.tables["shop.orders"].why
    assert rows_of(world) == []


def test_a_table_that_was_never_read_is_partial_under_its_new_name_too(world: SinkWorld) -> None:
    b = Shape("shop", "b", ORDERS.columns)
    world.append(Ddl("shop", "RENAME TABLE a TO b"), Rows.of(b, [inserted(2, "b", "2.00")]))
    done = world.deliver()
    assert done.tables["shop.b"].state == "partial"
    assert done.tables["shop.b"].why == "the store has no reading of all its rows"
    assert rows_of(world, "shop.b") == [(2, "b", Decimal("2.00"))]


@pytest.mark.parametrize("missing", ["missing", "dropped"])
def test_a_table_that_was_not_there_takes_no_name(world: SinkWorld, missing: str) -> None:
    """MariaDB passes over it. What has the name had rows, so it is there, and the statement did nothing to it."""
    world.append(Ddl("shop", "CREATE TABLE dropped (id INT PRIMARY KEY)"), Ddl("shop", "DROP TABLE dropped"))
    world.append(Ddl("shop", "CREATE TABLE a (id INT PRIMARY KEY)"))
    world.append(Rows.of(Shape("shop", "a", ORDERS.columns), [inserted(1, "a", "1.00")]))
    world.append(Ddl("shop", f"RENAME TABLE IF EXISTS {missing} TO orders, a TO b"))
    world.append(Ddl("shop", f"ALTER TABLE IF EXISTS {missing} RENAME TO orders"))
    found = states_of(world)
    assert {found[name] for name in ("shop.orders", "shop.a", "shop.b")} == {"whole"}
    assert rows_of(world) == rows_of(world, "shop.b") == [ROW]
    assert rows_of(world, "shop.a") == []


def test_tables_that_change_names_if_they_are_there(world: SinkWorld) -> None:
    world.append(Ddl("shop", "RENAME TABLE IF EXISTS orders TO t, missing TO orders, t TO b"))
    done = world.deliver()
    assert (done.tables["shop.b"].state, done.tables["shop.orders"].state) == ("whole", "partial")
    assert (rows_of(world, "shop.b"), rows_of(world)) == ([ROW], [])


def test_a_name_of_which_nothing_is_known_is_not_called_whole(world: SinkWorld) -> None:
    """The dropped table was not there, so `b` may be one that was never read."""
    world.append(Ddl("shop", "DROP TABLE orders"), Ddl("shop", "RENAME TABLE IF EXISTS orders TO b"))
    world.append(Rows.of(Shape("shop", "b", ORDERS.columns), [inserted(2, "b", "2.00")]))
    assert states_of(world) == {"shop.orders": "whole", "shop.b": "partial"}


def test_a_column_that_is_renamed_in_its_case_alone(world: SinkWorld) -> None:
    key, name, paid = ORDERS.columns
    spelled = Shape("shop", "orders", (replace(key, name="ID"), replace(name, name="Name"), paid))
    world.append(Ddl("shop", "ALTER TABLE orders RENAME COLUMN id TO ID, RENAME COLUMN name TO Name"))
    world.append(Rows.of(spelled, [inserted(2, "b", "2.00"), updated((1, "a", "1.00"), (1, "x", "1.00"))]))
    world.append([inserted(3, "c", "3.00")])
    assert states_of(world) == {"shop.orders": "whole"}
    assert [row[:2] for row in rows_of(world)] == [(1, "x"), (2, "b"), (3, "c")]


def test_a_sequence_is_no_table(world: SinkWorld) -> None:
    names = "next_not_cached_value minimum_value maximum_value start_value increment cache_size cycle_option cycle_count"
    numbers = Shape("shop", "numbers", tuple(Column(name, Kind.INT64, "bigint") for name in names.split()))
    world.append(Ddl("shop", "CREATE SEQUENCE numbers"), Rows.of(numbers, [inserted(1, 1, 9, 1, 1, 1000, 0, 0)]))
    assert states_of(world) == {"shop.orders": "whole"}


def test_a_table_that_was_where_its_source_is_not_captured_stops(world: SinkWorld) -> None:
    """The sink names no tables, the source does: what was changed there is in no store."""
    world.config.write_text(world.config.read_text().replace('store = "store"', 'store = "store"\ntables = ["shop.*"]'))
    world.append(Ddl("shop", "RENAME TABLE orders TO other.orders"))
    assert [*world.deliver().tables] == ["shop.orders"]
    assert rows_of(world) == []
    world.append(Ddl("shop", "RENAME TABLE other.a TO other.b"), Ddl("shop", "RENAME TABLE other.orders TO orders"))
    done = world.deliver()
    assert "was other.orders before" in done.tables["shop.orders"].why
    assert {name: table.state for name, table in done.tables.items()} == {"shop.orders": "stopped"}


@pytest.mark.parametrize("how", ["rewind", "ledger", "death"])
def test_tables_that_changed_names_hold_no_row_of_each_other_when_all_comes_again(tmp_path: Path, how: str) -> None:
    """Their folders have the rows of then, which are newer than the reading that comes again: it does not take them away."""
    world, new = SinkWorld(tmp_path, "delta"), replace(ORDERS, table="new")
    world.append(Mark(BEGIN, "shop.new"), Rows.of(new, [read(7, "seven", "7.00")]), Mark(END, "shop.new"))
    world.bootstrap(read(1, "a", "1.00"))
    world.append([inserted(2, "late", "2.00")], Ddl("shop", "RENAME TABLE orders TO old, new TO orders, old TO new"))
    effects: list[str] = []

    def die_in_between(effect: str) -> None:
        effects.append(effect)
        if effects.count("after shop.new") == 2:  # it has other rows, and `orders` has not yet
            raise Died(effect)

    if how == "death":
        with pytest.raises(Died):
            world.deliver(Request(effect=die_in_between))
    else:
        assert world.deliver().tables["shop.orders"].state == "whole"
    if how == "ledger":
        for place in (world.folder / "var").glob("ledger.db*"):
            place.unlink()
    else:
        assert world.run("rewind", "lake", "--to", "seq:1", "--yes").code == 0
    done = world.deliver()
    assert {name: table.state for name, table in done.tables.items()} == {"shop.new": "whole", "shop.orders": "whole"}
    assert [row[0] for row in rows_of(world, "shop.new")] == [1, 2]
    assert [row[0] for row in rows_of(world)] == [7]
