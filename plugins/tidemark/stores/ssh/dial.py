"""Connect to a server: by TCP, in a thread while the SSH modules are still being loaded, or through a command."""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from tidemark.errors import HostKeyError, PermissionDeniedError

CONNECT_SECONDS = 10.0  # for the server's machine to answer


def dial_server(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to a server. Raises OSError, and TimeoutError after `seconds`."""
    name: Any = host.encode() if host.isascii() else host  # a str would import the idna codec, which takes time
    return socket.create_connection((name, port), timeout=seconds)


def dial_through(command: Sequence[str], seconds: float) -> socket.socket:
    """Run a command whose input and output are the connection to a server. It ends when the socket is closed.

    Waits for the server's first byte. Raises OSError with what the command said, TimeoutError after `seconds`,
    HostKeyError and PermissionDeniedError of a jump host.
    """
    ours, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=said, start_new_session=True
            )
            threading.Thread(target=process.wait, daemon=True).start()
            theirs.close()
            ours.settimeout(seconds)
            if ours.recv(1, socket.MSG_PEEK):
                return ours
            said.seek(0)
            told = "; ".join(said.read(10_000).decode("utf-8", "backslashreplace").split("\r\n")).strip("; \n")
            raise _no_way(command, told or "it says nothing")
        except BaseException:
            ours.close()
            raise


def _no_way(command: Sequence[str], told: str) -> Exception:
    """Return the error for what `ssh` said. Where a key is not known, or a login is refused, a person has to act."""
    message, again = f"{command[0]} … {command[-1]} does not connect: {told}", f"try it by hand: {shlex.join(command)}"
    if "Host key verification failed" in told:
        return HostKeyError(message, hint=f"compare its key and log in there once; {again}", subject=command[-1])
    if "Permission denied" in told:
        return PermissionDeniedError(
            message, hint=f"add the public key to authorized_keys there; {again}", subject=command[-1]
        )
    return ConnectionError(message)


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
