"""Who gets which slots, by bytes: one level for all, with little more moved than must be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cluster.test_balance import CHANGES, sequence
from tidemark.cluster.slots.balance import (
    FREE,
    Owners,
    changed_headers,
    even_slots,
    even_weights,
    least_moved,
    level_of,
    lightest_subset,
)

SMALL = st.lists(st.integers(0, 12), min_size=3, max_size=7)
ANY = st.lists(st.integers(0, 1_000), min_size=1, max_size=40)


def zipf(slots: int, seed: int) -> dict[int, int]:
    """Weights by Zipf's law with exponent 1, in any order of the slots."""
    order = random.Random(seed).sample(range(slots), slots)
    return {slot: 10**9 // (rank + 1) for rank, slot in enumerate(order)}


def loads_of(owners: Owners, weights: Mapping[int, int], nodes: Sequence[str]) -> dict[str, int]:
    loads = dict.fromkeys(nodes, 0)
    for slot, name in enumerate(owners):
        loads[name] += weights[slot]
    return loads


def minimum(before: Owners, weights: Mapping[int, int], nodes: Sequence[str]) -> float:
    places = {name: place for place, name in enumerate(nodes)}
    inner = [weights[slot] for slot in range(len(before))]
    return least_moved([places.get(name, FREE) for name in before], inner, len(nodes), bound(weights, len(nodes)))


def bound(weights: Mapping[int, int], nodes: int) -> float:
    """What no group may exceed."""
    return 1.03 * max(sum(weights.values()) / nodes, *weights.values(), 0)


@pytest.mark.full
@given(CHANGES, st.integers(0, 1 << 30))
@settings(derandomize=True, deadline=None, max_examples=60)  # of many thousand changes one or two move more: docs/scale.md
def test_of_zipf_no_group_is_above_the_bound_and_no_more_moves_than_must(changes: list[tuple[bool, int]], seed: int) -> None:
    weights = zipf(2_000, seed)
    for before, after, nodes in sequence(2_000, changes, even_weights(weights)):
        assert set(after) <= set(nodes)
        assert max(loads_of(after, weights, nodes).values()) <= bound(weights, len(nodes))
        moved = sum(weights[slot] for slot in changed_headers(before, after))
        assert moved <= 1.01 * minimum(before, weights, nodes)


@given(CHANGES, st.integers(0, 1 << 30))
@settings(deadline=None, max_examples=30)
def test_of_zipf_the_bound_holds_whatever_it_takes(changes: list[tuple[bool, int]], seed: int) -> None:
    weights = zipf(600, seed)
    for _, after, nodes in sequence(600, changes, even_weights(weights)):
        assert max(loads_of(after, weights, nodes).values()) <= bound(weights, len(nodes))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_of_hundreds_of_nodes_each_is_near_the_level(seed: int) -> None:
    weights, nodes = zipf(10_000, seed), [f"n{number:03}" for number in range(200)]
    owners = even_weights(weights)(("nobody",) * 10_000, nodes)
    for number in range(200, 205):
        before, nodes = owners, [*nodes[1:], f"n{number}", f"m{number}"]
        owners = even_weights(weights)(before, nodes)
        level = level_of(list(weights.values()), len(nodes))
        heaviest = {name: max(weights[slot] for slot in range(10_000) if owners[slot] == name) for name in nodes}
        loads = loads_of(owners, weights, nodes)
        assert all(0.9 * level <= load <= 1.25 * max(level, heaviest[name]) for name, load in loads.items())
        assert sum(weights[slot] for slot in changed_headers(before, owners)) <= 1.01 * minimum(before, weights, nodes)


@given(ANY, st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_where_slots_cannot_be_cut_so_no_exchange_with_the_largest_helps(
    inner: list[int], then: int, now: int, shuffled: random.Random
) -> None:
    """Of any weights: the bound, or no slot of the largest group can go to another, alone or for another slot, such that
    both are smaller than the largest was."""
    weights, nodes = dict(enumerate(inner)), [f"n{number}" for number in range(now)]
    before = tuple(f"n{shuffled.randrange(then)}" for _ in inner)
    after = even_weights(weights)(before, nodes)
    assert set(after) <= set(nodes)
    loads = loads_of(after, weights, nodes)
    rich = max(nodes, key=loads.__getitem__)
    if loads[rich] <= bound(weights, now):
        return
    for slot, other in product(range(len(inner)), nodes):
        if after[slot] == rich != other:
            for back in (0, *(weights[one] for one in range(len(inner)) if after[one] == other)):
                less = weights[slot] - back
                assert less <= inner_noise(inner) or loads[other] + less >= loads[rich]


def inner_noise(inner: list[int]) -> float:
    """Slots of so little are counted, not weighed."""
    return sum(inner) / 1000


@given(SMALL, st.integers(1, 3), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_few_slots_beside_all_that_could_be_done(inner: list[int], then: int, now: int, shuffled: random.Random) -> None:
    """Against every possible table: the largest group is at most 2 - 2 / (nodes + 1) times that of the best one, and no
    table in which all are at the level is reached with less than the minimum."""
    weights, nodes = dict(enumerate(inner)), [f"n{number}" for number in range(now)]
    before = tuple(f"n{shuffled.randrange(then)}" for _ in inner)
    level, best = level_of(inner, now), float("inf")
    for owners in product(nodes, repeat=len(inner)):
        loads = loads_of(owners, weights, nodes)
        best = min(best, max(loads.values()))
        heaviest = {name: max((inner[at] for at, owner in enumerate(owners) if owner == name), default=0) for name in nodes}
        if all(load <= max(level, heaviest[name]) + 1e-6 for name, load in loads.items()):
            assert sum(weights[slot] for slot in changed_headers(before, owners)) >= minimum(before, weights, nodes) - 1e-6
    after = loads_of(even_weights(weights)(before, nodes), weights, nodes)
    assert max(after.values()) <= max(2 - 2 / (now + 1), 1.03) * best + 1e-6


@given(st.lists(st.integers(1, 50), min_size=2, max_size=9), st.integers(1, 120))
def test_the_lightest_slots_that_are_enough(inner: list[int], needed: int) -> None:
    inner.sort(reverse=True)
    sums = [sum(part) for part in product(*((0, weight) for weight in inner))]
    enough = [total for total in sums if needed <= total < sum(inner)]
    chosen = lightest_subset(inner, needed)
    assert sum(inner[at] for at in chosen) == (min(enough) if enough else 0)


def test_the_level_is_that_of_nodes_without_a_heavy_slot() -> None:
    assert level_of([100, 5, 5, 5, 5], 3) == 10
    assert level_of([10, 10, 10], 2) == 15
    assert level_of([7, 3], 1) == 10
    assert level_of([7, 3], 5) == 0


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


def test_slots_with_nothing_in_them_yet_are_shared_out_by_number() -> None:
    weights = {slot: 1_000_000 * (slot + 1) for slot in range(30)}
    nodes = ["a", "b", "c", "d"]
    owners = even_weights(weights)(("nobody",) * 1_000, nodes)
    empty = Counter(owners[slot] for slot in range(30, 1_000))
    assert max(empty.values()) - min(empty.values()) <= 1
    joined = even_weights(weights)(owners, [*nodes, "e"])
    assert Counter(joined[slot] for slot in range(30, 1_000))["e"] == 194
    assert all(name == "e" for _, name in changed_headers(owners, joined).values())


def test_without_weights_it_is_as_by_number() -> None:
    before = ("a",) * 7 + ("b",) * 3
    assert even_weights({})(before, ["a", "b", "c"]) == even_slots(before, ["a", "b", "c"])
