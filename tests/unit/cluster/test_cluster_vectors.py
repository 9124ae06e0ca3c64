"""The worked examples of the original's cluster: ring, groups, moves, who pulls from whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemark.cluster.migration.plan import Move, group_into_batches, plan_moves
from tidemark.cluster.slots import balance
from tidemark.cluster.slots.hash_ring import Group, Node
from tidemark.cluster.slots.table import PartitionTable, begin_table
from tidemark.errors import UsageError

FILE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "cluster_vectors.json").read_text())
CASES: dict[str, Any] = {case["id"]: case for case in FILE["cases"]}
SETUP = FILE["setup"]
REPLICAS = SETUP["replicas"]


def node(name: object) -> Node:
    return Node(SETUP["identifiers"][str(name)], str(name))


def names(listed: list[int]) -> Group:
    return tuple(map(str, listed))


def cluster(*nodes: int) -> PartitionTable:
    members = [node(name) for name in nodes]
    return begin_table(members, REPLICAS, balance.first_owners(SETUP["slots"], names(list(nodes))))


def spans(table: PartitionTable, name: str) -> list[list[int]]:
    found: list[list[int]] = []
    for slot, owner in enumerate(table.owners):
        if owner == name:
            if found and found[-1][1] == slot - 1:
                found[-1][1] = slot
            else:
                found.append([slot, slot])
    return found


def count(table: PartitionTable) -> dict[str, int]:
    return {name: table.owners.count(name) for name in table.ring.names}


FIVE = cluster(1, 2, 3, 4, 5)
SIX = FIVE.with_node(node(6), balance.original_balance)


def test_the_first_table() -> None:
    assert {name: spans(FIVE, name) for name in FIVE.ring.names} == {n: [span] for n, span in SETUP["initial"].items()}


def test_e1_a_node_joins() -> None:
    case = CASES["E1"]
    assert FIVE.ring.names == names(case["ring_before"]) and SIX.ring.names == names(case["ring_after"])
    for name, told in case["slots_after"].items():
        assert spans(SIX, name) == told["ranges"] and SIX.owners.count(name) == told["count"]
    assert SIX.groups_by_header() == {header: names(group) for header, group in case["groups_after"].items()}
    assert SIX.epoch == FIVE.epoch + 1


@pytest.mark.parametrize("told", CASES["E2"]["groups"], ids=lambda told: str(told["header"]))
def test_e2_the_groups_when_a_node_has_joined(told: dict[str, Any]) -> None:
    assert FIVE.groups_by_header()[str(told["header"])] == names(told["before"])
    assert SIX.groups_by_header()[str(told["header"])] == names(told["formal"])


@pytest.mark.parametrize("variant", CASES["E8"]["variants"], ids=lambda variant: str(variant["node"]))
def test_e8_a_node_joins_at_an_end_of_the_ring(variant: dict[str, Any]) -> None:
    after = FIVE.with_node(node(variant["node"]), balance.original_balance)
    assert after.ring.names == names(variant["ring_after"])
    assert after.groups_by_header()[str(variant["node"])] == names(variant["new_group"])
    for told in variant["groups"]:
        assert after.groups_by_header()[str(told["header"])] == names(told["formal"])


def pulls(move: Move) -> dict[str, str | None]:
    """Member of the new group → whom it asks first; None where it has the data already."""
    (batch,) = group_into_batches(move.epoch, [(slot, move.old, move.new) for slot in move.slots], {})
    return {member: batch.sources_for(member)[0] if member in batch.gaining else None for member in batch.new}


def test_e3_who_pulls_from_whom() -> None:
    found = {(move.first, move.last): move for move in plan_moves(SIX) if move.new[0] == "6"}
    assert len(found) == len(CASES["E3"]["plan"])
    for told in CASES["E3"]["plan"]:
        move = found[tuple(told["slots"])]
        assert move.old == names(told["old_group"]) and move.new == names(CASES["E3"]["new_group"])
        assert pulls(move) == {str(m["member"]): m["pull_from"] and str(m["pull_from"]) for m in told["members"]}
        assert sorted(move.deleting) == sorted(names(told["delete_after_all_acknowledged"]))


def test_a_replaced_member_gets_the_slots_that_stay_with_their_group() -> None:
    """The original leaves these to the catch-up of its logs; here they are files like the others."""
    move = next(move for move in plan_moves(SIX) if (move.old, move.new) == (("1", "2", "3"), ("1", "2", "6")))
    assert (move.first, move.last) == (0, 1665) and move.deleting == ("3",)
    assert pulls(move) == {"1": None, "2": None, "6": "3"}


def test_e4_a_node_leaves() -> None:
    case = CASES["E4"]
    after = FIVE.without_node("3", balance.original_balance)
    assert after.ring.names == names(case["ring_after"]) and count(after) == case["slots_after"]
    for slot, name in case["first_moves"].items():
        assert after.owners[int(slot)] == str(name)
    leaves(case["groups"], after)
    for told in case["pull"]:
        move = next(m for m in plan_moves(after) if m.old == names(told["old_group"]) and m.new == names(told["new_group"]))
        assert pulls(move) == {str(m["member"]): m["pull_from"] and str(m["pull_from"]) for m in told["members"]}


def test_e9_the_head_of_the_ring_leaves() -> None:
    after = FIVE.without_node("1", balance.original_balance)
    assert after.ring.names == names(CASES["E9"]["ring_after"])
    leaves(CASES["E9"]["groups"], after)


def leaves(groups: list[dict[str, Any]], after: PartitionTable) -> None:
    for told in groups:
        if told.get("dismissed"):
            assert str(told["header"]) not in after.groups_by_header()
        else:
            assert after.groups_by_header()[str(told["header"])] == names(told["formal"])


def test_e5_a_node_leaves_after_another_joined() -> None:
    case = CASES["E5"]
    settled = SIX.with_moved(SIX.moving)
    after = settled.without_node("3", balance.original_balance)
    assert after.ring.names == names(case["ring_after"]) and count(after) == case["slots_after"]
    for slot, name in case["first_moves"].items():
        assert after.owners[int(slot)] == str(name)


def test_e6_the_fourth_node() -> None:
    case = CASES["E6"]
    three = cluster(1, 2, 3)
    assert count(three) == case["slots_before"]
    after = three.with_node(node(4), balance.original_balance)
    for name, told in case["slots_after"].items():
        assert sorted(spans(after, name)) == told["ranges"] and after.owners.count(name) == told["count"]


def test_e7_seven_nodes_and_any_number() -> None:
    owners = balance.first_owners(10_000, [str(number) for number in range(1, 8)])
    for name, (first, last, held) in CASES["E7"]["slots"].items():
        assert (owners.index(name), owners.count(name)) == (first, held) and set(owners[first : last + 1]) == {name}
    for many in (110, 115, 118, 399, 9_999, 10_000, 12_000):  # the first three are too many for the original
        assert len(balance.first_owners(10_000, [str(number) for number in range(many)])) == 10_000


def test_e10_too_few_would_be_left() -> None:
    with pytest.raises(UsageError, match="none of them can leave"):
        cluster(1, 2, 3).without_node("2", balance.original_balance)
