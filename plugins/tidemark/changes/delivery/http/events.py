"""A shard's transactions as events of the protocol. Pure: the same bytes for the same changes.

Rows are encoded column by column. What is the same for all values of a column stands in bytes made once; of a value only its
length and its text are written. Maps keep the table's order of columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.changes.binlog.gtid_sets import uuid_text
from tidemark.changes.capture.statements import strip_statement
from tidemark.changes.delivery.http import schema as p
from tidemark.changes.delivery.shards import INDEX, MOVED, Sharding, ShardPiece, find_absent, find_key
from tidemark.changes.store.model import (
    BinlogInfo,
    Column,
    Ddl,
    Kind,
    Mark,
    Op,
    Record,
    Rows,
    SchemaChange,
    Shape,
    Transaction,
)

MOST_ROWS = 1024
"""Rows that are encoded together."""
MOST_SIZES = 64
"""Lengths of values of a column of which the bytes around them are kept."""
_OPS = {Op.INSERT: p.INSERT, Op.READ: p.INSERT, Op.UPDATE: p.UPDATE, Op.DELETE: p.DELETE}
_ENDS = {"commit": p.TRANSACTIONEND, "xa_commit": p.XACOMMIT, "xa_rollback": p.XAROLLBACK, "heartbeat": p.HEARTBEAT}
_DDL = (
    (re.compile(r"create\s+(unique\s+|fulltext\s+|spatial\s+)?index\b"), p.CINDEX),
    (re.compile(r"drop\s+index\b"), p.DINDEX),
    (re.compile(r"create\b"), p.CREATE),
    (re.compile(r"alter\b"), p.ALTER),
    (re.compile(r"drop\b"), p.ERASE),
    (re.compile(r"truncate\b"), p.TRUNCATE),
    (re.compile(r"rename\b"), p.RENAME),
)
_SQL_TYPES = {
    **{"tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "bigint": -5, "year": 4, "bit": -7, "decimal": 3},
    **{"float": 7, "double": 8, "date": 91, "newdate": 91, "time": 92, "timestamp": 93, "datetime": 93},
    **{"char": 1, "varchar": 12, "enum": 1, "set": 1, "tinytext": -1, "text": -1, "mediumtext": -1, "longtext": -1},
    **{"binary": -2, "varbinary": -3, "tinyblob": -4, "blob": -4, "mediumblob": -4, "longblob": -4, "json": -1},
}
_SQL_KINDS = {Kind.INT64: -5, Kind.UINT64: -5, Kind.FLOAT64: 8, Kind.TEXT: 12, Kind.BYTES: -4}
_BINARY = p.encode_pairs(7, [("binary", "hex")])
_ABSENT = p.encode_pairs(7, [("absent", "true")])


@dataclass(frozen=True)
class Event:
    """An event of a shard. `index`: of a row, its number in its transaction; of what ends a transaction, how many rows it
    has; of anything else, the number of the row before it, -1 where there is none."""

    seq: int
    index: int
    data: bytes
    is_row: bool = True


def encode_events(piece: ShardPiece, first: int, sharding: Sharding) -> Iterator[list[Event]]:
    """The events of a piece, in stretches. `first`: how many rows its transaction has before them."""
    own = piece.transaction.records
    for number, record in enumerate(own):
        is_last = piece.ends and number == len(own) - 1
        if not isinstance(record, Rows):
            index = piece.behind if is_last else first - 1
            yield [Event(piece.seq, index, encode_other(record, piece, index), is_row=False)]
            continue
        for start in range(0, record.count, MOST_ROWS):
            part = Rows(record.shape, record.whole, record.start + start, min(MOST_ROWS, record.count - start))
            found = encode_rows(piece.transaction, part, sharding)
            yield [Event(piece.seq, index, data) for index, data in found]
            first = found[-1][0] + 1


def encode_checkpoint(transaction: Transaction, index: int) -> bytes:
    """The place of an event."""
    before, behind = _encode_place(transaction.info)
    return before + (p.encode_field(3, index) if index else b"") + behind


@lru_cache(maxsize=256)
def _encode_place(info: BinlogInfo) -> tuple[bytes, bytes]:
    """What stands before and behind an event's number in its checkpoint. `serverId` has 32 bits and a sign there."""
    server = info.server_id - (1 << 32) if info.server_id >> 31 else info.server_id
    uuid = uuid_text(info.uuid) if any(info.uuid) else ""
    kind = p.GTID_OFFSET if uuid else p.BINLOG_OFFSET
    rest = ((4, server), (5, info.file), (6, info.offset), (7, info.timestamp // 1000), (8, kind))
    before = p.encode_field(1, uuid) + p.encode_field(2, info.transaction_id)
    return before, b"".join(p.encode_field(number, value) for number, value in rest)


def encode_other(record: Record, piece: ShardPiece, index: int) -> bytes:
    """The event of what is no row."""
    sql = comment = database = table = ""
    props: list[tuple[str, str]] = []
    if isinstance(record, Ddl):
        kind, database, sql = _ddl_type(record.sql), record.database, record.sql
    elif isinstance(record, SchemaChange):
        kind, comment = p.ALTER, record.shape.as_json()
        database, table = record.shape.database, record.shape.table
        props.append(("mark", "schema"))
    else:
        assert isinstance(record, Mark)
        kind, comment = _ENDS.get(record.word, p.QUERY), record.text
        props += [("mark", record.word), ("rows", str(piece.rows))]
    header = _encode_header(piece.transaction, index, _TableHeader(table))
    fields = [p.encode_field(1, header), p.encode_field(2, isinstance(record, Ddl)), p.encode_field(3, kind)]
    fields += [p.encode_pairs(5, props), p.encode_field(6, database), p.encode_field(7, sql), p.encode_field(8, comment)]
    return b"".join(fields)


def _ddl_type(sql: str) -> int:
    text = strip_statement(sql[:4096]).lower()
    return next((kind for pattern, kind in _DDL if pattern.match(text)), p.QUERY)


@dataclass(frozen=True)
class _TableHeader:
    table: str = ""
    partition_key: str = ""
    primary_key: str = ""


def _encode_header(transaction: Transaction, index: int, table: _TableHeader) -> bytes:
    before, behind = _header_parts(transaction.info, transaction.gtid, table)
    checkpoint = encode_checkpoint(transaction, index)
    return b"".join((before, p.encode_varint(len(checkpoint)), checkpoint, behind))


@lru_cache(maxsize=256)
def _header_parts(info: BinlogInfo, gtid: str, table: _TableHeader) -> tuple[bytes, bytes]:
    behind = [p.encode_field(3, "UTF-8"), p.encode_field(4, info.timestamp // 1000), p.encode_field(5, p.MYSQL)]
    behind += [p.encode_field(6, table.table), p.encode_field(8, table.partition_key)]
    behind += [p.encode_pairs(9, [("gtid", gtid)] if gtid else []), p.encode_field(10, table.primary_key)]
    return p.encode_field(1, 1) + b"\x12", b"".join(behind)


# rows


def encode_rows(transaction: Transaction, rows: Rows, sharding: Sharding) -> list[tuple[int, bytes]]:
    """Each row's number in its transaction, and its event. The database's name is `ddlSchemaName`."""
    batch, shape = rows.batch, rows.shape
    width = len(shape.columns)
    ops = batch.column(0).to_pylist()
    has_updates = Op.UPDATE in ops
    kinds = {Op(op) for op in set(ops)}
    sides: list[list[bytes]] = []
    for side, having in enumerate([{op for op in kinds if op.has_before}, {op for op in kinds if op.has_after}]):
        if not having:
            sides.append([b""] * len(ops))
            continue
        columns = [_encode_column(shape, number, side, batch, has_updates=has_updates) for number in range(width)]
        images = map(b"".join, zip(*columns, strict=True))
        sides.append(
            [*images] if having == kinds else [b"" if op not in having else one for op, one in zip(ops, images, strict=True)]
        )
    key = ",".join(shape.columns[place].name for place in find_key(sharding, shape))
    primary = ",".join(column.name for column in shape.columns if column.key)
    before, behind = _header_parts(transaction.info, transaction.gtid, _TableHeader(shape.table, key, primary))
    place_before, place_behind = _encode_place(transaction.info)
    database = p.encode_field(6, shape.database)
    varint, event_types = p.encode_varint, {int(op): b"\x18" + bytes((_OPS[op],)) for op in kinds}
    numbers, moved = batch.column(INDEX).to_pylist(), batch.column(MOVED).to_pylist()
    found = []
    for number, op, old, new, other in zip(numbers, ops, *sides, moved, strict=True):
        index = b"\x18" + varint(number) if number else b""
        size = len(place_before) + len(index) + len(place_behind)
        header = b"".join((before, varint(size), place_before, index, place_behind, behind))
        props = b"" if other is None and op != Op.READ else _row_props(op, other)
        head = (b"\x0a", varint(len(header)), header, event_types[op], b"\x22", varint(len(old) + len(new)))
        found.append((number, b"".join((*head, old, new, props, database))))
    return found


def _row_props(op: int, moved: int | None) -> bytes:
    pairs = [("op", "R")] if op == Op.READ else []
    return p.encode_pairs(5, [*pairs, *([] if moved is None else [("moved", str(moved))])])


def _encode_column(shape: Shape, number: int, side: int, batch: Any, *, has_updates: bool) -> list[bytes]:
    """The entry of one column in the map of one image, for each row."""
    width = len(shape.columns)
    array = batch.column(3 + side * width + number)
    entries = _entries_of(shape.columns[number], number, side)
    heads, null = entries.heads, entries.null
    values = _print_values(array)
    found = [null if value is None else (head := heads[len(value)])[0] + value + head[1] for value in values]
    if side and has_updates:
        for row in _find_updated(batch, width, number):
            found[row] = entries.of_updated(values[row])
    absent = batch.column(1 + side)
    if absent.null_count < len(absent):
        found = [
            entries.absent if bits is not None and bits[number >> 3] >> (number & 7) & 1 else one
            for one, bits in zip(found, absent.to_pylist(), strict=True)
        ]
    return found


def _find_updated(batch: Any, width: int, number: int) -> list[int]:
    """The rows that are updates in which this column changed."""
    before, after = batch.column(3 + number), batch.column(3 + width + number)
    differs = pc.fill_null(pc.not_equal(before, after), True)
    both_null = pc.and_(before.is_null(), after.is_null())
    if batch.column(1).null_count < len(before):  # the image before may lack what is null in the one after
        both_null = pc.and_not(both_null, pa.array(find_absent(batch, number, 0) & ~find_absent(batch, number, 1)))
    is_update = pc.equal(batch.column(0), int(Op.UPDATE))
    changed: list[int] = pc.indices_nonzero(pc.and_(is_update, pc.and_not(differs, both_null))).to_pylist()
    return changed


def _print_values(array: Any) -> list[bytes | None]:
    """Values as the text of the protocol: integers in decimal, floats shortest exact, bytes in hexadecimal."""
    if pa.types.is_integer(array.type):
        array = array.cast(pa.string())
    elif pa.types.is_floating(array.type):
        return [None if value is None else repr(value).encode() for value in array.to_pylist()]
    elif pa.types.is_binary(array.type):
        return [None if value is None else value.hex().encode() for value in array.to_pylist()]
    found: list[bytes | None] = array.view(pa.binary()).to_pylist()
    return found


@lru_cache(maxsize=4096)
def _entries_of(column: Column, number: int, side: int) -> _Entries:
    return _Entries(column, number, side)


class _Heads(dict[int, tuple[bytes, bytes]]):
    """By the length of a value, what stands before and behind it. Of the first lengths it is kept."""

    def __init__(self, make: Callable[[int], tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, size: int) -> tuple[bytes, bytes]:
        found = self._make(size)
        if len(self) < MOST_SIZES:
            self[size] = found
        return found


class _Entries:
    """The map entries of one column."""

    def __init__(self, column: Column, number: int, side: int) -> None:
        word = re.split(r"[ (]", column.type, maxsplit=1)[0]
        name = column.name or f"@{number}"
        begin = p.encode_field(1, number) + p.encode_field(2, _SQL_TYPES.get(word, _SQL_KINDS[column.kind]))
        self._begin = begin + p.encode_field(3, name) + p.encode_field(4, column.key)
        self._props = _BINARY if column.kind is Kind.BYTES else b""
        self._end = p.encode_field(10, column.type)
        self._key = p.encode_field(1, name)
        self._tag = b"\x12" if side else b"\x0a"
        self.heads = _Heads(lambda size: self._parts_of(size, b""))
        self.null = self._wrap(self._begin + b"\x30\x01" + self._end)
        self.absent = self._wrap(self._begin + _ABSENT + self._end)

    def of_updated(self, value: bytes | None) -> bytes:
        if value is None:
            return self._wrap(self._begin + b"\x28\x01\x30\x01" + self._end)
        head, tail = self._parts_of(len(value), b"\x28\x01")
        return head + value + tail

    def _parts_of(self, size: int, updated: bytes) -> tuple[bytes, bytes]:
        """An empty text is a value: it is there, and not null."""
        head = self._begin + updated + self._props + b"\x42" + p.encode_varint(size)
        tail = p.encode_field(9, size) + self._end
        column = len(head) + size + len(tail)
        entry = self._key + b"\x12" + p.encode_varint(column)
        return b"".join((self._tag, p.encode_varint(len(entry) + column), entry, head)), tail

    def _wrap(self, column: bytes) -> bytes:
        entry = self._key + p.encode_part(2, column)
        return self._tag + p.encode_varint(len(entry)) + entry


# replies


@dataclass(frozen=True)
class Reply:
    """What a fetch answers. `messages`: by shard, events or blocks, `size` bytes. `count`: of events; of blocks, of rows."""

    messages: dict[int, Sequence[bytes]]
    count: int = 0
    props: Sequence[tuple[str, str]] = ()
    latest: bytes = b""
    size: int = 0

    def encode(self) -> list[bytes]:
        """The bytes of the RdsEnvelope, in pieces: messages are not copied."""
        entries: list[list[bytes]] = []
        for shard, messages in self.messages.items():
            size = sum(map(len, messages))
            parts = [p.encode_field(1, len(messages)) + p.encode_field(2, size)]
            for message in messages:
                parts += [b"\x1a" + p.encode_varint(len(message)), message]
            entry = p.encode_field(1, shard) + b"\x12" + p.encode_varint(sum(map(len, parts)))
            parts.insert(0, entry)
            entries.append([b"\x0a" + p.encode_varint(sum(map(len, parts))), *parts])
        body = [part for entry in entries for part in entry]
        head = b"\x08\x01\x10" + bytes((p.PARTITIONED,)) + b"\x1a" + p.encode_varint(sum(map(len, body)))
        tail = p.encode_field(6, self.count) + p.encode_pairs(7, self.props) + p.encode_field(8, self.latest)
        return [head, *body, tail]


def encode_error(code: int, message: str) -> bytes:
    return b"\x08\x01\x10\x03" + p.encode_field(4, code) + p.encode_field(5, message)
