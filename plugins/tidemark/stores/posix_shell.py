"""A shell at the far end that is fed commands ahead: their outputs come as one stream, with a mark behind each.

No command costs a round trip or a session of its own. The marks are random, so no file holds one by chance; where a command
brought fewer bytes than were agreed on, the mark stands in a place where it should not.
"""

from __future__ import annotations

import secrets

from tidemark.errors import UnreachableError
from tidemark.stores.pipe import Pipe

_TAKE = 8 << 20  # bytes taken from the channel at once: all there are


class BrokenOutput(Exception):
    """A command brought another number of bytes than it should: nothing behind it can be read."""


class FarShell:
    """Over a pipe to `sh`. Commands must leave their standard input alone. What a login script says first is skipped."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._mark = b"\n" + secrets.token_hex(16).encode() + b"\n"
        self._data = memoryview(b"")
        self._tail = b""  # the last bytes handed out of the command under way
        self._begun = False
        self.feed(":")

    def feed(self, command: str) -> None:
        mark = self._mark.decode().strip()
        self._pipe.write(f"{{ {command}; }} </dev/null 2>/dev/null; printf '\\n{mark}\\n'\n".encode())

    def take(self, most: int) -> memoryview:
        """Some bytes of the command under way, at least one. BrokenOutput where its output is over."""
        if not self._data:
            self._receive()
        size = len(self._mark)
        if len(self._data) <= most and (self._tail + bytes(self._data[-size:])).endswith(self._mark):
            raise BrokenOutput
        taken, self._data = self._data[:most], self._data[most:]
        self._tail = (self._tail + bytes(taken[-size:]))[-size:]
        return taken

    def exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self.take(count - len(found))
        return found

    def ended(self) -> bool:
        """Whether the output of the command under way ends here; it is then behind us."""
        while len(self._data) < len(self._mark):
            if self._data and self._data != self._mark[: len(self._data)]:
                return False
            self._receive()
        if self._data[: len(self._mark)] != self._mark:
            return False
        self._data, self._tail = self._data[len(self._mark) :], b""
        return True

    def end(self) -> None:
        """The command under way must be over. BrokenOutput."""
        if not self.ended():
            raise BrokenOutput

    def output(self, command: str) -> bytes:
        """All that a command says; nothing else may be under way."""
        self.feed(command)
        said = bytearray()
        while not said.endswith(self._mark):
            if not self._data:
                self._receive()
            said += self._data
            self._data = memoryview(b"")
        return bytes(said[: -len(self._mark)])

    @property
    def open(self) -> bool:
        return self._pipe.open

    def close(self) -> None:
        self._pipe.close()

    def _receive(self) -> None:
        came = self._came()
        if not self._begun:
            while self._mark not in came:
                came += self._came()
            self._begun = True
            came = came.partition(self._mark)[2] or self._came()
        self._data = memoryview(bytes(self._data) + came) if self._data else memoryview(came)

    def _came(self) -> bytes:
        came = self._pipe.read_some(_TAKE)
        if not came:
            raise UnreachableError(f"{self._pipe.host} ended its shell", hint="run again", subject=self._pipe.host)
        return came
