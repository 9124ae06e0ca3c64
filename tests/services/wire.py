"""A TCP line between a client and a server on this machine that tests can cut, silence, slow down or refuse."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType


class Wire:
    """Listens on `port`, forwards to `server_port`. Counts bytes from the server to the client, or `upwards`, or `both`."""

    def __init__(self, server_port: int, upwards: bool = False, both: bool = False) -> None:
        self._server = server_port
        self._counted = (0, 1) if both else (0,) if upwards else (1,)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self.open = 0
        self.most_at_once = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut_at = self._cut_every = self._times = self._came = 0
        self._stall_at = 0
        self._stalled = threading.Event()
        self._act_at = 0
        self._act: Callable[[], object] = self._stalled.wait
        self._rate = 0.0
        self._singly = 0
        self._slow = (0, 0.0)
        self._late = 0.0
        self._refusing = False
        self._closed = False

    def __enter__(self) -> Wire:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True
        self._listener.close()
        self._stalled.set()
        for pair in list(self._pairs):
            self._end(pair)

    @property
    def came(self) -> int:
        """Bytes that came in the direction that counts."""
        return self._came

    def cut_after(self, count: int, times: int = 1) -> None:
        """Close the connection that brings the `count`-th byte from now on; `times` times, `count` bytes apart."""
        with self._lock:
            self._cut_at, self._cut_every, self._times = self._came + count, count, times

    def stall_after(self, count: int) -> None:
        """From the `count`-th byte on the connection that brings it carries nothing more, but stays open."""
        self._stall_at = self._came + count

    def once_at(self, count: int, act: Callable[[], object]) -> None:
        """Do `act`, once, when the `count`-th byte from now on comes. Until it is done the connection that brings the byte
        carries nothing more that way: whatever the machine's speed, the transfer is in its middle."""
        self._act, self._act_at = act, self._came + count

    def pace(self, rate: float) -> None:
        """Bytes a second a connection."""
        self._rate = rate

    def singly(self, count: int) -> None:
        """The next `count` bytes, of either direction, are handed on byte by byte, each in a packet of its own."""
        self._singly = count

    def read_slowly(self, count: int, rate: float) -> None:
        """Read at most `count` bytes at once and `rate` a second, with the smallest window. New connections only."""
        self._slow = (count, rate)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def cut_the_server_late(self, seconds: float) -> None:
        """Whom we cut from now on learns of it at the client at once, at the server only so much later: what is on its
        way arrives until then, and newer connections come and end before the older one does."""
        self._late = seconds

    def refuse(self) -> None:
        """Accept nobody from now on."""
        self._refusing = True

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                pair = (client, self._to_server())
            except ConnectionRefusedError:  # the server is down for a moment
                client.close()
                continue
            self._pairs.append(pair)
            self.open += 1
            self.most_at_once = max(self.most_at_once, self.open)
            threading.Thread(target=self._carry, args=(pair, 0), daemon=True).start()
            threading.Thread(target=self._carry, args=(pair, 1), daemon=True).start()

    def _to_server(self) -> socket.socket:
        server = socket.socket()
        if self._slow[0]:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            server.connect(("127.0.0.1", self._server))
        except OSError:
            server.close()
            raise
        return server

    def _carry(self, pair: tuple[socket.socket, socket.socket], way: int) -> None:
        source, sink = pair[way], pair[1 - way]
        with contextlib.suppress(OSError):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := source.recv(self._slow[0] or 65_536):
                if way in self._counted and not self._passes(len(data)):
                    self._end(pair, late=True)
                    return
                singly, self._singly = min(self._singly, len(data)), max(0, self._singly - len(data))
                for at in range(singly):
                    sink.sendall(data[at : at + 1])
                sink.sendall(data[singly:])
                if self._slow[0]:
                    time.sleep(len(data) / self._slow[1])
                if way in self._counted and self._rate:
                    time.sleep(len(data) / self._rate)
        self._end(pair)

    def _passes(self, count: int) -> bool:
        with self._lock:
            self._came += count
            cut = bool(self._times) and self._came >= self._cut_at
            stall = bool(self._stall_at) and self._came >= self._stall_at
            act = bool(self._act_at) and self._came >= self._act_at
            if cut:
                self.cuts += 1
                self._times -= 1
                self._cut_at += self._cut_every
            if stall:
                self._stall_at = 0
            if act:
                self._act_at = 0
        if stall:
            self._stalled.wait()
        if act:
            self._act()
        return not cut

    def _end(self, pair: tuple[socket.socket, socket.socket], late: bool = False) -> None:
        with self._lock:
            if pair not in self._pairs:
                return
            self._pairs.remove(pair)
            self.open -= 1
        if late and self._late:
            pair[0].shutdown(socket.SHUT_RDWR)
            pair[0].close()
            later = threading.Timer(self._late, self._close, [pair[1:]])
            later.daemon = True
            later.start()
        else:
            self._close(pair)

    @staticmethod
    def _close(ends: tuple[socket.socket, ...]) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
