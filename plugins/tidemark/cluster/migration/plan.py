"""Plan, after a change of the table, which member fetches which slots from which, and which delete in the end. Pure.

Member i of the new group pulls from member i of the old one, and from the next one if that fails. A member of the old group
has the data and only acknowledges. Old copies are deleted once every new member has acknowledged, each known by its name and
epoch. The original counts notices instead, and deletes too early if one comes twice. Source: seed 001 "Data migration";
research/iotdb.md §3.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

from tidemark.cluster.slots.hash_ring import Group
from tidemark.cluster.slots.table import PartitionTable


class Move(NamedTuple):
    """A range of slots (ends inclusive) that goes from one group to another, at the epoch of the table that moves it."""

    epoch: int
    first: int
    last: int
    old: Group
    new: Group

    @property
    def slots(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def deleting(self) -> Group:
        """The members that delete its files in the end."""
        return tuple(member for member in self.old if member not in self.new)


class Batch(NamedTuple):
    """Slots, not always neighbours, that go together from one group to another. `slots` rising, not empty."""

    epoch: int
    slots: tuple[int, ...]
    old: Group
    new: Group

    @property
    def gaining(self) -> Group:
        """The members that have none of it yet."""
        return tuple(member for member in self.new if member not in self.old)

    @property
    def deleting(self) -> Group:
        return tuple(member for member in self.old if member not in self.new)

    def sources_for(self, member: str) -> Group:
        """Return the old members to ask, from the one in the same place on, in turn. Never the member itself: it may be in
        both groups and lack something."""
        if not self.old:
            return ()
        start = self.new.index(member) % len(self.old)
        return tuple(name for name in (*self.old[start:], *self.old[:start]) if name != member)


def group_into_batches(
    epoch: int,
    moving: Iterable[tuple[int, Group, Group]],
    sizes: Mapping[int, int],
    most_bytes: int = 4 << 30,
    most_slots: int = 4096,
) -> tuple[Batch, ...]:
    """Batch slots (slot, old, new) with the same groups, up to `most_bytes` (sizes by slot: `sizes`) and `most_slots`."""
    found: list[Batch] = []
    alike = sorted(moving, key=lambda one: (one[1], one[2], one[0]))
    for (old, new), run in groupby(alike, key=lambda one: one[1:]):
        slots: list[int] = []
        weight = 0
        for slot, _, _ in run:
            if slots and (weight + sizes.get(slot, 0) > most_bytes or len(slots) == most_slots):
                found.append(Batch(epoch, tuple(slots), old, new))
                slots, weight = [], 0
            slots.append(slot)
            weight += sizes.get(slot, 0)
        found.append(Batch(epoch, tuple(slots), old, new))
    return tuple(found)


def plan_moves(table: PartitionTable) -> tuple[Move, ...]:
    """Return the moves that are left, by slot; neighbours with the same groups are one move."""
    moving = sorted((slot, old, table.group_of(slot)) for slot, old in table.moving.items())
    runs = groupby(enumerate(moving), key=lambda entry: (entry[1][0] - entry[0], entry[1][1:]))
    found = []
    for (_, (old, new)), run in runs:
        slots = [slot for _, (slot, _, _) in run]
        found.append(Move(table.epoch, slots[0], slots[-1], old, new))
    return tuple(found)
