"""Decompress pages to exactly the size that they announce, and say which codings Tidemark decodes.

Arrow's LZ4 and Snappy return a buffer of the requested size, even if a block fills less of it. The rest would be
uninitialized memory. So the size of such a block is checked. Source: `IUnCompressor` of the TsFile library.

`can_decode` says which types, encodings and compressions Tidemark reads. It is apart from the decoders so that its
callers need no numpy. Absent, for want of a server that writes them to test with: DIFF, BITMAP, REGULAR, FREQ, CAMEL.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable
from functools import partial

from tidemark.errors import CorruptionError
from tidemark.tsfiles.decode.codecs import LZ4, SNAPPY, ZSTD, load_codec
from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.points.codes import BINARY_TYPES, BadPageError, Compression, DataType, Encoding

_LARGEST_RATIO = 1100  # of GZIP; the others stay below it or have a page size of their own making
_ALWAYS_ALLOWED = 1 << 26


def decompress_page(kind: Compression, data: bytes, size: int) -> bytes:
    """Decompress `data` to exactly `size` bytes. Raises BadPageError, also for a `size` beyond any compression ratio."""
    if size > max(_ALWAYS_ALLOWED, len(data) * _LARGEST_RATIO):
        raise BadPageError(f"a page of {len(data)} bytes cannot hold {size}")
    result = _DECOMPRESSORS[kind](data, size)
    if len(result) != size:
        raise BadPageError(f"a page of {size} bytes decompresses to {len(result)}")
    return result


def can_decompress(kind: Compression) -> bool:
    return kind in _DECOMPRESSORS


def _decompress_none(data: bytes, size: int) -> bytes:
    return data


def _decompress_gzip(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(data, size + 1)
    except zlib.error as error:
        raise BadPageError(f"GZIP: {error}") from error


def _decompress_lzma2(data: bytes, size: int) -> bytes:
    try:
        return lzma.LZMADecompressor(memlimit=1 << 28).decompress(data, size + 1)
    except lzma.LZMAError as error:
        raise BadPageError(f"LZMA2: {error}") from error


def _decompress_with_codec(codec: str, data: bytes, size: int) -> bytes:
    try:
        return load_codec(codec).decompress(data, size)
    except (OSError, ValueError) as error:
        raise BadPageError(f"{codec}: {error}") from error


def _decompress_lz4(data: bytes, size: int) -> bytes:
    """Decompress an LZ4 block, which does not state its size.

    Compiled code adds up its lengths. Without it, decompression to one byte less must fail.
    """
    from tidemark.tsfiles.points.kernels import kernels

    result = _decompress_with_codec(LZ4, data, size)
    if (compiled := kernels()) is not None:
        compiled.require_lz4(data, size)
    elif size and _fits_size(LZ4, data, size - 1):
        raise BadPageError(f"LZ4: a block of less than {size} bytes")
    return result


def _fits_size(codec: str, data: bytes, size: int) -> bool:
    try:
        _decompress_with_codec(codec, data, size)
    except BadPageError:
        return False
    return True


def _decompress_snappy(data: bytes, size: int) -> bytes:
    """Decompress a Snappy block. It begins with its size (a varint), which Snappy checks."""
    try:
        told = Cursor(data, "SNAPPY").read_uvarint()
    except CorruptionError as cut:
        raise BadPageError(cut.message) from cut
    if told != size:
        raise BadPageError(f"SNAPPY: a block of {told} bytes, not {size}")
    return _decompress_with_codec(SNAPPY, data, size)


_DECOMPRESSORS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.UNCOMPRESSED: _decompress_none,
    Compression.SNAPPY: _decompress_snappy,
    Compression.GZIP: _decompress_gzip,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: partial(_decompress_with_codec, ZSTD),
    Compression.LZMA2: _decompress_lzma2,
}

INTEGERS = (DataType.INT32, DataType.DATE, DataType.INT64, DataType.TIMESTAMP)
FLOATS = (DataType.FLOAT, DataType.DOUBLE)
_NUMBERS = (
    *(Encoding.PLAIN, Encoding.RLE, Encoding.TS_2DIFF, Encoding.GORILLA, Encoding.CHIMP),
    *(Encoding.RLBE, Encoding.SPRINTZ),
)

DECODABLE = frozenset(
    [(DataType.BOOLEAN, encoding) for encoding in (Encoding.PLAIN, Encoding.RLE)]
    + [(kind, encoding) for kind in INTEGERS for encoding in (*_NUMBERS, Encoding.ZIGZAG)]
    + [(kind, encoding) for kind in FLOATS for encoding in (*_NUMBERS, Encoding.GORILLA_V1)]
    + [(kind, encoding) for kind in BINARY_TYPES for encoding in (Encoding.PLAIN, Encoding.DICTIONARY)]
)
"""For each of these there is a decoder in `decoders`, and for no other."""


def can_decode(data_type: DataType, encoding: Encoding, compression: Compression = Compression.UNCOMPRESSED) -> bool:
    """Whether values of this type, encoding and compression can be read exactly."""
    return (data_type, encoding) in DECODABLE and can_decompress(compression)
