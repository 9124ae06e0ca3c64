"""Members of a task over a real store and ledger: order, points, deaths, rewinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery_worlds import LIMITS, World, changes_of, expected_changes, fill_store, gtids_at, make_transaction
from tidemark.changes.delivery.stream import Options
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Writer
from tidemark.errors import UnreachableError
from tidemark.ledger.delivery import read_points

ONCE = Options(follow=False, beat_seconds=0.05)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def test_every_row_comes_once_and_in_the_order_of_its_shard(world: World) -> None:
    seen: dict[int, list[tuple[int, int]]] = {}
    with world.member(ONCE) as stream:
        for batch in stream:
            seen.setdefault(batch.shard, []).extend(changes_of(batch))
            assert batch.done()
    assert all(rows == sorted(set(rows)) for rows in seen.values())
    every = [change for rows in seen.values() for change in rows]
    assert len(every) == len(set(every))
    assert set(every) == expected_changes(1, world.last)
    with world.ledger.read() as connection:
        points = read_points(connection, "billing")
    assert {point.seq for point in points.values()} == {world.last + 1}
    assert {point.gtids for point in points.values()} == {f"11111111-2222-3333-4444-555555555555:1-{world.last}"}


def test_who_comes_next_goes_on_behind_what_is_done(world: World) -> None:
    first: list[tuple[int, int]] = []
    with world.member(ONCE) as stream:
        for batch in stream:
            if len(first) > 60:
                break
            first += changes_of(batch)
            batch.done()
    fill_store(world.folder / "store", world.last + 1, world.last + 5, fence=2)
    with world.member(ONCE) as stream:
        second = [change for batch in stream for change in changes_of(batch)]
    assert not set(first) & set(second)
    assert set(first) | set(second) == expected_changes(1, world.last + 5)


def test_a_large_transaction_that_came_to_no_end_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """In the place of its parts stands a block of no transaction."""
    world = World(tmp_path, 10)
    whole = make_transaction(11, 2_000)

    def break_off() -> Iterator[Rows]:
        for _ in range(4):
            yield from (record for record in whole.records if isinstance(record, Rows))
        raise UnreachableError("the server went away")

    with Writer(world.disk, 2, LIMITS) as writer:
        with pytest.raises(UnreachableError):
            writer.append_large(whole._replace(records=()), break_off(), gtids_at(11))
    for number in (11, 12):  # blocks before and behind it in one bucket
        fill_store(tmp_path / "store", number, number, fence=number)
    with world.member(ONCE) as stream:
        found = [change for batch in stream for change in changes_of(batch) if batch.done()]
    assert sorted(found) == sorted(expected_changes(1, 12))
    assert [piece.seq for piece in Reader(world.disk).read(10)] == [10, 11, 12]
    world.ledger.close()
