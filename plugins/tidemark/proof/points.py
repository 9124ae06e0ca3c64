"""Points against points: what the site's own files say, newest wins, against what readers of the catalog see. Pure.

The rule is written once more here, apart from the catalog's reader: a mistake in one of the two shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles import canonical
from tidemark.tsfiles.column import Column


@dataclass(frozen=True)
class Series:
    """The points of one series in time order, as canonical text with their type."""

    times: NDArray[np.int64]
    texts: NDArray[np.object_]


def newest_wins(columns: Sequence[Column]) -> Series:
    """Columns of one series, lowest rank first: at one time the last of them counts."""
    filled = [c for c in columns if len(c)]
    if not filled:
        return Series(np.empty(0, np.int64), np.empty(0, np.object_))
    texts = np.empty(sum(len(c) for c in filled), np.object_)
    texts[:] = [f"{c.type.name} {text}" for c in filled for text in canonical.text(c.type, c.values)]
    times = np.concatenate([c.times for c in filled])
    backwards = len(times) - 1
    unique, first = np.unique(times[::-1], return_index=True)
    return Series(unique, texts[backwards - first])


def compare(source: Sequence[Column], catalog: Sequence[Column], exact: bool, free: Sequence[tuple[int, int]] = ()) -> str:
    """'' when the catalog has what the source has; with `exact` also nothing else. Columns lowest rank first.

    `free`: (first, last) times at which the value may be that of a file the site has no more, or not as it was.
    """
    if _alike(source, catalog):
        return ""
    mine, theirs = newest_wins(source), newest_wins(catalog)
    times, at_mine, at_theirs = np.intersect1d(mine.times, theirs.times, assume_unique=True, return_indices=True)
    troubles = []
    missing = np.setdiff1d(mine.times, theirs.times, assume_unique=True)
    if len(missing):
        troubles.append(f"{len(missing)} points are missing in the catalog, the first at {missing[0]}")
    extra = np.setdiff1d(theirs.times, mine.times, assume_unique=True)
    if exact and len(extra):
        troubles.append(f"{len(extra)} points of the catalog are not at the site, the first at {extra[0]}")
    differing = mine.texts[at_mine] != theirs.texts[at_theirs]
    for first, last in free:
        differing &= (times < first) | (times > last)
    other = np.flatnonzero(differing)
    if len(other):
        at = other[0]
        values = f"{mine.texts[at_mine[at]]!r} at the site, {theirs.texts[at_theirs[at]]!r} in the catalog"
        troubles.append(f"{len(other)} points differ, the first at {times[at]}: {values}")
    return "; ".join(troubles)


def _alike(source: Sequence[Column], catalog: Sequence[Column]) -> bool:
    """The quick answer for two single columns of one type, bit for bit."""
    if len(source) != 1 or len(catalog) != 1 or source[0].type is not catalog[0].type:
        return False
    mine, theirs = source[0], catalog[0]
    if not np.array_equal(mine.times, theirs.times):
        return False
    if mine.values.dtype == np.object_:
        return bool(np.array_equal(mine.values, theirs.values))
    return mine.values.tobytes() == theirs.values.tobytes()
