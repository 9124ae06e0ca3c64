"""Merge one device: decide what is copied and what is decoded, and which point wins.

Parts come in the order in which they are written. A stretch that overlaps no other in time and that no deletion touches is
copied as chunks. Everything between two copies is one piece, decoded and written anew as columns in which the newest file
wins (`receiver.windows`). Memory holds one piece.

`overlay_series` lays the points of one series in several files over each other; pure. Files come lowest rank first. Each
file's deletions were applied to its own points before. A null overwrites nothing. Every point is counted.

Source: DESIGN §3 "Who wins", "Sources and merges"; research/spark-tsfile.md §3.4, §3.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tidemark.errors import CorruptionError
from tidemark.receiver import windows
from tidemark.receiver.windows import Extent, Piece, pieces_of
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.layout.series import Series
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, TimeOverlay, overlay_columns, overlay_times
from tidemark.tsfiles.reader import Stretch, TsFile, aligned_stretches, series_stretches, stored_chunks
from tidemark.tsfiles.write.pages import Chunk

_LAST_TIME = (1 << 63) - 1


@dataclass(frozen=True)
class Holder:
    """A file that holds the device: its deletions, its time column where it is aligned there, and its series."""

    file: TsFile
    deletions: Deletions
    time: Series | None
    series: Mapping[str, Series]


@dataclass(frozen=True)
class Part:
    """The next thing to write into one partition's output: `copied` chunks, or `columns`. No partition: nothing is left."""

    partition: int | None
    counts: Counts
    columns: Mapping[str, Column] = field(default_factory=dict)
    copied: Sequence[Chunk] = ()


@dataclass(frozen=True)
class DeviceMerge:
    """`holders` lowest rank first; `interval` of catalog partitions, in the site's unit."""

    device: str
    holders: Sequence[Holder]
    interval: int

    @property
    def is_aligned(self) -> bool:
        """As in the newest file."""
        return self.holders[-1].time is not None

    @cached_property
    def types(self) -> dict[str, DataType]:
        """Measurement → type, of all that have points in any file, in the order in which files have them."""
        found = {
            measurement: series.type
            for holder in self.holders
            for measurement, series in holder.series.items()
            if series.statistics.count
        }
        return dict(sorted(found.items(), key=lambda item: item[0].encode("utf-16-be", "surrogatepass")))

    def iterate_parts(self) -> Iterator[Part]:
        """Yield all points of the device in time order: whole rows of an aligned device, else one series after another.

        Raises CorruptionError, UnsupportedError.
        """
        for measurements in [list(self.types)] if self.is_aligned else [[name] for name in self.types]:
            extents = [
                extent
                for number, holder in enumerate(self.holders)
                for extent in self._list_extents(number, holder, frozenset(measurements))
            ]
            for piece in pieces_of(extents, windows.COPY_ROWS):
                yield from self._copy_piece(piece) or self._overlay_piece(piece, measurements)

    def _list_extents(self, number: int, holder: Holder, wanted: frozenset[str]) -> Iterator[Extent]:
        """Yield what a file holds of these measurements; as stretches to copy, where its layout is that of the output."""
        series = {name: one for name, one in holder.series.items() if name in wanted}
        if self.is_aligned and holder.time is not None:
            for stretch in aligned_stretches(holder.file.path, holder.time, series):
                yield _extent_of_stretch(number, stretch, self._may_copy(holder, stretch))
            return
        for name, one in series.items():
            for stretch in series_stretches(name, one):
                alike = not self.is_aligned and holder.time is None
                yield _extent_of_stretch(number, stretch, alike and self._may_copy(holder, stretch))

    def _may_copy(self, holder: Holder, stretch: Stretch) -> bool:
        if not stretch.points or stretch.start // self.interval != stretch.end // self.interval:
            return False
        concerned = (
            entry for measurement in stretch.values for entry in holder.deletions.of_series(self.device, measurement)
        )
        return not any(entry.start <= stretch.end and entry.end >= stretch.start for entry in concerned)

    def _copy_piece(self, piece: Piece) -> list[Part]:
        """Return the piece as copied chunks; [] where it must be decoded."""
        extent = piece.extents[0]
        if not piece.copied or extent.stretch is None:
            return []
        chunks = stored_chunks(self.holders[extent.holder].file, extent.stretch)
        if chunks is None:
            return []
        points = extent.stretch.points
        return [Part(extent.start // self.interval, Counts(points, points), copied=chunks)]

    def _overlay_piece(self, piece: Piece, measurements: Sequence[str]) -> Iterator[Part]:
        """Decode the piece window by window, overlay its layers, and cut them by partition.

        Points are counted by the files' statistics, which cover chunks, not windows. So one last part carries all
        overwritten and deleted counts. The decoded counts are compared with the statistics, because a point that no window
        returned would otherwise count as overwritten.
        """
        held = [piece.points(number) for number in range(len(self.holders))]
        gone = Counts(sum(sum(points.values()) for points in held))
        read: Counter[tuple[int, str]] = Counter()
        last = None
        points_at_once = max(windows.WINDOW_POINTS, windows.WINDOW_ROWS * len(measurements))
        for start, end in windows.windows_of(piece, points_at_once):
            rows: dict[int, dict[str, Column]] = {}
            woven: list[TimeOverlay] = []
            for measurement in measurements:
                having = [number for number, points in enumerate(held) if measurement in points]
                layers = [self._read_layer(self.holders[number], measurement, (start, end)) for number in having]
                if not layers:
                    continue
                for number, (left, count) in zip(having, layers, strict=True):
                    read[number, measurement] += len(left) + count
                column = overlay_series([column for column, _ in layers], woven)
                gone = Counts(gone.points_in - len(column), deleted=gone.deleted + sum(count for _, count in layers))
                for partition, part in cut_by_partition(column, self.interval).items():
                    rows.setdefault(partition, {})[measurement] = part
            for last in sorted(rows):
                out = sum(map(len, rows[last].values()))
                yield Part(last, Counts(out, out), columns=rows[last])
            if self.is_aligned:
                self._forget_columns(end)
        self._check_counts(piece, held, read)
        yield Part(last, replace(gone, overwritten=gone.points_in - gone.deleted))

    def _check_counts(self, piece: Piece, held: Sequence[Mapping[str, int]], read: Mapping[tuple[int, str], int]) -> None:
        """Check that each file returned as many points as its statistics say; fewer only where its own chunks overlap, or
        one of them has a time twice."""
        for number, points in enumerate(held):
            for measurement, told in points.items():
                found = read[number, measurement]
                holder = self.holders[number].file
                overlaps = piece.overlaps_itself(number, measurement) or holder.repeats_times(self.device, measurement)
                if found != told and (found > told or not overlaps):
                    place = holder.path
                    problem = f"{self.device}.{measurement}: {found} points were read where {told} are told"
                    raise CorruptionError(f"{place}: {problem}", hint="./tidemark verify --deep", subject=place)

    def _forget_columns(self, upto: int) -> None:
        """Release the times of an aligned device up to `upto`; all its columns have read them."""
        for holder in self.holders:
            holder.file.forget_times(self.device, upto)

    def _read_layer(self, holder: Holder, measurement: str, span: tuple[int, int]) -> tuple[Column, int]:
        """Return a file's points after its own deletions, and how many points these removed. They are counted separately, so
        that the account is a real check."""
        device, start, end = self.device, span[0], None if span[1] == _LAST_TIME else span[1] + 1
        column = holder.file.read_column(device, measurement, start, end)
        if not holder.deletions.of_series(device, measurement):
            return column, 0
        left = holder.file.read_column(device, measurement, start, end, holder.deletions)
        return left, len(column) - len(left)


def _extent_of_stretch(number: int, stretch: Stretch, may_copy: bool) -> Extent:
    points = {name: place.statistics.count for name, (_, place) in stretch.values.items() if place.statistics.count}
    return Extent(number, stretch.start, stretch.end, stretch.rows, points, stretch if may_copy else None)


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
    def is_balanced(self) -> bool:
        return self.points_in == self.points_out + self.overwritten + self.deleted


NOTHING = Counts()


def overlay_series(columns: Sequence[Column], known: list[TimeOverlay] | None = None) -> Column:
    """Return a series as readers see it. `columns`: its points per file after the file's own deletions, lowest rank first.

    ValueError if their types differ. `known`: overlays of other series with the same times; a new one is added here.
    """
    known = [] if known is None else known
    filled = [column for column in columns if len(column)]
    if len(filled) < 2 or len({column.type for column in columns}) != 1:
        return overlay_columns(columns)
    runs = [column.times for column in filled]
    woven = next((one for one in known if one.fits_runs(runs)), None)
    if woven is None:
        woven = overlay_times(runs)
        known.append(woven)
    return Column(columns[0].type, woven.times, woven.choose_values([column.values for column in filled]))


def cut_by_partition(column: Column, interval: int) -> dict[int, Column]:
    """Split the column by catalog partition, floor(time / interval). `interval` in the unit of its times."""
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
