"""Recorded logs give what other decoders saw in them, or are refused by name."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.binlog_maker import DATA, changes_of, read_log, recorded
from tests.services import mysql
from tests.services.processes import PartMissing
from tidemark.changes.binlog.charsets import find_codec
from tidemark.changes.binlog.events import Gtid, MariaGtid, Query, XaId, XaPrepare, Xid
from tidemark.changes.binlog.layout import FormatDescription, name_type
from tidemark.changes.binlog.reader import Event, read_events
from tidemark.changes.binlog.rows import Image, Rows, decode_rows
from tidemark.changes.binlog.tables import Column, T, Table
from tidemark.changes.binlog.values import ABSENT, as_json
from tidemark.errors import CorruptionError, UnsupportedError

REAL = json.loads((DATA / "real" / "expected.json").read_text(encoding="utf-8"))
VARIANTS = json.loads((DATA / "variants" / "expected.json").read_text(encoding="utf-8"))["variants"]
PAYLOAD = "transaction_compression.000001"
NO_LOG = "tsdb-mysql-bin.000001"
OPERATIONS = {"I": "insert", "U": "update", "D": "delete"}


def count_changes(log: bytes) -> dict[str, dict[str, int]]:
    """table → operation → rows."""
    found: dict[str, Counter[str]] = {}
    for event in read_log(log):
        if isinstance(rows := event.body, Rows):
            table = found.setdefault(f"{rows.table.database}.{rows.table.name}", Counter())
            table[OPERATIONS[rows.operation]] += len(list(decode_rows(rows, raw=True)))
    return {table: dict(counts) for table, counts in found.items()}


@pytest.mark.parametrize("name", [name for name in REAL if name not in (PAYLOAD, NO_LOG)])
def test_a_real_log_has_the_events_that_others_count(name: str) -> None:
    expected = REAL[name]
    log = recorded(f"real/{name}")
    events = read_log(log)
    first = events[0].body
    assert isinstance(first, FormatDescription)
    assert first.server_version == expected["server_version"]
    names = Counter(name_type(event.header.type) for event in events)
    told = {kind.replace("ROWS_V2", "ROWS"): number for kind, number in expected["events"].items()}
    assert names == told
    assert all(before.end == after.position for before, after in pairwise(events))
    gtids = [event.body.text for event in events if isinstance(event.body, Gtid | MariaGtid) and event.body.text]
    if expected["gtids"]:
        assert [len(gtids), gtids[0], gtids[-1]] == [expected["gtids"][key] for key in ("n", "first", "last")]
    counted = count_changes(log)
    if expected["tables"] is not None:
        assert counted == expected["tables"]
    elif name != "vector.binlog":  # there no other decoder counts
        total: Counter[str] = Counter()
        for counts in counted.values():
            total.update(counts)
        assert dict(total) == expected["rows"]


def test_a_compressed_transaction_is_unpacked() -> None:
    events = read_log(recorded(f"real/{PAYLOAD}"))
    inside = [event for event in events if event.inside]
    assert [name_type(event.header.type) for event in inside] == ["QUERY", "TABLE_MAP", "WRITE_ROWS", "XID"]
    assert {(event.position, event.end) for event in inside} == {(inside[0].position, inside[0].end)}
    assert changes_of(recorded(f"real/{PAYLOAD}")) == [("I", (None, (1,)))]


def test_vectors_of_mysql_9() -> None:
    changes = changes_of(recorded("real/vector.binlog"))
    assert changes[0] == ("I", (None, (1, bytes.fromhex("cdcc8c3fcdcc0c4033335340"))))
    assert [operation for operation, _ in changes] == ["I"] * 8 + ["D", "I"]
    assert changes[-2] == ("D", (changes[-3][1][1], None))


def test_partial_updates_of_json_where_the_image_has_the_document_and_where_not() -> None:
    changes = changes_of(recorded("real/json.binlog.000001"))
    document = '{"age": %d, "data": "xxxxxxxxxx", "name": "Joe"}'
    assert changes[6] == ("U", ((1, document % 24, "Joe", 24), (1, document % 25, "Joe", 25)))
    assert changes[12] == ("U", ((1, ABSENT, ABSENT, ABSENT), (ABSENT, ABSENT, "Joe", 26)))


def test_enum_set_and_text_of_mysql_8() -> None:
    (_, (_, inserted)), (_, (before, after)), (_, (deleted, _)) = changes_of(recorded("real/mysql-enum-string-set.000001"))
    assert inserted is not None and after is not None
    assert inserted == before and after == deleted
    assert inserted[2:4] == ("var1", "one,three")
    assert after[:4] == ("field1", "field_2", "variant2", "two,four")


@pytest.mark.parametrize("name", ["zalora-mysql-bin.02", "zalora-mysql-bin.07"])
def test_a_table_that_a_log_does_not_describe_is_refused_unless_it_is_wanted_raw(name: str) -> None:
    with pytest.raises(UnsupportedError, match="does not tell the charset") as refused:
        changes_of(recorded(f"real/{name}"))
    assert "binlog_row_metadata" in refused.value.hint
    first = changes_of(recorded(f"real/{name}"), raw=True)[0]
    employee: tuple[object, ...] = (1, "2017-04-13", b"Max", b"Mustermann")
    assert first == ("I", (None, employee if name.endswith("02") else (b"ABC", b"DEF")))


def test_what_is_no_binary_log_is_refused() -> None:
    with pytest.raises(CorruptionError, match="not a binary log: it begins with efbfbd62"):
        read_log(recorded(f"real/{NO_LOG}"))


def test_reading_begins_where_the_caller_wants() -> None:
    log = recorded("real/mariadb-bin.000001")
    events = read_log(log)
    start = next(event.position for event in events if isinstance(event.body, MariaGtid) and event.body.number == 2)
    wanted = [event.position for event in events if event.position >= start]
    assert [event.position for event in read_events(io.BytesIO(log), start)] == [4, *wanted]


def test_rows_behind_a_table_that_was_not_read_are_refused() -> None:
    log = recorded("real/mariadb-bin.000001")
    start = next(event.position for event in read_log(log) if isinstance(event.body, Rows))
    with pytest.raises(CorruptionError, match="which no event before them describes"):
        list(read_events(io.BytesIO(log), start))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "row_over_16MB"])
def test_a_variant_has_the_values_that_its_servers_own_tool_prints(name: str) -> None:
    events = read_log(recorded(f"variants/{name}.binlog"))
    ours = _print_rows(events)
    assert Counter(OPERATIONS[str(row[0])] for row in ours) == {k: n for k, n in VARIANTS[name]["rows"].items() if n}
    if name != "compressed_columns":  # it prints these as they are stored
        text = gzip.decompress((DATA / "variants" / f"{name}.vv.txt.gz").read_bytes())
        assert ours == list(_printed_rows(text, negative=name == "metadata_no_log"))


@pytest.mark.full
@pytest.mark.real("mysql")
@pytest.mark.parametrize("name", ["transaction_compression.000001", "json.binlog.000001", "vector.binlog"])
def test_a_log_of_mysql_has_the_values_that_mysqlbinlog_prints(name: str, tmp_path: Path) -> None:
    """Compressed transactions, JSON, whole and in parts, and vectors."""
    log = tmp_path / name
    log.write_bytes(recorded(f"real/{name}"))
    try:
        command = mysql.command("usr/bin/mysqlbinlog", "--no-defaults", "--base64-output=DECODE-ROWS", "-vv", str(log))
    except PartMissing as missing:
        pytest.skip(str(missing))
    told = list(_printed_rows(subprocess.run(command, capture_output=True, check=True).stdout))
    for _, before, after in told:
        for number in [number for number, value in (after or {}).items() if value.startswith(b"JSON_REPLACE(")]:
            assert number not in before, "without the document before, none is known after"
            del after[number]
    assert told
    assert _print_rows(read_log(log.read_bytes())) == told


def _print_rows(events: Iterable[Event]) -> list[list[Any]]:
    """[operation, before, after] of all rows, as the servers' tools print them with -vv."""
    return [
        [rows.operation, _print_image(rows.table, before), _print_image(rows.table, after)]
        for rows in (event.body for event in events)
        if isinstance(rows, Rows)
        for before, after in decode_rows(rows, raw=True)
    ]


def _print_image(table: Table, image: Image | None) -> dict[int, bytes] | None:
    """Column from 1 → the value as `mariadb-binlog -vv` prints it."""
    if image is None:
        return None
    pairs = enumerate(zip(table.columns, image, strict=True), 1)
    return {number: _print_value(column, value) for number, (column, value) in pairs if value is not ABSENT}


def _print_value(column: Column, value: Any) -> bytes:
    if value is None:
        return b"NULL"
    if column.type in (T.ENUM, T.SET):
        number = value
        if column.labels is not None:
            chosen = [2**bit for bit, label in enumerate(column.labels) if str(label) in value.split(",")]
            number = sum(chosen) if column.type == T.SET else chosen[0].bit_length()
        return b"%d" % number if column.type == T.ENUM else b"b'%s'" % f"{number:08b}".encode()
    if column.type in (T.TIMESTAMP2, T.TIMESTAMP):
        when = datetime.fromisoformat(value).replace(tzinfo=UTC)
        return f"{int(when.timestamp())}.{value.partition('.')[2]}".rstrip(".").encode()
    if column.type in (T.STRING, T.VARCHAR, T.BLOB):
        stored = value if isinstance(value, bytes) else value.encode(find_codec(column.collation or 0) or "")
        if column.collation == 63 and column.type == T.STRING:
            stored = stored.rstrip(b"\0")
        return b"'" + re.sub(rb"[\x00-\x1f]", lambda found: b"\\x%02x" % found[0][0], stored) + b"'"
    if column.type == T.VECTOR:
        return f"[{','.join(f'{number:.5e}' for number in np.frombuffer(value, '<f4'))}]".encode()
    return f"'{value}'".encode() if column.type == T.JSON else str(value).encode()


_VALUE = re.compile(rb"###   @(\d+)=(.*) /\* (.*) meta=\d+ nullable=\d is_null=\d \*/$", re.DOTALL)


def _printed_rows(text: bytes, *, negative: bool = False) -> Iterator[list[Any]]:
    """[operation, before, after] of what a tool printed with -vv. `negative`: where it prints an integer both ways."""
    row: list[Any] = []
    image: dict[int, bytes] = {}
    for line in text.split(b"\n"):
        if found := re.match(rb"### (INSERT INTO|UPDATE|DELETE FROM) ", line):
            if row:
                yield row
            row = [found[1][:1].decode(), None, None]
        elif line in (b"### WHERE", b"### SET"):
            image = row[1 if line.endswith(b"WHERE") else 2] = {}
        elif value := _VALUE.match(line):
            either = re.fullmatch(rb"(-\d+) \((\d+)\)", value[2])  # it does not say which of them the column holds
            image[int(value[1])] = either[1 if negative else 2] if either else value[2]
    if row:
        yield row


@pytest.mark.parametrize("file", ["000001", pytest.param("", marks=pytest.mark.full)])
def test_every_change_of_the_workload_is_what_the_server_answered_and_printed(file: str) -> None:
    """Its record joins SELECTs around every statement with `mariadb-binlog -vv`. Rows of the XA transaction that was
    rolled back stand in it, too: they are in the log."""
    expected = _told_rows(file)
    for number in [file] if file else [f"{number:06d}" for number in range(1, 14)]:
        for ours in _workload_rows(f"mysql-bin.{number}"):
            assert ours == next(expected)
    assert next(expected, None) is None


def _told_rows(file: str) -> Iterator[dict[str, Any]]:
    with lzma.open(DATA / "workload" / "expected.jsonl.xz") as lines:
        for line in lines:
            told = json.loads(line)
            if file and told.get("file", f"mysql-bin.{file}") != f"mysql-bin.{file}":
                return
            if told["k"] in ("row", "commit", "xa_prepare", "ddl", "xa_commit", "xa_rollback"):
                yield told


def _workload_rows(name: str) -> Iterator[dict[str, Any]]:
    begin, at = MariaGtid(0, 0, 0, 0), {}
    index = 0
    for event in read_events(io.BytesIO(recorded(f"workload/{name}"))):
        body = event.body
        if isinstance(body, MariaGtid):
            begin, index = body, 0
            at = {"file": name, "txn_pos": event.position, "gtid": body.text}
        elif isinstance(body, Rows):
            for before, after in decode_rows(_declare(body)):
                images = {"before": before and list(map(as_json, before)), "after": after and list(map(as_json, after))}
                table = {"db": body.table.database, "table": body.table.name, "op": body.operation}
                yield {"k": "row", **at, "i": index, **table, **images}
                index += 1
        elif isinstance(body, Xid | XaPrepare) or (isinstance(body, Query) and body.sql == "COMMIT"):
            by = {Xid: "xid", XaPrepare: "xa_prepare"}.get(type(body), "commit")
            yield {"k": "xa_prepare" if by == "xa_prepare" else "commit", **at, "by": by, "rows": index}
        elif isinstance(body, Query) and begin.completes_xa:
            assert isinstance(begin.xa, XaId)
            kind = "xa_commit" if body.sql.startswith("XA COMMIT") else "xa_rollback"
            yield {"k": kind, **at, "xid": begin.xa.gtrid.decode()}
        elif isinstance(body, Query) and (begin.is_ddl or body.sql.startswith("SAVEPOINT")):
            yield {"k": "ddl", **at, "sql": body.sql}


def _declare(rows: Rows) -> Rows:
    """With the types that a log does not tell."""
    declared = {"uu": "uuid", "i6": "inet6"} if rows.table.name == "types" else {}
    columns = tuple(replace(column, declared=declared.get(column.name or "", "")) for column in rows.table.columns)
    return rows._replace(table=replace(rows.table, columns=columns))


@pytest.mark.full
def test_rows_larger_than_a_packet() -> None:
    changes = changes_of(recorded("variants/row_over_16MB.binlog"), raw=True)
    assert Counter(operation for operation, _ in changes) == {"I": 2, "D": 1}
    assert max(len(value) for _, (_, after) in changes if after for value in after if isinstance(value, bytes)) > 1 << 24
