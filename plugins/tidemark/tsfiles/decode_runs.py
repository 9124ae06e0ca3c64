"""RLE, and what is built on it: DICTIONARY, and floats kept as scaled integers (RLE and TS_2DIFF).

RLE is: length of a block, bit width, then runs: an even header is a run (count, value in whole bytes: little-endian for
types of 32 bits, big-endian for those of 64), an odd one is groups of eight bit-packed values with the number of values in
the last group.
Source: `RleDecoder`, `DictionaryDecoder`, `FloatDecoder`, `FloatEncoder` of the TsFile library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.bits import unpack
from tidemark.tsfiles.compiled import kernels
from tidemark.tsfiles.compression import BadPageError
from tidemark.tsfiles.wire import Cursor

_HAS_UNSCALED = 0x7FFFFFFF  # instead of the number of decimals: some values could not be scaled
_HAS_RAW = 0x7FFFFFFE  # and some could not be made integers at all


def runs(cursor: Cursor, count: int, size: int) -> NDArray[np.uint64]:
    """`count` values of a type of `size` bytes (4, 8) in RLE from the cursor to its end, as unsigned 64 bit patterns."""
    if (compiled := kernels()) is not None:
        return compiled.runs(cursor.take(cursor.left()), count, size)
    parts: list[NDArray[np.uint64]] = []
    have = 0
    while cursor.left():
        block = Cursor(cursor.take(cursor.uvarint()), cursor.what)
        width = block.u8()
        if width > 64:
            raise BadPageError(f"RLE of {width} bits")
        while block.left():
            part = _one_run(block, width, count - have, size)
            have += len(part)
            parts.append(part)
    if have != count:
        raise BadPageError(f"RLE holds {have} values, not {count}")
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _one_run(block: Cursor, width: int, wanted: int, size: int) -> NDArray[np.uint64]:
    header = block.uvarint()
    if header & 1 == 0:
        length = header >> 1
        if length > wanted:
            raise BadPageError(f"an RLE run of {length} values where {wanted} are missing")
        value = int.from_bytes(block.take((width + 7) // 8), "little" if size == 4 else "big")
        return np.full(length, value, np.uint64)
    groups, last = header >> 1, block.u8()
    length = (groups - 1) * 8 + last
    if groups == 0 or not 1 <= last <= 8 or length > wanted:
        raise BadPageError(f"RLE groups of {length} values where {wanted} are missing")
    packed = block.take(min(groups * width, block.left()))
    return unpack(packed, width, length)


def int_runs(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """INT32, INT64, DATE, TIMESTAMP in RLE."""
    return _signed(runs(Cursor(data, "RLE"), count, dtype.itemsize), dtype)


def boolean_runs(data: bytes, count: int) -> NDArray[np.bool_]:
    values: NDArray[np.bool_] = runs(Cursor(data, "RLE"), count, 4) != 0
    return values


def dictionary(data: bytes, count: int) -> NDArray[Any]:
    """TEXT, STRING, BLOB: the different values, then their numbers in RLE."""
    cursor = Cursor(data, "DICTIONARY")
    size = cursor.varint()
    if not 0 <= size <= cursor.left():
        raise BadPageError(f"a dictionary of {size} values in {len(data)} bytes")
    words = np.empty(size, object)
    for index in range(size):
        words[index] = cursor.take(cursor.varint())
    numbers = runs(cursor, count, 4)
    if count and (size == 0 or int(numbers.max()) >= size):
        raise BadPageError("a value is not in the dictionary")
    return words[numbers.astype(np.int64)] if count else np.empty(0, object)


def scaled(cursor: Cursor, count: int) -> tuple[int, NDArray[np.bool_], NDArray[np.bool_]]:
    """The head of FLOAT and DOUBLE in RLE and TS_2DIFF: decimals, which values are not scaled, which are raw bits.

    Newer writers put bitmaps (least significant bit first) before the decimals where a value does not fit.
    """
    decimals = cursor.uvarint()
    unscaled, raw = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    if decimals in (_HAS_UNSCALED, _HAS_RAW):
        size = cursor.uvarint()
        if size != count:
            raise BadPageError(f"a bitmap of {size} values for {count}")
        is_scaled = _bitmap(cursor, size)
        raw = _bitmap(cursor, size) if decimals == _HAS_RAW else raw
        unscaled = ~is_scaled
        decimals = cursor.uvarint()
    if decimals > 308:
        raise BadPageError(f"{decimals} decimals")
    return decimals, unscaled, raw


def unscale(integers: NDArray[Any], decimals: int, unscaled: NDArray[np.bool_], raw: NDArray[np.bool_]) -> NDArray[Any]:
    """The floats of integers that were multiplied by 10^decimals: int32 gives float32, int64 gives float64."""
    dtype = np.dtype(np.float32 if integers.dtype.itemsize == 4 else np.float64)
    values = integers.astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(unscaled, values, values / (10.0**decimals)).astype(dtype)
    values[raw] = integers[raw].view(dtype)
    return values


def float_runs(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """FLOAT (`dtype` int32) and DOUBLE (int64) in RLE."""
    cursor = Cursor(data, "RLE")
    decimals, unscaled, raw = scaled(cursor, count)
    return unscale(_signed(runs(cursor, count, dtype.itemsize), dtype), decimals, unscaled, raw)


def _signed(patterns: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.itemsize == 4:
        return patterns.astype(np.uint32).view(np.int32)
    return patterns.view(np.int64)


def _bitmap(cursor: Cursor, size: int) -> NDArray[np.bool_]:
    data = np.frombuffer(cursor.take(size // 8 + 1), np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").astype(np.bool_)
