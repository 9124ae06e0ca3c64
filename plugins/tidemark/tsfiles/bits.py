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
    if width > 57:  # may touch nine bytes: take it bit by bit
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * width).reshape(count, width)
        padded = np.zeros((count, 64), np.uint8)
        padded[:, 64 - width :] = bits
        return np.packbits(padded, axis=1).view(">u8").ravel().astype(np.uint64)
    at = np.arange(count, dtype=np.int64) * width
    padded_bytes = np.frombuffer(data + bytes(8), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(padded_bytes, 8)[at >> 3]
    words = np.ascontiguousarray(windows).view(">u8").ravel().astype(np.uint64)
    shift = (64 - width - (at & 7)).astype(np.uint64)
    mask = np.uint64((1 << width) - 1)
    return (words >> shift) & mask
