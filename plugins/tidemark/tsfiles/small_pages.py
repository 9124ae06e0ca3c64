"""A chunk of many small pages, decoded all at once: devices that flush often leave pages of a point or a few.

Page by page (`pages`) each costs some ten microseconds, whatever it holds. Here compiled code walks them; it takes sound
ones of the usual encodings alone, and everything else is left to `pages`, which says what is wrong and where.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.chunks import ChunkHeader
from tidemark.tsfiles.codes import Compression, DataType, Encoding
from tidemark.tsfiles.column import VALUE_DTYPES, Column
from tidemark.tsfiles.compiled import PageRow, kernels
from tidemark.tsfiles.compression import BadPageError, decompress
from tidemark.tsfiles.decodable import INTEGERS
from tidemark.tsfiles.series import Statistics

_FEWEST_PAGES = 16
_MOST_POINTS = 1000  # of a page on average: those of more cost as much for what they hold as for being pages
_PAGE_BYTES, _POINT_BYTES = 128, 32  # decompressed: no coding takes more

_DELTAS_32, _DELTAS_64, _GORILLA_32, _GORILLA_64, _GORILLA_FLOAT, _GORILLA_DOUBLE = range(6)
_RUNS_32, _RUNS_64, _VARINTS, _PLAIN_8, _PLAIN_32, _PLAIN_64 = range(6, 12)
_PATTERNS = (_RUNS_32, _RUNS_64)  # come as unsigned 64 bit patterns

_CODINGS = {
    (DataType.BOOLEAN, Encoding.RLE): _RUNS_32,
    (DataType.FLOAT, Encoding.GORILLA): _GORILLA_FLOAT,
    (DataType.DOUBLE, Encoding.GORILLA): _GORILLA_DOUBLE,
    (DataType.BOOLEAN, Encoding.PLAIN): _PLAIN_8,
    (DataType.FLOAT, Encoding.PLAIN): _PLAIN_32,
    (DataType.DOUBLE, Encoding.PLAIN): _PLAIN_64,
}
for _kind in INTEGERS:
    _wide = VALUE_DTYPES[_kind].itemsize == 8
    _CODINGS[_kind, Encoding.TS_2DIFF] = _DELTAS_64 if _wide else _DELTAS_32
    _CODINGS[_kind, Encoding.GORILLA] = _GORILLA_64 if _wide else _GORILLA_32
    _CODINGS[_kind, Encoding.RLE] = _RUNS_64 if _wide else _RUNS_32
    _CODINGS[_kind, Encoding.PLAIN] = _PLAIN_64 if _wide else _VARINTS


def small_pages(header: ChunkHeader, data: bytes, told: Statistics, start: int | None, end: int | None) -> Column | None:
    """The points of the pages of `data` that may hold some with start <= time < end (None: no bound), as one column.

    `header`: of a series that is not aligned; `told`: of the chunk, by the index. None: to be read page by page.
    """
    compiled, coding = kernels(), _CODINGS.get((header.type, header.encoding))
    if compiled is None or coding is None or header.one_page:
        return None
    rows = compiled.pages(data, header.type)
    if len(rows) < _FEWEST_PAGES or told.count > len(rows) * _MOST_POINTS or rows[:, PageRow.POINTS].sum() != told.count:
        return None
    if rows[:, PageRow.FIRST].min() < told.start or rows[:, PageRow.LAST].max() > told.end:
        return None
    if start is not None:
        rows = rows[rows[:, PageRow.LAST] >= start]
    if end is not None:
        rows = rows[rows[:, PageRow.FIRST] < end]
    try:
        data, rows = _decompressed(header.compression, data, rows)
    except BadPageError:
        return None
    dtype = VALUE_DTYPES[header.type]
    found = compiled.points(data, rows, coding, np.dtype(np.uint64) if coding in _PATTERNS else dtype)
    return None if found is None else Column(header.type, found[0], _as_type(found[1], dtype))


def _decompressed(kind: Compression, data: bytes, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """The bytes of the pages as they are decoded, and the rows with where each one is in those."""
    sizes = rows[:, PageRow.PAGE_BYTES]
    if sizes.sum() > len(rows) * _PAGE_BYTES + rows[:, PageRow.POINTS].sum() * _POINT_BYTES:
        raise BadPageError("more bytes than such pages have")
    if kind is Compression.UNCOMPRESSED:
        if not np.array_equal(rows[:, PageRow.DATA_BYTES], sizes):
            raise BadPageError("a page of another size")
        return data, rows
    places = rows[:, [PageRow.DATA, PageRow.DATA_BYTES, PageRow.PAGE_BYTES]].tolist()
    joined = b"".join([decompress(kind, data[at : at + length], size) for at, length, size in places])
    moved = rows.copy()
    moved[:, PageRow.DATA] = np.cumsum(sizes) - sizes
    moved[:, PageRow.DATA_BYTES] = sizes
    return joined, moved


def _as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of a type of themselves or of patterns."""
    if values.dtype == dtype:
        return values
    if dtype.kind == "b":
        return np.asarray(values != 0)
    return values.view(dtype) if dtype.itemsize == 8 else values.astype(np.uint32).view(dtype)
