"""What a TsFile holds by its index alone: devices, their intervals and points. No chunk is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemark.tsfiles.devices import file_device, is_table
from tidemark.tsfiles.filebytes import FileBytes
from tidemark.tsfiles.footer import read_footer
from tidemark.tsfiles.series import Statistics
from tidemark.tsfiles.structure import walk_devices


@dataclass(frozen=True, slots=True)
class Tally:
    """`model` as in `FileFacts`; `devices`: (device, first time, last time, points), ordered by name."""

    model: str
    devices: tuple[tuple[str, int, int, int], ...]

    @property
    def points(self) -> int:
        return sum(points for *_, points in self.devices)


def tally(path: Path | str, database: str = "") -> Tally:
    """The tally of a TsFile, equal to what `statistics.describe` says of it; raises as that does of the index.

    Intervals of an aligned device are those of its time column. A device without points is left out.
    """
    found: dict[str, tuple[list[Statistics], list[Statistics]]] = {}
    models = set()
    with FileBytes(path, all_of_it=True) as file:
        for segments, of_device in walk_devices(file, read_footer(file)):
            models.add("table" if is_table(segments) else "tree")
            times, values = found.setdefault(file_device(segments, database), ([], []))
            for series in of_device:
                (times if series.is_time else values).append(series.statistics)
    devices = []
    for device, (times, values) in sorted(found.items()):
        spans = [one for one in times if one.count] or [one for one in values if one.count]
        points = sum(one.count for one in values)
        if spans:
            devices.append((device, min(one.start for one in spans), max(one.end for one in spans), points))
    return Tally("mixed" if len(models) == 2 else models.pop(), tuple(devices))
