"""What every binary log has: the magic, the header of an event, the format description, the checksum.

Sources: the pages on the binary log of MySQL's internals manual, and "Replication protocol" of MariaDB's documentation.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidemark.changes.binlog.cursor import LARGEST, Cursor
from tidemark.errors import CorruptionError, UnsupportedError

MAGIC = b"\xfebin"
HEADER_BYTES = 19
IN_USE = 0x0001
"""Flag of a format description: its server has not closed the log, or died."""
IGNORABLE = 0x0080
CHECKSUM_BYTES = 4
_HEADER = struct.Struct("<IBIIIH")
_SOUND = 0x2144DF1C
"""The CRC-32 of anything with its own CRC-32 behind it."""
_make_tuple = tuple.__new__


class EventType(IntEnum):
    """Types of events that this package knows. The names are the servers' own."""

    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    PRE_GA_WRITE_ROWS = 20
    PRE_GA_UPDATE_ROWS = 21
    PRE_GA_DELETE_ROWS = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    MARIA_ANNOTATE_ROWS = 160
    MARIA_BINLOG_CHECKPOINT = 161
    MARIA_GTID = 162
    MARIA_GTID_LIST = 163
    MARIA_START_ENCRYPTION = 164
    MARIA_QUERY_COMPRESSED = 165
    MARIA_WRITE_ROWS_COMPRESSED_V1 = 166
    MARIA_UPDATE_ROWS_COMPRESSED_V1 = 167
    MARIA_DELETE_ROWS_COMPRESSED_V1 = 168
    MARIA_WRITE_ROWS_COMPRESSED = 169
    MARIA_UPDATE_ROWS_COMPRESSED = 170
    MARIA_DELETE_ROWS_COMPRESSED = 171


class Header(NamedTuple):
    """The header of an event. `log_pos` is where its server's log went on, 0 where the server did not say."""

    timestamp: int
    type: int
    server_id: int
    size: int
    log_pos: int
    flags: int


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """Who wrote the log, and in which form."""

    server_version: str
    created: int
    has_checksums: bool
    post_header_sizes: bytes
    in_use: bool

    @property
    def is_maria(self) -> bool:
        return "mariadb" in self.server_version.lower()

    def post_header_size(self, kind: int, default: int) -> int:
        """The size of the fixed part of events of a type."""
        return self.post_header_sizes[kind - 1] if 0 < kind <= len(self.post_header_sizes) else default


def check_magic(magic: bytes) -> None:
    """Refuse what is no readable binary log."""
    if magic == MAGIC:
        return
    if magic == b"\xfdbin":
        raise UnsupportedError("the binary log is encrypted", hint="read it from its server: capture without --files")
    raise CorruptionError(f"not a binary log: it begins with {magic.hex() or 'nothing'}")


def read_header(data: bytes, at: int = 0) -> Header:
    """The header of the event that begins at byte `at`, whose size is checked against the limits."""
    if len(data) - at < HEADER_BYTES:
        raise CorruptionError(f"an event header of {len(data) - at} bytes")
    header = _make_tuple(Header, _HEADER.unpack_from(data, at))  # `_make` is dear, and this is done for each event
    if not HEADER_BYTES <= header.size <= LARGEST:
        raise CorruptionError(f"an event of {header.size} bytes")
    return header


def read_format(event: bytes, header: Header) -> FormatDescription:
    """The format description. It has room for a checksum wherever its server knows checksums."""
    cursor = Cursor(event, "the format description", HEADER_BYTES)
    if (version := cursor.read_uint(2)) != 4:
        raise UnsupportedError(f"a binary log of version {version}, from a server before MySQL 5.0")
    server = cursor.read_name(50).partition("\0")[0]
    if re.match(r"5\.[12]\.\d-a_drop", server):
        raise UnsupportedError(f"a binary log of {server}, which numbers its events in a way of its own")
    created = cursor.read_uint(4)
    if (size := cursor.read_uint(1)) != HEADER_BYTES:
        raise UnsupportedError(f"event headers of {size} bytes")
    sizes = cursor.read_rest()
    has_checksums = False
    if _knows_checksums(server):
        if len(sizes) < 1 + CHECKSUM_BYTES:
            raise cursor.error("no room for the checksum")
        algorithm, sizes = sizes[-1 - CHECKSUM_BYTES], sizes[: -1 - CHECKSUM_BYTES]
        if algorithm not in (0, 1):
            raise UnsupportedError(f"checksums of the unknown kind {algorithm}")
        has_checksums = algorithm == 1
        if has_checksums:
            _check(event, header)
    return FormatDescription(server, created, has_checksums, sizes, bool(header.flags & IN_USE))


def check_event(event: bytes, header: Header, description: FormatDescription) -> int:
    """Where the event ends without its checksum, which is verified."""
    if not description.has_checksums:
        return len(event)
    _check(event, header)
    return len(event) - CHECKSUM_BYTES


def _check(event: bytes, header: Header) -> None:
    if len(event) < HEADER_BYTES + CHECKSUM_BYTES:
        raise CorruptionError(f"an event of {len(event)} bytes has no room for its checksum")
    if header.type == EventType.FORMAT_DESCRIPTION and header.flags & IN_USE:  # set and cleared in place
        event = b"".join((event[:17], (header.flags & ~IN_USE).to_bytes(2, "little"), event[HEADER_BYTES:]))
    if zlib.crc32(event) != _SOUND:
        raise CorruptionError(f"the checksum of a {name_type(header.type)} event is wrong")


KNOWN = {int(kind): kind for kind in EventType}


def name_type(kind: int) -> str:
    return KNOWN[kind].name if kind in KNOWN else f"type {kind}"


def _knows_checksums(server: str) -> bool:
    """MySQL since 5.6.1, MariaDB since 5.3."""
    numbers = [int(digits) for digits in re.findall(r"\d+", server)[:3]]
    if len(numbers) < 3 or not re.match(r"\d+\.\d+\.\d+", server):
        raise CorruptionError(f"the server version {server!r} is none")
    return numbers >= ([5, 3, 0] if "mariadb" in server.lower() else [5, 6, 1])
