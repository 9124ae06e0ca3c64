"""Which types, encodings and compressions Tidemark reads: said apart from the decoders, since who only asks needs no numpy.

Absent (no server that writes them was at hand): DIFF, BITMAP, REGULAR, FREQ, CAMEL.
"""

from __future__ import annotations

from tidemark.tsfiles.codes import BINARY_TYPES, Compression, DataType, Encoding
from tidemark.tsfiles.compression import can_decompress

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
