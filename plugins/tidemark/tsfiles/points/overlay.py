"""Merge runs of times by rank, once for all columns with the same times.

In an aligned device most columns of a file share one array of times, so one merge serves the whole device.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.kernels import kernels

Times = NDArray[np.int64]

_GATHERED = (1, 4, 8)  # bytes of the values that compiled code moves


@dataclass(frozen=True, eq=False)
class TimeOverlay:
    """The merge of `runs` (each strictly ascending, lowest rank first): `times` has each time once, ascending.

    `take`: the index of each time's value in the joined values of all runs; None if the runs just follow each other.
    """

    runs: tuple[Times, ...]
    times: Times
    take: NDArray[Any] | None

    def fits_runs(self, runs: Sequence[Times]) -> bool:
        """Whether the merge of these runs is the same."""
        return len(runs) == len(self.runs) and all(map(same_times, runs, self.runs))

    def choose_values(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The values at `times`. `values` has one array a run, all of one dtype."""
        if len(values) == 1:
            return values[0]
        if self.take is None:
            return np.concatenate(values)
        kind = values[0].dtype
        if len(values) == 2 and kind.kind != "O" and kind.itemsize in _GATHERED and (compiled := kernels()) is not None:
            return compiled.gather_values(values[0], values[1], self.take)
        return np.asarray(np.concatenate(values)[self.take])


def overlay_times(runs: Sequence[Times]) -> TimeOverlay:
    """Merge runs of times (none empty), lowest rank first. If a time occurs twice, the later run wins."""
    if len(runs) == 1:
        return TimeOverlay(tuple(runs), runs[0], None)
    if all(int(a[-1]) < int(b[0]) for a, b in itertools.pairwise(runs)):
        return TimeOverlay(tuple(runs), np.concatenate(runs), None)
    compiled = kernels()
    if len(runs) == 2 and compiled is not None and len(runs[0]) + len(runs[1]) < 1 << 32:
        return TimeOverlay(tuple(runs), *compiled.overlay_times(runs[0], runs[1]))
    times = np.concatenate(runs)
    order = np.argsort(times, kind="stable")  # equal times stay ordered by rank, so the last of them wins
    times = times[order]
    last = np.append(times[1:] != times[:-1], True)
    return TimeOverlay(tuple(runs), times[last], order[last])


def same_times(left: Times, right: Times) -> bool:
    """Whether two arrays are equal. Tries identity, lengths and ends before it compares all elements."""
    if left is right:
        return True
    if len(left) != len(right) or (len(left) and (left[0] != right[0] or left[-1] != right[-1])):
        return False
    return bool(np.array_equal(left, right))
