"""Tables and rows of a binary log in the form of the store: what a column becomes, and rows one by one. Pure.

`batches` has whole columns of rows, with the same result. A column is stored as a number where it is one; all else is exact
text, or bytes. Text that its charset does not have is bytes: such a row gets a shape of its own, in which the column is
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from tidemark.changes.binlog import rows as logged
from tidemark.changes.binlog.charsets import BINARY, find_codec
from tidemark.changes.binlog.tables import INTEGERS, Column, T, Table
from tidemark.changes.binlog.values import ABSENT as LOG_ABSENT
from tidemark.changes.store import model
from tidemark.changes.store.model import ABSENT, Kind, Op, Row, Shape

Item: TypeAlias = model.Record | logged.Rows
"""What a transaction has while its rows are not decoded."""
MOST_BYTES = 1 << 20
"""Bytes of row events that are decoded together, roughly."""
_TYPES = {
    T.TINY: "tinyint",
    T.SHORT: "smallint",
    T.INT24: "mediumint",
    T.LONG: "int",
    T.LONGLONG: "bigint",
    T.NEWDECIMAL: "decimal",
    T.TIMESTAMP2: "timestamp",
    T.DATETIME2: "datetime",
    T.TIME2: "time",
    T.NEWDATE: "date",
}
_FRACTIONS = (T.TIMESTAMP2, T.DATETIME2, T.TIME2)
_BYTES = (T.GEOMETRY, T.VECTOR)
_STRINGS = {T.STRING: ("char", "binary"), T.VAR_STRING: ("varchar", "varbinary"), T.VARCHAR: ("varchar", "varbinary")}
_STRINGS |= {T.VARCHAR_COMPRESSED: ("varchar", "varbinary")}
_BLOBS = (T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB, T.BLOB_COMPRESSED)
_BLOB_PREFIX = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def count_bytes(item: Item) -> int:
    """What an item counts of `MOST_BYTES`."""
    return len(item.data) if isinstance(item, logged.Rows) else 0


def gather_items(items: Iterator[Item]) -> tuple[list[Item], int]:
    """The next items, as many as are decoded together, and their bytes: less than MOST_BYTES where they are the last."""
    found: list[Item] = []
    size = 0
    for item in items:
        found.append(item)
        size += count_bytes(item)
        if size >= MOST_BYTES:
            break
    return found, size


@lru_cache(maxsize=1024)
def shape_of(table: Table) -> Shape:
    """The shape of a table that its log describes wholly: the columns that a SELECT sees."""
    columns = [
        model.Column(column.name or "", _kind_of(column), _describe(column), index in table.key)
        for index, column in enumerate(table.columns[: len(table.columns) - table.hidden])
    ]
    return Shape(table.database, table.name, tuple(columns))


def _kind_of(column: Column) -> Kind:
    if column.type in INTEGERS:
        return Kind.UINT64 if column.is_unsigned else Kind.INT64
    if column.type == T.BIT:
        return Kind.UINT64
    if column.type == T.YEAR:
        return Kind.INT64
    if column.type in (T.FLOAT, T.DOUBLE):
        return Kind.FLOAT64
    if column.declared:
        return Kind.TEXT
    return Kind.BYTES if column.type in _BYTES or _is_binary(column) else Kind.TEXT


def _is_binary(column: Column) -> bool:
    """A string without a charset, or with one that nothing here can read."""
    if column.type not in _STRINGS and column.type not in _BLOBS:
        return False
    return column.collation in (None, BINARY) or find_codec(column.collation or BINARY) is None


def _describe(column: Column) -> str:
    """The type as SQL writes it. A size that a log tells in bytes is left out, for SQL has characters there."""
    kind = column.type
    word = column.declared or _TYPES.get(kind, kind.name.lower())
    if kind in _STRINGS and not column.declared:
        word = _STRINGS[kind][_is_binary(column)]
        word += f"({column.size})" if _is_binary(column) else ""
    elif kind in _BLOBS:
        word = _BLOB_PREFIX.get(column.size, "") + ("blob" if _is_binary(column) else "text")
    elif kind == T.NEWDECIMAL:
        word += f"({column.size},{column.scale})"
    elif kind == T.BIT or (kind in _FRACTIONS and column.size):
        word += f"({column.size})"
    elif column.labels is not None:
        labels = (label if isinstance(label, str) else label.hex() for label in column.labels)
        word += "(" + ",".join("'" + label.replace("'", "''") + "'" for label in labels) + ")"
    is_unsigned = column.is_unsigned and kind != T.YEAR  # MariaDB says so of each year
    return word + (" unsigned" if is_unsigned else "") + ("" if column.is_nullable else " not null")


def convert_one_by_one(rows: logged.Rows) -> Iterator[model.Rows]:
    """The rows of an event. Those that follow each other and have one shape are one record."""
    for shape, found in groupby(_convert_rows(rows), key=itemgetter(0)):
        yield model.Rows.of(shape, [row for _, row in found])


def _convert_rows(rows: logged.Rows) -> Iterator[tuple[Shape, Row]]:
    """Each row with its shape."""
    shape = shape_of(rows.table)
    texts = tuple(index for index, column in enumerate(shape.columns) if column.kind is Kind.TEXT)
    op = Op(ord(rows.operation))
    for before, after in logged.decode_rows(rows):
        odd = {index for image in (before, after) if image for index in texts if isinstance(image[index], bytes)}
        images = [_convert_image(image and image[: len(shape.columns)], odd) for image in (before, after)]
        yield (with_bytes(shape, frozenset(odd)) if odd else shape), Row(op, *images)


def _convert_image(image: logged.Image | None, odd: set[int]) -> tuple[model.Value, ...] | None:
    if image is None:
        return None
    if odd or LOG_ABSENT in image:
        return tuple(
            ABSENT if value is LOG_ABSENT else value.encode() if index in odd and isinstance(value, str) else value
            for index, value in enumerate(image)
        )
    return image  # type: ignore[return-value]


@lru_cache(maxsize=64)
def with_bytes(shape: Shape, odd: frozenset[int]) -> Shape:
    columns = [replace(column, kind=Kind.BYTES) if index in odd else column for index, column in enumerate(shape.columns)]
    return replace(shape, columns=tuple(columns))
