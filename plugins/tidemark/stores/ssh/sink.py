"""The bytes of one SSH channel on their way in, cut into the frames of the far program (`packets` puts them there)."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import NamedTuple

from paramiko.ssh_exception import SSHException

from tidemark.stores.agent.frames import DATA, HEAD
from tidemark.stores.ssh.lean_paramiko import paramiko

MARGIN = 16  # bytes before a slab's frames: a packet's header lands on them while it is decrypted
PACKET_ROOM = 1 << 18  # no packet is larger
LARGE = 1 << 20  # bytes of a frame: of those on a short line, where bytes come faster than one thread can be woken for
TOGETHER = 1 << 17  # bytes, of such a frame: woken for each 32 KB a tenth of a core is lost; a long line loses time to this


class Frame(NamedTuple):
    """A frame of the far program. `slab` is given back by `BulkSink.free.put` when nothing of it is needed any more."""

    kind: int
    words: memoryview
    data: memoryview
    slab: bytearray


class BulkSink:
    """Takes the bytes of one channel, cuts them into frames, hands them to `deliver` (in the connection's thread).

    `deliver(None)`: nothing more will come. Where all slabs are in use it waits, and so does the far end.
    """

    def __init__(self, channel: paramiko.Channel, room: int, slabs: int, deliver: Callable[[Frame | None], None]) -> None:
        self.channel = channel
        self.number = int(channel.chanid)
        self.deliver = deliver
        self.room = room + MARGIN + PACKET_ROOM
        self.together = TOGETHER if room >= LARGE else 1  # bytes worth waking up for while a frame comes in
        self.free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(slabs):
            self.free.put(bytearray(self.room))
        self.slab = self.free.get()
        self.start = self.end = MARGIN  # of the frame that is coming in
        self.need = MARGIN + HEAD.size
        self.received = 0  # since the beginning
        self.owed = 0  # bytes of window to give back
        self.waiting = False  # for a slab: it is us who are slow
        self.over = False

    def cut_frames(self) -> None:
        """The slab holds `need` bytes: hand out the frame once it is whole; what follows it moves to a new slab."""
        while self.end >= self.need and not self.over:
            kind, words, size = HEAD.unpack_from(self.slab, self.start)
            body = self.start + HEAD.size
            whole = body + words + size
            if self.end < whole:
                if whole + PACKET_ROOM > len(self.slab):
                    raise SSHException("a frame of the far end is larger than agreed")
                self.need = whole
                return
            slab, rest = self.slab, self.slab[whole : self.end]
            view = memoryview(slab)
            self.over = self.over or kind != DATA
            self.slab = slab if self.over else self._next_slab()
            if not self.over:
                self.slab[MARGIN : MARGIN + len(rest)] = rest
                self.start, self.end, self.need = MARGIN, MARGIN + len(rest), MARGIN + HEAD.size
            self.deliver(Frame(kind, view[body : body + words], view[body + words : whole], slab))

    def abandon(self) -> None:
        """Nobody takes frames any more: what still comes is let go, and a connection that waits for a slab is freed."""
        self.over = True
        self.deliver = _let_go
        self.free.put(self.slab)

    def mark_lost(self) -> None:
        if not self.over:
            self.over = True
            self.deliver(None)

    def _next_slab(self) -> bytearray:
        self.waiting = True
        while True:
            try:
                slab = self.free.get(timeout=1.0)
                break
            except queue.Empty:
                if self.channel.transport.packetizer.closed:
                    raise EOFError from None
        self.waiting = False
        return slab


def _let_go(_frame: Frame | None) -> None:
    """For a sink that was abandoned."""
