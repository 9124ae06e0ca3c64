"""Parse the metadata of a series in a TsFile: type, points, interval, and the places of its chunks.

Source: `TimeseriesMetadata`, `ChunkMetadata` and `Statistics` of the TsFile library.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.tsfiles.layout.bytes import Cursor, corruption_error
from tidemark.tsfiles.points.codes import DATA_TYPES, DataType

PLAIN_SERIES, TIME_COLUMN, VALUE_COLUMN = 0, 0x80, 0x40
"""What a chunk holds, in the two highest bits of its first byte; the last two only in aligned devices."""

_FIXED_STATISTICS = {
    DataType.BOOLEAN: 10,
    DataType.INT32: 24,
    DataType.INT64: 40,
    DataType.FLOAT: 24,
    DataType.DOUBLE: 40,
    DataType.VECTOR: 0,
    DataType.TIMESTAMP: 40,
    DataType.DATE: 24,
    DataType.BLOB: 0,
}
_EXTENT = struct.Struct(">qq")
_OFFSET = struct.Struct(">q")
_STRINGS = {DataType.TEXT: 2, DataType.STRING: 4}


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a page, chunk or series: `count` points that are not null, from `start` to `end`, both inclusive.

    `values`: the encoded statistics of values: smallest, largest, first, last value and sum of numbers.
    """

    count: int
    start: int
    end: int
    values: bytes = b""


class ChunkPlace(NamedTuple):
    """The offset of a chunk's header, and its statistics."""

    offset: int
    statistics: Statistics


class Series(NamedTuple):
    """The metadata of a series. `is_time`: it is the column of times of an aligned device."""

    name: str
    type: DataType
    is_time: bool
    statistics: Statistics
    chunks: tuple[ChunkPlace, ...]


def parse_statistics(cursor: Cursor, data_type: DataType) -> Statistics:
    """Parse count and interval. The statistics of values stay encoded."""
    count = cursor.read_uvarint()
    start, end = cursor.read_i64_pair()
    fixed = _FIXED_STATISTICS.get(data_type)
    if fixed is not None:
        return Statistics(count, start, end, cursor.read_exactly(fixed))
    begin = cursor.position
    for _ in range(_STRINGS[data_type]):
        cursor.skip_bytes(cursor.read_i32())
    return Statistics(count, start, end, cursor.data[begin : cursor.position])


def duplicate_series_error(path: str, device: str, name: str) -> CorruptionError:
    """The error for a second series of one name: reading only one would silently lose the other's points."""
    return corruption_error(path, f"{device} has two series that are called {name or 'its times'}")


def parse_series(cursor: Cursor) -> Iterator[Series]:
    """Parse all series from the cursor to its end."""
    while cursor.bytes_left():
        yield _short_series(cursor) or _one_series(cursor)


def data_type(cursor: Cursor) -> DataType:
    """Read the type code at the cursor. Raises UnsupportedError for an unknown one."""
    code = cursor.read_u8()
    kind = DATA_TYPES.get(code)
    if kind is None:
        at = cursor.base + cursor.position - 1
        message = f"{cursor.what}: unknown data type {code} (byte {at})"
        raise UnsupportedError(message, hint="the file is kept as it came", subject=cursor.what)
    return kind


def _short_series(cursor: Cursor) -> Series | None:
    """Parse quickly a series with one chunk, a short name and statistics of a fixed length, like most.

    For any other return None and leave the cursor: `_one_series` parses it and reports what is wrong with it.
    """
    data, at = cursor.data, cursor.position
    try:
        flags, twice = data[at], data[at + 1]
        after = at + 2 + (twice >> 1)
        kind = DATA_TYPES[data[after]]
        length, count = data[after + 1], data[after + 2]
        position = after + 3
        if count >= 0x80:
            high = data[position]
            count = (count & 0x7F) | high << 7
            position += 1
            if high & 0x80:
                high = data[position]
                count = (count & 0x3FFF) | high << 14
                position += 1
            twice |= high & 0x80  # a longer count: not parsed here
        statistics_end = position + 16 + _FIXED_STATISTICS[kind]
        if flags & 0x3F or twice & 0x81 or length != 8:
            return None
        start, end = _EXTENT.unpack_from(data, position)
        (offset,) = _OFFSET.unpack_from(data, statistics_end)
        name = data[at + 2 : after].decode()
    except (LookupError, struct.error, UnicodeDecodeError):
        return None
    cursor.position = statistics_end + 8
    statistics = Statistics(count, start, end, data[position + 16 : statistics_end])
    return Series(name, kind, kind is DataType.VECTOR, statistics, (ChunkPlace(offset, statistics),))


def _one_series(cursor: Cursor) -> Series:
    flags = cursor.read_u8()
    name = cursor.read_var_name()
    kind = data_type(cursor)
    length = cursor.read_uvarint()
    statistics = parse_statistics(cursor, kind)
    if length > cursor.bytes_left():
        raise cursor.corruption_error(f"the chunks of {name!r} need {length} bytes where {cursor.bytes_left()} are left")
    end = cursor.position + length
    several = bool(flags & 0x3F)  # the two bits above mark time and value columns, but not every writer sets them
    chunks = []
    while cursor.position < end:
        offset = cursor.read_i64()
        chunks.append(ChunkPlace(offset, parse_statistics(cursor, kind) if several else statistics))
    if cursor.position != end:
        raise cursor.corruption_error(f"the chunks of {name!r} end in the middle of a field")
    if several:
        _require_sum(cursor, name, statistics, chunks)
    return Series(name, kind, kind == DataType.VECTOR, statistics, tuple(chunks))


def _require_sum(cursor: Cursor, name: str, told: Statistics, chunks: list[ChunkPlace]) -> None:
    """Raise CorruptionError unless the statistics of a series are those of its chunks: planning relies on them."""
    held = [chunk.statistics for chunk in chunks if chunk.statistics.count]
    if sum(one.count for one in held) != told.count or any(one.start < told.start or one.end > told.end for one in held):
        raise cursor.corruption_error(f"the statistics of {name!r} are not those of its chunks")


def time_chunk(path: str, time: Series, series: Series, index: int) -> ChunkPlace:
    """The chunk of times for the chunk of values number `index`.

    They correspond in order if there are equally many. Otherwise (a column that came later) it is the last chunk of times
    before the chunk of values in the file, since a chunk group begins with its times.
    """
    if len(time.chunks) == len(series.chunks):
        return time.chunks[index]
    offsets = [chunk.offset for chunk in time.chunks]
    before = bisect.bisect_left(offsets, series.chunks[index].offset) - 1
    if before < 0 or offsets != sorted(offsets):
        raise corruption_error(path, f"no times for the chunk of {series.name!r}", series.chunks[index].offset)
    return time.chunks[before]
