"""The metadata of one series in a TsFile: type, points, interval, and where its chunks lie.

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
    """Points and interval of a page, chunk or series: `count` not null, `start` and `end` both inclusive.

    `values`: what the type adds, as it stands in the file: smallest, largest, first, last value and sum of numbers.
    """

    count: int
    start: int
    end: int
    values: bytes = b""


class ChunkPlace(NamedTuple):
    """Where the header of a chunk lies, and what is in the chunk."""

    offset: int
    statistics: Statistics


class Series(NamedTuple):
    """`is_time`: the column of times of an aligned device; all other series of such a device are columns of values."""

    name: str
    type: DataType
    is_time: bool
    statistics: Statistics
    chunks: tuple[ChunkPlace, ...]


def parse_statistics(cursor: Cursor, data_type: DataType) -> Statistics:
    """Count and interval; what the type adds is kept as it stands."""
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
    """The error for a second series of one name: reading one of them would lose the other's points without a word."""
    return corruption_error(path, f"{device} has two series that are called {name or 'its times'}")


def parse_series(cursor: Cursor) -> Iterator[Series]:
    """All series from the cursor to its end."""
    while cursor.bytes_left():
        yield _short_series(cursor) or _one_series(cursor)


def data_type(cursor: Cursor) -> DataType:
    """The type code at the cursor; UnsupportedError for one this reader does not know."""
    code = cursor.read_u8()
    kind = DATA_TYPES.get(code)
    if kind is None:
        at = cursor.base + cursor.position - 1
        message = f"{cursor.what}: unknown data type {code} (byte {at})"
        raise UnsupportedError(message, hint="the file is kept as it came", subject=cursor.what)
    return kind


def _short_series(cursor: Cursor) -> Series | None:
    """The series at the cursor where it has one chunk, a short name and statistics of a fixed length, as most have.

    None, and the cursor stays, for every other: `_one_series` reads those, and says what is wrong with them.
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
            twice |= high & 0x80  # longer still
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
    several = bool(flags & 0x3F)  # the two bits above tell time and value columns, but not every writer sets them
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
    """The statistics of a series are those of its chunks together: whoever goes by them misses none."""
    held = [chunk.statistics for chunk in chunks if chunk.statistics.count]
    if sum(one.count for one in held) != told.count or any(one.start < told.start or one.end > told.end for one in held):
        raise cursor.corruption_error(f"the statistics of {name!r} are not those of its chunks")


def time_chunk(path: str, time: Series, series: Series, index: int) -> ChunkPlace:
    """The chunk of times that the chunk of values number `index` belongs to.

    One for one in order where the value column has a chunk for each; else (a column that came later) the last chunk of
    times before it in the file, since a chunk group begins with its times.
    """
    if len(time.chunks) == len(series.chunks):
        return time.chunks[index]
    offsets = [chunk.offset for chunk in time.chunks]
    before = bisect.bisect_left(offsets, series.chunks[index].offset) - 1
    if before < 0 or offsets != sorted(offsets):
        raise corruption_error(path, f"no times for the chunk of {series.name!r}", series.chunks[index].offset)
    return time.chunks[before]
