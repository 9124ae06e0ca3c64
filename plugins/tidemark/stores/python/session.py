"""The near end of `stores.agent.server`: ask an operation over a pipe, get its DATA frames and its result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from tidemark.errors import PermanentError, UnreachableError
from tidemark.stores.agent.frames import ASK, BEAT, DATA, DONE, FAILED, HEAD, LAST, STOP
from tidemark.stores.python.bundle import begin_making, encode_program, start_command
from tidemark.stores.ssh.expired_logins import expired

if TYPE_CHECKING:
    from tidemark.stores.python.child_pipe import ChildPipe
    from tidemark.stores.ssh.connection import Pipe, SshConnection


PYTHON, POSIX = b"tidemark python3 ready", b"tidemark posix"  # what answers
GREETING_LINES = 200  # of a login script
_WRITE = 1 << 18  # bytes a DATA frame towards the far end
_MOST = 256 << 20  # bytes of a frame towards us: the names of a folder of a million files


def start_far_end(
    connection: SshConnection, root: str, python: bool = True, agent: Callable[[Any], None] | None = None
) -> tuple[FarSession | None, tuple[str, ...]]:
    """A session with python3 at the far end, or None and the POSIX tools there are; neither: no shell at all.

    `agent` serves what asks there for an SSH agent (`transfer.stream.direct`).

    Text that a login script prints before is skipped. An SFTP-only server takes our first bytes for a bad packet and hangs
    up at once, so no time is lost there. Only an answer tells a tier: an end that is silent or gone raises UnreachableError.
    """
    if python:
        begin_making()
    for with_python in (True, False) if python else (False,):
        pipe = connection.open_pipe(start_command(with_python, connection.nice), agent=agent)
        try:
            with suppress(UnreachableError):  # a shell without python3 has answered, and may be gone already
                for piece in encode_program(root, connection.memory) if with_python else (b"tidemark\n",):
                    pipe.write(piece)
            answer = _read_answer(pipe)
        except UnreachableError:  # it took the command for something else and closed the pipe under our hands,
            answer = b""
            if not (pipe.refused or pipe.is_connected):  # or it is silent, or gone: that says nothing about what it can run
                raise
        if pipe.refused:  # no commands; who did not wait for that word and wrote on may be hung up on besides (ProFTPD)
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
    """PYTHON or POSIX, behind what a login script said before it: lines, and words without an end of their line."""
    for _ in range(GREETING_LINES):
        line = pipe.read_line()
        for answer in (PYTHON, POSIX):
            if line.endswith(answer + b"\n"):
                return answer
        if not line.endswith(b"\n"):
            break
    return b""


class FarSession:
    """One far end, one operation at a time."""

    def __init__(self, pipe: Pipe | ChildPipe) -> None:
        self._pipe = pipe

    @property
    def is_open(self) -> bool:
        return self._pipe.is_open

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The result of an operation without DATA. Raises the far end's OSError."""
        self._send_frame(ASK, [operation, arguments])
        kind, words, _ = self._receive_reply(patient=True)
        assert kind == DONE
        return words

    def stream_frames(self, operation: str, *arguments: Any, patient: bool = False) -> Iterator[tuple[Any, bytes]]:
        """DATA frames as they come; the operation's result is the last one's JSON, with no bytes."""
        self._send_frame(ASK, [operation, arguments])
        while True:
            kind, words, data = self._receive_reply(patient)
            yield words, data
            if kind == DONE:
                return

    def send_pieces(self, operation: str, arguments: tuple[Any, ...], pieces: Iterable[bytes]) -> Any:
        """Send DATA to an operation; its result. What `pieces` raises stops the far end and goes on to the caller."""
        self._send_frame(ASK, [operation, arguments])
        try:
            for piece in pieces:
                for start in range(0, len(piece), _WRITE):
                    self._send_frame(DATA, None, piece[start : start + _WRITE])
        except BaseException:
            self._send_frame(STOP, None)
            self._await_stopped()
            raise
        self._send_frame(LAST, None)
        return self._receive_reply(patient=True)[1]

    # an operation that is asked and answers at the same time

    @property
    def pipe(self) -> Pipe:
        """Of a session over SSH."""
        return cast("Pipe", self._pipe)

    def begin_operation(self, operation: str, *arguments: Any) -> None:
        self._send_frame(ASK, [operation, arguments])

    def send_data(self, data: bytes) -> None:
        self._send_frame(DATA, None, data)

    def send_bulk_data(self, words: bytes, data: memoryview) -> None:
        self.pipe.send_bulk([HEAD.pack(DATA, len(words), len(data)), words, data])

    def end_data(self) -> None:
        """No more DATA; the far end's DONE or FAILED follows what it still sends."""
        self._send_frame(LAST, None)

    def receive_frame(self) -> tuple[int, bytes, bytes]:
        """The next frame as it is: kind, words, bytes."""
        head = self._pipe.read(HEAD.size)
        if len(head) < HEAD.size:
            raise self._ended_error()
        kind, words, size = HEAD.unpack(head)
        return kind, *self._read_body(words, size)

    def close(self) -> None:
        self._pipe.close()

    def _await_stopped(self) -> None:
        try:
            self._receive_reply(patient=True)
        except OSError:
            return  # "stopped", or the trouble it had anyway: the reader's own error is the one that counts

    def _send_frame(self, kind: int, words: Any, data: bytes = b"") -> None:
        text = b"" if words is None else json.dumps(words).encode()
        self._pipe.write(HEAD.pack(kind, len(text), len(data)) + text + data)

    def _receive_reply(self, patient: bool) -> tuple[int, Any, bytes]:
        kind = BEAT
        while kind == BEAT:
            head = self._pipe.read(HEAD.size, patient=patient)
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
        """Of a frame."""
        if words + size > _MOST:
            host = self._pipe.host
            raise PermanentError(
                f"python3 at {host} answers with {words + size:,} bytes at once, more than it ever has to say",
                hint="is what starts there as python3 one? A login script may stand for it",
                subject=host,
            )
        text, data = self._pipe.read(words), self._pipe.read(size)
        if len(text) < words or len(data) < size:
            raise self._ended_error()
        return text, data

    def _ended_error(self) -> UnreachableError:
        said = self._pipe.read_errors().strip().rpartition("\n")[2]
        why = said or "it was killed, or the connection dropped"
        return UnreachableError(f"python3 at {self._pipe.host} ended: {why}", hint="run again", subject=self._pipe.host)


class FarPool:
    """Sessions over one connection: a call takes an idle one or starts another, e.g. while a stream is being read."""

    def __init__(self, connection: SshConnection, root: str, first: FarSession) -> None:
        self._connection = connection
        self._root = root
        self._idle = [first]
        self._lock = threading.Lock()
        self._ending: list[threading.Thread] = []

    @contextmanager
    def borrow_session(self) -> Iterator[FarSession]:
        """A session of one's own. One that was left in the middle of an operation is closed, not used again."""
        session = self.pop_session()
        try:
            yield session
        except OSError:
            self.return_session(session)  # the far end's answer to this operation; the session is whole
            raise
        except BaseException:
            session.close()
            raise
        else:
            self.return_session(session)

    def close(self) -> None:
        """Who gives one back later does so to a connection that is closed."""
        with self._lock:
            for session in self._idle:
                session.close()
            self._idle.clear()

    def start_return(self, giving_back: threading.Thread) -> None:
        """Starts the thread, which gives sessions back that are still at their last words."""
        with self._lock:  # nobody waits for one that has not begun
            giving_back.start()
            self._ending.append(giving_back)

    def await_returns(self) -> None:
        """All have been given back."""
        with self._lock:
            ending = list(self._ending)
        for giving_back in ending:
            giving_back.join()
        with self._lock:
            self._ending = [giving_back for giving_back in self._ending if giving_back not in ending]

    def pop_session(self) -> FarSession:
        """For one's own, until `return_session`."""
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
