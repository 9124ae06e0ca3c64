"""Points as Arrow arrays: the columns that a scan gives to Spark, pandas or a Parquet file. Exact, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.errors import CorruptionError
from tidemark.tsfiles import canonical
from tidemark.tsfiles.codes import BINARY_TYPES, DataType
from tidemark.tsfiles.column import VALUE_DTYPES, Column

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
    """The Arrow type of a column; None is canonical text. `unit`: ms, us, ns make instants of times, empty: numbers."""
    if kind is None:
        return pa.string()
    return INSTANT if unit and kind == DataType.TIMESTAMP else ARROW_TYPES[kind]


def as_type(column: Column, kind: DataType | None) -> Column:
    """The column with its values in a wider type; None: as canonical text."""
    if column.type == kind:
        return column
    if kind is None:
        texts = np.empty(len(column), object)
        texts[:] = [text.encode("utf-8", "surrogatepass") for text in canonical.text(column.type, column.values)]
        return Column(DataType.STRING, column.times, texts)
    if kind in BINARY_TYPES:
        return Column(kind, column.times, column.values)
    return Column(kind, column.times, column.values.astype(VALUE_DTYPES[kind]))


def arrow_array(column: Column, rows: NDArray[np.int64], unit: str) -> pa.Array:
    """One value or null for each of `rows` (ascending times, of which those of the column are some)."""
    values = _values(column, unit)
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


def instants(times: NDArray[np.int64], unit: str) -> pa.Array:
    """Times of a file: as they are, or as instants in UTC. With ns what is finer than a microsecond is cut off."""
    if not unit:
        return pa.array(times)
    if unit == "ns":
        return pa.array(np.floor_divide(times, 1000)).cast(INSTANT)
    factor = _MICROS[unit]
    if factor > 1 and len(times) and max(abs(int(times.min())), abs(int(times.max()))) > _WIDEST:
        raise CorruptionError("a time lies beyond what an instant can be: read without timeUnit", subject="timeUnit")
    return pa.array(times * factor).cast(INSTANT)


def _values(column: Column, unit: str) -> pa.Array:
    match column.type:
        case DataType.TEXT | DataType.STRING:
            return _texts(column.values)
        case DataType.BLOB:
            return pa.array(column.values, pa.binary())
        case DataType.DATE:
            return pa.array(_days(column.values), pa.int32()).cast(pa.date32())
        case DataType.TIMESTAMP:
            return instants(column.values, unit)
    return pa.array(column.values, ARROW_TYPES[column.type])


def _texts(values: NDArray[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are no UTF-8: as canonical text shows them
        return pa.array(canonical.text(DataType.TEXT, values), pa.string())


def _days(values: NDArray[np.int32]) -> NDArray[np.int32]:
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
