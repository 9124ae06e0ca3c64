"""From the bytes of a binary log to its events, in order.

`read_events` reads an open file. `EventDecoder` is given one event after the other, as a server sends them. It remembers
what later events need: the format description, and the tables since the last statement ended. A transaction that was
compressed as a whole is unpacked piece by piece, so that it may be larger than memory. Plain transactions are decoded many
at a time (`EventDecoder.scan_plain`), for an event costs more than its row.

A transaction that is cut off raises a CorruptionError like any other damage. Events before it were given out already:
the caller believes a transaction when its end has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias

from tidemark.changes.binlog import events, layout
from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import HEADER_BYTES, EventType, FormatDescription, Header
from tidemark.changes.binlog.rows import END_OF_STATEMENT, NO_TABLE, ROW_EVENTS, RowEvent, RowKey, Rows, make_key, read_rows
from tidemark.changes.binlog.tables import Table, read_table
from tidemark.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

E = EventType
_TABLE_MAP, _MARIA_GTID = int(E.TABLE_MAP), int(E.MARIA_GTID)
_FIXED_PARTS = {
    **{_TABLE_MAP: 8, int(E.QUERY): 13},
    **dict.fromkeys(map(int, (E.WRITE_ROWS_V1, E.UPDATE_ROWS_V1, E.DELETE_ROWS_V1)), 8),
    **dict.fromkeys(map(int, (E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS)), 10),
}
"""Sizes of the fixed parts of plain events. MySQL 5.1.4 and before has others."""
Body: TypeAlias = (
    FormatDescription
    | events.Gtid
    | events.MariaGtid
    | events.Query
    | events.Xid
    | events.XaPrepare
    | events.Rotate
    | events.Incident
    | events.Statement
    | events.Other
    | MysqlGtidSet
    | MariaGtidPosition
    | Table
    | Rows
)

MOST_UNPACKED = 16 << 30
"""Bytes of a transaction that was compressed as a whole."""
_PIECE = 1 << 20
_LARGEST_PIECE = 1 << 24
_MOST_DESCRIBED = 1 << 19
"""Columns, and quarters of the bytes that describe them, of the tables that are remembered: some 100 MB."""


class Event(NamedTuple):
    """An event. It begins at byte `position` of its log and ends before `end`.

    Events of a compressed transaction have the position of the whole, and `inside` counts them from 1.
    """

    position: int
    end: int
    header: Header
    body: Body
    inside: int = 0


class Plain(NamedTuple):
    """Transactions that are rows alone, and XID, one behind the other. Event e is data[begins[e]:ends[e]].

    `transactions` and `rows` have nine numbers a transaction and four a row event, as `tm_scan` of `kernels.c` writes them.
    `keys`: what row events have in common, by number.
    """

    data: bytes
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    transactions: NDArray[np.int64]
    rows: NDArray[np.int64]
    keys: Sequence[RowKey]


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read_events(log: BinaryIO, start: int = len(layout.MAGIC)) -> Iterator[Event]:
    """The events of a log, from the one that begins at byte `start`, which must be one outside of a transaction.

    The format description comes first, wherever it starts. The log is read ahead, a megabyte at a time.
    """
    layout.check_magic(log.read(len(layout.MAGIC)))
    decoder = EventDecoder()
    position = len(layout.MAGIC)
    split = split_events(log)
    while found := next(split, None):
        header, event = found
        yield from decoder.decode_split(header, event, position, position + header.size)
        position += header.size
        if position < start:
            log.seek(start)
            position, split = start, split_events(log)


def split_events(source: Readable) -> Iterator[tuple[Header, bytes]]:
    """The events of a source, one after the other. No more memory is taken than bytes are there."""
    block, at = b"", 0
    while True:
        if len(block) - at < HEADER_BYTES:
            block, at = _read_on(source, block[at:], HEADER_BYTES), 0
            if not block:
                return
            if len(block) < HEADER_BYTES:
                raise CorruptionError("the log ends inside the header of an event")
        header = layout.read_header(block, at)
        if len(block) - at < header.size:
            block, at = _read_on(source, block[at:], header.size), 0
            if len(block) < header.size:
                raise CorruptionError(f"the log ends inside a {layout.name_type(header.type)} event")
        yield header, block[at : at + header.size]
        at += header.size


def _read_on(source: Readable, block: bytes, wanted: int) -> bytes:
    """The block and what follows, to `wanted` bytes at least, or to the end."""
    pieces, size = [block], len(block)
    while size < wanted and (piece := source.read(max(_PIECE, min(wanted - size, _LARGEST_PIECE)))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


class EventDecoder:
    """Decodes the events of one log after the other, as one stream.

    `has_checksums` is said of what comes before the format description: a server sends where the stream begins.
    """

    def __init__(self, *, has_checksums: bool = False) -> None:
        self.description: FormatDescription | None = None
        self._before = FormatDescription("", 0, has_checksums, b"", in_use=False)
        self._tables: dict[int, Table] = {}
        self._known: dict[bytes, Table] = {}
        self._known_weight = self._open_weight = 0

    def decode(self, event: bytes, position: int, end: int) -> Iterable[Event]:
        """The event in `event`, or all those of a compressed transaction."""
        header = layout.read_header(event)
        if header.size != len(event):
            raise CorruptionError(f"an event of {header.size} bytes in {len(event)}")
        return self.decode_split(header, event, position, end)

    def decode_split(self, header: Header, event: bytes, position: int, end: int) -> Iterable[Event]:
        """The same for an event that has the size that its header says."""
        if header.type == E.FORMAT_DESCRIPTION:
            former, self.description = self.description, layout.read_format(event, header)
            self._tables, self._open_weight = {}, 0
            if former is not None and former.is_maria != self.description.is_maria:
                self._known, self._known_weight = {}, 0
            return (Event(position, end, header, self.description),)
        if self.description is None:
            if header.type == E.START_V3:
                raise UnsupportedError("a binary log from a server before MySQL 5.0")
            if header.type == E.ROTATE and header.timestamp == 0:  # what a server sends first names the file
                cursor = _open(event, header, layout.check_event(event, header, self._before))
                return (Event(position, end, header, events.read_rotate(cursor)),)
            raise CorruptionError(f"the log begins with a {layout.name_type(header.type)} event")
        cursor = _open(event, header, layout.check_event(event, header, self.description))
        if header.type == E.TRANSACTION_PAYLOAD:
            return self._decode_payload(cursor, position, end)
        return (Event(position, end, header, self._decode_body(cursor, header)),)

    def scan_plain(self, data: bytes, begins: NDArray[np.int64], ends: NDArray[np.int64], most: int) -> Plain | None:
        """The transactions at the beginning of events that follow each other, as long as they are plain: a GTID, rows of
        less than `most` bytes that are not compressed, XID. Checksums are verified. What is not plain, or wrong, is left for
        `decode_split`, which says why. None: the first is not plain.

        An event costs Python more than its row: so transactions of one row are read many times as fast.
        """
        from tidemark.changes.binlog.batches import scan_events  # it imports Arrow

        description = self.description
        if description is None or self._tables:
            return None
        if any(description.post_header_size(kind, size) != size for kind, size in _FIXED_PARTS.items()):
            return None
        checksum = layout.CHECKSUM_BYTES if description.has_checksums else 0
        found = scan_events(data, begins, ends, checksum, most)
        if found is None or not len(found.transactions):
            return None
        try:
            tables = [self._find_table(data[begin:end]) for begin, end in found.tables.tolist()]
            keys = [
                make_key(ROW_EVENTS[kind], tables[table], width, data[begin:end])
                for table, kind, width, begin, end in found.keys.tolist()
            ]
        except (CorruptionError, UnsupportedError):
            return None
        return Plain(data, begins, ends, found.transactions, found.rows, keys)

    def _decode_body(self, cursor: Cursor, header: Header) -> Body:
        if (rows := ROW_EVENTS.get(header.type)) is not None:
            return self._decode_rows(cursor, rows, header.type)
        if header.type == _TABLE_MAP:
            return self._decode_table(cursor)
        if (read := _READERS.get(header.type)) is not None:
            return read(cursor)
        if header.type == _MARIA_GTID:
            return events.read_maria_gtid(cursor, header.server_id)
        kind = layout.KNOWN.get(header.type)
        if kind is None:
            if header.flags & layout.IGNORABLE:
                return events.Other(layout.name_type(header.type))
            raise UnsupportedError(
                f"an event of type {header.type}, which this version does not know and the server does not allow to ignore",
                hint="a newer Tidemark may know it",
            )
        if kind in _REFUSED:
            raise UnsupportedError(f"a {kind.name} event: {_REFUSED[kind]}")
        if kind in (E.QUERY, E.EXECUTE_LOAD_QUERY, E.MARIA_QUERY_COMPRESSED):
            is_load = kind == E.EXECUTE_LOAD_QUERY
            post_header = self._post_header(kind, 26 if is_load else 13)
            return events.read_query(cursor, post_header, is_load=is_load, is_compressed=kind >= E.MARIA_ANNOTATE_ROWS)
        return events.Other(kind.name)

    def _post_header(self, kind: int, default: int) -> int:
        assert self.description is not None
        return self.description.post_header_size(kind, default)

    def _decode_table(self, cursor: Cursor) -> Table:
        table_id = cursor.read_uint(4 if self._post_header(_TABLE_MAP, 8) == 6 else 6)
        body = cursor.read_rest()
        table = self._find_table(body)
        if table_id not in self._tables:
            self._open_weight += _weigh(table, body)
            if self._open_weight > _MOST_DESCRIBED:
                raise cursor.error(f"a statement on more than {len(self._tables)} tables")
        self._tables[table_id] = table
        return table

    def _find_table(self, body: bytes) -> Table:
        table = self._known.get(body)
        if table is None:
            assert self.description is not None
            table = read_table(body, _WHAT[_TABLE_MAP], is_maria=self.description.is_maria)
            self._known_weight += _weigh(table, body)
            if self._known_weight > _MOST_DESCRIBED:
                self._known, self._known_weight = {}, _weigh(table, body)
            self._known[body] = table
        return table

    def _decode_rows(self, cursor: Cursor, kind: RowEvent, number: int) -> Body:
        table_id = cursor.read_uint(4 if self._post_header(number, 10) == 6 else 6)
        flags = cursor.read_uint(2)
        table = self._tables.get(table_id)
        if flags & END_OF_STATEMENT:
            self._tables, self._open_weight = {}, 0
        if table_id == NO_TABLE:
            return events.Other(layout.name_type(number))
        if table is None:
            raise CorruptionError(
                f"rows of the table with number {table_id}, which no event before them describes",
                hint="read from the beginning of the transaction",
            )
        return read_rows(kind, cursor, table, flags)

    def _decode_payload(self, cursor: Cursor, position: int, end: int) -> Iterator[Event]:
        """The events of a compressed transaction. They have no checksums of their own."""
        packed, size, algorithm = _read_payload(cursor)
        if algorithm not in (0, 255):
            raise UnsupportedError(f"a transaction that is compressed by the unknown method {algorithm}")
        if size > MOST_UNPACKED:
            raise CorruptionError(f"a compressed transaction of {size} bytes")
        source = _Unpacked(packed, size, is_packed=algorithm == 0)
        for inside, (header, event) in enumerate(split_events(source), 1):
            if header.type in (E.TRANSACTION_PAYLOAD, E.FORMAT_DESCRIPTION):
                raise CorruptionError(f"a {layout.name_type(header.type)} event inside a compressed transaction")
            yield Event(position, end, header, self._decode_body(_open(event, header, len(event)), header), inside)
        if source.missing:
            raise CorruptionError(f"a compressed transaction is {source.missing} bytes shorter than announced")


_WHAT = {code: f"a {layout.name_type(code)} event" for code in range(256)}


def _open(event: bytes, header: Header, end: int) -> Cursor:
    """A cursor behind the header of an event that ends at `end`."""
    return Cursor(event, _WHAT[header.type], HEADER_BYTES, end)


def _weigh(table: Table, body: bytes) -> int:
    return len(table.columns) + len(body) // 4


def _read_payload(cursor: Cursor) -> tuple[bytes, int, int]:
    """The compressed bytes, their size when unpacked, the method: 0 zstd, 255 none. Fields with a type and a length."""
    fields: dict[int, int] = {}
    while (field := cursor.read_lenenc()) != 0:
        value = Cursor(cursor.read_lenenc_bytes(), cursor.what)
        if field in (1, 2, 3):  # packed size, method, size
            fields[field] = value.read_lenenc()
    packed = cursor.read_exactly(fields.get(1, cursor.bytes_left()))
    algorithm = fields.get(2, 255)
    return packed, fields.get(3, len(packed) if algorithm == 255 else MOST_UNPACKED), algorithm


class _Unpacked:
    """The bytes of a compressed transaction, unpacked as they are read. `missing` are those announced and not read yet."""

    def __init__(self, data: bytes, size: int, *, is_packed: bool) -> None:
        import pyarrow as pa

        self._stream: Any = pa.BufferReader(data)
        if is_packed:
            self._stream = pa.CompressedInputStream(self._stream, "zstd")
        self.missing = size

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, one more than announced is an error."""
        try:
            piece: bytes = self._stream.read(size)
        except (OSError, ValueError) as error:
            raise CorruptionError(f"a compressed transaction does not unpack: {error}") from error
        self.missing -= len(piece)
        if self.missing < 0:
            raise CorruptionError("a compressed transaction is longer than announced")
        return piece


_REFUSED = {
    **dict.fromkeys((E.PRE_GA_WRITE_ROWS, E.PRE_GA_UPDATE_ROWS, E.PRE_GA_DELETE_ROWS), "rows as before MySQL 5.1.16"),
    **dict.fromkeys((E.START_V3, E.LOAD, E.CREATE_FILE, E.EXEC_LOAD, E.NEW_LOAD), "from a server before MySQL 5.0"),
    E.MARIA_START_ENCRYPTION: "the binary log is encrypted, read it from its server",
}
_READERS: dict[int, Callable[[Cursor], Body]] = {
    int(E.XID): lambda cursor: events.Xid(cursor.read_uint(8)),
    int(E.ROTATE): events.read_rotate,
    int(E.INCIDENT): events.read_incident,
    int(E.ROWS_QUERY): lambda cursor: events.read_statement(cursor, E.ROWS_QUERY),
    int(E.MARIA_ANNOTATE_ROWS): lambda cursor: events.read_statement(cursor, E.MARIA_ANNOTATE_ROWS),
    int(E.GTID): lambda cursor: events.read_gtid(cursor, is_anonymous=False),
    int(E.ANONYMOUS_GTID): lambda cursor: events.read_gtid(cursor, is_anonymous=True),
    int(E.GTID_TAGGED): events.read_tagged_gtid,
    int(E.PREVIOUS_GTIDS): events.read_previous_gtids,
    int(E.MARIA_GTID_LIST): events.read_maria_gtid_list,
    int(E.XA_PREPARE): events.read_xa_prepare,
}
