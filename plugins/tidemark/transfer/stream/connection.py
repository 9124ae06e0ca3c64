"""One connection of a pull: requests ranges of a far end's files and passes on the frames that answer.

A separate thread sends requests, so that the coordinating thread never waits for the network. The thread that receives
frames may wait for the coordinator, and only its reading lets a request go on that fills the far end's window. With our
own packet layer (`stores.ssh.packets`) frames come from the connection's thread, else a thread reads them through
paramiko. Both put (connection, frame) into one queue; (connection, None) says that nothing more will come.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Union

from tidemark.errors import HostKeyError, TidemarkError, UnreachableError
from tidemark.stores.agent.frames import ALONE, ANY, DATA, RANGE
from tidemark.stores.python.session import FarSession, start_far_end
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.sink import BulkSink, Frame
from tidemark.transfer.stream.schedule import Kept, Span

RECORDS_ROOM = 1 << 16  # bytes of a frame that are records
MOVES = 4096  # bytes that show that data moves; keepalives of a server whose program hangs are fewer

Came = Union[tuple["Connection | None", Frame | None], "Opened"]  # no connection: another thread of ours has results


class Asking:
    """What a request says of a file: its path, the bytes wanted of it, and its mtime and inode when it was listed."""

    __slots__ = ("inode", "mtime", "path", "wanted")

    def __init__(self, path: str, wanted: int, mtime: int = ANY, inode: int = 0) -> None:
        self.path = path.encode()
        self.wanted = wanted
        self.mtime = mtime
        self.inode = inode


class Opened(NamedTuple):
    """A further connection with python3 at its end; no session if the server refused it. `error`: an error that must end the
    transfer (another host key, or a bug)."""

    connection: SshConnection
    session: FarSession | None
    error: Exception | None = None


class Connection:
    def __init__(
        self,
        number: int,
        connection: SshConnection,
        session: FarSession,
        own: bool,
        came: queue.SimpleQueue[Came],
    ) -> None:
        self.number = number
        self.connection = connection
        self.session = session
        self.own = own  # opened for this pull: closed with it
        self.bytes = 0  # that came
        self._came = came
        self._sink: BulkSink | None = None
        self._heard = self._moved_at = time.monotonic()
        self._seen = self._moved = 0
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        self.ended = False  # DONE was read, or it is lost

    def start_stream(self, frame: int, slabs: int, digest: bool) -> None:
        self._sink = self.session.pipe.divert_frames(frame + RECORDS_ROOM, slabs, self._deliver_frame)
        self.session.begin_operation("stream", frame, digest)
        if self._sink is None:
            threading.Thread(target=self._read_frames, name=f"tidemark-pull-{self.number}", daemon=True).start()
        threading.Thread(target=self._send_requests, name=f"tidemark-ask-{self.number}", daemon=True).start()

    def ask_spans(self, spans: Sequence[Span], files: dict[int, Asking]) -> None:
        words = []
        for span in spans:
            number, offset, length = span
            file = files[number]
            length += ALONE if isinstance(span, Kept) else 0
            words.append(RANGE.pack(number, offset, length, file.wanted, file.mtime, file.inode, len(file.path)))
            words.append(file.path)
        self.queue_ranges(b"".join(words))

    def queue_ranges(self, ranges: bytes) -> None:
        """Queue packed RANGE requests for the far end."""
        self._requests.put(ranges)

    def end_requests(self) -> None:
        """End the requests; the far end's last frame follows."""
        self._requests.put(None)

    @property
    def is_busy(self) -> bool:
        """Whether it has requests that the schedule does not count."""
        return False

    def is_excused(self) -> bool:
        """Whether it may be silent for longer than the stall limit: on a slow line one packet may take as long."""
        return time.monotonic() - self._moved_at <= self.connection.limits.stall

    @property
    def last_words(self) -> str:
        """The last error output of the far end's program."""
        return self.session.pipe.last_words()

    def give_back(self, frame: Frame) -> None:
        """Return the frame's buffer for reuse."""
        if self._sink is not None and frame.slab:
            self._sink.free.put(frame.slab)

    def silent_seconds(self, now: float, asked: bool) -> float:
        """Return the seconds without an answer to a request; 0 if received frames wait for us."""
        moved = self._sink.received if self._sink is not None else self.bytes
        if moved != self._seen or not asked or (self._sink is not None and self._sink.waiting):
            self._seen, self._heard = moved, now
        carried = self.connection.bytes_moved()
        if carried - self._moved >= MOVES:
            self._moved, self._moved_at = carried, now
        return now - self._heard

    def close(self) -> None:
        """End its session at once, and its connection if `own`."""
        self._closing = True
        self._requests.put(None)
        if self._sink is not None:
            self._sink.abandon()
        with contextlib.suppress(UnreachableError, OSError):
            self.session.close()
        if self.own:
            self.connection.drop()

    def _deliver_frame(self, frame: Frame | None) -> None:
        self._came.put((self, frame))

    def _send_requests(self) -> None:
        try:
            while (ranges := self._requests.get()) is not None:
                if self._closing:
                    return
                self.session.send_data(ranges)
            if not self._closing:
                self.session.end_data()
        except (UnreachableError, OSError):
            self._deliver_frame(None)

    def _read_frames(self) -> None:
        try:
            while True:
                kind, words, data = self.session.receive_frame()
                self._deliver_frame(Frame(kind, memoryview(words), memoryview(data), bytearray()))
                if kind != DATA:
                    return
        except (UnreachableError, OSError):
            self._deliver_frame(None)


def open_another(first: SshConnection, root: str) -> Opened:
    connection = first.make_another()
    session: FarSession | None = None
    error: Exception | None = None
    try:
        session, _ = start_far_end(connection, root)
    except HostKeyError as other:
        error = other
    except TidemarkError:
        error = None  # refused or unreachable: the open connections go on
    except Exception as bug:  # the coordinating thread waits for this connection, and raises it
        error = bug
    if session is None:
        connection.drop()
    return Opened(connection, session, error)
