"""The life of a cluster, played: nodes join and leave in random order, from 3 to 1,000, and slots go where a strategy says.

Bytes are spread over slots by Zipf's law with exponent 1: the slot of rank r has 1/r of the largest. After every change,
by every contender: how large the largest group is and how many bytes had to move. All contenders live the same life.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench.cluster_peers import Jump, Numbers, Placement, Rendezvous, VirtualRing
from bench.rows import say
from tidemark.cluster.slots.balance import FREE, Balance, Owners, balance_of, least_moved, level_of

SLOTS = 10_000
FIRST, MOST = 3, 1_000
Weights = npt.NDArray[np.int64]


def zipf(seed: int, slots: int = SLOTS) -> Weights:
    """Bytes by slot; 10^9 in the largest."""
    order = np.random.default_rng(seed).permutation(slots)
    return (10**9 // (order + 1)).astype(np.int64)


def life(seed: int, most: int = MOST) -> list[tuple[bool, int]]:
    """(joins, node) of each change: four join for one that leaves until there are `most`, then a tenth as many changes more
    of which one half joins."""
    chance, members, newest = random.Random(seed), list(range(FIRST)), FIRST
    changes: list[tuple[bool, int]] = []

    def change(joining: float) -> None:
        nonlocal newest
        joins = len(members) <= FIRST or (len(members) < most and chance.random() < joining)
        if joins:
            members.append(newest)
            newest += 1
        changes.append((True, newest - 1) if joins else (False, members.pop(chance.randrange(len(members)))))

    while len(members) < most:
        change(0.8)
    for _ in range(len(changes) // 10):
        change(0.5)
    return changes


class Tabled:
    """One of Tidemark's strategies. `took`: milliseconds of each change."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name = name
        self._balance: Balance = balance_of(name, dict(enumerate(weights.tolist())))
        self._names: list[str] = []
        self._held: Owners = ("",) * len(weights)
        self.took: list[float] = []

    @property
    def owners(self) -> Numbers:
        return np.fromiter(map(int, self._held), np.int64, len(self._held))

    def start(self, nodes: Sequence[int]) -> None:
        self._names = [str(node) for node in nodes]
        if self.name == "compat":
            size = len(self._held) // len(nodes)
            self._held = tuple(self._names[min(slot // size, len(nodes) - 1)] for slot in range(len(self._held)))
        else:
            self._held = self._balance(self._held, self._names)

    def join(self, node: int) -> None:
        self._names.append(str(node))
        self._change()

    def leave(self, node: int) -> None:
        self._names.remove(str(node))
        self._change()

    def _change(self) -> None:
        began = time.perf_counter()
        self._held = self._balance(self._held, self._names)
        self.took.append((time.perf_counter() - began) * 1e3)


@dataclass
class Seen:
    """Of one contender, a row a change.

    `nodes`: after it. `largest`: the largest group to the larger of mean and largest slot. `above`: the most that a group
    is of the larger of the level and its own largest slot. `counts`: difference of numbers of slots. `moved`, `least`:
    bytes, and the least for the level (of `bytes` alone). `moved_slots`, `least_slots`: numbers, and the least for numbers
    that differ by one. `share`: bytes of one node, if all were equal: roughly what any change must move.
    """

    nodes: list[int] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    above: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    moved_slots: list[int] = field(default_factory=list)
    least_slots: list[int] = field(default_factory=list)
    share: list[float] = field(default_factory=list)

    def note(self, before: Numbers, after: Numbers, members: Sequence[int], weights: Weights, level: float) -> None:
        had, has = (_places(owners, members) for owners in (before, after))
        if (has == FREE).any():
            raise RuntimeError("a slot went to a node that is not there")
        loads, numbers = np.bincount(has, weights, len(members)), np.bincount(has, minlength=len(members))
        heaviest = np.zeros(len(members))
        np.maximum.at(heaviest, has, weights)
        gone = had != has
        self.nodes.append(len(members))
        self.largest.append(float(loads.max()) / bound(weights, len(members)))
        self.above.append(float((loads / np.maximum(heaviest, level)).max()))
        self.counts.append(int(numbers.max() - numbers.min()))
        self.moved.append(float(weights[gone].sum()))
        self.moved_slots.append(int(gone.sum()))
        self.least_slots.append(least_number(had, len(members)))
        self.share.append(float(weights.sum()) / max(len(members), len(np.unique(before))))


def bound(weights: Weights, nodes: int) -> float:
    """The larger of mean and largest slot: what no group can be kept below."""
    return max(float(weights.sum()) / nodes, float(weights.max()))


def _places(owners: Numbers, members: Sequence[int]) -> Numbers:
    """By slot, the place among the members; FREE for who is none."""
    places = np.full(max(*members, int(owners.max())) + 1, FREE)
    places[list(members)] = np.arange(len(members))
    return places[owners]


def least_number(places: Numbers, nodes: int) -> int:
    """Slots that must move for numbers that differ by one at most."""
    held = np.sort(np.bincount(places[places != FREE], minlength=nodes))[::-1]
    least, over = divmod(len(places), nodes)
    wanted = least + (np.arange(nodes) < over)
    return int(len(places) - np.minimum(held, wanted).sum())


def play(seed: int, most: int = MOST, slots: int = SLOTS) -> dict[str, Seen]:
    """What each contender's life was like, by name."""
    weights, members = zipf(seed, slots), list(range(FIRST))
    ours = [Tabled(name, weights) for name in ("slots", "bytes", "compat")]
    makers: tuple[Callable[[int], Placement], ...] = (VirtualRing, Rendezvous, Jump)
    everyone: list[Placement] = [*ours, *(maker(slots) for maker in makers)]
    for one in everyone:
        if isinstance(one, Tabled):
            one.start(members)
        else:
            for node in members:
                one.join(node)
    inner = weights.tolist()
    held, seen = {one.name: one.owners for one in everyone}, {one.name: Seen() for one in everyone}
    changes = life(seed, most)
    say(f"cluster, life {seed}: {len(changes)} changes from {FIRST} to {most} nodes, {len(everyone)} contenders")
    for done, (joins, node) in enumerate(changes, start=1):
        members = [*members, node] if joins else [one for one in members if one != node]
        level = level_of(inner, len(members))
        for one in everyone:
            (one.join if joins else one.leave)(node)
            before, held[one.name] = held[one.name], one.owners
            seen[one.name].note(before, held[one.name], members, weights, level)
            if one.name == "bytes":
                places = _places(before, members).tolist()
                seen[one.name].least.append(least_moved(places, inner, len(members), 1.03 * bound(weights, len(members))))
        if done % 250 == 0:
            say(f"cluster: {done} changes, {len(members)} nodes")
    return seen
