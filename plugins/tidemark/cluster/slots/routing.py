"""The slots, groups and nodes of each catalog file. Pure.

A file may span several time partitions and so several slots; its nodes are the union of their groups. Source: seed 001 "Data
partitioning" (database and time slice); docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from typing import Protocol

from tidemark.cluster.slots.hash_ring import Group, SlotHash, data_slot
from tidemark.cluster.slots.table import PartitionTable, Route

WIDEST = 65_536  # partitions; a file with more counts for every slot


class RoutedFile(Protocol):
    """The fields of a file that route it; `CatalogFile` has them. `mods_location`: "" without deletions."""

    @property
    def database(self) -> str: ...

    @property
    def partition_from(self) -> int: ...

    @property
    def partition_to(self) -> int: ...

    @property
    def location(self) -> str: ...

    @property
    def mods_location(self) -> str: ...


def slots_of(table: PartitionTable, database: str, partition_from: int, partition_to: int) -> tuple[int, ...]:
    """Return the slots of a database's data from one time partition to another (both inclusive), each once, rising.

    ValueError if the last partition is before the first.
    """
    return _slots_between(database, partition_from, partition_to, table.slots, table.hash)


def slots_of_file(table: PartitionTable, file: RoutedFile) -> tuple[int, ...]:
    """Return the slots that a file touches, each once, rising."""
    return slots_of(table, file.database, file.partition_from, file.partition_to)


def home_slot(table: PartitionTable, file: RoutedFile) -> int:
    """Return the one slot that counts a file, by its first partition: `node_copy.slot`."""
    return data_slot(file.database, file.partition_from, table.slots, table.hash)


def routes_of(table: PartitionTable, file: RoutedFile) -> tuple[Route, ...]:
    """Return a route for each slot that the file touches, by slot."""
    touched = slots_of(table, file.database, file.partition_from, file.partition_to)
    return tuple(Route(table.epoch, slot, table.group_of(slot), table.moving.get(slot, ())) for slot in touched)


def members_of(table: PartitionTable, file: RoutedFile) -> Group:
    """Return the nodes that must hold the file: members of the groups of all its slots, in the order of the ring."""
    wanted = {name for route in routes_of(table, file) for name in route.members}
    return tuple(name for name in table.ring.names if name in wanted)


def wanted_copies(table: PartitionTable, files: Iterable[RoutedFile]) -> Mapping[str, Set[str]]:
    """Return node → locations (mods too) that belong there once nothing moves. Every node of the table has an entry."""
    wanted: dict[str, set[str]] = {name: set() for name in table.ring.names}
    known: dict[tuple[str, int, int], Group] = {}  # of 100,000 files most share a database and a partition
    for file in files:
        key = (file.database, file.partition_from, file.partition_to)
        members = known.get(key)
        if members is None:
            members = known[key] = members_of(table, file)
        for name in members:
            wanted[name].add(file.location)
            if file.mods_location:
                wanted[name].add(file.mods_location)
    return wanted


@lru_cache(maxsize=65_536)
def _slots_between(database: str, first: int, last: int, slots: int, kind: SlotHash) -> tuple[int, ...]:
    if last < first:
        raise ValueError(f"partitions {first} to {last} of {database}: the last is before the first")
    if last - first >= WIDEST:
        return tuple(range(slots))
    found: set[int] = set()
    for partition in range(first, last + 1):
        found.add(data_slot(database, partition, slots, kind))
        if len(found) == slots:
            break
    return tuple(sorted(found))
