"""Rows of a table as points of the TsFile table model. Pure.

A table has one column of time and any number of tags, which are its primary key unless the settings say otherwise; the
other columns are its fields. Each field has one of four types, the widest of its family, so that a column that is widened
at the source is what it was here: INT64, DOUBLE, TEXT, BLOB. Decimals, dates and
times are TEXT, as the store has them. Only the time becomes a number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.changes.sinks.fold import DELETED, MisfitError, key_of
from tidemark.changes.store.model import Column as SourceColumn
from tidemark.changes.store.model import Kind, Shape
from tidemark.settings.values import TableColumns
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import device_order

Times = NDArray[np.int64]
Point = tuple[Any, ...]
"""The tags of a row and its time, as files have them."""
ReadHeld = Callable[[Segments, Times], Mapping[int, tuple[Any, ...]]]
TYPES: Mapping[str, Any] = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()}
"""Arrow types of fields, by their names."""
_IN_FILES = {
    pa.int64(): DataType.INT64,
    pa.float64(): DataType.DOUBLE,
    pa.string(): DataType.TEXT,
    pa.binary(): DataType.BLOB,
}
_OF_KINDS = {
    Kind.INT64: pa.int64(),
    Kind.UINT64: pa.int64(),
    Kind.FLOAT64: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BYTES: pa.binary(),
}
FROM_KEY = TableColumns()
"""The settings name neither time nor tags: a table's key tells them."""
_INSTANT = re.compile(r"(datetime|timestamp)\b")
_PLAIN = re.compile(r"[\w$-]+")


@dataclass(frozen=True)
class Layout:
    """Which columns of a table are its time, its tags and its fields. `fields`: the Arrow type of each, also of columns
    that were dropped."""

    database: str
    table: str
    time: str
    tags: tuple[str, ...]
    fields: Mapping[str, Any]

    @property
    def point(self) -> tuple[str, ...]:
        """The columns that say which point of time of which device a row is."""
        return (*self.tags, self.time)

    def find_rest(self, key: Sequence[str]) -> tuple[str, ...]:
        """The columns of a table's key that do not say which point a row is. Where there are some, two rows may be one
        point."""
        return tuple(name for name in key if name not in self.point)

    def types_of(self, shape: Shape) -> dict[str, Any]:
        """The Arrow types in which rows of a shape are folded."""
        kinds = {column.name: column.kind for column in shape.columns}
        time = pa.string() if kinds[self.time] is Kind.TEXT else pa.int64()
        return {self.time: time, **dict.fromkeys(self.tags, pa.string()), **self.fields}


@dataclass(frozen=True)
class Written:
    """Rows of a device: `times` ascend; a field has a point where it is not null."""

    device: Segments
    fields: Mapping[str, Column]


@dataclass(frozen=True)
class Gone:
    """Points of a device that are no more at these times, which ascend. `measurements`: none are all."""

    device: Segments
    times: Times
    measurements: tuple[str, ...] = ()


@dataclass
class Points:
    """What a batch has of a table."""

    written: list[Written] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)


def choose_layout(shape: Shape, there: Mapping[str, Any], named: TableColumns = FROM_KEY) -> Layout:
    """How a table of this shape is kept. `there`: types of its fields so far. `named`: its time and its tags, where they are
    not the key's only DATETIME or TIMESTAMP and the key's other columns. MisfitError: it does not fit."""
    key = [column for column in shape.columns if column.key]
    if not key:
        key_of(shape)
    time = _choose_time(shape, key, named)
    columns = {column.name: column for column in shape.columns}
    tags = [column for column in key if column != time]
    if named.tags is not None:
        if absent := next((name for name in named.tags if name not in columns or name == time.name), ""):
            raise MisfitError(f"its tag {absent} of the settings is {'its time' if absent == time.name else 'no column'}")
        tags = [columns[name] for name in dict.fromkeys(named.tags)]
    if wrong := next((one for one in tags if one.kind in (Kind.FLOAT64, Kind.BYTES)), None):
        raise MisfitError(f"its tag {wrong.name} is {wrong.type or wrong.kind}, which is no text and no whole number")
    if bad := next((one for one in (shape.database, shape.table) if one == "root" or not _PLAIN.fullmatch(one)), ""):
        raise MisfitError(f"{bad} is no name that TsFiles can have here")
    fields = _unite_fields(there, [column for column in shape.columns if column != time and column not in tags])
    return Layout(shape.database, shape.table, time.name, tuple(column.name for column in tags), fields)


def _choose_time(shape: Shape, key: Sequence[SourceColumn], named: TableColumns) -> SourceColumn:
    instants = [column for column in key if _INSTANT.match(column.type)]
    if not named.time and len(instants) != 1:
        raise MisfitError(
            f"{len(instants)} columns of its key ({', '.join(c.name for c in key)}) are DATETIME or TIMESTAMP: name one in"
            f' the settings, [sinks.NAME.columns."{shape.database}.{shape.table}"] with time and tags'
        )
    if not named.time:
        return instants[0]
    found = next((column for column in shape.columns if column.name == named.time), None)
    if found is None:
        raise MisfitError(f"it has no column {named.time}, which the settings name as its time")
    if not _INSTANT.match(found.type) and found.kind not in (Kind.INT64, Kind.UINT64):
        raise MisfitError(f"its column of time, {found.name}, is {found.type or found.kind}")
    if not found.key and named.tags is None:
        raise MisfitError(
            f"its key is {', '.join(c.name for c in key)}, and its time is {found.name}: name its tags in the settings, too"
        )
    return found


def _unite_fields(there: Mapping[str, Any], columns: Sequence[SourceColumn]) -> dict[str, Any]:
    found = dict(there)
    if not columns:
        raise MisfitError("it has no column beside its time and tags, so no row has a point")
    for column in columns:
        type_ = _OF_KINDS[column.kind]
        if found.setdefault(column.name, type_) != type_:
            raise MisfitError(
                f"column {column.name} is {column.type or column.kind} now, which does not fit the"
                f" {_IN_FILES[found[column.name]].name} of the rows that are there"
            )
    lower = [name.casefold() for name in found]
    if double := next((name for name in lower if lower.count(name) > 1), None):
        raise MisfitError(f"two columns are named {double}, but for case")
    return found


def unite_rows(by_point: Any, by_key: Any, of: tuple[Layout, Sequence[str], str], read_held: ReadHeld) -> Any:
    """The last state of points in a batch of a table whose key does not say which point a row is.

    `by_point`, `by_key`: the batch's rows, folded by the point's columns and by the key. `of`: layout, key, unit of time.
    `read_held`: what files of former batches have in the rest of the key, at some times of a device. MisfitError: two rows
    that are there are one point.
    """
    layout, key, unit = of
    live, gone = by_key.filter(pc.invert(by_key[DELETED])), by_point.filter(by_point[DELETED])
    points = _list_values(live, layout.point, layout, unit)
    there = set(points)
    if len(there) < len(points):
        raise MisfitError(_tell_double(layout, key, next(point for point, rows in Counter(points).items() if rows > 1)))
    gone_points = _list_values(gone, layout.point, layout, unit)
    held = _find_held([*there, *gone_points], layout, read_held)
    touched = set(_list_values(by_key, key, layout, unit))
    # what another row is, of which the batch says nothing, was so before and is so afterwards
    kept = {point for point, rest in held.items() if _key_at(layout, key, point, rest) not in touched}
    if double := next((point for point in points if point in kept), None):
        raise MisfitError(_tell_double(layout, key, double))
    goes = [point not in there and point not in kept for point in gone_points]
    return pa.concat_tables([live, gone.filter(pa.array(goes, pa.bool_()))])


def _find_held(points: Sequence[Point], layout: Layout, read_held: ReadHeld) -> dict[Point, tuple[Any, ...]]:
    of_devices: dict[Segments, list[int]] = {}
    for *tags, time in points:
        of_devices.setdefault((layout.table, *tags), []).append(time)
    found: dict[Point, tuple[Any, ...]] = {}
    for device, times in of_devices.items():
        found |= {
            (*device[1:], time): rest for time, rest in read_held(device, np.unique(np.array(times, np.int64))).items()
        }
    return found


def _list_values(rows: Any, names: Sequence[str], layout: Layout, unit: str) -> list[tuple[Any, ...]]:
    """Values of rows as files have them: times as numbers, texts of fields as bytes."""
    columns: list[Any] = []
    for name in names:
        array = rows[name].combine_chunks()
        if name == layout.time:
            columns.append(_encode_times(array, (name, unit)).tolist())
        else:
            is_text = name in layout.fields and pa.types.is_string(array.type)
            columns.append((array.cast(pa.binary()) if is_text else array).to_pylist())
    return list(zip(*columns, strict=True))


def _key_at(layout: Layout, key: Sequence[str], point: Point, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    values = dict(zip(layout.point, point, strict=True)) | dict(zip(layout.find_rest(key), rest, strict=True))
    return tuple(values[name] for name in key)


def _tell_double(layout: Layout, key: Sequence[str], point: Point) -> str:
    told = ", ".join(f"{name} {value}" for name, value in zip(layout.point, point, strict=True))
    rest = ", ".join(layout.find_rest(key))
    return f"two rows are one point ({told}), and a point is one row: name {rest} among its tags in the settings"


def make_points(rows: Any, layout: Layout, unit: str) -> Points:
    """The points of folded rows, and what is gone: deleted keys, and fields of written ones that are null. Devices stand in
    the order of files. MisfitError: a time does not fit the unit."""
    found = Points()
    if not rows.num_rows:
        return found
    times = _encode_times(rows[layout.time].combine_chunks(), (layout.time, unit))
    deleted = rows[DELETED].combine_chunks().to_numpy(zero_copy_only=False)
    fields = {name: _Values(rows[name].combine_chunks()) for name in layout.fields}
    for device, places in _group_devices(rows, layout, times):
        mine, goes = times[places], deleted[places]
        kept, columns, nulls = places[~goes], {}, {}
        for name, values in fields.items():
            filled = kept[values.present[kept]]
            columns[name] = Column(values.type, times[filled], values.array[filled])
            nulls[name] = ~values.present[kept]
        if any(map(len, columns.values())):
            found.written.append(Written(device, columns))
        if goes.any():
            found.gone.append(Gone(device, mine[goes]))
        found.gone += _find_nulls(device, times[kept], nulls)
    return found


def _find_nulls(device: Segments, times: Times, nulls: Mapping[str, NDArray[np.bool_]]) -> Iterator[Gone]:
    """Fields that have no value in rows that are there: rows from before may have one. Rows with the same are together."""
    names = [name for name, mask in nulls.items() if mask.any()]
    if not names:
        return
    masks, of_rows = np.unique(np.stack([nulls[name] for name in names], axis=1), axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        if mask.any():
            chosen = tuple(name for name, is_null in zip(names, mask, strict=True) if is_null)
            yield Gone(device, times[of_rows.ravel() == number], chosen)


class _Values:
    """A field's values as `Column` has them, and which are no nulls."""

    def __init__(self, array: Any) -> None:
        self.type = _IN_FILES[array.type]
        self.present = pc.is_valid(array).to_numpy(zero_copy_only=False)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            self.array = array.cast(pa.binary()).to_numpy(zero_copy_only=False)
        else:
            self.array = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)


def _encode_times(array: Any, of: tuple[str, str]) -> Times:
    name, unit = of
    if array.null_count:
        raise MisfitError(f"a row has no time: column {name} is NULL")
    try:
        if pa.types.is_string(array.type):  # the server's own precision, then the site's unit, and nothing may be lost
            array = pc.cast(pc.cast(array, pa.timestamp("us")), pa.timestamp(unit)).cast(pa.int64())
        return np.asarray(array.to_numpy(zero_copy_only=False), np.int64)
    except pa.ArrowInvalid as wrong:
        raise MisfitError(f"a time of column {name} is none in {unit}: {wrong}") from wrong


def _group_devices(rows: Any, layout: Layout, times: Times) -> Iterator[tuple[Segments, NDArray[np.int64]]]:
    """Each device with the places of its rows, in order of time."""
    codes = np.zeros(len(times), np.int64)
    tags = [rows[name].combine_chunks() for name in layout.tags]
    for array in tags:
        encoded = array.dictionary_encode("encode")  # a null is a value of its own
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1].ravel().astype(np.int64)  # so that no product is large
    order = np.lexsort((times, codes))
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    groups = []
    for places in np.split(order, cuts):
        device: Segments = (layout.table, *(array[int(places[0])].as_py() for array in tags))
        groups.append((device, places))
    yield from sorted(groups, key=lambda group: device_order(group[0]))


def cut_partition(times: Times, length: int) -> Iterator[tuple[int, slice]]:
    """Each time partition of ascending times, `length` units long, with the times that it has."""
    numbers = times // length
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(times)]
    for begin, end in pairwise(cuts):
        if end > begin:
            yield int(numbers[begin]), slice(begin, end)
