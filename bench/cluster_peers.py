"""Who holds which slot in other ways: hashing alone, as stores without a table do it. Written for the comparison.

Each knows nodes by numbers and slots by numbers; none looks at bytes. A ring with virtual nodes (Karger and others 1997),
rendezvous hashing (Thaler and Ravishankar 1998), jump hashing (Lamping and Veach 2014).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

VIRTUAL = 128  # points a node on the ring


class Placement(Protocol):
    """`owners`: the node of each slot now."""

    name: str

    @property
    def owners(self) -> Numbers: ...

    def join(self, node: int) -> None: ...

    def leave(self, node: int) -> None: ...


def scrambled(numbers: npt.ArrayLike) -> Hashes:
    """A hash of 64 bits of each number: the finisher of SplitMix64 (Steele and others 2014)."""
    mixed = np.asarray(numbers, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class VirtualRing:
    """A slot belongs to the first point after its own, and so to the node of the point."""

    name = "ring with 128 virtual nodes"

    def __init__(self, slots: int) -> None:
        self._slots = scrambled(np.arange(slots) + (1 << 40))
        self._points = np.empty(0, np.uint64)
        self._nodes = np.empty(0, np.int64)

    @property
    def owners(self) -> Numbers:
        return self._nodes[np.searchsorted(self._points, self._slots) % len(self._points)]

    def join(self, node: int) -> None:
        mine = np.sort(scrambled(node * VIRTUAL + np.arange(VIRTUAL)))
        at = np.searchsorted(self._points, mine)
        self._points = np.insert(self._points, at, mine)
        self._nodes = np.insert(self._nodes, at, node)

    def leave(self, node: int) -> None:
        stays = self._nodes != node
        self._points, self._nodes = self._points[stays], self._nodes[stays]


class Rendezvous:
    """A slot belongs to the node that has the highest hash together with it."""

    name = "rendezvous hashing"

    def __init__(self, slots: int) -> None:
        self._slots = scrambled(np.arange(slots) + (2 << 40))
        self._members: list[int] = []
        self.owners: Numbers = np.full(slots, -1, np.int64)
        self._best = np.zeros(slots, np.uint64)

    def join(self, node: int) -> None:
        self._members.append(node)
        self._offer(node, np.arange(len(self.owners)))

    def leave(self, node: int) -> None:
        self._members.remove(node)
        orphans = np.flatnonzero(self.owners == node)
        self._best[orphans] = 0
        for other in self._members:
            self._offer(other, orphans)

    def _offer(self, node: int, slots: Numbers) -> None:
        scores = scrambled(self._slots[slots] ^ scrambled([node]))
        better = scores > self._best[slots]
        self.owners = self.owners.copy()
        self.owners[slots[better]] = node
        self._best[slots[better]] = scores[better]


def jumped(keys: Hashes, buckets: int) -> Numbers:
    """The bucket (0 … buckets - 1) of each key."""
    here, after = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    while (going := after < buckets).any():
        here = np.where(going, after, here)
        keys = keys * np.uint64(2862933555777941757) + np.uint64(1)
        steps = float(1 << 31) / ((keys >> np.uint64(33)).astype(np.float64) + 1)
        after = np.where(going, ((here + 1) * steps).astype(np.int64), after)
    return here


class Jump:
    """A slot jumps over the numbers of the nodes. Only the last number can go: who leaves is replaced by who has that."""

    name = "jump hashing"

    def __init__(self, slots: int) -> None:
        self._slots = scrambled(np.arange(slots) + (3 << 40))
        self._members: list[int] = []

    @property
    def owners(self) -> Numbers:
        return np.asarray(self._members, np.int64)[jumped(self._slots, len(self._members))]

    def join(self, node: int) -> None:
        self._members.append(node)

    def leave(self, node: int) -> None:
        last = self._members.pop()
        if last != node:
            self._members[self._members.index(node)] = last
