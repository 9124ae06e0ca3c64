"""Search the points of a vanished file in newer files: evidence of a compaction. One file per task; changes nothing.

Names and extents are hints. A compaction loses only deleted points. A file was compacted if one of its alive points is in a
newer file with the same value, or if all its alive times are there (all overwritten). Statistics are compared first. Values
are decoded only where extents meet, one stretch of time after another. Reading ends with the first proof. A series that
cannot be read proves nothing; another one may. Source: docs/decisions/0005-vanished-is-two-things.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from tidemark.errors import CorruptionError, TidemarkError
from tidemark.receiver.load.check import read_deletions
from tidemark.receiver.load.removal.rules import Survival
from tidemark.receiver.windows import Extent, Piece, windows_of
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.layout.series import ChunkPlace, Series
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import UntrustedFile

_AT_ONCE = 1_000_000
"""About so many points of a series are compared at once."""


@dataclass(frozen=True)
class HeldFile:
    """A data file of the catalog and its deletions ('' where it has none), relative to the receiver's root. `prefix`: what
    its names lack."""

    location: str
    mods_location: str = ""
    prefix: str = ""


@dataclass(frozen=True)
class SurvivalTask:
    """`gone`: the vanished file. `made`: newer files of its site that a compaction may have made. `is_moved`: the one of
    these has its bytes."""

    root: str
    database: str
    gone: HeldFile
    made: tuple[HeldFile, ...]
    is_moved: bool = False

    @property
    def subject(self) -> str:
        return self.gone.location


@dataclass(frozen=True)
class Evidence:
    """`rests_on`: indexes in `made` of the files that prove the answer. `proof`: what decided, as the start of a sentence
    "…, in PATH"; '' where no point lives on."""

    survival: Survival
    rests_on: tuple[int, ...] = ()
    proof: str = ""


@dataclass(frozen=True)
class _Open:
    file: TsFile
    deletions: Deletions


_Stretch = tuple[int | None, int | None]  # start <= time < end, None: no bound


def find_surviving_points(task: SurvivalTask) -> Evidence:
    """Compare the vanished file with the newer ones. Raises as `TsFile` does for a file that cannot be read, and
    CorruptionError for bytes that the reader did not expect. An error proves nothing."""
    try:
        return _compare_points(task)
    except (TidemarkError, MemoryError):
        raise
    except Exception as broken:
        raise CorruptionError(f"{task.subject} cannot be read: {type(broken).__name__}: {broken}") from broken


def _compare_points(task: SurvivalTask) -> Evidence:
    if task.is_moved:
        return Evidence(Survival.LIVES, (0,), "it has the same bytes")
    with ExitStack() as stack:
        gone = _open_held(task, task.gone, stack)
        made = {place: _open_held(task, one, stack) for place, one in enumerate(task.made)}
        alive = missing = 0
        met: set[int] = set()
        unread: TidemarkError | None = None
        for device in gone.file.list_devices():
            holders = {place: one for place, one in made.items() if device in one.file.device_names()}
            for measurements, stretch in _split_stretches(gone, device, holders):
                for measurement in measurements:
                    try:
                        column = gone.file.read_column(device, measurement, *stretch, gone.deletions)
                        found = _compare_column(column, device, measurement, holders) if len(column) else _Compared(0)
                    except TidemarkError as broken:
                        unread = unread or broken
                        continue
                    if found.time is not None:
                        point = f"{device}.{measurement} has at {found.time} the value that it has"
                        return Evidence(Survival.LIVES, found.met, point)
                    alive += len(column)
                    missing += found.left
                    met |= set(found.met)
                if stretch[1] is not None:
                    for one in (gone, *holders.values()):
                        one.file.forget_times(device, stretch[1])
        if unread is not None:
            raise unread
        if not alive:
            return Evidence(Survival.EMPTY, (), "no point of it is alive")
        if missing:
            return Evidence(Survival.GONE)
        return Evidence(Survival.LIVES, tuple(sorted(met)), f"each of its {alive:,} times stands, overwritten")


def _split_stretches(gone: _Open, device: str, holders: Mapping[int, _Open]) -> Iterator[tuple[Sequence[str], _Stretch]]:
    """Yield measurements of a device that are read together, with each stretch of time to read. Columns with shared times go
    together, other series go one by one. Few points make one stretch without bounds."""
    time, series = gone.file.series_of(device)
    names = sorted(series)
    groups = [names] if time is not None else [[name] for name in names]
    for group in groups:
        others = [one.file.series_of(device) for one in holders.values()]
        there = [s for of_time, of in others for s in ([of_time] if of_time else [of[n] for n in group if n in of])]
        for stretch in _split_windows([time or series[group[0]], *there]):
            yield group, stretch


def _split_windows(series: Sequence[Series]) -> Iterator[_Stretch]:
    chunks = [(place, chunk) for place, one in enumerate(series) for chunk in one.chunks if chunk.statistics.count]
    if sum(chunk.statistics.count for _, chunk in chunks) <= _AT_ONCE:
        yield None, None
        return
    windows = windows_of(Piece(tuple(_chunk_extent(place, chunk) for place, chunk in chunks)), _AT_ONCE)
    for number, (start, _) in enumerate(windows):
        last = number + 1 == len(windows)
        yield start if number else None, None if last else windows[number + 1][0]


def _chunk_extent(place: int, chunk: ChunkPlace) -> Extent:
    told = chunk.statistics
    return Extent(place, told.start, told.end, told.count, {"": told.count})


@dataclass(frozen=True)
class _Compared:
    """`left`: how many times of a column are in no holder. `met`: indexes of the holders that have any of them. `time`: the
    time of a point that the one holder in `met` has with the same value."""

    left: int
    met: tuple[int, ...] = ()
    time: int | None = None


def _compare_column(column: Column, device: str, measurement: str, holders: Mapping[int, _Open]) -> _Compared:
    left = column.times
    first, last = int(column.times[0]), int(column.times[-1])
    met = []
    for place, one in holders.items():
        series = one.file.series_of(device)[1].get(measurement)
        if series is None:
            continue
        end = last + 1 if last < np.iinfo(np.int64).max else None
        found = one.file.read_column(device, measurement, first, end, one.deletions)
        if found.type is column.type and (time := same_point(column, found)) is not None:
            return _Compared(0, (place,), time)
        after = np.setdiff1d(left, found.times, assume_unique=True)
        if len(after) < len(left):
            left = after
            met.append(place)
    return _Compared(len(left), tuple(met))


def same_point(one: Column, other: Column) -> int | None:
    """Return the first time with the same value in both columns of one type (bit for bit: NaN equals NaN); None: none."""
    times, here, there = np.intersect1d(one.times, other.times, assume_unique=True, return_indices=True)
    mine, theirs = one.values[here], other.values[there]
    if mine.dtype.kind == "f":
        bits = np.dtype(f"i{mine.dtype.itemsize}")
        mine, theirs = np.ascontiguousarray(mine).view(bits), np.ascontiguousarray(theirs).view(bits)
    same = np.flatnonzero(mine == theirs)
    return int(times[same[0]]) if len(same) else None


def _open_held(task: SurvivalTask, held: HeldFile, stack: ExitStack) -> _Open:
    deletions = read_deletions(task.root, held.mods_location, held.prefix)
    file = TsFile(UntrustedFile(task.root, held.location), task.database, held.prefix)
    return _Open(stack.enter_context(file), deletions)
