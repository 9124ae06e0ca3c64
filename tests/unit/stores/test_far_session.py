"""What a far end says of itself when it is asked what it can run; sessions that several threads take and give back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from tidemark.errors import UnreachableError
from tidemark.stores.python.session import FarPool, start_far_end


class Answered:
    """A shell that said what it has and ended before our first bytes were on their way."""

    connected = True
    refused = open = False

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
    memory = 0

    def open_pipe(self, _command: str, agent: object = None) -> Answered:
        return Answered()


def test_a_shell_that_answered_and_ended_before_we_wrote_is_heard() -> None:
    far: Any = Connection()
    for python in (True, False):
        session, tools = start_far_end(far, "/", python=python)
        assert session is None and "sha256sum" in tools


class SlowToBegin(threading.Thread):
    """A thread of a busy machine: others run before it does."""

    def __init__(self, others: threading.Event, **more: Any) -> None:
        super().__init__(**more)
        self.others = others

    def start(self) -> None:
        self.others.set()
        threading.Event().wait(0.2)
        super().start()


def test_who_takes_a_session_waits_for_those_that_are_being_given_back() -> None:
    connection: Any = None
    first: Any = SimpleNamespace(is_open=True)
    second: Any = SimpleNamespace(is_open=True)
    pool = FarPool(connection, "/", first)
    assert pool.pop_session() is first
    others = threading.Event()
    with ThreadPoolExecutor(3) as workers:
        ending = workers.submit(pool.start_return, SlowToBegin(others, target=pool.return_session, args=(second,)))
        others.wait(10)
        taken = workers.submit(pool.pop_session)
        settled = workers.submit(pool.await_returns)
        assert taken.result(10) is second
        assert (ending.result(10), settled.result(10)) == (None, None)
