"""Who wins, as arithmetic: the points of one series in several files laid over each other, with every point accounted for.

Pure. Files come lowest rank first; each file's deletions were applied to its own points before; a null is not there and
overwrites nothing. Source: DESIGN §3 "Who wins", "Sources and merges".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemark.tsfiles.points.column import Column, overlay
from tidemark.tsfiles.points.overlay import Weave, weave


@dataclass(frozen=True)
class Counts:
    """Points of a merge: points_in = points_out + overwritten + deleted."""

    points_in: int = 0
    points_out: int = 0
    overwritten: int = 0
    deleted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.points_in + other.points_in,
            self.points_out + other.points_out,
            self.overwritten + other.overwritten,
            self.deleted + other.deleted,
        )

    @property
    def balanced(self) -> bool:
        return self.points_in == self.points_out + self.overwritten + self.deleted


NOTHING = Counts()


def lay(columns: Sequence[Column], known: list[Weave] | None = None) -> Column:
    """A series as readers see it: its points in each file after the file's own deletions, lowest rank first, all of one
    type (ValueError).

    `known`: how columns of other series with the same times lay over each other; what is found out here is added.
    """
    known = [] if known is None else known
    filled = [column for column in columns if len(column)]
    if len(filled) < 2 or len({column.type for column in columns}) != 1:
        return overlay(columns)
    runs = [column.times for column in filled]
    woven = next((one for one in known if one.fits(runs)), None)
    if woven is None:
        woven = weave(runs)
        known.append(woven)
    return Column(columns[0].type, woven.times, woven.choose([column.values for column in filled]))


def cut(column: Column, interval: int) -> dict[int, Column]:
    """The column by catalog partition, floor(time / interval); `interval` in the unit of its times."""
    if not len(column):
        return {}
    if (only := int(column.times[0]) // interval) == int(column.times[-1]) // interval:
        return {only: column}
    partitions = column.times // interval  # rounds down before 1970 too
    starts = np.flatnonzero(np.append(True, partitions[1:] != partitions[:-1]))
    ends = np.append(starts[1:], len(column))
    return {
        int(partitions[start]): Column(column.type, column.times[start:end], column.values[start:end])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }
