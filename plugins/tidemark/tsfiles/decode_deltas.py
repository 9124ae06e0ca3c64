"""TS_2DIFF and ZIGZAG.

TS_2DIFF is packs of: number and bit width of the differences, the smallest difference, the first value, the differences
less the smallest, bit-packed. Arithmetic wraps at the type's width, as in Java.
Source: `DeltaBinaryDecoder`, `IntZigzagDecoder`, `LongZigzagDecoder` of the TsFile library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.bits import extract
from tidemark.tsfiles.compiled import kernels
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
    """All packs at once: a pack is some hundred values, too few to be worth an array operation of its own."""
    if (compiled := kernels()) is not None:
        return compiled.deltas(cursor.take(cursor.left()), count, dtype)
    heads = _pack_heads(cursor, count, dtype.itemsize * 8)
    if not heads:
        return np.empty(0, dtype)
    sizes, widths, smallest, first, at = (np.array(part, np.int64) for part in zip(*heads, strict=True))
    starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])  # where each pack's first value goes
    is_step = np.ones(count, np.bool_)
    is_step[starts] = False
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    of_step = np.repeat(widths, sizes)
    steps = extract(cursor.data, np.repeat(at * 8, sizes) + within * of_step, of_step).view(np.int64)
    sums = np.zeros(count, np.int64)
    with np.errstate(over="ignore"):
        sums[is_step] = steps + np.repeat(smallest, sizes)
        sums = np.cumsum(sums)
        values: NDArray[np.int64] = sums - np.repeat(sums[starts] - first, sizes + 1)
    return np.asarray(values.astype(dtype))  # int64 to int32 keeps the low bits: it wraps as Java does


def _pack_heads(cursor: Cursor, count: int, bits: int) -> list[tuple[int, int, int, int, int]]:
    """Of each pack: number of differences, their width, the smallest, the first value, where the differences lie."""
    heads = []
    missing = count
    while cursor.left():
        number, width = cursor.i32(), cursor.i32()
        smallest, first = (cursor.i32(), cursor.i32()) if bits == 32 else cursor.i64_pair()
        missing -= number + 1
        if number < 0 or missing < 0 or not 0 <= width <= bits:
            raise BadPageError(f"a TS_2DIFF pack of {number + 1} values where {missing + number + 1} are missing")
        at = cursor.position
        cursor.skip((number * width + 7) // 8)
        heads.append((number, width, smallest, first, at))
    if missing:
        raise BadPageError(f"TS_2DIFF holds {count - missing} values, not {count}")
    return heads


def zigzag(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """INT32, INT64, DATE, TIMESTAMP in ZIGZAG: blocks of length, number, zigzag integers."""
    if (compiled := kernels()) is not None:
        return compiled.zigzag(data, count, dtype)
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
