"""The rows of a table as the files of a `catalog` sink hold them: what a receiver shows that has all of these files.

A table is in memory while it is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.changes.sinks.catalog import CatalogFiles, read_deletions
from tidemark.changes.sinks.points import Layout, Times
from tidemark.changes.store.model import Kind, Shape
from tidemark.tsfiles.devices import table_segments
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import UntrustedFile

_DIGITS = re.compile(r"\w+\((\d)\)")
Found = dict[Segments, dict[str, list[Column]]]


def types_held(layout: Layout, shape: Shape) -> dict[str, Any]:
    """The Arrow types in which rows of the source and of the files are compared: whole numbers sort as such."""
    tags = {Kind.INT64: pa.int64(), Kind.UINT64: pa.decimal128(20, 0)}
    types = layout.types_of(shape)
    types |= {column.name: tags.get(column.kind, pa.string()) for column in shape.columns if column.name in layout.tags}
    return {column.name: types[column.name] for column in shape.columns}


def read_held(files: CatalogFiles, layout: Layout, shape: Shape) -> Any:
    """The rows that the files have of a table: an Arrow table with the columns of a shape, in the order of its key."""
    types = types_held(layout, shape)
    parts = [_make_rows(files.unit, (layout, shape), device, columns) for device, columns in _read_columns(files, layout)]
    schema = pa.schema(list(types.items()))
    whole = pa.concat_tables([part.cast(schema) for part in parts]) if parts else schema.empty_table()
    return whole.sort_by([(column.name, "ascending") for column in shape.columns if column.key])


def count_held(files: CatalogFiles, name: str) -> int:
    """How many points the files have of a table, whatever its columns are."""
    database, _, table = name.partition(".")
    found = _read_columns(files, Layout(database, table, "", (), {}))
    return sum(len(column) for _, columns in found for column in columns.values())


def keep_with_points(batch: Any, layout: Layout) -> Any:
    """Rows of the source that have a value beside their key: of others the files have no point."""
    names = [name for name in layout.fields if name in batch.schema.names]
    mask = np.zeros(batch.num_rows, np.bool_)
    for name in names:
        mask |= pc.is_valid(batch.column(name)).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(mask))


def _read_columns(files: CatalogFiles, layout: Layout) -> Iterator[tuple[Segments, dict[str, Column]]]:
    found: Found = {}
    for place in files.list_files(layout.database):  # lowest rank first
        _add_file(found, place, layout)
    for device, columns in sorted(found.items(), key=repr):
        filled = {name: overlay_columns(several) for name, several in columns.items() if several}
        if filled:
            yield device, filled


def _add_file(found: Found, place: Path, layout: Layout) -> None:
    deletions = read_deletions(place)
    with TsFile(UntrustedFile(str(place.parent), place.name), layout.database) as file:
        for device in file.list_devices():
            segments = table_segments(device)
            if segments[0] != layout.table:
                continue
            for name in file.list_measurements(device):
                column = file.read_column(device, name, deletions=deletions)
                if len(column):
                    found.setdefault(segments, {}).setdefault(name, []).append(column)


def _make_rows(unit: str, of: tuple[Layout, Shape], device: Segments, columns: Mapping[str, Column]) -> Any:
    layout, shape = of
    tags = [*device[1:], *[None] * len(layout.tags)]  # files leave out the null ones at the end
    times = np.unique(np.concatenate([column.times for column in columns.values()]))
    arrays: dict[str, Any] = {}
    for column in shape.columns:
        if column.name == layout.time:
            arrays[column.name] = _decode_times(times, unit, column.type) if column.kind is Kind.TEXT else pa.array(times)
        elif column.name in layout.tags:
            arrays[column.name] = pa.repeat(tags[layout.tags.index(column.name)], len(times))
        elif column.name in columns:
            arrays[column.name] = _align(times, columns[column.name], layout.fields[column.name])
        else:
            arrays[column.name] = pa.nulls(len(times), layout.fields[column.name])
    return pa.table(arrays)


def _decode_times(times: Times, unit: str, type_: str) -> Any:
    """Times as the source's text has them: with as many digits of a second as its type says."""
    digits = int(found[1]) if (found := _DIGITS.match(type_)) else 0
    texts = np.datetime_as_string(times.view(f"datetime64[{unit}]"), unit="us")
    return pa.array([text.replace("T", " ")[: 19 + (digits and digits + 1)] for text in texts.tolist()], pa.string())


def _align(times: Times, column: Column, type_: Any) -> Any:
    """One value or null for each of `times`."""
    places = np.searchsorted(column.times, times)
    present = (places < len(column)) & (column.times[np.minimum(places, len(column) - 1)] == times)
    is_text = pa.types.is_string(type_)
    values = pa.array(column.values, pa.binary() if is_text else type_)
    return values.cast(type_).take(pa.array(places, mask=~present))
