"""An SFTP session with few copies: replies are cut in the buffer of decryption, data is sent without being joined.

The session is that of `protocol`. Only receiving and sending differ, where our packet layer is used
(`stores.ssh.packets`). A plain session spends half of its CPU time on copies of the data (research/transfer.md §1.2).
"""

from __future__ import annotations

import queue
import struct

from tidemark.errors import UnreachableError
from tidemark.stores.sftp.protocol import DATA, Reply, SftpWire, Then
from tidemark.stores.ssh.connection import Pipe
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.sink import MARGIN, PACKET_ROOM, BulkSink

_LARGE = 1 << 17  # bytes of data from which a reply keeps its slab; smaller ones are copied out
_TOGETHER = 1 << 14  # bytes of requests to send at once
_MOST = (1 << 18) + 1024  # no larger reply is requested
_SLABS = 8  # kept for reuse
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IBI")


Came = bytes | memoryview  # a reply without its length, a view of a slab where it is large


class ReplySink(BulkSink):
    """Cuts a channel's bytes into replies. It never waits for a slab: the caller limits the number of large replies, and a
    waiting connection thread could not process window updates for the thread that sends."""

    def __init__(self, channel: paramiko.Channel) -> None:
        super().__init__(channel, _MOST, 1, lambda _frame: None)
        self.came: queue.SimpleQueue[list[Came] | None] = queue.SimpleQueue()
        self.need = MARGIN + _LENGTH.size

    def cut_frames(self) -> None:
        found: list[Came] = []
        while self.end >= self.need and not self.over:
            (size,) = _LENGTH.unpack_from(self.slab, self.start)
            body = self.start + _LENGTH.size
            whole = body + size
            if not 5 <= size <= _MOST:
                raise paramiko.SSHException("a reply of the SFTP server has an impossible length")
            if self.end < whole:
                self.need = whole
                break
            if size < _LARGE or self.slab[body] != DATA:
                found.append(bytes(self.slab[body:whole]))
                self.start = whole
            else:
                slab, rest = self.slab, self.slab[whole : self.end]
                self._start_slab(self._next_slab(), rest)
                found.append(memoryview(slab)[body:whole])
            self.need = self.start + _LENGTH.size
        if max(self.need, self.end) + PACKET_ROOM > len(self.slab):  # only the bytes from `start` on are in use
            missing = self.need - self.start
            self._start_slab(self.slab, self.slab[self.start : self.end])
            self.need = self.start + missing
        if found:
            self.came.put(found)

    def mark_lost(self) -> None:
        if not self.over:
            self.over = True
            self.came.put(None)

    def give_back(self, slab: bytearray) -> None:
        if self.free.qsize() < _SLABS:
            self.free.put(slab)

    def _start_slab(self, slab: bytearray, rest: bytes | bytearray) -> None:
        self.slab = slab
        slab[MARGIN : MARGIN + len(rest)] = rest
        self.start, self.end = MARGIN, MARGIN + len(rest)

    def _next_slab(self) -> bytearray:
        try:
            return self.free.get_nowait()
        except queue.Empty:
            return bytearray(self.room)


class BulkWire(SftpWire):
    """An SFTP session over our packet layer. A reply's data may be a view of a slab. Its user calls `release` after use, or
    drops it."""

    in_flight = 512  # a small file is few bytes but several requests

    def __init__(self, pipe: Pipe) -> None:
        self._sink: ReplySink | None = None
        self._arrived: list[Came] = []  # from the sink, the next one last
        super().__init__(pipe)
        self._sink = pipe.divert_bytes(ReplySink)

    def post_data(self, kind: int, head: bytes, data: bytes | memoryview, then: Then) -> None:
        """`post` a request that ends with `data`. It is sent when the call returns."""
        number = self._assign_number(then)
        waiting, self._pending = self._pending, bytearray()
        waiting += _HEAD.pack(len(head) + 4 + len(data) + 5, kind, number) + head + _LENGTH.pack(len(data))
        self._pipe.send_bulk([memoryview(waiting), data])

    def _flush_requests(self) -> None:
        """Send the pending requests, but not while replies are waiting: their requests are sent together."""
        if self._sink is None or len(self._pending) >= _TOGETHER or not (self._arrived or not self._sink.came.empty()):
            super()._flush_requests()

    def release(self, data: bytes | memoryview) -> None:
        """Return the slab of a reply's data for reuse. The data must not be used afterwards."""
        if self._sink is not None and isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            self._sink.give_back(data.obj)

    def _receive_reply(self) -> tuple[int, Reply]:
        if self._sink is None:
            return super()._receive_reply()
        if not self._arrived:
            self._arrived = self._next_replies(self._sink)
        body = self._arrived.pop()
        return _LENGTH.unpack_from(body, 1)[0], Reply(body[0], body[5:])  # type: ignore[arg-type]

    def _next_replies(self, sink: ReplySink) -> list[Came]:
        silent = 0.0
        while True:
            try:
                found = sink.came.get(timeout=self._pipe.stall)
                break
            except queue.Empty:
                silent += self._pipe.stall
                if silent >= self._pipe.silence or not self._pipe.is_connected:
                    self._pipe.give_up()
        if found is None:
            sink.came.put(None)  # for the next call
            raise UnreachableError(f"{self._pipe.host} ended its SFTP session", hint="run again", subject=self._pipe.host)
        found.reverse()
        return found
