"""What events say that are no rows: transactions, statements, positions of logs, incidents.

An event that nothing here needs is `Other`. Statements other than DDL and the borders of transactions are kept too: it is
for the caller to refuse changes that came as statements.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.changes.binlog.charsets import text_decoder
from tidemark.changes.binlog.cursor import Cursor, decode_name, inflate
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet, uuid_text
from tidemark.changes.binlog.layout import EventType


@dataclass(frozen=True, slots=True)
class Gtid:
    """A transaction of MySQL begins. `uuid` is empty if it is anonymous. Commit times are microseconds since 1970."""

    uuid: str
    number: int
    tag: str = ""
    immediate_commit_us: int | None = None
    original_commit_us: int | None = None
    transaction_length: int | None = None

    @property
    def text(self) -> str:
        return ":".join([self.uuid, *([self.tag] if self.tag else []), str(self.number)]) if self.uuid else ""


@dataclass(frozen=True, slots=True)
class XaId:
    """The name of an XA transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes


class MariaGtid(NamedTuple):
    """A transaction of MariaDB begins, or is all there is if `is_standalone`."""

    domain: int
    server_id: int
    number: int
    flags: int
    commit_id: int | None = None
    xa: XaId | None = None
    more_flags: int = 0

    @property
    def text(self) -> str:
        return f"{self.domain}-{self.server_id}-{self.number}"

    @property
    def is_standalone(self) -> bool:
        return bool(self.flags & 0x01)

    @property
    def is_ddl(self) -> bool:
        return bool(self.flags & 0x20)

    @property
    def prepares_xa(self) -> bool:
        return bool(self.flags & 0x40)

    @property
    def completes_xa(self) -> bool:
        return bool(self.flags & 0x80)

    @property
    def alters_nothing(self) -> bool:
        """With `binlog_alter_two_phase` a server logs an ALTER TABLE when it begins, and once more when it has ended or was
        given up. The statement has done something where it ended alone. Seen with MariaDB 10.11 and 11.8."""
        return bool(self.more_flags & 0x0A)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement: DDL, BEGIN, COMMIT, XA COMMIT, or changes that came as a statement. `error_code` is its server's."""

    database: str
    sql: str
    error_code: int = 0
    is_load: bool = False


@dataclass(frozen=True, slots=True)
class Xid:
    """A transaction is committed."""

    number: int


@dataclass(frozen=True, slots=True)
class XaPrepare:
    """An XA transaction is prepared, or committed at once if `is_one_phase`."""

    xa: XaId
    is_one_phase: bool


@dataclass(frozen=True, slots=True)
class Rotate:
    """The log goes on in another file."""

    file: str
    position: int


@dataclass(frozen=True, slots=True)
class Incident:
    """The server lost changes."""

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Statement:
    """The text of the statement whose rows follow."""

    sql: str


@dataclass(frozen=True, slots=True)
class Other:
    """An event that tells nothing of changes."""

    name: str


def read_query(cursor: Cursor, post_header: int, *, is_load: bool = False, is_compressed: bool = False) -> Query:
    """QUERY, EXECUTE_LOAD_QUERY, and MariaDB's QUERY_COMPRESSED. The text is in the client's charset."""
    fixed = Cursor(cursor.read_exactly(post_header), cursor.what)
    fixed.skip_bytes(8)  # thread, seconds
    name_length, error_code = fixed.read_uint(1), fixed.read_uint(2)
    variables = cursor.read_exactly(fixed.read_uint(2)) if fixed.bytes_left() >= 2 else b""
    database = cursor.read_name(name_length)
    cursor.skip_bytes(1)
    sql = cursor.read_rest()
    if is_compressed:
        sql = inflate(sql, "a statement")
    text = text_decoder(_find_client_charset(variables))(sql)
    return Query(database, text if isinstance(text, str) else decode_name(text), error_code, is_load)


_FIXED_VARIABLES = {0: 4, 1: 8, 3: 4, 7: 2, 8: 2, 9: 8}
_UTF8 = 33


def _find_client_charset(variables: bytes) -> int:
    """Status variables stand in the order of their codes, those before the charset are known. UTF-8 if it is not said."""
    cursor = Cursor(variables, "the status of a statement")
    while cursor.bytes_left():
        code = cursor.read_uint(1)
        if code == 4:
            return cursor.read_uint(2)
        if code == 2:  # the catalog, with a zero at its end
            cursor.skip_bytes(cursor.read_uint(1) + 1)
        elif code in (5, 6):
            cursor.skip_bytes(cursor.read_uint(1))
        elif code in _FIXED_VARIABLES:
            cursor.skip_bytes(_FIXED_VARIABLES[code])
        else:
            break
    return _UTF8


_HAS_ORIGINAL = 1 << 55
"""In a commit time: that of the server where it was committed first follows."""


def read_gtid(cursor: Cursor, *, is_anonymous: bool) -> Gtid:
    """GTID and ANONYMOUS_GTID. Newer servers add fields at the end."""
    cursor.skip_bytes(1)
    uuid, number = uuid_text(cursor.read_exactly(16)), cursor.read_uint(8)
    if is_anonymous:
        uuid, number = "", 0
    if cursor.bytes_left() < 17 or cursor.read_uint(1) != 2:
        return Gtid(uuid, number)
    cursor.skip_bytes(16)  # last_committed, sequence_number
    if cursor.bytes_left() < 7:
        return Gtid(uuid, number)
    immediate = original = cursor.read_uint(7)
    if immediate & _HAS_ORIGINAL:
        immediate, original = immediate ^ _HAS_ORIGINAL, cursor.read_uint(7)
    length = cursor.read_lenenc() if cursor.bytes_left() else None
    return Gtid(uuid, number, "", immediate, original, length)


def read_tagged_gtid(cursor: Cursor) -> Gtid:
    """GTID_TAGGED: fields with numbers, in the order of their numbers; those that are left out have a default."""
    version, size, _ = cursor.read_varlen(), cursor.read_varlen(), cursor.read_varlen()
    if version != 1 or size > cursor.end:
        raise cursor.error(f"fields of version {version} in {size} bytes")
    found: dict[int, int | bytes] = {}
    while cursor.bytes_left():
        field = cursor.read_varlen()
        if field <= 1:
            codes = [cursor.read_varlen() for _ in range(16 if field else 1)]
            if max(codes) > 255:
                raise cursor.error(f"{max(codes)} stands for a byte")
            found[field] = bytes(codes)
        elif field == 3:
            found[field] = cursor.read_exactly(cursor.read_varlen())
        elif field in (2, 4, 5):
            found[field] = cursor.read_signed_varlen()
        elif field <= 11:
            found[field] = cursor.read_varlen()
        else:
            break
    uuid, number, tag = found.get(1), found.get(2), found.get(3, b"")
    if not isinstance(uuid, bytes) or not isinstance(number, int) or not isinstance(tag, bytes):
        raise cursor.error("no transaction is named")
    immediate = _number(found.get(6))
    original = found.get(7, immediate)
    return Gtid(uuid_text(uuid), number, decode_name(tag), immediate, _number(original), _number(found.get(8)))


def _number(value: int | bytes | None) -> int | None:
    return value if isinstance(value, int) else None


def read_previous_gtids(cursor: Cursor) -> MysqlGtidSet:
    """PREVIOUS_GTIDS. Sets with tags say so in the first and the last byte of their number of members."""
    head = cursor.read_exactly(8)
    has_tags = head[7] == 1
    members = int.from_bytes(head[1:7] if has_tags else head, "little")
    parts = []
    for _ in range(_check_count(cursor, members, 25)):
        uuid = uuid_text(cursor.read_exactly(16))
        tag = decode_name(cursor.read_exactly(cursor.read_varlen())) if has_tags else ""
        intervals = []
        for _ in range(_check_count(cursor, cursor.read_uint(8), 16)):
            first, behind = cursor.read_uint(8), cursor.read_uint(8)
            if not 0 < first < behind:
                raise cursor.error(f"transactions from {first} to before {behind}")
            intervals.append((first, behind - 1))
        parts.append((uuid, tag, intervals))
    return MysqlGtidSet.of(parts)


def _check_count(cursor: Cursor, count: int, smallest: int) -> int:
    if count * (smallest - 1) > cursor.bytes_left():
        raise cursor.error(f"{count} members in {cursor.bytes_left()} bytes")
    return count


_MARIA_GTID = struct.Struct("<QIB")


def read_maria_gtid(cursor: Cursor, server_id: int) -> MariaGtid:
    begin = cursor.position
    cursor.skip_bytes(_MARIA_GTID.size)
    number, domain, flags = _MARIA_GTID.unpack_from(cursor.data, begin)
    commit_id = cursor.read_uint(8) if flags & 0x02 else None
    xa = None
    if flags & 0xC0:
        format_id = cursor.read_uint(4)
        sizes = cursor.read_exactly(2)
        xa = XaId(format_id, cursor.read_exactly(sizes[0]), cursor.read_exactly(sizes[1]))
    more_flags = cursor.read_uint(1) if cursor.bytes_left() else 0
    return MariaGtid(domain, server_id, number, flags, commit_id, xa, more_flags)


def read_maria_gtid_list(cursor: Cursor) -> MariaGtidPosition:
    """The last GTID of each domain at the start of the file. A server that was in it once may have one of its own."""
    count = _check_count(cursor, cursor.read_uint(4) & 0x0FFFFFFF, 16)
    last: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        domain, server, number = cursor.read_uint(4), cursor.read_uint(4), cursor.read_uint(8)
        last[domain] = (server, number)  # the last of a domain stands last
    return MariaGtidPosition(dict(sorted(last.items())))


def read_xa_prepare(cursor: Cursor) -> XaPrepare:
    is_one_phase = bool(cursor.read_uint(1))
    format_id, gtrid, bqual = cursor.read_uint(4), cursor.read_uint(4), cursor.read_uint(4)
    return XaPrepare(XaId(format_id, cursor.read_exactly(gtrid), cursor.read_exactly(bqual)), is_one_phase)


def read_rotate(cursor: Cursor) -> Rotate:
    position = cursor.read_uint(8)
    return Rotate(decode_name(cursor.read_rest()), position)


def read_incident(cursor: Cursor) -> Incident:
    number = cursor.read_uint(2)
    return Incident(number, cursor.read_name(cursor.read_uint(1)) if cursor.bytes_left() else "")


def read_statement(cursor: Cursor, kind: EventType) -> Statement:
    if kind == EventType.ROWS_QUERY:
        cursor.skip_bytes(1)  # the length, as far as a byte can tell it
    return Statement(decode_name(cursor.read_rest()))
