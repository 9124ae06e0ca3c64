"""Who gets which slots: as even as can be, with no move too many, whatever joined and left before."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.balance import Balance, Owners, even_slots, even_weights, moves

NODES = [f"n{number}" for number in range(12)]
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=20)


def sequence(slots: int, changes: list[tuple[bool, int]], balance: Balance) -> list[tuple[Owners, Owners, list[str]]]:
    """(before, after, nodes) of every change that can be made."""
    members = ["n0", "n1", "n2"]
    owners = balance(("nobody",) * slots, members)
    steps = [(("nobody",) * slots, owners, list(members))]
    for joins, number in changes:
        name = NODES[number]
        if joins != (name in members) and (joins or len(members) > 1):
            members = sorted([*members, name]) if joins else [other for other in members if other != name]
            after = balance(owners, members)
            steps.append((owners, after, list(members)))
            owners = after
    return steps


@given(CHANGES, st.integers(12, 500))
def test_even_slots_differ_by_one_and_move_no_more_than_they_must(changes: list[tuple[bool, int]], slots: int) -> None:
    for before, after, nodes in sequence(slots, changes, even_slots):
        counts = Counter(after)
        held = [counts[name] for name in nodes]
        assert set(after) <= set(nodes) and max(held) - min(held) <= 1
        had = Counter(before)
        least, over = divmod(slots, len(nodes))
        richest = sorted((had[name] for name in nodes), reverse=True)
        kept = sum(min(count, least + (rank < over)) for rank, count in enumerate(richest))
        assert len(moves(before, after)) == slots - kept


@given(CHANGES, st.integers(0, 1 << 30))
def test_even_weights_move_what_is_above_the_mean(changes: list[tuple[bool, int]], seed: int) -> None:
    shuffled = random.Random(seed)
    weights = {slot: int(1e9 / (rank + 1)) for rank, slot in enumerate(shuffled.sample(range(2_000), 2_000))}  # Zipf 1.0
    for before, after, nodes in sequence(2_000, changes, even_weights(weights)):
        loads: Counter[str] = Counter()
        had: Counter[str] = Counter()
        for slot, weight in weights.items():
            loads[after[slot]] += weight
            had[before[slot]] += weight
        mean = sum(weights.values()) / len(nodes)
        assert set(after) <= set(nodes)
        largest = max(weights.values())
        assert max(loads.values()) <= 1.15 * max(mean, largest)  # few nodes that hold large slots alone cannot be cut finer
        moved = sum(weights[slot] for slot in moves(before, after))
        must = sum(max(0, had[name] - mean) if name in nodes else had[name] for name in had)
        assert moved <= 1.01 * must + largest  # where few nodes hold large slots alone, room is made for them


def test_of_many_slots_no_more_moves_than_must() -> None:
    shuffled = random.Random(3)
    weights = {slot: int(1e9 / (rank + 1)) for rank, slot in enumerate(shuffled.sample(range(10_000), 10_000))}
    nodes = [f"n{number:02}" for number in range(5)]
    owners = even_weights(weights)(("nobody",) * 10_000, nodes)
    for number in range(5, 12):
        before, nodes = owners, [*nodes, f"n{number:02}"]
        owners = even_weights(weights)(before, nodes)
        had = Counter(dict.fromkeys(nodes, 0))
        for slot, name in enumerate(before):
            had[name] += weights[slot]
        mean = sum(weights.values()) / len(nodes)
        must = sum(max(0, load - max(mean, *weights.values())) for load in had.values())
        now = Counter(dict.fromkeys(nodes, 0))
        for slot, name in enumerate(owners):
            now[name] += weights[slot]
        assert max(now.values()) <= 1.03 * max(mean, *weights.values())
        moved = sum(weights[slot] for slot in moves(before, owners))
        assert moved <= 1.01 * max(must, sum(max(0, load - mean) for load in had.values()))


def test_a_slot_that_is_larger_than_the_mean_stays_where_it_is() -> None:
    weights = {0: 1_000, **dict.fromkeys(range(1, 100), 1)}
    before = even_weights(weights)(("nobody",) * 100, ["a", "b"])
    after = even_weights(weights)(before, ["a", "b", "c"])
    assert after[0] == before[0]
    assert {name: sum(weights[slot] for slot in range(100) if after[slot] == name) for name in "abc"}[before[0]] == 1_000


def test_without_any_weights_the_numbers_are_even() -> None:
    before = even_weights({})(("nobody",) * 100, ["a", "b"])
    after = even_weights({})(before, ["a", "b", "c", "d"])
    assert sorted(Counter(after).values()) == [25, 25, 25, 25]


@pytest.mark.parametrize("balance", [even_slots, even_weights({7: 10})])
def test_the_same_question_has_the_same_answer(balance: Balance) -> None:
    before = balance(("nobody",) * 50, ["a", "b", "c"])
    assert balance(before, ["a", "b", "c"]) == before
    assert balance(before, ["a", "c"]) == balance(before, ["a", "c"])
