"""Decode bit-packed integers, TS_2DIFF and ZIGZAG, RLE, DICTIONARY, and floats stored as scaled integers.

Integers are packed with the most significant bit first.

TS_2DIFF is packs of: number and bit width of the differences, the smallest difference, the first value, the
differences less the smallest, bit-packed. Arithmetic wraps at the type's width, as in Java. Source:
`DeltaBinaryDecoder`, `IntZigzagDecoder`, `LongZigzagDecoder` of the TsFile library.

RLE is: length of a block, bit width, then runs. An even header is a run (count, value in whole bytes: little-endian
for types of 32 bits, big-endian for those of 64). An odd one is groups of eight bit-packed values, with the number
of values in the last group. Floats of RLE and TS_2DIFF are scaled integers. Source: `RleDecoder`,
`DictionaryDecoder`, `FloatDecoder`, `FloatEncoder` of the TsFile library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.points.codes import BadPageError
from tidemark.tsfiles.points.kernels import kernels


def unpack_integers(data: bytes, width: int, count: int) -> NDArray[np.uint64]:
    """`count` integers of `width` bits (0 to 64) from the start of `data`. The last byte may be padded."""
    if not 0 <= width <= 64 or count < 0:
        raise BadPageError(f"{count} integers of {width} bits")
    if width == 0 or count == 0:
        return np.zeros(count, np.uint64)
    if len(data) * 8 < count * width:
        raise BadPageError(f"{count} integers of {width} bits announced in {len(data)} bytes")
    return extract_integers(data, np.arange(count, dtype=np.int64) * width, np.full(1, width, np.int64))


def extract_integers(data: bytes, positions: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The integers of `widths[i]` bits (0 to 64) that begin at bit `positions[i]`, which must lie in `data` (uint64[n]).

    Nine bytes hold any of them: eight are read as a word, then the bits of the ninth are added.
    """
    padded = np.frombuffer(data + bytes(9), np.uint8)
    words = np.ndarray(len(data) + 1, ">u8", padded, strides=(1,))  # the word that begins at each byte
    at = positions >> 3
    offset = (positions & 7).astype(np.uint64)
    value: NDArray[np.uint64] = words[at].astype(np.uint64) << offset
    value |= padded[at + 8].astype(np.uint64) >> (np.uint64(8) - offset)
    none = widths == 0
    value >>= np.where(none, 0, 64 - widths).astype(np.uint64)
    value[np.broadcast_to(none, value.shape)] = 0
    return value


def decode_deltas(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP and times in TS_2DIFF."""
    return _decode_packs(Cursor(data, "TS_2DIFF"), count, dtype)


def decode_float_deltas(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode FLOAT (`dtype` int32) and DOUBLE (int64) in TS_2DIFF."""
    cursor = Cursor(data, "TS_2DIFF")
    decimals, unscaled, raw = read_float_scale(cursor, count)
    return unscale_floats(_decode_packs(cursor, count, dtype), decimals, unscaled, raw)


def _decode_packs(cursor: Cursor, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode all packs at once: a pack has some hundred values, too few for array operations of its own."""
    if (compiled := kernels()) is not None:
        return compiled.decode_deltas(cursor.read_exactly(cursor.bytes_left()), count, dtype)
    heads = _pack_heads(cursor, count, dtype.itemsize * 8)
    if not heads:
        return np.empty(0, dtype)
    sizes, widths, smallest, first, at = (np.array(part, np.int64) for part in zip(*heads, strict=True))
    starts = np.concatenate([[0], np.cumsum(sizes + 1)[:-1]])  # where each pack's first value goes
    is_step = np.ones(count, np.bool_)
    is_step[starts] = False
    within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    of_step = np.repeat(widths, sizes)
    steps = extract_integers(cursor.data, np.repeat(at * 8, sizes) + within * of_step, of_step).view(np.int64)
    sums = np.zeros(count, np.int64)
    with np.errstate(over="ignore"):
        sums[is_step] = steps + np.repeat(smallest, sizes)
        sums = np.cumsum(sums)
        values: NDArray[np.int64] = sums - np.repeat(sums[starts] - first, sizes + 1)
    return np.asarray(values.astype(dtype))  # int64 to int32 keeps the low bits: it wraps as Java does


def _pack_heads(cursor: Cursor, count: int, bits: int) -> list[tuple[int, int, int, int, int]]:
    """The heads of all packs: (number of differences, bit width, smallest difference, first value, their offset)."""
    heads = []
    missing = count
    while cursor.bytes_left():
        number, width = cursor.read_i32(), cursor.read_i32()
        smallest, first = (cursor.read_i32(), cursor.read_i32()) if bits == 32 else cursor.read_i64_pair()
        missing -= number + 1
        if number < 0 or missing < 0 or not 0 <= width <= bits:
            raise BadPageError(f"a TS_2DIFF pack of {number + 1} values where {missing + number + 1} are missing")
        at = cursor.position
        cursor.skip_bytes((number * width + 7) // 8)
        heads.append((number, width, smallest, first, at))
    if missing:
        raise BadPageError(f"TS_2DIFF holds {count - missing} values, not {count}")
    return heads


def decode_zigzag(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP in ZIGZAG: blocks of length, number, zigzag integers."""
    if (compiled := kernels()) is not None:
        return compiled.decode_zigzag(data, count, dtype)
    cursor = Cursor(data, "ZIGZAG")
    mask = (1 << (dtype.itemsize * 8)) - 1
    patterns: list[int] = []
    while cursor.bytes_left():
        length, number = cursor.read_uvarint(), cursor.read_uvarint()
        block = cursor.read_exactly(length)
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


_HAS_UNSCALED = 0x7FFFFFFF  # instead of the number of decimals: some values could not be scaled
_HAS_RAW = 0x7FFFFFFE  # and some could not be made integers at all


def decode_runs(cursor: Cursor, count: int, size: int) -> NDArray[np.uint64]:
    """`count` values of a type of `size` bytes (4, 8) in RLE from the cursor to its end, as unsigned 64 bit patterns."""
    if (compiled := kernels()) is not None:
        return compiled.decode_runs(cursor.read_exactly(cursor.bytes_left()), count, size)
    parts: list[NDArray[np.uint64]] = []
    have = 0
    while cursor.bytes_left():
        block = Cursor(cursor.read_exactly(cursor.read_uvarint()), cursor.what)
        width = block.read_u8()
        if width > 64:
            raise BadPageError(f"RLE of {width} bits")
        while block.bytes_left():
            part = _one_run(block, width, count - have, size)
            have += len(part)
            parts.append(part)
    if have != count:
        raise BadPageError(f"RLE holds {have} values, not {count}")
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _one_run(block: Cursor, width: int, wanted: int, size: int) -> NDArray[np.uint64]:
    header = block.read_uvarint()
    if header & 1 == 0:
        length = header >> 1
        if length > wanted:
            raise BadPageError(f"an RLE run of {length} values where {wanted} are missing")
        value = int.from_bytes(block.read_exactly((width + 7) // 8), "little" if size == 4 else "big")
        return np.full(length, value, np.uint64)
    groups, last = header >> 1, block.read_u8()
    length = (groups - 1) * 8 + last
    if groups == 0 or not 1 <= last <= 8 or length > wanted:
        raise BadPageError(f"RLE groups of {length} values where {wanted} are missing")
    packed = block.read_exactly(min(groups * width, block.bytes_left()))
    return unpack_integers(packed, width, length)


def decode_int_runs(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode INT32, INT64, DATE, TIMESTAMP in RLE."""
    return _as_signed(decode_runs(Cursor(data, "RLE"), count, dtype.itemsize), dtype)


def decode_boolean_runs(data: bytes, count: int) -> NDArray[np.bool_]:
    values: NDArray[np.bool_] = decode_runs(Cursor(data, "RLE"), count, 4) != 0
    return values


def decode_dictionary(data: bytes, count: int) -> NDArray[Any]:
    """Decode TEXT, STRING, BLOB in DICTIONARY: the distinct values, then their numbers in RLE."""
    cursor = Cursor(data, "DICTIONARY")
    size = cursor.read_varint()
    if not 0 <= size <= cursor.bytes_left():
        raise BadPageError(f"a dictionary of {size} values in {len(data)} bytes")
    words = np.empty(size, object)
    for index in range(size):
        words[index] = cursor.read_exactly(cursor.read_varint())
    numbers = decode_runs(cursor, count, 4)
    if count and (size == 0 or int(numbers.max()) >= size):
        raise BadPageError("a value is not in the dictionary")
    return words[numbers.astype(np.int64)] if count else np.empty(0, object)


def read_float_scale(cursor: Cursor, count: int) -> tuple[int, NDArray[np.bool_], NDArray[np.bool_]]:
    """Read the head of FLOAT and DOUBLE in RLE and TS_2DIFF: decimals, which values are unscaled, which are raw bits.

    Newer writers put bitmaps (least significant bit first) before the decimals if a value does not fit.
    """
    decimals = cursor.read_uvarint()
    unscaled, raw = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    if decimals in (_HAS_UNSCALED, _HAS_RAW):
        size = cursor.read_uvarint()
        if size != count:
            raise BadPageError(f"a bitmap of {size} values for {count}")
        is_scaled = _read_bitmap(cursor, size)
        raw = _read_bitmap(cursor, size) if decimals == _HAS_RAW else raw
        unscaled = ~is_scaled
        decimals = cursor.read_uvarint()
    if decimals > 308:
        raise BadPageError(f"{decimals} decimals")
    return decimals, unscaled, raw


def unscale_floats(
    integers: NDArray[Any], decimals: int, unscaled: NDArray[np.bool_], raw: NDArray[np.bool_]
) -> NDArray[Any]:
    """The floats of integers that were multiplied by 10^decimals: int32 gives float32, int64 gives float64."""
    dtype = np.dtype(np.float32 if integers.dtype.itemsize == 4 else np.float64)
    values = integers.astype(np.float64)
    with np.errstate(over="ignore"):
        values = np.where(unscaled, values, values / (10.0**decimals)).astype(dtype)
    values[raw] = integers[raw].view(dtype)
    return values


def decode_float_runs(data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Decode FLOAT (`dtype` int32) and DOUBLE (int64) in RLE."""
    cursor = Cursor(data, "RLE")
    decimals, unscaled, raw = read_float_scale(cursor, count)
    return unscale_floats(_as_signed(decode_runs(cursor, count, dtype.itemsize), dtype), decimals, unscaled, raw)


def _as_signed(patterns: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.itemsize == 4:
        return patterns.astype(np.uint32).view(np.int32)
    return patterns.view(np.int64)


def _read_bitmap(cursor: Cursor, size: int) -> NDArray[np.bool_]:
    data = np.frombuffer(cursor.read_exactly(size // 8 + 1), np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").astype(np.bool_)
