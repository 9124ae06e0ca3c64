"""The partition table: what it refuses, what moves after a change, and that it comes back from its bytes as it was."""

from __future__ import annotations

import contextlib
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.migration.plan import group_into_batches, plan_moves
from tidemark.cluster.slots import balance
from tidemark.cluster.slots.hash_ring import Node, SlotHash, identifier_of
from tidemark.cluster.slots.states import AGAIN, TRANSITIONS, SlotEvent, SlotState, next_state
from tidemark.cluster.slots.table import PartitionTable, begin_table, decode_table, encode_table
from tidemark.errors import CorruptionError, OutcomeUnknownError, RetryableError, SchemaTooNewError, UsageError


def node(name: str) -> Node:
    return Node(identifier_of(name), name)


def table(*names: str, slots: int = 100, replicas: int = 2, kind: SlotHash = SlotHash.FULL) -> PartitionTable:
    members = [node(name) for name in names]
    return begin_table(members, replicas, balance.even_slots(("",) * slots, names), kind)


THREE = table("a", "b", "c")


def test_a_route_names_the_group_and_who_had_the_slot_before() -> None:
    route = THREE.route_data("root.sg", 2_700)
    assert route.members == THREE.group_of(route.slot) and route.header == THREE.owners[route.slot]
    assert route.before == () and route.epoch == 1
    grown = THREE.with_node(node("d"), balance.even_slots)
    for slot in grown.moving:
        assert set(grown.moving[slot]) == set(THREE.group_of(slot)) != set(grown.group_of(slot))
    for slot in set(range(100)) - set(grown.moving):
        assert set(grown.group_of(slot)) == set(THREE.group_of(slot))
    assert {grown.route_data("root.sg", number).before for number in range(200)} > {()}


def test_what_it_refuses() -> None:
    grown = THREE.with_node(node("d"), balance.even_slots)
    with pytest.raises(RetryableError, match="still move"):
        grown.without_node("a", balance.even_slots)
    settled = grown.with_moved(grown.moving)
    assert settled.epoch == grown.epoch and not settled.moving
    with pytest.raises(UsageError, match="a node of the cluster already"):
        settled.with_node(node("d"), balance.even_slots)
    with pytest.raises(UsageError, match="no node of the cluster"):
        settled.without_node("z", balance.even_slots)
    with pytest.raises(UsageError, match="same place"):
        settled.with_node(Node(identifier_of("a"), "z"), balance.even_slots)
    with pytest.raises(UsageError, match="there are 1"):
        table("a")
    with pytest.raises(UsageError, match="twice"):
        begin_table([node("a"), node("a")], 1, ("a",))


@given(st.integers(3, 6), st.data())
def test_what_still_moves_goes_on_to_the_next_table_and_no_holder_is_forgotten(nodes: int, data: st.DataObject) -> None:
    """A node joins, some slots have moved, one of the nodes dies: another one takes its place, or nobody."""
    names = [f"n{number}" for number in range(nodes)]
    open_still = table(*names, replicas=3).with_node(node("n8"), balance.even_slots)
    open_still = open_still.with_moved(data.draw(st.sets(st.sampled_from(sorted(open_still.moving)))))
    dead = data.draw(st.sampled_from([*names, "n8"]))
    if data.draw(st.booleans()):
        following = open_still.replace_node(dead, node("n9"), balance.even_slots, supersedes=True)
    else:
        following = open_still.without_node(dead, balance.even_slots, supersedes=True)
    assert following.epoch == open_still.epoch + 1 and dead not in following.ring
    for slot in range(100):
        before, then, now = (open_still.moving.get(slot, ()), open_still.group_of(slot), following.group_of(slot))
        if not before and set(then) == set(now):
            assert slot not in following.moving
            continue
        asked = following.moving[slot]
        assert set(before or then) <= set(asked) <= {*before, *then}, "files are there that came before, and newer ones"
        assert set(then) <= {*asked, *now}, "who had newer files is asked, or still has the slot"
        assert not before or not (set(now) - set(before)) & set(asked), "who was being filled is filled to the end"


def test_a_node_is_replaced_in_one_step_and_only_it_gives_slots_where_each_node_has_all() -> None:
    every = table("a", "b", "c", replicas=3)
    replaced = every.replace_node("b", node("d"), balance.even_slots)
    assert set(replaced.moving) == set(range(100))
    assert all({*group} == {"a", "b", "c"} for group in replaced.moving.values())
    assert all({*replaced.group_of(slot)} == {"a", "c", "d"} for slot in range(100))
    with pytest.raises(RetryableError, match="cannot replace c: 100 slots"):
        replaced.replace_node("c", node("e"), balance.even_slots)
    with pytest.raises(UsageError, match="no node of the cluster"):
        every.replace_node("z", node("d"), balance.even_slots)
    with pytest.raises(UsageError, match="a node of the cluster already"):
        every.replace_node("b", node("a"), balance.even_slots)


def test_every_slot_that_moves_is_in_one_move() -> None:
    grown = THREE.with_node(node("d"), balance.even_slots)
    covered = [slot for move in plan_moves(grown) for slot in move.slots]
    assert sorted(covered) == sorted(grown.moving)


def test_each_member_asks_everybody_else_of_the_old_group_who_has_its_place_first() -> None:
    grown = THREE.with_node(node("d"), balance.even_slots)
    found = group_into_batches(grown.epoch, [(slot, old, grown.group_of(slot)) for slot, old in grown.moving.items()], {})
    assert sorted(slot for batch in found for slot in batch.slots) == sorted(grown.moving)
    for batch in found:
        for place, member in enumerate(batch.new):
            asked = batch.sources_for(member)
            assert sorted(asked) == sorted(set(batch.old) - {member})
            assert batch.old[place] in (member, asked[0])


@given(st.integers(1, 40), st.integers(1, 300), st.sampled_from(SlotHash), st.integers(0, 1 << 30))
def test_a_table_comes_back_from_its_bytes(nodes: int, slots: int, kind: SlotHash, seed: int) -> None:
    names = [f"node{number}" for number in range(nodes)]
    begun = table(*names, slots=slots, replicas=min(3, nodes), kind=kind)
    changed = begun.with_node(node(f"late{seed}"), balance.even_slots)
    for one in (begun, changed, changed.with_moved(list(changed.moving)[::2])):
        assert decode_table(encode_table(one)) == one
        assert encode_table(decode_table(encode_table(one))) == encode_table(one)


def test_a_large_table_is_small_in_bytes() -> None:
    names = [f"site-{number:04}.example" for number in range(1_000)]
    shuffled = random.Random(7)
    owners = tuple(shuffled.choice(names) for _ in range(10_000))
    large = begin_table([node(name) for name in names], 3, owners).with_node(node("new"), balance.even_slots)
    assert len(encode_table(large)) <= 60_000


@given(st.data())
def test_damaged_bytes_are_no_table(data: st.DataObject) -> None:
    whole = encode_table(THREE)
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    broken = bytearray(whole)
    broken[at] ^= 1 << bit
    with contextlib.suppress(CorruptionError, SchemaTooNewError):
        assert decode_table(bytes(broken)) == THREE  # a few bits before the checksum only fill a byte up: they mean nothing
    with pytest.raises(CorruptionError):
        decode_table(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptionError):
        decode_table(whole + b"\0")
    with pytest.raises(CorruptionError):
        decode_table(whole[:1] + zlib.compress(b'{"epoch":1}'))


def test_the_states_of_a_slot() -> None:
    new, old = SlotState.NULL, SlotState.NULL
    for event in (SlotEvent.GAINED, SlotEvent.SCHEMA_LOADED, SlotEvent.FILES_LOADED):
        new = next_state(next_state(new, event), event)  # every event may be told twice
    for event in (SlotEvent.LOST, SlotEvent.ALL_ACKNOWLEDGED, SlotEvent.FILES_GONE):
        old = next_state(next_state(old, event), event)
    assert new is old is SlotState.NULL
    for state in SlotState:
        for event in SlotEvent:
            if (state, event) not in TRANSITIONS and (state, event) not in AGAIN:
                with pytest.raises(OutcomeUnknownError, match=f"{state} cannot be {event}"):
                    next_state(state, event)
