"""What a change is planned to do: who must know of it, what moves, what becomes of slots, and what is refused."""

from __future__ import annotations

import pytest

from tidemark.cluster.membership.plan import ChangePlan, first_table, plan_change, plan_init
from tidemark.cluster.slots.balance import original_balance
from tidemark.cluster.slots.hash_ring import SlotHash
from tidemark.cluster.slots.states import SlotState
from tidemark.cluster.slots.table import PartitionTable
from tidemark.errors import OutcomeUnknownError, RetryableError, UsageError

SIZES = {slot: 10 * slot for slot in range(60)}


def table(*names: str, slots: int = 60, replicas: int = 2) -> PartitionTable:
    return first_table(names, replicas, slots, SlotHash.FULL)


THREE = table("a", "b", "c")
JOINED = plan_change(THREE, "add", "d", SIZES)
LEFT = plan_change(THREE, "remove", "b", SIZES)


@pytest.mark.parametrize("plan", [JOINED, LEFT])
def test_every_slot_whose_group_changes_moves_and_no_other(plan: ChangePlan) -> None:
    moved = {slot: (set(move.old), set(move.new)) for move in plan.moves for slot in move.slots}
    for slot in range(60):
        before, now = set(THREE.group_of(slot)), set(plan.new.group_of(slot))
        assert moved.get(slot, (before, before)) == (before, now)
    lacking = {slot: len(new - old) for slot, (old, new) in moved.items()}
    assert plan.slots == len(moved) and plan.bytes == sum(SIZES[slot] * count for slot, count in lacking.items()) > 0
    assert sum(plan.gained_bytes(SIZES).values()) == plan.bytes
    assert plan.new.epoch == THREE.epoch + 1


def test_what_a_node_gains_is_counted_for_it() -> None:
    lacking = [slot for slot in range(60) if JOINED.new.holds_slot("d", slot)]
    assert JOINED.gained_slots()["d"] == len(lacking)
    assert JOINED.gained_bytes(SIZES)["d"] == sum(SIZES[slot] for slot in lacking)
    assert JOINED.gained_bytes({})["d"] == 0


def test_everybody_of_an_old_or_new_group_takes_the_table() -> None:
    assert JOINED.takers == {"a", "b", "c", "d"}
    assert LEFT.takers == {"a", "b", "c"}


def test_every_group_old_and_new_needs_its_quorum() -> None:
    assert JOINED.without_quorum({"a", "b", "c", "d"}, 2) == ()
    for away in "abcd":
        lacking = JOINED.without_quorum({"a", "b", "c", "d"} - {away}, 2)
        assert lacking and all(away in group for group in lacking)
        assert JOINED.without_quorum({"a", "b", "c", "d"} - {away}, 1) == ()
    assert all("b" in group for group in LEFT.without_quorum({"a", "c"}, 2)), "the old groups of who leaves, too"
    assert (
        table("a", replicas=1).groups_by_header()
        and plan_init(table("a", replicas=1), [], {}).without_quorum({"a"}, 2) == ()
    )


@pytest.mark.parametrize("plan", [JOINED, LEFT])
def test_at_the_swap_who_gains_a_slot_pulls_and_who_loses_it_sends(plan: ChangePlan) -> None:
    states = plan.swap_states({})
    for slot in range(60):
        before, now = set(THREE.group_of(slot)), set(plan.new.group_of(slot))
        for name in "abcd":
            expected = None
            if name in now - before:
                expected = SlotState.PULLING
            elif name in before - now:
                expected = SlotState.SENDING
            assert states.get((name, slot)) == expected
    assert plan.swap_states(states) == states, "told again it changes nothing"


def test_a_slot_of_an_earlier_change_stops_the_swap() -> None:
    lost = next(key for key, state in JOINED.swap_states({}).items() if state is SlotState.SENDING)
    with pytest.raises(OutcomeUnknownError):
        JOINED.swap_states({lost: SlotState.SENT})


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="a node of the cluster already"):
        plan_change(THREE, "add", "a", SIZES)
    with pytest.raises(UsageError, match="no node of the cluster"):
        plan_change(THREE, "remove", "z", SIZES)
    with pytest.raises(UsageError, match="none of them can leave"):
        plan_change(table("a", "b"), "remove", "a", SIZES)
    with pytest.raises(UsageError, match="no change of the nodes"):
        plan_change(THREE, "grow", "a", SIZES)
    with pytest.raises(RetryableError, match="still move"):
        plan_change(JOINED.new, "remove", "a", SIZES)
    with pytest.raises(UsageError, match="as many nodes"):
        table("a", replicas=2)


@pytest.mark.full
def test_the_first_table_is_even_or_the_original_s() -> None:
    names = [f"n{number}" for number in range(115)]
    counts = [first_table(names, 3, 10_000, SlotHash.FULL).owners.count(name) for name in names]
    assert max(counts) - min(counts) <= 1
    ranges = [first_table(names, 3, 10_000, SlotHash.FULL, original_balance).owners.count(name) for name in names]
    assert sorted(ranges) == [86] * 114 + [196]


def test_what_a_receiver_has_comes_to_its_first_nodes() -> None:
    plan = plan_init(THREE, [3, 7], {7: 100})
    assert [(move.first, move.old, move.new) for move in plan.moves] == [
        (3, (), THREE.group_of(3)),
        (7, (), THREE.group_of(7)),
    ]
    assert (plan.slots, plan.bytes, plan.takers) == (2, 200, {"a", "b", "c"})
    assert set(plan.swap_states({}).values()) == {SlotState.PULLING}


def test_a_slot_that_goes_to_another_group_of_the_same_nodes_is_handed_over() -> None:
    two = table("a", "b")
    plan = plan_change(two, "rebalance", "", {}, lambda owners, _nodes: owners[::-1])
    assert plan.moves == () and plan.slots == plan.bytes == 0 and plan.swap_states({}) == {}
    handed = {move.first: (move.old, move.new) for move in plan.handed}
    changed = [slot for slot in range(60) if two.owners[slot] != plan.new.owners[slot]]
    assert handed == {slot: (two.group_of(slot), plan.new.group_of(slot)) for slot in changed} and changed
