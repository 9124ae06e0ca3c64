"""Convert points to Arrow arrays, and rows of Arrow tables to devices and columns; join rows of devices to batches.

`devices_of` gives the devices and columns that a TsFile is written from. `arrow_array` gives the columns that a scan
returns to Spark, pandas or a Parquet file: exact, or an error. `concatenate_parts` joins devices. Of thousands of columns
a device mostly has a few, and only those are converted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.errors import CorruptionError, UsageError
from tidemark.tsfiles.devices import file_device, split_nodes, tree_device
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.points import column as points_column
from tidemark.tsfiles.points.codes import BINARY_TYPES, DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.spark.options import WriteOptions, written_name
from tidemark.tsfiles.times import PER_SECOND
from tidemark.tsfiles.write.writer import device_order, tree_segments

Names = tuple[str | None, ...]


def devices_of(rows: pa.Table, options: WriteOptions) -> Iterator[tuple[Segments, dict[str, Column]]]:
    """Yield the devices of some rows in the order of a TsFile, each with its points. Nulls are no points.

    Raises UsageError for a null time or device, a device outside `root`, two rows of one device and time, and a date or
    time that the file's unit cannot hold.
    """
    rows = rows.rename_columns([written_name(name, options.table) for name in rows.column_names])
    times = _convert_times(rows.column("time"), options.unit, "time")
    names, groups = _group_rows(rows, options)
    order = np.lexsort((times, groups))
    ordered = not bool((order[1:] < order[:-1]).any())
    times, groups = (times, groups) if ordered else (times[order], groups[order])
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    _refuse_duplicates(times, groups, names)
    columns = {name: _column_values(rows.column(name), kind, options.unit, name) for name, kind in options.fields.items()}
    if not ordered:
        columns = {name: (values[order], there[order]) for name, (values, there) in columns.items()}
    for begin, end in itertools.pairwise([0, *cuts.tolist(), len(times)]):
        mine = slice(begin, end)
        found = {}
        for name, (values, there) in columns.items():
            column = Column(options.fields[name], times[mine], values[mine]).select_where(there[mine])
            if len(column):
                found[name] = column
        if found:
            yield names[int(groups[begin])], found


def _group_rows(rows: pa.Table, options: WriteOptions) -> tuple[list[Segments], NDArray[np.int64]]:
    """(devices in the file's order, index of each row's device)."""
    codes = np.zeros(len(rows), np.int64)
    if options.table and not options.tags:
        return [(options.table,)], codes
    keys = [rows.column(name).combine_chunks().dictionary_encode() for name in options.tags or ("device",)]
    if not options.table and keys[0].null_count:
        raise UsageError("a row has no device", subject="device")
    found: list[Names] = [()]
    waiting: list[Sequence[str | None]] = []  # values of keys that are in `codes` and not in `found` yet
    for key in keys:
        known = [*key.dictionary.to_pylist(), None]
        mine = np.asarray(pc.fill_null(key.indices, len(known) - 1).to_numpy(zero_copy_only=False), np.int64)
        if len(found) * math.prod(map(len, [*waiting, known])) >= 1 << 63:  # the next code would overflow
            found, codes = _distinguish_names(found, waiting, codes)
            waiting = []
        codes = codes * len(known) + mine
        waiting.append(known)
    found, codes = _distinguish_names(found, waiting, codes)
    devices = [_parse_segments(names, options) for names in found]
    ordered = sorted(set(devices), key=device_order)  # a device may have two spellings
    places = {device: place for place, device in enumerate(ordered)}
    return ordered, np.array([places[device] for device in devices], np.int64)[codes]


def _distinguish_names(
    found: Sequence[Names], waiting: Sequence[Sequence[str | None]], codes: NDArray[np.int64]
) -> tuple[list[Names], NDArray[np.int64]]:
    """Decode `codes`: (distinct names: one of `found` plus one of each of `waiting`, index of each row's name)."""
    present, inverse = np.unique(codes, return_inverse=True)
    names = []
    for code in present.tolist():
        parts = []
        for known in reversed(waiting):
            code, place = divmod(code, len(known))  # noqa: PLW2901
            parts.append(known[place])
        names.append((*found[code], *reversed(parts)))
    return names, np.asarray(inverse, np.int64)


def _parse_segments(names: Names, options: WriteOptions) -> Segments:
    parts = list(names)
    if not options.table:
        device = parts[0] or ""
        nodes = split_nodes(device)
        if nodes[0] != "root" or len(nodes) < 2 or not all(nodes):
            message = f"{device!r} is no device of the tree model: root.database.device"
            raise UsageError(message, hint='for a table: .option("table", …)', subject=device)
        return tree_segments(tree_device((device,)))
    while parts and parts[-1] is None:  # files leave null tags at the end out
        parts.pop()
    return (options.table, *parts)


def _refuse_duplicates(times: NDArray[np.int64], groups: NDArray[np.int64], names: Sequence[Segments]) -> None:
    twice = np.flatnonzero((times[1:] == times[:-1]) & (groups[1:] == groups[:-1]))
    if len(twice):
        device = file_device(names[int(groups[twice[0]])])
        message = f"two rows of {device} have the time {int(times[twice[0]])}"
        raise UsageError(
            message, hint="dropDuplicates, or merge them first: which one wins is not ours to say", subject=device
        )


def _column_values(
    column: pa.ChunkedArray, kind: DataType, unit: str, name: str
) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """(values with an arbitrary value in place of nulls, bool[n]: which are not null)."""
    there = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if kind in BINARY_TYPES:
        return np.asarray(column.cast(pa.binary()).to_numpy(zero_copy_only=False), object), there
    if kind == DataType.TIMESTAMP:
        return _convert_times(column, unit, name, nulls=True), there
    if kind == DataType.DATE:
        return _convert_dates(column, name), there
    if column.null_count:
        column = column.fill_null(pa.scalar(0).cast(column.type))
    return np.asarray(column.to_numpy(zero_copy_only=False), VALUE_DTYPES[kind]), there


def _convert_times(column: pa.ChunkedArray, unit: str, name: str, nulls: bool = False) -> NDArray[np.int64]:
    """Convert times: numbers stay, instants get the file's unit. Raises UsageError for finer ones and, by default, nulls."""
    if column.null_count:
        if not nulls:
            raise UsageError(f"a row has no {name}", subject=name)
        column = column.fill_null(pa.scalar(0).cast(column.type))
    if not pa.types.is_timestamp(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    micros = np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy(), np.int64)
    if unit == "ns":
        if len(micros) and max(abs(int(micros.min())), abs(int(micros.max()))) > np.iinfo(np.int64).max // 1000:
            raise UsageError(f"{name}: an instant lies beyond what nanoseconds can count", subject=name)
        return micros * 1000
    factor = 1_000_000 // PER_SECOND[unit]
    if bool((micros % factor).any()):
        message = f"{name}: an instant is finer than a {unit}"
        raise UsageError(message, hint='.option("timeUnit", "us"), or date_trunc it', subject=name)
    return micros // factor


def _convert_dates(column: pa.ChunkedArray, name: str) -> NDArray[np.int32]:
    """Convert dates to yyyymmdd. Raises UsageError outside the years 1000 to 9999, as IoTDB has them."""
    days = np.asarray(column.cast(pa.int32()).fill_null(0).to_numpy(), np.int64).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    number = months.astype(np.int64)
    year = number // 12 + 1970
    if len(year) and not 1000 <= int(year.min()) <= int(year.max()) <= 9999:
        raise UsageError(f"{name}: a date outside of the years 1000 to 9999", subject=name)
    written = year * 10_000 + (number % 12 + 1) * 100 + (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    return np.asarray(written.astype(np.int32))


ARROW_TYPES: dict[DataType, pa.DataType] = {
    DataType.BOOLEAN: pa.bool_(),
    DataType.INT32: pa.int32(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT: pa.float32(),
    DataType.DOUBLE: pa.float64(),
    DataType.TEXT: pa.string(),
    DataType.TIMESTAMP: pa.int64(),
    DataType.DATE: pa.date32(),
    DataType.BLOB: pa.binary(),
    DataType.STRING: pa.string(),
}
"""What a column of each type becomes where times stay numbers."""

INSTANT = pa.timestamp("us", tz="UTC")
_MICROS = {"ms": 1000, "us": 1}
_WIDEST = np.iinfo(np.int64).max // 1000


def arrow_type(kind: DataType | None, unit: str) -> pa.DataType:
    """The Arrow type of a column; None is canonical text. With a `unit` (ms, us, ns) times are instants, else numbers."""
    if kind is None:
        return pa.string()
    return INSTANT if unit and kind == DataType.TIMESTAMP else ARROW_TYPES[kind]


def as_type(column: Column, kind: DataType | None) -> Column:
    """Convert a column to a wider type, or for None to canonical text."""
    if column.type == kind:
        return column
    if kind is None:
        texts = np.empty(len(column), object)
        texts[:] = [
            text.encode("utf-8", "surrogatepass") for text in points_column.format_values(column.type, column.values)
        ]
        return Column(DataType.STRING, column.times, texts)
    if kind in BINARY_TYPES:
        return Column(kind, column.times, column.values)
    return Column(kind, column.times, column.values.astype(VALUE_DTYPES[kind]))


def arrow_array(column: Column, rows: NDArray[np.int64], unit: str) -> pa.Array:
    """A value or null for each of `rows` (ascending times, which include the column's times)."""
    values = _arrow_values(column, unit)
    if len(rows) == len(column):
        return values
    if not len(column):
        return pa.nulls(len(rows), values.type)
    places = np.searchsorted(rows, column.times)
    missing = np.ones(len(rows), np.bool_)
    missing[places] = False
    take = np.zeros(len(rows), np.int64)
    take[places] = np.arange(len(column))
    return values.take(pa.array(take, mask=missing))


def arrow_times(times: NDArray[np.int64], unit: str) -> pa.Array:
    """Convert times of a file to numbers (no unit) or to instants in UTC. ns are rounded down to microseconds."""
    if not unit:
        return pa.array(times)
    if unit == "ns":
        return pa.array(np.floor_divide(times, 1000)).cast(INSTANT)
    factor = _MICROS[unit]
    if factor > 1 and len(times) and max(abs(int(times.min())), abs(int(times.max()))) > _WIDEST:
        raise CorruptionError("a time lies beyond what an instant can be: read without timeUnit", subject="timeUnit")
    return pa.array(times * factor).cast(INSTANT)


def _arrow_values(column: Column, unit: str) -> pa.Array:
    match column.type:
        case DataType.TEXT | DataType.STRING:
            return _arrow_texts(column.values)
        case DataType.BLOB:
            return pa.array(column.values, pa.binary())
        case DataType.DATE:
            return pa.array(_days_of_dates(column.values), pa.int32()).cast(pa.date32())
        case DataType.TIMESTAMP:
            return arrow_times(column.values, unit)
    return pa.array(column.values, ARROW_TYPES[column.type])


def _arrow_texts(values: NDArray[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are no UTF-8: canonical text escapes them
        return pa.array(points_column.format_values(DataType.TEXT, values), pa.string())


def _days_of_dates(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Days since 1970 of dates that are written yyyymmdd."""
    year, month, day = values // 10_000, values // 100 % 100, values % 100
    sound = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1)
    months = (year.astype(np.int64) - 1970) * 12 + month - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]")
    days = first + (day.astype(np.int64) - 1)
    if not bool((sound & (days.astype("datetime64[M]").astype(np.int64) == months)).all()):
        wrong = (
            values[~sound][:1] if not bool(sound.all()) else values[days.astype("datetime64[M]").astype(np.int64) != months]
        )
        raise CorruptionError(f"{int(wrong[0])} is not a date", subject="DATE")
    return np.asarray(days.astype(np.int64).astype(np.int32))


MOST_BYTES = 1 << 30
"""Of the parts that go together, or one: a column of texts holds less than 2 GiB."""

_CELLS = 1 << 24


@dataclass(frozen=True)
class Part:
    """Some rows of one device. Missing columns are null."""

    rows: int
    columns: Mapping[str, pa.Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values())

    def slice_rows(self, start: int, rows: int) -> Part:
        """At most `rows` rows from `start` on, without a copy."""
        return Part(min(rows, self.rows - start), {name: array.slice(start, rows) for name, array in self.columns.items()})


def rows_at_once(columns: int, most: int) -> int:
    """The most rows of a batch: `most`, or fewer for very many columns, since nulls use memory too."""
    return max(1, min(most, _CELLS // columns))


def concatenate_parts(parts: Sequence[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate the rows of all parts. A single part is not copied."""
    pieces: dict[str, list[pa.Array]] = {name: [] for name in schema.names}
    told = dict.fromkeys(schema.names, 0)
    rows = 0
    for part in parts:
        for name, array in part.columns.items():
            if told[name] < rows:
                pieces[name].append(pa.nulls(rows - told[name], array.type))
            pieces[name].append(array)
            told[name] = rows + part.rows
        rows += part.rows
    arrays = []
    for field in schema:
        mine = pieces[field.name]
        if told[field.name] < rows:
            mine.append(pa.nulls(rows - told[field.name], field.type))
        arrays.append(mine[0] if len(mine) == 1 else pa.concat_arrays(mine))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
