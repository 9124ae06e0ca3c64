"""A log record as bytes: whatever is cut off or flips, nothing is read that was not written."""

from __future__ import annotations

import struct
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.replicas.core.continuity import LogState, check_log
from tidemark.cluster.replicas.core.record import (
    HEAD_BYTES,
    LONGEST_BODY,
    RecordKind,
    StoredRecord,
    decode_record,
    encode_body,
    encode_record,
    read_records,
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


def judged(data: bytes) -> tuple[LogState, list[StoredRecord]]:
    found = list(read_records(data))
    state, log = check_log(ORIGIN, [one and one.head for one in found])
    return state, [one for one in found[: len(log.records)] if one]


def resealed(record: bytes, offset: int, form: str, value: int) -> bytes:
    """The record with another value in its head and a head's CRC that fits."""
    head = bytearray(record[:60])
    struct.pack_into(form, head, offset, value)
    return bytes(head) + zlib.crc32(head).to_bytes(4, "little") + record[HEAD_BYTES:]


RECORDS = log_of(b'{"a":1}', b"", b'{"b":2}')
WRITTEN = [decode_record(record) for record in RECORDS]


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


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_every_cut_leaves_the_whole_records_before_it(bodies: list[bytes], data: st.DataObject) -> None:
    records = log_of(*bodies)
    whole = b"".join(records)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, records[:n])) for n in range(len(records) + 1)]
    state, found = judged(whole[:cut])
    assert [one.body for one in found] == bodies[: sum(end <= cut for end in ends) - 1]
    assert state is (LogState.SOUND if cut in ends else LogState.TORN)


def test_every_flipped_bit_is_noticed() -> None:
    whole = b"".join(RECORDS)
    last = len(whole) - len(RECORDS[2])
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        state, found = judged(bytes(flipped))
        before = 0 if bit // 8 < len(RECORDS[0]) else 1 if bit // 8 < last else 2
        assert found == WRITTEN[:before]
        assert state is (LogState.TORN if bit // 8 >= last + HEAD_BYTES else LogState.BROKEN)


def test_a_record_that_is_left_out_or_doubled_breaks_the_chain() -> None:
    first, second, third = RECORDS
    assert judged(first + third) == (LogState.BROKEN, WRITTEN[:1])
    assert judged(first + second + second + third) == (LogState.BROKEN, WRITTEN[:2])


def test_zeros_that_a_power_loss_left_behind_the_end_are_a_torn_record() -> None:
    assert judged(b"".join(RECORDS) + bytes(500)) == (LogState.TORN, WRITTEN)


@given(st.binary(max_size=300))
def test_any_bytes_at_all_are_no_record(data: bytes) -> None:
    assert judged(data)[1] == []
    with pytest.raises(CorruptionError):
        decode_record(data)


def test_a_newer_format_is_refused_by_name_and_only_where_its_head_is_sound() -> None:
    newer = resealed(RECORDS[0], 4, "<H", 2)
    for read in (decode_record, judged):
        with pytest.raises(SchemaTooNewError, match="format 2"):
            read(newer)
    assert judged(newer[:4] + b"\x03" + newer[5:])[0] is LogState.BROKEN


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
