"""Events that recorded logs do not have: tagged GTIDs, old and foreign logs, unknown events, checksums that are wrong."""

from __future__ import annotations

import zlib

import pytest

from tests.binlog_maker import (
    SIGNED,
    changes_of,
    checked,
    description,
    event,
    field,
    lenenc,
    log,
    read_log,
    rows_event,
    table_map,
    table_of,
    uint,
)
from tidemark.changes.binlog import events
from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import IGNORABLE, MAGIC, EventType
from tidemark.changes.binlog.reader import EventDecoder
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.errors import CorruptionError, TidemarkError, UnsupportedError

E = EventType
UUID = "0198b1a1-c2d3-11f0-8899-aabbccddeeff"


def body_of(made: bytes, server: str = "8.4.0") -> object:
    return read_log(log(made, server=server))[1].body


def varlen(value: int) -> bytes:
    """An integer of mysql::serialization, up to eight bytes."""
    size = next(size for size in range(1, 9) if value < 1 << 7 * size)
    return ((value << size) | ((1 << size - 1) - 1)).to_bytes(size, "little")


def test_a_tagged_gtid() -> None:
    uuid = bytes.fromhex(UUID.replace("-", ""))
    fields = [
        *(varlen(0) + varlen(1), varlen(1) + b"".join(map(varlen, uuid)), varlen(2) + varlen(70_000 << 1)),
        *(varlen(3) + varlen(5) + b"batch", varlen(4) + varlen(2), varlen(5) + varlen(4)),
        *(varlen(6) + varlen(1_739_270_369_410_361), varlen(8) + varlen(215)),
    ]
    size = 3 + len(b"".join(fields))
    body = varlen(1) + varlen(size) + varlen(8) + b"".join(fields)
    gtid = body_of(event(E.GTID_TAGGED, body), "9.6.0")
    assert gtid == events.Gtid(UUID, 70_000, "batch", 1_739_270_369_410_361, 1_739_270_369_410_361, 215)
    assert isinstance(gtid, events.Gtid) and gtid.text == f"{UUID}:batch:70000"


def test_a_tagged_gtid_of_a_server() -> None:
    """MySQL 9.7.4 sent it."""
    body = "0270000000029ea25102d503a5038822c50319027e04f10300000002040406087461673108000a040c7f8425210b2561061099041283120b"
    gtid = body_of(event(E.GTID_TAGGED, bytes.fromhex(body)), "9.7.4")
    assert isinstance(gtid, events.Gtid)
    assert gtid.text == "4f5194f5-e944-11f1-863f-02fc00000001:tag1:1"
    assert gtid.transaction_length == 294


def test_numbers_of_the_tagged_form_are_those_of_the_servers_documentation() -> None:
    for stored, value in (
        ("c3020b", 90_200),
        ("fbff07", 65_535),
        ("5d03", 215),
        ("7f397d8970db2d06", 1_739_270_369_410_361),
    ):
        assert Cursor(bytes.fromhex(stored), "").read_varlen() == value
    for stored, value in (("04", 1), ("d903", 123), ("f3ff0f", 65_535), ("ebff0f", -65_535), ("fbff0f", -65_536)):
        assert Cursor(bytes.fromhex(stored), "").read_signed_varlen() == value
    assert Cursor(b"\xff" * 9, "").read_varlen() == 2**64 - 1


def test_previous_gtids_with_and_without_tags() -> None:
    uuid = bytes.fromhex(UUID.replace("-", ""))
    intervals = uint(2, 8) + uint(1, 8) + uint(4, 8) + uint(6, 8) + uint(7, 8)
    plain = body_of(event(E.PREVIOUS_GTIDS, uint(1, 8) + uuid + intervals))
    assert plain == MysqlGtidSet.parse(f"{UUID}:1-3:6")
    head = b"\x01" + uint(2, 6) + b"\x01"
    tagged = head + uuid + varlen(0) + intervals + uuid + varlen(5) + b"batch" + uint(1, 8) + uint(1, 8) + uint(2, 8)
    assert str(body_of(event(E.PREVIOUS_GTIDS, tagged))) == f"{UUID}:1-3:6:batch:1"


def test_the_commit_time_of_the_first_server_is_kept_beside_the_last() -> None:
    uuid = bytes.fromhex(UUID.replace("-", ""))
    times = uint(5 | 1 << 55, 7) + uint(3, 7)
    body = b"\0" + uuid + uint(9, 8) + b"\x02" + bytes(16) + times + lenenc(300)
    assert body_of(event(E.GTID, body)) == events.Gtid(UUID, 9, "", 5, 3, 300)
    assert body_of(event(E.GTID, body[:25]), "5.6.41") == events.Gtid(UUID, 9)


def test_what_mariadb_says_of_its_transactions() -> None:
    xa = uint(1, 4) + b"\x03\x02" + b"abc" + b"de"
    gtid = body_of(event(E.MARIA_GTID, uint(5, 8) + uint(2, 4) + b"\x42" + uint(77, 8) + xa, server=9), "11.4.2-MariaDB")
    assert gtid == events.MariaGtid(2, 9, 5, 0x42, 77, events.XaId(1, b"abc", b"de"))
    assert isinstance(gtid, events.MariaGtid) and gtid.prepares_xa and gtid.text == "2-9-5"
    members = [(0, 1, 5), (0, 2, 9), (3, 1, 1)]
    listed = uint(3, 4) + b"".join(uint(domain, 4) + uint(server, 4) + uint(number, 8) for domain, server, number in members)
    assert body_of(event(E.MARIA_GTID_LIST, listed), "10.11.1-MariaDB") == MariaGtidPosition.parse("0-2-9,3-1-1")


def test_an_xa_transaction_is_prepared() -> None:
    body = b"\x01" + uint(1, 4) + uint(3, 4) + uint(2, 4) + b"abcde"
    assert body_of(event(E.XA_PREPARE, body)) == events.XaPrepare(events.XaId(1, b"abc", b"de"), is_one_phase=True)


def test_a_statement_is_text_of_its_clients_charset() -> None:
    sql = "CREATE TABLE таблица (i INT)"
    variables = uint(0, 1) + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x03" + bytes(4) + b"\x04" + uint(51, 2)
    body = bytes(8) + b"\x02" + bytes(2) + uint(len(variables) + 4, 2) + variables + bytes(4) + b"db\0"
    assert body_of(event(E.QUERY, body + sql.encode("cp1251"))) == events.Query("db", sql)
    short = bytes(8) + b"\0" + uint(1062, 2) + uint(0, 2) + b"\0"
    packed = b"\x81" + bytes([len(sql.encode())]) + zlib.compress(sql.encode())
    assert body_of(event(E.MARIA_QUERY_COMPRESSED, short + packed), "10.6.1-MariaDB") == events.Query("", sql, 1062)


def test_an_incident_tells_that_changes_are_lost() -> None:
    assert body_of(event(E.INCIDENT, uint(1, 2) + b"\x04gone")) == events.Incident(1, "gone")


@pytest.mark.parametrize("kind", [100, 172, 255])
def test_an_unknown_event_is_passed_over_only_if_its_server_allows_it(kind: int) -> None:
    assert body_of(event(kind, b"x", flags=IGNORABLE)) == events.Other(f"type {kind}")
    with pytest.raises(UnsupportedError, match=f"an event of type {kind}"):
        body_of(event(kind, b"x"))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (E.PRE_GA_WRITE_ROWS, "a PRE_GA_WRITE_ROWS event: rows as before MySQL 5.1.16"),
        (E.MARIA_START_ENCRYPTION, "the binary log is encrypted"),
        (E.LOAD, "a LOAD event: from a server before MySQL 5.0"),
    ],
)
def test_events_that_are_refused_by_name(kind: EventType, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        body_of(event(kind, bytes(40)))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (b"\xfdbin" + bytes(600), "the binary log is encrypted"),
        (b"", "not a binary log: it begins with nothing"),
        (b"PAR1", "not a binary log: it begins with 50415231"),
        (MAGIC + event(E.START_V3, bytes(56)), "before MySQL 5.0"),
        (MAGIC + event(E.QUERY, bytes(20)), "the log begins with a QUERY event"),
        (MAGIC + description(version=3), "a binary log of version 3"),
        (MAGIC + description("5.1.5-a_drop5p20"), "numbers its events in a way of its own"),
        (MAGIC + description("8.4.0", algorithm=2), "checksums of the unknown kind 2"),
        (MAGIC + description("eight"), "the server version 'eight' is none"),
    ],
)
def test_foreign_logs_are_refused_by_name(made: bytes, told: str) -> None:
    with pytest.raises(TidemarkError, match=told):
        read_log(made)


def test_checksums_are_verified_whether_the_log_is_in_use_or_closed() -> None:
    for flags in (0, 1):
        start = MAGIC + description(algorithm=1, flags=flags)
        assert read_log(start + checked(event(E.XID, uint(5, 8))))[1].body == events.Xid(5)
        with pytest.raises(CorruptionError, match="the checksum of a XID event is wrong"):
            read_log(start + checked(event(E.XID, uint(5, 8)))[:-1] + b"\0")


def test_positions_are_summed_where_the_server_does_not_say_them() -> None:
    made = log(event(E.XID, uint(1, 8), log_pos=0), event(E.XID, uint(2, 8), log_pos=0), server="11.4.2-MariaDB")
    first, second = read_log(made)[1:]
    assert second.end == len(made) and first.end == second.position


def test_what_a_server_sends_first_has_a_checksum_if_the_session_wants_them() -> None:
    rotate = event(E.ROTATE, uint(4, 8) + b"binlog.000007")
    rotate = bytes(4) + rotate[4:]
    for has_checksums, made in ((False, rotate), (True, checked(rotate))):
        decoder = EventDecoder(has_checksums=has_checksums)
        (first,) = decoder.decode(made, 0, 0)
        assert first.body == events.Rotate("binlog.000007", 4)


def test_a_statement_ends_and_its_tables_are_forgotten() -> None:
    table, rows = table_map([T.TINY], b"", SIGNED), rows_event(b"\0\x01", 1)
    assert changes_of(log(table, rows, table, rows)) == [("I", (None, (1,)))] * 2
    with pytest.raises(CorruptionError, match="which no event before them describes") as failed:
        changes_of(log(table, rows, rows))
    assert failed.value.hint
    nothing = event(E.WRITE_ROWS, uint(0xFFFFFF, 6) + uint(1, 2) + uint(2, 2) + b"\x01\xff")
    assert changes_of(log(table, nothing)) == []


def test_rows_of_version_1_and_2_and_ids_of_four_bytes() -> None:
    table = table_map([T.TINY], b"", SIGNED)
    update = rows_event(b"\0\x01\0\x02", 1, kind=E.UPDATE_ROWS_V1)
    delete = rows_event(b"\0\x02\x01", 1, kind=E.DELETE_ROWS)
    assert changes_of(log(table, update)) == [("U", ((1,), (2,)))]
    assert changes_of(log(table, delete)) == [("D", ((2,), None)), ("D", ((None,), None))]


def test_a_key_and_names_from_the_metadata() -> None:
    names = field(4, b"\x02id\x05\xd1\x91\xd1\x8fx")
    table = table_of(log(table_map([T.LONG, T.LONG], b"", SIGNED, names, field(8, b"\x01"), field(12, b"\x80"))))
    assert [column.name for column in table.columns] == ["id", "ёяx"] and table.key == (1,)
    assert [column.is_visible for column in table.columns] == [True, False] and table.unknown() == ()


@pytest.mark.parametrize(("server", "collation"), [("8.4.0", 63), ("10.11.6-MariaDB", 8)])
def test_a_year_has_a_sign_and_a_geometry_has_a_charset_at_mariadb(server: str, collation: int) -> None:
    signs, charsets = field(1, b"\x80"), field(3, bytes([63, 8]) if "Maria" in server else b"\x3f")
    made = log(table_map([T.YEAR, T.LONG, T.GEOMETRY, T.BLOB], b"\x04\x02", signs, charsets), server=server)
    _, number, _, text = table_of(made).columns
    assert (number.is_unsigned, text.collation) == (False, collation)


def test_what_the_metadata_leaves_out_is_named() -> None:
    assert table_of(log(table_map([T.LONG, T.BLOB], b"\x02"))).unknown() == ("charset", "names", "signedness")


def test_events_inside_a_compressed_transaction_count_from_its_place() -> None:
    inner = event(E.QUERY, bytes(8) + b"\0" + bytes(4) + b"\0BEGIN") + event(E.XID, uint(3, 8))
    payload = b"\x02\x03\xfc\xff\0" + b"\x01" + lenenc(1) + lenenc(len(inner)) + b"\0" + inner
    first, second = read_log(log(event(E.TRANSACTION_PAYLOAD, payload)))[1:]
    assert (first.inside, second.inside, first.position) == (1, 2, second.position)
    assert second.body == events.Xid(3)
