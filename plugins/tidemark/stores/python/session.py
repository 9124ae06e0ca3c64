"""The near end of `stores.agent.server`: request an operation over a pipe, receive its DATA frames and its result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tidemark.errors import PermanentError, UnreachableError
from tidemark.stores.agent.frames import ASK, BEAT, DATA, DONE, FAILED, HEAD, LAST, STOP
from tidemark.stores.python.bundle import begin_making, encode_program, start_command
from tidemark.stores.ssh.login import expired

if TYPE_CHECKING:
    from tidemark.stores.ssh.connection import Pipe, SshConnection


PYTHON, POSIX = b"tidemark python3 ready", b"tidemark posix"  # answers to `start_command`
GREETING_LINES = 200  # that a login script may print before the answer
_WRITE = 1 << 18  # bytes in a DATA frame to the far end
_MOST = 256 << 20  # bytes in a frame from the far end: enough for the names in a folder of a million files


def start_far_end(
    connection: SshConnection, root: str, python: bool = True, agent: Callable[[Any], None] | None = None
) -> tuple[FarSession | None, tuple[str, ...]]:
    """Start the agent. Returns its session, or None and the POSIX tools found there; none: the login has no shell.

    `agent` serves SSH agent requests from there (`transfer.stream.direct`). Text that a login script prints first is
    skipped. An SFTP-only server takes our first bytes for a bad packet and closes the channel at once, so no time is lost.
    Only an answer decides the tier: a silent or disconnected far end raises UnreachableError.
    """
    if python:
        begin_making()
    for with_python in (True, False) if python else (False,):
        pipe = connection.open_pipe(start_command(with_python, connection.nice), agent=agent)
        try:
            with suppress(UnreachableError):  # a shell without python3 has answered and may have ended already
                for piece in encode_program(root, connection.memory) if with_python else (b"tidemark\n",):
                    pipe.write(piece)
            answer = _read_answer(pipe)
        except UnreachableError:  # the far end did not understand the command and closed the pipe
            answer = b""
            if not (pipe.refused or pipe.is_connected):  # silent or disconnected: what it can run stays unknown
                raise
        if pipe.refused:  # no commands; after input for a refused command ProFTPD may close the connection, too
            if not pipe.is_connected:
                connection.drop()
            pipe.close()
            break
        if answer == PYTHON:
            return FarSession(pipe), ()
        if answer == POSIX:
            tools = tuple(pipe.read_line().decode("ascii", "replace").split())
            pipe.close()
            return None, tools
        if not pipe.is_connected:
            raise UnreachableError(
                f"{connection.login.name} closed the connection while it was asked what it can run",
                hint="run again; if it always does so, its sshd log says why",
                subject=connection.login.host,
            )
        if over := expired(connection.login.name, pipe.last_words()):
            raise over
        pipe.close()
    return None, ()


def _read_answer(pipe: Pipe) -> bytes:
    """Return PYTHON or POSIX, else b"". Skips what a login script printed before: lines, and text without a newline."""
    for _ in range(GREETING_LINES):
        line = pipe.read_line()
        for answer in (PYTHON, POSIX):
            if line.endswith(answer + b"\n"):
                return answer
        if not line.endswith(b"\n"):
            break
    return b""


class FarSession:
    """A running agent, for one operation at a time."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    @property
    def is_open(self) -> bool:
        return self.pipe.is_open

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Run an operation without DATA and return its result. Raises the far end's OSError."""
        self._send_frame(ASK, [operation, arguments])
        kind, words, _ = self._receive_reply(patient=True)
        assert kind == DONE
        return words

    def stream_frames(self, operation: str, *arguments: Any, patient: bool = False) -> Iterator[tuple[Any, bytes]]:
        """Run an operation. Yields (JSON, bytes) of each DATA frame, and last its result with no bytes."""
        self._send_frame(ASK, [operation, arguments])
        while True:
            kind, words, data = self._receive_reply(patient)
            yield words, data
            if kind == DONE:
                return

    def send_pieces(self, operation: str, arguments: tuple[Any, ...], pieces: Iterable[bytes]) -> Any:
        """Run an operation with DATA and return its result. An exception from `pieces` stops the operation and is raised."""
        held = bytearray(_encode_frame(ASK, [operation, arguments]))  # a small operation goes out in one packet
        try:
            for piece in pieces:
                for start in range(0, len(piece), _WRITE):
                    held += _encode_frame(DATA, None, piece[start : start + _WRITE])
                    if len(held) >= _WRITE:
                        self.pipe.write(held)
                        held.clear()
        except BaseException:
            self.pipe.write(held + _encode_frame(STOP, None))
            self._await_stopped()
            raise
        self.pipe.write(held + _encode_frame(LAST, None))
        return self._receive_reply(patient=True)[1]

    # an operation that receives and answers at the same time

    def begin_operation(self, operation: str, *arguments: Any) -> None:
        self._send_frame(ASK, [operation, arguments])

    def send_data(self, data: bytes) -> None:
        self._send_frame(DATA, None, data)

    def send_bulk_data(self, words: bytes, data: memoryview) -> None:
        self.pipe.send_bulk([HEAD.pack(DATA, len(words), len(data)), words, data])

    def end_data(self) -> None:
        """End the DATA. The far end still sends its own DATA, then DONE or FAILED."""
        self._send_frame(LAST, None)

    def receive_frame(self) -> tuple[int, bytes, bytes]:
        """Return the next frame unparsed: kind, words, bytes."""
        head = self.pipe.read(HEAD.size)
        if len(head) < HEAD.size:
            raise self._ended_error()
        kind, words, size = HEAD.unpack(head)
        return kind, *self._read_body(words, size)

    def close(self) -> None:
        self.pipe.close()

    def _await_stopped(self) -> None:
        try:
            self._receive_reply(patient=True)
        except OSError:
            return  # "stopped", or another failure: the caller raises its own error

    def _send_frame(self, kind: int, words: Any, data: bytes = b"") -> None:
        self.pipe.write(_encode_frame(kind, words, data))

    def _receive_reply(self, patient: bool) -> tuple[int, Any, bytes]:
        kind = BEAT
        while kind == BEAT:
            head = self.pipe.read(HEAD.size, patient=patient)
            if len(head) < HEAD.size:
                raise self._ended_error()
            kind, words, size = HEAD.unpack(head)
        text, data = self._read_body(words, size)
        said: Any = json.loads(text) if text else None
        if kind == FAILED:
            number, reason, path = said
            raise OSError(number, reason, path) if path else OSError(number, reason)
        return kind, said, data

    def _read_body(self, words: int, size: int) -> tuple[bytes, bytes]:
        """Read a frame's words and bytes. Raises PermanentError where they are too many."""
        if words + size > _MOST:
            host = self.pipe.host
            raise PermanentError(
                f"python3 at {host} answers with {words + size:,} bytes at once, more than it ever has to say",
                hint="is what starts there as python3 one? A login script may stand for it",
                subject=host,
            )
        text, data = self.pipe.read(words), self.pipe.read(size)
        if len(text) < words or len(data) < size:
            raise self._ended_error()
        return text, data

    def _ended_error(self) -> UnreachableError:
        said = self.pipe.read_errors().strip().rpartition("\n")[2]
        why = said or "it was killed, or the connection dropped"
        return UnreachableError(f"python3 at {self.pipe.host} ended: {why}", hint="run again", subject=self.pipe.host)


def _encode_frame(kind: int, words: Any, data: bytes = b"") -> bytes:
    text = b"" if words is None else json.dumps(words).encode()
    return HEAD.pack(kind, len(text), len(data)) + text + data


class FarPool:
    """Sessions over one connection. A call gets an idle one, or a new one, e.g. while a stream is being read."""

    def __init__(self, connection: SshConnection, root: str, first: FarSession) -> None:
        self._connection = connection
        self._root = root
        self._idle = [first]
        self._lock = threading.Lock()
        self._ending: list[threading.Thread] = []

    @contextmanager
    def borrow_session(self) -> Iterator[FarSession]:
        """Give the block a session of its own. A session left in the middle of an operation is closed, not reused."""
        session = self.pop_session()
        try:
            yield session
        except OSError:
            self.return_session(session)  # the far end's answer to this operation; the session is usable
            raise
        except BaseException:
            session.close()
            raise
        else:
            self.return_session(session)

    def close(self) -> None:
        """Close the idle sessions. The others end with the connection."""
        with self._lock:
            for session in self._idle:
                session.close()
            self._idle.clear()

    def start_return(self, giving_back: threading.Thread) -> None:
        """Start a thread that returns sessions once they have received their last frames."""
        with self._lock:  # `await_returns` must not join a thread that has not begun
            giving_back.start()
            self._ending.append(giving_back)

    def await_returns(self) -> None:
        """Wait until the threads of `start_return` have returned their sessions."""
        with self._lock:
            ending = list(self._ending)
        for giving_back in ending:
            giving_back.join()
        with self._lock:
            self._ending = [giving_back for giving_back in self._ending if giving_back not in ending]

    def pop_session(self) -> FarSession:
        """Return a session for the caller alone, until `return_session`."""
        self.await_returns()
        with self._lock:
            while self._idle:
                session = self._idle.pop()
                if session.is_open:
                    return session
                session.close()
        return self._start_session()

    def _start_session(self) -> FarSession:
        session_or_none, _ = start_far_end(self._connection, self._root)
        if session_or_none is None:
            raise UnreachableError(f"{self._connection.login.name} does not start python3 any more", hint="run again")
        return session_or_none

    def return_session(self, session: FarSession) -> None:
        with self._lock:
            self._idle.append(session)
