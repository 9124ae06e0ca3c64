"""One block of whole transactions as bytes. A group of the tail is a block that is not compressed.

    header   fixed: what the block is, where it lies, the states before and after it, lengths, checksums
    head     JSON: the GTID sets before and after
    body     sections, each an Arrow IPC stream: transactions, their records, then the rows of each shape

A transaction that is larger than a block is in several, its **parts**: the first one begins it, the last one ends it. Parts
share their blocks with no other transaction, so a store is always cut between blocks. CRC-32 guards header, head and body.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from tidemark.changes.store.layout import STATE_BYTES, State
from tidemark.changes.store.model import (
    BinlogInfo,
    Ddl,
    Mark,
    Record,
    Rows,
    SchemaChange,
    Shape,
    Transaction,
)
from tidemark.errors import CorruptionError, PermanentError

MAGIC = b"TMCB"
VERSION = 1
_HEADER = struct.Struct(f"<4sHHIIQQIQ{STATE_BYTES}s{STATE_BYTES}sI")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECK.size
_BEGINS, _ENDS = 1, 2
_LENGTH = struct.Struct("<I")
_ROWS, _SCHEMA, _DDL, _MARK = range(4)


@dataclass(frozen=True)
class Draft:
    """What becomes one block. `begins`, `ends`: False for parts of a transaction that is in several."""

    before: State
    after: State
    gtids_before: str
    gtids_after: str
    transactions: Sequence[Transaction]
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True)
class Header:
    """A block's header. `position`: its own, packed; in a tail, its offset. A part that does not end leaves the state as it
    was. `rows` counts single rows."""

    position: int
    fence: int
    transactions: int
    rows: int
    before: State
    after: State
    begins: bool
    ends: bool
    head_bytes: int
    body_bytes: int
    check: int

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.head_bytes + self.body_bytes


@dataclass(frozen=True)
class Encoded:
    """A block that does not know yet where it will lie."""

    draft: Draft
    rows: int
    head: bytes
    body: bytes

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.head) + len(self.body)

    def place(self, position: int, fence: int) -> bytes:
        """The block's bytes at a packed position."""
        draft = self.draft
        check = zlib.crc32(self.body, zlib.crc32(self.head))
        flags = _BEGINS * draft.begins + _ENDS * draft.ends
        lengths = (len(self.head), len(self.body))
        states = (draft.before.pack(), draft.after.pack())
        header = _HEADER.pack(
            MAGIC, VERSION, flags, *lengths, position, fence, len(draft.transactions), self.rows, *states, check
        )
        return b"".join([header, _CHECK.pack(zlib.crc32(header)), self.head, self.body])


def encode_block(draft: Draft, *, compress: bool) -> Encoded:
    """Encode transactions. Raises PermanentError where they take more than 4 GiB."""
    shapes: dict[Shape, list[Any]] = {}
    records = [_encode_record(record, shapes) for each in draft.transactions for record in each.records]
    sections = [_encode_transactions(draft.transactions), _encode_records(records)]
    sections += [_join_batches(shape, batches) for shape, batches in shapes.items()]
    streams = [_write_stream(batch, compress) for batch in sections]
    body = b"".join(piece for stream in streams for piece in (_LENGTH.pack(len(stream)), stream))
    head = json.dumps({"before": draft.gtids_before, "after": draft.gtids_after}).encode()
    if len(body) >= 1 << 32 or len(head) >= 1 << 32:
        raise PermanentError("a block would be larger than 4 GiB", hint="append the transaction's rows in smaller batches")
    return Encoded(draft, sum(rows for _, _, rows, _ in records), head, body)


def decode_header(data: bytes) -> Header | None:
    """The header at the start of `data`; None where there is none, or a damaged one."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return None
    if _CHECK.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        return None
    _, version, flags, head, body, position, fence, transactions, rows, before, after, check = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptionError(f"a block has version {version}; this Tidemark reads {VERSION}", hint="upgrade Tidemark")
    states = (State.unpack(before), State.unpack(after))
    return Header(
        position, fence, transactions, rows, *states, bool(flags & _BEGINS), bool(flags & _ENDS), head, body, check
    )


def is_sound(header: Header, rest: bytes) -> bool:
    """Whether `rest`, what follows the header, is the head and the body that were written."""
    return len(rest) == header.head_bytes + header.body_bytes and zlib.crc32(rest) == header.check


def decode_gtids(head: bytes) -> tuple[str, str]:
    """The GTID sets before and after a block."""
    found = json.loads(head)
    return found["before"], found["after"]


def decode_transactions(header: Header, body: bytes) -> list[Transaction]:
    """The transactions of a block that is sound. Of a part: the transaction with the records of this part."""
    import pyarrow as pa

    try:
        batches = [_read_stream(stream) for stream in _split_sections(body)]
        heads, records, *rows = batches
        decoded = iter(_decode_records(records, rows))
        found = []
        for count, gtid, gtid_offset, *info in zip(*(column.to_pylist() for column in heads.columns), strict=True):
            own = tuple(next(decoded) for _ in range(count))
            found.append(Transaction(BinlogInfo(*info), gtid, gtid_offset, own))
    except (pa.ArrowException, ValueError, LookupError, StopIteration, RuntimeError) as wrong:
        raise CorruptionError(f"a block with sound checksums holds nonsense: {wrong}") from wrong
    if len(found) != header.transactions:
        raise CorruptionError(f"a block holds {len(found)} transactions, its header says {header.transactions}")
    return found


def _encode_record(record: Record, shapes: dict[Shape, list[Any]]) -> tuple[int, int, int, str]:
    """(kind, section, rows, text) of a record. Puts its rows into `shapes`."""
    if isinstance(record, Rows):
        shapes.setdefault(record.shape, []).append(record.batch)
        return _ROWS, list(shapes).index(record.shape), record.batch.num_rows, ""
    if isinstance(record, SchemaChange):
        return _SCHEMA, 0, 0, record.shape.as_json()
    if isinstance(record, Ddl):
        return _DDL, 0, 0, json.dumps([record.database, record.sql])
    return _MARK, 0, 0, json.dumps([record.word, record.text])


def _decode_records(records: Any, sections: Sequence[Any]) -> Iterable[Record]:
    shapes = [Shape.from_json(section.schema.metadata[b"shape"].decode()) for section in sections]
    starts = [0] * len(sections)
    for kind, section, rows, text in zip(*(column.to_pylist() for column in records.columns), strict=True):
        if kind == _ROWS:
            yield Rows(shapes[section], sections[section].slice(starts[section], rows))
            starts[section] += rows
        elif kind == _SCHEMA:
            yield SchemaChange(Shape.from_json(text))
        elif kind == _DDL:
            yield Ddl(*json.loads(text))
        else:
            yield Mark(*json.loads(text))


def _encode_transactions(transactions: Sequence[Transaction]) -> Any:
    import pyarrow as pa

    integer = pa.int64()
    fields = [("records", integer), ("gtid", pa.string()), ("gtid_offset", pa.uint64())]
    fields += [(name, integer) for name in ("change_id", "server_id", "file")]
    fields += [("offset", pa.uint64()), ("uuid", pa.binary(16))]
    fields += [(name, pa.uint64()) for name in ("transaction_id", "event_index")]
    schema = pa.schema([*fields, ("timestamp", integer)])
    return _make_batch([(len(t.records), t.gtid, t.gtid_offset, *astuple(t.info)) for t in transactions], schema)


def _encode_records(records: Sequence[tuple[int, int, int, str]]) -> Any:
    import pyarrow as pa

    schema = pa.schema([("kind", pa.uint8()), ("section", pa.uint32()), ("rows", pa.uint64()), ("text", pa.string())])
    return _make_batch(records, schema)


def _make_batch(rows: Sequence[tuple[Any, ...]], schema: Any) -> Any:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _join_batches(shape: Shape, batches: Sequence[Any]) -> Any:
    import pyarrow as pa

    metadata = {b"shape": shape.as_json().encode()}
    return pa.concat_batches([batch.replace_schema_metadata(metadata) for batch in batches])


def _write_stream(batch: Any, compress: bool) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd" if compress else None, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read_stream(data: bytes) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
        return stream.read_next_batch()


def _split_sections(body: bytes) -> Iterable[bytes]:
    start = 0
    while start < len(body):
        (length,) = _LENGTH.unpack_from(body, start)
        start += _LENGTH.size
        yield body[start : start + length]
        start += length
