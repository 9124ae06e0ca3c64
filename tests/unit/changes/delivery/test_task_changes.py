"""A task that is rewound or divided anew: what was planned is what happens, and no row is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.delivery_worlds import SERVER, Change, World, changes_of, expected_changes
from tidemark.changes.delivery import tasks
from tidemark.changes.delivery.storage_points import point_at
from tidemark.changes.delivery.stream import Options
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store.read import Reader
from tidemark.errors import UsageError
from tidemark.ledger.delivery import list_tasks, replace_points
from tidemark.ledger.leases import Leases, this_process
from tidemark.proof.why.changes import explain_task


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


def test_a_rewind_that_a_member_cannot_follow_stands(world: World) -> None:
    """What the consumer kept is refused while the member goes back: its place of before is not written over the rewind."""
    is_broken = False

    def give(_shard: int) -> None:
        if is_broken:
            raise UsageError("no point")

    member = world.member(Options(rows=3, follow=False, given=give), shards=1)
    member.join()
    for _ in range(20):
        batch = member.next_batch(patience=0)
        assert batch is not None and batch.done()
    world.rewind("seq:2")
    is_broken = True
    with pytest.raises(UsageError):
        member.beat()
    member.close()
    assert world.points()[0].seq == 2


def test_a_kept_point_of_before_a_rewind_does_not_win_over_it(world: World) -> None:
    member = world.member(Options(rows=3, follow=False), shards=1)
    member.join()
    batches = [member.next_batch(patience=0) for _ in range(20)]
    assert batches[-1] is not None
    world.rewind("seq:2")
    member.beat()
    kept = batches[-1].point  # asked for when the rewind is known
    member.close()
    member = world.member(Options(rows=3, follow=False, given=lambda _shard: kept), shards=1)
    member.join()
    first = member.next_batch(patience=0)
    assert first is not None and changes_of(first)[0] == (2, 0)
    member.close()


def test_a_point_keeps_what_is_done_beyond_it_while_the_member_reads_ahead(world: World) -> None:
    member = world.member(shards=1)
    point = replace(point_at(Reader(world.disk), 15, member.task.version_ts), gtids=f"{SERVER}:1-14:18")
    with world.ledger.write() as connection:
        replace_points(connection, member.task, {0: point})
    member = world.member(Options(rows=1, follow=False, undone=1000), shards=1)
    member.join()
    first = member.next_batch(patience=0)
    while member.next_batch(patience=0) is not None:
        pass  # blocks behind transaction 18 are read
    assert first is not None and first.done()
    member.close()
    assert world.points()[0].gtids == f"{SERVER}:1-15:18"
    assert consume_all(world) == expected_changes(15, world.last) - expected_changes(18, 18) - {changes_of(first)[0]}


def test_a_change_that_was_planned_before_another_one_is_refused(world: World) -> None:
    world.member(shards=4)
    everything = world.member(shards=None).wants
    late = tasks.plan_rewind(world.ledger, world.disk, everything, "billing", "seq:30", [2], now=2001.0)
    world.reshard(3)  # gives it a lower version than the late one has
    with pytest.raises(UsageError, match="changed meanwhile"):
        tasks.apply_change(world.ledger, late, "rewind")
    assert set(world.points()) == {0, 1, 2}


@pytest.mark.parametrize("wanted", [Wanted("billing", "orders", 0), Wanted("billing", "orders", tables=())])
def test_no_shards_and_no_tables_are_not_the_default(world: World, wanted: Wanted) -> None:
    with pytest.raises(UsageError):
        tasks.open_task(world.ledger, world.disk, wanted, 1000.0)
    with world.ledger.read() as connection:
        assert list_tasks(connection) == []


def test_a_task_that_is_ahead_of_its_store_is_told(world: World) -> None:
    member = world.member(shards=1)
    point = point_at(Reader(world.disk), world.last + 1, member.task.version_ts)
    with world.ledger.write() as connection:
        ahead = replace(point, gtids=f"{SERVER}:1-100", seq=101, transaction_id=100, binlog_offset=100_000)
        replace_points(connection, member.task, {0: ahead})
    told = tasks.show_task(Leases(world.ledger, this_process()), world.disk, member.task, 0.0)
    assert "ahead of the store" in told["points"][0]["trouble"]
    explained = explain_task("task:billing", told)
    assert (explained.state, explained.cause) == ("refused", told["points"][0]["trouble"])
