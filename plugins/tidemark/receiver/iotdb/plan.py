"""Decide what an IoTDB receives next: files that are LOADed unchanged, files sent as points, files held back. Pure.

A server lets the file LOADed last win (research/iotdb.md "What to know first" 10). So a file is LOADed unchanged only if the
server has no overlapping file of higher rank. A late file is sent as those of its points that readers of the catalog see,
and never overwrites newer ones. Files with an unknown outcome are compared with the server first.
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
    """A live source file of the catalog, and whether the server has it.

    new: it was never sent · unknown: the process or connection died while it was sent, or the server replied with an error ·
    given: the server has it. `changed`: the server has an older generation of the same path.
    """

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]
    state: State
    changed: bool = False


@dataclass(frozen=True)
class Gone:
    """A file that the server has and that left the catalog, and no other file holds its points."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]


@dataclass(frozen=True)
class Batch:
    """Files that do not overlap and go in one LOAD, all of one database and model."""

    database: str
    table: bool
    files: tuple[SourceStatus, ...]


@dataclass(frozen=True)
class Held:
    """A file that this server cannot receive, and why."""

    file: CatalogFile
    reason: str


@dataclass(frozen=True)
class Plan:
    """In this order: `unresolved` (compare with the server), `batches` (LOAD unchanged), `points` (send what readers see of
    them), `gone` (delete what readers no longer see). `held`: files that stay out."""

    unresolved: tuple[SourceStatus, ...] = ()
    batches: tuple[Batch, ...] = ()
    points: tuple[SourceStatus, ...] = ()
    gone: tuple[Gone, ...] = ()
    held: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What the server can receive. `format`: newest TsFile version. `unit`: of its times, '' where unknown."""

    format: int
    tables: bool
    unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)  # site → its time unit


def plan_load(standings: Iterable[SourceStatus], gone: Sequence[Gone], limits: Limits) -> Plan:
    """Make the whole plan at once. `standings`: all live sources of the affected databases and partitions."""
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
        if (
            one.changed
            or one.file.prefix
            or late
            or not one.file.points
            or any(o.file.site_id != one.file.site_id for o, _ in before)
        ):
            points.append(one)
            continue
        place = max((number + 1 for _, number in before), default=0)
        rounds += [[]] if place == len(rounds) else []
        rounds[place].append(one)
        coming.add_file(one, place)
    batches = tuple(batch for files in rounds for batch in _cut_batches(files))
    return Plan(settle, batches, tuple(points), tuple(gone), tuple(held))


def why_unfit(file: CatalogFile, limits: Limits) -> str:
    """Return why the server cannot receive a file, '' where it can."""
    unit = limits.units.get(file.site_id, "")
    if file.format > limits.format:
        return f"the server reads TsFiles up to version {limits.format}, this one has {file.format}"
    if file.model == "mixed":
        return "it holds devices of both models, and a LOAD takes one"
    if file.prefix and limits.format < 4:
        return f"its devices are below {file.prefix} here, and this server takes files of version 3, with their own names"
    if file.model == "table" and not limits.tables:
        return "the server has no table model"
    if limits.unit and unit and unit != limits.unit:
        return f"the server's times are in {limits.unit}, the site's in {unit}"
    return ""


class _Index:
    """Files by their devices and times, each with a number. A search examines few of thousands of consecutive files."""

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[int, int, int, SourceStatus, int]]] = {}  # start, end, file_id: by start
        self._longest: dict[str, int] = {}

    def add_file(self, one: SourceStatus, number: int) -> None:
        for device in one.devices:
            held = self._held.setdefault(device.device, [])
            bisect.insort(held, (device.start, device.end, one.file.file_id, one, number), key=itemgetter(0))
            self._longest[device.device] = max(self._longest.get(device.device, 0), device.end - device.start)

    def find_overlapping(self, one: SourceStatus) -> list[tuple[SourceStatus, int]]:
        """Return files that hold one of its devices at overlapping times."""
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
    """Whether `other`, which overlaps `one`, must win. Between sites ownership decides, point by point, not by file."""
    return other.file.site_id != one.file.site_id or _rank_key(other) > _rank_key(one)


def _rank_key(one: SourceStatus) -> tuple[tuple[int, ...], int]:
    return one.file.rank, one.file.file_id


def _sort_key(one: SourceStatus) -> tuple[str, tuple[int, ...], int]:
    return one.file.site_id, one.file.rank, one.file.file_id


def _cut_batches(files: Sequence[SourceStatus]) -> Iterable[Batch]:
    """Yield the files of a round by database and model, cut to the size of one LOAD."""
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
