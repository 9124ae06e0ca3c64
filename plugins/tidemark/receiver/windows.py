"""Decide which stretches of a device's files are copied unchanged, and which are decoded and overlaid. Pure.

A stretch that overlaps no other in time and that no deletion touches needs no merging: its chunks are copied. Everything
between two copies is one piece, decoded and written anew. Many small chunks become large ones this way. Source:
research/spark-tsfile.md §3.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidemark.tsfiles.reader import Stretch

COPY_ROWS = 1_000
"""A chunk with fewer rows is worth copying only where it is all there is."""

WINDOW_POINTS = 4_000_000
"""About so many points of a piece are decoded at once."""

WINDOW_ROWS = 10_000
"""And so many of each column at least: pages are decoded whole, in every window that touches them."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Points of one file, `start` to `end` inclusive, at `rows` times. `holder`: the file's index in rank order.

    `points`: measurement → points by the statistics. `stretch`: what can be copied instead of decoded.
    """

    holder: int
    start: int
    end: int
    rows: int
    points: Mapping[str, int]
    stretch: Stretch | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Extents that overlap in time, or lie between two copied ones. `copied`: it is one extent, copied unchanged."""

    extents: tuple[Extent, ...]
    copied: bool = False

    @property
    def start(self) -> int:
        return min(extent.start for extent in self.extents)

    @property
    def end(self) -> int:
        return max(extent.end for extent in self.extents)

    def points(self, holder: int) -> dict[str, int]:
        """Return measurement → points of a file in this piece, by the statistics; only those that have any."""
        found: dict[str, int] = {}
        for extent in self.extents:
            if extent.holder == holder:
                for measurement, count in extent.points.items():
                    found[measurement] = found.get(measurement, 0) + count
        return found

    def overlaps_itself(self, holder: int, measurement: str) -> bool:
        """Whether chunks of one series overlap within one file: later ones may overwrite points there."""
        mine = [extent for extent in self.extents if extent.holder == holder and measurement in extent.points]
        mine.sort(key=lambda extent: extent.start)
        return any(before.end >= after.start for before, after in itertools.pairwise(mine))


def pieces_of(extents: Iterable[Extent], copy_rows: int = COPY_ROWS) -> list[Piece]:
    """Return the pieces of a device, or of one series, in time order; no two overlap."""
    meeting: list[list[Extent]] = []
    reach = 0
    for extent in sorted(extents, key=lambda one: (one.start, one.end)):
        if meeting and extent.start <= reach:
            meeting[-1].append(extent)
            reach = max(reach, extent.end)
        else:
            meeting.append([extent])
            reach = extent.end
    least = copy_rows if len(meeting) > 1 else 0
    pieces: list[Piece] = []
    between: list[Extent] = []
    for together in meeting:
        if len(together) == 1 and together[0].stretch is not None and together[0].rows >= least:
            if between:
                pieces.append(Piece(tuple(between)))
                between = []
            pieces.append(Piece(tuple(together), copied=True))
        else:
            between += together
    return [*pieces, Piece(tuple(between))] if between else pieces


def windows_of(piece: Piece, points: int = WINDOW_POINTS) -> list[tuple[int, int]]:
    """Split the piece into consecutive time windows (both ends inclusive) of about so many points each.

    The split assumes evenly spaced points in each extent: the real number of points in a window may differ.
    """
    cuts: list[int] = []
    density, passed = 0.0, 0.0  # points per unit of time from here on; points before here
    for here, following in itertools.pairwise(sorted(_changes(piece))):
        density += here[1]
        more = density * (following[0] - here[0])
        while density > 0 and (wanted := points * (len(cuts) + 1.0)) < passed + more:
            cuts.append(here[0] + int((wanted - passed) / density))
        passed += more
    starts = sorted({piece.start, *(cut for cut in cuts if cut <= piece.end)})  # rounding may pass the last point
    return [(start, following - 1) for start, following in zip(starts, [*starts[1:], piece.end + 1], strict=True)]


def _changes(piece: Piece) -> Iterator[tuple[int, float]]:
    """Yield (time, change of the point density there)."""
    for extent in piece.extents:
        density = sum(extent.points.values()) / (extent.end + 1 - extent.start)
        yield extent.start, density
        yield extent.end + 1, -density
