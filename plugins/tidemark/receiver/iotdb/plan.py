"""What an IoTDB is given next: which files as they are, which only in points, which not. One pure decision.

A server takes whatever is LOADed last for the newest (research/iotdb.md "What to know first" 10). So a file is given as
it is only where nothing that outranks it was given before it; a file that comes late is given as the points of it that
readers of the catalog see, and never overwrites newer ones. What nobody knows the outcome of is asked for first.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile

State = Literal["new", "unknown", "given"]
_BATCH_FILES = 64  # files of one LOAD
_BATCH_BYTES = 1 << 30


@dataclass(frozen=True)
class SourceStatus:
    """A live source file of the catalog, and how the server stands to it.

    new: it was never given · unknown: it was being given when the process or the line died, or the server answered with
    an error · given: the server has it. `changed`: the server has an older generation of the same path.
    """

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]
    state: State
    changed: bool = False


@dataclass(frozen=True)
class Gone:
    """A file that the server has and the catalog gave up, without any other file standing for its points."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]


@dataclass(frozen=True)
class Batch:
    """Files that do not meet each other and go in one LOAD; all of one database and model."""

    database: str
    table: bool
    files: tuple[SourceStatus, ...]


@dataclass(frozen=True)
class Held:
    """A file that this server cannot be given, and why."""

    file: CatalogFile
    reason: str


@dataclass(frozen=True)
class Plan:
    """In this order: `settle` (ask what came of it), `batches` (LOAD as they are), `points` (LOAD what readers see of
    them), `gone` (take away what readers do not see any more)."""

    unresolved: tuple[SourceStatus, ...] = ()
    batches: tuple[Batch, ...] = ()
    points: tuple[SourceStatus, ...] = ()
    gone: tuple[Gone, ...] = ()
    held: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What the server can take. `format`: newest TsFile version; `unit`: of its times, '' where it does not say."""

    format: int
    tables: bool
    unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)  # site → its time unit


def plan_load(standings: Iterable[SourceStatus], gone: Sequence[Gone], limits: Limits) -> Plan:
    """Decide everything at once. `standings`: all live sources of the databases and partitions concerned."""
    fit: list[SourceStatus] = []
    held: list[Held] = []
    for one in sorted(standings, key=_sort_key):
        reason = "" if one.state == "given" else why_unfit(one.file, limits)
        if reason:
            held.append(Held(one.file, reason))
        else:
            fit.append(one)
    settle = tuple(one for one in fit if one.state == "unknown")
    had, coming = _Index(), _Index()
    for one in fit:
        if one.state != "new":
            had.add_file(one, 0)
    points: list[SourceStatus] = []
    rounds: list[list[SourceStatus]] = []
    for one in (one for one in fit if one.state == "new"):
        before = coming.find_overlapping(one)
        late = any(_must_win_over(other, one) for other, _ in had.find_overlapping(one))
        if one.changed or late or not one.file.points or any(o.file.site_id != one.file.site_id for o, _ in before):
            points.append(one)
            continue
        place = max((number + 1 for _, number in before), default=0)
        rounds += [[]] if place == len(rounds) else []
        rounds[place].append(one)
        coming.add_file(one, place)
    batches = tuple(batch for files in rounds for batch in _cut_batches(files))
    return Plan(settle, batches, tuple(points), tuple(gone), tuple(held))


def why_unfit(file: CatalogFile, limits: Limits) -> str:
    """Why the server cannot take a file, '' where it can."""
    unit = limits.units.get(file.site_id, "")
    if file.format > limits.format:
        return f"the server reads TsFiles up to version {limits.format}, this one has {file.format}"
    if file.model == "mixed":
        return "it holds devices of both models, and a LOAD takes one"
    if file.model == "table" and not limits.tables:
        return "the server has no table model"
    if limits.unit and unit and unit != limits.unit:
        return f"the server's times are in {limits.unit}, the site's in {unit}"
    return ""


class _Index:
    """Files by their devices and times, each with a number. Among thousands that follow each other it looks at few."""

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[int, int, int, SourceStatus, int]]] = {}  # start, end, file_id: by start
        self._longest: dict[str, int] = {}

    def add_file(self, one: SourceStatus, number: int) -> None:
        for device in one.devices:
            held = self._held.setdefault(device.device, [])
            bisect.insort(held, (device.start, device.end, one.file.file_id, one, number), key=itemgetter(0))
            self._longest[device.device] = max(self._longest.get(device.device, 0), device.end - device.start)

    def find_overlapping(self, one: SourceStatus) -> list[tuple[SourceStatus, int]]:
        """Files that hold one of its devices at times that overlap."""
        found = {}
        for device in one.devices:
            held = self._held.get(device.device, [])
            earliest = device.start - self._longest.get(device.device, 0)
            for place in range(bisect.bisect_left(held, earliest, key=itemgetter(0)), len(held)):
                start, end, file_id, standing, number = held[place]
                if start > device.end:
                    break
                if end >= device.start:
                    found[file_id] = (standing, number)
        return list(found.values())


def _must_win_over(other: SourceStatus, one: SourceStatus) -> bool:
    """Whether `other`, which meets `one`, must win. Between sites ownership decides, which points know and files do not."""
    return other.file.site_id != one.file.site_id or _rank_key(other) > _rank_key(one)


def _rank_key(one: SourceStatus) -> tuple[tuple[int, ...], int]:
    return one.file.rank, one.file.file_id


def _sort_key(one: SourceStatus) -> tuple[str, tuple[int, ...], int]:
    return one.file.site_id, one.file.rank, one.file.file_id


def _cut_batches(files: Sequence[SourceStatus]) -> Iterable[Batch]:
    """The files of a round by database and model, cut to the size of one LOAD."""
    groups: dict[tuple[str, bool], list[SourceStatus]] = {}
    for one in files:
        groups.setdefault((one.file.database, one.file.model == "table"), []).append(one)
    for (database, table), members in sorted(groups.items()):
        batch: list[SourceStatus] = []
        size = 0
        for one in members:
            if batch and (len(batch) == _BATCH_FILES or size + one.file.size > _BATCH_BYTES):
                yield Batch(database, table, tuple(batch))
                batch, size = [], 0
            batch.append(one)
            size += one.file.size
        yield Batch(database, table, tuple(batch))
