"""Schema logs of all forms; the real ones give the series and types that the servers answer with."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.expected import SITES
from tests.unit.tsfiles.handmade import int_string
from tidemark.errors import CorruptionError
from tidemark.tsfiles.companions.schema_log import SchemaRecord, decode_log, form_of

TEXT = b"2,root.turbine\n0,root.turbine.d1.s1,3,2,1,,temperature,-1\n1,root.turbine.d1.s1\n"


def frame(record: bytes, checksum: int | None = 0) -> bytes:
    return struct.pack(">i", len(record)) + record + struct.pack(">q", zlib.crc32(record) if checksum is None else checksum)


def create(path: str, codes: tuple[int, int, int] = (4, 8, 7)) -> bytes:
    return b"\x04" + int_string(path) + bytes(codes) + struct.pack(">q", -1) + bytes(12)


@pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())
def test_the_real_logs_give_the_servers_series(site) -> None:
    series, aligned = {}, set()
    for path in sorted((site.root / site.schema).rglob("mlog.bin")):
        records, end = decode_log(path.read_bytes(), "binary", str(path))
        assert end == path.stat().st_size
        assert "unknown" not in {record.kind for record in records}
        for record in records:
            if record.kind == "create":
                series[record.series] = (record.type, record.encoding, record.compression)
                if record.aligned:
                    aligned.add(record.series.rpartition(".")[0])
    assert series == site.series()
    assert aligned == (set() if site.name == "0.12.0" else {"root.plant1.line1.a1", "root.plant1.line2.a2"})


def test_the_table_models_devices_are_those_of_the_data() -> None:
    site = SITES["2.0.1-beta"]
    log = site.root / site.schema / "works" / "6" / "mlog.bin"
    records, _ = decode_log(log.read_bytes(), "binary")
    devices = {record.series for record in records if record.kind == "create_device"}
    assert devices == {row[0] for row in site.rows() if row[0].startswith("works.")}


def test_text_form_of_09_to_011() -> None:
    records, end = decode_log(TEXT, "text")
    assert end == len(TEXT)
    assert records == [
        SchemaRecord("create_database", "root.turbine"),
        SchemaRecord("create", "root.turbine.d1.s1", "FLOAT", "RLE", "SNAPPY"),
        SchemaRecord("delete", "root.turbine.d1.s1"),
    ]


def test_text_records_that_say_nothing_about_series() -> None:
    records, _ = decode_log(b"10,root.turbine,10\n99,x\n11,root.turbine\n", "text")
    assert [(record.kind, record.detail) for record in records[:2]] == [("other", "record 10"), ("unknown", "record 99")]
    assert records[2] == SchemaRecord("delete_database", "root.turbine")


def test_binary_deletions_databases_and_unknown_kinds() -> None:
    log = frame(b"\x03" + int_string("root.a") + bytes(8), None)
    log += frame(b"\x15" + struct.pack(">i", 2) + int_string("root.a.d1.s1") + int_string("root.a.d1.s2") + bytes(8), None)
    log += frame(b"\x3f" + b"whatever a newer IoTDB writes")
    log += frame(b"\x13" + struct.pack(">i", 1) + int_string("root.a") + bytes(8))
    records, end = decode_log(log, "binary")
    assert end == len(log)
    assert records == [
        SchemaRecord("create_database", "root.a"),
        SchemaRecord("delete", "root.a.d1.s1"),
        SchemaRecord("delete", "root.a.d1.s2"),
        SchemaRecord("unknown", detail="plan 63"),
        SchemaRecord("delete_database", "root.a"),
    ]


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_torn_last_record_is_left_for_the_next_look(form: str) -> None:
    first = b"2,root.a\n" if form == "text" else frame(create("root.a.d1.s1"))
    second = b"0,root.a.d1.s2,3,2,1,,,-1\n" if form == "text" else frame(create("root.a.d1.s2"))
    for cut in range(len(second)):
        records, end = decode_log(first + second[:cut], form)
        assert (len(records), end) == (1, len(first)), cut
    records, end = decode_log(second, form)  # what the next look begins with
    assert (len(records), end) == (1, len(second))


def test_a_log_filled_up_with_zeros_ends_before_them() -> None:
    log = frame(create("root.a.d1.s1"))
    assert decode_log(log + bytes(64), "binary")[1] == len(log)


def test_codes_of_a_newer_iotdb_are_told_as_numbers() -> None:
    ((record,), _) = decode_log(frame(create("root.a.d1.s1", (77, 78, 79))), "binary")
    assert (record.type, record.encoding, record.compression) == ("#77", "#78", "#79")


@pytest.mark.parametrize(
    ("log", "form", "problem"),
    [
        (frame(create("root.a.d1.s1"), 12345), "binary", "differs from its checksum"),
        (frame(b"\x04" + int_string("root.a.d1.s1")), "binary", "bytes announced"),
        (frame(b"\x04" + struct.pack(">i", 9999) + b"root"), "binary", "9999 bytes announced"),
        (struct.pack(">i", -7) + bytes(20), "binary", "a record of -7 bytes"),
        (b"0,root.a.s\n", "text", "line 1: a record of kind 0 with 2 fields"),
        (b"0,root.a.s,x,y,z\n", "text", "without numbers"),
    ],
)
def test_a_damaged_record_is_named(log: bytes, form: str, problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        decode_log(log, form, "mlog")


def test_the_form_is_told_by_the_name() -> None:
    assert form_of("system/schema/root.a/0/mlog.bin") == "binary"
    assert form_of("system/schema/mlog.txt") == "text"
    assert form_of("system/schema/tlog.txt") is None
