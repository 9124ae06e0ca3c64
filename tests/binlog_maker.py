"""Binary logs for tests: those recorded in tests/data/binlogs, and those made event by event."""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Iterable
from pathlib import Path

from tidemark.changes.binlog.layout import MAGIC, EventType
from tidemark.changes.binlog.reader import Event, read_events
from tidemark.changes.binlog.rows import Change, Rows, decode_rows
from tidemark.changes.binlog.tables import Table

DATA = Path(__file__).parent / "data" / "binlogs"
E = EventType


def recorded(name: str) -> bytes:
    """A log below tests/data/binlogs."""
    return lzma.decompress((DATA / f"{name}.xz").read_bytes())


def read_log(log: bytes) -> list[Event]:
    return list(read_events(io.BytesIO(log)))


def changes_of(log: bytes, *, raw: bool = False) -> list[tuple[str, Change]]:
    """(operation, (before, after)) of every row."""
    bodies = [event.body for event in read_log(log)]
    return [(rows.operation, change) for rows in bodies if isinstance(rows, Rows) for change in decode_rows(rows, raw=raw)]


def uint(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def lenenc(value: int) -> bytes:
    if value < 251:
        return bytes([value])
    return b"\xfc" + uint(value, 2) if value < 1 << 16 else b"\xfe" + uint(value, 8)


def event(kind: int, body: bytes, *, flags: int = 0, log_pos: int = 0, size: int | None = None, server: int = 1) -> bytes:
    """An event without a checksum."""
    size = 19 + len(body) if size is None else size
    head = uint(1_700_000_000, 4) + bytes([kind]) + uint(server, 4) + uint(size, 4) + uint(log_pos, 4) + uint(flags, 2)
    return head + body


def checked(made: bytes) -> bytes:
    """The event with a checksum behind it."""
    size = int.from_bytes(made[9:13], "little") + 4
    made = made[:9] + uint(size, 4) + made[13:]
    return made + uint(zlib.crc32(made), 4)


_POST_HEADERS = bytes(0 if kind not in (2, 18, 19) else {2: 13, 18: 26, 19: 8}[kind] for kind in range(1, 23)) + bytes(
    10 if kind in (30, 31, 32, 39) else 8 if kind <= 25 else 0 for kind in range(23, 43)
)


def description(server: str = "8.4.0", *, algorithm: int = 0, flags: int = 0, version: int = 4) -> bytes:
    """A format description. Its checksum is right if the algorithm is CRC32."""
    body = uint(version, 2) + server.encode().ljust(50, b"\0") + bytes(4) + b"\x13" + _POST_HEADERS + bytes([algorithm])
    made = event(E.FORMAT_DESCRIPTION, body)
    made = checked(made) if algorithm == 1 else event(E.FORMAT_DESCRIPTION, body + bytes(4))
    return made[:17] + uint(flags, 2) + made[19:]


def log(*events: bytes, server: str = "8.4.0") -> bytes:
    return MAGIC + description(server) + b"".join(events)


def field(code: int, value: bytes) -> bytes:
    """A field of the optional metadata."""
    return bytes([code]) + lenenc(len(value)) + value


def table_map(types: Iterable[int], meta: bytes = b"", *fields: bytes, table_id: int = 7) -> bytes:
    """TABLE_MAP of `db.t`, all columns nullable."""
    types = bytes(types)
    body = uint(table_id, 6) + uint(1, 2) + b"\x02db\0\x01t\0" + lenenc(len(types)) + types + lenenc(len(meta)) + meta
    return event(E.TABLE_MAP, body + b"\xff" * ((len(types) + 7) // 8) + b"".join(fields))


SIGNED = field(1, bytes(512))
UNSIGNED = field(1, b"\xff" * 512)


def charset(collation: int) -> bytes:
    return field(2, lenenc(collation))


def rows_event(
    images: bytes,
    width: int,
    *,
    kind: int = E.WRITE_ROWS,
    table_id: int = 7,
    present: int | None = None,
    ends: bool = True,
) -> bytes:
    """A row event whose images have all columns, or those whose bits are in `present`. `ends`: its statement, too."""
    bitmap = (2**width - 1 if present is None else present).to_bytes((width + 7) // 8, "little")
    extra = uint(2, 2) if kind in (E.WRITE_ROWS, E.UPDATE_ROWS, E.DELETE_ROWS, E.PARTIAL_UPDATE_ROWS) else b""
    bitmap *= 2 if kind in (E.UPDATE_ROWS, E.UPDATE_ROWS_V1, E.PARTIAL_UPDATE_ROWS) else 1
    return event(kind, uint(table_id, 6) + uint(ends, 2) + extra + lenenc(width) + bitmap + images)


def one_value(kind: int, meta: bytes, stored: bytes, *fields: bytes, server: str = "8.4.0") -> object:
    """The value of the only column of the only row."""
    made = log(table_map([kind], meta, *fields), rows_event(b"\0" + stored, 1), server=server)
    ((_, (_, after)),) = changes_of(made)
    assert after is not None
    return after[0]


def table_of(made: bytes) -> Table:
    return next(event.body for event in read_log(made) if isinstance(event.body, Table))
