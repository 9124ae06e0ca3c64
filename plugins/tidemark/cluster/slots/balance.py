"""Which node gets which slot when nodes join or leave: strategies behind one protocol, each with fewest moves.

A strategy gets the header of every slot and the present nodes, and returns the header of every slot. A header that is no
present node has left and gives all its slots. A node without slots has joined. Source: seed 001 "Data repartitioning";
research/iotdb.md §3.3.

Slots differ in weight. *Level*: the load of a node when the weight is spread as evenly as slots allow. A slot heavier than
that has a node to itself, and the level is that of the others. *Limit*: the load that no node may exceed. *Loose*: a slot
without a node at the moment. *Room*: how much a node is below the level. *Floor*: the load down to which nodes give slots.

The bounds (`level_of`, `least_moved`, `dispensable_slots` …) are arithmetic. `Shares` holds the slots of each node while a
change is computed. It brings nodes to the level with few moves, and none above the limit. Pure.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from tidemark.errors import UsageError

FREE = -1  # instead of a node: the slot's node has left, or it never had one


def level_of(weights: Sequence[float], nodes: int) -> float:
    """Return the load of each node that does not hold one heavy slot alone. `weights`: of all slots, not negative."""
    rest, left = float(sum(weights)), nodes
    for weight in sorted(weights, reverse=True):
        if left == 1 or weight * left <= rest:
            break
        rest, left = rest - weight, left - 1
    return rest / left


def least_moved(places: Sequence[int], weights: Sequence[float], nodes: int, limit: float) -> float:
    """Return the least weight that any change must move to bring every node to the level.

    Three sums. Everything that is FREE moves. A node gives what it has above the level, or above its heaviest slot if that
    is more, and at least the lightest whole slots that bring it below `limit`. The k heaviest free slots go to at most k
    nodes: their weight beyond the k largest rooms is given to make room, for the k with the most. `places`: the node (0 …
    nodes - 1) of each slot, or FREE.
    """
    held: list[list[float]] = [[] for _ in range(nodes)]
    free: list[float] = []
    for weight, place in sorted(zip(weights, places, strict=True), reverse=True):
        (free if place == FREE else held[place]).append(weight)
    return least_of(held, free, level_of(weights, nodes), limit)


def least_of(held: Sequence[Sequence[float]], free: Sequence[float], level: float, limit: float) -> float:
    """Compute `least_moved`. `held`: the weights at each node, `free`: the others, the heaviest first in both."""
    given, rooms = 0.0, []
    for slots in held:
        load = sum(slots)
        gives = max(0.0, load - max(level, slots[0])) if slots else 0.0
        if load > limit:
            gives = max(gives, sum(slots[at] for at in fewest_to_give(slots, level, limit)))
        given += gives
        rooms.append(max(0.0, level - load + gives))
    crowded = lacking = 0.0
    for weight, room in zip(free, sorted(rooms, reverse=True), strict=False):
        lacking += min(weight, level) - room
        crowded = max(crowded, lacking)
    return sum(free) + given + crowded


def dispensable_slots(slots: Sequence[float], floor: float) -> list[int]:
    """Return positions in `slots` (heaviest first) that a node can give without falling below a floor."""
    load, given = sum(slots), []
    if load > floor:
        for at, weight in enumerate(slots):
            if load - weight >= floor:
                load -= weight
                given.append(at)
    return given


def fewest_to_give(slots: Sequence[float], floor: float, limit: float) -> tuple[int, ...]:
    """Return the slots that a node must give to come below `limit`: none, if it can without falling below the floor."""
    load = sum(slots)
    if load <= limit or load - sum(slots[at] for at in dispensable_slots(slots, floor)) <= limit:
        return ()
    return lightest_subset(slots, load - limit)


def lightest_subset(slots: Sequence[float], needed: float) -> tuple[int, ...]:
    """Return some of the slots, not all, that together weigh `needed` or more, and least more; () if there are none.

    Sums that differ by less than a two-thousandth of `needed` count as one, so that there are few of them.
    """
    best: tuple[int, ...] = ()
    lowest = float("inf")
    sums: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for at, weight in enumerate(slots):
        for before, chosen in list(sums.values()):
            more = before + weight
            if more < needed:
                sums.setdefault(int(more / needed * 2000), (more, (*chosen, at)))
            elif more < lowest and len(chosen) + 1 < len(slots):
                best, lowest = (*chosen, at), more
    return best


ROUNDS = 3  # of making room: an added slot may push out another


class Shares:
    """The node of each slot while a change is computed. `places`: the node (0 … nodes - 1) of each slot, or FREE.
    `assign_slots` brings nodes to the level, none above `limit`."""

    def __init__(self, places: Sequence[int], weights: Sequence[float], nodes: int, limit: float) -> None:
        self._first, self._weights, self._nodes = tuple(places), weights, nodes
        self._held: list[list[int]] = [[] for _ in range(nodes)]  # heaviest first
        self._loose: list[int] = []
        order = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
        for slot in order:
            place = places[slot]
            (self._loose if place == FREE else self._held[place]).append(slot)
        self._loads = [sum(self._weights_at(place)) for place in range(nodes)]
        self._level = self._floor = level_of([weights[slot] for slot in order], nodes)
        self._limit, self._left = limit, 0.0

    def assign_slots(self, spare: float, most: float) -> tuple[int, ...]:
        """Return the node of every slot afterwards. No node is above the limit, if single moves and exchanges can do it.

        `spare`: how far a node may be off the level, as a part of it, before anything is moved for it. `most`: what may be
        moved as long as no node is above the limit, as a multiple of what must (`weights.least_of`).
        """
        free = [self._weights[slot] for slot in self._loose]
        least = least_of([self._weights_at(place) for place in range(self._nodes)], free, self._level, self._limit)
        for _ in range(ROUNDS):
            self._force_out()
            self._place_loose()
        self._left = min(most * least - self._moved_weight(), self._needed_weight(spare))
        self._lower_floor()
        self._place_offers()
        for off in (0.0, spare):
            self._spread_slots(off * self._level)
        self._relieve_richest()
        after = [FREE] * len(self._weights)
        for place, slots in enumerate(self._held):
            for slot in slots:
                after[slot] = place
        return tuple(after)

    def _needed_weight(self, spare: float) -> float:
        """Return the weight that must go from nodes above the level to others, so that none is off by more than `spare`."""
        high, low = (1 + spare) * self._level, (1 - spare) * self._level
        above = sum(max(0.0, load - max(high, self._heaviest_weight(place))) for place, load in enumerate(self._loads))
        return max(above, sum(max(0.0, low - load) for load in self._loads)) + spare * self._level

    def _force_out(self) -> None:
        """Make loose the heavier slots of nodes that cannot come below the limit by their lighter ones."""
        for place, load in enumerate(self._loads):
            if load > self._limit:
                slots = self._held[place]
                for slot in [slots[at] for at in fewest_to_give(self._weights_at(place), self._level, self._limit)]:
                    self._drop_slot(place, slot)
                    self._loose.append(slot)

    def _lower_floor(self) -> None:
        """Set the floor: the level, or above it if not all nodes can give down to it without moving too much."""
        tops = [max(self._level, self._heaviest_weight(place)) for place in range(self._nodes)]
        rich = [(load, top) for load, top in zip(self._loads, tops, strict=True) if load > top]
        if sum(load - top for load, top in rich) > self._left:
            low, high = self._level, max(self._level, self._limit)
            for _ in range(20):
                self._floor = (low + high) / 2
                needed = sum(max(0.0, load - max(top, self._floor)) for load, top in rich)
                low, high = (self._floor, high) if needed > self._left else (low, self._floor)

    def _place_loose(self) -> None:
        """Place loose slots, heaviest first, at the poorest node; one that fits nowhere, where least is in its way."""
        poorest = [(load, place) for place, load in enumerate(self._loads)]
        heapq.heapify(poorest)
        for slot in sorted(self._loose, key=lambda slot: (-self._weights[slot], slot)):
            while poorest[0][0] != self._loads[poorest[0][1]]:
                heapq.heappop(poorest)
            _, place = poorest[0]
            if self._weights[slot] > max(self._level / 20, self._limit - self._loads[place]):
                room = max(0.0, self._level - self._loads[place])
                place = min(range(self._nodes), key=lambda place: self._measure_crowding(place, self._weights[slot], room))
            self._add_slot(place, slot)
            heapq.heappush(poorest, (self._loads[place], place))
        self._loose = []

    def _measure_crowding(self, place: int, weight: float, room: float) -> float:
        """Return the load in the way of a slot at a node; slots that hardly fit elsewhere count more."""
        over, held = weight - self._limit, self._weights_at(place)
        large = sum(takewhile(lambda slot: slot > 0.9 * room, held))
        middling = sum(takewhile(lambda slot: slot > 0.25 * room, held))
        return self._loads[place] + 4 * max(0.0, large + over) + max(0.0, middling + over)

    def _place_offers(self) -> None:
        """Move dispensable slots to nodes with room, the heaviest first: later there is no room for those."""
        offers = [
            (slots[at], place)
            for place, slots in enumerate(self._held)
            if self._loads[place] > self._floor
            for at in dispensable_slots(self._weights_at(place), self._floor)
        ]
        poorest = [(load, place) for place, load in enumerate(self._loads)]
        heapq.heapify(poorest)
        for slot, place in sorted(offers, key=lambda offer: (-self._weights[offer[0]], offer)):
            while poorest[0][0] != self._loads[poorest[0][1]]:
                heapq.heappop(poorest)
            load, poor = poorest[0]
            if load + self._weights[slot] <= self._level:
                self._left -= self._moving_cost(slot, place, poor)
                self._move_slot(slot, place, poor)
                for changed in (place, poor):
                    heapq.heappush(poorest, (self._loads[changed], changed))

    def _relieve_richest(self) -> None:
        """Move or exchange slots of the richest node, with least weight moved, while it is above the limit.

        Each step makes the richest node poorer and none as rich as it was, so the loop ends.
        """
        while True:
            rich = max(range(self._nodes), key=self._loads.__getitem__)
            if self._loads[rich] <= self._limit:
                return
            found = min(self._find_exchanges(rich), default=None)
            if found is None:
                return
            _, poor, slot, back = found
            self._move_slot(slot, rich, poor)
            if back != FREE:
                self._move_slot(back, poor, rich)

    def _find_exchanges(self, rich: int) -> Iterator[tuple[tuple[float, float], int, int, int]]:
        """Yield ((larger of both loads or the limit, weight moved more), other node, slot to it, slot from it or FREE)."""
        for poor in range(self._nodes):
            gap = self._loads[rich] - self._loads[poor]
            theirs = self._held[poor]
            lighter = [-self._weights[slot] for slot in theirs]
            for slot in self._held[rich]:
                weight = self._weights[slot]
                wanted = weight - min(self._loads[rich] - self._limit, gap / 2)  # should best come back
                backs = [FREE]
                if wanted > 0 and theirs:
                    at = bisect_left(lighter, -wanted)
                    backs += theirs[max(0, at - 1) : at + 2]
                for back in backs:
                    less, cost = weight, self._moving_cost(slot, rich, poor)
                    if back != FREE:
                        less, cost = weight - self._weights[back], cost + self._moving_cost(back, poor, rich)
                    if 0 < less < gap:
                        top = max(self._loads[rich] - less, self._loads[poor] + less, self._limit)
                        yield (top, cost), poor, slot, back

    def _spread_slots(self, spare: float) -> None:
        """Move slots from richest to poorest, as far as possible; nodes that lose no more than they must come first."""
        richest = [(-load, place) for place, load in enumerate(self._loads)]
        poorest = [(load, place) for place, load in enumerate(self._loads)]
        heapq.heapify(richest)
        heapq.heapify(poorest)
        while richest and self._left > 0:
            if -richest[0][0] != self._loads[richest[0][1]]:
                heapq.heappop(richest)  # has changed since
            elif poorest[0][0] != self._loads[poorest[0][1]]:
                heapq.heappop(poorest)
            else:
                rich, poor = richest[0][1], poorest[0][1]
                slot = self._find_fitting_slot(rich, poor, spare)
                cost = 0.0 if slot == FREE else self._moving_cost(slot, rich, poor)
                if slot == FREE or cost > self._left:
                    heapq.heappop(richest)
                    continue
                self._left -= cost
                self._move_slot(slot, rich, poor)
                for place in (rich, poor):
                    heapq.heappush(richest, (-self._loads[place], place))
                    heapq.heappush(poorest, (self._loads[place], place))

    def _find_fitting_slot(self, rich: int, poor: int, spare: float) -> int:
        """Return the best slot to move, or FREE: the heaviest after which neither node is off the level by more than
        `spare`. If there is none and a node is further above: the lightest that makes the two more equal."""
        slots, gap = self._held[rich], self._loads[rich] - self._loads[poor]
        if len(slots) < 2 or self._loads[rich] <= self._floor:
            return FREE
        most = min(self._loads[rich] - self._floor + spare, self._level + spare - self._loads[poor])
        at = bisect_left(slots, -most, key=lambda slot: -self._weights[slot])
        if at < len(slots) and self._weights[slots[at]] < gap:
            return slots[at]
        if spare == 0 or self._loads[rich] <= self._level + spare or self._weights[slots[-1]] >= gap:
            return FREE
        return slots[-1]

    def _moved_weight(self) -> float:
        """Return the weight of slots that are not at their first node."""
        weights, first = self._weights, self._first
        return sum(weights[slot] for place, slots in enumerate(self._held) for slot in slots if first[slot] != place)

    def _heaviest_weight(self, place: int) -> float:
        return self._weights[self._held[place][0]] if self._held[place] else 0.0

    def _weights_at(self, place: int) -> list[float]:
        return [self._weights[slot] for slot in self._held[place]]

    def _moving_cost(self, slot: int, here: int, there: int) -> float:
        """Return the weight moved more by it: none if the slot moves anyway, less if it goes home."""
        home = self._first[slot]
        return self._weights[slot] * ((there != home) - (here != home))

    def _move_slot(self, slot: int, here: int, there: int) -> None:
        self._drop_slot(here, slot)
        self._add_slot(there, slot)

    def _drop_slot(self, place: int, slot: int) -> None:
        self._held[place].remove(slot)
        self._loads[place] -= self._weights[slot]

    def _add_slot(self, place: int, slot: int) -> None:
        insort(self._held[place], slot, key=lambda other: (-self._weights[other], other))
        self._loads[place] += self._weights[slot]


Owners = tuple[str, ...]
"""The header node of the group of each slot, by slot."""


LITTLE = 0.001  # of the mean slot: slots up to it are shared by number, not by weight


class Balance(Protocol):
    """The owners after a change. `nodes`: the present names, in the order of the ring."""

    def __call__(self, owners: Owners, nodes: Sequence[str]) -> Owners: ...


def balance_of(name: str, weights: Mapping[int, float]) -> Balance:
    """Return the strategy that `[cluster] balance` names.

    `slots`: even numbers; `bytes` and `writes`: by `weights` (by slot: bytes held, or bytes written a day); `compat`: the
    original's arithmetic. `slots` and `compat` use no weights. UsageError for another name.
    """
    named: Mapping[str, Callable[[], Balance]] = {
        "slots": lambda: even_slots,
        "bytes": lambda: even_weights(weights),
        "writes": lambda: even_weights(weights),
        "compat": lambda: original_balance,
    }
    if name not in named:
        raise UsageError(f"no balance {name!r}", hint=f"set `[cluster] balance` to one of: {', '.join(named)}", subject=name)
    return named[name]()


def first_owners(slots: int, nodes: Sequence[str]) -> Owners:
    """Return the owners of a new cluster: ranges of one size, the last one with the rest, as in the original."""
    size = max(1, slots // len(nodes))
    return tuple(nodes[min(slot // size, len(nodes) - 1)] for slot in range(slots))


def even_slots(owners: Owners, nodes: Sequence[str]) -> Owners:
    """Give numbers of slots that differ by one at most; a node gives away the last of its surplus."""
    held = _slots_by_header(owners, nodes)
    least, over = divmod(len(owners), len(nodes))
    richest = sorted(nodes, key=lambda name: -len(held.get(name, ())))  # they keep one more, which saves a move
    wanted = {name: least + (rank < over) for rank, name in enumerate(richest)}
    moving = [slot for name in held for slot in held[name][wanted.get(name, 0) :]]
    result = list(owners)
    receivers = [name for name in nodes for _ in range(wanted[name] - len(held.get(name, ())))]
    for slot, name in zip(sorted(moving), receivers, strict=True):
        result[slot] = name
    return tuple(result)


def even_weights(weights: Mapping[int, float], spare: float = 0.028) -> Balance:
    """Make a strategy by bytes, or by write rate. `weights`: by slot, not negative; a slot without one has nothing.

    No node ends above 1 + `spare` × the larger of the mean and the heaviest slot, if single moves and exchanges of slots can
    do it. Below that all are brought within 2 % of one level (`weights.level_of`), unless more than 1.005 × the least that
    must move for the level (`weights.least_moved`) would have to. Nearly empty slots are shared by number: they may grow.
    """

    def balanced(owners: Owners, nodes: Sequence[str]) -> Owners:
        weight = [weights.get(slot, 0) for slot in range(len(owners))]
        little = sum(weight) / len(weight) * LITTLE
        some, few = _split_by_weight(weight, little)
        places = {name: place for place, name in enumerate(nodes)}
        heavy = [weight[slot] for slot in some]
        limit = (1 + spare) * max(sum(heavy) / len(nodes), max(heavy, default=0))
        shares = Shares([places.get(owners[slot], FREE) for slot in some], heavy, len(nodes), limit)
        result = list(owners)
        for slot, place in zip(some, shares.assign_slots(0.02, 1.005), strict=True):
            result[slot] = nodes[place]
        for slot, name in zip(few, even_slots(tuple(owners[slot] for slot in few), nodes), strict=True):
            result[slot] = name
        return tuple(result)

    return balanced


def _split_by_weight(weight: Sequence[float], little: float) -> tuple[list[int], list[int]]:
    """Return the slots with some weight, and those with next to none."""
    some = [slot for slot, held in enumerate(weight) if held > little]
    few = [slot for slot, held in enumerate(weight) if held <= little]
    return some, few


def original_balance(owners: Owners, nodes: Sequence[str]) -> Owners:
    """Balance by the original's arithmetic. A joining node gets the last slots that each node has above the new average,
    rounded down. The slots of a leaving node go round the ring, one by one. Nothing is levelled afterwards."""
    held = _slots_by_header(owners, nodes)
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


def changed_headers(before: Owners, after: Owners) -> dict[int, tuple[str, str]]:
    """Return slot → (from, to), for slots whose header changes."""
    return {slot: pair for slot, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]}


def _slots_by_header(owners: Owners, nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return slots by header, in the order of the ring, those of nodes that left last."""
    held: dict[str, list[int]] = {name: [] for name in nodes}
    for slot, name in enumerate(owners):
        held.setdefault(name, []).append(slot)
    return held
