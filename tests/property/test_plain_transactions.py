"""Transactions that are read many at a time are those that are read event by event, and stop where these stop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.binlog_maker import SIGNED, event, field, log, recorded, rows_event, table_map, uint
from tidemark.changes.binlog.batches import kernels, scan_events
from tidemark.changes.binlog.layout import MAGIC, read_header
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.rows import Rows
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.changes.capture.transactions import CutOff, Rules, Transactions
from tidemark.changes.connection.model import RawEvent
from tidemark.errors import TidemarkError

LOGS = [
    *(f"workload/mysql-bin.{number:06d}" for number in (1, 3, 6, 10, 11, 12)),
    *("variants/plain.binlog", "variants/row_image_minimal.binlog", "variants/log_bin_compress.binlog"),
    *("variants/three_domains.binlog", "variants/checksum_none.binlog", "variants/unclean_end.binlog"),
    *("real/mysql-enum-string-set.000001", "real/binlog-invisible-columns.000001", "real/json.binlog.000001"),
    *("real/transaction_compression.000001", "real/mysql-bin.checksum-crc32"),
]


def split(data: bytes) -> list[RawEvent]:
    """The events of a log, to the first whose header cannot be."""
    found, at = [], len(MAGIC)
    while len(data) - at >= 19:
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if not 19 <= size <= len(data) - at:
            break
        found.append(RawEvent("mysql-bin.000001", at, read_header(data, at), data[at : at + size]))
        at += size
    return found


def seen(raws: list[RawEvent], *, ahead: bool) -> list[Any]:
    """Everything that is known of each transaction, and how it ended."""
    told: list[Any] = []

    def give() -> Iterator[RawEvent]:
        yield from raws
        raise ConnectionError("the line broke")

    try:
        for group in Transactions(give(), Rules(lambda _, table: table != "wide", stops=False), ahead=ahead):
            told.append([group.head, str(group.gtids), group.is_xa])
            try:
                told.append([as_values(item) for item in group.items])
            except CutOff as cut:
                told.append(cut.message)
    except (TidemarkError, ConnectionError) as error:
        told.append(f"{type(error).__name__} {error}")
    return told


def as_values(item: Any) -> Any:
    if not isinstance(item, Rows):
        return item
    table = item.table
    return (table.database, table.name, table.columns, table.key, item.operation, item.before, item.after, item.data,
            item.is_partial, item.ends_statement)  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_recorded_logs(name: str) -> None:
    raws = split(recorded(name))
    assert seen(raws, ahead=True) == seen(raws, ahead=False)
    assert "the line broke" in seen(raws, ahead=True)[-1]


@pytest.mark.parametrize("flips", [60, pytest.param(1500, marks=pytest.mark.full)])
def test_damaged_logs(flips: int) -> None:
    dice = random.Random(7)
    logs = [recorded(name) for name in LOGS]
    logs = [data for data in logs if len(data) < 30_000] + [make_log(50, dice), make_log(30, dice)]
    for _ in range(flips):
        data = bytearray(dice.choice(logs))
        for _ in range(dice.choice((1, 1, 5))):
            data[dice.randrange(len(MAGIC), len(data))] ^= 1 << dice.randrange(8)
        raws = split(bytes(data))
        assert seen(raws, ahead=True) == seen(raws, ahead=False)


def make_log(count: int, dice: random.Random) -> bytes:
    """Transactions of MySQL without checksums: what is damaged in them is found by what it says alone."""
    table = table_map([T.LONG], b"", SIGNED, field(4, b"\x01a"))
    made = []
    for number in range(1, count + 1):
        made.append(event(E.GTID, b"\1" + bytes(15) + b"\7" + uint(number, 8)))
        made.append(event(E.QUERY, bytes(8) + b"\0" + bytes(4) + b"\0BEGIN"))
        for _ in range(dice.randrange(3)):
            kind = dice.choice((E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS))
            made += [table, rows_event((b"\0" + uint(number, 4)) * (2 if kind == E.UPDATE_ROWS else 1), 1, kind=kind)]
        made.append(event(E.XID, uint(number, 8)))
    return log(*made)


@pytest.mark.skipif(kernels() is None, reason="no C compiler")
def test_nearly_all_transactions_of_one_row_are_plain() -> None:
    raws = split(make_log(50, random.Random(1)))[1:]
    transactions, _ = scan_events(b"".join(raw.data for raw in raws), [len(raw.data) for raw in raws], 0)
    assert len(transactions) == 50
    assert transactions[-1][1] == len(raws)


def test_any_bytes_are_no_transaction_or_one() -> None:
    dice = random.Random(9)
    for _ in range(300):
        events = [
            bytes([0, 0, 0, 0, dice.choice((162, 33, 2, 19, 23, 30, 24, 16, 160, dice.randrange(256)))])
            + dice.randbytes(14 + dice.randrange(40))
            for _ in range(dice.randrange(1, 12))
        ]
        transactions, rows = scan_events(b"".join(events), list(map(len, events)), dice.choice((0, 4)))
        assert all(0 <= start <= stop <= sum(map(len, events)) for *_, start, stop in rows)
        assert all(first < behind <= len(events) for first, behind, _ in transactions)
