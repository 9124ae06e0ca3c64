"""Read one value of each column type out of a row image.

A value is an int (integers, BIT, YEAR), a float, a str (text, DECIMAL, dates and times in UTC, the label of an ENUM, the
labels of a SET with commas, JSON, UUID, INET), bytes (binary, GEOMETRY, VECTOR), None for NULL, or ABSENT if the image
does not have the column. What is not known (`Column.unknown`) is left raw: a signed integer, bytes, the number of a label.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from typing import TypeAlias

from tidemark.changes.binlog import scalars
from tidemark.changes.binlog.charsets import BINARY, text_decoder
from tidemark.changes.binlog.cursor import inflate_zlib
from tidemark.changes.binlog.gtid_sets import uuid_text
from tidemark.changes.binlog.json_values import print_document, read_document
from tidemark.changes.binlog.tables import INTEGERS, Column, T, Table
from tidemark.errors import CorruptionError


class Absent(Enum):
    """The third state beside NULL and a value: the image does not have the column."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
Value: TypeAlias = int | float | str | bytes | Absent | None
ReadValue: TypeAlias = Callable[[bytes, int], tuple[Value, int]]
"""From an image and a place in it to the value there and the place behind it."""


def as_json(value: Value) -> object:
    """The value in the canonical JSON of a row."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return {"absent": True} if value is ABSENT else value


def take(data: bytes, at: int, size: int) -> bytes:
    """`size` bytes at `at`, which must be there."""
    found = data[at : at + size]
    if len(found) != size:
        raise CorruptionError(f"a value of {size} bytes where {len(data) - at} are left in the row event")
    return found


def take_sized(prefix: int, data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind their length, which has `prefix` bytes."""
    size = int.from_bytes(take(data, at, prefix), "little")
    at += prefix
    return take(data, at, size), at + size


@lru_cache(maxsize=64)
def table_readers(table: Table) -> tuple[ReadValue, ...]:
    """The functions that read the values of a table's columns."""
    return tuple(map(value_reader, table.columns))


def value_reader(column: Column) -> ReadValue:
    """The function that reads the values of a column."""
    if column.type in INTEGERS:
        return partial(_read_integer, INTEGERS[column.type], not column.is_unsigned)
    if column.type in _SIZED:
        return _sized_reader(column)
    return _READERS[column.type](column)


def _read_integer(size: int, signed: bool, data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(take(data, at, size), "little", signed=signed), at + size


def _fixed(size: int, convert: Callable[[bytes], Value]) -> ReadValue:
    """The reader of values of one size."""

    def read(data: bytes, at: int) -> tuple[Value, int]:
        return convert(take(data, at, size)), at + size

    return read


def _sized(prefix: int, convert: Callable[[bytes], Value]) -> ReadValue:
    """The reader of values with their length before them."""
    if not 1 <= prefix <= 4:
        raise CorruptionError(f"a column with lengths of {prefix} bytes")

    def read(data: bytes, at: int) -> tuple[Value, int]:
        found, at = take_sized(prefix, data, at)
        return convert(found), at

    return read


_SIZED = {
    *(T.VARCHAR, T.VARCHAR_COMPRESSED, T.STRING, T.VAR_STRING, T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB),
    *(T.BLOB_COMPRESSED, T.JSON, T.GEOMETRY, T.VECTOR),
}
_COUNTED_BY_SIZE = (T.VARCHAR, T.VARCHAR_COMPRESSED, T.STRING, T.VAR_STRING)


def length_size(column: Column) -> int:
    """The bytes of the length before a value."""
    if column.type in _COUNTED_BY_SIZE:
        return 1 if column.size < 256 else 2
    return column.size


def _sized_reader(column: Column) -> ReadValue:
    if column.type == T.JSON:
        return _sized(column.size, lambda data: print_document(read_document(data)))
    if column.type in (T.GEOMETRY, T.VECTOR):
        return _sized(column.size, bytes)
    decode: Callable[[bytes], Value] = text_decoder(BINARY if column.collation is None else column.collation)
    if column.type in (T.VARCHAR_COMPRESSED, T.BLOB_COMPRESSED):
        return _sized(length_size(column), lambda data: decode(_inflate_column(data)))
    if column.type == T.STRING and column.collation == BINARY:
        return _sized(length_size(column), _binary_converter(column))
    return _sized(length_size(column), decode)


def _binary_converter(column: Column) -> Callable[[bytes], Value]:
    """BINARY(n) stands in a log without the zeros at its end."""
    shown: dict[str, Callable[[bytes], str]] = {
        "uuid": uuid_text,
        "inet6": partial(socket.inet_ntop, socket.AF_INET6),
        "inet4": socket.inet_ntoa,
    }
    show: Callable[[bytes], Value] = shown.get(column.declared, bytes)
    return lambda data: show(data.ljust(column.size, b"\0"))


def _inflate_column(data: bytes) -> bytes:
    """MariaDB's COMPRESSED: a byte with the method and the size of the length, the length (big-endian), then deflate."""
    if not data or data[0] == 0:
        return data[1:]
    method, is_raw, prefix = data[0] >> 4, data[0] & 8, data[0] & 7
    if method != 8:
        raise CorruptionError(f"a column is compressed by the unknown method {method}")
    size = int.from_bytes(data[1 : 1 + prefix], "big")
    return inflate_zlib(data[1 + prefix :], size, "a compressed column", -zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)


def _float_reader(column: Column) -> ReadValue:
    form = struct.Struct("<f" if column.type == T.FLOAT else "<d")
    if column.size != form.size:
        raise CorruptionError(f"a float of {column.size} bytes")
    return _fixed(form.size, lambda data: float(form.unpack(data)[0]))


def _decimal_reader(column: Column) -> ReadValue:
    precision, scale = column.size, column.scale
    return _fixed(scalars.decimal_size(precision, scale), lambda data: scalars.read_decimal(data, precision, scale))


def _time_reader(size: int, convert: Callable[[bytes, int], str]) -> Callable[[Column], ReadValue]:
    """For times with a fraction: `size` bytes without it."""

    def make(column: Column) -> ReadValue:
        digits = column.size
        return _fixed(size + scalars.fraction_size(digits), lambda data: convert(data, digits))

    return make


def _bit_reader(column: Column) -> ReadValue:
    if not 1 <= column.size <= 64:
        raise CorruptionError(f"a BIT({column.size})")
    return _fixed((column.size + 7) // 8, lambda data: int.from_bytes(data, "big"))


def _enum_reader(column: Column) -> ReadValue:
    if column.size not in (1, 2):
        raise CorruptionError(f"an ENUM of {column.size} bytes")
    labels = column.labels

    def convert(data: bytes) -> Value:
        number = int.from_bytes(data, "little")
        if labels is None:
            return number
        if number > len(labels):
            raise CorruptionError(f"label {number} of an ENUM of {len(labels)}")
        return labels[number - 1] if number else ""  # 0: what the server keeps of an invalid value

    return _fixed(column.size, convert)


def _set_reader(column: Column) -> ReadValue:
    if not 1 <= column.size <= 8:
        raise CorruptionError(f"a SET of {column.size} bytes")
    labels = column.labels

    def convert(data: bytes) -> Value:
        bits = int.from_bytes(data, "little")
        if labels is None:
            return bits
        if bits >> len(labels):
            raise CorruptionError(f"bits {bits:x} of a SET of {len(labels)}")
        chosen = [label for number, label in enumerate(labels) if bits >> number & 1]
        if all(isinstance(label, str) for label in chosen):
            return ",".join(map(str, chosen))
        return b",".join(label if isinstance(label, bytes) else label.encode() for label in chosen)

    return _fixed(column.size, convert)


_READERS: dict[int, Callable[[Column], ReadValue]] = {
    T.FLOAT: _float_reader,
    T.DOUBLE: _float_reader,
    T.NEWDECIMAL: _decimal_reader,
    T.DATE: lambda _: _fixed(3, scalars.read_date),
    T.NEWDATE: lambda _: _fixed(3, scalars.read_date),
    T.TIME: lambda _: _fixed(3, scalars.read_old_time),
    T.DATETIME: lambda _: _fixed(8, scalars.read_old_datetime),
    T.TIMESTAMP: lambda _: _fixed(4, lambda data: scalars.read_timestamp(data[::-1], 0)),
    T.TIMESTAMP2: _time_reader(4, scalars.read_timestamp),
    T.DATETIME2: _time_reader(5, scalars.read_datetime),
    T.TIME2: _time_reader(3, scalars.read_time),
    T.YEAR: lambda _: _fixed(1, lambda data: data[0] and 1900 + data[0]),
    T.BIT: _bit_reader,
    T.ENUM: _enum_reader,
    T.SET: _set_reader,
}
