"""Rows of a table as points of the TsFile table model. Pure.

A table fits whose key is one column of time and any number of tags; the other columns are its fields. Each field has one
of four types, the widest of its family, so that a column that is widened at the source is what it was here: INT64, DOUBLE,
TEXT, BLOB. Decimals, dates and times are TEXT, as the store has them. Only the time becomes a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.changes.sinks.fold import DELETED, MisfitError
from tidemark.changes.store.model import Column as SourceColumn
from tidemark.changes.store.model import Kind, Shape
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import device_order

Times = NDArray[np.int64]
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

    @property
    def span(self) -> tuple[int, int]:
        filled = [column.times for column in self.fields.values() if len(column)]
        return int(min(times[0] for times in filled)), int(max(times[-1] for times in filled))


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


def choose_layout(shape: Shape, there: Mapping[str, Any], time: str = "") -> Layout:
    """How a table of this shape is kept. `there`: types of its fields so far. `time`: its column of time; "": the key's only
    DATETIME or TIMESTAMP. MisfitError: it does not fit."""
    key = [column for column in shape.columns if column.key]
    if not key:
        raise MisfitError("it has no primary key: a catalog keeps tables whose key is a time and tags")
    instants = [column for column in key if _INSTANT.match(column.type)]
    if not time and len(instants) != 1:
        raise MisfitError(
            f"{len(instants)} columns of its key ({', '.join(c.name for c in key)}) are DATETIME or TIMESTAMP: the setting"
            " time of the sink names the one"
        )
    named = time or instants[0].name
    found = next((column for column in key if column.name == named), None)
    if found is None:
        raise MisfitError(f"its key is {', '.join(c.name for c in key)}, and its column of time is {named}")
    if found not in instants and found.kind not in (Kind.INT64, Kind.UINT64):
        raise MisfitError(f"its column of time, {named}, is {found.type or found.kind}")
    tags = tuple(column for column in key if column.name != named)
    if wrong := next((one for one in tags if one.kind in (Kind.FLOAT64, Kind.BYTES)), None):
        raise MisfitError(f"its tag {wrong.name} is {wrong.type or wrong.kind}, which is no text and no whole number")
    if bad := next((one for one in (shape.database, shape.table) if one == "root" or not _PLAIN.fullmatch(one)), ""):
        raise MisfitError(f"{bad} is no name that TsFiles can have here")
    fields = _unite_fields(there, [column for column in shape.columns if not column.key])
    return Layout(shape.database, shape.table, named, tuple(column.name for column in tags), fields)


def _unite_fields(there: Mapping[str, Any], columns: Sequence[SourceColumn]) -> dict[str, Any]:
    found = dict(there)
    if not columns:
        raise MisfitError("it has no column beside its key, so no row has a point")
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
        encoded = array.dictionary_encode()
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
