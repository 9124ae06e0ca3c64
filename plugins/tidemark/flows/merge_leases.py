"""What a merge may work on: a lease for each partition of a database that one of its groups begins in.

Merges of other partitions go on beside it. A lease keeps two merges from making the same files, and says that nobody is at
work on what lies in the partition's staging folder; that a group is published once, and only while its sources are what
they were, the ledger's transaction holds by itself. So one lease is enough for a group of files that span partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidemark.app import App
from tidemark.errors import LeaseHeldError
from tidemark.formats.layout import folder_name
from tidemark.ledger.leases import Lease, Leases
from tidemark.load.merge_plan import Group

STAGING = "staging/merge"


class Place(NamedTuple):
    """A partition of a database, by its folder below `data/`."""

    database: str
    partition: int

    @classmethod
    def of(cls, group: Group) -> Place:
        """Where the group begins."""
        files = [unit.file for unit in group.units]
        return cls(folder_name(files[0].database), min(file.partition_from for file in files))

    @property
    def folder(self) -> str:
        """Where its merges stage what they make, each batch in a folder of its own."""
        return f"{STAGING}/{self.database}/{self.partition}"

    def lease_name(self, receiver: str) -> str:
        return f"merge:{receiver}/{self.database}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.database}, partition {self.partition}"


class MergeLeases:
    """Those of one merge. `refused`: who has the others."""

    def __init__(self, app: App, receiver: str, batch: str) -> None:
        self.held: dict[Place, Lease] = {}
        self.refused: dict[Place, LeaseHeldError] = {}
        self._leases = Leases(app.ledger, app.identity)
        self._receiver = receiver
        self._holder = f"merge-{batch}"

    @contextmanager
    def kept(self) -> Iterator[MergeLeases]:
        """Alive until the block ends, then given back."""
        try:
            with self._leases.keep_all_alive(lambda: list(self.held.values())):
                yield self
        finally:
            self._leases.release_all(list(self.held.values()))

    def take(self, places: Iterable[Place]) -> list[Place]:
        """Those of `places` that were free and are ours from now on; who has one is asked for it once."""
        asked = self.held.keys() | self.refused.keys()
        wanted = {place.lease_name(self._receiver): place for place in places if place not in asked}
        new = []
        for name, answer in self._leases.take_all(wanted, self._holder).items():
            if isinstance(answer, LeaseHeldError):
                self.refused[wanted[name]] = answer
            else:
                self.held[wanted[name]] = answer
                new.append(wanted[name])
        return new
