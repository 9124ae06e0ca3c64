"""Summarize a TsFile by its index alone: devices, their intervals and points. Reads no chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.tsfiles.devices import file_device, is_table
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.series import parse_series
from tidemark.tsfiles.layout.structure import walk_entries
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.kernels import kernels
from tidemark.untrusted_files import UntrustedFile

_Extent = tuple[int, int, int]  # points, first and last time


@dataclass(frozen=True, slots=True)
class Tally:
    """The summary. `model` is as in `FileFacts`. `devices`: (device, first time, last time, points), ordered by name."""

    model: str
    devices: tuple[tuple[str, int, int, int], ...]

    @property
    def points(self) -> int:
        return sum(points for *_, points in self.devices)


def tally_file(path: Path | str | UntrustedFile, database: str = "") -> Tally:
    """Summarize a TsFile. The result agrees with `statistics.describe_file`, and index errors are raised as there.

    The interval of an aligned device is that of its time column. A device without points is left out.
    """
    found: dict[str, tuple[list[_Extent], list[_Extent]]] = {}
    models = set()
    with FileBytes(path, all_of_it=True) as file:
        metadata = read_footer(file)
        file.cache_from(metadata.chunks_end)
        for segments, parts in walk_entries(file, metadata):
            models.add("table" if is_table(segments) else "tree")
            times, values = found.setdefault(file_device(segments, database), ([], []))
            for part in parts:
                for is_time, extent in _read_extents(part):
                    (times if is_time else values).append(extent)
    devices = []
    for device, (times, values) in sorted(found.items()):
        spans = [one for one in times if one[0]] or [one for one in values if one[0]]
        points = sum(count for count, _, _ in values)
        if spans:
            devices.append((device, min(start for _, start, _ in spans), max(end for _, _, end in spans), points))
    return Tally("mixed" if len(models) == 2 else models.pop(), tuple(devices))


def _read_extents(entries: Cursor) -> Iterator[tuple[bool, _Extent]]:
    """Yield of each series: (whether it is a column of times, (points, first time, last time))."""
    compiled = kernels()
    rows = compiled.parse_series(entries.data) if compiled is not None else []
    for of_type, flags, _, _, count, start, end, _, _ in rows:
        if flags >= 0:
            yield of_type == DataType.VECTOR, (count, start, end)
    for series in () if rows else parse_series(entries):
        yield series.is_time, (series.statistics.count, series.statistics.start, series.statistics.end)
