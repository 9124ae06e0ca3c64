"""One value of each column type, at its extremes, from bytes as the servers' sources define them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.binlog_maker import SIGNED, UNSIGNED, changes_of, charset, field, lenenc, log, one_value, rows_event, table_map
from tidemark.changes.binlog.charsets import text_decoder
from tidemark.changes.binlog.scalars import read_decimal
from tidemark.changes.binlog.tables import Column, ColumnType
from tidemark.changes.binlog.values import ABSENT, as_json, value_reader
from tidemark.errors import CorruptionError, UnsupportedError

T = ColumnType


@pytest.mark.parametrize("kind", [T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG])
def test_integers_at_their_extremes(kind: ColumnType) -> None:
    size = {T.TINY: 1, T.SHORT: 2, T.INT24: 3, T.LONG: 4, T.LONGLONG: 8}[kind]
    highest = 2 ** (8 * size - 1)
    for value in (-highest, -1, 0, highest - 1):
        assert one_value(kind, b"", value.to_bytes(size, "little", signed=True), SIGNED) == value
    assert one_value(kind, b"", b"\xff" * size, UNSIGNED) == 2 * highest - 1


@pytest.mark.parametrize(
    ("kind", "meta", "stored", "expected"),
    [
        (T.FLOAT, "04", struct.pack("<f", -3.4e38), -3.3999999521443642e38),
        (T.DOUBLE, "08", struct.pack("<d", 5e-324), 5e-324),
        (T.YEAR, "", b"\0", 0),
        (T.YEAR, "", b"\xff", 2155),
        (T.YEAR, "", b"\x01", 1901),
        (T.DATE, "", bytes(3), "0000-00-00"),
        (T.DATE, "", ((2023 << 9) | 31).to_bytes(3, "little"), "2023-00-31"),
        (T.NEWDATE, "", ((9999 << 9) | (12 << 5) | 31).to_bytes(3, "little"), "9999-12-31"),
        (T.TIME, "", (8385959).to_bytes(3, "little"), "838:59:59"),
        (T.TIME, "", (-8385959).to_bytes(3, "little", signed=True), "-838:59:59"),
        (T.DATETIME, "", (20080203040506).to_bytes(8, "little"), "2008-02-03 04:05:06"),
        (T.DATETIME, "", bytes(8), "0000-00-00 00:00:00"),
        (T.TIMESTAMP, "", bytes(4), "0000-00-00 00:00:00"),
        (T.TIMESTAMP, "", (2**31 - 1).to_bytes(4, "little"), "2038-01-19 03:14:07"),
        (T.TIMESTAMP2, "00", (2**32 - 1).to_bytes(4, "big"), "2106-02-07 06:28:15"),
        (T.TIMESTAMP2, "03", bytes(6), "0000-00-00 00:00:00.000"),
        (T.TIMESTAMP2, "06", (1).to_bytes(4, "big") + (1).to_bytes(3, "big"), "1970-01-01 00:00:01.000001"),
        (T.DATETIME2, "00", "8000000000", "0000-00-00 00:00:00"),
        (T.DATETIME2, "02", "99b2bf7efb63", "2024-02-31 23:59:59.99"),
        (T.TIME2, "00", "800000", "00:00:00"),
        (T.TIME2, "01", "7fffff" + "ce", "-00:00:00.5"),
        (T.TIME2, "02", "7fffffff", "-00:00:00.01"),
        (T.TIME2, "06", "b46efb0f423f", "838:59:59.999999"),
        (T.TIME2, "06", "4b9104f0bdc1", "-838:59:59.999999"),
        (T.BIT, "0101", "01ff", 511),
        (T.BIT, "0008", "ff" * 8, 2**64 - 1),
        (T.GEOMETRY, "04", "19000000" + "e61000000101000000" + "00" * 16, bytes.fromhex("e61000000101000000") + bytes(16)),
        (T.VECTOR, "04", "040000000000803f", bytes.fromhex("0000803f")),
        (T.STRING, "fe03", "0161", b"a\0\0"),
        (T.VARCHAR, "0300", "0161", b"a"),
    ],
)
def test_a_stored_value(kind: ColumnType, meta: str, stored: str | bytes, expected: object) -> None:
    stored = stored if isinstance(stored, bytes) else bytes.fromhex(stored)
    value = one_value(kind, bytes.fromhex(meta), stored, charset(63))
    assert value == expected and type(value) is type(expected)


def test_minus_zero_and_floats_are_kept_bit_for_bit() -> None:
    for bits in (0x8000000000000000, 0x7FEFFFFFFFFFFFFF, 0x0000000000000001, 0xC0934A456D5CFAAD):
        value: Any = one_value(T.DOUBLE, b"\x08", struct.pack("<Q", bits))
        assert struct.unpack("<Q", struct.pack("<d", value)) == (bits,)


@pytest.mark.parametrize(
    ("precision", "scale", "stored", "expected"),
    [
        (14, 4, "810dfb38d204d2", "1234567890.1234"),
        (14, 4, "7ef204c72dfb2d", "-1234567890.1234"),
        (65, 30, "7f" + "ff" * 29, "0.000000000000000000000000000000"),
        (5, 5, "80c350", "0.50000"),
        (1, 0, "7f", "0"),
        (1, 0, "76", "-9"),
        (9, 0, "80000001", "1"),
    ],
)
def test_decimals(precision: int, scale: int, stored: str, expected: str) -> None:
    assert read_decimal(bytes.fromhex(stored), precision, scale) == expected
    assert one_value(T.NEWDECIMAL, bytes([precision, scale]), bytes.fromhex(stored), SIGNED) == expected


def test_the_largest_decimal() -> None:
    nines = (10**9 - 1).to_bytes(4, "big")
    whole = bytes([99_999_999 >> 24 | 0x80]) + (99_999_999).to_bytes(4, "big")[1:] + nines * 3
    stored = whole + nines * 3 + (999).to_bytes(2, "big")
    assert read_decimal(stored, 65, 30) == "9" * 35 + "." + "9" * 30
    assert read_decimal(bytes(byte ^ 0xFF for byte in stored), 65, 30) == "-" + "9" * 35 + "." + "9" * 30


def test_labels() -> None:
    labels = field(6, lenenc(2) + b"\x03a,b" + b"\x02\xc3\xa9")
    enum = charset(45) + field(10, lenenc(45))
    assert [one_value(T.STRING, b"\xf7\x01", bytes([number]), enum, labels) for number in (0, 1, 2)] == ["", "a,b", "é"]
    with pytest.raises(CorruptionError, match="label 3 of an ENUM of 2"):
        one_value(T.STRING, b"\xf7\x01", b"\x03", enum, labels)
    labels = field(5, lenenc(3) + b"\x01x\x01y\x01z")
    assert [one_value(T.STRING, b"\xf8\x01", bytes([bits]), enum, labels) for bits in (0, 5, 7)] == ["", "x,z", "x,y,z"]
    with pytest.raises(CorruptionError, match="bits 8 of a SET of 3"):
        one_value(T.STRING, b"\xf8\x01", b"\x08", enum, labels)


@pytest.mark.parametrize(
    ("collation", "stored", "expected"),
    [
        (8, "63616680ff81", "caf€ÿ\x81"),
        (1032, "e9", "é"),
        (33, "c3a9", "é"),
        (255, "f09f9a80", "🚀"),
        (2304, "f09f9a80", "🚀"),
        (51, "cff0", "Пр"),
        (28, "d6d0", "中"),
        (54, "d83dde80", "🚀"),
        (61, "0001f680", "🚀"),
        (13, "93fa", "日"),
        (97, "a1c1a1dda1f1", "～－￠"),  # here and below as servers have it; Python has others
        (36, "8ffcfd", "Пⁿ²"),
        (25, "a1a2e1", "ʽʼα"),
        (16, "af", "‾"),
        (22, "95", "•"),
        (13, "815f5c", "\\\\"),
        (12, "a1c0", "\\"),
        (45, "ff", b"\xff"),  # not valid: as it is stored
        (3, "41", b"A"),  # dec8, which Python does not know
    ],
)
def test_text_of_many_charsets(collation: int, stored: str, expected: object) -> None:
    data = bytes.fromhex(stored)
    assert text_decoder(collation)(data) == expected
    assert one_value(T.VARCHAR, b"\xff\0", bytes([len(data)]) + data, charset(collation)) == expected


def test_a_long_char_has_its_length_in_two_bytes() -> None:
    """CHAR of 255 utf8mb4 characters: two bits of its 1,020 stand in the type."""
    meta = bytes([0xFE & ~0x30 | ((1020 >> 4) & 0x30 ^ 0x30), 1020 & 0xFF])
    assert one_value(T.STRING, meta, b"\x02\0ab", charset(45)) == "ab"


@pytest.mark.parametrize(
    ("declared", "stored", "expected"),
    [
        ("uuid", "0198b1a1c2d3", "0198b1a1-c2d3-0000-0000-000000000000"),
        ("inet6", "", "::"),
        ("inet6", "20010db8", "2001:db8::"),
        ("inet4", "7f000001", "127.0.0.1"),
    ],
)
def test_types_that_a_log_does_not_tell_from_binary(declared: str, stored: str, expected: str) -> None:
    size = 4 if declared == "inet4" else 16
    column = Column(T.STRING, size, 0, is_nullable=True, collation=63, declared=declared)
    data = bytes.fromhex(stored)
    assert value_reader(column)(bytes([len(data)]) + data, 0) == (expected, 1 + len(data))


def test_null_absent_and_value_are_three_states() -> None:
    rows = rows_event(b"\x01" + b"\x07", 3, present=0b101)
    assert changes_of(log(table_map([T.TINY] * 3, b"", SIGNED), rows)) == [("I", (None, (None, ABSENT, 7)))]
    shown = [as_json(value) for value in (None, ABSENT, b"\x00\xff", "x", 1)]
    assert shown == [None, {"absent": True}, {"hex": "00ff"}, "x", 1]


def test_columns_that_are_not_read_are_refused_by_name() -> None:
    for kind in (T.DECIMAL, T.NULL, T.TYPED_ARRAY, 99):
        with pytest.raises(UnsupportedError, match=f"a column of type {int(kind)}, which is not read"):
            changes_of(log(table_map([kind])))
