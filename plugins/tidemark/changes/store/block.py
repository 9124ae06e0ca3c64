"""One block of whole transactions as bytes. A group of the tail is a block that is not compressed.

    header   fixed: what the block is, where it lies, the states before and after it, lengths, checksums
    head     JSON: the GTID sets before and after
    body     sections: the transactions, then, each an Arrow IPC stream, their records and the rows of each shape

A transaction that is larger than a block is in several, its **parts**: the first one begins it, the last one ends it. Parts
share their blocks with no other transaction, so a store is always cut between blocks. Header, head and body have a CRC-32
each, so that a GTID set is had without the body.
"""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

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
from tidemark.changes.store.run import Run
from tidemark.errors import CorruptionError, PermanentError

MAGIC = b"TMCB"
VERSION = 1
_HEADER = struct.Struct(f"<4sHHIIQQIQ{STATE_BYTES}s{STATE_BYTES}sII")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECK.size
_BEGINS, _ENDS, _DENSE = 1, 2, 4
DENSE_LEVEL = 15
"""Of zstd, for blocks that are old: below 13 it gains a tenth, from 15 on half; 19 takes five times as long for as much."""
_LENGTH = struct.Struct("<I")
_MESSAGE = struct.Struct("<II")  # as a stream of Arrow begins: a mark, and the length of its schema
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of such a stream
_FLAT, _NAMES, _SLOT = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")  # of FlatBuffers
_BUFFER, _SIZE = struct.Struct("<qq"), struct.Struct("<q")  # of Arrow: place and length; before what is compressed
_NUMBERS = "change_id", "server_id", "file", "offset", "transaction_id", "event_index", "timestamp"
_COLUMNS = dict.fromkeys(["records", "gtid_offset", *_NUMBERS], "Q") | {"timestamp": "q"}
_get_numbers = attrgetter(*_NUMBERS)
_ROWS, _SCHEMA, _DDL, _MARK = range(4)


Bytes = Any
"""`bytes`, or a buffer of Arrow."""
Chosen = Callable[[Shape], Collection[int] | None]
"""Which columns of a shape's rows are decoded, by their places in `Shape.arrow_schema`; None: all. The others are null."""


@dataclass(frozen=True)
class Draft:
    """What becomes one block. `begins`, `ends`: False for parts of a transaction that is in several."""

    before: State
    after: State
    gtids_before: str
    gtids_after: str
    transactions: Sequence[Transaction | Run]
    begins: bool = True
    ends: bool = True

    @property
    def count(self) -> int:
        """How many transactions."""
        return sum(len(each) if isinstance(each, Run) else 1 for each in self.transactions)


@dataclass(frozen=True)
class Header:
    """A block's header. `position`: its own, packed; in a tail, its offset. A part that does not end leaves the state as it
    was. `rows` counts single rows. `is_dense`: it was compressed harder, and zeros fill its body up."""

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
    head_check: int
    body_check: int
    is_dense: bool = False

    @property
    def size(self) -> int:
        return HEADER_BYTES + self.head_bytes + self.body_bytes


@dataclass(frozen=True)
class Encoded:
    """A block that does not know yet where it will lie. `body`: in pieces, which are joined once, when it is placed."""

    draft: Draft
    rows: int
    head: bytes
    body: Sequence[Bytes]

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.head) + sum(map(len, self.body))

    def place(self, position: int, fence: int) -> bytes:
        """The block's bytes at a packed position."""
        draft, check = self.draft, 0
        for piece in self.body:
            check = zlib.crc32(piece, check)
        header = Header(
            position,
            fence,
            draft.count,
            self.rows,
            draft.before,
            draft.after,
            draft.begins,
            draft.ends,
            len(self.head),
            sum(map(len, self.body)),
            zlib.crc32(self.head),
            check,
        )
        return b"".join([encode_header(header), self.head, *self.body])


def encode_header(header: Header) -> bytes:
    """A header as it is stored."""
    flags = _BEGINS * header.begins + _ENDS * header.ends + _DENSE * header.is_dense
    lengths = (header.head_bytes, header.body_bytes)
    states = (header.before.pack(), header.after.pack())
    checks = (header.head_check, header.body_check)
    counts = (header.transactions, header.rows)
    packed = _HEADER.pack(MAGIC, VERSION, flags, *lengths, header.position, header.fence, *counts, *states, *checks)
    return packed + _CHECK.pack(zlib.crc32(packed))


def encode_block(draft: Draft, *, compress: bool) -> Encoded:
    """Encode transactions. Raises PermanentError where they take more than 4 GiB."""
    shapes, level = _ShapeSections(), 1 if compress else 0
    parts = [
        _encode_run(each, shapes) if isinstance(each, Run) else _encode_each(each, shapes)
        for each in _gather_runs(draft.transactions)
    ]
    batches = [_join_records(parts), *(_join_rows(shape, stretches) for shape, stretches in shapes.found)]
    sections = [[_join_transactions(parts, compress)], *(_write_stream(each, level=level) for each in batches)]
    sizes = [sum(map(len, section)) for section in sections]
    head = json.dumps({"before": draft.gtids_before, "after": draft.gtids_after}).encode()
    if sum(sizes) + len(sizes) * _LENGTH.size >= 1 << 32 or len(head) >= 1 << 32:
        raise PermanentError("a block would be larger than 4 GiB", hint="append the transaction's rows in smaller batches")
    body = [piece for size, section in zip(sizes, sections, strict=True) for piece in (_LENGTH.pack(size), *section)]
    return Encoded(draft, sum(part.rows for part in parts), head, body)


def decode_header(data: Bytes) -> Header | None:
    """The header at the start of `data`; None where there is none, or a damaged one."""
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        return None
    if _CHECK.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        return None
    _, version, flags, head, body, position, fence, transactions, rows, before, after, *checks = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptionError(f"a block has version {version}; this Tidemark reads {VERSION}", hint="upgrade Tidemark")
    states = (State.unpack(before), State.unpack(after))
    begins, ends, is_dense = (bool(flags & flag) for flag in (_BEGINS, _ENDS, _DENSE))
    return Header(position, fence, transactions, rows, *states, begins, ends, head, body, checks[0], checks[1], is_dense)


def compress_block(header: Header, rest: bytes) -> tuple[bytes, int]:
    """A sound block as bytes, compressed harder, and how many zeros follow them: it keeps its size, and so its place and
    that of all behind it. `rest`: its head and body."""
    head, body = rest[: header.head_bytes], rest[header.head_bytes :]
    transactions, *sections = _split_sections(body)
    dense: list[Bytes] = [transactions, *map(_compress_section, sections)]
    filled = b"".join(piece for section in dense for piece in (_LENGTH.pack(len(section)), section))
    left = len(body) - len(filled)
    dense_header = replace(header, body_check=zlib.crc32(bytes(left), zlib.crc32(filled)), is_dense=True)
    return encode_header(dense_header) + head + filled, left


def _compress_section(data: Bytes) -> Bytes:
    batch = _read_stream(data)
    dense = b"".join(_write_stream(batch, level=DENSE_LEVEL))
    if not _read_stream(dense).equals(batch, check_metadata=True):
        raise CorruptionError("a block is another one when it is compressed harder", hint="say so to who makes Tidemark")
    return min(data, dense, key=len)


def is_sound(header: Header, rest: Bytes) -> bool:
    """Whether `rest`, what follows the header, is the head and the body that were written."""
    body = memoryview(rest)[header.head_bytes :]
    return is_sound_head(header, rest[: header.head_bytes]) and _is_whole(body, header.body_bytes, header.body_check)


def is_sound_head(header: Header, head: Bytes) -> bool:
    return _is_whole(head, header.head_bytes, header.head_check)


def _is_whole(data: Bytes, size: int, check: int) -> bool:
    return len(data) == size and zlib.crc32(data) == check


def decode_gtids(head: Bytes) -> tuple[str, str]:
    """The GTID sets before and after a block."""
    found = json.loads(bytes(head))
    return found["before"], found["after"]


class Heads:
    """The transactions of a block that is sound, without their records. What finds a place needs no more, and no Arrow."""

    def __init__(self, header: Header, body: Bytes) -> None:
        self._before = header.before
        count = header.transactions
        try:
            section = next(_split_sections(body))
            data = zlib.decompress(section[1:]) if section[0] else bytes(section[1:])
            self._columns: dict[str, Sequence[Any]] = {}
            at = 0
            for name, kind in _COLUMNS.items():
                self._columns[name] = struct.unpack_from(f"<{count}{kind}", data, at)
                at += 8 * count
            self._columns["uuid"] = [data[start : start + 16] for start in range(at, at + 16 * count, 16)]
            self.gtids: list[str] = json.loads(data[at + 16 * count :])
        except (struct.error, zlib.error, ValueError, LookupError, StopIteration) as wrong:
            raise CorruptionError(f"a block with sound checksums holds nonsense: {wrong}") from wrong

    def find(self, is_reached: Callable[[State], bool]) -> int | None:
        """The number of the first transaction after which a state that stays reached is reached."""
        newest = list(accumulate(self._columns["timestamp"], max, initial=self._before.newest))[1:]

        def reached(index: int) -> bool:
            info, offset = self.info_of(index), self._columns["gtid_offset"][index]
            return is_reached(State(self._before.seq + 1 + index, info, newest[index], offset))

        index = bisect_left(range(len(newest)), True, key=reached)
        return self._before.seq + 1 + index if index < len(newest) else None

    def find_gtid(self, is_wanted: Callable[[str], bool]) -> int | None:
        """The number of the first transaction whose GTID is wanted."""
        return next((self._before.seq + 1 + index for index, gtid in enumerate(self.gtids) if is_wanted(gtid)), None)

    def info_of(self, index: int) -> BinlogInfo:
        return BinlogInfo(uuid=self._columns["uuid"][index], **{name: self._columns[name][index] for name in _NUMBERS})

    def add_records(self, records: Iterator[Record]) -> list[Transaction]:
        """The whole transactions. `records`: those of all, one behind the other."""
        found = []
        counts, offsets = self._columns["records"], self._columns["gtid_offset"]
        for index, (count, gtid, offset) in enumerate(zip(counts, self.gtids, offsets, strict=True)):
            own = tuple(next(records) for _ in range(count))
            found.append(Transaction(self.info_of(index), gtid, offset, own))
        return found


def decode_transactions(header: Header, body: Bytes, chosen: Chosen | None = None) -> list[Transaction]:
    """The transactions of a block that is sound. Of a part: the transaction with the records of this part."""
    import pyarrow as pa

    heads = Heads(header, body)
    try:
        _, *sections = _split_sections(body)
        records, *rows = [_read_stream(sections[0]), *(_read_stream(section, chosen) for section in sections[1:])]
        return heads.add_records(iter(_decode_records(records, rows)))
    except (pa.ArrowException, ValueError, LookupError, StopIteration, RuntimeError) as wrong:
        raise CorruptionError(f"a block with sound checksums holds nonsense: {wrong}") from wrong


def measure_body(header: Header, rest: Bytes, most: int) -> int:
    """How many bytes the sections of a block are once they are decompressed, by what stands before each buffer; more than
    `most` where the transactions alone are. Nothing else is decompressed. `rest`: its head and body."""
    import pyarrow as pa

    try:
        first, *sections = _split_sections(rest[header.head_bytes :])
        size = len(zlib.decompressobj().decompress(first[1:], most + 1) if first[0] else first)
        return size + sum(_measure_stream(section) for section in sections)
    except (pa.ArrowException, struct.error, zlib.error, ValueError, LookupError, OSError) as wrong:
        raise CorruptionError(f"a block holds nonsense: {wrong}") from wrong


def _measure_stream(data: Bytes) -> int:
    import pyarrow as pa

    size = 0
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type == "schema":
            continue
        meta, body = message.metadata.to_pybytes(), message.body
        batch = _find_table(meta, _find_table(meta, 0, None), 2)
        is_compressed = _find_field(meta, batch, 3) is not None
        place = _find_field(meta, batch, 2)
        if place is None:
            raise ValueError("a batch without buffers")
        buffers = place + _FLAT.unpack_from(meta, place)[0]
        (count,) = _FLAT.unpack_from(meta, buffers)
        for number in range(count):
            offset, length = _BUFFER.unpack_from(meta, buffers + _FLAT.size + number * _BUFFER.size)
            (told,) = _SIZE.unpack_from(body, offset) if is_compressed and length else (-1,)
            size += length if told < 0 else told
    return size


def _find_table(meta: bytes, table: int, field: int | None) -> int:
    """Where a table of a FlatBuffer begins that a field of another one names; None: the root."""
    place = table if field is None else _find_field(meta, table, field)
    if place is None:
        raise ValueError("a message without a batch")
    return int(place + _FLAT.unpack_from(meta, place)[0])


def _find_field(meta: bytes, table: int, field: int) -> int | None:
    """Where a field of a FlatBuffer's table is; None: it has none."""
    names = table - _NAMES.unpack_from(meta, table)[0]
    (size,) = _SLOT.unpack_from(meta, names)
    at = 4 + 2 * field
    offset = _SLOT.unpack_from(meta, names + at)[0] if at < size else 0
    return table + offset if offset else None


def find_shapes(read: Callable[[int, int], bytes], size: int) -> list[Shape]:
    """The shapes of the rows of a block, by the beginnings of its sections. `read`: (offset, bytes) of the body."""
    import pyarrow as pa

    found: list[Shape] = []
    start = number = 0
    try:
        while size - start > _LENGTH.size:
            (length,) = _LENGTH.unpack(read(start, _LENGTH.size))
            if not length:  # zeros fill it up
                break
            start += _LENGTH.size
            if number >= 2:  # behind the transactions and their records
                _, schema = _MESSAGE.unpack(read(start, _MESSAGE.size))
                message = read(start, min(length, _MESSAGE.size + schema))
                found.append(_shape_of(pa.ipc.read_schema(pa.py_buffer(message))))
            start, number = start + length, number + 1
    except (pa.ArrowException, struct.error, ValueError, LookupError, TypeError) as wrong:
        raise CorruptionError(f"a block holds nonsense: {wrong}") from wrong
    return found


class _ShapeSections:
    """The rows of each shape, as stretches of the batches that they are in. Stretches that meet are one.

    Shapes are looked up by identity first: hashing a wide one for each record is dear.
    """

    def __init__(self) -> None:
        self.found: list[tuple[Shape, list[Rows]]] = []
        self._by_shape: dict[Shape, int] = {}
        self._by_id: dict[int, int] = {}

    def add(self, rows: Rows) -> int:
        """The section of these rows."""
        number = self._by_id.get(id(rows.shape))
        if number is None:
            number = self._by_id[id(rows.shape)] = self._by_shape.setdefault(rows.shape, len(self.found))
            if number == len(self.found):
                self.found.append((rows.shape, []))
        stretches = self.found[number][1]
        last = stretches[-1] if stretches else None
        if last is not None and last.whole is rows.whole and last.start + last.count == rows.start:
            stretches[-1] = Rows(rows.shape, rows.whole, last.start, last.count + rows.count)
        else:
            stretches.append(rows)
        return number


def _encode_record(record: Record, shapes: _ShapeSections) -> tuple[int, int, int, str]:
    """(kind, section, rows, text) of a record. Puts its rows into `shapes`."""
    if isinstance(record, Rows):
        return _ROWS, shapes.add(record), record.count, ""
    if isinstance(record, SchemaChange):
        return _SCHEMA, 0, 0, record.shape.as_json()
    if isinstance(record, Ddl):
        return _DDL, 0, 0, json.dumps([record.database, record.sql])
    return _MARK, 0, 0, _encode_mark(record.word, record.text)


@lru_cache(maxsize=256)
def _encode_mark(word: str, text: str) -> str:
    """Nearly all transactions end in the same few marks."""
    return json.dumps([word, text])


def _decode_records(records: Any, sections: Sequence[Any]) -> Iterable[Record]:
    shapes = [_shape_of(section.schema) for section in sections]
    starts = [0] * len(sections)
    for kind, section, rows, text in zip(*(column.to_pylist() for column in records.columns), strict=True):
        if kind == _ROWS:
            yield Rows(shapes[section], sections[section], starts[section], rows)
            starts[section] += rows
            if starts[section] > sections[section].num_rows:
                raise ValueError(f"section {section} has fewer rows than its records")
        elif kind == _SCHEMA:
            yield SchemaChange(Shape.from_json(text))
        elif kind == _DDL:
            yield Ddl(*json.loads(text))
        else:
            yield Mark(*json.loads(text))


def _shape_of(schema: Any) -> Shape:
    return Shape.from_json(schema.metadata[b"shape"].decode())


class _Part(NamedTuple):
    """Transactions of a block and their records, encoded by column."""

    columns: list[bytes]
    uuids: bytes
    gtids: Sequence[str]
    rows: int
    records: list[bytes]
    sizes: list[int]
    texts: bytes


def _gather_runs(transactions: Sequence[Transaction | Run]) -> Iterator[Run | list[Transaction]]:
    """Those that are one by one together with those behind them."""
    single: list[Transaction] = []
    for each in transactions:
        if not isinstance(each, Run):
            single.append(each)
            continue
        if single:
            yield single
            single = []
        yield each
    if single:
        yield single


def _encode_each(transactions: Sequence[Transaction], shapes: _ShapeSections) -> _Part:
    count = len(transactions)
    heads = [(len(t.records), t.gtid_offset, *_get_numbers(t.info)) for t in transactions]
    columns = zip(_COLUMNS.values(), zip(*heads, strict=True), strict=True)
    records = [_encode_record(record, shapes) for each in transactions for record in each.records]
    *numbers, texts = list(zip(*records, strict=True)) or [()] * 4
    stored = [text.encode() for text in texts]
    return _Part(
        [struct.pack(f"<{count}{kind}", *column) for kind, column in columns],
        b"".join([struct.pack("16s", t.info.uuid) for t in transactions]),
        [t.gtid for t in transactions],
        sum(numbers[2]),
        [struct.pack(f"<{len(records)}{code}", *values) for code, values in zip("BIQ", numbers, strict=True)],
        list(map(len, stored)),
        b"".join(stored),
    )


def _encode_run(run: Run, shapes: _ShapeSections) -> _Part:
    import numpy as np

    count, of_rows = len(run), len(run.counts)
    same = (np.full(count, value, np.uint64) for value in (run.change_id, run.file, 0))
    change_ids, files, event_indexes = same
    numbers = {
        **{"records": np.diff(run.borders) + 1, "gtid_offset": run.gtid_offsets, "change_id": change_ids},
        **{"server_id": run.server_ids, "file": files, "offset": run.offsets, "transaction_id": run.transaction_ids},
        **{"event_index": event_indexes, "timestamp": run.timestamps},
    }
    is_rows = np.ones(of_rows + count, bool)
    is_rows[run.borders[1:] + np.arange(count)] = False
    sections = np.array([shapes.add(rows) if rows.count else 0 for rows in run.stretches()], np.uint32)
    records = [np.zeros(of_rows + count, kind) for kind in (np.uint8, np.uint32, np.uint64)]
    records[0][~is_rows] = _MARK
    records[1][is_rows] = sections[run.shapes]
    records[2][is_rows] = run.counts
    text = _encode_mark(run.mark.word, run.mark.text).encode()
    return _Part(
        [numbers[name].astype("<i8" if kind == "q" else "<u8").tobytes() for name, kind in _COLUMNS.items()],
        run.uuids.tobytes(),
        run.gtids,
        run.rows,
        [column.astype(column.dtype.newbyteorder("<")).tobytes() for column in records],
        np.where(is_rows, 0, len(text)).tolist(),
        text * count,
    )


def _join_transactions(parts: Sequence[_Part], compress: bool) -> bytes:
    columns = [b"".join([part.columns[number] for part in parts]) for number in range(len(_COLUMNS))]
    gtids = json.dumps([gtid for part in parts for gtid in part.gtids]).encode()
    data = b"".join([*columns, *(part.uuids for part in parts), gtids])
    return b"\1" + zlib.compress(data, 1) if compress else b"\0" + data


def _join_records(parts: Sequence[_Part]) -> Any:
    """The records by column. From buffers: `pa.array` would import pandas, which takes longer than a block."""
    import pyarrow as pa

    schema = pa.schema([("kind", pa.uint8()), ("section", pa.uint32()), ("rows", pa.uint64()), ("text", pa.string())])
    sizes = [size for part in parts for size in part.sizes]
    arrays = [
        pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(b"".join([part.records[number] for part in parts]))])
        for number, kind in enumerate(schema.types[:3])
    ]
    offsets = struct.pack(f"<{len(sizes) + 1}i", *accumulate(sizes, initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join([part.texts for part in parts]))]
    return pa.record_batch([*arrays, pa.Array.from_buffers(pa.string(), len(sizes), buffers)], schema=schema)


def _join_rows(shape: Shape, stretches: Sequence[Rows]) -> Any:
    import pyarrow as pa

    return pa.concat_batches([rows.batch for rows in stretches]).replace_schema_metadata(
        {b"shape": shape.as_json().encode()}
    )


def _write_stream(batch: Any, *, level: int) -> Sequence[Bytes]:
    """A batch as a stream, compressed by a level of zstd; 0: not. Then each buffer is copied once, to where its size is
    known: a sink that grows costs five times as much."""
    import pyarrow as pa

    if not level:
        return [batch.schema.serialize(), batch.serialize(), _END]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", level), use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return [sink.getvalue()]


def _read_stream(data: Bytes, chosen: Chosen | None = None) -> Any:
    import pyarrow as pa

    # Rows lie in it where they are not compressed, and there they begin where Arrow wants it.
    data = pa.py_buffer(bytes(data))
    with pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
        schema = stream.schema
        places = None if chosen is None else chosen(_shape_of(schema))
        if places is None:
            return stream.read_next_batch()
    decoded = sorted({0, *places})  # none would be all
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=decoded)
    with pa.ipc.open_stream(data, options=options) as stream:
        batch = stream.read_next_batch()
    columns = dict(zip(decoded, batch.columns, strict=True))
    arrays = [columns[n] if n in columns else pa.nulls(len(batch), kind) for n, kind in enumerate(schema.types)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _split_sections(body: Bytes) -> Iterator[memoryview]:
    """The sections of a body, which are not copied."""
    body, start = memoryview(body), 0
    while len(body) - start > _LENGTH.size:
        (length,) = _LENGTH.unpack_from(body, start)
        if not length:  # zeros fill it up
            return
        start += _LENGTH.size
        yield body[start : start + length]
        start += length
