"""What a device has on disk, stretch by stretch, and its chunks as they stand there: to be copied without being decoded.

A **stretch** is a chunk of a series, or in an aligned device a chunk of times with the chunks of values that belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.tsfiles.codes import DataType
from tidemark.tsfiles.decodable import can_decode
from tidemark.tsfiles.decode_rare import UNSURE
from tidemark.tsfiles.reader import TsFile, time_chunk
from tidemark.tsfiles.series import PLAIN_SERIES, TIME_COLUMN, VALUE_COLUMN, ChunkPlace, Series
from tidemark.tsfiles.writer_pages import Chunk


@dataclass(frozen=True, slots=True)
class Stretch:
    """`start` and `end` inclusive; `rows`: its times; `points`: its values by the statistics.

    `time` is None in a series of its own; `values`: measurement → its series and where its chunk lies.
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
    """Those of a series of its own, in file order; chunks without points are none."""
    return [
        Stretch(place.statistics.start, place.statistics.end, place.statistics.count, None, {measurement: (series, place)})
        for place in series.chunks
        if place.statistics.count
    ]


def aligned_stretches(path: str, time: Series, columns: Mapping[str, Series]) -> list[Stretch]:
    """Those of an aligned device, in file order. CorruptionError where a chunk of values has no chunk of times."""
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
    """The chunks of a stretch (the times first) with the bytes that the file has for them; None: they are to be decoded.

    To be decoded are chunks that the reader would refuse or must compare with their statistics, and those under another
    name than the canonical one of their measurement. Raises as `TsFile.column`.
    """
    parts = [("", *stretch.time)] if stretch.time else []
    parts += [(measurement, *value) for measurement, value in stretch.values.items()]
    found = file.stored([(series, place) for _, series, place in parts])
    chunks = []
    for (measurement, series, place), (header, data) in zip(parts, found, strict=True):
        column = PLAIN_SERIES if stretch.time is None else TIME_COLUMN if series.is_time else VALUE_COLUMN
        kind = DataType.INT64 if series.is_time else series.type
        readable = can_decode(kind, header.encoding, header.compression) and header.encoding not in UNSURE
        if series.name != measurement or header.column != column or not readable:
            return None
        chunks.append(Chunk(measurement, series.type, column, data, place.statistics))
    return chunks
