"""Rows of an answer in the form of the store, column by column. Touches nothing.

The same text gives the same value as in a log: text that its charset does not have is bytes, and such rows get a shape of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.changes.binlog.batches import as_text, gather_bytes, make_array
from tidemark.changes.binlog.charsets import find_codec, text_decoder
from tidemark.changes.bootstrap.tables import ReadColumn, ReadTable
from tidemark.changes.capture.rows import with_bytes
from tidemark.changes.connection.results import Values
from tidemark.changes.store.model import Kind, Op, Row, Rows
from tidemark.errors import CorruptionError

_NUMBERS = {Kind.INT64: pa.int64(), Kind.UINT64: pa.uint64(), Kind.FLOAT64: pa.float64()}


def make_rows(table: ReadTable, values: Values) -> Iterator[Rows]:
    """Records of rows that were read."""
    columns = [_convert(one, values, number, table) for number, one in enumerate(table.columns)]
    if any(column is None for column in columns):
        yield from _make_one_by_one(table, values)
        return
    schema = table.shape.arrow_schema()
    width, count = len(columns), values.rows
    none = np.zeros(count, np.int64)
    arrays: list[Any] = [make_array(pa.uint8(), none, np.full(count, Op.READ, np.uint8))]
    arrays += [pa.nulls(count, schema.types[number]) for number in range(1, 3 + width)]
    yield Rows(table.shape, pa.record_batch([*arrays, *columns], schema=schema))


def _convert(one: ReadColumn, values: Values, number: int, table: ReadTable) -> Any:
    """A column as the store keeps it; None where a text is not of its charset."""
    found = gather_bytes(values.data, values.starts[number], values.lengths[number])
    kind = one.column.kind
    if kind is Kind.BYTES:
        return found
    if kind in _NUMBERS:
        return _parse(found, kind, f"{table.shape.database}.{table.shape.table}.{one.column.name}")
    if one.charset is None or find_codec(one.charset) == "utf_8":
        return as_text(found)
    decode = text_decoder(one.charset)
    texts = [None if value is None else decode(value) for value in found.to_pylist()]
    return None if any(isinstance(text, bytes) for text in texts) else pa.array(texts, pa.string())


def _parse(found: Any, kind: Kind, name: str) -> Any:
    text = as_text(found)
    try:
        if text is not None:
            return text.cast(_NUMBERS[kind])
    except pa.ArrowInvalid:
        pass
    raise CorruptionError(f"{name}: the server gives what is no {kind}", subject=name)


def _make_one_by_one(table: ReadTable, values: Values) -> Iterator[Rows]:
    made = []
    for row in range(values.rows):
        images = [_read_value(one, values.value(number, row)) for number, one in enumerate(table.columns)]
        kinds = [one.column.kind for one in table.columns]
        odd = frozenset(n for n, image in enumerate(images) if kinds[n] is Kind.TEXT and isinstance(image, bytes))
        made.append((odd, Row(Op.READ, None, tuple(images))))
    for odd, found in groupby(made, key=lambda pair: pair[0]):
        shape = with_bytes(table.shape, odd) if odd else table.shape
        yield Rows.of(shape, [row for _, row in found])


def _read_value(one: ReadColumn, value: bytes | None) -> Any:
    if value is None or one.column.kind is Kind.BYTES:
        return value
    if one.column.kind is Kind.TEXT:
        return text_decoder(one.charset)(value) if one.charset is not None else value.decode()
    return float(value) if one.column.kind is Kind.FLOAT64 else int(value)
