"""A log record as bytes: whatever is cut off or flips, nothing is read that was not written."""

from __future__ import annotations

import struct
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.replicas.core.record import (
    HEAD_BYTES,
    LONGEST_BODY,
    RecordKind,
    decode_record,
    encode_body,
    encode_record,
)
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.errors import CorruptionError, SchemaTooNewError

ID = uuid.UUID("0f8e1c52-7d1b-4a5e-9c1e-aaaaaaaaaaaa")


def log_of(*bodies: bytes) -> list[bytes]:
    records: list[bytes] = []
    end = ORIGIN
    for body in bodies:
        records.append(encode_record(end, 3, ID, RecordKind.ADD_FILES, body=body))
        end = decode_record(records[-1]).head.end
    return records


def resealed(record: bytes, offset: int, form: str, value: int) -> bytes:
    """The record with another value in its head and a head's CRC that fits."""
    head = bytearray(record[:60])
    struct.pack_into(form, head, offset, value)
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + record[HEAD_BYTES:]


RECORDS = log_of(b'{"a":1}', b"", b'{"b":2}')


def test_the_bytes_are_those_of_the_format_page() -> None:
    end = LogEnd(Position(2, 41), 0xA1B2C3D4)
    record = encode_record(end, 3, ID, RecordKind.REMOVE_FILES, body=b"{}")
    assert record.hex(" ", -4) == (
        "544d4c52 01000200 02000000 d4c3b2a1 2a000000 00000000 03000000 00000000 0f8e1c52 7d1b4a5e 9c1eaaaa aaaaaaaa "
        "43bfa6a3 00000000 00000000 846dbe1a 7b7d"
    )


def test_a_record_comes_back() -> None:
    stored = decode_record(encode_record(LogEnd(Position(2, 41), 7), 3, ID, RecordKind.SETTLE_MERGE, body=b"{}"))
    assert (stored.head.position, stored.head.previous_crc, stored.head.operation) == (Position(3, 42), 7, str(ID))
    assert (stored.kind, stored.body) == (RecordKind.SETTLE_MERGE, b"{}")


@given(st.binary(max_size=300))
def test_any_bytes_at_all_are_no_record(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_record(data)


def test_a_newer_format_is_refused_by_name_and_only_where_its_head_is_sound() -> None:
    newer = resealed(RECORDS[0], 4, "<H", 2)
    with pytest.raises(SchemaTooNewError, match="format 2"):
        decode_record(newer)
    with pytest.raises(CorruptionError):
        decode_record(newer[:4] + b"\x03" + newer[5:])


@pytest.mark.parametrize(("offset", "form", "value"), [(6, "<H", 99), (8, "<I", LONGEST_BODY + 1)], ids=["kind", "length"])
def test_what_the_format_does_not_have_is_refused(offset: int, form: str, value: int) -> None:
    with pytest.raises(CorruptionError, match="does not have"):
        decode_record(resealed(RECORDS[0], offset, form, value))
    with pytest.raises(ValueError, match="at most"):
        encode_record(ORIGIN, 1, ID, RecordKind.ADD_FILES, body=bytes(LONGEST_BODY + 1))


@pytest.mark.parametrize("data", [RECORDS[0][:-1], RECORDS[0] + b"x", RECORDS[0] + RECORDS[1]])
def test_a_record_file_holds_one_whole_record(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_record(data)


def test_equal_words_are_equal_bytes() -> None:
    assert encode_body({"b": "ü", "a": [1, 2]}) == encode_body({"a": [1, 2], "b": "ü"}) == '{"a":[1,2],"b":"ü"}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        encode_body({"a": float("nan")})
