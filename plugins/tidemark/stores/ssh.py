"""One SSH connection: logged in strictly, every wait limited, few copies of the bytes.

Enter by `connection.SshConnection`; a command or subsystem at the far end is a `Pipe` of it.

    dial        the TCP connection, which may be on its way while modules load
    lean_paramiko  paramiko, loaded in two thirds of the time
    expired_logins a password or an account that is over, told by what its server says
    sink        bytes of one channel on their way in
    packets     paramiko's packet layer with few copies; in C where that can be built
    transport   paramiko's transport, two round trips shorter, and the bytes on their way out
    login       `connect`: host key, public key, ciphers, a time limit on each step
    connection  channels and pipes; made again when lost

Imports `errors` and `native`. paramiko is imported here and in what stands on it, nowhere else. The host key must be
the one of the settings; nothing is ever added by itself. The fast packet layer is used for the versions of paramiko
named in KNOWN alone; with any other version paramiko's own layer works, slower. Only `stores` and `transfer` may
import this folder.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tidemark.errors import UnreachableError
from tidemark.stores.dialling import Dialled
from tidemark.stores.far_limits import MEMORY_BYTES
from tidemark.stores.lean_paramiko import paramiko
from tidemark.stores.login import Limits, Login, connect
from tidemark.stores.pipe import Pipe
from tidemark.stores.ssh_transport import SshTransport
from tidemark.stores.tcp_info import TcpInfo, tcp_info

WINDOW = 1 << 25  # bytes in flight towards us before the far end waits
PACKET = 1 << 15

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its tracebacks are our errors' business


class SshConnection:
    """Connects at the first use, and again after `drop`. Several channels may be open at once, from several threads."""

    def __init__(
        self, login: Login, limits: Limits, nice: int = 0, memory: int = MEMORY_BYTES, dialled: Dialled | None = None
    ) -> None:
        self.login = login
        self.limits = limits
        self.nice = nice  # of what we run at the far end, 0 … 19
        self.memory = memory  # bytes that our program may take there; 0: no limit
        self._dialled = dialled  # for the first login
        self._transport: SshTransport | None = None
        self._further: list[SshTransport] = []  # for one session each
        self._lock = threading.RLock()
        self._round_trip = 0.0  # the last one known: a connection that was cut does not make the line a short one

    def another(self) -> SshConnection:
        """To the same server, as the same user; not connected yet."""
        return SshConnection(self.login, self.limits, self.nice, self.memory)

    def open_pipe(
        self, command: str = "", subsystem: str = "", agent: Callable[[paramiko.Channel], None] | None = None
    ) -> Pipe:
        """A channel that runs `command`, or the named subsystem. `agent` serves who asks there for an SSH agent."""
        with self.speaking("opening a session"):
            transport, channel = self._open_session()
            channel.settimeout(self.limits.stall)
            try:
                if subsystem:
                    with self._deadline(transport):
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

    def keys(self) -> tuple[paramiko.PKey, paramiko.PKey]:
        """The server's own key, compared with the settings, and the one that logged in there."""
        with self.speaking("asking for its keys"):
            transport = self._connected()
            return transport.get_remote_server_key(), transport.auth_handler.private_key

    def _open_session(self) -> tuple[SshTransport, paramiko.Channel]:
        """MaxSessions counts the sessions of a connection: one too many gets a connection of its own."""
        transport = self._connected()
        try:
            return transport, transport.open_session(WINDOW, PACKET, self.limits.stall)
        except paramiko.ChannelException:
            further = connect(self.login, self.limits)
            self._further.append(further)
        try:
            return further, further.open_session(WINDOW, PACKET, self.limits.stall)
        except BaseException:
            self.close_further(further)
            raise

    def close_further(self, transport: SshTransport) -> None:
        """Close a connection that was made for one session; leave the one that all share."""
        with self._lock:
            if transport not in self._further:
                return
            self._further.remove(transport)
        transport.close()

    def drop(self) -> None:
        """Close the connection and every channel on it; the next use connects again."""
        with self._lock:
            open_now = [*self._further, *([self._transport] if self._transport else [])]
            self._transport = None
            self._further.clear()
        if self._dialled is not None:
            self._dialled.drop()
        for transport in open_now:
            with suppress(OSError):  # wakes its thread, for which `close` waits
                transport.sock.shutdown(socket.SHUT_RDWR)
            transport.close()

    @contextmanager
    def _deadline(self, transport: SshTransport) -> Iterator[None]:
        """TimeoutError when the block takes longer than the stall limit. paramiko waits for ever for some answers."""
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

    def alive(self, transport: SshTransport) -> bool:
        """Whether the server answers a question on this connection within the stall limit."""
        if not transport.is_active():
            return False
        asking = threading.Thread(target=self._ask, args=(transport,), daemon=True)
        asking.start()
        asking.join(self.limits.stall)
        return not asking.is_alive() and transport.is_active()

    def line(self) -> tuple[float, int]:
        """(round trip in seconds, packets lost so far, either way), by the kernel; zeros where it does not tell.

        What was lost towards us shows as packets that came out of order, what was lost from us was sent again. The round
        trip is the last connection's where there is none now.
        """
        info = self._told_by_kernel()
        self._round_trip = info.round_trip or self._round_trip
        return self._round_trip, info.lost

    def moved(self) -> int:
        """Bytes that came or that the other end has, by the kernel: of packets that are not whole yet, too; 0 where it
        does not tell."""
        info = self._told_by_kernel()
        return info.acknowledged + info.received

    def _told_by_kernel(self) -> TcpInfo:
        transport = self._transport
        return tcp_info(transport.sock if transport is not None else None)

    @contextmanager
    def speaking(self, doing: str) -> Iterator[None]:
        """Translate what the connection raises inside the block. One that was silent too long is not used again."""
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

    def _ask(self, transport: SshTransport) -> None:
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (OSError, EOFError, paramiko.SSHException):
            return  # `alive` looks at the transport, which is closed now

    def _connected(self) -> SshTransport:
        with self._lock:
            if self._transport is None or not self._transport.is_active():
                dialled, self._dialled = self._dialled, None
                self._transport = connect(self.login, self.limits, dialled)
                self.line()  # remembers its round trip
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
