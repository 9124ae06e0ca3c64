"""The files of a receiver's catalog by slot, read once for a plan or a migration.

A migration moves only files from before the swap: later commits are routed by the new table, and are at the new group
already. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.cluster.slots.hash_ring import data_slot, schema_slot
from tidemark.cluster.slots.routing import slots_of
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver import catalog as catalog_rows

_LATELY = 7 * 86_400.0  # seconds; the files since then give a slot's write rate


class Stored(NamedTuple):
    """A TsFile or mods for nodes. `size` 0 if the catalog does not know it (mods)."""

    location: str
    sha256: str
    size: int
    home: int  # slot of its first partition: `node_copy.slot`
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Stock:
    """The files of a catalog. `files`: by location. `by_slot`: locations of every file that touches the slot. `schemas`:
    slot → databases whose schema it has. `writes`: slot → bytes that sites sent lately."""

    files: Mapping[str, Stored]
    by_slot: Mapping[int, tuple[str, ...]]
    schemas: Mapping[int, tuple[str, ...]]
    writes: Mapping[int, int]

    def files_of_slots(self, slots: Iterable[int]) -> list[Stored]:
        """Return the files that touch any of these slots, each once, by location."""
        wanted = {location for slot in slots for location in self.by_slot.get(slot, ())}
        return [self.files[location] for location in sorted(wanted)]

    def sizes_by_slot(self) -> dict[int, int]:
        """Return bytes by slot; a file counts in its first one."""
        found: dict[int, int] = defaultdict(int)
        for file in self.files.values():
            found[file.home] += file.size
        return dict(found)

    @property
    def filled(self) -> frozenset[int]:
        """Slots with a file or a schema."""
        return frozenset(self.by_slot) | frozenset(self.schemas)


def read_stock(connection: Connection, receiver: str, table: PartitionTable) -> Stock:
    files: dict[str, Stored] = {}
    writes: dict[int, int] = defaultdict(int)
    lately = database_time(connection) - _LATELY
    databases: set[str] = set()
    for file in catalog_rows.live_files(connection, receiver):
        databases.add(file.database)
        home = data_slot(file.database, file.partition_from, table.slots, table.hash)
        slots = slots_of(table, file.database, file.partition_from, file.partition_to)
        if file.location not in files and file.role == "source" and file.created >= lately:
            writes[home] += file.size
        files[file.location] = Stored(file.location, file.sha256, file.size, home, slots)
        if file.mods_location:
            files[file.mods_location] = Stored(file.mods_location, file.mods_sha256, 0, home, slots)
    by_slot: dict[int, list[str]] = defaultdict(list)
    for stored in files.values():
        for slot in stored.slots:
            by_slot[slot].append(stored.location)
    schemas: dict[int, list[str]] = defaultdict(list)
    for database in sorted(databases):
        schemas[schema_slot(database, table.slots, table.hash)].append(database)
    return Stock(files, _freeze_lists(by_slot), _freeze_lists(schemas), dict(writes))


def _freeze_lists(lists: Mapping[int, list[str]]) -> dict[int, tuple[str, ...]]:
    return {slot: tuple(names) for slot, names in lists.items()}
