"""Split a device into chunks and pages, and encode them.

A device with many rows or large values becomes several chunk groups, so that a reader needs only one chunk in memory. In
an aligned device time and values are split at the same rows. A page or chunk without values has only its header.
Source: `ChunkWriterImpl`, `TimeChunkWriter`, `ValueChunkWriter` of the TsFile library.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.decode.codecs import LZ4, SNAPPY, ZSTD, load_codec
from tidemark.tsfiles.layout.series import PLAIN_SERIES, TIME_COLUMN, VALUE_COLUMN, Statistics
from tidemark.tsfiles.points.codes import BINARY_TYPES, Compression, DataType
from tidemark.tsfiles.points.column import Column, overlay_times, same_times
from tidemark.tsfiles.points.kernels import kernels
from tidemark.tsfiles.write.statistics import combine_statistics, encode_statistics, page_statistics
from tidemark.tsfiles.write.values import ENCODINGS, encode_times, encode_uvarint, encode_values, encode_var_string

PAGE_ROWS = 10_000
PAGE_BYTES = 1 << 20  # of values before encoding; a page has one row at least
CHUNK_PAGES = 100
CHUNK_BYTES = 64 << 20

_SEVERAL_PAGES, _ONE_PAGE = 1, 5


@dataclass(frozen=True)
class Chunk:
    """A chunk to write, encoded here or copied. `column`: TIME_COLUMN, VALUE_COLUMN or PLAIN_SERIES."""

    name: str
    type: DataType
    column: int
    data: bytes
    statistics: Statistics


Compressor = Callable[[bytes], bytes]
_Page = tuple[bytes, Statistics]  # no bytes: a page without values


def make_compressor(kind: Compression) -> Compressor:
    """The function that compresses a page: UNCOMPRESSED, SNAPPY, LZ4 or ZSTD."""
    if kind == Compression.UNCOMPRESSED:
        return bytes
    return load_codec({Compression.SNAPPY: SNAPPY, Compression.LZ4: LZ4, Compression.ZSTD: ZSTD}[kind]).compress


def page_cuts(rows: int, sizes: NDArray[np.int64] | None) -> list[int]:
    """The row at which each page begins, and finally `rows`. `sizes`: bytes of each row, None unless texts or blobs."""
    if sizes is None:
        return [*range(0, rows, PAGE_ROWS), rows]
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < rows:
        begin = cuts[-1]
        before = int(ends[begin - 1]) if begin else 0
        by_bytes = int(np.searchsorted(ends, before + PAGE_BYTES, "right"))
        cuts.append(min(max(by_bytes, begin + 1), begin + PAGE_ROWS, rows))
    return cuts


def chunk_cuts(cuts: Sequence[int], sizes: NDArray[np.int64] | None) -> list[list[int]]:
    """Group the page cuts by chunk: at most CHUNK_PAGES pages and about CHUNK_BYTES a chunk."""
    chunks: list[list[int]] = []
    current = [cuts[0]]
    weight = 0
    for begin, end in itertools.pairwise(cuts):
        current.append(end)
        weight += 0 if sizes is None else int(sizes[begin:end].sum())
        if len(current) > CHUNK_PAGES or weight >= CHUNK_BYTES:
            chunks.append(current)
            current, weight = [end], 0
    if len(current) > 1:
        chunks.append(current)
    return chunks


def series_chunks(name: str, column: Column, kind: Compression) -> Iterator[Chunk]:
    """Yield the chunks of a plain series (not aligned)."""
    sizes = _value_sizes(column) if column.type in BINARY_TYPES else None
    for cuts in chunk_cuts(page_cuts(len(column), sizes), sizes):
        yield _series_chunk(name, column, cuts, kind)


def row_times(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    """The times of an aligned device's rows: every time at which a column has a value, ascending."""
    runs: list[NDArray[np.int64]] = []
    for times in sorted((column.times for column in columns.values()), key=len, reverse=True):
        if not any(same_times(times, run) for run in runs):
            runs.append(times)
    rows, *others = runs
    for times in others:
        if not _all_rows(rows, times):
            rows = overlay_times([rows, times]).times
    return rows


def aligned_chunks(times: NDArray[np.int64], columns: Mapping[str, Column], kind: Compression) -> Iterator[list[Chunk]]:
    """Yield the chunk groups of an aligned device with rows at `times`: the time chunk, then one chunk of every column.

    A column without points in a group gets a chunk without values.
    """
    sizes = _row_sizes(times, columns)
    for cuts in chunk_cuts(page_cuts(len(times), sizes), sizes):
        yield [
            _time_chunk(times, cuts, kind),
            *(_value_chunk(name, column, times, cuts, kind) for name, column in columns.items()),
        ]


def mark_chunk(name: str, data_type: DataType, kind: Compression) -> Chunk:
    """The chunk of an aligned column without values in a chunk group: only a header."""
    return _encode_chunk(name, data_type, VALUE_COLUMN, [], kind)


def _series_chunk(name: str, column: Column, cuts: Sequence[int], kind: Compression) -> Chunk:
    pages: list[_Page] = []
    for begin, end in itertools.pairwise(cuts):
        own, values = column.times[begin:end], column.values[begin:end]
        times = encode_times(own)
        data = encode_uvarint(len(times)) + times + encode_values(column.type, values)
        pages.append((data, page_statistics(column.type, own, values)))
    return _encode_chunk(name, column.type, PLAIN_SERIES, pages, kind)


def _time_chunk(times: NDArray[np.int64], cuts: Sequence[int], kind: Compression) -> Chunk:
    parts = [times[begin:end] for begin, end in itertools.pairwise(cuts)]
    pages = [(encode_times(part), page_statistics(DataType.VECTOR, part, part)) for part in parts]
    return _encode_chunk("", DataType.VECTOR, TIME_COLUMN, pages, kind)


def _value_chunk(name: str, column: Column, rows: NDArray[np.int64], cuts: Sequence[int], kind: Compression) -> Chunk:
    """Encode a value chunk. `rows`: the times of the device, which include those of the column."""
    pages: list[_Page] = []
    first = int(np.searchsorted(column.times, rows[cuts[0]]))
    if first == len(column) or column.times[first] > rows[cuts[-1] - 1]:
        return mark_chunk(name, column.type, kind)
    for begin, end in itertools.pairwise(cuts):
        there = _mark_present(rows[begin:end], column.times[first:])
        count = int(np.count_nonzero(there))
        mine = slice(first, first + count)
        first += count
        if not count:
            pages.append((b"", Statistics(0, 0, 0)))
            continue
        head = struct.pack(">i", end - begin) + np.packbits(there).tobytes()
        marks = page_statistics(column.type, column.times[mine], column.values[mine])
        pages.append((head + encode_values(column.type, column.values[mine]), marks))
    return _encode_chunk(name, column.type, VALUE_COLUMN, pages, kind)


def _mark_present(rows: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Mark by 1 which of `rows` are among `times`, else 0. `times` begins at these rows and may reach beyond them."""
    mine = times[: len(rows)]
    if same_times(rows, mine):
        return np.ones(len(rows), np.uint8)
    if (compiled := kernels()) is not None:
        return compiled.mark_present(rows, mine)
    there = np.zeros(len(rows), np.uint8)
    there[np.searchsorted(rows, mine[: int(np.searchsorted(mine, rows[-1], "right"))])] = 1
    return there


def _all_rows(rows: NDArray[np.int64], times: NDArray[np.int64]) -> bool:
    """Whether `rows` include all `times`."""
    if (compiled := kernels()) is not None:
        return int(np.count_nonzero(compiled.mark_present(rows, times))) == len(times)
    return bool(np.isin(times, rows, assume_unique=True).all())


def _encode_chunk(name: str, data_type: DataType, column: int, pages: Sequence[_Page], kind: Compression) -> Chunk:
    several = len(pages) > 1
    compress = make_compressor(kind)
    body = b"".join(_encode_page(data, own, several, compress) for data, own in pages)
    mark = (_SEVERAL_PAGES if several else _ONE_PAGE) | column
    codes = bytes((data_type, kind, ENCODINGS[data_type]))
    head = bytes((mark,)) + encode_var_string(name) + encode_uvarint(len(body)) + codes
    return Chunk(name, data_type, column, head + body, combine_statistics(data_type, [own for _, own in pages]))


def _encode_page(data: bytes, marks: Statistics, several: bool, compress: Compressor) -> bytes:
    if not data:
        return encode_uvarint(0)
    packed = compress(data)
    return b"".join(
        (encode_uvarint(len(data)), encode_uvarint(len(packed)), encode_statistics(marks) if several else b"", packed)
    )


def _row_sizes(times: NDArray[np.int64], columns: Mapping[str, Column]) -> NDArray[np.int64] | None:
    texts = [column for column in columns.values() if column.type in BINARY_TYPES]
    if not texts:
        return None
    total = np.zeros(len(times), np.int64)
    for column in texts:
        total[np.searchsorted(times, column.times)] += _value_sizes(column)
    return total


def _value_sizes(column: Column) -> NDArray[np.int64]:
    return np.fromiter((len(value) for value in column.values), np.int64, len(column))
