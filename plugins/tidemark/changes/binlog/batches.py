"""Decode the rows of events on one table column by column, into Arrow arrays.

Events of one row each are given in their hundreds: what a batch costs, it costs once.
A walk (`walk_events`) finds where each value lies; then whole columns are loaded. Both are compiled if there is a C
compiler (`kernels.c`), and the same in numpy and Python. Values are loaded in the form in which they are stored, which
loses nothing (`decode_batches`), or decimals, dates and times as text (`Walked.print_column`). As they are stored:

    integers, FLOAT, DOUBLE   the Arrow type of their width
    DECIMAL                   decimal128, with more than 38 digits decimal256
    text in UTF-8, or ASCII   string; binary if a value is not valid
    other text, BLOB, JSON    binary: as stored, JSON in MySQL's binary form
    GEOMETRY, VECTOR, BINARY  binary, BINARY without the zeros at its end
    all else                  uint64: the stored bytes as a number. Times of MySQL 5.6 and later order as their numbers do.
                              TIME of before is int64

Partial updates are not decoded here: `rows.decode_rows` does. The module has more than 400 lines because each of its
compiled functions stands beside the one in numpy that says the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.changes.binlog.charsets import find_codec
from tidemark.changes.binlog.layout import HEADER_BYTES
from tidemark.changes.binlog.rows import Change, RowKey, Rows, check_described
from tidemark.changes.binlog.scalars import decimal_groups, decimal_size, fraction_size, read_decimal
from tidemark.changes.binlog.tables import INTEGERS, Column, T, Table
from tidemark.changes.binlog.values import ABSENT, Value, length_size, table_readers, value_reader
from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.native import load_library

_MOST = 1 << 13
"""Rows of a batch."""
PACKET_BYTES = 5
"""Before an event that a server sends: the head of its packet, and that it is an event."""


class Layout(NamedTuple):
    """How a column is stored: `prefix` bytes of length before it, or `size` bytes, as a number high or low byte first."""

    prefix: int
    size: int
    is_big: bool = False


def find_layout(column: Column) -> Layout:
    kind = column.type
    if kind in INTEGERS:
        return Layout(0, INTEGERS[kind])
    if kind in _TIMES:
        return Layout(0, _TIMES[kind] + fraction_size(column.size), is_big=True)
    if kind == T.NEWDECIMAL:
        return Layout(0, decimal_size(column.size, column.scale), is_big=True)
    if kind == T.BIT:
        return Layout(0, (column.size + 7) // 8, is_big=True)
    if kind in _FIXED:
        return Layout(0, _FIXED[kind])
    if kind in (T.ENUM, T.SET, T.FLOAT, T.DOUBLE):
        return Layout(0, column.size)
    return Layout(length_size(column), 0)


_TIMES = {T.TIMESTAMP2: 4, T.DATETIME2: 5, T.TIME2: 3}
_FIXED = {T.YEAR: 1, T.DATE: 3, T.NEWDATE: 3, T.TIME: 3, T.DATETIME: 8, T.TIMESTAMP: 4}


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table. `before` and `after`: an array for each column that the images have, by position.

    `events` says for each row which of the given events has it.
    """

    table: Table
    events: NDArray[np.int64]
    before: Mapping[int, pa.Array] | None
    after: Mapping[int, pa.Array] | None

    def changes(self) -> Iterator[Change]:
        """The same as `rows.decode_rows`."""
        befores, afters = self._images(self.before), self._images(self.after)
        for number in range(len(self.events)):
            yield None if befores is None else befores[number], None if afters is None else afters[number]

    def _images(self, arrays: Mapping[int, pa.Array] | None) -> list[tuple[Value, ...]] | None:
        if arrays is None:
            return None
        absent: list[Value] = [ABSENT] * len(self.events)
        columns = [absent] * len(self.table.columns)
        readers = table_readers(self.table)
        for index, array in arrays.items():
            column, read = self.table.columns[index], readers[index]
            columns[index] = [
                None if stored is None else read(_store(column, stored), 0)[0] for stored in _stored_values(column, array)
            ]
        return list(zip(*columns, strict=True))


def _stored_values(column: Column, array: pa.Array) -> list[Any]:
    if pa.types.is_string(array.type):
        array = array.cast(pa.binary())
    return array.to_pylist()  # type: ignore[no-any-return]


def _store(column: Column, value: Any) -> bytes:
    """The bytes of a value as a row image has them."""
    layout = find_layout(column)
    if layout.prefix:
        return len(value).to_bytes(layout.prefix, "little") + bytes(value)
    if column.type in (T.FLOAT, T.DOUBLE):
        return np.array(value, f"<f{layout.size}").tobytes()
    if column.type == T.NEWDECIMAL:
        return _store_decimal(value, column)
    if isinstance(value, int) and value < 0:
        return value.to_bytes(layout.size, "little", signed=True)
    return int(value).to_bytes(layout.size, "big" if layout.is_big else "little")


def _store_decimal(value: Any, column: Column) -> bytes:
    digits = "".join(map(str, value.as_tuple().digits)).rjust(column.size, "0")
    stored, at = b"", 0
    for width in decimal_groups(column.size, column.scale):
        stored += int(digits[at : at + width]).to_bytes(decimal_size(width, 0), "big")
        at += width
    mask = 0xFF if value < 0 else 0
    return bytes([stored[0] ^ 0x80 ^ mask, *(byte ^ mask for byte in stored[1:])])


def decode_batches(events: Sequence[Rows], *, raw: bool = False) -> Iterator[Batch]:
    """The rows of events with one table, operation and set of columns, some ten thousand at a time.

    Errors as `rows.decode_rows`.
    """
    yield from _load_batches(events[0], walk_events(events, raw=raw))


def decode_stretches(
    key: RowKey, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], *, raw: bool = False
) -> Iterator[Batch]:
    """The same of events whose rows are data[begins[e]:ends[e]]."""
    yield from _load_batches(key, walk_stretches(key, data, begins, ends, raw=raw))


def _load_batches(one: Rows | RowKey, walks: Iterable[Walked]) -> Iterator[Batch]:
    for walked in walks:
        arrays = iter([walked.load_column(number) for number in range(len(walked.columns))])
        before, after = [
            None if image is None else {index: next(arrays) for index in image} for image in (one.before, one.after)
        ]
        yield Batch(one.table, walked.events, before, after)


@dataclass(frozen=True, slots=True)
class Walked:
    """Where the values of rows are, for the columns of all images of a row: those before, then those after.

    `starts`, `lengths`: arrays of (column, row), a length of -1 is NULL. `events` says for each row which of the given
    events has it.
    """

    data: bytes
    columns: Sequence[Column]
    layouts: Sequence[Layout]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    events: NDArray[np.int64]

    def load_column(self, number: int) -> pa.Array:
        """The values in the form in which they are stored."""
        return _load(self.data, self.columns[number], self.layouts[number], self.starts[number], self.lengths[number])

    def load_numbers(self, number: int) -> NDArray[Any]:
        """The values of a column that is stored as numbers, in the type of their width; 0 for NULL."""
        column, layout = self.columns[number], self.layouts[number]
        return _load_typed(self.data, column, layout, self.starts[number], self.lengths[number])

    def print_column(self, number: int) -> pa.Array | None:
        """Decimals, dates and times as text, as `scalars` has it; None for other columns, and without a C compiler."""
        return _print(self.data, self.columns[number], self.starts[number], self.lengths[number])

    def read_column(self, number: int) -> list[Value]:
        """The values one by one, as `values` has them."""
        prefix, read = self.layouts[number].prefix, value_reader(self.columns[number])
        places = zip(self.starts[number].tolist(), self.lengths[number].tolist(), strict=True)
        return [None if length < 0 else read(self.data, start - prefix)[0] for start, length in places]


class Scanned(NamedTuple):
    """Plain transactions at the beginning of events, as `tm_scan` has them: arrays of numbers, a line each."""

    transactions: NDArray[np.int64]
    rows: NDArray[np.int64]
    tables: NDArray[np.int64]
    keys: NDArray[np.int64]


_MOST_TABLES, _MOST_KEYS = 64, 128


def split_block(data: bytes, *, packets_from: int | None = None, at: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the events at the beginning of `data` begin and end, as `tm_split` finds them; `packets_from`: the number of the
    first packet, if they are in packets. None without a C compiler: whoever asks reads event by event then."""
    library = kernels()
    frame = 0 if packets_from is None else PACKET_BYTES
    most = len(data) // (HEADER_BYTES + frame) if library else 0
    begins, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    if library is None:
        return begins, ends
    count = library.tm_split(data, len(data), frame, packets_from or 0, at, most, begins.ctypes.data, ends.ctypes.data)
    return begins[:count].copy(), ends[:count].copy()


def scan_events(data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], checksum: int, most: int) -> Scanned | None:
    """The plain transactions of less than `most` bytes at the beginning of events that stand in `data`. None without a C
    compiler: whoever asks decodes event by event then."""
    library = kernels()
    if library is None:
        return None
    begins, ends = (np.ascontiguousarray(each, np.int64) for each in (begins, ends))  # as C reads them
    count = len(begins)
    shapes = ((count, 9), (count, 4), (_MOST_TABLES, 2), (_MOST_KEYS, 5), (2,))
    out = [np.empty(shape, np.int64) for shape in shapes]
    found = library.tm_scan(
        *(data, begins.ctypes.data, ends.ctypes.data, count, checksum, most), *(array.ctypes.data for array in out)
    )
    transactions, rows, tables, keys, counts = out
    events = int(transactions[found - 1, 2]) if found else 0
    return Scanned(transactions[:found], rows[:events], tables[: counts[0]], keys[: counts[1]])


def walk_events(events: Sequence[Rows], *, raw: bool = False) -> Iterator[Walked]:
    """Where the values in events with one table, operation and set of columns are. Errors as `rows.decode_rows`."""
    first = events[0]
    if first.is_partial:
        raise UnsupportedError("a partial update is not decoded by column")
    shapes = {(rows.table, rows.operation, rows.before, rows.after) for rows in events}
    if len(shapes) > 1:
        raise ValueError("events of several tables or operations in one batch")
    data = first.data if len(events) == 1 else b"".join([rows.data for rows in events])
    ends = np.cumsum([len(rows.data) for rows in events])
    begins = np.zeros(len(events), np.int64)
    begins[1:] = ends[:-1]
    return walk_stretches(first, data, begins, ends, raw=raw)


def walk_stretches(
    one: Rows | RowKey, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], *, raw: bool = False
) -> Iterator[Walked]:
    """Where the values are in events whose rows are data[begins[e]:ends[e]]. All are on the table and columns of `one`."""
    check_described(one, raw=raw)
    plan = _plan_columns(one.table, one.before, one.after)
    begins, ends = (np.ascontiguousarray(each, np.int64) for each in (begins, ends))  # as C reads them
    place = np.array([0, begins[0]], np.uint64)
    left = int((ends - begins).sum())
    while place[0] < len(begins):
        found = _walk(data, begins, ends, place, plan, left)
        if len(found.owners):
            yield Walked(
                *(data, plan.columns, plan.layouts),
                *(found.starts[:, : len(found.owners)], found.lengths[:, : len(found.owners)], found.owners),
            )


class _Plan(NamedTuple):
    """The columns of all images of a row, and how they are stored, also as the compiled walk takes it."""

    columns: list[Column]
    layouts: list[Layout]
    widths: NDArray[np.uint32]
    prefixes: NDArray[np.uint8]
    sizes: NDArray[np.uint8]


@lru_cache(maxsize=64)
def _plan_columns(table: Table, before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> _Plan:
    table_readers(table)  # refuses columns that cannot be
    images = [image for image in (before, after) if image is not None]
    columns = [table.columns[index] for image in images for index in image]
    layouts = [find_layout(column) for column in columns]
    return _Plan(
        columns,
        layouts,
        np.array([len(image) for image in images], np.uint32),
        np.array([layout.prefix for layout in layouts], np.uint8),
        np.array([layout.size for layout in layouts], np.uint8),
    )


class _Found(NamedTuple):
    """Where the values of rows are: arrays of (column, row), a length of -1 is NULL. And which event has each row."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    owners: NDArray[np.int64]


def _walk(
    data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], place: NDArray[np.uint64], plan: _Plan, left: int
) -> _Found:
    """The rows from `place` on, event and byte, which goes on. `left`: no more bytes than these are there."""
    smallest = int(((plan.widths + 7) // 8).sum())
    most = min(_MOST, left // smallest + 1, max(1, (1 << 20) // len(plan.layouts)))
    starts = np.empty((len(plan.layouts), most), np.int64)
    lengths = np.empty((len(plan.layouts), most), np.int64)
    owners = np.empty(most, np.int64)
    if (library := kernels()) is None:
        count = _walk_in_python(data, begins, ends, place, plan, _Found(starts, lengths, owners))
    else:
        count = library.tm_walk(
            *(data, begins.ctypes.data, ends.ctypes.data, len(begins), place.ctypes.data),
            *(plan.widths.ctypes.data, len(plan.widths), plan.prefixes.ctypes.data, plan.sizes.ctypes.data),
            *(most, starts.ctypes.data, lengths.ctypes.data, owners.ctypes.data),
        )
    if count < 0:
        raise CorruptionError("a row event ends inside a row")
    return _Found(starts, lengths, owners[:count])


def _walk_in_python(
    data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], place: NDArray[np.uint64], plan: _Plan, out: _Found
) -> int:
    """The number of rows, -1 if one is cut short."""
    row, (width, most) = 0, out.starts.shape
    found, sizes = np.zeros((most, width), np.int64), np.full((most, width), -1, np.int64)
    columns = iter(enumerate(plan.layouts))
    images = [((count + 7) // 8, list(islice(columns, count))) for count in plan.widths.tolist()]
    event, at = map(int, place)
    while event < len(begins) and row < most:
        size = int(ends[event])
        while row < most and at < size:
            begin, length = [0] * width, [-1] * width
            for bytes_of_nulls, stored in images:
                nulls = int.from_bytes(data[at : at + bytes_of_nulls], "little")
                at += bytes_of_nulls
                for column, (prefix, fixed, _) in stored:
                    if not nulls & 1:
                        bytes_of_value = int.from_bytes(data[at : at + prefix], "little") if prefix else fixed
                        at += prefix
                        begin[column], length[column] = at, bytes_of_value
                        at += bytes_of_value
                    nulls >>= 1
            if at > size:
                return -1
            found[row], sizes[row], out.owners[row] = begin, length, event
            row += 1
        if at == size:
            event += 1
            at = int(begins[event]) if event < len(begins) else 0
    place[:] = event, at
    out.starts[:], out.lengths[:] = found.T, sizes.T
    return row


def _load(data: bytes, column: Column, layout: Layout, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    if layout.prefix:
        return _load_sized(data, column, starts, lengths)
    if column.type == T.NEWDECIMAL:
        return _load_decimals(data, column, starts, lengths)
    values = _load_typed(data, column, layout, starts, lengths)
    return make_array(pa.from_numpy_dtype(values.dtype), lengths, values)


def _load_typed(
    data: bytes, column: Column, layout: Layout, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    numbers = _load_numbers(data, layout, starts, lengths)
    _check_labels(column, numbers)
    return _give_type(column, layout, numbers)


def _load_numbers(data: bytes, layout: Layout, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    out = np.zeros(len(starts), np.uint64)
    if (library := kernels()) is not None:
        places = (starts.ctypes.data, lengths.ctypes.data, len(starts))
        library.tm_load(data, *places, layout.size, layout.is_big, out.ctypes.data)
        return out
    there = lengths >= 0
    octets = np.frombuffer(data, np.uint8)[starts[there, None] + np.arange(layout.size)]
    padded = np.zeros((len(octets), 8), np.uint8)
    padded[:, : layout.size] = octets[:, ::-1] if layout.is_big else octets
    out[there] = padded.view("<u8")[:, 0]
    return out


def _check_labels(column: Column, numbers: NDArray[np.uint64]) -> None:
    if column.labels is None:
        return
    highest = len(column.labels) if column.type == T.ENUM else (1 << len(column.labels)) - 1
    if column.type in (T.ENUM, T.SET) and len(numbers) and int(numbers.max()) > highest:
        raise CorruptionError(f"{int(numbers.max())} in a column of {len(column.labels)} labels")


def _give_type(column: Column, layout: Layout, numbers: NDArray[np.uint64]) -> NDArray[Any]:
    if column.type in (T.FLOAT, T.DOUBLE):
        return numbers.astype(f"u{layout.size}").view(f"f{layout.size}")
    if column.type not in INTEGERS:
        return numbers if column.type != T.TIME else _sign(numbers, 3).view(np.int64)
    width = 4 if layout.size == 3 else layout.size
    if column.is_unsigned:
        return numbers.astype(f"u{width}")
    return _sign(numbers, layout.size).astype(f"u{width}").view(f"i{width}")


def _sign(numbers: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Extend the sign of numbers of `size` bytes, in two's complement."""
    sign = np.uint64(1 << (8 * size - 1))
    with np.errstate(over="ignore"):
        return (numbers ^ sign) - sign


def gather_bytes(data: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    """Stretches of `data`, a length of -1 is null. Each must be inside."""
    sizes = np.maximum(lengths, 0)
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    if (library := kernels()) is not None:
        library.tm_gather(data, starts.ctypes.data, lengths.ctypes.data, len(starts), out.ctypes.data)
    else:
        within = np.arange(len(out)) - np.repeat(offsets[:-1].astype(np.int64), sizes)
        out[:] = np.frombuffer(data, np.uint8)[np.repeat(starts, sizes) + within]
    return make_array(pa.binary(), lengths, offsets, out)


def _load_sized(data: bytes, column: Column, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    array = gather_bytes(data, starts, lengths)
    if column.collation is None or column.type not in _PLAIN_TEXTS or not _is_plain(find_codec(column.collation), array):
        return array
    return as_text(array) or array


def as_text(array: pa.Array) -> pa.Array | None:
    """Bytes as text; None where some are no UTF-8. Not by a cast: the module that casts is dear to import."""
    text = pa.Array.from_buffers(pa.string(), len(array), array.buffers())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return text


def _is_plain(codec: str | None, array: pa.Array) -> bool:
    """The text may be UTF-8 as it is stored."""
    if codec not in ("ascii", "latin1"):
        return codec == "utf_8"
    return not (np.frombuffer(array.buffers()[2], np.uint8) > 127).any()


_PLAIN_TEXTS = (T.VARCHAR, T.STRING, T.VAR_STRING, T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB)


def _load_decimals(data: bytes, column: Column, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array:
    kind, limbs = (pa.decimal128, 2) if column.size <= 38 else (pa.decimal256, 4)
    out = np.zeros((len(starts), limbs), np.uint64)
    if (library := kernels()) is not None:
        digits = np.array(decimal_groups(column.size, column.scale), np.uint8)
        places = (starts.ctypes.data, lengths.ctypes.data, len(starts))
        if library.tm_decimals(data, *places, digits.ctypes.data, len(digits), limbs, out.ctypes.data) < 0:
            raise CorruptionError(f"a DECIMAL({column.size},{column.scale}) has a group of too many digits")
    else:
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            if length >= 0:
                text = read_decimal(data[start : start + length], column.size, column.scale)
                number = int(text.replace(".", "")) & ((1 << 64 * limbs) - 1)
                out[row] = np.frombuffer(number.to_bytes(8 * limbs, "little"), np.uint64)
    return make_array(kind(column.size, column.scale), lengths, out)


def make_array(kind: pa.DataType, lengths: NDArray[np.int64], *buffers: NDArray[Any]) -> pa.Array:
    """An array of its buffers, null where a length is -1. `pa.array` would import pandas, which takes longer than a capture
    of some changes."""
    nulls = lengths < 0
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if nulls.any() else None
    return pa.Array.from_buffers(kind, len(lengths), [valid, *map(pa.py_buffer, buffers)])


_PRINTED = {T.DATE: 0, T.NEWDATE: 0, T.TIMESTAMP2: 1, T.DATETIME2: 2, T.TIME2: 3}
"""As `tm_print_times` numbers them."""
_TIME_BYTES, _DECIMAL_BYTES = 32, 70  # of the longest text


def _print(data: bytes, column: Column, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> pa.Array | None:
    library = kernels()
    if library is None or (column.type not in _PRINTED and column.type != T.NEWDECIMAL):
        return None
    offsets = np.empty(len(starts) + 1, np.int32)
    places = (starts.ctypes.data, lengths.ctypes.data, len(starts))
    if column.type == T.NEWDECIMAL:
        out = np.empty(len(starts) * _DECIMAL_BYTES, np.uint8)
        digits = np.array(decimal_groups(column.size, column.scale), np.uint8)
        groups = (digits.ctypes.data, len(digits), column.scale)
        if library.tm_print_decimals(data, *places, *groups, out.ctypes.data, offsets.ctypes.data) < 0:
            raise CorruptionError(f"a DECIMAL({column.size},{column.scale}) has a group of too many digits")
    else:
        out = np.empty(len(starts) * _TIME_BYTES, np.uint8)
        digits_of_second = column.size if column.type not in (T.DATE, T.NEWDATE) else 0
        library.tm_print_times(data, *places, _PRINTED[column.type], digits_of_second, out.ctypes.data, offsets.ctypes.data)
    return make_array(pa.string(), lengths, offsets, out[: offsets[-1]].copy())


@lru_cache(maxsize=1)
def kernels() -> ctypes.CDLL | None:
    """The compiled functions, None without a C compiler."""
    library = load_library("tidemark.changes.binlog", "kernels.c")
    if library is None:
        return None
    pointer, u64, u32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    places = (ctypes.c_char_p, pointer, pointer, u64)
    walk = (ctypes.c_char_p, pointer, pointer, u64, pointer, pointer, u32, pointer, pointer, u64, pointer, pointer, pointer)
    library.tm_walk.argtypes, library.tm_walk.restype = walk, ctypes.c_int64
    answer = (ctypes.c_char_p, u64, u32, u64, pointer, pointer, pointer)
    library.tm_walk_answer.argtypes, library.tm_walk_answer.restype = answer, ctypes.c_int64
    library.tm_load.argtypes, library.tm_load.restype = (*places, u32, u32, pointer), None
    library.tm_gather.argtypes, library.tm_gather.restype = (*places, pointer), None
    library.tm_decimals.argtypes = (*places, pointer, u32, u32, pointer)
    library.tm_decimals.restype = ctypes.c_int64
    library.tm_split.argtypes = (ctypes.c_char_p, u64, u32, u32, u64, u64, pointer, pointer)
    library.tm_split.restype = ctypes.c_int64
    found = (pointer, pointer, pointer, pointer, pointer)
    library.tm_scan.argtypes = (ctypes.c_char_p, pointer, pointer, u64, u32, ctypes.c_int64, *found)
    library.tm_scan.restype = ctypes.c_int64
    library.tm_print_times.argtypes, library.tm_print_times.restype = (*places, u32, u32, pointer, pointer), None
    library.tm_print_decimals.argtypes = (*places, pointer, u32, u32, pointer, pointer)
    library.tm_print_decimals.restype = ctypes.c_int64
    return library
