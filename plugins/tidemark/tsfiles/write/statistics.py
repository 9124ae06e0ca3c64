"""Compute the statistics of pages, combine those of pages and chunks, and encode them.

Statistics are count, first and last time, and values that depend on the type. Numbers are big-endian.
Source: `Statistics` and its subclasses of the TsFile library, seen in the real data folders.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.layout.series import Statistics, parse_statistics
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.kernels import kernels
from tidemark.tsfiles.write.values import encode_uvarint

_NUMBERS = {  # smallest, largest, first, last value; sum
    DataType.INT32: struct.Struct(">4iq"),
    DataType.DATE: struct.Struct(">4iq"),
    DataType.INT64: struct.Struct(">4qd"),
    DataType.TIMESTAMP: struct.Struct(">4qd"),
    DataType.FLOAT: struct.Struct(">4fd"),
    DataType.DOUBLE: struct.Struct(">5d"),
}
_BOOLEANS = struct.Struct(">??q")  # first, last, how many are true
_EXTENT = struct.Struct(">qq")


def page_statistics(data_type: DataType, times: NDArray[np.int64], values: NDArray[Any]) -> Statistics:
    """The statistics of points. `values` is ignored for VECTOR."""
    count = len(times)
    if not count:
        return Statistics(0, 0, 0, _empty_summary(data_type))
    return Statistics(count, int(times[0]), int(times[-1]), _encode_summary(data_type, values))


def combine_statistics(data_type: DataType, parts: Sequence[Statistics]) -> Statistics:
    """Combine the statistics of parts that follow each other in time. Parts without points are ignored."""
    filled = [part for part in parts if part.count]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return Statistics(0, 0, 0, _empty_summary(data_type))
    count = sum(part.count for part in filled)
    values = _join_summaries(data_type, [part.values for part in filled])
    return Statistics(count, min(part.start for part in filled), max(part.end for part in filled), values)


def encode_statistics(statistics: Statistics) -> bytes:
    """Encode statistics as pages, chunks and series have them."""
    return encode_uvarint(statistics.count) + _EXTENT.pack(statistics.start, statistics.end) + statistics.values


def decode_statistics(data_type: DataType, data: bytes) -> Statistics:
    """Decode the result of `encode_statistics`."""
    return parse_statistics(Cursor(data, "statistics"), data_type)


def _empty_summary(data_type: DataType) -> bytes:
    match data_type:
        case DataType.VECTOR | DataType.BLOB:
            return b""
        case DataType.TEXT | DataType.STRING:
            return bytes(8 if data_type == DataType.TEXT else 16)
        case DataType.BOOLEAN:
            return bytes(_BOOLEANS.size)
    return bytes(_NUMBERS[data_type].size)


def _encode_summary(data_type: DataType, values: NDArray[Any]) -> bytes:
    match data_type:
        case DataType.VECTOR | DataType.BLOB:
            return b""
        case DataType.TEXT:
            return _encode_texts(values[0], values[-1])
        case DataType.STRING:
            return _encode_texts(values[0], values[-1], min(values), max(values))
        case DataType.BOOLEAN:
            return _BOOLEANS.pack(bool(values[0]), bool(values[-1]), int(np.count_nonzero(values)))
    form = _NUMBERS[data_type]
    if (compiled := kernels()) is not None:
        smallest, largest, total = compiled.summarize_values(values)
        return form.pack(smallest, largest, values[0].item(), values[-1].item(), total)
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf in a sum is nan, as intended
        total = values.sum(dtype=np.int64 if values.dtype == np.int32 else np.float64)
    ends = np.fmin.reduce(values), np.fmax.reduce(values)  # NaN only if all values are
    return form.pack(*(value.item() for value in (*ends, values[0], values[-1], total)))


def _join_summaries(data_type: DataType, parts: Sequence[bytes]) -> bytes:
    match data_type:
        case DataType.VECTOR | DataType.BLOB:
            return b""
        case DataType.TEXT | DataType.STRING:
            split = [_split_texts(part) for part in parts]
            ends = split[0][0], split[-1][1]
            if data_type == DataType.TEXT:
                return _encode_texts(*ends)
            return _encode_texts(*ends, min(part[2] for part in split), max(part[3] for part in split))
        case DataType.BOOLEAN:
            flags = [_BOOLEANS.unpack(part) for part in parts]
            return _BOOLEANS.pack(flags[0][0], flags[-1][1], sum(true for _, _, true in flags))
    form = _NUMBERS[data_type]
    numbers = [form.unpack(part) for part in parts]
    smallest = np.fmin.reduce([part[0] for part in numbers]).item()
    largest = np.fmax.reduce([part[1] for part in numbers]).item()
    return form.pack(smallest, largest, numbers[0][2], numbers[-1][3], sum(part[4] for part in numbers))


def _encode_texts(*texts: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(text)) + text for text in texts)


def _split_texts(data: bytes) -> list[bytes]:
    cursor = Cursor(data, "statistics")
    found = []
    while cursor.bytes_left():
        found.append(cursor.read_exactly(cursor.read_i32()))
    return found
