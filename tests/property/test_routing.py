"""Files and nodes against a model in plain dicts, through any sequence of joining and leaving nodes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.slots import routing
from tidemark.cluster.slots.balance import even_slots, first_owners
from tidemark.cluster.slots.hash_ring import Node, SlotHash, data_slot
from tidemark.cluster.slots.table import PartitionTable, begin_table


@dataclass(frozen=True)
class File:
    database: str
    partition_from: int
    partition_to: int
    location: str
    mods_location: str


@st.composite
def files(draw: st.DrawFn) -> list[File]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(-20, 20))
        mods = f"data/{number}.mods" if draw(st.booleans()) else ""
        database = draw(st.sampled_from(["root.a", "root.ä", ""]))
        found.append(File(database, first, first + draw(st.integers(0, 6)), f"data/{number}", mods))
    return found


@st.composite
def tables(draw: st.DrawFn) -> list[PartitionTable]:
    """A first table and those of a few changes after it, nothing moving when the next begins."""
    replicas = draw(st.integers(1, 4))
    numbers = draw(st.lists(st.integers(0, 999), min_size=replicas, max_size=8, unique=True))
    ring = [Node(number, f"n{number}") for number in numbers]
    slots = draw(st.integers(1, 40))
    kind = draw(st.sampled_from(list(SlotHash)))
    found = [begin_table(ring, replicas, first_owners(slots, [node.name for node in sorted(ring)]), kind)]
    for number in draw(st.lists(st.integers(1000, 1999), max_size=3, unique=True)):
        settled = found[-1].with_moved(range(slots))
        leaving = len(settled.ring) > replicas and draw(st.booleans())
        name = draw(st.sampled_from(settled.ring.names))
        found.append(
            settled.without_node(name, even_slots) if leaving else settled.with_node(Node(number, f"n{number}"), even_slots)
        )
    return found


def holders(table: PartitionTable, file: File) -> dict[int, set[str]]:
    """The model: slot → nodes, from owners and the ring as plain lists."""
    ring = [node.name for node in sorted(table.ring)]
    found = {}
    for partition in range(file.partition_from, file.partition_to + 1):
        slot = data_slot(file.database, partition, len(table.owners), table.hash)
        start = ring.index(table.owners[slot])
        found[slot] = {ring[(start + step) % len(ring)] for step in range(min(table.replicas, len(ring)))}
    return found


@given(tables(), files())
def test_every_copy_is_wanted_exactly_where_the_model_has_it(history: list[PartitionTable], some: list[File]) -> None:
    for table in history:
        model: dict[str, set[str]] = {node.name: set() for node in table.ring}
        for file in some:
            for names in holders(table, file).values():
                for name in names:
                    model[name] |= {file.location, file.mods_location} - {""}

        assert routing.wanted_copies(table, some) == model


@given(tables(), files())
def test_slots_and_members_are_the_models(history: list[PartitionTable], some: list[File]) -> None:
    for table in history:
        for file in some:
            slots = holders(table, file)
            members = set().union(*slots.values())

            assert routing.slots_of(table, file.database, file.partition_from, file.partition_to) == tuple(sorted(slots))
            assert routing.home_slot(table, file) in slots
            assert set(routing.members_of(table, file)) == members
            assert len(routing.members_of(table, file)) == len(members)
