"""TS_2DIFF and ZIGZAG.

TS_2DIFF is packs of: number and bit width of the differences, the smallest difference, the first value, the differences
less the smallest, bit-packed. Arithmetic wraps at the type's width, as in Java.
Source: `DeltaBinaryDecoder`, `IntZigzagDecoder`, `LongZigzagDecoder` of the TsFile library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.bits import unpack
from tidemark.tsfiles.compression import BadPageError
from tidemark.tsfiles.decode_runs import scaled, unscale
from tidemark.tsfiles.wire import Cursor


def deltas(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """INT32, INT64, DATE, TIMESTAMP and times in TS_2DIFF."""
    return _packs(Cursor(data, "TS_2DIFF"), count, dtype)


def float_deltas(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """FLOAT (`dtype` int32) and DOUBLE (int64) in TS_2DIFF."""
    cursor = Cursor(data, "TS_2DIFF")
    decimals, unscaled, raw = scaled(cursor, count)
    return unscale(_packs(cursor, count, dtype), decimals, unscaled, raw)


def _packs(cursor: Cursor, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    bits = dtype.itemsize * 8
    result = np.empty(count, dtype)
    have = 0
    while cursor.left():
        number, width = cursor.i32(), cursor.i32()
        smallest, first = (cursor.i32(), cursor.i32()) if bits == 32 else cursor.i64_pair()
        if number < 0 or number + 1 > count - have or not 0 <= width <= bits:
            raise BadPageError(f"a TS_2DIFF pack of {number + 1} values where {count - have} are missing")
        steps = unpack(cursor.take((number * width + 7) // 8), width, number).astype(np.int64, copy=False).view(np.int64)
        with np.errstate(over="ignore"):
            values = np.cumsum(steps + np.int64(smallest), dtype=np.int64) + np.int64(first)
        result[have] = first
        result[have + 1 : have + 1 + number] = values.astype(dtype)  # int64 to int32 keeps the low bits: it wraps
        have += number + 1
    if have != count:
        raise BadPageError(f"TS_2DIFF holds {have} values, not {count}")
    return result


def zigzag(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """INT32, INT64, DATE, TIMESTAMP in ZIGZAG: blocks of length, number, zigzag integers."""
    cursor = Cursor(data, "ZIGZAG")
    mask = (1 << (dtype.itemsize * 8)) - 1
    patterns: list[int] = []
    while cursor.left():
        length, number = cursor.uvarint(), cursor.uvarint()
        block = cursor.take(length)
        if number > count - len(patterns):
            raise BadPageError(f"a ZIGZAG block of {number} values where {count - len(patterns)} are missing")
        at = 0
        for _ in range(number):
            value = shift = 0
            while block[at] >= 0x80:
                value |= (block[at] & 0x7F) << shift
                shift += 7
                at += 1
            value = (value | (block[at] << shift)) & mask
            at += 1
            patterns.append(((value >> 1) ^ -(value & 1)) & mask)
    if len(patterns) != count:
        raise BadPageError(f"ZIGZAG holds {len(patterns)} values, not {count}")
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.array(patterns, unsigned).view(dtype)
