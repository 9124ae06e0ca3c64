"""What `bench cluster` compares with: the peers place slots as they should, and a played life is the same for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from bench.cluster import _ratios, _summary
from bench.cluster_costs import plans
from bench.cluster_peers import Jump, Placement, Rendezvous, VirtualRing, jumped, scrambled
from bench.cluster_picture import drawn
from bench.cluster_play import FIRST, life, play, zipf

PEERS = [VirtualRing, Rendezvous, Jump]


def grown(maker: Callable[[int], Placement], nodes: int, slots: int = 4_000) -> Placement:
    one = maker(slots)
    for node in range(nodes):
        one.join(node)
    return one


@pytest.mark.parametrize("maker", PEERS)
def test_a_newcomer_takes_slots_and_nobody_else_does(maker: Callable[[int], Placement]) -> None:
    one = grown(maker, 9)
    before = one.owners.copy()
    one.join(9)
    moved = before != one.owners
    assert set(one.owners[moved]) == {9}
    assert 0.4 * 400 < moved.sum() < 2 * 400


@pytest.mark.parametrize("maker", [VirtualRing, Rendezvous])
def test_only_the_slots_of_who_leaves_move(maker: Callable[[int], Placement]) -> None:
    one = grown(maker, 9)
    before = one.owners.copy()
    one.leave(4)
    moved = before != one.owners
    assert set(before[moved]) == {4} and 4 not in one.owners
    one.join(4)
    assert (one.owners == before).all()


def test_jump_hashing_lets_its_last_number_stand_in_for_who_leaves() -> None:
    one = grown(Jump, 9)
    before = one.owners.copy()
    one.leave(4)
    moved = before != one.owners
    assert set(before[moved]) == {4, 8} and set(one.owners) == {0, 1, 2, 3, 5, 6, 7, 8}
    keys = scrambled(np.arange(50_000))
    for few, more in pairwise(range(1, 20)):
        stayed = jumped(keys, few) == jumped(keys, more)
        assert set(jumped(keys, more)[~stayed]) == {more - 1}  # as the paper has it: a key moves to the new bucket or not
        assert max(Counter(jumped(keys, more).tolist()).values()) < 1.2 * 50_000 / more


def test_a_life_is_one_that_can_be_lived() -> None:
    members, largest = set(range(FIRST)), 0
    for joins, node in life(5, 40):
        assert (node in members) != joins
        members ^= {node}
        largest = max(largest, len(members))
        assert len(members) >= FIRST
    assert largest == 40
    assert life(5, 40) == life(5, 40) != life(6, 40)
    assert sorted(zipf(1, 1_000), reverse=True)[:4] == [10**9, 10**9 // 2, 10**9 // 3, 10**9 // 4]


def test_all_contenders_live_it_and_the_figures_are_within_the_bounds() -> None:
    lives = [play(1, 20, 2_000)]
    ratios = _ratios(lives)
    assert ratios["balance_even"] <= 1
    assert ratios["balance_bytes"] <= 1.03
    assert 0 < ratios["moves_to_minimum"] <= 1.01
    papers = {name: _summary([seen]) for name, seen in lives[0].items()}
    assert {paper["changes"] for paper in papers.values()} == {len(life(1, 20))}
    assert papers["bytes"]["largest"]["worst"] < min(
        paper["largest"]["worst"] for name, paper in papers.items() if name != "bytes"
    )
    picture = ElementTree.fromstring(drawn(papers))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 2 * len(papers)


def test_plans_of_a_small_cluster() -> None:
    found = plans(12, 1)
    assert [(plan["strategy"], plan["kind"]) for plan in found][:2] == [("slots", "add"), ("slots", "remove")]
    assert all(plan["moving_slots"] > 0 for plan in found if plan["kind"] != "rebalance")
