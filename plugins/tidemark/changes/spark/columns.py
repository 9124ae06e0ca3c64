"""The columns of one table, of whatever shape its rows are, and its rows as typed Arrow batches. Without Spark.

A frame has every column that the table ever had in the store: the newest ones first. Values keep the store's types, which
are exact: whole numbers, doubles, text, bytes. What the source writes as DECIMAL or as a time is text, as `changes read` has
it. A column whose type changed takes the type that holds all values exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.changes.capture.identity import Origin
from tidemark.changes.delivery.shards import INDEX, MOVED, Sharding, ShardPiece, find_key
from tidemark.changes.spark.plan import ByShard
from tidemark.changes.store.model import Column, Kind, Rows, Shape, make_numbers
from tidemark.errors import PermanentError, UsageError

INT, BIG, DOUBLE = pa.int64(), pa.decimal128(20), pa.float64()
TEXT, BYTES = pa.string(), pa.binary()
PLACE = (("seq", INT), ("file", TEXT), ("txn_pos", INT), ("gtid", TEXT), ("ts", pa.timestamp("us", "UTC")), ("i", INT))
SHARD = (("shard", pa.int32()), ("moved", pa.int32()))
_NAMES = pa.list_(pa.field("element", TEXT))
_ABSENT = (("before_absent", _NAMES), ("after_absent", _NAMES))
_SMALL = re.compile(r"(tinyint|smallint|mediumint|int|year)\b|bit\(([1-9]|[1-5]\d|6[0-3])\)")
"""Types of the source whose values without a sign fit into 63 bits."""
_HELD = {
    INT: (Kind.INT64, Kind.UINT64),
    BIG: (Kind.INT64, Kind.UINT64),
    DOUBLE: (Kind.FLOAT64,),
    TEXT: (Kind.INT64, Kind.UINT64, Kind.FLOAT64, Kind.TEXT),
    BYTES: tuple(Kind),
}
"""What a column of a frame holds exactly. A whole number that is too large is an error."""
Types = dict[str, pa.DataType]


def merge_shapes(shapes: Sequence[Shape]) -> Types:
    """The columns of all shapes, the newest of which is the last. Names are one whatever their case, as at the source."""
    found: dict[str, tuple[str, pa.DataType]] = {}
    for shape in reversed(shapes):
        for column in shape.columns:
            name, kind = found.get(column.name.lower(), (column.name, None))
            found[column.name.lower()] = name, _widen(kind, _type_of(column))
    return dict(found.values())


def _type_of(column: Column) -> pa.DataType:
    if column.kind is Kind.UINT64:
        return INT if _SMALL.match(column.type) else BIG
    return {Kind.INT64: INT, Kind.FLOAT64: DOUBLE, Kind.TEXT: TEXT, Kind.BYTES: BYTES}[column.kind]


def _widen(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    if one is None or one == other:
        return other
    if {one, other} == {INT, BIG}:
        return BIG
    return BYTES if BYTES in (one, other) else TEXT


def make_schema(types: Types, *, sharded: bool) -> pa.Schema:
    """The columns of a frame of one table."""
    image = pa.struct(list(types.items()))
    sides = (("before", image), ("after", image))
    return pa.schema([*PLACE, *(SHARD if sharded else ()), ("op", TEXT), *sides, *_ABSENT])


def check_schema(asked: pa.Schema, ours: pa.Schema) -> None:
    """Hold a user's schema against the columns that there are. `before` and `after` may have some of the table's columns,
    with types that can hold them. UsageError names what does not fit."""
    for field in asked:
        place = ours.get_field_index(field.name)
        if place < 0:
            raise _misfit(f"no column {field.name!r}; there are {', '.join(ours.names)}", field.name)
        known = ours.field(place).type
        if field.name not in ("before", "after") or not pa.types.is_struct(known):
            if field.type != known:
                raise _misfit(f"column {field.name!r} is {known}, not {field.type}", field.name)
            continue
        if not pa.types.is_struct(field.type):
            raise _misfit(f"column {field.name!r} is a struct, not {field.type}", field.name)
        names = {one.name.lower(): one.name for one in known}
        for column in field.type:
            if names and column.name.lower() not in names:
                there = ", ".join(list(names.values())[:40])
                raise _misfit(f"the table has no column {column.name!r}; there are {there}", column.name)
            if column.type not in _HELD:
                allowed = ", ".join(map(str, _HELD))
                raise _misfit(f"column {field.name}.{column.name} is {column.type}; allowed are {allowed}", column.name)


def _misfit(message: str, subject: str) -> UsageError:
    return UsageError(message, hint="leave .schema(…) out to see what there is", subject=subject)


def choose_columns(schema: pa.Schema, sharding: Sharding, shape: Shape) -> list[int]:
    """The columns of a shape's rows that a frame needs, and those that divide them, by their places in a block."""
    width = len(shape.columns)
    key = find_key(sharding, shape) if sharding.shards > 1 else ()
    places = {0, 1, 2, *(3 + side * width + place for side in (0, 1) for place in key)}
    for side, name in enumerate(("before", "after")):
        if schema.get_field_index(name) >= 0:
            wanted = {field.name.lower() for field in schema.field(name).type}
            named = (place for place, column in enumerate(shape.columns) if column.name.lower() in wanted)
            places |= {3 + side * width + place for place in named}
    return sorted(places)


@dataclass(frozen=True)
class Segment:
    """Rows of one transaction and one shard."""

    piece: ShardPiece
    rows: Rows
    shard: int


def gather_runs(blocks: ByShard) -> Iterator[list[Segment]]:
    """The rows of a block, in runs that follow each other in one Arrow batch."""
    run: list[Segment] = []
    for shard, pieces in sorted(blocks.items()):
        for piece in pieces:
            for record in piece.transaction.records:
                if not isinstance(record, Rows):
                    continue
                if run and not _follows(run[-1].rows, record):
                    yield run
                    run = []
                run.append(Segment(piece, record, shard))
    if run:
        yield run


def _follows(former: Rows, rows: Rows) -> bool:
    return former.whole is rows.whole and former.start + former.count == rows.start


class TypedRows:
    """Makes Arrow batches of a frame's schema. `chosen`: by the user, who wants no other columns of the table.

    A row whose table has a column that the frame lacks, or another type, is a PermanentError: it was altered after the query
    began, which then begins again.
    """

    def __init__(self, schema: pa.Schema, origin: Origin | None, *, chosen: bool) -> None:
        self.schema = schema
        self._origin = origin
        self._chosen = chosen
        self._places: dict[tuple[int, int], list[int | None]] = {}
        self._shapes: dict[int, Shape] = {}  # so that no id is used twice

    def convert(self, blocks: ByShard) -> Iterator[pa.RecordBatch]:
        for run in gather_runs(blocks):
            first, count = run[0].rows, sum(one.rows.count for one in run)
            yield self._make_batch(run, Rows(first.shape, first.whole, first.start, count))

    def _make_batch(self, run: Sequence[Segment], rows: Rows) -> pa.RecordBatch:
        each = make_numbers(np.repeat(np.arange(len(run)), [one.rows.count for one in run]))
        batch, infos = rows.batch, [one.piece.transaction.info for one in run]

        def spread(values: Sequence[object], kind: pa.DataType) -> Any:
            return pa.array(values, kind).take(each)

        makers: dict[str, Callable[[Any], Any]] = {
            "seq": lambda kind: spread([one.piece.seq for one in run], kind),
            "file": lambda kind: spread([name_log(info, self._origin) for info in infos], kind),
            "txn_pos": lambda kind: spread([info.offset for info in infos], kind),
            "gtid": lambda kind: spread([one.piece.transaction.gtid for one in run], kind),
            "ts": lambda kind: spread([info.timestamp for info in infos], kind),
            "shard": lambda kind: spread([one.shard for one in run], kind),
            "i": lambda _kind: batch.column(INDEX),
            "moved": lambda _kind: batch.column(MOVED),
            "op": lambda _kind: rows.letters.dictionary_decode(),
            "before": partial(self._make_image, rows, 0),
            "after": partial(self._make_image, rows, 1),
            "before_absent": partial(_name_absent, rows, 0),
            "after_absent": partial(_name_absent, rows, 1),
        }
        return pa.RecordBatch.from_arrays([makers[field.name](field.type) for field in self.schema], schema=self.schema)

    def _make_image(self, rows: Rows, side: int, kind: pa.StructType) -> Any:
        arrays, has_none = rows.image(side)
        places = self._find_places(rows.shape, side, kind)
        children = [
            pa.nulls(len(has_none), field.type) if place is None else _convert(arrays[place], field, rows.shape)
            for place, field in zip(places, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=make_numbers(has_none))

    def _find_places(self, shape: Shape, side: int, kind: pa.StructType) -> list[int | None]:
        """For each field of an image, the place of the table's column; None: it has none."""
        if (id(shape), side) not in self._places:
            self._shapes[id(shape)] = shape
            self._places[id(shape), side] = self._match_fields(shape, kind)
        return self._places[id(shape), side]

    def _match_fields(self, shape: Shape, kind: pa.StructType) -> list[int | None]:
        table, fields = f"{shape.database}.{shape.table}", {field.name.lower(): field for field in kind}
        for column in shape.columns:
            field = fields.get(column.name.lower())
            if field is None and not self._chosen:
                raise _altered(table, f"has a column {column.name}, which this frame does not have")
            if field is not None and column.kind not in _HELD[field.type]:
                raise _altered(table, f"has {column.kind} in column {column.name}, which is {field.type} in this frame")
        places = {column.name.lower(): place for place, column in enumerate(shape.columns)}
        return [places.get(field.name.lower()) for field in kind]


def name_log(info: Any, origin: Origin | None) -> str:
    return origin.name_log(info.file, info.change_id) if origin else str(info.file)


def _altered(table: str, what: str) -> PermanentError:
    return PermanentError(
        f"{table} {what}",
        hint='start the query again: it finds the columns anew; or .option("layout", "json"), which takes any',
        subject=table,
    )


def _convert(array: Any, field: pa.Field, shape: Shape) -> Any:
    if array.type == field.type:
        return array
    try:
        if pa.types.is_floating(array.type):  # as `changes read` prints them: the shortest text that is exact
            array = pa.array([None if value is None else repr(value) for value in array.to_pylist()], TEXT)
        elif field.type == BYTES and pa.types.is_integer(array.type):
            array = array.cast(TEXT)
        return array.cast(field.type)
    except pa.ArrowInvalid as wrong:
        table = f"{shape.database}.{shape.table}"
        raise PermanentError(
            f"a value of {table}.{field.name} does not fit into {field.type}: {wrong}",
            hint=".schema(…) with decimal(20,0) there, or without .schema(…)",
            subject=table,
        ) from wrong


def _name_absent(rows: Rows, side: int, kind: pa.DataType) -> Any:
    """Of each row the columns that the source did not log, where it has such an image and there are some."""
    bits = rows.batch.column(1 + side)
    if bits.null_count == len(bits):
        return pa.nulls(len(bits), kind)
    names = [column.name for column in rows.shape.columns]
    told = [
        None if some is None else [name for place, name in enumerate(names) if some[place >> 3] >> (place & 7) & 1]
        for some in bits.to_pylist()
    ]
    return pa.array(told, kind)
