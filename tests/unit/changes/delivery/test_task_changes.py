"""A task that is rewound or divided anew: what was planned is what happens, and no row is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.delivery_worlds import SERVER, Change, World, changes_of, expected_changes
from tidemark.changes.delivery.storage_points import point_at
from tidemark.changes.delivery.stream import Options
from tidemark.changes.store.read import Reader
from tidemark.ledger.delivery import replace_points


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def consume_all(world: World, shards: int | None = None) -> set[Change]:
    """Be a member until the store's end."""
    with world.member(Options(follow=False), shards=shards) as stream:
        found: set[Change] = set()
        while (batch := stream.next_batch()) is not None:
            found |= set(changes_of(batch))
            batch.done()
    return found


def test_no_new_shard_leaves_out_what_one_former_shard_alone_had_done(world: World) -> None:
    member = world.member(shards=2)
    point = point_at(Reader(world.disk), 15, member.task.version_ts)
    more = replace(point, gtids=f"{SERVER}:1-14:18")  # of shard 0, from a store that had 18 before 15
    with world.ledger.write() as connection:
        replace_points(connection, member.task, {0: more, 1: point})
    world.reshard(3)
    assert consume_all(world, 3) == expected_changes(15, world.last)
