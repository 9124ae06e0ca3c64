"""Which files are merged together, from catalog rows alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.merge import plan as merge_plan
from tidemark.receiver.merge.plan import Group, Unit, overlapping_groups, plan_merge, tasks_of

Extents = dict[str, tuple[int, int]]


def unit(file_id: int, extents: Extents, points: int = 10, **change: Any) -> Unit:
    facts: dict[str, Any] = {
        "receiver": "centre",
        "site_id": "site-a",
        "role": "source",
        "path": f"p{file_id}",
        "generation": 1,
        "database": "root.db",
        "model": "tree",
        "format": 4,
        "partition_from": 0,
        "partition_to": 0,
        "location": f"data/{file_id}",
        "sha256": "",
        "size": 1,
        "mods_location": "",
        "mods_sha256": "",
        "points": points * len(extents),
        "rank": (0, file_id, 0, 0, 0),
        "created": 0.0,
        "file_id": file_id,
    }
    devices = tuple(CatalogDevice(device, start, end, points) for device, (start, end) in sorted(extents.items()))
    return Unit(CatalogFile(**{**facts, **change}), devices)


def ids(groups: list[Group] | tuple[Group, ...]) -> list[tuple[int, ...]]:
    return [group.file_ids for group in groups]


def test_files_that_share_a_moment_of_a_device_belong_together() -> None:
    units = [
        unit(1, {"d1": (0, 9)}),
        unit(2, {"d1": (10, 19)}),  # follows, does not touch
        unit(3, {"d1": (19, 30), "d2": (0, 5)}),  # touches 2 at 19
        unit(4, {"d2": (5, 6)}),  # joins through 3
        unit(5, {"d3": (0, 100)}),  # alone
        unit(6, {"d1": (100, 200)}),
        unit(7, {"d1": (150, 160)}),
    ]
    assert ids(overlapping_groups(units)) == [(2, 3, 4), (6, 7)]


def test_a_long_file_joins_what_lies_below_it() -> None:
    units = [unit(1, {"d": (0, 100)}), unit(2, {"d": (5, 6)}), unit(3, {"d": (50, 60)}), unit(4, {"d": (99, 120)})]
    assert ids(overlapping_groups(units)) == [(1, 2, 3, 4)]


def test_groups_are_what_comparing_every_pair_gives() -> None:
    chance = random.Random(7)
    for _ in range(200):
        units = []
        for number in range(1, 9):
            extents = {}
            for device in chance.sample("abc", chance.randint(1, 3)):
                start = chance.randint(0, 60)
                extents[device] = (start, start + chance.randint(0, 12))
            units.append(unit(number, extents))
        assert ids(overlapping_groups(units)) == by_pairs(units)


def by_pairs(units: list[Unit]) -> list[tuple[int, ...]]:
    groups = [{u.file.file_id} for u in units]
    for a in units:
        for b in units:
            touching = any(
                x.device == y.device and x.start <= y.end and y.start <= x.end for x in a.devices for y in b.devices
            )
            if touching:
                joined = [g for g in groups if a.file.file_id in g or b.file.file_id in g]
                groups = [g for g in groups if g not in joined] + [set().union(*joined)]
    return sorted(tuple(sorted(g)) for g in groups if len(g) > 1)


def test_only_files_of_one_site_and_database_merge() -> None:
    same: Extents = {"d": (0, 9)}
    units = [unit(1, same), unit(2, same, site_id="site-b"), unit(3, same, database="other")]
    assert plan_merge(units).groups == ()


def test_a_group_is_merged_while_readers_see_one_of_its_files() -> None:
    hidden = [unit(1, {"d": (0, 9)}, visible=False), unit(2, {"d": (5, 9)}, visible=False)]
    assert plan_merge(hidden).groups == ()
    late = unit(3, {"d": (9, 12)})
    (group,) = plan_merge([*hidden, late]).groups
    assert group.file_ids == (1, 2, 3)
    assert group.rank == (0, 3, 0, 0, 0)


def test_sources_come_lowest_rank_first_whatever_their_ids() -> None:
    units = [unit(1, {"d": (0, 9)}, rank=(1, 5, 0, 0, 0)), unit(2, {"d": (5, 9)}, rank=(0, 9, 0, 0, 0))]
    (group,) = plan_merge(units).groups
    assert [u.file.file_id for u in group.units] == [2, 1]


def test_files_with_series_that_are_not_decoded_stay_as_they_came() -> None:
    units = [unit(1, {"d": (0, 9)}), unit(2, {"d": (5, 9)}, undecodable=("d.s: SPRINTZ",))]
    plan = plan_merge(units)
    assert plan.groups == ()
    ((group, subject, reason),) = plan.kept
    assert (group.file_ids, subject) == ((1, 2), "data/2") and "d.s: SPRINTZ" in reason
    assert plan_merge(units, tried={group.digest}).kept == ()


def test_what_was_tried_is_not_tried_again_until_a_file_changes() -> None:
    units = [unit(1, {"d": (0, 9)}), unit(2, {"d": (5, 9)})]
    (group,) = plan_merge(units).groups
    assert plan_merge(units, tried={group.digest}).groups == ()
    assert len(plan_merge([units[0], unit(3, {"d": (5, 9)})], tried={group.digest}).groups) == 1


@pytest.mark.parametrize(("partition", "found"), [(None, 2), (4, 1), (7, 1), (9, 0)])
def test_one_partition_may_be_asked_for(partition: int | None, found: int) -> None:
    units = [
        unit(1, {"d": (0, 9)}, partition_from=3, partition_to=4),
        unit(2, {"d": (5, 9)}, partition_from=3, partition_to=3),
        unit(3, {"e": (0, 9)}, partition_from=7, partition_to=7),
        unit(4, {"e": (5, 9)}, partition_from=7, partition_to=7),
    ]
    assert len(plan_merge(units, partition=partition).groups) == found


def test_tasks_share_the_devices_and_read_only_files_that_hold_theirs() -> None:
    group = Group((unit(1, {"a": (0, 9), "b": (0, 9)}), unit(2, {"b": (0, 9), "c": (0, 9), "d": (0, 9)})))
    tasks = tasks_of(group, 3, "/root", "staging/x", 10, task_points=20)
    assert [task.devices for task in tasks] == [("a",), ("b",), ("c", "d")]
    assert [[s.location for s in task.sources] for task in tasks] == [["data/1"], ["data/1", "data/2"], ["data/2"]]
    assert [(task.group, task.number) for task in tasks] == [(3, 0), (3, 1), (3, 2)]


def test_every_source_and_its_deletions_are_proved_by_one_task() -> None:
    both = {"a": (0, 9), "b": (0, 9), "c": (0, 9)}
    group = Group((unit(1, both, sha256="one"), unit(2, both, sha256="two", mods_location="m", mods_sha256="three")))
    tasks = tasks_of(group, 0, "/root", "staging/x", 10, task_points=20)
    assert [task.prove[0][:2] for task in tasks] == [("data/1", "one"), ("data/2", "two"), ("m", "three")]


def test_devices_that_are_only_copied_hardly_count() -> None:
    alone = {f"d{n}": (0, 9) for n in range(10)}
    group = Group((unit(1, alone | {"x": (0, 9)}), unit(2, {"d0": (10, 19), "x": (5, 15)})))
    assert [task.devices for task in tasks_of(group, 0, "/root", "staging/x", 10, task_points=25)] == [(*alone,), ("x",)]
    assert group.work == 9 * 1 + 20 // 8 + 20 < group.points
    touched = Group((unit(1, alone, mods_location="mods"), unit(2, {"d0": (5, 15)})))
    assert touched.work == touched.points, "what deletions may touch is decoded"


def test_with_a_cluster_a_file_that_spans_partitions_is_a_group_of_its_own() -> None:
    wide = unit(1, {"d": (0, 9)}, partition_to=1)
    near = unit(2, {"e": (0, 9)})
    assert plan_merge([wide, near]).groups == (), "without one it stays"
    (group,) = plan_merge([wide, near], cut=True).groups
    assert group.file_ids == (1,) and group.rank == (0, 1, 0, 0, 0)
    assert [task.devices for task in tasks_of(group, 0, "/r", "staging/x", 1000)] == [("d",)]


def test_a_spanning_file_that_overlaps_is_merged_as_ever() -> None:
    units = [unit(1, {"d": (0, 9)}, partition_to=1), unit(2, {"d": (5, 6)})]
    assert ids(plan_merge(units, cut=True).groups) == ids(plan_merge(units).groups) == [(1, 2)]


@pytest.mark.parametrize("change", [{"visible": False}, {"role": "merged"}])
def test_what_was_cut_is_not_cut_again(change: dict[str, Any]) -> None:
    assert plan_merge([unit(1, {"d": (0, 9)}, partition_to=1, **change)], cut=True).groups == ()


def test_a_cut_obeys_what_every_merge_obeys() -> None:
    wide = unit(7, {"d": (0, 9)}, partition_to=3)
    (group,) = plan_merge([wide], cut=True).groups
    assert plan_merge([wide], cut=True, tried={group.digest}).groups == ()
    assert plan_merge([wide], cut=True, partition=4).groups == () and plan_merge([wide], cut=True, partition=2).groups
    assert plan_merge([wide], cut=True, to_go={7: {"late": "why"}}).waiting == (("late", "why"),)


def test_a_file_over_very_many_partitions_stays_whole() -> None:
    extents = {"d": (0, 9)}
    assert plan_merge([unit(1, extents, partition_to=merge_plan.MOST_PARTS - 1)], cut=True).groups
    plan = plan_merge([unit(1, extents, partition_to=merge_plan.MOST_PARTS)], cut=True)
    ((_, subject, reason),) = plan.kept
    assert plan.groups == () and subject == "data/1" and "501 partitions" in reason
