"""Tasks and storage points in the ledger: written once, moved by compare-and-swap, replaced by a higher version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import (
    Letters,
    StoragePoint,
    TaskRow,
    create_task,
    list_tasks,
    move_point,
    note_letters,
    read_letters,
    read_points,
    read_task,
    read_task_points,
    replace_points,
)
from tidemark.ledger.leases import Leases, this_process

TASK = TaskRow("billing", "orders", 2, "mixed", "split", {"shop.ä": ("id", "b")}, ("shop.*",), version_ts=5)
POINT = StoragePoint(seq=7, event_index=1, gtids="0-1-6", timestamp=2**53, version_ts=5)


def test_the_first_one_makes_a_task(ledger: Ledger) -> None:
    with ledger.write() as connection:
        assert create_task(connection, TASK, {0: POINT, 1: POINT}) == TASK
        assert create_task(connection, replace(TASK, shards=9), {}) == TASK
    with ledger.read() as connection:
        assert read_task(connection, "billing") == TASK
        assert read_task(connection, "other") is None
        assert list_tasks(connection) == list_tasks(connection, "orders") == [TASK]
        assert list_tasks(connection, "others") == []
        assert read_points(connection, "billing") == {0: POINT, 1: POINT}


def test_dead_letters_are_counted_by_task_and_file(ledger: Ledger) -> None:
    here, there = Letters("billing", "h", "/dead", 2), Letters("billing", "i", "/dead", 7)
    with ledger.write() as connection:
        for letters in (here, there, replace(here, task="other")):
            note_letters(connection, letters)
        note_letters(connection, replace(here, count=1))
        note_letters(connection, there, anew=True)
        note_letters(connection, replace(here, task="other", count=0), anew=True)
    with ledger.read() as connection:
        assert read_letters(connection, "billing") == [replace(here, count=3), there]
        assert read_letters(connection, "other") == []


def test_a_point_moves_only_from_where_it_is(ledger: Ledger) -> None:
    ahead = replace(POINT, seq=9, event_index=0)
    with ledger.write() as connection:
        create_task(connection, TASK, {0: POINT, 1: POINT})
        assert move_point(connection, ("billing", 0), POINT, ahead, fence=3)
        for stale in (POINT, replace(ahead, version_ts=4), replace(ahead, event_index=1)):
            assert not move_point(connection, ("billing", 0), stale, replace(ahead, seq=100), fence=3)
        assert read_points(connection, "billing") == {0: ahead, 1: POINT}


def test_what_a_slow_member_writes_behind_a_rewind_is_not_written(ledger: Ledger) -> None:
    changed = replace(TASK, shards=1, generation=2, version_ts=6)
    back = replace(POINT, seq=1, version_ts=6)
    with ledger.write() as connection:
        create_task(connection, TASK, {0: POINT, 1: POINT})
        replace_points(connection, changed, {0: back})
        assert not move_point(connection, ("billing", 0), POINT, replace(POINT, seq=8), fence=1)
        assert not move_point(connection, ("billing", 1), POINT, replace(POINT, seq=8), fence=1)
        assert read_task(connection, "billing") == changed
        assert read_points(connection, "billing") == {0: back}


def test_a_task_and_its_points_are_read_as_of_one_moment(ledger: Ledger) -> None:
    """Also where another one replaces both between the two statements, which PostgreSQL shows."""
    with ledger.write() as connection:
        create_task(connection, TASK, {0: POINT, 1: POINT})
    replaced: list[str] = []

    def replace_before_points(*seen: Any) -> None:
        if "FROM change_point" in seen[2] and not replaced:
            replaced.append(seen[2])
            with ledger.write() as other:
                replace_points(other, replace(TASK, shards=1, version_ts=6), {0: replace(POINT, version_ts=6)})

    sa.event.listen(ledger.engine, "before_cursor_execute", replace_before_points)
    with ledger.read() as connection:
        found = read_task_points(connection, "billing")
        assert found is not None and replaced
        task, points = found
        assert task.shards == len(points) and {point.version_ts for point in points.values()} == {task.version_ts}
        assert read_task_points(connection, "other") is None


def test_leases_are_listed_by_the_beginning_of_their_names(ledger: Ledger) -> None:
    leases = Leases(ledger, this_process())
    for name in ("task:a/0", "task:a/1", "task:a.b/0", "task:ab/0", "task:A/0"):
        leases.acquire_lease(name, "me")
    with ledger.read() as connection:
        assert [row.name for row in leases.list_named(connection, "task:a/")] == ["task:a/0", "task:a/1"]
