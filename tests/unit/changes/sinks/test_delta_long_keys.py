"""A `delta` sink of a table whose key has more digits than a float tells apart: ids of 64 bits, long decimals."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.sink_worlds import SinkWorld, deleted, inserted, read, updated
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.sinks import delta
from tidemark.changes.sinks.batches import Limits
from tidemark.changes.sinks.deliver import Request, read_sink_table
from tidemark.changes.store.model import Column, Kind, Mark, Row, Rows, Shape

NAME = Column("name", Kind.TEXT, "varchar(20)")
UNSIGNED = Column("id", Kind.UINT64, "bigint unsigned not null", key=True)
KEYS: dict[str, tuple[Column, list[Any]]] = {
    "ids of a clock": (UNSIGNED, [1_759_000_000_000_000_001 + n for n in range(5)]),
    "ids beyond 63 bits": (UNSIGNED, [(1 << 63) - 2 + n for n in range(5)]),
    "decimal(18,2)": (
        Column("id", Kind.TEXT, "decimal(18,2) not null", key=True),
        [f"9234567890123456.7{n}" for n in range(5)],
    ),
    "decimal(38,0)": (Column("id", Kind.TEXT, "decimal(38,0) not null", key=True), [f"{'9' * 37}{n}" for n in range(5)]),
}


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    return SinkWorld(tmp_path, "delta")


def fill(world: SinkWorld, shape: Shape, *rows: Row) -> None:
    """Append a reading of all rows."""
    world.append(Mark(BEGIN, "shop.orders"), Rows.of(shape, rows), Mark(END, "shop.orders"))


def rows_of(world: SinkWorld) -> list[tuple[Any, ...]]:
    found = [row for batch in read_sink_table(world.sink(), "shop.orders") for row in batch.to_pylist()]
    return [(row["id"], row["name"]) for row in found]


@pytest.mark.parametrize("kind", KEYS)
def test_keys_that_differ_in_their_last_digits_are_told_apart(world: SinkWorld, kind: str) -> None:
    key, (first, second, third, fourth, other) = KEYS[kind]
    shape = Shape("shop", "orders", (key, NAME))
    fill(world, shape, *(read(one, "a") for one in (first, second, third, fourth)))
    world.deliver()
    world.append(Rows.of(shape, [deleted(second, "a")]))
    world.deliver()
    world.append(Rows.of(shape, [updated((third, "a"), (third, "b")), updated((fourth, "a"), (other, "c"))]))
    assert world.deliver().tables["shop.orders"].state == "whole"
    assert rows_of(world) == [(Decimal(first), "a"), (Decimal(third), "b"), (Decimal(other), "c")]


@pytest.mark.parametrize("digits", [(15, 2), (15, 15), (18, 0), (16, 2), (20, 0)])
def test_random_keys(world: SinkWorld, digits: tuple[int, int]) -> None:
    whole, scale = digits
    choice = Random(whole * 100 + scale)
    shape = Shape("shop", "orders", (Column("id", Kind.TEXT, f"decimal({whole},{scale}) not null", key=True), NAME))
    rows: dict[str, str] = {}
    fill(world, shape)
    for number in range(25):
        found = str(
            Decimal(choice.randrange(-(10**whole) + 1, 10**whole)).scaleb(-scale).quantize(Decimal(1).scaleb(-scale))
        )
        key = format(Decimal(found), "f")
        changed = [inserted(key, f"n{number}")]
        rows[key] = f"n{number}"
        if number > 3:
            gone = choice.choice(sorted(rows))
            changed.append(deleted(gone, rows.pop(gone)))
        world.append(Rows.of(shape, changed))
    world.deliver(Request(limits=Limits(rows=2)))
    assert rows_of(world) == sorted((Decimal(key), name) for key, name in rows.items())


def test_a_key_that_becomes_a_long_one(world: SinkWorld) -> None:
    signed = replace(UNSIGNED, kind=Kind.INT64, type="bigint not null")
    fill(world, Shape("shop", "orders", (signed, NAME)), read(1, "a"), read(2, "b"))
    world.deliver()
    shape, high = Shape("shop", "orders", (UNSIGNED, NAME)), 1 << 63
    world.append(Rows.of(shape, [inserted(high + 1, "c"), inserted(high + 2, "d")]))
    world.deliver()
    world.append(Rows.of(shape, [deleted(high + 1, "c"), deleted(2, "b")]))
    world.deliver()
    assert rows_of(world) == [(1, "a"), (high + 2, "d")]


def test_other_columns_are_told_as_before(world: SinkWorld) -> None:
    """So that readers still find the files that have what they ask for."""
    fill(world, Shape("shop", "orders", (UNSIGNED, replace(NAME, name="a`,b"))), read(1, "x"))
    world.deliver()
    [told] = pa.table(DeltaTable(str(world.target / "shop.orders")).get_add_actions(flatten=True)).to_pylist()
    assert told["min.a`,b"] == "x"
    assert "min.id" not in told


def test_a_table_of_a_former_version_stops_until_it_is_read_anew(world: SinkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, high = Shape("shop", "orders", (UNSIGNED, NAME)), 1 << 63
    with monkeypatch.context() as former:
        former.setattr(delta, "_name_told", lambda _types: {})
        fill(world, shape, read(high, "a"), read(high + 1, "b"))
        world.deliver()
    world.append(Rows.of(shape, [deleted(high, "a")]))
    table = world.deliver().tables["shop.orders"]
    assert (table.state, "a former version" in table.why) == ("stopped", True)
    fill(world, shape, read(high + 1, "b"), read(high + 2, "c"))
    world.append(Rows.of(shape, [deleted(high + 1, "b")]))
    assert world.deliver(Request(limits=Limits(rows=1))).tables["shop.orders"].state == "whole"
    assert rows_of(world) == [(high + 2, "c")]
