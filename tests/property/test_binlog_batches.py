"""Rows by column, compiled or in numpy, are the rows one by one: sound, damaged and garbage alike.

So are rows in the form of a change store.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.binlog_maker import (
    SIGNED,
    UNSIGNED,
    charset,
    field,
    lenenc,
    log,
    read_log,
    recorded,
    rows_event,
    table_map,
    table_of,
)
from tidemark.changes.binlog import batches
from tidemark.changes.binlog.batches import decode_batches, find_layout, kernels
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.rows import Change, Rows, decode_rows
from tidemark.changes.binlog.scalars import decimal_groups, decimal_size
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.changes.capture.batches import convert_items, convert_stream
from tidemark.changes.capture.rows import Item, convert_one_by_one
from tidemark.changes.store.model import Mark, Record, Row, Shape
from tidemark.changes.store.model import Rows as StoredRows
from tidemark.errors import CorruptionError, TidemarkError, UnsupportedError

LOGS = (
    *("variants/plain.binlog", "variants/row_image_minimal.binlog", "variants/compressed_columns.binlog"),
    *("real/canal-mysql-bin.000001", "real/vector.binlog", "real/mysql-enum-string-set.000001"),
    *("variants/metadata_no_log.binlog", "variants/system_versioned.binlog", "workload/mysql-bin.000010"),
)


@contextmanager
def in_python() -> Iterator[None]:
    with mock.patch.object(batches, "kernels", lambda: None):
        yield


def by_row(rows: Rows) -> list[Change] | None:
    """None: refused."""
    try:
        return list(decode_rows(rows, raw=True))
    except TidemarkError:
        return None


def by_column(*events: Rows) -> tuple[list[Change], list[dict[str, list[Any]]]] | None:
    """The rows, and the type and content of every array."""
    try:
        made = list(decode_batches(events, raw=True))
        shown = [
            {f"{side}{index}": [array.type, array.to_pylist()] for index, array in arrays.items()}
            for batch in made
            for side, arrays in (("b", batch.before or {}), ("a", batch.after or {}))
        ]
        return [change for batch in made for change in batch.changes()], shown
    except TidemarkError:
        return None


Kept = list[tuple[Shape, Row]]


def kept_by_row(rows: Rows) -> Kept | None:
    """The rows in the form of a change store, each with its shape. None: refused."""
    try:
        return [(record.shape, row) for record in convert_one_by_one(rows) for row in record.rows()]
    except TidemarkError:
        return None


def kept_by_column(rows: Rows) -> Kept | None:
    try:
        [records] = convert_items([[rows]])
    except TidemarkError:
        return None
    return flatten(records)


def flatten(records: Iterable[Record]) -> Kept:
    return [(record.shape, row) for record in records if isinstance(record, StoredRows) for row in record.rows()]


def assert_all_agree(rows: Rows) -> None:
    kept = repr(kept_by_row(rows))
    with in_python():
        plain = by_column(rows)
        assert repr(kept_by_column(rows)) == kept
    if kernels() is not None:
        assert repr(by_column(rows)) == repr(plain)
        assert repr(kept_by_column(rows)) == kept
    expected = by_row(rows)
    assert repr(expected) == repr(plain and plain[0])  # repr: nan is not nan


def rows_of(log: bytes) -> list[Rows]:
    return [event.body for event in read_log(log) if isinstance(event.body, Rows) and not event.body.is_partial]


@pytest.mark.parametrize("name", LOGS)
def test_recorded_rows(name: str) -> None:
    for rows in rows_of(recorded(name)):
        assert_all_agree(rows)


@pytest.mark.parametrize(
    "flips", [60, pytest.param(600, marks=pytest.mark.full), pytest.param(5000, marks=pytest.mark.soak)]
)
def test_damaged_rows(flips: int) -> None:
    dice = random.Random(3)
    found = [rows for name in LOGS for rows in rows_of(recorded(name)) if len(rows.data) < 3000]
    for _ in range(flips):
        rows = dice.choice(found)
        at = dice.randrange(len(rows.data))
        changed = rows.data[:at] + bytes([rows.data[at] ^ 1 << dice.randrange(8)]) + rows.data[at + 1 :]
        assert_all_agree(rows._replace(data=changed if dice.random() < 0.7 else rows.data[:at]))


KINDS: list[tuple[int, bytes]] = [
    *((kind, b"") for kind in (T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG, T.YEAR, T.DATE, T.TIME, T.DATETIME)),
    *((T.TIMESTAMP, b""), (T.FLOAT, b"\x04"), (T.DOUBLE, b"\x08"), (T.BIT, b"\x01\x01"), (T.BIT, b"\x00\x08")),
    *((kind, bytes([digits])) for kind in (T.TIMESTAMP2, T.DATETIME2, T.TIME2) for digits in (0, 1, 4, 6)),
    *((T.NEWDECIMAL, bytes(size)) for size in ((65, 30), (18, 6), (38, 38), (9, 0), (39, 1), (2, 1))),
    *((T.VARCHAR, b"\xff\0"), (T.VARCHAR, b"\x00\x01"), (T.STRING, b"\xfe\x08"), (T.STRING, b"\xf7\x01")),
    *((T.STRING, b"\xf8\x01"), (T.BLOB, b"\x01"), (T.BLOB, b"\x02"), (T.GEOMETRY, b"\x04"), (T.VECTOR, b"\x04")),
]


def store(kind: int, meta: bytes, dice: random.Random) -> bytes:
    """A value that a server may have stored."""
    if kind == T.NEWDECIMAL:
        widths = decimal_groups(meta[0], meta[1])
        groups = [dice.choice((0, 1, 10**width - 1)).to_bytes(decimal_size(width, 0), "big") for width in widths]
        plain, mask = b"".join(groups), dice.choice((0, 0xFF))
        return bytes([plain[0] ^ 0x80 ^ mask, *(byte ^ mask for byte in plain[1:])])
    column = table_of(log(table_map([kind], meta))).columns[0]
    layout = find_layout(column)
    if layout.prefix:
        text = dice.choice(("", "a", "é🚀", "\xff" * 3, "x" * 200)).encode(dice.choice(("utf-8", "latin-1")), "replace")
        return len(text).to_bytes(layout.prefix, "little") + text
    if column.type in (T.ENUM, T.SET):
        return bytes([dice.randrange(3)])
    if column.type == T.DATETIME:
        return dice.choice((0, 20260031_000001, 99991231_235959)).to_bytes(8, "little")
    return dice.choice((dice.randbytes(layout.size), bytes(layout.size), b"\xff" * layout.size))


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    st.integers(0, 1 << 32).map(random.Random),
    st.sampled_from([8, 11, 33, 63, 255]),
    st.sampled_from([E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS]),
    st.booleans(),
)
def test_any_values_of_any_columns(
    columns: list[tuple[int, bytes]], dice: random.Random, collation: int, kind: E, is_sound: bool
) -> None:
    enums, sets = columns.count((T.STRING, b"\xf7\x01")), columns.count((T.STRING, b"\xf8\x01"))
    labels = field(6, (lenenc(2) + b"\x01a\x01b") * enums), field(5, (lenenc(3) + b"\x01x\x01y\x01z") * sets)
    facts = dice.choice((SIGNED, UNSIGNED)), charset(collation), field(10, lenenc(45)), *labels
    table = table_map([column[0] for column in columns], b"".join(column[1] for column in columns), *facts)
    data = b""
    for _ in range(2 * dice.randrange(1, 5)):
        nulls = [dice.random() < 0.2 for _ in columns]
        data += sum(is_null << index for index, is_null in enumerate(nulls)).to_bytes((len(columns) + 7) // 8, "little")
        data += b"".join(store(*column, dice) for column, is_null in zip(columns, nulls, strict=True) if not is_null)
    data = data if is_sound else data[: dice.randrange(len(data))] + dice.randbytes(dice.randrange(9))
    (rows,) = rows_of(log(table, rows_event(data, len(columns), kind=kind)))
    assert not is_sound or by_row(rows) is not None
    assert_all_agree(rows)


def test_the_arrays_have_the_types_of_the_columns() -> None:
    (rows, *_) = rows_of(recorded("variants/plain.binlog"))
    (batch,) = decode_batches([rows])
    assert batch.before is None and batch.after is not None
    assert {rows.table.columns[index].name: array.type for index, array in batch.after.items()} == {
        **{"id": pa.uint32(), "u": pa.uint64(), "e": pa.uint64(), "s": pa.uint64(), "t": pa.string()},
        **{"l": pa.binary(), "b": pa.binary(), "j": pa.string(), "d": pa.decimal128(10, 3), "ts": pa.uint64()},
    }
    assert len(batch.events) == 10 and batch.after[8][0].as_py().as_tuple().digits == (1, 2, 5)


def test_rows_of_many_events_are_one_batch_and_know_their_event() -> None:
    events = [rows for rows in rows_of(recorded("variants/plain.binlog")) if rows.operation == "I"]
    (batch,) = decode_batches(events)
    assert list(batch.changes()) == [change for rows in events for change in decode_rows(rows)]
    assert batch.events.tolist() == [number for number, rows in enumerate(events) for _ in decode_rows(rows)]
    for whole in (events[0], events[0]._replace(data=_first_row(events[0]))):
        short, rest = whole._replace(data=whole.data[:-1]), events[1]._replace(data=whole.data[-1:] + events[1].data)
        with pytest.raises(CorruptionError, match="a row event ends inside a row"):
            list(decode_batches([short, rest]))
    with pytest.raises(ValueError, match="several tables"):
        list(decode_batches([events[0], events[1]._replace(operation="D")]))


def test_transactions_that_are_decoded_together_keep_their_own_rows_in_the_order_of_the_log() -> None:
    dice = random.Random(5)
    found = [rows for name in ("workload/mysql-bin.000010", "variants/plain.binlog") for rows in rows_of(recorded(name))]
    odd = rows_of(log(table_map([T.VARCHAR], b"\x09\0", charset(33)), rows_event(b"\0\x01a\0\x01\xff\0\x01b", 1)))
    for _ in range(20):
        events: list[Rows] = dice.choices([*found, *odd], k=dice.randrange(30))
        together: list[list[Item]] = [[]]
        for event in events:
            together[-1].append(event)
            if dice.random() < 0.4:
                together[-1].append(Mark("commit", "xid"))
                together.append([])
        records = convert_items(together)
        for items, own in zip(together, records, strict=True):
            expected = [pair for item in items if isinstance(item, Rows) for pair in kept_by_row(item) or ()]
            assert repr(flatten(own)) == repr(expected)
            assert [item for item in own if isinstance(item, Mark)] == [item for item in items if isinstance(item, Mark)]
            assert flatten(convert_stream(items)) == flatten(own)
            for one, other in pairwise(own):
                if isinstance(one, StoredRows) and isinstance(other, StoredRows):
                    assert one.whole is not other.whole, "rows that follow each other are one record"


def _first_row(rows: Rows) -> bytes:
    return next(rows.data[:size] for size in range(1, len(rows.data)) if by_row(rows._replace(data=rows.data[:size])))


def test_many_rows_are_many_batches() -> None:
    table = table_map([T.TINY], b"", SIGNED)
    (rows,) = rows_of(log(table, rows_event(b"\0\x05" * 70_000, 1)))
    counts = [len(batch.events) for batch in decode_batches([rows])]
    assert sum(counts) == 70_000 and max(counts) < 40_000


def test_what_rows_refuse_batches_refuse() -> None:
    (rows,) = rows_of(log(table_map([T.TINY]), rows_event(b"\0\x05", 1)))
    with pytest.raises(UnsupportedError, match="signedness"):
        list(decode_batches([rows]))
