"""A `delta` sink whose run sleeps past its lease, as of a suspended machine: another one delivers meanwhile."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.sink_worlds import ORDERS, SinkWorld, inserted, read, updated
from tidemark.changes.sinks.deliver import Request, read_sink_table
from tidemark.changes.sinks.delta import DeltaTables
from tidemark.changes.store.model import Column, Kind, Rows, Shape
from tidemark.errors import LeaseLostError, RetryableError


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    return SinkWorld(tmp_path, "delta")


def rows_of(world: SinkWorld) -> list[tuple[Any, ...]]:
    found = [row for batch in read_sink_table(world.sink(), "shop.orders") for row in batch.to_pylist()]
    return [(row["id"], row["name"], row["paid"]) for row in found]


def test_a_run_that_slept_past_its_lease_writes_nothing(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"))

    def take_over(what: str) -> None:
        if what.startswith("before"):
            with world.app().ledger.write() as connection:  # as who gets an expired lease
                connection.execute(sa.text("UPDATE lease SET fence = fence + 1 WHERE name = 'sink:lake'"))

    with pytest.raises(LeaseLostError):
        world.deliver(Request(effect=take_over))
    assert not list(world.target.rglob("*.parquet"))
    assert world.run("show", "orders").json["tasks"][0]["points"][0]["point"] == "seq:1"
    with world.app().ledger.write() as connection:
        connection.execute(sa.text("UPDATE lease SET holder = ''"))
    world.deliver()
    assert rows_of(world) == [(1, "a", Decimal("1.00"))]


@pytest.mark.parametrize("step", ["_write_anew", "_fit_columns", "_merge"])
def test_a_run_that_sleeps_between_the_look_at_its_lease_and_a_write_writes_nothing(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another one delivers its batch meanwhile, and a later one."""
    whole = getattr(DeltaTables, step)
    world.bootstrap(read(1, "a", "1.00"))
    if step != "_write_anew":
        world.deliver()
        wide = Shape("shop", "orders", (*ORDERS.columns, Column("more", Kind.TEXT, "text")))
        world.append(Rows.of(wide, [updated((1, "a", "1.00", "x"), (1, "b", "1.00", "y"))]))

    def sleep_and_write(self: DeltaTables, *given: Any) -> Any:
        monkeypatch.undo()
        with world.app().ledger.write() as connection:  # as who gets an expired lease
            connection.execute(sa.text("UPDATE lease SET fence = fence + 1, holder = '' WHERE name = 'sink:lake'"))
        world.deliver()
        world.append([updated((1, "b", "1.00"), (1, "c", "1.00"))], [inserted(2, "new", "1.00")])
        world.deliver()
        return whole(self, *given)

    monkeypatch.setattr(DeltaTables, step, sleep_and_write)
    with pytest.raises(RetryableError, match="another program changed the table meanwhile"):
        world.deliver()
    for _ in range(2):
        assert rows_of(world) == [(1, "c", Decimal("1.00")), (2, "new", Decimal("1.00"))]
        world.deliver()
