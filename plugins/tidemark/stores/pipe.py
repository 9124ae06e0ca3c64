"""What a command or subsystem at a far end reads and writes, over a channel of its own: no wait in it is for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from tidemark.stores.bulk_sending import BulkSender
from tidemark.stores.bulk_sink import BulkSink, Frame
from tidemark.stores.lean_paramiko import paramiko
from tidemark.stores.login import said_at_login
from tidemark.stores.packets import BulkPacketizer

if TYPE_CHECKING:
    from tidemark.stores.ssh import SshConnection


Sink = TypeVar("Sink", bound=BulkSink)

_RECEIVE = 1 << 18


class Pipe:
    """Bytes to and from a command or subsystem at the far end."""

    def __init__(self, connection: SshConnection, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._transport = transport
        self._channel = channel
        self._buffer = bytearray()
        self._bulk: BulkSender | None = None

    @property
    def host(self) -> str:
        return self._connection.login.name

    @property
    def open(self) -> bool:
        return not self._channel.closed and not self._channel.eof_received

    @property
    def refused(self) -> bool:
        """The server said that it does not run it."""
        return bool(getattr(self._channel, "refused", False))

    @property
    def connected(self) -> bool:
        """The server is there, whatever became of the command. Asks it."""
        return self._connection.alive(self._transport)

    def take_over(self, room: int, slabs: int, deliver: Callable[[Frame | None], None]) -> BulkSink | None:
        """Frames of up to `room` bytes go to `deliver` from now on (see `packets`); None where only `read` works."""
        packetizer = self._channel.transport.packetizer
        if self._buffer or not isinstance(packetizer, BulkPacketizer) or not packetizer.fast:
            return None
        packetizer.sink = sink = BulkSink(self._channel, room, slabs, deliver)
        return sink

    def divert(self, make: Callable[[paramiko.Channel], Sink]) -> Sink | None:
        """The channel's bytes go to a sink of another kind from now on; None where only `read` works."""
        packetizer = self._channel.transport.packetizer
        if self._buffer or not isinstance(packetizer, BulkPacketizer) or not packetizer.fast:
            return None
        packetizer.sink = sink = make(self._channel)
        return sink

    @property
    def stall(self) -> float:
        """Seconds after which silence is looked into."""
        return self._connection.limits.stall

    @property
    def silence(self) -> float:
        """Seconds after which silence is not borne any more, though the server is there."""
        return self._connection.limits.silence

    def give_up(self) -> NoReturn:
        """Nothing came for too long: raises UnreachableError, and the connection is not used again."""
        with self._connection.speaking("waiting for its answer"):
            raise TimeoutError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._connection.speaking("sending"):
            self._channel.sendall(data)

    def send_bulk(self, pieces: Sequence[bytes | memoryview]) -> None:
        """All bytes of `pieces`, without joining them where the packet layer is ours. From one thread at a time."""
        with self._connection.speaking("sending"):
            packetizer = self._channel.transport.packetizer
            if isinstance(packetizer, BulkPacketizer) and packetizer.fast_out:
                self._bulk = self._bulk or BulkSender(self._channel, packetizer)
                self._bulk.send(pieces)
            else:
                for piece in pieces:
                    self._channel.sendall(piece)

    def end_input(self) -> None:
        with self._connection.speaking("sending"):
            self._channel.shutdown_write()

    def read(self, count: int, *, patient: bool = False) -> bytes:
        """Exactly `count` bytes, fewer at the end of the stream. `patient`: the far end may compute in silence."""
        while len(self._buffer) < count:
            got = self._receive(patient)
            if not got:
                break
            self._buffer += got
        data = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return data

    def read_some(self, most: int) -> bytes:
        """What there is, up to `most` bytes; waits for the first, with patience. b"" at the end of the stream."""
        if self._buffer:
            return self.read(min(most, len(self._buffer)))
        return self._receive(True, most)

    def read_line(self, limit: int = 65_536) -> bytes:
        """Up to and with the next newline; what there is when the stream ends or `limit` bytes had none."""
        while b"\n" not in self._buffer and len(self._buffer) < limit:
            got = self._receive(False)
            if not got:
                break
            self._buffer += got
        end = self._buffer.find(b"\n") + 1
        return self.read(end or len(self._buffer))

    def read_all(self) -> bytes:
        while got := self._receive(True):
            self._buffer += got
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def errors(self) -> str:
        """What the command said on its standard error, after its output ended."""
        said = b""
        with self._connection.speaking("waiting for its words"):
            while got := self._channel.recv_stderr(_RECEIVE):
                said += got
        return said.decode("utf-8", "backslashreplace")

    @property
    def banner(self) -> str:
        """What the server said before it let us in."""
        return said_at_login(self._transport)

    def last_words(self) -> str:
        """The last line of what the command said on its standard error so far; waits for nothing."""
        said = b""
        with suppress(EOFError, OSError, paramiko.SSHException):
            while self._channel.recv_stderr_ready():
                said += self._channel.recv_stderr(_RECEIVE)
        return said.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]

    def close(self) -> None:
        with suppress(EOFError, OSError, paramiko.SSHException):  # a connection that broke is closed already
            self._channel.close()
        self._connection.close_further(self._transport)

    def _receive(self, patient: bool, most: int = _RECEIVE) -> bytes:
        """Who is patient waits as long as the server is there, but not for ever: behind it the far end may hang."""
        limits, began = self._connection.limits, time.monotonic()
        while True:
            try:
                with self._connection.speaking("waiting for its answer"):
                    return self._try_receive(most)
            except _Silent as silent:
                over = time.monotonic() - began >= limits.silence
                if not patient or over or not self._connection.alive(self._transport):
                    with self._connection.speaking("waiting for its answer"):
                        raise TimeoutError from silent

    def _try_receive(self, most: int) -> bytes:
        try:
            return bytes(self._channel.recv(most))
        except TimeoutError:
            raise _Silent from None


class _Silent(Exception):
    """Nothing came within the stall limit."""
