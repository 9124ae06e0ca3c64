"""Which node gets which slot when nodes join or leave: strategies behind one protocol, each with fewest moves.

A strategy gets the header of every slot and the present nodes, and returns the header of every slot. A header that is no
present node has left and gives all its slots. A node without slots has joined. Source: seed 001 "Data repartitioning";
research/iotdb.md §3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidemark.cluster.slots.weights import FREE, Shares
from tidemark.errors import UsageError

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
