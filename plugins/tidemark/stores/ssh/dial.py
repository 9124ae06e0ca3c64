"""Open the TCP connection to a server in a thread, while the SSH modules are still being loaded."""

from __future__ import annotations

import socket
import threading
from typing import Any

CONNECT_SECONDS = 10.0  # for the server's machine to answer


def dial_server(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to a server. Raises OSError, and TimeoutError after `seconds`."""
    name: Any = host.encode() if host.isascii() else host  # a str would import the idna codec, which takes time
    return socket.create_connection((name, port), timeout=seconds)


class Dialled:
    """A connection that is begun at once. The first caller of `take_socket` gets it."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._sock: socket.socket | None = None
        self._error: OSError | None = None
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._dial_server, args=(host, port, seconds), daemon=True)
        self._thread.start()

    def take_socket(self) -> socket.socket | None:
        """Wait for the connection and return its socket; None if it was taken or dropped before. Raises its error once."""
        self._thread.join()
        with self._lock:
            sock, error = self._sock, self._error
            self._sock = self._error = None
        if error is not None:
            raise error
        return sock

    def drop(self) -> None:
        """Close the connection, now or once it is made, unless it was taken."""
        with self._lock:
            self._over = True
            if self._sock is not None:
                self._sock.close()
                self._sock = None

    def _dial_server(self, host: str, port: int, seconds: float) -> None:
        try:
            sock = dial_server(host, port, seconds)
        except OSError as error:
            self._error = error
            return
        with self._lock:
            if not self._over:
                self._sock = sock
                return
        sock.close()
