"""MySQL's binary JSON as the text that the server prints, and partial updates applied to it.

A document is a tree of dict, list, str, int, float, True, False, None and `Printed`. Printed is what JSON has no type
for: decimals, times and opaque bytes, as their text. Sources: `json_binary.h` and `Json_wrapper::to_string` of MySQL.
No document has more than 100 levels, which is the server's own limit. Elements that share bytes, which no server
writes, are found by their number: an element has at least three bytes of its own.
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.scalars import packed_date, packed_datetime, packed_time, read_decimal
from tidemark.errors import CorruptionError

DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Printed:
    """A value that is kept as its JSON text."""

    text: str


Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | Printed | None"


class Operation(IntEnum):
    """What a partial update does at a path."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


def read_document(data: bytes) -> Json:
    """The tree of a stored document. Empty bytes are JSON null: an INSERT IGNORE left them."""
    if not data:
        return None
    return _Reader(data).read_value(data[0], 1, 0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = len(data) * 2  # elements and bytes of text that the document can really hold

    def error(self, problem: str) -> CorruptionError:
        return CorruptionError(f"a JSON document of {len(self.data)} bytes: {problem}")

    def spend(self, amount: int) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise self.error("its elements share bytes")

    def read_at(self, at: int, length: int) -> bytes:
        if not 0 <= at <= at + length <= len(self.data):
            raise self.error(f"{length} bytes at {at} are not there")
        return self.data[at : at + length]

    def read_uint(self, at: int, size: int) -> int:
        return int.from_bytes(self.read_at(at, size), "little")

    def read_value(self, kind: int, at: int, depth: int) -> Json:
        self.spend(1)
        if kind <= 3:
            return self.read_container(kind, at, depth + 1)
        if kind == 4:
            return self.literal(self.read_uint(at, 1))
        if kind in _INTEGERS:
            size, signed = _INTEGERS[kind]
            return int.from_bytes(self.read_at(at, size), "little", signed=signed)
        if kind == 11:
            (value,) = struct.unpack("<d", self.read_at(at, 8))
            return float(value)
        if kind == 12:
            return self.read_string(at)
        if kind == 15:
            return self.read_opaque(at)
        raise self.error(f"a value of type {kind}")

    def literal(self, code: int) -> bool | None:
        if code > 2:
            raise self.error(f"the literal {code}")
        return (None, True, False)[code]

    def read_container(self, kind: int, at: int, depth: int) -> dict[str, Json] | list[Json]:
        if depth > DEEPEST:
            raise self.error(f"it has more than {DEEPEST} levels")
        wide = 4 if kind & 1 else 2
        is_object = kind <= 1
        count, size = self.read_uint(at, wide), self.read_uint(at + wide, wide)
        head = 2 * wide + count * ((wide + 2 if is_object else 0) + 1 + wide)
        if head > size:
            raise self.error(f"{count} elements in {size} bytes")
        self.read_at(at, size)
        entry = at + head - count * (1 + wide)
        values = [self.read_entry(entry + index * (1 + wide), at, wide, depth) for index in range(count)]
        if not is_object:
            return values
        keys = [self.read_key(at + 2 * wide + index * (wide + 2), at, wide) for index in range(count)]
        return dict(zip(keys, values, strict=True))

    def read_entry(self, entry: int, start: int, wide: int, depth: int) -> Json:
        kind = self.read_uint(entry, 1)
        if kind in (4, 5, 6) or (wide == 4 and kind in (7, 8)):
            return self.read_value(kind, entry + 1, depth)
        return self.read_value(kind, start + self.read_uint(entry + 1, wide), depth)

    def read_key(self, entry: int, start: int, wide: int) -> str:
        length = self.read_uint(entry + wide, 2)
        return self.decode(self.read_at(start + self.read_uint(entry, wide), length))

    def decode(self, data: bytes) -> str:
        self.spend(len(data))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error("its text is not UTF-8") from error

    def read_string(self, at: int) -> str:
        return self.decode(self.read_sized(at))

    def read_sized(self, at: int) -> bytes:
        length = 0
        for index in range(5):
            byte = self.read_uint(at + index, 1)
            length |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return self.read_at(at + index + 1, length)
        raise self.error("a length of more than five bytes")

    def read_opaque(self, at: int) -> Printed:
        kind = self.read_uint(at, 1)
        data = self.read_sized(at + 1)
        self.spend(len(data))
        if kind == 246 and len(data) > 2:
            return Printed(read_decimal(data[2:], data[0], data[1]))
        if kind in _PACKED and len(data) == 8:
            return Printed(f'"{_PACKED[kind](int.from_bytes(data, "little", signed=True))}"')
        text = base64.b64encode(data).decode()
        lines = "\n".join(text[at : at + 76] for at in range(0, len(text), 76))  # the server's encoder breaks lines
        return Printed(f'"base64:type{kind}:{lines}"')


_INTEGERS = {5: (2, True), 6: (2, False), 7: (4, True), 8: (4, False), 9: (8, True), 10: (8, False)}
_PACKED = {10: packed_date, 7: packed_datetime, 12: packed_datetime, 11: packed_time}

_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)}
_ESCAPES |= {34: '\\"', 92: r"\\", 8: r"\b", 12: r"\f", 10: r"\n", 13: r"\r", 9: r"\t"}


def print_document(value: Json) -> str:
    """The text that the server prints."""
    match value:
        case Printed():
            return value.text
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _print_double(value)
        case int():
            return str(value)
        case str():
            return _quote(value)
        case list():
            return f"[{', '.join(map(print_document, value))}]"
    return "{" + ", ".join(f"{_quote(key)}: {print_document(member)}" for key, member in value.items()) + "}"


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _print_double(value: float) -> str:
    """As the server's `my_gcvt`: plain digits for 0.00…01 (15 places) up to 15 digits, else with an exponent."""
    sign, digits, exponent = re.fullmatch(r"(-?)(\d+(?:\.\d+)?)(?:e([+-]\d+))?", repr(value)).groups()  # type: ignore[union-attr]
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(exponent or 0)
    figures = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(figures)
    figures = figures.rstrip("0")
    if not figures:
        return f"{sign}0.0"
    if not -14 <= point <= 15:
        head = figures[0] + ("." + figures[1:] if len(figures) > 1 else "")
        return f"{sign}{head}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    figures = figures.ljust(point, "0")
    return f"{sign}{figures[:point]}.{figures[point:] or '0'}"


def apply_updates(document: Json, data: bytes) -> Json:
    """The document after the partial updates of a row event. The given tree is changed where it can be."""
    cursor = Cursor(data, "a partial update of JSON")
    while cursor.bytes_left():
        operation = cursor.read_uint(1)
        path = cursor.read_lenenc_bytes().decode("utf-8", "backslashreplace")
        if operation > Operation.REMOVE:
            raise cursor.error(f"operation {operation}")
        value = None if operation == Operation.REMOVE else read_document(cursor.read_lenenc_bytes())
        legs = _parse_path(path)
        if not legs:
            if operation != Operation.REPLACE:
                raise cursor.error(f"operation {operation} at the whole document")
            document = value
            continue
        parent = document
        try:
            for leg in legs[:-1]:
                parent = _find(parent, leg)
            _apply(parent, legs[-1], Operation(operation), value)
        except LookupError as error:
            raise cursor.error(f"there is nothing at {path}") from error
    return document


def _find(parent: Json, leg: str | int) -> Json:
    """The member or element of a container. A LookupError if there is none."""
    if isinstance(parent, list) and isinstance(leg, int):
        return parent[leg]
    if isinstance(parent, dict) and isinstance(leg, str):
        return parent[leg]
    raise LookupError(leg)


def _apply(parent: Json, leg: str | int, operation: Operation, value: Json) -> None:
    if operation != Operation.INSERT:
        _find(parent, leg)
    if isinstance(parent, list) and isinstance(leg, int):
        leg += len(parent) if leg < 0 else 0
        replaced = [value] if operation != Operation.REMOVE else []
        parent[leg : leg + (operation != Operation.INSERT)] = replaced
    elif isinstance(parent, dict) and isinstance(leg, str):
        if operation == Operation.REMOVE:
            del parent[leg]
            return
        parent[leg] = value
        members = sorted(parent.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
        parent.clear()
        parent.update(members)
    else:
        raise LookupError(leg)


_LEG = re.compile(
    r"""\[(\d{1,10}|last(?:-\d{1,10})?)\] | \.("(?:[^"\\]|\\.)*") | \.([^."\[\]\s]+)""", re.VERBOSE | re.DOTALL
)


def _parse_index(text: str) -> int:
    """The number of an element, from the end where it is below 0. MySQL 9.7 logs `last-1` as a statement writes it."""
    last, _, before = text.partition("-")
    return -1 - int(before or 0) if last == "last" else int(text)


def _parse_path(path: str) -> list[str | int]:
    import json

    legs: list[str | int] = []
    at = 1
    try:
        while at < len(path) or not path.startswith("$"):
            found = _LEG.match(path, at)
            if found is None or len(legs) == DEEPEST:
                raise ValueError
            index, quoted, plain = found.groups()
            legs.append(_parse_index(index) if index is not None else json.loads(quoted, strict=False) if quoted else plain)
            at = found.end()
    except ValueError as error:
        raise CorruptionError(f"{path[:200]!r} is no path of a JSON document") from error
    return legs
