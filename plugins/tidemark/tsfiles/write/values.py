"""Encode the times and values of one page.

Times and integers are written in TS_2DIFF (blocks of 128 differences, each with its smallest difference and bit width),
everything else in PLAIN. Both are exact, also for NaN, -0.0, infinities and any bytes, and every known reader decodes
them (research/spark-tsfile.md §1.3). Numbers are big-endian. Source: `DeltaBinaryEncoder`, `PlainEncoder` of the TsFile
library, seen in the real data folders.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.codes import DataType, Encoding
from tidemark.tsfiles.points.kernels import kernels

_BLOCK = 128  # differences a block, as IoTDB writes them

ENCODINGS: dict[DataType, Encoding] = {
    DataType.BOOLEAN: Encoding.PLAIN,
    DataType.INT32: Encoding.TS_2DIFF,
    DataType.INT64: Encoding.TS_2DIFF,
    DataType.FLOAT: Encoding.PLAIN,
    DataType.DOUBLE: Encoding.PLAIN,
    DataType.TEXT: Encoding.PLAIN,
    DataType.VECTOR: Encoding.TS_2DIFF,  # the time column of an aligned device
    DataType.TIMESTAMP: Encoding.TS_2DIFF,
    DataType.DATE: Encoding.TS_2DIFF,
    DataType.BLOB: Encoding.PLAIN,
    DataType.STRING: Encoding.PLAIN,
}
"""The encoding this writer gives each type."""

_INT, _LONG = np.dtype(np.int32), np.dtype(np.int64)


def encode_times(times: NDArray[np.int64]) -> bytes:
    return _encode_two_diff(times, _LONG)


def encode_values(data_type: DataType, values: NDArray[Any]) -> bytes:
    """Encode the values of one page, without nulls, in the encoding of `ENCODINGS`."""
    match data_type:
        case DataType.INT32 | DataType.DATE:
            return _encode_two_diff(values, _INT)
        case DataType.INT64 | DataType.TIMESTAMP:
            return _encode_two_diff(values, _LONG)
        case DataType.FLOAT:
            return values.astype(">f4").tobytes()
        case DataType.DOUBLE:
            return values.astype(">f8").tobytes()
        case DataType.BOOLEAN:
            return values.astype(np.uint8).tobytes()
    return b"".join(part for value in values for part in (encode_varint(len(value)), value))


def encode_uvarint(value: int) -> bytes:
    """Encode as LEB128: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """Encode as zigzag, then LEB128."""
    return encode_uvarint(value * 2 if value >= 0 else -value * 2 - 1)


def encode_var_string(text: str | None) -> bytes:
    """Encode a name with its length in bytes as varint; -1 for null."""
    if text is None:
        return encode_varint(-1)
    data = text.encode()
    return encode_varint(len(data)) + data


def _encode_two_diff(values: NDArray[Any], of: np.dtype[Any]) -> bytes:
    """Encode as blocks of: number of differences (int32), bit width (int32), smallest difference, first value, packed bits.

    A block holds one value and up to 128 differences to the value before, less the smallest one. Arithmetic wraps around.
    """
    if (compiled := kernels()) is not None:
        return compiled.encode_deltas(np.ascontiguousarray(values, of), _BLOCK)
    unsigned = np.dtype(f"u{of.itemsize}")
    out = []
    bare = np.ascontiguousarray(values, of).view(unsigned)
    full = len(bare) // (_BLOCK + 1)
    if full:
        out += _encode_blocks(bare[: full * (_BLOCK + 1)].reshape(full, _BLOCK + 1), of)
    rest = bare[full * (_BLOCK + 1) :]
    if len(rest):
        out += _encode_blocks(rest.reshape(1, len(rest)), of)
    return b"".join(out)


def _encode_blocks(rows: NDArray[Any], of: np.dtype[Any]) -> list[bytes]:
    """Encode each row of `rows` (unsigned, all of one length) as a block."""
    differences = rows[:, 1:] - rows[:, :-1]
    count = differences.shape[1]
    if count:
        smallest = differences.view(of).min(axis=1)
        above = differences - smallest.view(differences.dtype)[:, None]
        widths = _bit_widths(above.max(axis=1))
    else:
        smallest, above = np.zeros(len(rows), of), differences
        widths = np.zeros(len(rows), np.int64)
    packed = _pack_rows(above, widths, of.itemsize * 8)
    head = struct.Struct(">ii" + ("ii" if of.itemsize == 4 else "qq"))
    first = rows[:, 0].copy().view(of)
    return [
        head.pack(count, width, low, start) + bits
        for width, low, start, bits in zip(widths.tolist(), smallest.tolist(), first.tolist(), packed, strict=True)
    ]


def _pack_rows(above: NDArray[Any], widths: NDArray[np.int64], bits: int) -> list[bytes]:
    """Pack the lowest `widths[i]` bits of each number of row i, highest bit first."""
    packed = [b""] * len(above)
    for width in set(widths.tolist()) - {0}:
        rows = np.flatnonzero(widths == width)
        wide = above[rows].astype(above.dtype.newbyteorder(">"))
        spread = np.unpackbits(wide.view(np.uint8).reshape(len(rows), above.shape[1], bits // 8), axis=2)
        bytes_of_rows = np.packbits(spread[:, :, bits - width :].reshape(len(rows), -1), axis=1)
        for row, data in zip(rows.tolist(), bytes_of_rows, strict=True):
            packed[row] = data.tobytes()
    return packed


def _bit_widths(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([value.bit_length() for value in values.tolist()], np.int64)
