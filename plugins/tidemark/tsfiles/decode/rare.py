"""Decode RLBE and SPRINTZ, two rarely used encodings, value by value in Python.

SPRINTZ loses values that do not fit its scheme, and a page does not name its predictor. FLOAT in RLBE is written in two
ways. So decoded values are compared with the page's statistics (`confirm_by_statistics`), and a page that differs is
refused. Source: `IntRLBEDecoder`, `DoubleRLBEDecoder`, `IntSprintzDecoder`, `DoubleSprintzDecoder`, `LongFire` of the
TsFile library, as 2.0.1 has them; proved by files of a server of 2.0.1-beta.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.decode.integers import decode_int_runs
from tidemark.tsfiles.decode.xor import BitReader, decode_gorilla
from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.points.codes import BadPageError, Encoding

UNSURE = frozenset({Encoding.SPRINTZ, Encoding.RLBE})
"""Encodings whose values are compared with the statistics of their page (`confirm_by_statistics`)."""

_SPRINTZ_BLOCK = 8
_TAIL = 0x80


def decode_rlbe(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP, FLOAT, DOUBLE (`dtype`) in RLBE: runs of differences of one bit length.

    A block: int32 number of values, then runs of: length of the differences (6 or 7 bits), their number as Fibonacci code,
    the differences. Differences of floats are floats. They are added up in order, with the server's rounding.
    """
    size = dtype.itemsize * 8
    bits = BitReader(data)
    found: list[int] = []
    blocks = [0]
    while len(found) < count:
        bits.at = (bits.at + 7) & ~7
        end = len(found) + bits.read_bits(32)
        if end > count or end == len(found):
            raise BadPageError(f"an RLBE block of {end - len(found)} values where {count - len(found)} are missing")
        while len(found) < end:
            width = bits.read_bits(6 if size == 32 else 7)
            number = _read_fibonacci(bits, end - len(found))
            if not 1 <= width <= size:
                raise BadPageError(f"RLBE differences of {width} bits")
            top = 1 << (size - 1) if width == size else 0  # at full width the highest bit is written inverted
            found += [bits.read_bits(width) ^ top for _ in range(number)]
        blocks.append(end)
    return _sum_blocks(np.array(found, f"u{dtype.itemsize}"), blocks, dtype)


def _read_fibonacci(bits: BitReader, most: int) -> int:
    """Read a number as a sum of Fibonacci numbers 1, 2, 3, 5 …, lowest first. Two ones in a row end it."""
    value, before, current = 0, 1, 1
    now, following = bits.read_bits(1), bits.read_bits(1)
    while True:
        value += current if now else 0
        if value > most:
            raise BadPageError(f"an RLBE run of {value} values where {most} are missing")
        if now and following:
            return value
        before, current = current, before + current
        now, following = following, bits.read_bits(1)
        if current > most and not now:
            raise BadPageError("an RLBE run does not end")


def _sum_blocks(differences: NDArray[Any], blocks: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Running sums that restart at each block."""
    typed = differences.view(dtype if dtype.kind == "f" else differences.dtype)
    out = np.empty_like(typed)
    with np.errstate(over="ignore", invalid="ignore"):
        for begin, end in itertools.pairwise(blocks):
            np.add.accumulate(typed[begin:end], out=out[begin:end])
    return out.view(dtype)


def decode_sprintz(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP, FLOAT, DOUBLE (`dtype`) in SPRINTZ with the predictor FIRE (IoTDB's default).

    A block has a first value and eight packed prediction errors. The rest of the page is RLE (integers) or GORILLA
    (floats). The bits of floats are predicted as integers.
    """
    size = dtype.itemsize * 8
    cursor = Cursor(data, "SPRINTZ")
    patterns: list[int] = []
    tail = np.empty(0, dtype)
    while len(patterns) < count and not len(tail):
        width = cursor.read_u8()
        if width & _TAIL:
            tail = _decode_sprintz_tail(cursor, width & ~_TAIL, dtype)
        elif not 1 <= width <= size:
            raise BadPageError(f"SPRINTZ errors of {width} bits")
        else:
            short = dtype.kind == "i" and size == 32
            first = cursor.read_uvarint() if short else int.from_bytes(cursor.read_exactly(dtype.itemsize), "big")
            packed = BitReader(cursor.read_exactly(width))
            patterns += _predict_block(first, [packed.read_bits(width) for _ in range(_SPRINTZ_BLOCK)], size)
    whole = np.concatenate([np.array(patterns, f"u{dtype.itemsize}").view(dtype), tail])
    if len(whole) != count or cursor.bytes_left():
        raise BadPageError(f"SPRINTZ holds {len(whole)} values and {cursor.bytes_left()} bytes more, not {count} values")
    return whole


def _decode_sprintz_tail(cursor: Cursor, number: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    rest = cursor.read_exactly(cursor.bytes_left())
    if dtype.kind == "f":
        return decode_gorilla(rest, number, dtype)
    return decode_int_runs(rest, number, dtype)


def _predict_block(first: int, codes: list[int], size: int) -> list[int]:
    """The nine values of a block as bit patterns. As in Java, sums wrap, shifts keep the sign and division truncates."""
    half, whole = 1 << (size - 1), 1 << size
    shift, fraction = (2, 8) if size == 32 else (3, 16)

    def wrap(value: int) -> int:
        return (value + half) % whole - half

    value = wrap(first)
    values = [value]
    learned = delta = 0
    for code in map(wrap, codes):
        error = _halve_towards_zero(wrap(-code)) if code % 2 == 0 else _halve_towards_zero(wrap(code + 1))
        following = wrap(value + (wrap((learned >> shift) * delta) >> fraction) + error)
        learned = (learned - (-delta if error > 0 else delta) + (1 << 31)) % (1 << 32) - (1 << 31)
        delta = wrap(following - value)
        value = following
        values.append(value)
    return [value % whole for value in values]


def _halve_towards_zero(value: int) -> int:
    return -(-value // 2) if value < 0 else value // 2


def confirm_by_statistics(encoding: Encoding, data: bytes, values: NDArray[Any], statistics: bytes) -> NDArray[Any] | None:
    """The values of a page of an UNSURE encoding that agree with its statistics (as in the file); None if none do.

    Libraries later than 2.0.1 write FLOAT in RLBE as differences of its bits. That is exact, so it must agree exactly.
    """
    if encoding != Encoding.RLBE:
        return values if _matches_statistics(values, statistics) else None
    if values.dtype != np.float32:
        return values
    exact = decode_rlbe(data, len(values), np.dtype(np.int32)).view(np.float32)
    if _matches_statistics(exact, statistics):
        return exact
    return values if _matches_statistics(values, statistics, nearly=True) else None


def _matches_statistics(values: NDArray[Any], statistics: bytes, nearly: bool = False) -> bool:
    """Whether values have the smallest, largest, first and last value and the sum of the statistics.

    Sums are compared up to the rounding of doubles; they reveal a lost value. `nearly`: allow a relative error of 1e-3.
    """
    letter = {"i4": "i", "i8": "q", "f4": "f", "f8": "d"}[f"{values.dtype.kind}{values.dtype.itemsize}"]
    form = struct.Struct(f">4{letter}{'q' if letter == 'i' else 'd'}")
    if len(statistics) < form.size:
        return False
    *told_values, told_sum = form.unpack_from(statistics)
    told = np.array(told_values, values.dtype)
    mine = np.array([values.min(), values.max(), values[0], values[-1]], values.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = values.astype(np.float64)
        slack = (1e-3 if nearly else 1e-12) * float(np.abs(wide).sum())
        if not np.isnan(told_sum) and not abs(float(wide.sum()) - told_sum) <= slack:
            return False
    known = ~np.isnan(told) if values.dtype.kind == "f" else np.ones(4, np.bool_)  # a NaN in the statistics is not compared
    if nearly:
        width = float(np.abs(told[known]).max(initial=0.0))
        return bool((np.abs(mine[known] - told[known]) <= 1e-3 * width).all())
    ends = mine[2:].tobytes() == told[2:].tobytes()
    return ends and bool((mine[:2] == told[:2])[known[:2]].all())
