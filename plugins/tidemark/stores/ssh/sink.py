"""Cut the incoming bytes of one SSH channel into frames of the agent's protocol. `packets` writes the bytes."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import NamedTuple

from paramiko.ssh_exception import SSHException

from tidemark.stores.agent.frames import DATA, HEAD
from tidemark.stores.ssh.lean_paramiko import paramiko

MARGIN = 16  # bytes before a slab's frames: decrypting a packet writes its header there
PACKET_ROOM = 1 << 18  # no packet is larger
LARGE = 1 << 20  # frame size from which the line is taken for a short one, where bytes come faster than wake-ups
TOGETHER = 1 << 17  # bytes to wait for in such a frame: fewer wake-ups save CPU, but cost time on a long line


class Frame(NamedTuple):
    """A frame of the agent's protocol. Its receiver returns `slab` by `BulkSink.free.put` when it needs no more of it."""

    kind: int
    words: memoryview
    data: memoryview
    slab: bytearray


class BulkSink:
    """Cuts the bytes of one channel into frames and passes them to `deliver`, in the connection's thread.

    `deliver(None)`: nothing more will come. Where all slabs are in use it waits, and so does the far end.
    """

    def __init__(self, channel: paramiko.Channel, room: int, slabs: int, deliver: Callable[[Frame | None], None]) -> None:
        self.channel = channel
        self.number = int(channel.chanid)
        self.deliver = deliver
        self.room = room + MARGIN + PACKET_ROOM
        self.together = TOGETHER if room >= LARGE else 1  # bytes to wait for while a frame comes in
        self.free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        for _ in range(slabs):
            self.free.put(bytearray(self.room))
        self.slab = self.free.get()
        self.start = self.end = MARGIN  # of the incoming frame
        self.need = MARGIN + HEAD.size
        self.received = 0  # bytes since the beginning
        self.owed = 0  # bytes by which the window is to be opened
        self.waiting = False  # for a slab: this end is the slow one
        self.over = False

    def cut_frames(self) -> None:
        """Deliver the frame once it is whole, and move what follows it to a new slab. Called when `need` bytes are there."""
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
        """Discard all further frames. Frees a connection thread that waits for a slab."""
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
    """Discard a frame of an abandoned sink."""
