"""The codecs of pages: LZ4 blocks, Snappy, ZSTD. From pyarrow if it is installed, else from cramjam, which is small.

The bare distribution has cramjam alone: pyarrow is as large as everything else together. Both give a codec that compresses
bytes, and decompresses to at most a size that the caller names: memory is bounded by it, whatever the block says.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any, Protocol

LZ4, SNAPPY, ZSTD = "lz4_raw", "snappy", "zstd"  # pyarrow's names


class Codec(Protocol):
    """One compression. `decompress` raises OSError or ValueError for damaged bytes, and for more than `size` bytes.

    Its result may be shorter than `size`, or filled up to it."""

    def compress(self, data: bytes) -> bytes: ...

    def decompress(self, data: bytes, size: int) -> bytes: ...


@cache
def load_codec(name: str) -> Codec:
    """Load the codec LZ4, SNAPPY or ZSTD. Raises ModuleNotFoundError if no package has it."""
    if importlib.util.find_spec("pyarrow") is not None:
        return _ArrowCodec(name)
    return _CramjamCodec(name)


class _ArrowCodec:
    def __init__(self, name: str) -> None:
        import pyarrow as pa

        self._codec = pa.Codec(name)

    def compress(self, data: bytes) -> bytes:
        result: bytes = self._codec.compress(data, asbytes=True)
        return result

    def decompress(self, data: bytes, size: int) -> bytes:
        result: bytes = self._codec.decompress(data, size, asbytes=True)
        return result


class _CramjamCodec:
    def __init__(self, name: str) -> None:
        self._name = name
        self._library: Any = importlib.import_module("cramjam")

    def compress(self, data: bytes) -> bytes:
        if self._name == LZ4:
            return bytes(self._library.lz4.compress_block(data, store_size=False))
        if self._name == SNAPPY:
            return bytes(self._library.snappy.compress_raw(data))
        return bytes(self._library.zstd.compress(data, level=1))  # pyarrow's level

    def decompress(self, data: bytes, size: int) -> bytes:
        target = bytearray(size)
        try:
            if self._name == LZ4:
                written = self._library.lz4.decompress_block_into(data, target)
            elif self._name == SNAPPY:
                written = self._library.snappy.decompress_raw_into(data, target)
            else:
                written = self._library.zstd.decompress_into(data, target)
        except self._library.DecompressionError as damaged:
            raise ValueError(str(damaged)) from damaged
        return bytes(memoryview(target)[:written])
