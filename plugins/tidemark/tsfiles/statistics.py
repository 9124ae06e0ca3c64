"""Summarize a TsFile from its index and chunk headers alone: devices, intervals, points, types, encodings.

`tally_file` reads the index alone, no chunk: devices, their intervals and points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tidemark.tsfiles.decode.compression import can_decode
from tidemark.tsfiles.devices import file_device, is_table, measurement_name
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error
from tidemark.tsfiles.layout.chunks import read_header
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.layout.series import Series, Statistics, duplicate_series_error, parse_series
from tidemark.tsfiles.layout.structure import Place, check_places, place_of, walk_devices, walk_entries
from tidemark.tsfiles.points.codes import Compression, DataType, Encoding
from tidemark.tsfiles.points.kernels import kernels
from tidemark.untrusted_files import UntrustedFile

_DENSEST = 1 << 16
"""Points that a byte of a chunk stands for, at most. A million equal values at a constant pace, packed as well as any
compression can, are some 200 bytes: 5,000 points a byte. More is made to exhaust whoever reads it."""


class SeriesFacts(NamedTuple):
    """A series of a file. It has several encodings and compressions, in chunk order, after `ALTER … ENCODING`."""

    type: DataType
    encodings: tuple[Encoding, ...]
    compressions: tuple[Compression, ...]
    points: int

    @property
    def encoding(self) -> str:
        """The encodings as text for people and the ledger: `TS_2DIFF`, or `TS_2DIFF+RLE` for several."""
        return "+".join(encoding.name for encoding in self.encodings)

    @property
    def compression(self) -> str:
        return "+".join(compression.name for compression in self.compressions)


class DeviceFacts(NamedTuple):
    """A device of a file: `start` and `end` are its first and last time, inclusive; `points` are its values, not null."""

    device: str
    start: int
    end: int
    points: int
    series: dict[str, SeriesFacts]
    aligned: bool


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The summary of a file. `model` is `tree`, `table` or `mixed`. `tables` maps each table to its number of tag columns.

    `undecodable` lists `device.measurement: ENCODING` of series that this Tidemark cannot read. The file is kept as it
    came, and its other series are read.
    """

    version: int
    model: str
    devices: tuple[DeviceFacts, ...]
    tables: dict[str, int]
    undecodable: tuple[str, ...]

    @property
    def points(self) -> int:
        return sum(device.points for device in self.devices)


@dataclass(slots=True)
class _Gathered:
    """The facts of a device, collected while its series are walked."""

    time: Statistics | None = None  # of the time column of an aligned device
    spans: list[Statistics] = field(default_factory=list)  # of its series that hold points
    series: dict[str, SeriesFacts] = field(default_factory=dict)


def describe_file(path: Path | str | UntrustedFile, database: str = "", prefix: str = "") -> FileFacts:
    """The facts of a TsFile. `database` and `prefix` complete the names of devices (`devices.file_device`).

    Raises as `layout.structure.check_structure`. The interval of an aligned device is that of its time column. A device
    without points is left out.
    """
    with FileBytes(path, all_of_it=True) as file:
        return _facts_of_file(file, (database, prefix), [])


def check_and_describe(path: Path | str | UntrustedFile, database: str = "", prefix: str = "") -> FileFacts:
    """`check_structure` and `describe_file` in one walk over the file: its facts if it is whole. Raises as both do."""
    with FileBytes(path, all_of_it=True) as file:
        chunks: list[Place] = []
        facts = _facts_of_file(file, (database, prefix), chunks)
        check_places(file, facts.version, chunks)
        return facts


def _facts_of_file(file: FileBytes, naming: tuple[str, str], places: list[Place]) -> FileFacts:
    """The facts of an open file. `naming`: database and prefix. Appends the place of every chunk to `places`."""
    metadata = read_footer(file)
    gathered: dict[str, _Gathered] = {}
    kinds = set()
    undecodable = []
    same = _Same()
    for segments, found_series in walk_devices(file, metadata):
        table, device = _name_of(segments, *naming)
        tags = _tags_of(file.path, segments, metadata.tables) if table else ()
        known = gathered.setdefault(device, _Gathered())  # one without series has no points and is left out below
        for series in found_series:
            kinds.add(table)
            if series.name in tags:
                raise corruption_error(file.path, f"{series.name!r} is a tag of {segments[0]!r}, and a series of {device}")
            name = same.names.setdefault(series.name, series.name) if table else measurement_name(series.name)
            if name in known.series or (series.is_time and known.time is not None):
                raise duplicate_series_error(file.path, device, name)
            codes: dict[tuple[Encoding, Compression], None] = {}
            for place in series.chunks:
                chunk = read_header(file, place.offset, series, metadata.chunks_end)
                if place.statistics.count > chunk.data_size * _DENSEST:
                    told = f"{place.statistics.count} points in a chunk of {chunk.data_size} bytes"
                    raise corruption_error(file.path, f"{told}: no writer makes that", chunk.offset)
                places.append(place_of(segments, chunk))
                codes[chunk.encoding, chunk.compression] = None
            problems = _add_series(known, name, series, tuple(codes), same)
            undecodable += [f"{device}.{name}: {problem}" for problem in problems]
    found = (_device_facts(device, known) for device, known in sorted(gathered.items()))
    devices = tuple(facts for facts in found if facts is not None)
    model = "mixed" if len(kinds) == 2 else "table" if True in kinds or (not kinds and metadata.tables) else "tree"
    tables = {table: len(tags) for table, tags in metadata.tables.items()}
    return FileFacts(metadata.version, model, devices, tables, tuple(undecodable))


_Codes = tuple[tuple[Encoding, Compression], ...]  # of a series' chunks, each pair once, in chunk order


@dataclass(slots=True)
class _Same:
    """Values that series of a file share. Made once, so that they are also pickled once for another process."""

    names: dict[str, str] = field(default_factory=dict)
    facts: dict[tuple[DataType, _Codes, int], SeriesFacts] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def _name_of(segments: Segments, database: str, prefix: str) -> tuple[bool, str]:
    """(whether a device is of the table model, its canonical name). Cached: files of a site have much the same devices."""
    return is_table(segments), file_device(segments, database, prefix)


def _tags_of(path: str, segments: Segments, tables: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The tag columns of a device's table. Raises CorruptionError if the file's declared tables cannot hold the device."""
    tags = tables.get(segments[0] or "") if tables else ()
    if tags is None or (tables and len(segments) - 1 > len(tags)):
        told = "no such table" if tags is None else f"{len(tags)} tags"
        raise corruption_error(path, f"device {segments} where the file declares {told}")
    return tags


def _add_series(known: _Gathered, name: str, series: Series, codes: _Codes, same: _Same) -> tuple[str, ...]:
    """Add a series to the facts of its device. Returns its encodings that cannot be decoded."""
    statistics = series.statistics
    if series.is_time:
        known.time = statistics
        return ()
    if statistics.count:
        known.spans.append(statistics)
    key = (series.type, codes, statistics.count)
    facts = same.facts.get(key)
    if facts is None:
        encodings = tuple(dict.fromkeys(encoding for encoding, _ in codes))
        compressions = tuple(dict.fromkeys(compression for _, compression in codes))
        facts = same.facts[key] = SeriesFacts(series.type, encodings, compressions, statistics.count)
    known.series[name] = facts
    return _undecodable_codings(series.type, codes)


@lru_cache(maxsize=1024)
def _undecodable_codings(data_type: DataType, codes: _Codes) -> tuple[str, ...]:
    return tuple(
        f"{encoding.name}/{compression.name}" if can_decode(data_type, encoding) else encoding.name
        for encoding, compression in codes
        if not can_decode(data_type, encoding, compression)
    )


def _device_facts(device: str, known: _Gathered) -> DeviceFacts | None:
    """The facts of a device, None if it has no points."""
    spans = [known.time] if known.time is not None and known.time.count else known.spans
    if not spans:
        return None
    points = sum([series.points for series in known.series.values()])
    start, end = min([span.start for span in spans]), max([span.end for span in spans])
    return DeviceFacts(device, start, end, points, known.series, known.time is not None)


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
