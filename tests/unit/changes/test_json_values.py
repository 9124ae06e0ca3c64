"""MySQL's binary JSON: printed as the server prints it, and changed by partial updates."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from tests.binlog_maker import changes_of, lenenc, log, one_value, rows_event, table_map, uint
from tidemark.changes.binlog.json_values import DEEPEST, Json, Printed, apply_updates, print_document, read_document
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.errors import CorruptionError


def store(value: Any, *, is_large: bool = False) -> bytes:
    """A document as `json_binary.cc` stores it."""
    kind, body = _store(value, is_large)
    return bytes([kind]) + body


def _store(value: Any, is_large: bool) -> tuple[int, bytes]:
    match value:
        case None | bool():
            return 4, bytes([{None: 0, True: 1, False: 2}[value]])
        case int():
            sizes = [(5, 2, True), (6, 2, False), (7, 4, True), (8, 4, False), (9, 8, True), (10, 8, False)]
            kind, size, signed = next(
                found for found in sizes if -(2 ** (8 * found[1] - 1)) * found[2] <= value < 2 ** (8 * found[1] - found[2])
            )
            return kind, value.to_bytes(size, "little", signed=signed)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            return 12, _sized(value.encode())
        case bytes():  # opaque: the type, then the value
            return 15, value[:1] + _sized(value[1:])
    return _store_container(value, is_large)


def _store_container(value: Any, is_large: bool) -> tuple[int, bytes]:
    wide = 4 if is_large else 2
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    members = [_store(member, is_large) for member in (value.values() if keys else value)]
    at = 2 * wide + len(keys) * (wide + 2) + len(members) * (1 + wide)
    entries, tail = b"", b""
    for key in keys:
        entries += uint(at + len(tail), wide) + uint(len(key), 2)
        tail += key
    for kind, body in members:
        if kind in (4, 5, 6) or (is_large and kind in (7, 8)):
            entries += bytes([kind]) + body.ljust(wide, b"\0")
        else:
            entries += bytes([kind]) + uint(at + len(tail), wide)
            tail += body
    head = uint(len(members), wide) + uint(at + len(tail), wide)
    return (0 if isinstance(value, dict) else 2) + is_large, head + entries + tail


def _sized(data: bytes) -> bytes:
    size, head = len(data), b""
    while size > 0x7F:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + data


DAY = 2015 * 13 + 1 << 22 | 15 << 17


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (None, "null"),
        ([True, False, None], "[true, false, null]"),
        ({}, "{}"),
        ([[], {"a": []}], '[[], {"a": []}]'),
        ({"a": 1, "bb": [2, "x"]}, '{"a": 1, "bb": [2, "x"]}'),
        ([-32768, 65535, -(2**31), 2**32 - 1], "[-32768, 65535, -2147483648, 4294967295]"),
        ([-(2**63), 2**64 - 1], "[-9223372036854775808, 18446744073709551615]"),
        ("Zoë\t\"\\/\x01\x7f🚀\n", '"Zoë\\t\\"\\\\/\\u0001\x7f🚀\\n"'),
        ("x" * 300, '"' + "x" * 300 + '"'),
        ([1.0, -0.0, 0.1, 1e20, 1.5e-20], "[1.0, -0.0, 0.1, 1e20, 1.5e-20]"),
        ([1e15, 1e14, 123456789.125], "[1e15, 100000000000000.0, 123456789.125]"),
        ([1e-14, 1e-15, 1e-16, 5e-324], "[0.00000000000001, 0.000000000000001, 1e-16, 5e-324]"),
        ([1.7976931348623157e308, 0.30000000000000004], "[1.7976931348623157e308, 0.30000000000000004]"),
        (b"\xf6\x0e\x04" + bytes.fromhex("810dfb38d204d2"), "1234567890.1234"),
        (b"\x0c" + struct.pack("<q", (DAY | 23 << 12 | 24 << 6 | 25) << 24), '"2015-01-15 23:24:25.000000"'),
        (b"\x0a" + struct.pack("<q", DAY << 24), '"2015-01-15"'),
        (b"\x0b" + struct.pack("<q", -((838 << 12 | 59 << 6 | 59) << 24 | 500_000)), '"-838:59:59.500000"'),
        (b"\xfc" + b"\0\xff", '"base64:type252:AP8="'),
        (b"\xfc" + bytes(60), '"base64:type252:' + "A" * 76 + "\n" + "A" * 4 + '"'),
    ],
)  # fmt: skip
def test_a_document_is_printed_as_the_server_prints_it(value: Any, printed: str, is_large: bool) -> None:
    assert print_document(read_document(store(value, is_large=is_large))) == printed
    data = store(value, is_large=is_large)
    assert one_value(T.JSON, b"\x04", uint(len(data), 4) + data) == printed


def test_nothing_is_null() -> None:
    assert one_value(T.JSON, b"\x04", bytes(4)) == "null"


def test_a_hundred_levels_are_read_and_not_one_more() -> None:
    document: list[Any] = []
    for _ in range(DEEPEST - 1):
        document = [document]
    assert print_document(read_document(store(document))) == "[" * DEEPEST + "]" * DEEPEST
    with pytest.raises(CorruptionError, match="more than 100 levels"):
        read_document(store([document]))


def change(operation: int, path: str, value: Any = None) -> bytes:
    data = b"" if operation == 2 else store(value)
    told = bytes([operation]) + lenenc(len(path.encode())) + path.encode()
    return told if operation == 2 else told + lenenc(len(data)) + data


DOCUMENT: Json = {"a": 1, "b": [1, {"x y": "z"}], "cc": {"d": None}}


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        (change(0, "$", 7), "7"),
        (change(0, "$.a", 2.5), '{"a": 2.5, "b": [1, {"x y": "z"}], "cc": {"d": null}}'),
        (change(0, '$.b[1]."x y"', "w"), '{"a": 1, "b": [1, {"x y": "w"}], "cc": {"d": null}}'),
        (change(1, "$.b[0]", 0), '{"a": 1, "b": [0, 1, {"x y": "z"}], "cc": {"d": null}}'),
        (change(1, "$.b[9]", 0), '{"a": 1, "b": [1, {"x y": "z"}, 0], "cc": {"d": null}}'),
        (change(1, "$.aa", 0), '{"a": 1, "b": [1, {"x y": "z"}], "aa": 0, "cc": {"d": null}}'),
        (change(2, "$.b[0]") + change(2, "$.cc.d"), '{"a": 1, "b": [{"x y": "z"}], "cc": {}}'),
        (b"", '{"a": 1, "b": [1, {"x y": "z"}], "cc": {"d": null}}'),
    ],
)
def test_a_partial_update(changes: bytes, printed: str) -> None:
    old = store(DOCUMENT)
    assert print_document(apply_updates(read_document(old), changes)) == printed
    rows = b"\0" + uint(len(old), 4) + old + b"\x01\x01" + b"\0" + uint(len(changes), 4) + changes
    made = log(table_map([T.JSON], b"\x04"), rows_event(rows, 1, kind=E.PARTIAL_UPDATE_ROWS))
    assert changes_of(made) == [("U", ((print_document(read_document(old)),), (printed,)))]


@pytest.mark.parametrize(
    "changes",
    [
        *(change(0, "$.zz", 1), change(0, "$.b[7]", 1), change(2, "$.a.b"), change(1, "$.a[0]", 1), change(2, "$")),
        *(
            change(0, '$."\\q"', 1),
            change(0, "$.", 1),
            change(0, "a", 1),
            change(0, "$[x]", 1),
            b"\x03\x01$",
            b"\0\xfc\xff\xff",
        ),
    ],
)
def test_an_update_of_what_is_not_there_is_refused(changes: bytes) -> None:
    with pytest.raises(CorruptionError):
        apply_updates(read_document(store(DOCUMENT)), changes)


def test_what_json_has_no_type_for_stays_its_text() -> None:
    assert read_document(store(b"\xfc" + b"x")) == Printed(f'"base64:type252:{base64.b64encode(b"x").decode()}"')
