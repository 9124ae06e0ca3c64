"""Who gets which slot when nodes join or leave: strategies behind one protocol, each with fewest moves.

A strategy is told the header of every slot and the nodes there are now, and answers the header of every slot. Who is not
among the nodes has left and gives all; who has no slot has joined. Source: seed 001 "Data repartitioning";
research/iotdb.md §3.3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidemark.errors import UsageError

Owners = tuple[str, ...]
"""The header node of the group of each slot, by slot."""


class Balance(Protocol):
    """The owners after a change. `nodes`: the names there are now, in the order of the ring."""

    def __call__(self, owners: Owners, nodes: Sequence[str]) -> Owners: ...


def balance_of(name: str, weights: Mapping[int, float]) -> Balance:
    """The strategy that `[cluster] balance` names.

    `slots`: even numbers; `bytes` and `writes`: by `weights` (by slot: bytes held, or bytes written a day); `compat`: the
    original's arithmetic. `slots` and `compat` look at no weights. UsageError for another name.
    """
    named: Mapping[str, Callable[[], Balance]] = {
        "slots": lambda: even_slots,
        "bytes": lambda: even_weights(weights),
        "writes": lambda: even_weights(weights),
        "compat": lambda: original,
    }
    if name not in named:
        raise UsageError(f"no balance {name!r}", hint=f"set `[cluster] balance` to one of: {', '.join(named)}", subject=name)
    return named[name]()


def first_owners(slots: int, nodes: Sequence[str]) -> Owners:
    """Of a new cluster: ranges of one size, the last one with the rest, as the original has it."""
    size = max(1, slots // len(nodes))
    return tuple(nodes[min(slot // size, len(nodes) - 1)] for slot in range(slots))


def even_slots(owners: Owners, nodes: Sequence[str]) -> Owners:
    """Numbers of slots that differ by one at most; a node gives the last of what it has too many of."""
    held = _held(owners, nodes)
    least, over = divmod(len(owners), len(nodes))
    richest = sorted(nodes, key=lambda name: -len(held.get(name, ())))  # those keep one more, which saves a move
    wanted = {name: least + (rank < over) for rank, name in enumerate(richest)}
    moving = [slot for name in held for slot in held[name][wanted.get(name, 0) :]]
    result = list(owners)
    receivers = [name for name in nodes for _ in range(wanted[name] - len(held.get(name, ())))]
    for slot, name in zip(sorted(moving), receivers, strict=True):
        result[slot] = name
    return tuple(result)


def even_weights(weights: Mapping[int, float], most: float = 1.02) -> Balance:
    """By bytes, or by write rate: `weights` by slot, none of them negative; a slot without one counts as 1.

    No node ends above `most` × the larger of the mean and the largest slot, where slots can be cut so. A node gives slots
    as long as it stays above the mean, so what moves is what must.
    """

    def balanced(owners: Owners, nodes: Sequence[str]) -> Owners:
        weight = [max(1, weights.get(slot, 1)) for slot in range(len(owners))]
        mean = sum(weight) / len(nodes)
        limit = max(mean, max(weight, default=0)) * most
        shares = _Shares(owners, nodes, weight)
        moving = [slot for name, slots in shares.held.items() if name not in nodes for slot in slots]
        for name in nodes:
            moving += shares.give(name, mean)
        shares.place(moving)
        shares.level(limit)
        return shares.owners()

    return balanced


class _Shares:
    """Who holds what while it is shared out."""

    def __init__(self, owners: Owners, nodes: Sequence[str], weight: Sequence[float]) -> None:
        self.held = _held(owners, nodes)
        self._nodes = nodes
        self._weight = weight
        self._loads = {name: sum(weight[slot] for slot in self.held[name]) for name in nodes}

    def give(self, name: str, level: float) -> list[int]:
        """What a node gives to come down to a level without falling below it: large slots first, so that few move."""
        load = self._loads[name]
        if load <= level:
            return []
        given = set()
        for slot in sorted(self.held[name], key=self._weight.__getitem__, reverse=True):
            if load - self._weight[slot] >= level:
                load -= self._weight[slot]
                given.add(slot)
        self.held[name], self._loads[name] = [slot for slot in self.held[name] if slot not in given], load
        return sorted(given)

    def place(self, moving: Sequence[int]) -> None:
        """Each goes to who has least, the largest first."""
        poorest = [(self._loads[name], place, name) for place, name in enumerate(self._nodes)]
        heapq.heapify(poorest)
        for slot in sorted(moving, key=lambda slot: (-self._weight[slot], slot)):
            load, place, name = poorest[0]
            self.held[name].append(slot)
            self._loads[name] = load + self._weight[slot]
            heapq.heapreplace(poorest, (self._loads[name], place, name))

    def level(self, limit: float) -> None:
        """Bring every node below the limit, where slots can be cut so: a large one may have come to where much was.

        What fits nowhere goes to who has least, and that one makes room by smaller slots; not for ever.
        """
        weigh, loads = self._weight.__getitem__, self._loads
        for _ in range(4 * len(self._nodes)):
            richest, poorest = max(self._nodes, key=loads.__getitem__), min(self._nodes, key=loads.__getitem__)
            excess, room = loads[richest] - limit, limit - loads[poorest]
            if excess <= 0:
                return
            fitting = [slot for slot in self.held[richest] if weigh(slot) <= room]
            enough = [slot for slot in fitting or self.held[richest] if weigh(slot) >= excess]
            if not fitting and not enough:
                return
            slot = min(enough, key=weigh) if enough else max(fitting, key=weigh)
            self.held[richest].remove(slot)
            self.held[poorest].append(slot)
            loads[richest] -= weigh(slot)
            loads[poorest] += weigh(slot)

    def owners(self) -> Owners:
        by_slot = {slot: name for name in self._nodes for slot in self.held[name]}
        return tuple(by_slot[slot] for slot in range(len(self._weight)))


def original(owners: Owners, nodes: Sequence[str]) -> Owners:
    """The original's arithmetic: who joins gets the last of what each has above the new average, rounded down; the slots of
    who leaves go round the ring, one by one. Nothing is levelled afterwards."""
    held = _held(owners, nodes)
    result = list(owners)
    average = len(owners) // len(nodes)
    joined = [name for name in nodes if not held.get(name)]
    for name in joined:
        for giver in [other for other in nodes if other not in joined]:
            for slot in held[giver][average:]:
                result[slot] = name
            held[giver] = held[giver][:average]
    for name in [name for name in held if name not in nodes]:
        for rank, slot in enumerate(held[name]):
            result[slot] = nodes[rank % len(nodes)]
    return tuple(result)


def moves(before: Owners, after: Owners) -> dict[int, tuple[str, str]]:
    """Slot → (from, to), of those whose header changes."""
    return {slot: pair for slot, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]}


def _held(owners: Owners, nodes: Sequence[str]) -> dict[str, list[int]]:
    """Slots by header, in the order of the ring, those of who has left last."""
    held: dict[str, list[int]] = {name: [] for name in nodes}
    for slot, name in enumerate(owners):
        held.setdefault(name, []).append(slot)
    return held
