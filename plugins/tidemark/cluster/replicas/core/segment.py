"""A file of a member's log as bytes: records, and marks that say where the log ends and whom the member obeys. Pure.

Each append is some records and one mark, each file begins with a mark. So the last mark alone tells the end of the log and
the fence, and whoever appends behind a mark that he has read knows all before it. A vote is a mark without a record.
Only the last append may be torn. Anything else that does not fit is damage: nobody searches for the next sound record.
Source: seed 003 "WAL"; seed 004 "LastWal". Format: docs/formats/group-log.md.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from tidemark.cluster.replicas.core.continuity import is_continued
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import StoredRecord, read_record
from tidemark.cluster.replicas.core.roles import LogEnd, Position
from tidemark.errors import CorruptionError, SchemaTooNewError

FORMAT = 1
MARK_BYTES = 256
_MAGIC = b"TMLM"
_CLOSED = 1
_FILLING = 2
_NAMES = 214  # bytes for the names of coordinator and master together
_MARK = struct.Struct(f"<4sHHQQQIBB{_NAMES}s")
"""Magic, format, flags, the fence's epoch; the end's epoch, version and CRC; bytes of the two names, the names, zeros."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The log ends with `end`, and its member obeys `fence`. `closed`: nothing is appended to this file any more.

    `filling`: the member had lost its log, and nobody has said yet that it has all again. So it proves nothing.
    """

    end: LogEnd
    fence: Fence
    closed: bool = False
    filling: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """What was read of a file: all before its last sound mark. `first` and `last` are None if not even one mark is whole.

    `sound`: bytes up to the end of the last sound mark. What follows is a torn append: it was never acknowledged, or its
    disk lost it. `damage`: the offset of what is unreadable and no torn append.
    """

    first: Mark | None
    last: Mark | None
    records: tuple[StoredRecord, ...]
    sound: int
    damage: int | None = None


def encode_mark(mark: Mark) -> bytes:
    """Return the bytes of a mark. ValueError for names that are too long together."""
    coordinator, master = mark.fence.coordinator.encode(), mark.fence.master.encode()
    if len(coordinator) + len(master) > _NAMES:
        raise ValueError(f"the names of a coordinator and a master have at most {_NAMES} bytes together")
    fence, end = mark.fence.epoch, mark.end.position
    lengths = len(coordinator), len(master)
    flags = _CLOSED * mark.closed | _FILLING * mark.filling
    body = _MARK.pack(_MAGIC, FORMAT, flags, fence, end.epoch, end.version, mark.end.crc, *lengths, coordinator + master)
    return body + zlib.crc32(body).to_bytes(4, "little")


def decode_mark(data: bytes) -> Mark | None:
    """Return the mark that these bytes are, None if they are none. SchemaTooNewError for one of a newer format."""
    if len(data) != MARK_BYTES or data[:4] != _MAGIC or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    _, form, flags, fence, epoch, version, crc, coordinator, master, names = _MARK.unpack_from(data)
    if form > FORMAT:
        raise SchemaTooNewError(
            f"a log was written by a newer Tidemark (format {form}, this one knows {FORMAT})",
            hint="use that version, or a newer one",
        )
    try:
        words = names[:coordinator].decode(), names[coordinator : coordinator + master].decode()
    except UnicodeDecodeError:
        return None
    end = LogEnd(Position(epoch, version), crc)
    return Mark(end, Fence(words[0], fence, words[1]), bool(flags & _CLOSED), bool(flags & _FILLING))


def read_segment(data: bytes) -> Segment:
    """Read a file of a log up to its last sound mark.

    Unreadable bytes are a torn append only if no mark follows them, since the next append cuts them. A sound record or
    mark that does not continue the chain is damage. SchemaTooNewError for a record or a mark of a newer format.
    """
    first = last = None
    kept: list[StoredRecord] = []
    waiting: list[StoredRecord] = []
    at = sound = 0
    while at < len(data):
        mark = decode_mark(data[at : at + MARK_BYTES])
        if mark is not None:
            end = waiting[-1].head.end if waiting else last.end if last else mark.end
            if mark.end != end:
                return Segment(first, last, tuple(kept), sound, at)
            first, last = first or mark, mark
            kept += waiting
            waiting = []
            at = sound = at + MARK_BYTES
            continue
        try:
            stored, after = read_record(data, at)
        except CorruptionError:
            break
        if stored is None:
            break
        if last is None or not is_continued(waiting[-1].head.end if waiting else last.end, stored.head):
            return Segment(first, last, tuple(kept), sound, at)
        waiting.append(stored)
        at = after
    return Segment(first, last, tuple(kept), sound, at if _holds_mark(data, at) else None)


def _holds_mark(data: bytes, at: int) -> bool:
    while (at := data.find(_MAGIC, at)) >= 0:
        if decode_mark(data[at : at + MARK_BYTES]) is not None:
            return True
        at += 1
    return False
