"""One SSH connection and the pipes of its channels: a time limit on every wait; reconnects after a loss.

`login` logs in. paramiko by itself waits forever on a stalled link (research/transfer.md §6). So every channel here has
a timeout. A far end that may be silent because it computes is asked for a sign of life instead. Errors of paramiko and
of the socket are raised as UnreachableError, HostKeyError or PermissionDeniedError, with the host's name.

A `Pipe` is the input and output of a command or a subsystem at the far end, over its own channel. Several channels may
be open at once, from several threads. A lost connection loses its pipes. `drop` ends it for all of them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar

from tidemark.errors import UnreachableError
from tidemark.stores.agent.limits import MEMORY_BYTES
from tidemark.stores.ssh.dial import Dialled
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.login import Limits, Login, connect_and_login, said_at_login
from tidemark.stores.ssh.packets import BulkPacketizer, TcpInfo, tcp_info
from tidemark.stores.ssh.sink import BulkSink, Frame
from tidemark.stores.ssh.transport import BulkSender, SshTransport

WINDOW = 1 << 25  # bytes in flight towards us before the far end waits
PACKET = 1 << 15

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # no tracebacks: its errors are raised as ours


class SshConnection:
    """A connection that is made at the first use, and again after `drop`. Several threads may open channels at once."""

    def __init__(
        self, login: Login, limits: Limits, nice: int = 0, memory: int = MEMORY_BYTES, dialled: Dialled | None = None
    ) -> None:
        self.login = login
        self.limits = limits
        self.nice = nice  # niceness of our processes at the far end, 0 … 19
        self.memory = memory  # bytes that our program may use there; 0: no limit
        self._dialled = dialled  # for the first login
        self._transport: SshTransport | None = None
        self._further: list[SshTransport] = []  # connections for one session each
        self._lock = threading.RLock()
        self._round_trip = 0.0  # the last known one, kept while there is no connection

    def make_another(self) -> SshConnection:
        """Return a connection to the same server, as the same user, not yet connected."""
        return SshConnection(self.login, self.limits, self.nice, self.memory)

    def open_pipe(
        self, command: str = "", subsystem: str = "", agent: Callable[[paramiko.Channel], None] | None = None
    ) -> Pipe:
        """Open a channel that runs `command` or the named subsystem. `agent` serves SSH agent requests from there."""
        with self.translate_errors("opening a session"):
            transport, channel = self._open_session()
            channel.settimeout(self.limits.stall)
            try:
                if subsystem:
                    with self._stall_deadline(transport):
                        channel.invoke_subsystem(subsystem)
                else:
                    if agent is not None:
                        channel.request_forward_agent(agent)
                    transport.execute(channel, command)
            except BaseException:
                with suppress(EOFError, OSError, paramiko.SSHException):
                    channel.close()
                self.close_further(transport)
                raise
            return Pipe(self, transport, channel)

    def host_and_user_keys(self) -> tuple[paramiko.PKey, paramiko.PKey | None]:
        """Return the server's host key, compared with the settings, and the key that logged in; None: a password did."""
        with self.translate_errors("asking for its keys"):
            transport = self._ensure_connected()
            return transport.get_remote_server_key(), transport.auth_handler.private_key

    def _open_session(self) -> tuple[SshTransport, paramiko.Channel]:
        """Open a session. Beyond the server's MaxSessions, which is per connection, makes another connection for it."""
        transport = self._ensure_connected()
        try:
            return transport, transport.open_session(WINDOW, PACKET, self.limits.stall)
        except paramiko.ChannelException:
            further = connect_and_login(self.login, self.limits)
            self._further.append(further)
        try:
            return further, further.open_session(WINDOW, PACKET, self.limits.stall)
        except BaseException:
            self.close_further(further)
            raise

    def close_further(self, transport: SshTransport) -> None:
        """Close a connection that was made for one session. Leaves the shared one open."""
        with self._lock:
            if transport not in self._further:
                return
            self._further.remove(transport)
        transport.close()

    def drop(self) -> None:
        """Close the connection and every channel on it. The next use connects again."""
        with self._lock:
            open_now = [*self._further, *([self._transport] if self._transport else [])]
            self._transport = None
            self._further.clear()
        if self._dialled is not None:
            self._dialled.drop()
        for transport in open_now:
            with suppress(OSError):  # wakes its thread; `close` waits for it
                transport.sock.shutdown(socket.SHUT_RDWR)
            transport.close()

    @contextmanager
    def _stall_deadline(self, transport: SshTransport) -> Iterator[None]:
        """Raise TimeoutError when the block takes longer than the stall limit. paramiko waits forever for some answers."""
        over = threading.Event()

        def end() -> None:
            over.set()
            transport.close()

        timer = threading.Timer(self.limits.stall, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except paramiko.SSHException:
            if over.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()

    def is_alive(self, transport: SshTransport) -> bool:
        """Return whether the server answers a request on this connection within the stall limit."""
        if not transport.is_active():
            return False
        asking = threading.Thread(target=self._send_keepalive, args=(transport,), daemon=True)
        asking.start()
        asking.join(self.limits.stall)
        return not asking.is_alive() and transport.is_active()

    def measure_connection(self) -> tuple[float, int]:
        """Return (round trip in seconds, packets lost in either direction so far), from the kernel; zeros without its data.

        Lost incoming packets are counted by packets out of order, lost outgoing ones by packets sent again. Without a
        connection the round trip is the last one's.
        """
        info = self._read_tcp_info()
        self._round_trip = info.round_trip or self._round_trip
        return self._round_trip, info.lost

    def bytes_moved(self) -> int:
        """Return bytes received plus bytes acknowledged, from the kernel, with incomplete packets; 0 without its data."""
        info = self._read_tcp_info()
        return info.acknowledged + info.received

    def _read_tcp_info(self) -> TcpInfo:
        transport = self._transport
        return tcp_info(transport.sock if transport is not None else None)

    @contextmanager
    def translate_errors(self, doing: str) -> Iterator[None]:
        """Translate the connection's errors inside the block. After a timeout the connection is dropped."""
        try:
            yield
        except paramiko.ChannelException as refused:
            raise UnreachableError(
                f"{self.login.name} refuses another session while {doing}: {refused}",
                hint="does its sshd_config allow sessions (MaxSessions) to this account?",
                subject=self.login.host,
            ) from refused
        except (EOFError, TimeoutError, paramiko.SSHException, OSError) as broken:
            if isinstance(broken, TimeoutError):
                self.drop()
            raise UnreachableError(
                f"{self.login.name} {_what_happened(broken)} while {doing}" + "".join(getattr(broken, "__notes__", ())),
                hint="check the network and sshd there; ./tidemark doctor checks the login",
                subject=self.login.host,
            ) from broken

    def _send_keepalive(self, transport: SshTransport) -> None:
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (OSError, EOFError, paramiko.SSHException):
            return  # `is_alive` checks the transport, which is closed now

    def _ensure_connected(self) -> SshTransport:
        with self._lock:
            if self._transport is None or not self._transport.is_active():
                dialled, self._dialled = self._dialled, None
                self._transport = connect_and_login(self.login, self.limits, dialled)
                self.measure_connection()  # remembers its round trip
            return self._transport


def _what_happened(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(error, socket.gaierror):
        return f"has a name that nobody knows here ({error.strerror})"
    if isinstance(error, EOFError):
        return "closed the connection"
    return f"dropped the connection ({str(error) or type(error).__name__})"


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
    def is_open(self) -> bool:
        return not self._channel.closed and not self._channel.eof_received

    @property
    def refused(self) -> bool:
        """Whether the server refused to run the command."""
        return bool(getattr(self._channel, "refused", False))

    @property
    def is_connected(self) -> bool:
        """Whether the server answers, whatever the state of the command. Sends it a request."""
        return self._connection.is_alive(self._transport)

    def divert_frames(self, room: int, slabs: int, deliver: Callable[[Frame | None], None]) -> BulkSink | None:
        """Send frames of up to `room` bytes to `deliver` from now on (see `sink`). Returns None where only `read` works."""
        packetizer = self._channel.transport.packetizer
        if self._buffer or not isinstance(packetizer, BulkPacketizer) or not packetizer.fast:
            return None
        packetizer.sink = sink = BulkSink(self._channel, room, slabs, deliver)
        return sink

    def divert_bytes(self, make: Callable[[paramiko.Channel], Sink]) -> Sink | None:
        """Send the channel's bytes to another kind of sink from now on. Returns None where only `read` works."""
        packetizer = self._channel.transport.packetizer
        if self._buffer or not isinstance(packetizer, BulkPacketizer) or not packetizer.fast:
            return None
        packetizer.sink = sink = make(self._channel)
        return sink

    @property
    def stall(self) -> float:
        """Seconds of silence after which the server is asked for a sign of life."""
        return self._connection.limits.stall

    @property
    def silence(self) -> float:
        """Seconds of silence after which the pipe is given up, even if the server answers."""
        return self._connection.limits.silence

    def give_up(self) -> NoReturn:
        """Drop the connection and raise UnreachableError. To be called when nothing came for too long."""
        with self._connection.translate_errors("waiting for its answer"):
            raise TimeoutError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._connection.translate_errors("sending"):
            self._channel.sendall(data)

    def send_bulk(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send all bytes of `pieces`, with our packet layer without joining them. One thread at a time."""
        with self._connection.translate_errors("sending"):
            packetizer = self._channel.transport.packetizer
            if isinstance(packetizer, BulkPacketizer) and packetizer.is_fast_out:
                self._bulk = self._bulk or BulkSender(self._channel, packetizer)
                self._bulk.send_pieces(pieces)
            else:
                for piece in pieces:
                    self._channel.sendall(piece)

    def end_input(self) -> None:
        with self._connection.translate_errors("sending"):
            self._channel.shutdown_write()

    def read(self, count: int, *, patient: bool = False) -> bytes:
        """Read exactly `count` bytes, or fewer at the end of the stream. `patient`: the far end may compute in silence."""
        while len(self._buffer) < count:
            got = self._receive_bytes(patient)
            if not got:
                break
            self._buffer += got
        data = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        return data

    def read_some(self, most: int) -> bytes:
        """Read the available bytes, at most `most`. Waits patiently for the first. Returns b"" at the end of the stream."""
        if self._buffer:
            return self.read(min(most, len(self._buffer)))
        return self._receive_bytes(True, most)

    def read_line(self, limit: int = 65_536) -> bytes:
        """Read up to and including the next newline, or to the end of the stream, or `limit` bytes without a newline."""
        while b"\n" not in self._buffer and len(self._buffer) < limit:
            got = self._receive_bytes(False)
            if not got:
                break
            self._buffer += got
        end = self._buffer.find(b"\n") + 1
        return self.read(end or len(self._buffer))

    def read_all(self) -> bytes:
        while got := self._receive_bytes(True):
            self._buffer += got
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def read_errors(self) -> str:
        """Read the command's standard error. To be called after its output ended."""
        said = b""
        with self._connection.translate_errors("waiting for its words"):
            while got := self._channel.recv_stderr(_RECEIVE):
                said += got
        return said.decode("utf-8", "backslashreplace")

    @property
    def banner(self) -> str:
        """The text that the server sent before the login."""
        return said_at_login(self._transport)

    def last_words(self) -> str:
        """Return the last line of the command's standard error so far, without waiting."""
        said = b""
        with suppress(EOFError, OSError, paramiko.SSHException):
            while self._channel.recv_stderr_ready():
                said += self._channel.recv_stderr(_RECEIVE)
        return said.decode("utf-8", "backslashreplace").strip().rpartition("\n")[2]

    def close(self) -> None:
        with suppress(EOFError, OSError, paramiko.SSHException):  # a connection that broke is closed already
            self._channel.close()
        self._connection.close_further(self._transport)

    def _receive_bytes(self, patient: bool, most: int = _RECEIVE) -> bytes:
        """Receive bytes. A patient call waits while the server answers, up to `limits.silence`: the command may hang."""
        limits, began = self._connection.limits, time.monotonic()
        while True:
            try:
                with self._connection.translate_errors("waiting for its answer"):
                    return self._try_receive(most)
            except _Silent as silent:
                over = time.monotonic() - began >= limits.silence
                if not patient or over or not self._connection.is_alive(self._transport):
                    with self._connection.translate_errors("waiting for its answer"):
                        raise TimeoutError from silent

    def _try_receive(self, most: int) -> bytes:
        try:
            return bytes(self._channel.recv(most))
        except TimeoutError:
            raise _Silent from None


class _Silent(Exception):
    """Nothing came within the stall limit."""
