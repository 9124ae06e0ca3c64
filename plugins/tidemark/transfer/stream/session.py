"""One round of a streaming transfer: the base of a pull and a push.

The coordinating thread owns all state. It receives what the connections bring, asks for more (`schedule`), and opens
connections while that pays (`connections`). The caller's thread yields the outcomes. No thread waits for a round trip: more
is in flight than the line holds. Source: research/transfer-pull.md; research/transfer.md §5 "Connections by measurement",
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
from collections.abc import Iterator, Sequence

from tidemark.errors import DiskFullError, PermanentError, TidemarkError
from tidemark.stores.agent.frames import CHANGED, DATA, RECORD, SHORT
from tidemark.stores.agent.part_file import HeadRoom, NoRoom
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import Where, os_error
from tidemark.stores.protocol import Entry
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.existing import ask_by_halves, by_weight, digest_differs_error, find_already_there, identity_of
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


class Session:
    """One round between two stores, one of them at the far end of `line`. Yields Sent, Failed or (item, TryAgain) for each
    item, unless the round ends before. Subclasses define what a frame means and how parts get their names."""

    halves = False

    def __init__(self, wire: Wire, items: Sequence[SendItem], source: Where, target: Where) -> None:
        self.wire = wire
        self.items = items
        self.ending = Ending.NONE
        self.kept_bytes = 0  # see `transfer.attempts`
        self.schedule = Schedule()
        self.asking: dict[int, Asking] = {}
        self.line: Connections
        self._ends = (source, target)
        self._far = next(store for store in (wire.source, wire.target) if isinstance(store, PythonStore))
        self._files: Sequence[SendItem] = ()  # by number
        self._order = NamesInOrder()
        self._outcomes: queue.SimpleQueue[list[Outcome] | int | None] = queue.SimpleQueue()
        self._cause: BaseException | None = None  # of the ending
        self._door = threading.Lock()  # guards `ending` and `_cause`
        self._edge = WindowEdge(wire.options.block_bytes)  # reached when the caller asks to stop
        self._stopped_at = math.inf  # when no more was to be asked, while bytes in flight may come
        self._patience = LOOKING  # seconds for what was asked to come after that
        self._head_room: HeadRoom | None = None  # of a target that is a disk of this machine

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
                self._edge.mark_reached()
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
        for connection in {self._far.connection, *(carrier.connection for carrier in list(self.line.active))}:
            connection.drop()

    # for subclasses

    def source_entries(self, items: Sequence[SendItem]) -> Sequence[Entry | TidemarkError | None]:
        """Return the source's entries of these large files, or their errors."""
        return ask_by_halves(self.wire.source.stat_many, [item.source_path for item in items])

    def find_kept(self, files: dict[int, Entry]) -> dict[int, list[tuple[int, int]]]:
        """Return {number: gaps (offset, end) in the part} for large files. Files that are missing in it have failed."""
        raise NotImplementedError

    def begin_large_file(self, number: int) -> None:
        """Begin a large file that has room, after its gaps, if any, are scheduled."""
        raise NotImplementedError

    def on_no_room(self, number: int) -> None:
        """React to a file that has no room."""

    def receive_frame(self, carrier: Connection, frame: Frame) -> None:
        """Process a frame of a connection."""
        raise NotImplementedError

    def on_connected(self) -> None:
        """React to new connections. It is also called when none was added."""

    def on_connection_lost(self, carrier: Connection) -> None:
        """React to a lost connection, after the schedule dropped it."""

    def may_stop_now(self) -> bool:
        """Whether a round that is to stop need not wait for bytes in flight."""
        return False

    def has_published_all(self) -> bool:
        """Whether no complete file waits for its name."""
        return True

    def close(self) -> None:
        """Close all that is open and name complete files. The coordinating thread calls it last."""

    # the coordinating thread

    def _coordinate(self) -> None:
        line = self.line
        try:
            self._prepare_files()  # uses the session that `line` takes afterwards
            self._patience = self._far.connection.limits.stall
            if self.is_stopping:
                return
            line.start_connections(self.wire.options)
            self._run_loop()
            line.finish_sessions()
        except (TidemarkError, OSError) as error:
            told = error if isinstance(error, TidemarkError) else os_error(error, self._ends[1], "")
            self.end_round(Ending.FAILED, told)
            line.abandon_connections()
        except BaseException as bug:
            self.end_round(Ending.BUG, bug)
            line.abandon_connections()
        finally:
            try:
                self.close()
            except TidemarkError as error:
                self.end_round(Ending.FAILED, self.error or error)
            finally:
                self._outcomes.put(None)

    def _run_loop(self) -> None:
        line, schedule = self.line, self.schedule
        self.on_connected()
        line.top_up_all()
        looked = moved = time.monotonic()
        while not self.ending.ends_at_once:
            published = self.has_published_all()  # which may ask for more
            if published and (schedule.is_finished or (self.is_stopping and not self._is_asked())):
                return
            if self.may_stop_now():
                self._cut_connections()  # else bytes in the buffers on the way would still come
                return
            with contextlib.suppress(queue.Empty):
                came = line.received.get(timeout=PAUSE)
                moved = time.monotonic()
                if isinstance(came, Opened):
                    line.add_opened(came)
                    self.on_connected()
                else:
                    self._on_frame(*came)
            if time.monotonic() - looked >= PAUSE:
                for lost in line.check_connections():
                    self.on_connection_lost(lost)
                self.on_connected()
                for number, error in line.overdue_files():
                    self._fail_file(number, error)
                line.check_idle(moved)
                looked = time.monotonic()

    def _is_asked(self) -> bool:
        """Whether bytes are in flight."""
        return any(self.schedule.outstanding_bytes(carrier.number) for carrier in self.line.active)

    def _on_frame(self, carrier: Connection | None, frame: Frame | None) -> None:
        if carrier is None or carrier.ended:  # results of another thread: `has_published_all` collects them
            return
        if frame is None:
            self.line.drop_connection(carrier)
            self.on_connection_lost(carrier)
            for lost in self.line.check_connections():
                self.on_connection_lost(lost)
            self.on_connected()
            return
        if frame.kind != DATA:
            raise PermanentError(f"{self.line.name}: the far end broke off: {bytes(frame.words)!r}", hint="run again")
        if self._head_room is not None:
            self._still_room(self._head_room, len(frame.data))
        self._edge.admit_bytes(len(frame.data))
        self.receive_frame(carrier, frame)
        carrier.give_back(frame)
        self.line.top_up(carrier)

    def _parse_records(self, frame: Frame) -> Iterator[tuple[int, int, int, int, int, int, bytes]]:
        if len(frame.words) % RECORD.size:
            raise self._not_asked()
        return RECORD.iter_unpack(frame.words)

    def _not_asked(self) -> PermanentError:
        return PermanentError(
            f"{self.line.name}: the far end answers what it was not asked",
            hint="is its python3 the one of its operating system? ./tidemark doctor looks; then run again",
            subject=self._far.url,
        )

    def _still_room(self, room: HeadRoom, size: int) -> None:
        """Raise DiskFullError before the disk is full. It ends the round with what it has."""
        try:
            room.claim_room(size)
        except NoRoom as none:
            raise self._no_room(none.free) from none

    def _no_room(self, free: int) -> DiskFullError:
        return no_room_left(self.wire, free, self.schedule.missing_bytes)

    def _file_complete(self, number: int, whole: Whole) -> None:
        """Queue a file whose bytes are all written and checked for naming, behind its companions."""
        if whole.item.sha256 not in ("", whole.sha256):
            self._retry_file(number, TryAgain(digest_differs_error(whole.item, whole.sha256, whole.item.sha256)))
        else:
            self._order.add_complete(number, whole)

    def _source_trouble(self, number: int, trouble: int, size: int) -> None:
        item = self._files[number]
        if trouble == CHANGED:
            self._retry_file(number, source_changed_error(item))
        elif trouble == SHORT:
            self._fail_file(number, source_shorter_error(item, size))
        else:
            self._fail_file(number, os_error(OSError(trouble, os.strerror(trouble)), self._ends[0], item.source_path))

    def _retry_file(self, number: int, again: TryAgain) -> None:
        """End this try of the file; another may succeed."""
        self._unschedule(number)
        self._outcomes.put([(self._files[number], again)])
        self._order.release_next(number)

    def _fail_file(self, number: int, error: TidemarkError) -> None:
        self._unschedule(number)
        self._outcomes.put([self.wire.make_failed(self._files[number], error)])
        self._order.release_next(number)
        if isinstance(error, DiskFullError):  # it ends the round, once all bytes in flight have come
            self.end_round(Ending.OUT_OF_ROOM, error)

    def _unschedule(self, number: int) -> None:
        self.schedule.drop_file(number)

    # before the first byte

    def _prepare_files(self) -> None:
        """Report files that exist already or do not fit, and schedule the rest."""
        there: dict[SendItem, str] = {}
        for items in by_weight(self.items):
            if self.is_stopping:
                return
            found = find_already_there(self.wire, items)
            self._outcomes.put([self.wire.make_sent(item, digest) for item, digest in found.items()])
            there.update(found)
        self._files = left = [item for item in self.items if item not in there] if there else self.items
        self._order = NamesInOrder.order_files(left)
        if left:
            self._plan_files(left)

    def _plan_files(self, left: Sequence[SendItem]) -> None:
        limit = min(self.line.frame_bytes, self.wire.small_limit)
        large = {number: item for number, item in enumerate(left) if item.size > limit}
        free = self._measure_room(left[0].target_path.rpartition("/")[0])
        known: dict[int, Entry] = {}
        for (number, item), entry in zip(large.items(), self.source_entries(list(large.values())), strict=True):
            try:
                known[number] = require_source(item, entry)
            except TidemarkError as error:
                self._fail_file(number, error)
        gaps = self.find_kept(known) if known else {}
        for number, item in enumerate(left):
            missing = sum(end - offset for offset, end in gaps[number]) if number in gaps else item.size
            if number in large and number not in gaps:
                continue
            if not self._has_room(number, missing, free):
                self.on_no_room(number)
                continue
            free -= missing
            self.kept_bytes += item.size - missing
            if number not in gaps:
                self.asking[number] = Asking(item.source_path, item.size)
                self.schedule.add_small(number, item.size)
                continue
            of = identity_of(item, known[number])
            self.asking[number] = Asking(item.source_path, item.size, of.mtime, of.inode)
            if gaps[number]:
                self.schedule.add_large(number, gaps[number])
            self.begin_large_file(number)

    def _measure_room(self, folder: str) -> int:
        """Return how many bytes may be written to the target's disk."""
        target, reserve = self.wire.target, self.wire.options.reserve
        if isinstance(target, LocalStore):
            self._head_room = HeadRoom(target.disk, folder, reserve)
        free = target.free_bytes(folder)
        return 1 << 62 if free is None else max(0, free - reserve)

    def _has_room(self, number: int, missing: int, free: int) -> bool:
        """Whether the file's missing bytes fit. If not, reports it as failed before its first byte."""
        if missing > free:
            self._outcomes.put(
                [self.wire.make_failed(item := self._files[number], no_room_for(self.wire, item, missing, free))]
            )
            self._order.release_next(number)
        return missing <= free
