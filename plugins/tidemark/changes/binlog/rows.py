"""Row events: which columns their images have, and the images as values.

An image is a tuple with a value for each column of the table. Images without any column are refused: nobody can count
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tidemark.changes.binlog.cursor import Cursor, inflate
from tidemark.changes.binlog.json_values import apply_updates, print_document, read_document
from tidemark.changes.binlog.layout import EventType
from tidemark.changes.binlog.tables import T, Table, check_width
from tidemark.changes.binlog.values import ABSENT, ReadValue, Value, table_readers, take, take_sized
from tidemark.errors import CorruptionError, UnsupportedError

E = EventType
Image: TypeAlias = tuple[Value, ...]
Change: TypeAlias = tuple[Image | None, Image | None]
"""Before and after: an insert has no before, a delete no after."""

END_OF_STATEMENT = 0x0001
NO_TABLE = 0xFFFFFF
"""The id of no table: such an event only ends a statement."""
_INSERTS = {E.WRITE_ROWS_V1, E.WRITE_ROWS, E.MARIA_WRITE_ROWS_COMPRESSED_V1, E.MARIA_WRITE_ROWS_COMPRESSED}
_UPDATES = {
    *(E.UPDATE_ROWS_V1, E.UPDATE_ROWS, E.MARIA_UPDATE_ROWS_COMPRESSED_V1, E.MARIA_UPDATE_ROWS_COMPRESSED),
    E.PARTIAL_UPDATE_ROWS,
}
_DELETES = {E.DELETE_ROWS_V1, E.DELETE_ROWS, E.MARIA_DELETE_ROWS_COMPRESSED_V1, E.MARIA_DELETE_ROWS_COMPRESSED}
_V2 = {
    *(E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS, E.PARTIAL_UPDATE_ROWS),
    *(E.MARIA_WRITE_ROWS_COMPRESSED, E.MARIA_UPDATE_ROWS_COMPRESSED, E.MARIA_DELETE_ROWS_COMPRESSED),
}

_make_tuple = tuple.__new__  # to call the class is dear


class RowEvent(NamedTuple):
    """What a type of row events means."""

    operation: str
    has_extra: bool
    is_compressed: bool
    is_partial: bool


ROW_EVENTS: Mapping[int, RowEvent] = {
    int(kind): RowEvent(operation, kind in _V2, kind >= E.MARIA_WRITE_ROWS_COMPRESSED_V1, kind == E.PARTIAL_UPDATE_ROWS)
    for operation, kinds in (("I", _INSERTS), ("U", _UPDATES), ("D", _DELETES))
    for kind in kinds
}
"""By number: the hash of an enum's member is dear, and this is asked for each event."""


class Rows(NamedTuple):
    """The rows of one event. `before` and `after` are the columns that the images have, by position; None: no such image.

    A tuple, for one is made of each event.
    """

    table: Table
    operation: str  # I, U, D
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None
    data: bytes
    is_partial: bool
    ends_statement: bool


class RowKey(NamedTuple):
    """What row events that are decoded together have in common, as `Rows` has it."""

    table: Table
    operation: str
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None

    def make_rows(self, data: bytes, flags: int) -> Rows:
        """The rows of one event. They are not partial."""
        return _make_tuple(Rows, (*self, data, False, bool(flags & END_OF_STATEMENT)))


def read_rows(kind: RowEvent, cursor: Cursor, table: Table, flags: int) -> Rows:
    """The rows of an event, from behind its flags."""
    if kind.has_extra:
        extra = cursor.read_uint(2)
        cursor.skip_bytes(extra - 2)
    width = cursor.read_lenenc()
    check_width(table, width)
    operation = kind.operation
    before = None if operation == "I" else _read_columns(cursor, width)
    after = None if operation == "D" else _read_columns(cursor, width)
    data = cursor.read_rest()
    if kind.is_compressed:
        data = inflate(data, "a row event")
    return Rows(table, operation, before, after, data, kind.is_partial, bool(flags & END_OF_STATEMENT))


def make_key(kind: RowEvent, table: Table, width: int, bitmaps: bytes) -> RowKey:
    """What row events with these bitmaps have in common. They are not partial."""
    check_width(table, width)
    return RowKey(table, kind.operation, *_find_images(kind.operation, width, bitmaps))


@lru_cache(maxsize=256)
def _find_images(operation: str, width: int, bitmaps: bytes) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The columns of the images before and after, of their bitmaps one behind the other."""
    size = (width + 7) // 8
    images = [_find_columns(int.from_bytes(bitmaps[at : at + size], "little"), width) for at in range(0, len(bitmaps), size)]
    return None if operation == "I" else images[0], None if operation == "D" else images[-1]


def _read_columns(cursor: Cursor, width: int) -> tuple[int, ...]:
    return _find_columns(cursor.read_uint((width + 7) // 8), width)


@lru_cache(maxsize=256)
def _find_columns(bits: int, width: int) -> tuple[int, ...]:
    return tuple(index for index in range(width) if bits >> index & 1)


def decode_rows(rows: Rows, *, raw: bool = False) -> Iterator[Change]:
    """The rows as values, one after the other.

    Raises UnsupportedError if the log does not say what a value is, unless the caller wants it `raw` (`values`).
    """
    check_described(rows, raw=raw)
    table = rows.table
    before = None if rows.before is None else _ImageReader(table, rows.before)
    after = None if rows.after is None else _ImageReader(table, rows.after)
    if rows.is_partial and before and after:
        yield from _decode_partial(rows.data, before, after)
        return
    at = 0
    while at < len(rows.data):
        old: Image | None = None
        new: Image | None = None
        if before:
            old, at = before.read(rows.data, at)
        if after:
            new, at = after.read(rows.data, at)
        yield old, new


def check_described(rows: Rows | RowKey, *, raw: bool) -> None:
    """Refuse rows whose values cannot be known, unless they are wanted raw, and rows that cannot be counted."""
    table = rows.table
    if not raw and (unknown := [what for what in table.unknown() if what != "names"]):
        raise UnsupportedError(
            f"the log does not tell the {' and '.join(unknown)} of {table.database}.{table.name}",
            hint="SET GLOBAL binlog_row_metadata = 'FULL' at the server",
            subject=f"{table.database}.{table.name}",
        )
    if not (rows.before or rows.after):
        raise UnsupportedError(f"rows of {table.database}.{table.name} without any column")


class _ImageReader:
    """Reads images of a table with some of its columns."""

    def __init__(self, table: Table, columns: tuple[int, ...]) -> None:
        self.table = table
        self.columns = columns
        self.bytes_of_nulls = (len(columns) + 7) // 8
        readers = table_readers(table)
        self.readers: list[tuple[int, ReadValue]] = [(index, readers[index]) for index in columns]
        self.none: list[Value] = [ABSENT] * len(table.columns)

    def read_nulls(self, data: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(take(data, at, self.bytes_of_nulls), "little"), at + self.bytes_of_nulls

    def read(self, data: bytes, at: int) -> tuple[Image, int]:
        image = self.none.copy()
        nulls, at = self.read_nulls(data, at)
        for index, read in self.readers:
            if nulls & 1:
                image[index] = None
            else:
                image[index], at = read(data, at)
            nulls >>= 1
        return tuple(image), at


def _decode_partial(data: bytes, before: _ImageReader, after: _ImageReader) -> Iterator[Change]:
    """Rows whose new JSON may be told as what changes in the old.

    Such a column is ABSENT where the image of before does not have it: what it became cannot be known.
    """
    documents = [index for index, column in enumerate(before.table.columns) if column.type == T.JSON]
    at = 0
    while at < len(data):
        start = at
        old, at = before.read(data, at)
        cursor = Cursor(data, "a partial update of rows", at)
        updated: set[int] = set()
        if cursor.read_lenenc() & 1:
            bits = cursor.read_uint((len(documents) + 7) // 8)
            updated = {index for number, index in enumerate(documents) if bits >> number & 1}
        stored = _find_documents(data, start, before) if updated else {}
        new = after.none.copy()
        nulls, at = after.read_nulls(data, cursor.position)
        for index, read in after.readers:
            if nulls & 1:
                new[index] = None
            elif index in updated:
                changes, at = take_sized(after.table.columns[index].size, data, at)
                new[index] = _update_document(old[index], stored.get(index, b""), changes)
            else:
                new[index], at = read(data, at)
            nulls >>= 1
        yield old, tuple(new)


def _find_documents(data: bytes, at: int, image: _ImageReader) -> dict[int, bytes]:
    """The stored JSON in the image at `at`, by column."""
    found: dict[int, bytes] = {}
    nulls, at = image.read_nulls(data, at)
    for index, read in image.readers:
        if not nulls & 1:
            begin = at
            _, at = read(data, at)
            if image.table.columns[index].type == T.JSON:
                found[index] = data[begin + image.table.columns[index].size : at]
        nulls >>= 1
    return found


def _update_document(old: Value, stored: bytes, changes: bytes) -> Value:
    if old is ABSENT:
        return ABSENT
    if old is None:
        raise CorruptionError("a partial update of a JSON document that is NULL")
    return print_document(apply_updates(read_document(stored), changes))
