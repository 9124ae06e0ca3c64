"""Bit-packed integers, most significant bit first, as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.compression import BadPageError


def unpack(data: bytes, width: int, count: int) -> NDArray[np.uint64]:
    """`count` integers of `width` bits (0 to 64) from the head of `data`; the last byte may be filled up."""
    if not 0 <= width <= 64 or count < 0:
        raise BadPageError(f"{count} integers of {width} bits")
    if width == 0 or count == 0:
        return np.zeros(count, np.uint64)
    if len(data) * 8 < count * width:
        raise BadPageError(f"{count} integers of {width} bits announced in {len(data)} bytes")
    return extract(data, np.arange(count, dtype=np.int64) * width, np.full(1, width, np.int64))


def extract(data: bytes, positions: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The integers of `widths[i]` bits (0 to 64) that begin at bit `positions[i]`, which must lie in `data` (uint64[n]).

    Nine bytes hold any of them: eight are taken as a word, what the ninth has is added below.
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
