"""The decoder of each (type, encoding). Every decoder is exact or absent. `compression.can_decode` lists them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.decode.compression import FLOATS, INTEGERS
from tidemark.tsfiles.decode.integers import (
    decode_boolean_runs,
    decode_deltas,
    decode_dictionary,
    decode_float_deltas,
    decode_float_runs,
    decode_int_runs,
    decode_zigzag,
)
from tidemark.tsfiles.decode.rare import decode_rlbe, decode_sprintz
from tidemark.tsfiles.decode.xor import decode_chimp, decode_gorilla, decode_gorilla_v1
from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.points.codes import BINARY_TYPES, BadPageError, DataType, Encoding
from tidemark.tsfiles.points.column import VALUE_DTYPES
from tidemark.tsfiles.points.kernels import kernels

Decoder = Callable[[bytes, int], NDArray[Any]]


def decode_values(data_type: DataType, encoding: Encoding, data: bytes, count: int) -> NDArray[Any]:
    """The `count` values of a page, with the dtype of `VALUE_DTYPES`.

    Raises BadPageError if `data` does not hold exactly that many, KeyError if `compression.can_decode` is false.
    """
    return _DECODERS[data_type, encoding](data, count)


def _plain_fixed(big_endian: str, dtype: np.dtype[Any], data: bytes, count: int) -> NDArray[Any]:
    if len(data) != count * dtype.itemsize:
        raise BadPageError(f"{count} values announced in {len(data)} bytes")
    return np.frombuffer(data, big_endian).astype(dtype)


def _plain_booleans(data: bytes, count: int) -> NDArray[np.bool_]:
    if len(data) != count:
        raise BadPageError(f"{count} values announced in {len(data)} bytes")
    values: NDArray[np.bool_] = np.frombuffer(data, np.uint8) != 0
    return values


def _plain_int32(data: bytes, count: int) -> NDArray[np.int32]:
    """Decode zigzag varints, all values at once."""
    if (compiled := kernels()) is not None:
        return compiled.decode_varints(data, count)
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) != count or (count and ends[-1] != len(raw) - 1) or (not count and len(raw)):
        raise BadPageError(f"{len(ends)} values where {count} are announced")
    starts = np.concatenate([[0], ends[:-1] + 1]) if count else np.empty(0, np.int64)
    lengths = ends - starts + 1
    if count and int(lengths.max()) > 5:
        raise BadPageError("a variable-length integer does not end")
    patterns = np.zeros(count, np.uint64)
    for byte in range(int(lengths.max()) if count else 0):
        has = lengths > byte
        part = (raw[starts[has] + byte] & 0x7F).astype(np.uint64)
        patterns[has] |= part << np.uint64(7 * byte)
    low = patterns.astype(np.uint32)
    return ((low >> np.uint32(1)) ^ (np.uint32(0) - (low & np.uint32(1)))).view(np.int32)


def _plain_binary(data: bytes, count: int) -> NDArray[Any]:
    """Decode values of a varint length and bytes. Nearly all lengths have one byte, so the loop treats those first."""
    found: list[bytes] = []
    cursor = Cursor(data, "PLAIN")
    at, end = 0, len(data)
    for _ in range(count):
        if at < end and data[at] < 0x80 and data[at] & 1 == 0:
            start = at + 1
            at = start + (data[at] >> 1)
            if at > end:
                raise BadPageError(f"a value reaches {at - end} bytes beyond the page")
            found.append(data[start:at])
        else:
            cursor.position = at
            found.append(cursor.read_exactly(cursor.read_varint()))
            at = cursor.position
    if at != end:
        raise BadPageError(f"{end - at} bytes after the last value")
    values = np.empty(count, object)
    values[:] = found
    return values


def _build_decoder_table() -> dict[tuple[DataType, Encoding], Decoder]:
    table: dict[tuple[DataType, Encoding], Decoder] = {
        (DataType.BOOLEAN, Encoding.PLAIN): _plain_booleans,
        (DataType.BOOLEAN, Encoding.RLE): decode_boolean_runs,
    }
    for kind in INTEGERS:
        dtype = VALUE_DTYPES[kind]
        plain = _plain_int32 if dtype.itemsize == 4 else partial(_plain_fixed, ">i8", dtype)
        table[kind, Encoding.PLAIN] = plain
        table[kind, Encoding.RLE] = partial(decode_int_runs, dtype=dtype)
        table[kind, Encoding.TS_2DIFF] = partial(decode_deltas, dtype=dtype)
        table[kind, Encoding.ZIGZAG] = partial(decode_zigzag, dtype=dtype)
    for kind in FLOATS:
        dtype = VALUE_DTYPES[kind]
        integers = np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)
        table[kind, Encoding.PLAIN] = partial(_plain_fixed, f">f{dtype.itemsize}", dtype)
        table[kind, Encoding.RLE] = partial(decode_float_runs, dtype=integers)
        table[kind, Encoding.TS_2DIFF] = partial(decode_float_deltas, dtype=integers)
        table[kind, Encoding.GORILLA_V1] = partial(decode_gorilla_v1, dtype=dtype)
    for kind in (*INTEGERS, *FLOATS):
        dtype = VALUE_DTYPES[kind]
        table[kind, Encoding.GORILLA] = partial(decode_gorilla, dtype=dtype)
        table[kind, Encoding.CHIMP] = partial(decode_chimp, dtype=dtype)
        table[kind, Encoding.RLBE] = partial(decode_rlbe, dtype=dtype)
        table[kind, Encoding.SPRINTZ] = partial(decode_sprintz, dtype=dtype)
    for kind in BINARY_TYPES:
        table[kind, Encoding.PLAIN] = _plain_binary
        table[kind, Encoding.DICTIONARY] = decode_dictionary
    return table


_DECODERS = _build_decoder_table()
