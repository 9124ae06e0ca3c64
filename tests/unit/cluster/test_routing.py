"""Where files belong: every slot they touch, every member of its group, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tidemark.cluster.slots import routing
from tidemark.cluster.slots.balance import first_owners
from tidemark.cluster.slots.hash_ring import Node, SlotHash, data_slot
from tidemark.cluster.slots.table import PartitionTable, begin_table


@dataclass(frozen=True)
class File:
    database: str = "root.a"
    partition_from: int = 0
    partition_to: int = 0
    location: str = "data/a"
    mods_location: str = ""


def a_table(nodes: int = 5, replicas: int = 3, slots: int = 100, kind: SlotHash = SlotHash.FULL) -> PartitionTable:
    ring = [Node(number * 10, f"n{number}") for number in range(1, nodes + 1)]
    return begin_table(ring, replicas, first_owners(slots, [node.name for node in ring]), kind)


def test_a_file_of_one_partition_has_one_slot_and_its_group() -> None:
    table = a_table()
    route = table.route_data("root.a", 7)
    file = File(partition_from=7, partition_to=7)

    assert routing.slots_of(table, "root.a", 7, 7) == (route.slot,)
    assert routing.home_slot(table, file) == route.slot
    assert routing.routes_of(table, file) == (route,)
    assert set(routing.members_of(table, file)) == set(route.members)


def test_a_file_of_several_partitions_is_in_every_group_that_has_a_slot_of_it() -> None:
    table = a_table(nodes=7, replicas=2)
    file = File(partition_from=-3, partition_to=3)
    routes = [table.route_data("root.a", partition) for partition in range(-3, 4)]

    assert routing.slots_of(table, "root.a", -3, 3) == tuple(sorted({route.slot for route in routes}))
    assert routing.home_slot(table, file) == routes[0].slot
    assert set(routing.members_of(table, file)) == {name for route in routes for name in route.members}


def test_members_come_in_the_order_of_the_ring_each_once() -> None:
    table = a_table(nodes=3)
    assert routing.members_of(table, File(partition_to=50)) == ("n1", "n2", "n3")


def test_wanted_copies_name_every_node_and_the_mods_beside_their_file() -> None:
    table = a_table(nodes=4, replicas=2)
    files = [File(location="data/a", mods_location="data/a.mods"), File("root.b", 0, 3, "data/b")]

    wanted = routing.wanted_copies(table, files)

    assert set(wanted) == {"n1", "n2", "n3", "n4"}
    for file in files:
        holders = {name for name, locations in wanted.items() if file.location in locations}
        assert holders == set(routing.members_of(table, file))
    assert all(("data/a" in locations) == ("data/a.mods" in locations) for locations in wanted.values())
    assert routing.wanted_copies(table, []) == {"n1": set(), "n2": set(), "n3": set(), "n4": set()}


def test_a_file_over_all_of_time_does_not_take_for_ever() -> None:
    table = a_table()
    every = tuple(range(100))
    assert routing.slots_of(table, "root.a", -(1 << 63), (1 << 63) - 1) == every
    assert routing.slots_of(table, "root.a", 0, 60_000) == every


def test_the_last_partition_is_not_before_the_first() -> None:
    with pytest.raises(ValueError, match=r"root\.a"):
        routing.slots_of(a_table(), "root.a", 3, 2)


def test_the_hash_of_the_cluster_decides() -> None:
    full, compat = a_table(slots=10_000), a_table(slots=10_000, kind=SlotHash.COMPAT)
    assert routing.slots_of(full, "root.a", 3, 3) == (data_slot("root.a", 3, 10_000),)
    assert routing.slots_of(compat, "root.a", 3, 3) == (data_slot("root.a", 3, 10_000, SlotHash.COMPAT),)
