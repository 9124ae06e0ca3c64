"""How evenly slots of different weight can be spread over nodes, and how little must move for it: bounds, by arithmetic.

The level: what a node holds when the weight is spread as evenly as slots allow. A slot heavier than that has a node to
itself, and the level is that of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

FREE = -1  # in the place of a node: the slot's node has left, or there never was one


def level_of(weights: Sequence[float], nodes: int) -> float:
    """What each node holds that has not one heavy slot alone. `weights`: of all slots, none of them negative."""
    rest, left = float(sum(weights)), nodes
    for weight in sorted(weights, reverse=True):
        if left == 1 or weight * left <= rest:
            break
        rest, left = rest - weight, left - 1
    return rest / left


def least_moved(places: Sequence[int], weights: Sequence[float], nodes: int, limit: float) -> float:
    """The minimum: less than this is moved by no change after which every node is at the level.

    Three sums. Everything that is FREE moves. A node gives what it has above the level, or above its heaviest slot if that
    is more, and at least the lightest whole slots that bring it below `limit`. The k heaviest free slots come to k nodes at
    most: what they have more than the k largest rooms is given to make room, for the k where that is most.
    `places`: the node (0 … nodes - 1) of each slot, or FREE.
    """
    held: list[list[float]] = [[] for _ in range(nodes)]
    free: list[float] = []
    for weight, place in sorted(zip(weights, places, strict=True), reverse=True):
        (free if place == FREE else held[place]).append(weight)
    return least_of(held, free, level_of(weights, nodes), limit)


def least_of(held: Sequence[Sequence[float]], free: Sequence[float], level: float, limit: float) -> float:
    """The same. `held`: the weights at each node, `free`: the others, the heaviest first in both."""
    given, rooms = 0.0, []
    for slots in held:
        load = sum(slots)
        gives = max(0.0, load - max(level, slots[0])) if slots else 0.0
        if load > limit:
            gives = max(gives, sum(slots[at] for at in fewest(slots, level, limit)))
        given += gives
        rooms.append(max(0.0, level - load + gives))
    crowded = lacking = 0.0
    for weight, room in zip(free, sorted(rooms, reverse=True), strict=False):
        lacking += min(weight, level) - room
        crowded = max(crowded, lacking)
    return sum(free) + given + crowded


def dispensable(slots: Sequence[float], floor: float) -> list[int]:
    """What a node can give without falling below a floor, heavy ones first: places in `slots`, which are in that order."""
    load, given = sum(slots), []
    if load > floor:
        for at, weight in enumerate(slots):
            if load - weight >= floor:
                load -= weight
                given.append(at)
    return given


def fewest(slots: Sequence[float], floor: float, limit: float) -> tuple[int, ...]:
    """What a node cannot but give to come below `limit`: nothing, if it can without falling below the floor."""
    load = sum(slots)
    if load <= limit or load - sum(slots[at] for at in dispensable(slots, floor)) <= limit:
        return ()
    return lightest(slots, load - limit)


def lightest(slots: Sequence[float], needed: float) -> tuple[int, ...]:
    """Of the slots, but not all of them, those that together weigh `needed` or more, and least more; none: ().

    Sums that differ by less than a two-thousandth of what is needed count as one, so that there are few of them.
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
