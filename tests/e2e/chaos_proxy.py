"""A TCP proxy that breaks on cue: it drops, stalls or refuses connections after so many bytes, so many times."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class ChaosProxy:
    """Between `port` and the real server. `breaks`: (how, after bytes in either direction), one for each connection.

    "drop" resets the connection, "stall" keeps it and moves nothing any more, "refuse" closes it at once,
    "slow" hands a kilobyte on every few milliseconds from then on. When the list
    is used up, connections are left alone; `for_ever` repeats its last one.
    """

    server: int
    breaks: list[tuple[str, int]] = field(default_factory=list)
    for_ever: bool = False
    connections: int = 0
    passed: int = 0
    _listener: socket.socket = field(default_factory=socket.socket)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(32)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                how, after = self._next_break()
                if how == "refuse":
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.server))
                self._open += [client, server]
                link = _Link(self, client, server, how, after)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=link.pump, args=(source, target), daemon=True).start()

    def _next_break(self) -> tuple[str, int]:
        if not self.breaks:
            return "", 0
        return self.breaks[0] if self.for_ever and len(self.breaks) == 1 else self.breaks.pop(0)


@dataclass
class _Link:
    proxy: ChaosProxy
    client: socket.socket
    server: socket.socket
    how: str
    after: int
    moved: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                with self.proxy._lock:
                    self.moved += len(data)
                    self.proxy.passed += len(data)
                if self.how == "slow" and self.moved > self.after:
                    self._crawl(target, data)
                    continue
                if self.how and self.moved > self.after:
                    self._break()
                    return
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _crawl(target: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), 1024):
            time.sleep(0.006)
            target.sendall(data[start : start + 1024])

    def _break(self) -> None:
        if self.how == "stall":
            self.stalled.wait()  # nobody sets it: both directions stop once bytes come
            return
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@contextmanager
def chaos(server: int, *breaks: tuple[str, int], for_ever: bool = False) -> Iterator[ChaosProxy]:
    proxy = ChaosProxy(server, list(breaks), for_ever)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
