"""Decode GORILLA, CHIMP and GORILLA_V1, which store each value as a bit difference from an earlier one.

The writers end a page with a mark (the smallest integer, NaN), and Java's reader stops at the first such value. Here the
number of values is known, so NaNs and smallest integers inside the data are kept. The mark is only checked.
Source: `GorillaDecoderV2`, `LongGorillaDecoder`, `LongChimpDecoder`, `IntChimpDecoder`, `SinglePrecisionDecoderV1`,
`DoublePrecisionDecoderV1` of the TsFile library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.codes import BadPageError
from tidemark.tsfiles.points.kernels import kernels

_CHIMP_LEADING = (0, 8, 12, 16, 18, 20, 22, 24)


class BitReader:
    """Reads bits from the start of `data`, most significant first."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, first_byte: int = 0) -> None:
        self.data = data + bytes(16)
        self.at = first_byte * 8
        self.end = len(data) * 8

    def read_bits(self, width: int) -> int:
        at = self.at
        self.at = end = at + width
        if end > self.end:
            raise BadPageError("the bits of a page end in the middle of a value")
        byte = at >> 3
        word = int.from_bytes(self.data[byte : byte + 9], "big")
        return (word >> (72 - (at & 7) - width)) & ((1 << width) - 1)


def decode_gorilla(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP, FLOAT, DOUBLE (`dtype`) in GORILLA."""
    if count == 0:
        return np.empty(0, dtype)
    if (compiled := kernels()) is not None:
        values, end = compiled.decode_gorilla(data, count, dtype)
        _check_mark(end, dtype, "GORILLA")
        return values
    size = dtype.itemsize * 8
    length_bits = 6 if size == 64 else 5
    bits = BitReader(data)
    take = bits.read_bits
    value = take(size)
    patterns = [value]
    leading = trailing = 0
    fresh = True
    for _ in range(count):  # reads one value more than `count`: the end mark
        if take(1):
            if take(1):
                leading = take(length_bits)
                trailing = size - (take(length_bits) + 1) - leading
                fresh = False
            if fresh or trailing < 0:
                raise BadPageError("GORILLA bits that no writer makes")
            value ^= take(size - leading - trailing) << trailing
        patterns.append(value)
    _check_end(patterns.pop(), dtype, "GORILLA")
    return np.array(patterns, f"u{dtype.itemsize}").view(dtype)


def decode_chimp(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP, FLOAT, DOUBLE (`dtype`) in CHIMP."""
    if count == 0:
        return np.empty(0, dtype)
    if (compiled := kernels()) is not None:
        values, end = compiled.decode_chimp(data, count, dtype)
        _check_mark(end, dtype, "CHIMP")
        return values
    size = dtype.itemsize * 8
    index_bits, length_bits = (7, 6) if size == 64 else (6, 5)
    ring = 1 << index_bits
    take = BitReader(data).read_bits
    value = take(size)
    patterns = [value]
    leading = -1
    for _ in range(count):
        control = take(2)
        if control >= 2:
            if control == 3:
                leading = _CHIMP_LEADING[take(3)]
            if leading < 0:
                raise BadPageError("CHIMP bits that no writer makes")
            value ^= take(size - leading)
        else:
            value = _from_ring(patterns, take(index_bits), ring)
            if control == 1:
                leading = _CHIMP_LEADING[take(3)]
                significant = take(length_bits) or size
                trailing = size - significant - leading
                if trailing < 0:
                    raise BadPageError("CHIMP bits that no writer makes")
                value ^= take(significant) << trailing
        patterns.append(value)
    _check_end(patterns.pop(), dtype, "CHIMP")
    return np.array(patterns, f"u{dtype.itemsize}").view(dtype)


def decode_gorilla_v1(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode FLOAT and DOUBLE in GORILLA_V1 (written by IoTDB 0.8 … 0.10; also a code of V3 and V4)."""
    if count == 0:
        return np.empty(0, dtype)
    size = dtype.itemsize * 8
    leading_bits, length_bits = (6, 7) if size == 64 else (5, 6)
    value = int.from_bytes(data[: dtype.itemsize], "little")
    take = BitReader(data, dtype.itemsize).read_bits
    patterns = [value]
    for _ in range(count):
        if take(1):
            if take(1):
                leading, significant = take(leading_bits), take(length_bits)
                trailing = size - leading - significant
                if trailing < 0:
                    raise BadPageError("GORILLA_V1 bits that no writer makes")
                value ^= take(significant) << trailing
            else:  # uses the leading and trailing zeros of the value before
                leading = size - value.bit_length()
                trailing = (value & -value).bit_length() - 1 if value else size
                width = max(0, size - leading - trailing)
                value ^= take(width) << (trailing if width else 0)
        patterns.append(value)
    _check_end(patterns.pop(), dtype, "GORILLA_V1")
    return np.array(patterns, f"u{dtype.itemsize}").view(dtype)


def _from_ring(patterns: list[int], index: int, ring: int) -> int:
    """The newest value at position `index` of a ring buffer of `ring` values."""
    newest = len(patterns) - 1
    position = newest - ((newest - index) % ring)
    return patterns[position] if position >= 0 else 0


def _check_end(pattern: int, dtype: np.dtype[Any], name: str) -> None:
    _check_mark(np.array([pattern], f"u{dtype.itemsize}").view(dtype), dtype, name)


def _check_mark(mark: NDArray[Any], dtype: np.dtype[Any], name: str) -> None:
    """Raise BadPageError unless `mark`, the value after the last one of a page, is an end mark."""
    value = mark[0]
    ended = np.isnan(value) if dtype.kind == "f" else value == np.iinfo(dtype).min
    if not ended:
        raise BadPageError(f"a page in {name} does not end where its values do")
