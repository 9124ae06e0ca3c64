"""How the writer cuts a device into chunks and pages, and the bytes of one chunk.

A device with many rows or large values becomes several chunk groups, so that a reader never needs more than one chunk in
memory. In an aligned device time and values are cut at the same rows; a page or chunk of a column without any value
there is only its mark. Source: `ChunkWriterImpl`, `TimeChunkWriter`, `ValueChunkWriter` of the TsFile library.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.codes import BINARY_TYPES, Compression, DataType
from tidemark.tsfiles.column import Column
from tidemark.tsfiles.series import TIME_COLUMN, VALUE_COLUMN
from tidemark.tsfiles.writer_values import ENCODINGS, encode_times, encode_values, statistics, uvarint, var_string

PAGE_ROWS = 10_000
PAGE_BYTES = 1 << 20  # of values before encoding; a page has one row at least
CHUNK_PAGES = 100
CHUNK_BYTES = 64 << 20

_SEVERAL_PAGES, _ONE_PAGE = 1, 5


@dataclass(frozen=True)
class Chunk:
    """A chunk as it goes into the file. `statistics` is its serialised statistics, for the index."""

    name: str
    type: DataType
    column: int  # TIME_COLUMN, VALUE_COLUMN or 0
    data: bytes
    statistics: bytes


Compressor = Callable[[bytes], bytes]


def compressor(kind: Compression) -> Compressor:
    """The function that compresses a page; UNCOMPRESSED, SNAPPY, LZ4 and ZSTD are written."""
    if kind == Compression.UNCOMPRESSED:
        return bytes
    import pyarrow as pa

    codec = pa.Codec({Compression.SNAPPY: "snappy", Compression.LZ4: "lz4_raw", Compression.ZSTD: "zstd"}[kind])
    return lambda data: codec.compress(data, asbytes=True)


def page_cuts(rows: int, sizes: NDArray[np.int64] | None) -> list[int]:
    """Where pages begin, and at the end `rows`. `sizes` (bytes of each row) only where rows differ: texts and blobs."""
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
    """The pages of each chunk as their cuts: at most CHUNK_PAGES and about CHUNK_BYTES a chunk."""
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
    """The chunks of a series of its own (not aligned)."""
    sizes = _value_sizes(column) if column.type in BINARY_TYPES else None
    for cuts in chunk_cuts(page_cuts(len(column), sizes), sizes):
        yield _series_chunk(name, column, cuts, kind)


def row_times(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    """The rows of an aligned device: every time at which a column has a value, ascending."""
    first, *others = (column.times for column in columns.values())
    if all(other is first or np.array_equal(other, first) for other in others):
        return first
    times = np.sort(np.concatenate([first, *others]), kind="stable")  # merges what is sorted; np.unique does not
    return np.asarray(times[np.append(True, times[1:] != times[:-1])])


def aligned_chunks(times: NDArray[np.int64], columns: Mapping[str, Column], kind: Compression) -> Iterator[list[Chunk]]:
    """The chunk groups of an aligned device with rows at `times`: the time chunk, then one of every column."""
    sizes = _row_sizes(times, columns)
    everywhere = np.arange(len(times))
    places = {
        name: everywhere if len(column) == len(times) else np.searchsorted(times, column.times)
        for name, column in columns.items()
    }
    for cuts in chunk_cuts(page_cuts(len(times), sizes), sizes):
        yield [
            _time_chunk(times, cuts, kind),
            *(_value_chunk(name, column, places[name], cuts, kind) for name, column in columns.items()),
        ]


def _series_chunk(name: str, column: Column, cuts: Sequence[int], kind: Compression) -> Chunk:
    pages = []
    for begin, end in itertools.pairwise(cuts):
        times = encode_times(column.times[begin:end])
        values = encode_values(column.type, column.values[begin:end])
        marks = statistics(column.type, column.times[begin:end], column.values[begin:end])
        pages.append((uvarint(len(times)) + times + values, marks))
    whole = slice(cuts[0], cuts[-1])
    return _chunk(name, column.type, 0, pages, statistics(column.type, column.times[whole], column.values[whole]), kind)


def _time_chunk(times: NDArray[np.int64], cuts: Sequence[int], kind: Compression) -> Chunk:
    pages = [
        (encode_times(times[begin:end]), statistics(DataType.VECTOR, times[begin:end], times[:0]))
        for begin, end in itertools.pairwise(cuts)
    ]
    whole = statistics(DataType.VECTOR, times[cuts[0] : cuts[-1]], times[:0])
    return _chunk("", DataType.VECTOR, TIME_COLUMN, pages, whole, kind)


def _value_chunk(name: str, column: Column, places: NDArray[np.int64], cuts: Sequence[int], kind: Compression) -> Chunk:
    """`places[i]` is the row of the device at which value i stands."""
    bounds = np.searchsorted(places, cuts)
    pages: list[tuple[bytes, bytes]] = []
    for n, (begin, end) in enumerate(itertools.pairwise(cuts)):
        mine = slice(int(bounds[n]), int(bounds[n + 1]))
        if mine.start == mine.stop:
            pages.append((b"", b""))
            continue
        there = np.zeros(end - begin, np.uint8)
        there[places[mine] - begin] = 1
        head = struct.pack(">i", end - begin) + np.packbits(there).tobytes()
        marks = statistics(column.type, column.times[mine], column.values[mine])
        pages.append((head + encode_values(column.type, column.values[mine]), marks))
    whole = slice(int(bounds[0]), int(bounds[-1]))
    marks = statistics(column.type, column.times[whole], column.values[whole])
    if whole.start == whole.stop:
        pages = []  # a chunk without values is only its header
    return _chunk(name, column.type, VALUE_COLUMN, pages, marks, kind, several=len(cuts) > 2)


def _chunk(
    name: str,
    data_type: DataType,
    column: int,
    pages: Sequence[tuple[bytes, bytes]],
    marks: bytes,
    kind: Compression,
    several: bool | None = None,
) -> Chunk:
    """`pages`: (data, statistics), both empty for a page without values."""
    several = bool(pages) and (len(pages) > 1 if several is None else several)
    compress = compressor(kind)
    body = b"".join(_page(data, own, several, compress) for data, own in pages)
    mark = (_SEVERAL_PAGES if several else _ONE_PAGE) | column
    codes = bytes((data_type, kind, ENCODINGS[data_type]))
    return Chunk(name, data_type, column, bytes((mark,)) + var_string(name) + uvarint(len(body)) + codes + body, marks)


def _page(data: bytes, marks: bytes, several: bool, compress: Compressor) -> bytes:
    if not data:
        return uvarint(0)
    packed = compress(data)
    return uvarint(len(data)) + uvarint(len(packed)) + (marks if several else b"") + packed


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
