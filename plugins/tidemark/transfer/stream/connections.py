"""Manage the connections of a transfer: how many to open, how much to ask of each, which one to give up.

Only the coordinating thread uses `Connections`; any thread may call `wake` and `stop_asking`. Connections report
through the queue `received`. Connections are opened while that pays. Each step measures the bytes of each connection,
and whether packets are lost (`LineSpeed`). Packet loss in three consecutive steps means a lossy line: then there may be
many connections, and all of them transfer. A silent connection is given up after the link's time limit, and its
requests wait again. At most a block is asked of a sending connection, since a cut loses it.

A server may admit fewer connections than the link's settings allow. sshd refuses too many (`MaxStartups`, limits of the
account), and its limit may change from moment to moment. `Allowance` is how many it admits: after a refusal as many as
there are, and one more after a pause.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.agent.frames import DATA, RANGE, RECORD
from tidemark.stores.python.session import FarSession
from tidemark.stores.python.store import PythonStore
from tidemark.stores.retrying import pause_after
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.items import SendOptions, Wire
from tidemark.transfer.stream.connection import Asking, Came, Connection, Opened, open_another
from tidemark.transfer.stream.schedule import READY, SHORT_ROUND_TRIP, Kept, Schedule, chunk_bytes, next_connections

FRAME, FRAMES = 1 << 20, 6  # bytes of a frame and buffers of a connection, if one connection fills the line
FAR_FRAME, FAR_FRAMES = 1 << 18, 3  # and if there may be many
AHEAD = 8 << 20  # bytes asked ahead of a single connection; less if many share the end of the work
FAR_AHEAD = 2 << 20  # on a long line: sshd copies all bytes that it cannot send yet for each 32 KB that are added
FEW = 4  # connections: up to so many share the bytes asked ahead evenly
FILES_AHEAD = 2000  # files asked ahead, however small
REQUESTS_AHEAD = 1 << 19  # bytes of requests ahead: a far end whose answers are not read soon stops reading
FIRST_CHUNK = 1 << 18  # on a long line, until its speed is known
JUDGE_SECONDS = 1.0  # between two checks of the time that files take
MANY = READY + 1  # so many are opened only if packets are lost: then all of them transfer
OPENING_AT_ONCE = 8  # sshd's MaxStartups refuses at random from ten on (its default)


class Connections:
    """The connections of one round. `make` makes a `Connection` from a connection with python3 at its end. `sends`:
    requested bytes are sent by this end, and a cut loses them; so at most a block is requested."""

    def __init__(
        self,
        store: PythonStore,
        schedule: Schedule,
        files: dict[int, Asking],
        wire: Wire,
        make: Callable[..., Connection] = Connection,
        sends: bool = False,
    ) -> None:
        self.received: queue.SimpleQueue[Came] = queue.SimpleQueue()
        self.active: list[Connection] = []
        self.round_trip = store.connection.measure_connection()[0]
        self._store = store
        self._schedule = schedule
        self._files = files
        self._bucket = wire.bucket
        self._make = make
        self.sends = sends
        self._door = threading.Lock()  # guards `_over` against threads that open connections
        self._over = False
        self._asking = True
        self._opening = 0
        self._waiting: list[tuple[SshConnection, FarSession]] = []  # opened in case that one stream is not enough
        self._many = False  # one stream is not enough
        self._allowance = Allowance(1)
        self._files_ahead = 1
        self._deadlines = wire.deadlines
        self._under_way: set[int] = set()  # files asked for
        self._judged = 0.0  # when their times were last checked
        self._count = 0
        self._speed = LineSpeed()
        self._last_words = ""  # of a far end that was lost
        self._slow: frozenset[int] = frozenset()

    def start_connections(self, options: SendOptions) -> None:
        """Start the open connections, and open one more on a long line. Raises UnreachableError."""
        self._block, self._digest = options.block_bytes, options.digest_at_source
        session = self._store.pool.pop_session()
        self._allowance = Allowance(max(1, options.connections) if self.is_long else 1)
        longest = max((len(file.path) for file in self._files.values()), default=0)
        self._files_ahead = max(1, min(FILES_AHEAD, REQUESTS_AHEAD // (RANGE.size + longest)))
        self._speed = LineSpeed()
        self._add_connection(self._store.connection, session, own=False)
        while self._store.further and self._connection_count < self._allowance.most:
            connection, other = self._store.further.pop()
            if other.is_open:
                self._waiting.append((connection, other))
            else:
                connection.drop()
        self._many = not self.is_long or self._connection_count >= MANY  # as the last time
        while self._many and self._waiting:
            self._add_connection(*self._waiting.pop(), own=True)
        if self.is_long:
            self._open_connections(min(self._allowance.most, READY) - self._connection_count)

    @property
    def name(self) -> str:
        return self._store.url

    @property
    def is_long(self) -> bool:
        return self.round_trip >= SHORT_ROUND_TRIP

    @property
    def frame_bytes(self) -> int:
        return FAR_FRAME if self.is_long else FRAME

    def wake(self) -> None:
        """Wake the coordinating thread: another thread of ours has results."""
        self.received.put((None, None))

    def stop_asking(self) -> None:
        """Ask no more of any connection."""
        self._asking = False

    def top_up_all(self) -> None:
        for connection in self.active:
            self.top_up(connection)

    def top_up(self, connection: Connection) -> None:
        """Ask more of `connection` until enough is in flight."""
        rate = self._speed.rate.get(connection.number, 0.0)
        alone, sharing = FAR_AHEAD if self.is_long else AHEAD, len(self.active)
        ahead = max(alone / sharing ** (1 if sharing <= FEW else 2), 2 * rate * self.round_trip)
        if self._bucket.rate:
            ahead = min(ahead, self._bucket.rate / 2)  # a request waits for the bucket, which must not take long
        if self.sends:
            ahead = min(ahead, self._block)
        while self._asking and not connection.ended:
            chunk = self._chunk_size(rate)
            if self._schedule.outstanding_bytes(connection.number) + chunk > max(ahead, 2 * chunk):
                return
            if self._schedule.outstanding_spans(connection.number) >= self._files_ahead:
                return
            spans = self._schedule.next_spans(connection.number, chunk, self._slow)
            if not spans:
                return
            self._under_way.update(span.number for span in spans if not isinstance(span, Kept))
            connection.ask_spans(spans, self._files)
            if self._bucket.rate:
                self._bucket.consume_tokens(sum(span.weight + self._overhead_bytes(span.number) for span in spans))

    def _overhead_bytes(self, number: int) -> int:
        """Return the bytes that cross with a span in the direction of its contents: records, paths and naming requests."""
        return RECORD.size + (2 * (RANGE.size + len(self._files[number].path)) + RECORD.size if self.sends else 0)

    def add_opened(self, opened: Opened) -> None:
        """Add an opened connection, or note its refusal. Raises HostKeyError, which must end the transfer."""
        self._opening -= 1
        if opened.error is not None:
            raise opened.error
        there, now = self._connection_count, time.monotonic()
        if opened.session is None:
            self._allowance.note_refusal(there, now + pause_after(self._allowance.failures + 1))
            return
        self._allowance.note_admission(there + 1, now + pause_after(1))
        self._waiting.append((opened.connection, opened.session))
        if self._many or not self.active:
            self._join_waiting()

    @property
    def _connection_count(self) -> int:
        """Connections that are open or opening."""
        return len(self.active) + len(self._waiting) + self._opening

    def _join_waiting(self) -> None:
        while self._waiting:
            self._add_connection(*self._waiting.pop(), own=True)
            self.top_up(self.active[-1])

    def drop_connection(self, connection: Connection) -> None:
        """Give a connection up. Its requests wait again."""
        connection.ended = True
        self._last_words = connection.last_words or self._last_words
        connection.close()
        if connection in self.active:
            self.active.remove(connection)
        self._schedule.drop_connection(connection.number)

    def check_connections(self) -> list[Connection]:
        """Give up silent connections and return them; measure the speed once a step. Raises UnreachableError when no
        connection is left."""
        given_up = []
        now = time.monotonic()
        silent = {c: c.silent_seconds(now, self._schedule.outstanding_bytes(c.number) > 0) for c in self.active}
        for connection, seconds in silent.items():
            if seconds > self._store.connection.limits.stall and not connection.is_excused():
                connection.connection.drop()  # the line is silent, not the session alone
                self.drop_connection(connection)
                given_up.append(connection)
        self._slow = frozenset(c.number for c, seconds in silent.items() if seconds > max(0.3, 4 * self.round_trip))
        if not self.active:
            self._join_waiting()
        if not self.active and not self._opening:
            name = self._store.connection.login.name
            raise UnreachableError(
                f"{name} closed the connection, or nothing came for too long"
                + (f"; its program said: {self._last_words}" if self._last_words else ""),
                hint="check the network and sshd there; the next try goes on from what is here",
                subject=self._store.connection.login.host,
            )
        if self.is_long and self._speed.is_due(now, self.round_trip):
            self._measure_and_open(now)
            if self._many:
                self._join_waiting()
            self.top_up_all()
        return given_up

    def overdue_files(self) -> list[tuple[int, TidemarkError]]:
        """Return (number, error) of files that are late."""
        now = time.monotonic()
        found: list[tuple[int, TidemarkError]] = []
        if now - self._judged < JUDGE_SECONDS:
            return found
        self._judged = now
        for number in list(self._under_way):
            path, size = self._files[number].path.decode(), self._files[number].wanted
            if not self._schedule.waits_for(number):
                self._under_way.discard(number)
                self._deadlines.end_file(path)
                continue
            self._deadlines.begin_file(path, now)
            error = self._deadlines.overdue_error(path, size, now, len(self.active))
            if error is not None:
                found.append((number, error))
        return found

    def check_idle(self, since: float) -> None:
        """Raise UnreachableError if nothing came since `since` for too long and no request is open."""
        asked = any(self._schedule.outstanding_bytes(connection.number) or connection.is_busy for connection in self.active)
        if not asked and time.monotonic() - since > self._store.connection.limits.stall:
            raise UnreachableError(
                f"{self.name}: nothing moves any more",
                hint="run again; it goes on from what is here",
                subject=self._store.connection.login.host,
            )

    def finish_sessions(self) -> None:
        """End idle sessions and return them to the store, on a thread of their own; close the others."""
        ending: list[Connection] = []
        for connection in list(self.active):
            if self._schedule.outstanding_bytes(connection.number):
                connection.close()
                continue
            with contextlib.suppress(TidemarkError):
                connection.end_requests()
                ending.append(connection)
        self.active.clear()
        with self._door:
            self._over = True  # a thread that is still opening a connection closes it
        self._store.pool.start_return(
            threading.Thread(target=self._give_back, args=(ending,), name="tidemark-end", daemon=True)
        )

    def _give_back(self, ending: list[Connection]) -> None:
        deadline = time.monotonic() + 1.0 + 4 * self.round_trip
        while ending and time.monotonic() < deadline:
            try:
                came = self.received.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(came, Opened):
                self._keep_opened(came)
            elif (answering := came[0]) is not None and answering in ending:
                frame = came[1]
                if frame is not None and frame.kind == DATA:  # of a file that was given up
                    answering.give_back(frame)
                else:
                    self._end_session(answering, frame)
                    ending.remove(answering)
        for connection in ending:
            connection.close()
        self._keep_unused()

    def abandon_connections(self) -> None:
        with self._door:
            self._over = True
        for connection in self.active:
            connection.close()
        self.active.clear()
        self._keep_unused()

    def _keep_unused(self) -> None:
        """Return opened connections that were not used to the store."""
        self._store.further += self._waiting
        self._waiting.clear()
        while not self.received.empty():
            if isinstance(came := self.received.get(), Opened):
                self._keep_opened(came)

    def _keep_opened(self, opened: Opened) -> None:
        if opened.session is not None:
            self._store.further.append((opened.connection, opened.session))

    def _end_session(self, connection: Connection, frame: Frame | None) -> None:
        if frame is None:
            connection.close()
        elif connection.own:
            self._store.further.append((connection.connection, connection.session))
        else:
            self._store.pool.return_session(connection.session)

    def _chunk_size(self, rate: float) -> int:
        block = self._block // 4 if self.sends else self._block
        most = min(block, int(self._bucket.rate / 8) or block)
        if not self.is_long:
            return most
        if not rate:
            return min(FIRST_CHUNK, most)
        return min(most, chunk_bytes(rate, len(self.active), self._schedule.waiting_bytes, self._block))

    def _add_connection(self, connection: SshConnection, session: FarSession, own: bool) -> None:
        self._count += 1
        carrier = self._make(self._count, connection, session, own, self.received)
        carrier.start_stream(self.frame_bytes, FAR_FRAMES if self.is_long else FRAMES, self._digest)
        self.active.append(carrier)

    def _open_connections(self, count: int) -> None:
        for _ in range(min(count, OPENING_AT_ONCE - self._opening)):
            self._opening += 1
            threading.Thread(target=self._open_one, name="tidemark-open", daemon=True).start()

    def _open_one(self) -> None:
        opened = open_another(self._store.connection, self._store.root)
        with self._door:
            if not self._over:
                self.received.put(opened)
                return
        opened.connection.drop()

    def _measure_and_open(self, now: float) -> None:
        speed = self._speed
        speed.measure_step(now, self.active)
        self._many = self._many or speed.loses_packets  # waiting connections then transfer, too
        left = self._schedule.waiting_bytes / max(1.0, speed.total)
        now_open = self._connection_count  # with those that are opening, which takes long with packet loss
        window = speed.total * self.round_trip / max(1, len(self.active))
        wanted = next_connections(now_open, self._allowance.allowed_at(now), self.round_trip, speed.lossy, window, left)
        if wanted > now_open:
            self._many = self._many or wanted >= MANY
            self._open_connections(wanted - now_open)


@dataclass
class Allowance:
    """How many connections a server admits. `most`: the link's setting. Times are seconds of a monotonic clock."""

    most: int
    failures: int = 0  # refusals in a row
    _now: int = field(init=False)
    _again: float = 0.0  # when one more may be tried

    def __post_init__(self) -> None:
        self._now = self.most

    def allowed_at(self, now: float) -> int:
        """Return how many may be open or opening."""
        return self._now if self._now == self.most or now < self._again else self._now + 1

    def note_refusal(self, there: int, again: float) -> None:
        """Record a refusal while `there` were open or opening. No more are opened before `again`."""
        self.failures += 1
        self._now = max(1, min(self._now, there))
        self._again = again

    def note_admission(self, there: int, again: float) -> None:
        """Record that one more was opened. The next may be tried at `again`."""
        self.failures = 0
        if there > self._now:
            self._now, self._again = min(there, self.most), again


STEP_SECONDS = 0.25  # between two decisions about the number of connections
LOSSY_STEPS = 3  # consecutive steps with loss mean a lossy line; a full queue loses packets once in a while


class LineSpeed:
    """The measured speed. `rate`: {connection number: bytes a second}. `total`: of all in the last step."""

    def __init__(self) -> None:
        self.rate: dict[int, float] = {}
        self.total = 0.0
        self.lossy = False  # packets were lost in the last step
        self._lossy_steps = 0  # one after another
        self._marks: dict[int, int] = {}  # a connection's bytes at the last step
        self._losses: dict[int, int] = {}  # and its lost packets
        self._stepped = time.monotonic()

    @property
    def loses_packets(self) -> bool:
        """Whether packets were lost in `LOSSY_STEPS` consecutive steps."""
        return self._lossy_steps >= LOSSY_STEPS

    def is_due(self, now: float, round_trip: float) -> bool:
        return now - self._stepped >= max(STEP_SECONDS, 2 * round_trip)

    def measure_step(self, now: float, connections: Sequence[Connection]) -> None:
        seconds, self._stepped = now - self._stepped, now
        self.total = 0.0
        for connection in connections:
            came = (connection.bytes - self._marks.get(connection.number, 0)) / seconds
            self._marks[connection.number] = connection.bytes
            self.total += came
            self.rate[connection.number] = (self.rate.get(connection.number, came) + came) / 2
        before, self._losses = (
            self._losses,
            {connection.number: connection.connection.measure_connection()[1] for connection in connections},
        )
        self.lossy = any(lost > before.get(number, 0) for number, lost in self._losses.items())
        self._lossy_steps = self._lossy_steps + 1 if self.lossy else 0
