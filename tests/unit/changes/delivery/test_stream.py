"""Members of a task over a real store and ledger: order, points, deaths, rewinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery_worlds import World, changes_of, expected_changes, fill_store
from tidemark.changes.delivery.stream import Options
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
