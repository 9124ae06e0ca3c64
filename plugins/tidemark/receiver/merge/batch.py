"""Leases, counts and results of one merge, and the catalog rows of its outputs.

`MergeLeases` holds one lease per partition of a database in which one of its groups begins. Merges of other partitions run
in parallel. A lease keeps two merges from making the same files, and shows that no process works in the partition's staging
folder. The ledger's transaction ensures that a group is published once, and only while its sources are unchanged. So one
lease is enough for a group that spans partitions.

`outputs_of` turns the staged outputs of a group into catalog rows: places, devices, accounts. It is pure. The accounts of a
group add up to all points of its sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemark.app import App
from tidemark.errors import CorruptionError, LeaseHeldError, PermanentError, RetryableError, worst_exit_code
from tidemark.formats.layout import folder_name
from tidemark.ledger.leases import Lease, Leases
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.merges import Account, MergedFile
from tidemark.receiver.merge.device import NOTHING, Counts
from tidemark.receiver.merge.plan import Group
from tidemark.receiver.merge.task import MergeOutcome, Staged

STAGING = "staging/merge"


class Place(NamedTuple):
    """A partition of a database, named by the database's folder below `data/`."""

    database: str
    partition: int

    @classmethod
    def of_group(cls, group: Group) -> Place:
        """Return where the group begins."""
        files = [unit.file for unit in group.units]
        return cls(folder_name(files[0].database), min(file.partition_from for file in files))

    @property
    def folder(self) -> str:
        """The staging folder of its merges; each batch has a folder in it."""
        return f"{STAGING}/{self.database}/{self.partition}"

    def lease_name(self, receiver: str) -> str:
        return f"merge:{receiver}/{self.database}/{self.partition}"

    def __str__(self) -> str:
        return f"{self.database}, partition {self.partition}"


class MergeLeases:
    """The leases of one merge. `refused`: places that others hold."""

    def __init__(self, app: App, receiver: str, batch: str) -> None:
        self.held: dict[Place, Lease] = {}
        self.refused: dict[Place, LeaseHeldError] = {}
        self._leases = Leases(app.ledger, app.identity)
        self._receiver = receiver
        self._holder = f"merge-{batch}"

    @contextmanager
    def kept_alive(self) -> Iterator[MergeLeases]:
        """Keep the leases alive until the block ends, then release them."""
        try:
            with self._leases.keep_all_alive(lambda: list(self.held.values())):
                yield self
        finally:
            self._leases.release_all(list(self.held.values()))

    def acquire_free(self, places: Iterable[Place]) -> list[Place]:
        """Acquire the free ones of `places` and return them. A place is tried only once."""
        asked = self.held.keys() | self.refused.keys()
        wanted = {place.lease_name(self._receiver): place for place in places if place not in asked}
        new = []
        for name, answer in self._leases.acquire_all(wanted, self._holder).items():
            if isinstance(answer, LeaseHeldError):
                self.refused[wanted[name]] = answer
            else:
                self.held[wanted[name]] = answer
                new.append(wanted[name])
        return new


_MERGE = "./tidemark merge"
_HINTS = {
    CorruptionError.kind: "./tidemark verify --repair",
    PermanentError.kind: f"free space there, or mend what it names; then {_MERGE}",
}


@dataclass(frozen=True)
class MergeResult:
    """`rows`: points in the merged files. `kept`: (subject, reason) of groups that stay unmerged.

    `failed`: (subject, error, exit code) of groups that a later merge tries again. `moved`: groups whose sources kept
    changing during the merge. Readers see all these files as before.
    """

    groups: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    seconds: float = 0.0
    kept: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str, int], ...] = ()
    moved: int = 0

    @property
    def exit_code(self) -> int:
        kinds = {kind for _, _, kind in self.failed} | ({RetryableError.kind} if self.moved else set())
        return worst_exit_code(kinds)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            **self._describe_trouble(),
            "groups": self.groups,
            "files_in": self.files_in,
            "files_out": self.files_out,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "kept": [{"subject": subject, "reason": reason} for subject, reason in self.kept],
            "failed": [{"subject": subject, "error": error, "kind": kind} for subject, error, kind in self.failed],
            "moved": self.moved,
        }

    def _describe_trouble(self) -> dict[str, str]:
        """Return the error and the next command; {} where nothing went wrong."""
        if self.failed:
            (subject, error, kind), *others = self.failed
            more = f" (and {len(others)} more)" if others else ""
            return {"error": (error if subject in error else f"{subject}: {error}") + more, "hint": _HINTS.get(kind, _MERGE)}
        if self.moved:
            error = f"{self.moved} groups changed again and again while they were merged"
            return {"error": error, "hint": "./tidemark merge"}
        return {}


@dataclass
class Tally:
    """The counts of a running merge."""

    groups: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    failed: list[tuple[str, str, int]] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)  # digests of groups that failed in this run
    moved: int = 0
    fetched: dict[str, float] = field(default_factory=dict)  # location fetched from a node → time of the last request
    waiting: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Output:
    """A staged file and its catalog row. The row's location is where the file goes."""

    staged: Staged
    row: MergedFile


def outputs_of(group: Group, outcomes: Sequence[MergeOutcome], name: str, at: float) -> list[Output]:
    """Return the outputs of a group in the order of its tasks. `name` makes their names unique; `at` in seconds since 1970.

    Points of series that left nothing to write go into the first output's account.
    """
    unplaced = sum((outcome.unplaced for outcome in outcomes), NOTHING)
    staged = [one for outcome in sorted(outcomes, key=lambda o: o.number) for one in outcome.staged]
    return [
        Output(one, _merged_row(group, one, f"{name}-{number}", at, unplaced if number == 0 else NOTHING))
        for number, one in enumerate(staged)
    ]


def _merged_row(group: Group, staged: Staged, name: str, at: float, unplaced: Counts) -> MergedFile:
    first = group.units[0].file
    folder = f"data/{folder_name(first.database)}/{staged.partition}"
    file = CatalogFile(
        receiver=first.receiver,
        site_id=first.site_id,
        role="merged",
        path="",
        generation=0,
        database=first.database,
        model=staged.model,
        format=4,
        partition_from=staged.partition,
        partition_to=staged.partition,
        location=f"{folder}/{first.site_id[:8]}-{staged.sha256[:12]}-merged-{name}.tsfile",
        sha256=staged.sha256,
        size=staged.size,
        mods_location="",
        mods_sha256="",
        points=staged.points,
        rank=group.rank,
        marked=first.marked if first.kept else None,
        created=at,
    )
    devices = tuple(CatalogDevice(*device) for device in staged.devices)
    counts = staged.counts + unplaced
    account = Account(counts.points_in, counts.points_out, counts.overwritten, counts.deleted)
    return MergedFile(file, devices, account)
