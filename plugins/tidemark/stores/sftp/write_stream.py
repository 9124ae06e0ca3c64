"""Write the parts of many files over an SFTP session: open, write, sync and close them in one stream of requests.

Every status is read. A failure concerns the file of its request alone. Only `await_parts` waits for answers, and
`write_part` when too many bytes are unacknowledged.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

from tidemark.stores.sftp.protocol import (
    CLOSE,
    CREATE,
    EOF,
    EXCLUSIVE,
    EXTENDED,
    FOR_READ,
    FOR_WRITE,
    FSETSTAT,
    FSYNC,
    NO_ATTRIBUTES,
    OPEN,
    READ,
    REMOVE,
    TRUNCATE,
    WRITE,
    Reply,
    encode_string,
    size_attribute,
)
from tidemark.stores.sftp.session import BulkWire

_NEW = FOR_WRITE | CREATE | EXCLUSIVE | TRUNCATE  # TRUNCATE: some servers ignore EXCLUSIVE and would keep old bytes


class Part:
    """A file being written. `fresh`: a new file; else an existing one, cut to `offset` and continued."""

    def __init__(self, place: str, offset: int, fresh: bool) -> None:
        self.place = place
        self.offset = offset
        self.fresh = fresh
        self.written = offset  # acknowledged by the server
        self.trouble: OSError | None = None
        self.waits_for = 0  # outstanding answers
        self.read_back = b""  # the bytes of a file that is read back
        self._handle = b""
        self._held: list[Callable[[], None]] = []  # requests to be sent once it is open
        self._tried = False
        self._closing = False
        self._reads_back = False


class PartStream:
    """The stream. `most`: bytes that may be sent but not acknowledged. They are lost when the connection breaks."""

    def __init__(self, wire: BulkWire, most: int) -> None:
        self._wire = wire
        self._most = most
        self._on_way = 0
        self._handles = self._closing = 0
        self._syncs = FSYNC in wire.extensions

    @property
    def handles(self) -> int:
        """The number of parts that are open, opening or closing."""
        return self._handles

    def await_handles(self, most: int) -> None:
        """Wait until fewer than `most` parts are open, or none of them is closing."""
        while self._handles >= most and self._closing:
            self._wire.step()

    def open_part(self, place: str, offset: int = 0, fresh: bool = True) -> Part:
        part = Part(place, offset, fresh)
        self._handles += 1
        self._post_create(part)
        return part

    def write_part(self, part: Part, data: bytes | memoryview) -> None:
        """Write the next bytes. They are sent, or copied, when the call returns."""
        step = self._wire.write_size
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            offset, part.offset = part.offset, part.offset + len(piece)
            self._on_way += len(piece)
            if part._handle:
                self._post_write(part, offset, piece)
            else:
                kept = bytes(piece)
                self._when_open(part, lambda offset=offset, kept=kept: self._post_write(part, offset, kept))  # type: ignore[misc]
            while self._on_way > self._most:
                self._wire.step()

    def sync_part(self, part: Part) -> None:
        """Make durable what was written so far."""
        if self._syncs:
            self._when_open(
                part,
                lambda: self._post_request(
                    part, EXTENDED, encode_string(FSYNC) + encode_string(part._handle), self._on_synced
                ),
            )

    def finish_part(self, part: Part, read_back: bool = False) -> None:
        """Make the part durable and close it. `read_back`: then read all of it into memory.

        Read by a second handle: servers made with Go's pkg/sftp (e.g. rclone) treat a READ on a handle for writing as a
        WRITE of zeros.
        """
        self.sync_part(part)
        part._reads_back = read_back
        self.close_part(part)

    def close_part(self, part: Part) -> None:
        if not part._closing:
            part._closing = True
            self._closing += 1
            self._when_open(part, lambda: self._end_of(part))

    def await_parts(self, parts: list[Part]) -> None:
        """Wait until all requests of these parts are answered."""
        for part in parts:
            while part.waits_for:
                self._wire.step()

    def _post_create(self, part: Part) -> None:
        self._post_open(part, _NEW if part.fresh else FOR_WRITE, self._on_opened)

    def _post_open(self, part: Part, flags: int, then: Callable[[Part, Reply], None]) -> None:
        self._post_request(part, OPEN, encode_string(part.place) + struct.pack(">I", flags) + NO_ATTRIBUTES, then)

    def _on_opened(self, part: Part, reply: Reply) -> None:
        failed = reply.as_os_error()
        if failed is not None and part.fresh and not part._tried and failed.errno not in (errno.ENOENT, errno.EACCES):
            part._tried = True  # an earlier try's part or a symlink is there: remove it, never write into it
            self._post_request(part, REMOVE, encode_string(part.place), lambda part, _reply: self._post_create(part))
            return
        if failed is not None:
            part.trouble = OSError(failed.errno, failed.strerror, part.place)
        else:
            part._handle = bytes(reply.parse_string())
            if not part.fresh:  # its status is ignored: old bytes are written over, or found by the digest
                self._post_request(
                    part, FSETSTAT, encode_string(part._handle) + size_attribute(part.offset), lambda _part, _reply: None
                )
        held, part._held = part._held, []
        for act in held:
            act()

    def _end_of(self, part: Part) -> None:
        if part._handle:
            self._post_request(part, CLOSE, encode_string(part._handle), self._on_closed)
        else:  # never opened
            self._count_closed()

    def _on_closed(self, part: Part, reply: Reply) -> None:
        self._note_reply(part, reply)
        if part._reads_back and part.trouble is None:
            part._reads_back = False
            self._post_open(part, FOR_READ, self._opened_again)
        else:
            self._count_closed()

    def _count_closed(self) -> None:
        self._handles -= 1
        self._closing -= 1

    def _when_open(self, part: Part, act: Callable[[], None]) -> None:
        """Call `act` once the part is open or has failed to open."""
        if part._handle or part.trouble is not None:
            act()
        else:
            part._held.append(act)

    def _post_write(self, part: Part, offset: int, data: bytes | memoryview) -> None:
        size = len(data)
        if not part._handle or part.trouble is not None:
            self._on_way -= size
            return

        def written(reply: Reply) -> None:
            part.waits_for -= 1
            self._on_way -= size
            part.written += size
            self._note_failure(part, reply.as_os_error())

        part.waits_for += 1
        self._wire.post_data(WRITE, encode_string(part._handle) + struct.pack(">Q", offset), data, written)

    def _post_request(self, part: Part, kind: int, payload: bytes, then: Callable[[Part, Reply], Any]) -> None:
        if kind not in (OPEN, REMOVE) and not part._handle:
            return

        def answered(reply: Reply) -> None:
            part.waits_for -= 1
            then(part, reply)

        part.waits_for += 1
        self._wire.post(kind, payload, answered)

    def _note_reply(self, part: Part, reply: Reply) -> None:
        self._note_failure(part, reply.as_os_error())

    def _on_synced(self, part: Part, reply: Reply) -> None:
        """Remove the part after a failed sync. A disk reports lost bytes once, so a second sync would succeed wrongly."""
        if reply.as_os_error() is not None:
            # CRASH WINDOW: a connection cut here leaves the part; the rerun resumes it and does not learn of the loss.
            self._post_request(part, REMOVE, encode_string(part.place), lambda _part, _reply: None)
        self._note_reply(part, reply)

    def _opened_again(self, part: Part, reply: Reply) -> None:
        self._note_reply(part, reply)
        if part.trouble is None:
            part._handle = bytes(reply.parse_string())
            self._read_on(part)
        else:
            self._count_closed()

    def _read_on(self, part: Part) -> None:
        ask = struct.pack(">QI", len(part.read_back), self._wire.read_size)
        self._post_request(part, READ, encode_string(part._handle) + ask, self._on_read_back)

    def _on_read_back(self, part: Part, reply: Reply) -> None:
        self._note_failure(part, reply.as_os_error((EOF,)))
        data = b"" if part.trouble is not None or reply.is_status(EOF) else reply.parse_string()
        part.read_back += data
        self._wire.release(data)
        if data and len(part.read_back) < part.offset:  # a server may send fewer bytes than requested
            self._read_on(part)
        else:
            self._end_of(part)

    @staticmethod
    def _note_failure(part: Part, failed: OSError | None) -> None:
        if failed is not None and part.trouble is None:
            part.trouble = OSError(failed.errno, failed.strerror, part.place)
