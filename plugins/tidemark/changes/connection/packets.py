"""Packets of MySQL's protocol on a socket of ours, what a replica asks with them, and what a refusal means.

Sources: the pages on the client/server protocol of MySQL's internals manual; "Replication protocol" of MariaDB's.
"""

from __future__ import annotations

import select
import socket
import ssl
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemark.changes.binlog.cursor import LARGEST
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.connection.model import FilePosition
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    PermanentError,
    PermissionDeniedError,
    TidemarkError,
    UnreachableError,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EVENT, END, REFUSAL = 0x00, 0xFE, 0xFF
"""The first byte of a packet that a dump sends."""
_FULL = (1 << 24) - 1
"""A packet of this size goes on in the next one."""
_PIECE = 1 << 18
_WORTH, _GATHERED = 1 << 16, 1 << 20
"""Bytes of events from which on it pays to look at them together, and those that are taken together."""
SOON = 2
"""Milliseconds that more events are waited for, where nobody follows."""
_LARGEST_PIECE = 1 << 22

_TO_THE_END = 0x01
_MARIA_WITH_ANNOTATIONS = 0x02  # else the server leaves them out, and bytes are missing between two events


class PacketStream:
    """Packets from `peer`, which is never silent for `silence` seconds."""

    def __init__(self, sock: socket.socket, peer: str, silence: float) -> None:
        self._sock, self._peer, self._silence = sock, peer, silence
        self._block, self._at, self._number = b"", 0, 0
        self._is_dry = False  # it does not pay to look at what has come together
        sock.settimeout(silence)

    def send_command(self, command: bytes) -> None:
        self._number = 1  # of the answer
        try:
            self._sock.sendall(len(command).to_bytes(3, "little") + b"\0" + command)
        except OSError as error:
            raise self._away(str(error)) from error

    def read_packet(self) -> bytes:
        """The next packet, whole. No more memory is taken than bytes are there."""
        pieces, total = [], 0
        while True:
            head = int.from_bytes(self._take(4), "little")
            size, number = head & _FULL, head >> 24
            if number not in (self._number, 0):  # 0 too is MariaDB's number for the refusal of a server that ends
                raise CorruptionError(f"{self._peer} sent packet {number} where {self._number} was due")
            self._number = (number + 1) & 0xFF
            total += size
            if total > LARGEST + 1:
                raise CorruptionError(f"{self._peer} sent a packet of more than {LARGEST} bytes")
            pieces.append(self._take(size))
            if size < _FULL:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_events(self, at: int, soon: int) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]] | None:
        """Events that have come, the first of which stands at byte `at` of its log, and where they begin and end in these
        bytes. None where that does not pay, or the next packet is none of a plain event: read it. `soon`: milliseconds that
        more of them are waited for."""
        if len(self._block) - self._at < _WORTH and not self._is_dry:
            self._gather(soon)
            self._is_dry = len(self._block) - self._at < _WORTH
        if self._is_dry:
            return None
        from tidemark.changes.binlog.batches import kernels, split_block  # it imports Arrow

        self._is_dry = kernels() is None
        if self._is_dry:
            return None
        data = self._block[self._at :]
        begins, ends = split_block(data, packets_from=self._number, at=at)
        if not len(begins):
            self._is_dry = True
            return None
        self._block, self._at = data, int(ends[-1])
        self._number = (self._number + len(begins)) & 0xFF
        return data, begins, ends

    def _gather(self, soon: int) -> None:
        """Take what has come, and what comes soon. Errors are left for `read_packet`."""
        pieces = [self._block[self._at :]]
        have = len(pieces[0])
        with suppress(OSError):
            while have < _GATHERED and self._has_come(soon):
                piece = self._sock.recv(_GATHERED - have)
                if not piece:
                    break
                pieces.append(piece)
                have += len(piece)
        self._block, self._at = b"".join(pieces), 0

    def _has_come(self, soon: int) -> bool:
        """Whether bytes are there, or come soon."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(soon))

    def close(self) -> None:
        self._sock.close()

    def _take(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if end > len(self._block):
            self._receive(size)
            start, end = 0, size
        self._at = end
        return self._block[start:end]

    def _receive(self, size: int) -> None:
        """Make the block begin with what is next, and hold `size` bytes of it."""
        pieces = [self._block[self._at :]]
        have = len(pieces[0])
        while have < size:
            try:
                piece = self._sock.recv(max(_PIECE, min(size - have, _LARGEST_PIECE)))
            except TimeoutError as error:
                raise self._away(f"silent for {self._silence:g} s") from error
            except OSError as error:
                raise self._away(str(error)) from error
            if not piece:
                raise self._away("it ended the connection" + (" inside a packet" if have or size != 4 else ""))
            pieces.append(piece)
            have += len(piece)
        self._block, self._is_dry = b"".join(pieces), False

    def _away(self, why: str) -> UnreachableError:
        return UnreachableError(f"the connection to {self._peer} broke: {why}", subject=self._peer)


def register_command(server_id: int, host: str) -> bytes:
    """COM_REGISTER_SLAVE. `host` is what the server's list of replicas shows."""
    name = host.encode()[:60]
    return b"\x15" + _uint(server_id, 4) + bytes([len(name)]) + name + bytes(2 + 2 + 4 + 4)


def dump_command(server_id: int, start: FilePosition, *, follow: bool, is_maria: bool) -> bytes:
    """COM_BINLOG_DUMP. It has no room for a position above 4 GB."""
    flags = (0 if follow else _TO_THE_END) | (_MARIA_WITH_ANNOTATIONS if is_maria else 0)
    return b"\x12" + _uint(start.position, 4) + _uint(flags, 2) + _uint(server_id, 4) + start.file.encode()


def dump_gtid_command(server_id: int, known: MysqlGtidSet, *, follow: bool) -> bytes:
    """COM_BINLOG_DUMP_GTID of MySQL: what is not in `known`."""
    encoded = encode_gtid_set(known)
    head = b"\x1e" + _uint(0 if follow else _TO_THE_END, 2) + _uint(server_id, 4) + _uint(0, 4)
    return head + _uint(FilePosition("").position, 8) + _uint(len(encoded), 4) + encoded


def encode_gtid_set(known: MysqlGtidSet) -> bytes:
    """As PREVIOUS_GTIDS holds it. With tags, the first and the last byte of the number of members say so."""
    has_tags = any(tag for _, tag in known.intervals)
    members = len(known.intervals)
    pieces = [b"\1" + _uint(members, 6) + b"\1" if has_tags else _uint(members, 8)]
    for (server, tag), intervals in sorted(known.intervals.items()):
        pieces.append(uuid.UUID(server).bytes)
        if has_tags:
            pieces.append(bytes([len(tag) << 1]) + tag.encode())  # a varlen of one byte: a tag has at most 32
        pieces.append(_uint(len(intervals), 8))
        pieces += [_uint(first, 8) + _uint(last + 1, 8) for first, last in intervals]
    return b"".join(pieces)


def _uint(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def read_refusal(packet: bytes, peer: str) -> TidemarkError:
    """The error that an error packet says."""
    text = packet[3:].decode("utf-8", "replace")
    return explain_refusal(int.from_bytes(packet[1:3], "little"), text[6:] if text.startswith("#") else text, peer)


_RIGHTS = "see user, password_file and tls of the source; its user needs REPLICATION SLAVE, REPLICATION CLIENT and SELECT"
_DENIED = {1044, 1045, 1130, 1142, 1143, 1227, 1370, 1410, 1698, 1820, 1862, 3118, 3159, 4151}
_BUSY_OR_ENDING = {1040, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1317, 1927, 3032, 4031}
_NO_DUMP, _NO_FILE = 1236, 29
_LOST = ("purged", "could not find first log", "could not find next log", "could not open log file", "missing in the source")
_TAKEN = "same server_uuid/server_id"


def explain_refusal(code: int, text: str, peer: str) -> TidemarkError:
    """A server's error, by what helps against it."""
    message = f"{peer} says: {text} ({code})"
    if code in _DENIED:
        return PermissionDeniedError(message, hint=_RIGHTS, subject=peer)
    if code in _BUSY_OR_ENDING or _TAKEN in text:
        return UnreachableError(message, subject=peer)
    if (code == _NO_DUMP and any(words in text.lower() for words in _LOST)) or code == _NO_FILE:
        return BinlogGapError(message, subject=peer)
    return PermanentError(message, subject=peer)
