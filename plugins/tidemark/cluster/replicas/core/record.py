"""A record of a member's log as bytes: 64 bytes of head, then the body. Pure.

The head's CRC covers the body's CRC and the CRC of the record before it. It is the record's own CRC, so records form
a chain. Source: seed 003 "WAL", WAL Head in "Data forwarding flow". Fields: docs/formats/log-record.md.
"""

from __future__ import annotations

import enum
import json
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.cluster.replicas.core.continuity import Record
from tidemark.cluster.replicas.core.roles import LogEnd, Position
from tidemark.errors import CorruptionError, SchemaTooNewError

FORMAT = 1
HEAD_BYTES = 64
LONGEST_BODY = 16 << 20  # bytes; a longer operation is cut into several
_MAGIC = b"TMLR"
_HEAD = struct.Struct("<4sHHIIQQ16sI8x")
"""Magic, format, kind, body's bytes, CRC of the record before, version, epoch, operation, body's CRC, eight unused bytes."""


class RecordKind(enum.IntEnum):
    """What a record does to its group's catalog."""

    BARRIER = 0  # nothing: an epoch begins
    ADD_FILES = 1
    REMOVE_FILES = 2
    DELETE_POINTS = 3
    PUBLISH_MERGE = 4
    SETTLE_MERGE = 5
    WRITE_SCHEMA = 6
    CREATE_DATABASE = 7
    DROP_DATABASE = 8
    GAIN_SLOT = 9
    LOSE_SLOT = 10


_KINDS = frozenset(RecordKind)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with its content. `head`: what the rules look at."""

    head: Record
    kind: RecordKind
    body: bytes = b""


def encode_body(words: Mapping[str, object]) -> bytes:
    """Return canonical JSON: equal words are equal bytes, so a retry has the same CRC."""
    return json.dumps(words, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode_record(end: LogEnd, epoch: int, operation: uuid.UUID, kind: RecordKind, *, body: bytes = b"") -> bytes:
    """Return the bytes of the record that continues `end` in this epoch."""
    if len(body) > LONGEST_BODY:
        raise ValueError(f"a record's body has {len(body)} bytes, at most {LONGEST_BODY} may be")
    version = end.position.version + 1
    head = _HEAD.pack(_MAGIC, FORMAT, kind, len(body), end.crc, version, epoch, operation.bytes, zlib.crc32(body))
    return head + zlib.crc32(head).to_bytes(4, "little") + body


def encode_stored(stored: StoredRecord) -> bytes:
    """Return the bytes of a record as they were."""
    head = stored.head
    before = LogEnd(Position(0, head.position.version - 1), head.previous_crc)
    return encode_record(before, head.position.epoch, uuid.UUID(head.operation), stored.kind, body=stored.body)


def decode_record(data: bytes) -> StoredRecord:
    """Return the one record that these bytes are. CorruptionError if they are not one whole record, or more."""
    stored, after = read_record(data, 0)
    if stored is None or after != len(data):
        raise CorruptionError("a log record is not whole, or not alone")
    return stored


def read_record(data: bytes, at: int) -> tuple[StoredRecord | None, int]:
    """Return the record at this offset and where the next begins; None if the head is sound and the body is not.

    CorruptionError for a damaged or torn head: it hides where the next record begins.
    """
    head = data[at : at + HEAD_BYTES]
    if len(head) < HEAD_BYTES or head[:4] != _MAGIC or zlib.crc32(head[:60]) != _crc_of(head):
        raise CorruptionError("the head of a log record is damaged or torn")
    _, form, kind, length, previous, version, epoch, operation, body_crc = _HEAD.unpack_from(head)
    if form > FORMAT:
        raise SchemaTooNewError(
            f"a log record was written by a newer Tidemark (format {form}, this one knows {FORMAT})",
            hint="use that version, or a newer one",
        )
    if kind not in _KINDS or length > LONGEST_BODY:
        raise CorruptionError(f"a log record has kind {kind} and {length} bytes, which format {form} does not have")
    after = at + HEAD_BYTES + length
    body = data[at + HEAD_BYTES : after]
    if len(body) < length or zlib.crc32(body) != body_crc:
        return None, after
    record = Record(Position(epoch, version), _crc_of(head), previous, str(uuid.UUID(bytes=operation)))
    return StoredRecord(record, RecordKind(kind), body), after


def _crc_of(head: bytes) -> int:
    return int.from_bytes(head[60:64], "little")
