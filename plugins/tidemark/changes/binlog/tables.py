"""TABLE_MAP: the columns of a table as the rows behind it are encoded, and what the optional metadata tells of them.

`Table.unknown` names what the metadata leaves out. Servers write all of it with `binlog_row_metadata=FULL`, which needs
MySQL 8.0.1 or MariaDB 10.5. Another source can add the rest: a Table and its columns are values, use `replace`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import takewhile

from tidemark.changes.binlog.charsets import BINARY, text_decoder
from tidemark.changes.binlog.cursor import Cursor, decode_name
from tidemark.errors import CorruptionError, UnsupportedError

MOST_COLUMNS = 4096
"""The servers' own limit."""


class ColumnType(IntEnum):
    """Types as rows are encoded. The names are the servers' own."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    TYPED_ARRAY = 244
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


T = ColumnType
INTEGERS = {T.TINY: 1, T.SHORT: 2, T.INT24: 3, T.LONG: 4, T.LONGLONG: 8}
_NUMBERS = (*INTEGERS, T.NEWDECIMAL, T.FLOAT, T.DOUBLE, T.YEAR)  # those that have a bit of signedness
_BLOBS = {T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB, T.BLOB, T.BLOB_COMPRESSED}
_TEXTS = {T.STRING, T.VAR_STRING, T.VARCHAR, T.VARCHAR_COMPRESSED, *_BLOBS}
_HAVE_CHARSET = (*_TEXTS, T.VECTOR)  # as MySQL counts them
_MARIA_HAVE_CHARSET = (*_HAVE_CHARSET, T.GEOMETRY)
_LABELLED = {T.ENUM, T.SET}
_META_SIZES = {
    **dict.fromkeys((T.FLOAT, T.DOUBLE, T.GEOMETRY, T.JSON, T.VECTOR, T.TIMESTAMP2, T.DATETIME2, T.TIME2, *_BLOBS), 1),
    **dict.fromkeys((T.VARCHAR, T.VARCHAR_COMPRESSED, T.BIT, T.NEWDECIMAL, T.STRING, T.VAR_STRING, T.ENUM, T.SET), 2),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column. None is what the log does not tell.

    `size`: largest bytes of VARCHAR, STRING, ENUM and SET; bytes of the length of BLOB, JSON, GEOMETRY and VECTOR; bits of
    BIT; digits of DECIMAL; digits of a second. `scale` is that of DECIMAL. `declared` is a type that the log does not tell
    from BINARY: uuid, inet4, inet6. It comes from another source.
    """

    type: ColumnType
    size: int
    scale: int
    is_nullable: bool
    name: str | None = None
    is_unsigned: bool | None = None
    collation: int | None = None
    labels: tuple[str | bytes, ...] | None = None
    is_visible: bool = True
    declared: str = ""

    def unknown(self) -> str:
        """What has to be known before a value is exact, empty if it is."""
        if self.type in INTEGERS and self.is_unsigned is None:
            return "signedness"
        if self.type in _TEXTS and self.collation is None:
            return "charset"
        if self.type in _LABELLED and self.labels is None:
            return "labels"
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table as rows are encoded. `key` has the columns of its primary key, by position, empty without one. `hidden`: so
    many columns at the end are of the server alone, and no SELECT sees them.

    Compared by identity: a decoder gives out one Table for all events with the same bytes.
    """

    database: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...] = ()
    has_names: bool = False
    hidden: int = 0

    @lru_cache(maxsize=1024)  # noqa: B019 (tables are few, and asked for each event)
    def unknown(self) -> tuple[str, ...]:
        """What the log does not tell of this table, sorted: charset, labels, names, signedness."""
        found = {column.unknown() for column in self.columns} | ({"names"} if not self.has_names else set())
        return tuple(sorted(found - {""}))


def read_table(body: bytes, what: str, *, is_maria: bool = False) -> Table:
    """The table of a TABLE_MAP event, whose body begins behind the table's id. `is_maria`: a MariaDB wrote it, which says
    of more columns whether they have a sign, and what their charset is. Seen with MariaDB 10.11."""
    cursor = Cursor(body, what)
    cursor.skip_bytes(2)  # flags
    database, name = _read_name(cursor), _read_name(cursor)
    count = cursor.read_lenenc()
    if not 0 < count <= MOST_COLUMNS:
        raise cursor.error(f"a table of {count} columns")
    types = cursor.read_exactly(count)
    meta = Cursor(cursor.read_lenenc_bytes(), what)
    nullable = cursor.read_exactly((count + 7) // 8)
    columns = [_read_column(kind, meta, bool(nullable[index >> 3] >> (index & 7) & 1)) for index, kind in enumerate(types)]
    if meta.bytes_left():
        raise cursor.error("more is said of the columns than there is")
    table = _Described(database, name, columns, is_maria=is_maria)
    while cursor.bytes_left():
        field = cursor.read_uint(1)
        table.read_field(field, Cursor(cursor.read_lenenc_bytes(), what))
    return table.finish()


def _read_name(cursor: Cursor) -> str:
    name = cursor.read_name(cursor.read_uint(1))
    cursor.skip_bytes(1)  # a zero
    return name


def _read_column(code: int, meta: Cursor, is_nullable: bool) -> Column:
    try:
        kind = ColumnType(code)
    except ValueError:
        kind = ColumnType.TYPED_ARRAY
    if kind in (T.DECIMAL, T.NULL, T.TYPED_ARRAY):
        raise UnsupportedError(f"{meta.what}: a column of type {code}, which is not read")
    size = meta.read_exactly(_META_SIZES.get(kind, 0))
    if kind == T.BIT:
        return Column(kind, size[0] + 8 * size[1], 0, is_nullable)
    if kind == T.NEWDECIMAL:
        return Column(kind, size[0], size[1], is_nullable)
    if kind in (T.STRING, T.VAR_STRING, T.ENUM, T.SET):
        return _read_string_column(size, meta, is_nullable)
    return Column(kind, int.from_bytes(size, "little"), 0, is_nullable)


def _read_string_column(size: bytes, meta: Cursor, is_nullable: bool) -> Column:
    """The real type stands in the first byte. Two of its bits are the length's, inverted, if that needs ten."""
    code, length = size
    if code & 0x30 != 0x30:
        length |= (code & 0x30 ^ 0x30) << 4
        code |= 0x30
    if code not in (T.STRING, T.VAR_STRING, T.ENUM, T.SET):
        raise meta.error(f"a string column of type {code}")
    return Column(ColumnType(code), length, 0, is_nullable)


class _Described:
    """The columns while the optional metadata is read. Its fields come in any order."""

    def __init__(self, database: str, name: str, columns: list[Column], *, is_maria: bool) -> None:
        self.database, self.name, self.columns = database, name, columns
        self.is_maria = is_maria
        self.have_charset = _MARIA_HAVE_CHARSET if is_maria else _HAVE_CHARSET
        self.labels: dict[int, list[bytes]] = {}
        self.key: tuple[int, ...] = ()
        self.has_names = False

    def positions(self, *kinds: ColumnType) -> list[int]:
        return [index for index, column in enumerate(self.columns) if column.type in kinds]

    def change(self, index: int, **what: object) -> None:
        self.columns[index] = replace(self.columns[index], **what)  # type: ignore[arg-type]

    def read_field(self, field: int, cursor: Cursor) -> None:
        """Take one field. One that is not known is no loss: it adds to what the rest says."""
        match field:
            case 1:
                self.mark_bits(cursor, self.positions(*_NUMBERS), "is_unsigned")
            case 2:
                self.read_default_charset(cursor, self.positions(*self.have_charset))
            case 3:
                self.read_charsets(cursor, self.positions(*self.have_charset))
            case 4:
                for index in range(len(self.columns)):
                    self.change(index, name=decode_name(cursor.read_lenenc_bytes()))
                self.has_names = True
            case 5:
                self.read_labels(cursor, self.positions(T.SET))
            case 6:
                self.read_labels(cursor, self.positions(T.ENUM))
            case 8 | 9:
                self.read_key(cursor, with_prefix=field == 9)
            case 10:
                self.read_default_charset(cursor, self.positions(*_LABELLED))
            case 11:
                self.read_charsets(cursor, self.positions(*_LABELLED))
            case 12:
                self.mark_bits(cursor, list(range(len(self.columns))), "is_visible")

    def mark_bits(self, cursor: Cursor, positions: list[int], what: str) -> None:
        """A bit a column, the first is the highest of its byte."""
        bits = cursor.read_exactly((len(positions) + 7) // 8)
        for number, index in enumerate(positions):
            self.change(index, **{what: bool(bits[number >> 3] & (0x80 >> (number & 7)))})

    def read_default_charset(self, cursor: Cursor, positions: list[int]) -> None:
        default = cursor.read_lenenc()
        for index in positions:
            self.change(index, collation=default)
        while cursor.bytes_left():
            number = cursor.read_lenenc()
            self.change(self.pick(positions, number, cursor), collation=cursor.read_lenenc())

    def read_charsets(self, cursor: Cursor, positions: list[int]) -> None:
        for index in positions:
            self.change(index, collation=cursor.read_lenenc())

    def read_labels(self, cursor: Cursor, positions: list[int]) -> None:
        for index in positions:
            count = cursor.read_lenenc()
            if count > cursor.bytes_left():
                raise cursor.error(f"{count} labels")
            self.labels[index] = [cursor.read_lenenc_bytes() for _ in range(count)]

    def read_key(self, cursor: Cursor, *, with_prefix: bool) -> None:
        key = []
        while cursor.bytes_left():
            key.append(self.pick(list(range(len(self.columns))), cursor.read_lenenc(), cursor))
            if with_prefix:
                cursor.read_lenenc()
        self.key = tuple(key)

    def pick(self, positions: list[int], number: int, cursor: Cursor) -> int:
        if number >= len(positions):
            raise cursor.error(f"column {number} of {len(positions)} is described")
        return positions[number]

    def finish(self) -> Table:
        for index, found in self.labels.items():
            collation = self.columns[index].collation
            decode = text_decoder(BINARY if collation is None else collation)
            self.change(index, labels=tuple(map(decode, found)))
        hidden = sum(1 for _ in takewhile(_is_hash, reversed(self.columns))) if self.is_maria else 0
        return Table(self.database, self.name, tuple(self.columns), self.key, self.has_names, hidden)


def _is_hash(column: Column) -> bool:
    """Whether MariaDB keeps there the hash of a text or blob that is unique (seen with 10.11 and 11.8)."""
    is_named = bool(column.name and re.fullmatch(r"DB_ROW_HASH_\d+", column.name))
    return is_named and column.type == T.LONGLONG and column.is_unsigned is True


def check_width(table: Table, width: int) -> None:
    if width != len(table.columns):
        raise CorruptionError(f"rows of {width} columns for {table.database}.{table.name}, which has {len(table.columns)}")
