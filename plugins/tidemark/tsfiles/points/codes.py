"""The numbers that TsFiles and IoTDB's schema logs write for data types, encodings and compressions.

The same numbers hold for V3 and V4. Source: `org.apache.tsfile.file.metadata.enums` (research/iotdb.md §1.8), seen in the
chunk headers of the real data folders.
"""

from __future__ import annotations

import enum


class DataType(enum.IntEnum):
    """The type of a series. VECTOR is the time column of an aligned device; it never holds values."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 3
    DOUBLE = 4
    TEXT = 5
    VECTOR = 6
    TIMESTAMP = 8
    DATE = 9
    BLOB = 10
    STRING = 11


class Encoding(enum.IntEnum):
    """The encoding of the values of a page before compression."""

    PLAIN = 0
    DICTIONARY = 1
    RLE = 2
    DIFF = 3
    TS_2DIFF = 4
    BITMAP = 5
    GORILLA_V1 = 6
    REGULAR = 7
    GORILLA = 8
    ZIGZAG = 9
    FREQ = 10
    CHIMP = 11
    SPRINTZ = 12
    RLBE = 13
    CAMEL = 14


class Compression(enum.IntEnum):
    """The compression of each page of a chunk."""

    UNCOMPRESSED = 0
    SNAPPY = 1
    GZIP = 2
    LZO = 3
    SDT = 4
    PAA = 5
    PLA = 6
    LZ4 = 7
    ZSTD = 8
    LZMA2 = 9


DATA_TYPES = {kind.value: kind for kind in DataType}
ENCODINGS = {kind.value: kind for kind in Encoding}
COMPRESSIONS = {kind.value: kind for kind in Compression}
"""Number → what it stands for: much quicker than to call the enumeration, which is done for every chunk of a file."""

BINARY_TYPES = frozenset({DataType.TEXT, DataType.BLOB, DataType.STRING})
"""Types whose values are byte strings (`bytes` in a `Column`)."""


class BadPageError(ValueError):
    """The data of a page contradicts its header. Callers that know file and byte turn it into a CorruptionError."""
