"""Decode the chunks of one series to points: decompress, decode, check against the statistics, select by time.

A page of a plain series holds length of times, times, values. In an aligned device times have a chunk of their own.
A page of a value column holds the number of rows, a bitmap of those that are not null (most significant bit first),
values. Source: `PageReader`, `ValuePageReader`, `TimePageReader` of the TsFile library.

Devices that flush often leave chunks of many pages with a few points each, and decoding them one by one is slow.
`decode_small_pages` decodes such a chunk at once in compiled code. It accepts only sound pages of the usual encodings.
`ChunkReader` decodes all others, and reports what is wrong and where. Every decoder is exact or absent:
`compression.can_decode` lists them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.tsfiles.decode.compression import FLOATS, INTEGERS, can_decode, decompress_page
from tidemark.tsfiles.decode.integers import (
    decode_boolean_runs,
    decode_deltas,
    decode_dictionary,
    decode_float_deltas,
    decode_float_runs,
    decode_int_runs,
    decode_zigzag,
)
from tidemark.tsfiles.decode.rare import UNSURE, confirm_by_statistics, decode_rlbe, decode_sprintz
from tidemark.tsfiles.decode.xor import decode_chimp, decode_gorilla, decode_gorilla_v1
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error
from tidemark.tsfiles.layout.chunks import ChunkHeader, Page, parse_pages, read_header
from tidemark.tsfiles.layout.series import PLAIN_SERIES, TIME_COLUMN, VALUE_COLUMN, ChunkPlace, Series, Statistics
from tidemark.tsfiles.points.codes import BINARY_TYPES, BadPageError, Compression, DataType, Encoding
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column, overlay_columns
from tidemark.tsfiles.points.kernels import PageRow, kernels

Decoder = Callable[[bytes, int], NDArray[Any]]


def decode_values(data_type: DataType, encoding: Encoding, data: bytes, count: int) -> NDArray[Any]:
    """The `count` values of a page, with the dtype of `VALUE_DTYPES`.

    Raises BadPageError if `data` does not hold exactly that many, KeyError if `compression.can_decode` is false.
    """
    return _DECODERS[data_type, encoding](data, count)


def _plain_fixed(big_endian: str, dtype: np.dtype[Any], data: bytes, count: int) -> NDArray[Any]:
    if len(data) != count * dtype.itemsize:
        raise BadPageError(f"{count} values announced in {len(data)} bytes")
    return np.frombuffer(data, big_endian).astype(dtype)


def _plain_booleans(data: bytes, count: int) -> NDArray[np.bool_]:
    if len(data) != count:
        raise BadPageError(f"{count} values announced in {len(data)} bytes")
    values: NDArray[np.bool_] = np.frombuffer(data, np.uint8) != 0
    return values


def _plain_int32(data: bytes, count: int) -> NDArray[np.int32]:
    """Decode zigzag varints, all values at once."""
    if (compiled := kernels()) is not None:
        return compiled.decode_varints(data, count)
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) != count or (count and ends[-1] != len(raw) - 1) or (not count and len(raw)):
        raise BadPageError(f"{len(ends)} values where {count} are announced")
    starts = np.concatenate([[0], ends[:-1] + 1]) if count else np.empty(0, np.int64)
    lengths = ends - starts + 1
    if count and int(lengths.max()) > 5:
        raise BadPageError("a variable-length integer does not end")
    patterns = np.zeros(count, np.uint64)
    for byte in range(int(lengths.max()) if count else 0):
        has = lengths > byte
        part = (raw[starts[has] + byte] & 0x7F).astype(np.uint64)
        patterns[has] |= part << np.uint64(7 * byte)
    low = patterns.astype(np.uint32)
    return ((low >> np.uint32(1)) ^ (np.uint32(0) - (low & np.uint32(1)))).view(np.int32)


def _plain_binary(data: bytes, count: int) -> NDArray[Any]:
    """Decode values of a varint length and bytes. Nearly all lengths have one byte, so the loop treats those first."""
    found: list[bytes] = []
    cursor = Cursor(data, "PLAIN")
    at, end = 0, len(data)
    for _ in range(count):
        if at < end and data[at] < 0x80 and data[at] & 1 == 0:
            start = at + 1
            at = start + (data[at] >> 1)
            if at > end:
                raise BadPageError(f"a value reaches {at - end} bytes beyond the page")
            found.append(data[start:at])
        else:
            cursor.position = at
            found.append(cursor.read_exactly(cursor.read_varint()))
            at = cursor.position
    if at != end:
        raise BadPageError(f"{end - at} bytes after the last value")
    values = np.empty(count, object)
    values[:] = found
    return values


def _build_decoder_table() -> dict[tuple[DataType, Encoding], Decoder]:
    table: dict[tuple[DataType, Encoding], Decoder] = {
        (DataType.BOOLEAN, Encoding.PLAIN): _plain_booleans,
        (DataType.BOOLEAN, Encoding.RLE): decode_boolean_runs,
    }
    for kind in INTEGERS:
        dtype = VALUE_DTYPES[kind]
        plain = _plain_int32 if dtype.itemsize == 4 else partial(_plain_fixed, ">i8", dtype)
        table[kind, Encoding.PLAIN] = plain
        table[kind, Encoding.RLE] = partial(decode_int_runs, dtype=dtype)
        table[kind, Encoding.TS_2DIFF] = partial(decode_deltas, dtype=dtype)
        table[kind, Encoding.ZIGZAG] = partial(decode_zigzag, dtype=dtype)
    for kind in FLOATS:
        dtype = VALUE_DTYPES[kind]
        integers = np.dtype(np.int32 if dtype.itemsize == 4 else np.int64)
        table[kind, Encoding.PLAIN] = partial(_plain_fixed, f">f{dtype.itemsize}", dtype)
        table[kind, Encoding.RLE] = partial(decode_float_runs, dtype=integers)
        table[kind, Encoding.TS_2DIFF] = partial(decode_float_deltas, dtype=integers)
        table[kind, Encoding.GORILLA_V1] = partial(decode_gorilla_v1, dtype=dtype)
    for kind in (*INTEGERS, *FLOATS):
        dtype = VALUE_DTYPES[kind]
        table[kind, Encoding.GORILLA] = partial(decode_gorilla, dtype=dtype)
        table[kind, Encoding.CHIMP] = partial(decode_chimp, dtype=dtype)
        table[kind, Encoding.RLBE] = partial(decode_rlbe, dtype=dtype)
        table[kind, Encoding.SPRINTZ] = partial(decode_sprintz, dtype=dtype)
    for kind in BINARY_TYPES:
        table[kind, Encoding.PLAIN] = _plain_binary
        table[kind, Encoding.DICTIONARY] = decode_dictionary
    return table


_DECODERS = _build_decoder_table()

Times = NDArray[np.int64]

_MOST_POINTS = 1 << 24
"""Points of one page, at most: writers end a page after some ten thousand, so more is garbage and not allocated."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of wanted times: start <= time < end, None is no bound."""

    start: int | None
    end: int | None

    def overlaps_interval(self, statistics: Statistics) -> bool:
        before = self.end is not None and statistics.start >= self.end
        after = self.start is not None and statistics.end < self.start
        return not (before or after)


class ChunkReader:
    """Reads the chunks of one file. `chunks_end` is the first byte after them. `begins_anew`: the times of a plain series
    may begin anew within a chunk."""

    def __init__(self, file: FileBytes, chunks_end: int, begins_anew: bool = False) -> None:
        self._file = file
        self._chunks_end = chunks_end
        self._begins_anew = begins_anew
        self.repeating: set[str] = set()  # labels of plain series of which a chunk that was read has a time twice

    def read_plain_chunk(self, series: Series, place: ChunkPlace, span: Span, label: str) -> Iterator[Column]:
        """Yield the points of a chunk of a plain series, a column a page, or one column for many small pages.

        Pages outside `span` are left out. A chunk whose times begin anew is one column. IoTDB 0.12 writes it where it merges
        a late file in: that file's points come first, so of points with equal times the first one is the newer."""
        header, data = self._read_chunk(series, place, label, PLAIN_SERIES)
        together = decode_small_pages(header, data, place.statistics, span.start, span.end)
        if together is not None:
            yield together
            return
        found = list(parse_pages(self._file, header, data))
        self._check_points(header, place, found, label)
        columns = []
        for page in found:
            statistics = page.statistics or place.statistics
            if page.data is None or not span.overlaps_interval(statistics):
                continue
            with _Located(self._file.path, page.offset, label):
                times, cursor = self._read_times(header, page, statistics)
                values = _decode_page_values(header, cursor.read_exactly(cursor.bytes_left()), len(times), statistics, label)
            columns.append(Column(series.type, times, values))
        yield from self._put_in_order(columns, label) if self._begins_anew else columns

    def begins_anew(self, header: ChunkHeader, data: bytes, told: Statistics) -> bool:
        """Whether the times of a plain chunk begin anew. `data`: its pages. `told`: its statistics in the index.

        False if they cannot be decoded: whoever reads the chunk is told so."""
        if decode_small_pages(header, data, told, None, None) is not None:
            return False
        try:
            with _Located(self._file.path, header.offset, header.name):
                pages = [page for page in parse_pages(self._file, header, data) if page.data is not None]
                runs = [self._read_times(header, page, page.statistics or told)[0] for page in pages]
        except CorruptionError:
            return False
        times = np.concatenate(runs) if runs else np.empty(0, np.int64)
        return bool((times[1:] <= times[:-1]).any())

    def _read_times(self, header: ChunkHeader, page: Page, statistics: Statistics) -> tuple[Times, Cursor]:
        """Decode the times of a page of a plain chunk: (times, a cursor before the values)."""
        cursor = Cursor(decompress_page(header.compression, page.data or b"", page.size), "page")
        coded = cursor.read_exactly(cursor.read_uvarint())
        return _decode_page_times(coded, Encoding.TS_2DIFF, statistics, self._begins_anew), cursor

    def _put_in_order(self, columns: list[Column], label: str) -> list[Column]:
        """Return the columns of a chunk as they are, or as one column if times begin anew in them: the earlier run wins."""
        runs = [run for column in columns if len(column) for run in _split_runs(column)]
        if all(before.times[-1] < after.times[0] for before, after in itertools.pairwise(runs)):
            return columns
        whole = overlay_columns(runs[::-1])
        if len(whole) < sum(map(len, columns)):
            self.repeating.add(label)
        return [whole]

    def read_time_chunk(self, series: Series, place: ChunkPlace, label: str) -> list[tuple[Statistics, Times]]:
        """The times of a chunk of the time column: (statistics, times) of each page."""
        header, of_data = self._read_chunk(series, place, label, TIME_COLUMN)
        of_chunk = list(parse_pages(self._file, header, of_data))
        self._check_points(header, place, of_chunk, label)
        found = []
        for page in of_chunk:
            statistics = page.statistics or place.statistics
            with _Located(self._file.path, page.offset, label):
                data = decompress_page(header.compression, page.data or b"", page.size)
                found.append((statistics, _decode_page_times(data, header.encoding, statistics)))
        return found

    def read_value_chunk(
        self, series: Series, place: ChunkPlace, times: list[tuple[Statistics, Times]], span: Span, label: str
    ) -> Iterator[Column]:
        """Yield the points of a chunk of a value column, a column a page. `times`: the result of `read_time_chunk`.

        The column of a page without nulls has the same array of times, not a copy.
        """
        header, data = self._read_chunk(series, place, label, VALUE_COLUMN)
        found = list(parse_pages(self._file, header, data))
        if len(found) not in (0, len(times)):
            raise corruption_error(
                self._file.path, f"{label} has {len(found)} pages for {len(times)} of times", header.offset
            )
        self._check_points(header, place, found, label)
        for page, (of_rows, of_page) in zip(found, times, strict=False):
            if page.data is None or not span.overlaps_interval(of_rows):
                continue
            with _Located(self._file.path, page.offset, label):
                present, coded = _read_present_rows(header, page, len(of_page))
                count = int(np.count_nonzero(present))
                statistics = page.statistics or place.statistics
                if count != statistics.count:
                    raise BadPageError(f"{count} values where the statistics say {statistics.count}")
                values = _decode_page_values(header, coded, count, statistics, label)
            yield Column(series.type, of_page if count == len(of_page) else of_page[present], values)

    def _check_points(self, header: ChunkHeader, place: ChunkPlace, found: list[Page], label: str) -> None:
        """Raise CorruptionError unless the pages of a chunk have the points and the interval that the index states.

        Otherwise a damaged page length, or a chunk that is skipped by its interval, could lose points unnoticed."""
        of_pages = [page.statistics or place.statistics for page in found if page.data is not None]
        told, within = sum([one.count for one in of_pages]), place.statistics
        if told != place.statistics.count:
            problem = f"{label}: pages of {told} points where the index says {place.statistics.count}"
            raise corruption_error(self._file.path, problem, header.offset)
        if any(one.count and (one.start < within.start or one.end > within.end) for one in of_pages):
            raise corruption_error(self._file.path, f"{label}: pages of other times than the index says", header.offset)

    def _read_chunk(self, series: Series, place: ChunkPlace, label: str, column: int) -> tuple[ChunkHeader, bytes]:
        """Read a chunk: (header, bytes of its pages). Raises if it differs from the index or cannot be decoded."""
        header = read_header(self._file, place.offset, series, self._chunks_end)
        if header.column != column:
            raise corruption_error(
                self._file.path, f"{label}: chunk and index differ on whether it is aligned", place.offset
            )
        kind = DataType.INT64 if column == TIME_COLUMN else series.type
        if not can_decode(kind, header.encoding, header.compression):
            coded = f"{kind.name} {header.encoding.name} {header.compression.name}"
            raise UnsupportedError(
                f"{self._file.path}: {label} is {coded}, which this Tidemark does not decode",
                hint="the file is kept as it came and loaded into IoTDB where one is set; its other series are read",
                subject=label,
            )
        return header, self._file.read(header.data_offset, header.data_size)


def _decode_page_times(data: bytes, encoding: Encoding, statistics: Statistics, begins_anew: bool = False) -> Times:
    """Decode the times of a page and check them against the statistics. They ascend; with `begins_anew` they may begin anew.

    A plain series does not state the encoding of its times. It is TS_2DIFF unless the site's settings said PLAIN.
    """
    if statistics.count > _MOST_POINTS:
        raise BadPageError(f"a page of {statistics.count} points")
    if encoding == Encoding.TS_2DIFF and _is_one_time(data, statistics):
        return np.array([statistics.start], np.int64)
    if encoding == Encoding.TS_2DIFF and len(data) == 8 * statistics.count:
        plain = decode_values(DataType.INT64, Encoding.PLAIN, data, statistics.count)
        if len(plain) and _has_ends(plain, statistics, begins_anew):
            encoding = Encoding.PLAIN
    times: Times = decode_values(DataType.INT64, encoding, data, statistics.count)
    if len(times) and not _has_ends(times, statistics, begins_anew):
        raise BadPageError("the times are not those of the statistics")
    before, after = times[:-1], times[1:]
    if bool((after == before if begins_anew else after <= before).any()):
        raise BadPageError("the times do not ascend")
    return times


def _has_ends(times: Times, statistics: Statistics, begins_anew: bool) -> bool:
    first, last = (times.min(), times.max()) if begins_anew else (times[0], times[-1])
    return bool(first == statistics.start and last == statistics.end)


def _split_runs(column: Column) -> list[Column]:
    """Split a column, which is not empty, where its times begin anew."""
    anew = np.flatnonzero(column.times[1:] <= column.times[:-1]) + 1
    if not len(anew):
        return [column]
    parts = zip(np.split(column.times, anew), np.split(column.values, anew), strict=True)
    return [Column(column.type, times, values) for times, values in parts]


def _is_one_time(data: bytes, statistics: Statistics) -> bool:
    """Whether `data` is TS_2DIFF of the single time of the statistics. A shortcut: late points make many such pages.

    TS_2DIFF of one value: no differences, no bits, a meaningless smallest difference, the value.
    """
    if statistics.count != 1 or statistics.start != statistics.end or len(data) != 24:
        return False
    return data[:8] == bytes(8) and data[16:] == statistics.start.to_bytes(8, "big", signed=True)


def _decode_page_values(header: ChunkHeader, coded: bytes, count: int, statistics: Statistics, label: str) -> NDArray[Any]:
    """The values of a page. Raises UnsupportedError if an UNSURE encoding gives values that contradict the statistics."""
    values = decode_values(header.type, header.encoding, coded, count)
    if header.encoding not in UNSURE or not count:
        return values
    sure = confirm_by_statistics(header.encoding, coded, values, statistics.values)
    if sure is None:
        raise UnsupportedError(
            f"{label}: {header.type.name} {header.encoding.name} decodes to other values than its statistics say",
            hint="the encoding loses values, or the site writes it in another way: the file is kept as it came",
            subject=label,
        )
    return sure


def _read_present_rows(header: ChunkHeader, page: Page, rows: int) -> tuple[NDArray[np.bool_], bytes]:
    """Read a page of a value column: (which rows are not null, its encoded values)."""
    cursor = Cursor(decompress_page(header.compression, page.data or b"", page.size), "page")
    announced = cursor.read_i32()
    if announced != rows:
        raise BadPageError(f"{announced} rows where there are {rows} times")
    bitmap = np.frombuffer(cursor.read_exactly((rows + 7) // 8), np.uint8)
    present = np.unpackbits(bitmap, count=rows).astype(np.bool_)
    return present, cursor.read_exactly(cursor.bytes_left())


class _Located:
    """A context manager that turns errors of decoding into a CorruptionError with series and byte."""

    def __init__(self, path: str, offset: int, label: str) -> None:
        self._path, self._offset, self._label = path, offset, label

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnsupportedError):
            return
        if isinstance(error, CorruptionError):
            raise corruption_error(self._path, f"{self._label}: {error.message}", self._offset) from error
        if isinstance(error, ValueError | IndexError | OverflowError | struct.error):
            raise corruption_error(self._path, f"{self._label}: {error}", self._offset) from error


_FEWEST_PAGES = 16
_MOST_POINTS_A_PAGE = 1000  # on average: for larger pages the cost of a page no longer matters
_PAGE_BYTES, _POINT_BYTES = 128, 32  # most decompressed bytes of any coding

_DELTAS_32, _DELTAS_64, _GORILLA_32, _GORILLA_64, _GORILLA_FLOAT, _GORILLA_DOUBLE = range(6)
_RUNS_32, _RUNS_64, _VARINTS, _PLAIN_8, _PLAIN_32, _PLAIN_64 = range(6, 12)
_PATTERNS = (_RUNS_32, _RUNS_64)  # decoded to unsigned 64 bit patterns

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


def decode_small_pages(
    header: ChunkHeader, data: bytes, told: Statistics, start: int | None, end: int | None
) -> Column | None:
    """Decode the pages of a plain series that may hold points with start <= time < end (None: no bound) to one column.

    `told`: the statistics of the chunk in the index. None if the chunk must be decoded page by page.
    """
    compiled, coding = kernels(), _CODINGS.get((header.type, header.encoding))
    if compiled is None or coding is None or header.one_page:
        return None
    rows = compiled.parse_pages(data, header.type)
    if (
        len(rows) < _FEWEST_PAGES
        or told.count > len(rows) * _MOST_POINTS_A_PAGE
        or rows[:, PageRow.POINTS].sum() != told.count
    ):
        return None
    if rows[:, PageRow.FIRST].min() < told.start or rows[:, PageRow.LAST].max() > told.end:
        return None
    if start is not None:
        rows = rows[rows[:, PageRow.LAST] >= start]
    if end is not None:
        rows = rows[rows[:, PageRow.FIRST] < end]
    try:
        data, rows = _decompress_pages(header.compression, data, rows)
    except BadPageError:
        return None
    dtype = VALUE_DTYPES[header.type]
    found = compiled.decode_points(data, rows, coding, np.dtype(np.uint64) if coding in _PATTERNS else dtype)
    return None if found is None else Column(header.type, found[0], _as_type(found[1], dtype))


def _decompress_pages(kind: Compression, data: bytes, rows: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Decompress pages: (their joined bytes, the rows with each page's place in them)."""
    sizes = rows[:, PageRow.PAGE_BYTES]
    if sizes.sum() > len(rows) * _PAGE_BYTES + rows[:, PageRow.POINTS].sum() * _POINT_BYTES:
        raise BadPageError("more bytes than such pages have")
    if kind is Compression.UNCOMPRESSED:
        if not np.array_equal(rows[:, PageRow.DATA_BYTES], sizes):
            raise BadPageError("a page of another size")
        return data, rows
    places = rows[:, [PageRow.DATA, PageRow.DATA_BYTES, PageRow.PAGE_BYTES]].tolist()
    joined = b"".join([decompress_page(kind, data[at : at + length], size) for at, length, size in places])
    moved = rows.copy()
    moved[:, PageRow.DATA] = np.cumsum(sizes) - sizes
    moved[:, PageRow.DATA_BYTES] = sizes
    return joined, moved


def _as_type(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert values, which may be 64 bit patterns, to a type."""
    if values.dtype == dtype:
        return values
    if dtype.kind == "b":
        return np.asarray(values != 0)
    return values.view(dtype) if dtype.itemsize == 8 else values.astype(np.uint32).view(dtype)
