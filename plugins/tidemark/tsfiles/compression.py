"""Decompression of pages, never to more bytes than the page announces. Source: `IUnCompressor` of the TsFile library."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from tidemark.tsfiles.codes import Compression

_LARGEST_RATIO = 1100  # of GZIP; the others stay below it or have a page size of their own making
_ALWAYS_ALLOWED = 1 << 26


class BadPageError(ValueError):
    """The data of a page is not what its header says. Becomes a CorruptionError where file and byte are known."""


def decompress(kind: Compression, data: bytes, size: int) -> bytes:
    """`data` decompressed to exactly `size` bytes. Raises BadPageError, also where `size` cannot be true."""
    if size > max(_ALWAYS_ALLOWED, len(data) * _LARGEST_RATIO):
        raise BadPageError(f"a page of {len(data)} bytes cannot hold {size}")
    result = _DECOMPRESSORS[kind](data, size)
    if len(result) != size:
        raise BadPageError(f"a page of {size} bytes decompresses to {len(result)}")
    return result


def can_decompress(kind: Compression) -> bool:
    return kind in _DECOMPRESSORS


def _none(data: bytes, size: int) -> bytes:
    return data


def _gzip(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(data, size + 1)
    except zlib.error as error:
        raise BadPageError(f"GZIP: {error}") from error


def _lzma2(data: bytes, size: int) -> bytes:
    try:
        return lzma.LZMADecompressor(memlimit=1 << 28).decompress(data, size + 1)
    except lzma.LZMAError as error:
        raise BadPageError(f"LZMA2: {error}") from error


@cache
def _codec(name: str) -> Any:
    import pyarrow as pa

    return pa.Codec(name)


def _arrow(codec: str) -> Callable[[bytes, int], bytes]:
    def decompress_with(data: bytes, size: int) -> bytes:
        try:
            result: bytes = _codec(codec).decompress(data, size, asbytes=True)
        except (OSError, ValueError) as error:
            raise BadPageError(f"{codec}: {error}") from error
        return result

    return decompress_with


_DECOMPRESSORS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.UNCOMPRESSED: _none,
    Compression.SNAPPY: _arrow("snappy"),
    Compression.GZIP: _gzip,
    Compression.LZ4: _arrow("lz4_raw"),
    Compression.ZSTD: _arrow("zstd"),
    Compression.LZMA2: _lzma2,
}
