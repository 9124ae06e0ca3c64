"""Find out what the sources of a merge task hold of its devices, and whether one file can hold it all. Writes nothing.

A device that only one source has, without deletions, may be copied whole (`WholeDevice`), without an object per series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemark.receiver import windows
from tidemark.receiver.merge.device import Holder
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.devices import is_table, table_segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.write.copy_devices import Terms, WholeDevice


@dataclass(frozen=True)
class Source:
    """An open source."""

    file: TsFile
    deletions: Deletions

    def make_holder(self, device: str) -> Holder:
        return Holder(self.file, self.deletions, *self.file.series_of(device))


@dataclass(frozen=True)
class Alone:
    """A device that only one source has and that has no deletions: it can be copied whole."""

    source: Source
    whole: WholeDevice


Held = Mapping[str, Alone | Sequence[Holder]]
"""Device of the task → its holders, lowest rank first."""


class RefusedError(Exception):
    """The group cannot be merged: subject and reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason


def held_by(sources: Sequence[Source], devices: Iterable[str], interval: int) -> Held:
    """Return which sources hold each of these devices. `interval` of catalog partitions. Raises as `TsFile` does."""
    having: dict[str, list[Source]] = {device: [] for device in devices}
    for source in sources:
        for device in having.keys() & source.file.device_names():
            having[device].append(source)
    terms = Terms(windows.COPY_ROWS, interval)
    held: dict[str, Alone | Sequence[Holder]] = {}
    for device, those in having.items():
        one = those[0] if len(those) == 1 and not those[0].deletions else None
        whole = one.file.find_whole_device(device, terms) if one else None
        held[device] = Alone(one, whole) if one and whole else [source.make_holder(device) for source in those]
    return held


def tag_columns(sources: Sequence[Source]) -> dict[str, tuple[str, ...]]:
    """Return table → names of its tag columns, the longest list of all sources: a table gains tags at the end only."""
    tables: dict[str, tuple[str, ...]] = {}
    for source in sources:
        for table, tags in source.file.tag_columns.items():
            known = tables.get(table, ())
            longer, shorter = (tags, known) if len(tags) > len(known) else (known, tags)
            if longer[: len(shorter)] != shorter:
                raise RefusedError(table, f"its tag columns are {known} in one file and {tags} in {source.file.path}")
            tables[table] = longer
    return tables


def check_types(held: Held, database: str) -> None:
    """Require one type per series, and per column in the table model: a TsFile cannot hold more. Raises RefusedError."""
    types: dict[tuple[str, str], tuple[DataType, str]] = {}
    for device, here in held.items():
        of_table = is_table((device,))
        if isinstance(here, Alone) and not of_table:
            continue  # no other source has its series
        owner = f"{database}.{table_segments(device)[0]}" if of_table else device
        for measurement, of_type, path in _types_with_points(here):
            known, where = types.setdefault((owner, measurement), (of_type, path))
            if known != of_type:
                reason = f"{known.name} in {Path(where).name}, {of_type.name} in {Path(path).name}"
                raise RefusedError(f"{device}.{measurement}", reason)


def _types_with_points(here: Alone | Sequence[Holder]) -> Iterator[tuple[str, DataType, str]]:
    """Yield (measurement, type, file) of the series that have points."""
    if isinstance(here, Alone):
        yield from ((name, of_type, here.source.file.path) for name, of_type in here.whole.types)
        return
    for holder in here:
        for measurement, series in holder.series.items():
            if series.statistics.count:
                yield measurement, series.type, holder.file.path
