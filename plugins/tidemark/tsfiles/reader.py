"""Read the points of a TsFile: every series of V3 and V4, tree (aligned or not) and table model.

A series is read exactly or not at all. A **stretch** is a chunk of a series, or in an aligned device a chunk of times
with its chunks of values. `series_stretches` and `aligned_stretches` list the stretches of a device. `stored_chunks`
reads the chunks of a stretch undecoded, for copying.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from tidemark.errors import NotFoundError
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, mask_deleted_points
from tidemark.tsfiles.decode.compression import can_decode
from tidemark.tsfiles.decode.pages import ChunkReader, Span, Times
from tidemark.tsfiles.decode.rare import UNSURE
from tidemark.tsfiles.devices import file_device, is_table, measurement_name
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.chunks import ChunkHeader, read_stored_chunks
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.index import Child, IndexWalk
from tidemark.tsfiles.layout.series import (
    PLAIN_SERIES,
    TIME_COLUMN,
    VALUE_COLUMN,
    ChunkPlace,
    Series,
    Statistics,
    duplicate_series_error,
    parse_series,
    time_chunk,
)
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.write.copy_devices import CopiedDevice, Terms, WholeDevice, find_whole_device, read_whole_device
from tidemark.tsfiles.write.pages import Chunk
from tidemark.untrusted_files import UntrustedFile


@dataclass(slots=True)
class _Device:
    """The series of one device, and the decoded times of its aligned chunks by offset.

    `together`: the arrays of times in `pages`, joined. Most columns of the device share it.
    """

    series: dict[str, Series]
    time: Series | None
    times: dict[int, list[tuple[Statistics, Times]]]
    pages: list[Times] = field(default_factory=list)
    together: Times | None = None


class TsFile:
    """An open TsFile; a context manager. Not safe for use by several threads at once.

    `database` and `prefix` complete the names of devices (`devices.file_device`), which are canonical.
    Opening and every call may raise CorruptionError (with problem and byte), UnsupportedError (device, measurement,
    encoding) and NotFoundError.
    """

    def __init__(self, path: Path | str | UntrustedFile, database: str = "", prefix: str = "") -> None:
        self._file = FileBytes(path)
        try:
            metadata = read_footer(self._file)
            self._file.cache_from(metadata.chunks_end)
            walk = IndexWalk(self._file, metadata.version, metadata.chunks_end)
            self._places: dict[str, list[Child]] = {}
            for root in metadata.roots:
                for child in walk.iterate_devices(root):
                    self._places.setdefault(file_device(child.name, database, prefix), []).append(child)
        except BaseException:
            self._file.close()
            raise
        self.path = str(path)
        self.version = metadata.version
        self.tables = {table: len(tags) for table, tags in metadata.tables.items()}
        self.tag_columns = metadata.tables
        self._chunks_end = metadata.chunks_end
        self._chunks = ChunkReader(self._file, metadata.chunks_end, begins_anew=metadata.version == 3)
        self._current: tuple[str, _Device] | None = None

    def list_devices(self) -> list[str]:
        """The devices of the file, ordered by name."""
        return sorted(self._places)

    def device_names(self) -> KeysView[str]:
        """The devices of the file, in no order."""
        return self._places.keys()

    def list_measurements(self, device: str) -> list[str]:
        """The measurements of a device, ordered by name."""
        return sorted(self._load_device(device).series)

    def is_aligned(self, device: str) -> bool:
        """Whether the series of a device share one column of times."""
        return self._load_device(device).time is not None

    def series_of(self, device: str) -> tuple[Series | None, dict[str, Series]]:
        """The column of times (None: the device is not aligned) and the series of a device by their measurements."""
        loaded = self._load_device(device)
        return loaded.time, loaded.series

    def read_stored_chunks(self, parts: Sequence[tuple[Series, ChunkPlace]]) -> list[tuple[ChunkHeader, bytes]]:
        """Read chunks undecoded: the header and all bytes of each, from the header on."""
        return read_stored_chunks(self._file, parts, self._chunks_end)

    def begins_anew(self, header: ChunkHeader, data: bytes, place: ChunkPlace) -> bool:
        """Whether the times of a plain chunk begin anew. `header` and `data` as `read_stored_chunks` returns them."""
        return self.version == 3 and self._chunks.begins_anew(
            header, data[header.data_offset - header.offset :], place.statistics
        )

    def find_whole_device(self, device: str, terms: Terms) -> WholeDevice | None:
        """The index entry of a device if it can be copied whole under these terms, else None.

        None for a plain device of V3, too: times may begin anew in its chunks."""
        (place, *others), walk = self._places[device], IndexWalk(self._file, self.version, self._chunks_end)
        parts = [] if others else list(walk.series_ranges(place))
        whole = find_whole_device(walk.read_child(parts[0]).data, is_table(place.name), terms) if len(parts) == 1 else None
        return whole if whole and (whole.aligned or self.version > 3) else None

    def read_whole_device(self, device: WholeDevice) -> CopiedDevice | None:
        """The bytes of a device from `find_whole_device`; None if they differ from the index or are far apart."""
        return read_whole_device(self._file, device, self._chunks_end)

    def read_column(
        self,
        device: str,
        measurement: str,
        start: int | None = None,
        end: int | None = None,
        deletions: Deletions = NO_DELETIONS,
    ) -> Column:
        """The points of a series with start <= time < end (None: no bound), without what `deletions` delete.

        Where chunks of the file overlap the later chunk wins, as in IoTDB.
        """
        series = self._find_series(device, measurement)
        label = f"{device}.{measurement}"
        span = Span(start, end)
        concerned = deletions.of_series(device, measurement)
        parts = []
        for index, place in enumerate(series.chunks):
            for part in self._chunk_columns(device, series, index, span, label):
                if concerned:
                    part = part.select_where(~mask_deleted_points(concerned, part.times, place.offset))  # noqa: PLW2901
                parts.append(part.slice_between(start, end))
        return _join_columns(parts, self._load_device(device)) if parts else Column.empty(series.type)

    def repeats_times(self, device: str, measurement: str) -> bool:
        """Whether a chunk of a series that was read so far has a time twice, of which one point counts."""
        return f"{device}.{measurement}" in self._chunks.repeating

    def forget_times(self, device: str, before: int) -> None:
        """Drop the cached times of a device before a time. The caller reads nothing before it again."""
        of_device = self._load_device(device)
        for place in of_device.time.chunks if of_device.time else ():
            if place.statistics.end < before:
                of_device.times.pop(place.offset, None)
        of_device.pages, of_device.together = [], None

    def _chunk_columns(self, device: str, series: Series, index: int, span: Span, label: str) -> Iterator[Column]:
        of_device = self._load_device(device)
        place = series.chunks[index]
        if of_device.time is None:
            if span.overlaps_interval(place.statistics):
                yield from self._chunks.read_plain_chunk(series, place, span, label)
            return
        time_place = time_chunk(self._file.path, of_device.time, series, index)
        if not span.overlaps_interval(time_place.statistics):
            return
        if time_place.offset not in of_device.times:
            of_device.times[time_place.offset] = self._chunks.read_time_chunk(
                of_device.time, time_place, f"the times of {device}"
            )
        yield from self._chunks.read_value_chunk(series, place, of_device.times[time_place.offset], span, label)

    def _find_series(self, device: str, measurement: str) -> Series:
        series = self._load_device(device).series.get(measurement)
        if series is None:
            raise NotFoundError(f"{self.path}: device {device} has no measurement {measurement}", subject=measurement)
        return series

    def _load_device(self, device: str) -> _Device:
        """The series of a device. Those of the last device are cached."""
        if self._current is not None and self._current[0] == device:
            return self._current[1]
        if device not in self._places:
            raise NotFoundError(f"{self.path}: no device {device}", subject=device)
        loaded = _Device({}, None, {})
        walk = IndexWalk(self._file, self.version, self._chunks_end)
        for child in self._places[device]:
            for part in walk.series_ranges(child):
                for series in parse_series(walk.read_child(part)):
                    name = series.name if is_table(child.name) else measurement_name(series.name)
                    if name in loaded.series or (series.is_time and loaded.time is not None):
                        raise duplicate_series_error(self.path, device, name)
                    if series.is_time:
                        loaded.time = series
                    else:
                        loaded.series[name] = series
        self._current = (device, loaded)
        return loaded

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _join_columns(parts: Sequence[Column], device: _Device) -> Column:
    """Join the pages of a series to one column. Columns of an aligned device without nulls share one array of times."""
    if device.time is None or len(parts) == 1:
        return overlay_columns(parts)
    same = len(parts) == len(device.pages) and all(p.times is t for p, t in zip(parts, device.pages, strict=True))
    if same and device.together is not None:
        return Column(parts[0].type, device.together, np.concatenate([part.values for part in parts]))
    whole = overlay_columns(parts)
    if all(map(len, parts)) and all(a.times[-1] < b.times[0] for a, b in itertools.pairwise(parts)):
        device.pages, device.together = [part.times for part in parts], whole.times
    return whole


@dataclass(frozen=True, slots=True)
class Stretch:
    """A chunk of a plain series, or the chunks of an aligned device with the same rows. `start` and `end` are inclusive.

    `rows`: number of times. `points`: number of values by the statistics. `time` is None for a plain series. `values`:
    measurement → its series and the place of its chunk.
    """

    start: int
    end: int
    rows: int
    time: tuple[Series, ChunkPlace] | None
    values: Mapping[str, tuple[Series, ChunkPlace]] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(place.statistics.count for _, place in self.values.values())


def series_stretches(measurement: str, series: Series) -> list[Stretch]:
    """The stretches of a plain series in file order, without chunks that have no points."""
    return [
        Stretch(place.statistics.start, place.statistics.end, place.statistics.count, None, {measurement: (series, place)})
        for place in series.chunks
        if place.statistics.count
    ]


def aligned_stretches(path: str, time: Series, columns: Mapping[str, Series]) -> list[Stretch]:
    """The stretches of an aligned device in file order. Raises CorruptionError for a chunk of values without times."""
    found: dict[int, dict[str, tuple[Series, ChunkPlace]]] = {place.offset: {} for place in time.chunks}
    for measurement, series in columns.items():
        for index, place in enumerate(series.chunks):
            found[time_chunk(path, time, series, index).offset][measurement] = (series, place)
    return [
        Stretch(place.statistics.start, place.statistics.end, place.statistics.count, (time, place), found[place.offset])
        for place in time.chunks
        if place.statistics.count
    ]


def stored_chunks(file: TsFile, stretch: Stretch) -> list[Chunk] | None:
    """The chunks of a stretch with their undecoded bytes, times first; None if they must be decoded.

    Chunks must be decoded if the reader would refuse them or must compare them with their statistics, if their name is not
    the canonical one of their measurement, or if their times begin anew. Raises as `TsFile.read_column`.
    """
    parts = [("", *stretch.time)] if stretch.time else []
    parts += [(measurement, *value) for measurement, value in stretch.values.items()]
    found = file.read_stored_chunks([(series, place) for _, series, place in parts])
    chunks = []
    for (measurement, series, place), (header, data) in zip(parts, found, strict=True):
        column = PLAIN_SERIES if stretch.time is None else TIME_COLUMN if series.is_time else VALUE_COLUMN
        kind = DataType.INT64 if series.is_time else series.type
        readable = can_decode(kind, header.encoding, header.compression) and header.encoding not in UNSURE
        if series.name != measurement or header.column != column or not readable:
            return None
        if column == PLAIN_SERIES and file.begins_anew(header, data, place):
            return None
        chunks.append(Chunk(measurement, series.type, column, data, place.statistics))
    return chunks
