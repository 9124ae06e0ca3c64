"""One round of a streaming transfer: its loop, its outcomes and its ending. A pull and a push are its two directions.

The coordinating thread owns all state. It receives what the connections bring, asks for more (`schedule`), and opens
connections while that pays (`connections`). A `Direction` (`pull`, `push`) reads the frames and gives the names; only this
thread calls it. The caller's thread yields the outcomes. No thread waits for a round trip: more is in flight than the line
holds. Source: research/transfer-pull.md; research/transfer.md §5 "Connections by measurement",
"Dynamic chunks".
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from tidemark.errors import DiskFullError, PermanentError, TidemarkError
from tidemark.stores.agent.block_journal import Identity
from tidemark.stores.agent.frames import CHANGED, DATA, RECORD, SHORT
from tidemark.stores.agent.part_file import HeadRoom, NoRoom
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error
from tidemark.stores.protocol import Entry
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.existing import ask_by_halves, by_weight, digest_differs_error, find_already_there
from tidemark.transfer.items import (
    SendItem,
    TryAgain,
    Wire,
    no_room_for,
    no_room_left,
    require_source,
    source_changed_error,
    source_shorter_error,
)
from tidemark.transfer.limits import WindowEdge
from tidemark.transfer.stream.connection import Asking, Connection, Opened
from tidemark.transfer.stream.connections import Connections
from tidemark.transfer.stream.publish import NamesInOrder, Outcome, Whole
from tidemark.transfer.stream.schedule import Schedule

PAUSE = 0.1  # seconds between two checks of stalls, speed and the wish to stop
GRACE = 5.0  # seconds for an abandoned coordinating thread to end by itself
LOOKING = 1.0  # seconds for it to stop while it only checks what exists


class Ending(enum.IntEnum):
    """Why a round ends before its files do. A later one replaces an earlier one."""

    NONE = 0
    ASKED = 1  # the caller asked to stop: a block more is accepted at most
    OUT_OF_ROOM = 2  # a file met a full disk: no more is asked, all that was asked still comes
    GIVEN_UP = 3  # the caller takes no more outcomes
    FAILED = 4  # an error that is not of one file
    BUG = 5  # an unexpected error; raised to the caller

    @property
    def ends_at_once(self) -> bool:
        """Whether bytes in flight are not waited for."""
        return self > Ending.OUT_OF_ROOM


class Existing(NamedTuple):
    """What an earlier try left of a large file. Spans are (offset, end)."""

    identity: Identity
    gaps: Sequence[tuple[int, int]]  # that are missing
    compared: Sequence[tuple[int, int]] = ()  # that are here: their digests are asked
    made: Sequence[str] = ()  # files made at the target just now, removed again if the file has no room


class Direction(Protocol):
    """What a pull and a push do each in its own way. `line`: the connections to the far end."""

    line: Connections

    def plan_existing(self, large: dict[int, SendItem]) -> dict[int, Existing]:
        """Return what earlier tries left of these files, by number. Those that are missing in it have failed."""
        ...

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        """Process a DATA frame of a connection."""
        ...

    def advance(self) -> bool:
        """Process what other threads did, and have complete files named. Returns whether none waits for its name. May ask
        for more."""
        ...

    def on_dropped(self, number: int, again: bool) -> None:
        """Let go of a file whose try ended. `again`: what is here of it is bad."""
        ...

    def finish(self) -> None:
        """Close all that is open, and name complete files. The last call."""
        ...


class Session:
    """One round between two stores, at least one of them a far end. Yields Sent, Failed or (item, TryAgain) for each item,
    unless the round ends before. `make` makes its direction, which may use all public names of the session."""

    halves = False

    def __init__(self, wire: Wire, items: Sequence[SendItem], make: Callable[[Session], Direction]) -> None:
        source, target = wire.source, wire.target
        assert isinstance(source, LocalStore | PythonStore) and isinstance(target, LocalStore | PythonStore)
        self.wire = wire
        self.source = source
        self.target = target
        self.files = items  # by number; without those that were there already
        self.ending = Ending.NONE
        self.kept_bytes = 0  # see `transfer.attempts`
        self.schedule = Schedule()
        self.asking: dict[int, Asking] = {}
        self.order = NamesInOrder()
        self.edge = WindowEdge(wire.options.block_bytes)  # reached when the caller asks to stop
        self._outcomes: queue.SimpleQueue[list[Outcome] | int | None] = queue.SimpleQueue()
        self.report: Callable[[list[Outcome] | int], None] = self._outcomes.put  # outcomes, or a count of bytes that crossed
        self._far_ends = [store for store in (source, target) if isinstance(store, PythonStore)]
        self._cause: BaseException | None = None  # of the ending
        self._door = threading.Lock()  # guards `ending` and `_cause`
        self._stopped_at = math.inf  # when no more was to be asked, while bytes in flight may come
        self._patience = LOOKING  # seconds for what was asked to come after that
        self._head_room: HeadRoom | None = None  # of a target that is a disk of this machine
        self._direction = make(self)
        self.line = self._direction.line

    @property
    def is_stopping(self) -> bool:
        return self.ending != Ending.NONE

    @property
    def error(self) -> TidemarkError | None:
        """The error that ended the round."""
        return self._cause if isinstance(self._cause, TidemarkError) else None

    def end_round(self, ending: Ending, cause: BaseException | None = None) -> None:
        """End the round before its files do, unless it ends for a later reason already. Any thread may call it."""
        with self._door:
            if ending <= self.ending:
                return
            if ending is Ending.ASKED:
                self.edge.mark_reached()
            if not ending.ends_at_once:
                self._stopped_at = min(self._stopped_at, time.monotonic())
            self.ending, self._cause = ending, cause or self._cause
            self.line.stop_asking()

    def iter_outcomes(self) -> Iterator[Outcome]:
        """Run the round and yield its outcomes. Calls the wire's `on_bytes` in the caller's thread."""
        hand = threading.Thread(target=self._coordinate, name="tidemark-hand", daemon=True)
        hand.start()
        try:
            while (told := self._next_outcomes()) is not None:
                if isinstance(told, int):
                    self.wire.on_bytes(told)
                else:
                    yield from told
        finally:
            self.end_round(Ending.GIVEN_UP)
            hand.join(GRACE)
            if hand.is_alive():
                self._cut_connections()
                hand.join(GRACE)  # only a disk of this machine can delay it now
        if self._cause is not None and self.ending is Ending.BUG:
            raise self._cause

    def _next_outcomes(self) -> list[Outcome] | int | None:
        """Wait for outcomes or a byte count; None: the round is over. Cuts the connections if a stop takes too long."""
        since = time.monotonic()
        while True:
            if not self.is_stopping and self.wire.is_stopped():
                self.end_round(Ending.ASKED)
            with contextlib.suppress(queue.Empty):
                return self._outcomes.get(timeout=PAUSE)
            if time.monotonic() - max(since, self._stopped_at) > self._patience:
                self._cut_connections()
                since = time.monotonic()

    def _cut_connections(self) -> None:
        """Drop all connections, so that threads that wait for the far end go on. The next try resumes from what arrived."""
        connections = {one.connection for one in list(self.line.active)}
        for connection in connections | {store.connection for store in self._far_ends}:
            connection.drop()

    # the coordinating thread

    def _coordinate(self) -> None:
        line = self.line
        try:
            self._prepare_files()  # uses the session that `line` takes afterwards
            self._patience = self._far_ends[0].connection.limits.stall
            if self.is_stopping:
                return
            line.start_connections(self.wire.options)
            self._run_loop()
            line.finish_sessions()
        except (TidemarkError, OSError) as error:
            told = error if isinstance(error, TidemarkError) else os_error(error, self.target.where, "")
            self.end_round(Ending.FAILED, told)
            line.abandon_connections()
        except BaseException as bug:
            self.end_round(Ending.BUG, bug)
            line.abandon_connections()
        finally:
            try:
                self._direction.finish()
            except TidemarkError as error:
                self.end_round(Ending.FAILED, self.error or error)
            finally:
                self._outcomes.put(None)

    def _run_loop(self) -> None:
        line, direction = self.line, self._direction
        direction.advance()
        line.top_up_all()
        looked = moved = time.monotonic()
        while not self.ending.ends_at_once:
            published = direction.advance()  # which may ask for more
            if published and (self.schedule.is_finished or (self.is_stopping and not self._is_asked())):
                return
            if not line.sends and not self.edge.may_admit(line.frame_bytes):  # the last block after the wish to stop came
                self._cut_connections()  # else bytes in the buffers on the way would still come
                return
            with contextlib.suppress(queue.Empty):
                came = line.received.get(timeout=PAUSE)
                moved = time.monotonic()
                if isinstance(came, Opened):
                    line.add_opened(came)
                else:
                    self._on_frame(*came)
            if time.monotonic() - looked >= PAUSE:
                line.check_connections()
                for number, error in line.overdue_files():
                    self.fail_file(number, error)
                direction.advance()  # asks another connection for the names that a lost one was to give
                line.check_idle(moved)
                looked = time.monotonic()

    def _is_asked(self) -> bool:
        """Whether bytes are in flight."""
        return any(self.schedule.outstanding_bytes(connection.number) for connection in self.line.active)

    def _on_frame(self, connection: Connection | None, frame: Frame | None) -> None:
        if connection is None or connection.ended:  # results of another thread: `Direction.advance` collects them
            return
        if frame is None:
            self.line.drop_connection(connection)
            self.line.check_connections()
            return
        if frame.kind != DATA:
            raise PermanentError(f"{self.line.name}: the far end broke off: {bytes(frame.words)!r}", hint="run again")
        if self._head_room is not None:
            self._still_room(self._head_room, len(frame.data))
        self.edge.admit_bytes(len(frame.data))
        self._direction.on_frame(connection, frame)
        connection.give_back(frame)
        self.line.top_up(connection)

    def _still_room(self, room: HeadRoom, size: int) -> None:
        """Raise DiskFullError before the disk is full. It ends the round with what it has."""
        try:
            room.claim_room(size)
        except NoRoom as none:
            raise self.no_room(none.free) from none

    # for the direction

    def parse_records(self, frame: Frame) -> Iterator[tuple[int, int, int, int, int, int, bytes]]:
        """Return (number, offset, length, error code, kind, note, digest) of a frame's pieces. Raises `not_asked`."""
        if len(frame.words) % RECORD.size:
            raise self.not_asked()
        return RECORD.iter_unpack(frame.words)

    def not_asked(self) -> PermanentError:
        """Make the error of an answer that fits no request."""
        return PermanentError(
            f"{self.line.name}: the far end answers what it was not asked",
            hint="is its python3 the one of its operating system? ./tidemark doctor looks; then run again",
            subject=self._far_ends[0].url,
        )

    def no_room(self, free: int) -> DiskFullError:
        """Make the error of a target's disk that has `free` bytes left."""
        return no_room_left(self.wire, free, self.schedule.missing_bytes)

    def require_entries(self, large: dict[int, SendItem], known: Sequence[Entry | None] = ()) -> dict[int, Entry]:
        """Return the source's entries of these files, by number: `known`, or asked for. Files without a good one fail."""
        entries = known or ask_by_halves(self.source.stat_many, [item.source_path for item in large.values()])
        found: dict[int, Entry] = {}
        for (number, item), entry in zip(large.items(), entries, strict=True):
            try:
                found[number] = require_source(item, entry)
            except TidemarkError as error:
                self.fail_file(number, error)
        return found

    def complete_file(self, number: int, whole: Whole) -> None:
        """Queue a file whose bytes are all written and checked for naming, behind its companions."""
        if whole.item.sha256 not in ("", whole.sha256):
            self.retry_file(number, TryAgain(digest_differs_error(whole.item, whole.sha256, whole.item.sha256)))
        else:
            self.order.add_complete(number, whole)

    def on_source_error(self, number: int, trouble: int, size: int) -> None:
        """End a file's try: its source has only `size` bytes, changed or cannot be read."""
        item = self.files[number]
        if trouble == CHANGED:
            self.retry_file(number, source_changed_error(item))
        elif trouble == SHORT:
            self.fail_file(number, source_shorter_error(item, size))
        else:
            error = OSError(trouble, os.strerror(trouble))
            self.fail_file(number, os_error(error, self.source.where, item.source_path))

    def retry_file(self, number: int, again: TryAgain) -> None:
        """End this try of the file; another may succeed."""
        self._end_file(number, (self.files[number], again))

    def fail_file(self, number: int, error: TidemarkError) -> None:
        self._end_file(number, self.wire.make_failed(self.files[number], error))
        if isinstance(error, DiskFullError):
            self.end_round(Ending.OUT_OF_ROOM, error)

    def _end_file(self, number: int, outcome: Outcome) -> None:
        self._direction.on_dropped(number, again=isinstance(outcome, tuple))
        self.schedule.drop_file(number)
        self.report([outcome])
        self.order.release_next(number)

    # before the first byte

    def _prepare_files(self) -> None:
        """Report files that exist already or do not fit, and schedule the rest."""
        there: dict[SendItem, str] = {}
        for items in by_weight(self.files):
            if self.is_stopping:
                return
            found = find_already_there(self.wire, items)
            self.report([self.wire.make_sent(item, digest) for item, digest in found.items()])
            there.update(found)
        if there:
            self.files = [item for item in self.files if item not in there]
        self.order = NamesInOrder.order_files(self.files)
        if self.files:
            self._plan_files()

    def _plan_files(self) -> None:
        limit = min(self.line.frame_bytes, self.wire.small_limit)
        large = {number: item for number, item in enumerate(self.files) if item.size > limit}
        free = self._measure_room(self.files[0].target_path.rpartition("/")[0])
        existing = self._direction.plan_existing(large) if large else {}
        for number, item in enumerate(self.files):
            left = existing.get(number)
            if left is None and number in large:
                continue
            missing = item.size if left is None else sum(end - offset for offset, end in left.gaps)
            if missing > free:
                self.report([self.wire.make_failed(item, no_room_for(self.wire, item, missing, free))])
                self.order.release_next(number)
                self.wire.litter += left.made if left else ()
                continue
            free -= missing
            self.kept_bytes += item.size - missing
            if left is None:
                self.asking[number] = Asking(item.source_path, item.size)
                self.schedule.add_small(number, item.size)
                continue
            self.asking[number] = Asking(item.source_path, item.size, left.identity.mtime, left.identity.inode)
            if left.gaps:
                self.schedule.add_large(number, left.gaps)
            if left.compared:
                self.schedule.add_comparison(number, left.compared)
            elif not left.gaps:  # it lacks its name alone
                self.order.add_complete(number, Whole(item, b"", "", True, number=number))

    def _measure_room(self, folder: str) -> int:
        """Return how many bytes may be written to the target's disk."""
        target, reserve = self.target, self.wire.options.reserve
        if isinstance(target, LocalStore):
            self._head_room = HeadRoom(target.disk, folder, reserve)
        free = target.free_bytes(folder)
        return 1 << 62 if free is None else max(0, free - reserve)
