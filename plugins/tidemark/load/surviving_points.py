"""Whether points of a file live on in others: the evidence for what became of a vanished file. One file a task.

Names and extents are hints: a compaction loses no point but deleted ones, so a file of which one alive point stands with its
value in a file made since was compacted, and so was one of which every alive time stands there (overwritten throughout).
Statistics are asked first; values are decoded only where extents meet, and the reading ends with the first proof. Nothing
here changes anything. Source: docs/decisions/0005-vanished-is-two-things.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidemark.load.check import mods_form
from tidemark.load.drops import Survival
from tidemark.tsfiles.column import Column
from tidemark.tsfiles.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import MOST_MODS, UntrustedFile


@dataclass(frozen=True)
class HeldFile:
    """A data file of the catalog and its deletions ('' where it has none), relative to the receiver's root."""

    location: str
    mods_location: str = ""


@dataclass(frozen=True)
class SurvivalTask:
    """`gone`: the file that vanished; `made`: files of its site that came since and that a compaction may have made."""

    root: str
    database: str
    gone: HeldFile
    made: tuple[HeldFile, ...]

    @property
    def subject(self) -> str:
        return self.gone.location


@dataclass(frozen=True)
class _Open:
    file: TsFile
    deletions: Deletions


def look_for_points(task: SurvivalTask) -> Survival:
    """Raises as `TsFile` does for a file that cannot be read: that proves nothing."""
    with ExitStack() as stack:
        gone = _opened(task, task.gone, stack)
        made = [_opened(task, one, stack) for one in task.made]
        alive = missing = False
        for device in gone.file.devices():
            holders = [one for one in made if device in one.file.names()]
            for measurement in gone.file.measurements(device):
                column = gone.file.column(device, measurement, deletions=gone.deletions)
                if not len(column):
                    continue
                alive = True
                left = _times_left(column, device, measurement, holders)
                if left is None:
                    return Survival.LIVES
                missing = missing or left > 0
        if not alive:
            return Survival.EMPTY
        return Survival.GONE if missing else Survival.LIVES


def _times_left(column: Column, device: str, measurement: str, holders: Sequence[_Open]) -> int | None:
    """How many of the column's times stand in none of the holders; None once a point stands there with its value."""
    left = column.times
    first, last = int(column.times[0]), int(column.times[-1])
    for one in holders:
        series = one.file.series_of(device)[1].get(measurement)
        if series is None:
            continue
        end = last + 1 if last < np.iinfo(np.int64).max else None
        found = one.file.column(device, measurement, first, end, one.deletions)
        if found.type is column.type and same_points(column, found):
            return None
        left = np.setdiff1d(left, found.times, assume_unique=True)
    return len(left)


def same_points(one: Column, other: Column) -> bool:
    """Whether a time has the same value in both, which are of one type (bit for bit: NaN equals NaN)."""
    _, here, there = np.intersect1d(one.times, other.times, assume_unique=True, return_indices=True)
    mine, theirs = one.values[here], other.values[there]
    if mine.dtype.kind == "f":
        bits = np.dtype(f"i{mine.dtype.itemsize}")
        mine, theirs = np.ascontiguousarray(mine).view(bits), np.ascontiguousarray(theirs).view(bits)
    return bool((mine == theirs).any())


def _opened(task: SurvivalTask, held: HeldFile, stack: ExitStack) -> _Open:
    deletions = NO_DELETIONS
    if held.mods_location:
        data = UntrustedFile(str(Path(task.root)), held.mods_location).read(MOST_MODS)
        deletions = parse_mods(data, mods_form(held.mods_location), held.mods_location)
    return _Open(stack.enter_context(TsFile(UntrustedFile(task.root, held.location), task.database)), deletions)
