"""What a far end says of itself when it is asked what it can run."""

from __future__ import annotations

from typing import Any

from tidemark.errors import UnreachableError
from tidemark.stores.far_session import start_far_end


class Answered:
    """A shell that said what it has and ended before our first bytes were on their way."""

    connected = True
    open = False

    def __init__(self) -> None:
        self._lines = [b"Welcome\n", b"tidemark posix\n", b"find sha256sum head tail rm tar\n"]

    def write(self, _data: bytes) -> None:
        raise UnreachableError("the channel is closed")

    def read_line(self) -> bytes:
        return self._lines.pop(0) if self._lines else b""

    def close(self) -> None:
        """Nothing is open."""


class Connection:
    nice = 0

    def open_pipe(self, _command: str) -> Answered:
        return Answered()


def test_a_shell_that_answered_and_ended_before_we_wrote_is_heard() -> None:
    far: Any = Connection()
    for python in (True, False):
        session, tools = start_far_end(far, "/", python=python)
        assert session is None and "sha256sum" in tools
