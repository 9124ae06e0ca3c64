"""A member of a task: holds shards by leases, gives their batches, and moves their points behind what is done.

One thread beats: it looks at the leases of the task, takes and gives shards, renews, and writes points. Consumers ask for
batches in their own threads; nothing is read ahead of them but one block, so a slow one is not overtaken by memory.

A shard is given away between two batches. A member whose leases may have expired hands nothing out until the beat has found
them again. What it said `done` meanwhile moves no point of a shard that another has: the lease's fence and the point's
version are compared in the transaction that writes it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from sqlalchemy.engine import Connection

from tidemark.changes.delivery.batches import Batch, Cursor
from tidemark.changes.delivery.blocks import Blocks, DiskStretches, Stretches
from tidemark.changes.delivery.lines import DeadLetters, NoteLetters
from tidemark.changes.delivery.members import (
    Seen,
    choose_shards,
    lease_prefix,
    member_lease,
    name_holder,
    read_seen,
    shard_lease,
)
from tidemark.changes.delivery.shards import Sharding, Wants
from tidemark.changes.delivery.storage_points import Place, Start, locate, parse_point_text, point_text
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader, open_whole
from tidemark.errors import LeaseHeldError, LeaseLostError, NotFoundError, RetryableError, TidemarkError, UsageError
from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import StoragePoint, TaskRow, move_point, read_points, read_task, read_task_points
from tidemark.ledger.leases import Lease, Leases, assert_held, boot_clock

LEASE_SECONDS = 45.0
"""A shard of a member on another host that died is free after this."""
RENEWED = 2 / 3
"""A reader renews a lease of which less than this part is left: a member may count on so much, and no more."""
LONGEST_WAIT = 0.2
STOP, RETRY, DEAD_LETTER = "stop", "retry", "dead_letter"
GivenPoints = Callable[[int], str | None]


@dataclass(frozen=True)
class Options:
    """How a member reads. `rows`: of a batch, at most. `undone`: batches of a shard that may wait for `done()`.

    `given`: asked for the point of a shard that the consumer kept itself, whenever the shard is begun. `follow`: go on at
    the store's end.
    """

    rows: int = 8192
    controls: bool = False
    follow: bool = True
    checkpoint_seconds: float = 5.0
    beat_seconds: float = 1.0
    undone: int = 64
    given: GivenPoints | None = None


@dataclass
class Held:
    """A shard that this member holds. `saved`: its point in the ledger. `undone`: batches that are given out."""

    shard: int
    lease: Lease
    saved: StoragePoint
    cursor: Cursor
    undone: deque[Batch] = field(default_factory=deque)
    is_leaving: bool = False

    def find_place(self) -> Place | None:
        """Behind the unbroken run of batches that are done; None: where it began."""
        return self.undone[0].start if self.undone else self.cursor.next_place


class BatchStream(ABC):
    """Batches of the shards that this process holds. A context manager; iterate over it for batches, or `run` a callback.

    Who holds which shard, and where points are kept, is of those that inherit: `join`, `beat`, `_leave`.
    """

    def __init__(self, name: str, task: TaskRow, wants: Wants, options: Options | None = None) -> None:
        self.name = name
        self.task = task
        self.options = options or Options()
        self.wants = wants
        self.clock: Callable[[], float] = boot_clock
        self._state = threading.Condition()
        self._beating = threading.Lock()
        self._held: dict[int, Held] = {}
        self._working: dict[int, Batch] = {}  # by shard, what was given out `one_a_shard` and is not done
        self._valid_until = 0.0
        self._end = 0
        self._until = 0
        self._trouble: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._blocks = self._make_blocks()
        self.dead = 0
        """Batches that went to the dead letters."""
        self.note_letters: NoteLetters = lambda *_: None
        """Is told of dead letters. Who has no ledger tells of none."""

    @abstractmethod
    def join(self) -> None:
        """Become a member."""

    @abstractmethod
    def beat(self) -> None:
        """Look at the task once, and do what is to be done."""

    @abstractmethod
    def _leave(self) -> None:
        """Write the points, and give all shards away."""

    @abstractmethod
    def _begin_stretches(self, seq: int) -> Stretches:
        """The blocks from a transaction on."""

    @abstractmethod
    def _look_for_more(self) -> bool:
        """Whether the store has more than it had."""

    @abstractmethod
    def _are_all_held(self) -> bool:
        """Whether each shard of the task that this process would read is held, by it or another."""

    @abstractmethod
    def _locate(self, shard: int, point: StoragePoint) -> Start:
        """Where a shard goes on behind a point."""

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that this member holds now."""
        with self._state:
            return tuple(sorted(self._held))

    # begin and end

    def __enter__(self) -> Self:
        self.join()
        self._thread = threading.Thread(target=self._beat_on, name=f"task {self.task.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Write the points, and give all shards away."""
        self._stop.set()
        with self._state:
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._leave()
        with self._state:
            self._blocks.close()

    def _beat_on(self) -> None:
        while not self._stop.wait(self.options.beat_seconds):
            try:
                self.beat()
            except RetryableError:
                continue  # the ledger is away: what is held is held until its lease may have expired
            except (
                Exception
            ) as trouble:  # also of the consumer's `given`: who reads is told, instead of waiting for a dead beat
                with self._state:
                    self._trouble = trouble
                    self._state.notify_all()
                return

    def _begin_again(self, held: Held, point: StoragePoint) -> None:
        """Go on from another point: the shard was rewound. What is given out of it moves nothing any more."""
        held.cursor = self._make_cursor(held.shard, point)  # first: when it raises, the former place keeps its version
        held.saved = point
        held.undone = deque()

    def _make_cursor(self, shard: int, point: StoragePoint) -> Cursor:
        start = self._locate(shard, self._find_start(shard, point))
        return self._new_cursor(shard, start)

    def _new_cursor(self, shard: int, start: Start) -> Cursor:
        return Cursor(self._blocks, shard, start, controls=self.options.controls)

    def _find_start(self, shard: int, point: StoragePoint) -> StoragePoint:
        """The point that the consumer kept, unless the task was rewound since."""
        given = self.options.given
        text = given(shard) if given is not None else None
        kept = parse_point_text(text, shard, self.task) if text else None
        return kept if kept is not None and kept.version_ts >= point.version_ts else point

    def _make_blocks(self) -> Blocks:
        task = self.task
        sharding = Sharding(task.shards, task.hash, task.key_change, task.columns)
        return Blocks(self._begin_stretches, sharding, self.wants, lambda: list(self._held))

    # batches

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, *, one_a_shard: bool = False, rows: int = 0, patience: float = inf) -> Batch | None:
        """The next batch of any shard; None when there is no more (`is_finished`), the stream is closed, or there was none
        for `patience` seconds.

        `one_a_shard`: none of a shard of which one is not done, also of the time before a rewind.
        """
        wait, give_up = 0.01, self.clock() + patience
        while not self._stop.is_set():
            with self._state:
                if self._trouble is not None:
                    raise self._trouble
                if (batch := self._find_batch(one_a_shard, rows)) is not None:
                    return batch
                if not self._look_for_more():
                    if self.is_finished or self.clock() >= give_up:
                        return None
                    self._state.wait(wait)
                    wait = min(2 * wait, LONGEST_WAIT)
        return None

    def run(
        self,
        callback: Callable[[Batch], object],
        batch: int = 1,
        *,
        workers: int = 4,
        on_error: str = STOP,
        dead_letters: Path | str | None = None,
    ) -> None:
        """Call `callback` with batches of at most `batch` rows, in `workers` threads: batches of a shard one after another.

        `on_error`: `stop` raises what a callback raised; `retry` calls it again with the same batch, for good; `dead_letter`
        appends the batch and the error to the file `dead_letters` and goes on.
        """
        if on_error not in (STOP, RETRY, DEAD_LETTER) or (on_error == DEAD_LETTER) != (dead_letters is not None):
            raise UsageError(f"on_error {on_error!r}: stop, retry, or dead_letter with a file `dead_letters`")
        letters = DeadLetters(Path(dead_letters), self.task.name, self.note_letters) if dead_letters is not None else None
        failed: list[BaseException] = []
        ended = threading.Event()

        def work() -> None:
            try:
                while not ended.is_set() and not self.is_finished:
                    one = self.next_batch(one_a_shard=True, rows=batch, patience=LONGEST_WAIT)
                    if one is None:
                        continue
                    try:
                        if self._deal_with(one, callback, on_error, letters, ended):
                            one.done()
                            self.dead = letters.count if letters else 0
                    finally:
                        self._forget_working(one)
            except BaseException as error:
                failed.append(error)
                ended.set()

        threads = [threading.Thread(target=work, name=f"worker {n}", daemon=True) for n in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(1)
        finally:
            ended.set()
        if letters is not None:
            letters.close()  # not where the caller was interrupted: a callback may still write one
        if failed:
            raise failed[0]

    def _deal_with(
        self,
        batch: Batch,
        callback: Callable[[Batch], object],
        on_error: str,
        letters: DeadLetters | None,
        ended: threading.Event,
    ) -> bool:
        """Call a callback. Return whether the batch is dealt with."""
        wait = 1.0
        while True:
            try:
                callback(batch)
                return True
            except Exception as error:
                if on_error == STOP:
                    raise
                if letters is not None:
                    # CRASH WINDOW: the letter is written and the point does not say so: the batch comes again.
                    letters.append(batch, error)
                    return True
                if ended.wait(wait) or self._stop.is_set() or not self._is_ours(batch):
                    return False
                wait = min(2 * wait, 60.0)

    def _is_ours(self, batch: Batch) -> bool:
        with self._state:
            held = self._held.get(batch.shard)
            return held is not None and any(one is batch for one in held.undone)

    def _find_batch(self, one_a_shard: bool, rows: int) -> Batch | None:
        if self.clock() >= self._valid_until:
            return None
        undone = 1 if one_a_shard else self.options.undone
        for held in sorted(self._held.values(), key=lambda one: one.cursor.key):
            if held.is_leaving or len(held.undone) >= undone or not self._has_more(held):
                continue
            if one_a_shard and held.shard in self._working:
                continue  # its callback runs, although the shard was rewound, or went away and came back
            taken = held.cursor.take(rows or self.options.rows)
            if taken is None:
                continue
            # bound now: the shard may be rewound, or its task divided anew, before the point is asked for
            tell = partial(_tell_point, self.task, held.shard, held.saved.version_ts)
            batch = Batch(held.shard, *taken, self._settle, tell)
            held.undone.append(batch)
            if one_a_shard:
                self._working[held.shard] = batch
            return batch
        return None

    def _has_more(self, held: Held) -> bool:
        if held.cursor.has_pending:
            return True
        return held.cursor.key.seq <= (self._end if self.options.follow else min(self._end, self._until))

    @property
    def is_finished(self) -> bool:
        """Whether all that the store had at the beginning is given out, of shards that nobody else has. Who follows never
        is."""
        if self._stop.is_set():
            return True
        if self.options.follow or self._trouble is not None:  # who asks for the next batch is told
            return False
        if self._end < self._until or any(self._has_more(held) or held.is_leaving for held in self._held.values()):
            return False
        return self._are_all_held()

    def _forget_working(self, batch: Batch) -> None:
        with self._state:
            if self._working.get(batch.shard) is batch:
                del self._working[batch.shard]
                self._state.notify_all()

    def _settle(self, batch: Batch) -> bool:
        with self._state:
            self._forget_working(batch)
            held = self._held.get(batch.shard)
            if held is None or not (batch.is_done or any(one is batch for one in held.undone)):
                return batch.is_done
            batch.is_done = True
            while held.undone and held.undone[0].is_done:
                held.undone.popleft()
            self._state.notify_all()
            return self.clock() < self._valid_until


class Stream(BatchStream):
    """A member of a task that has its store and its ledger at hand."""

    def __init__(self, leases: Leases, disk: Disk, task: TaskRow, wants: Wants, options: Options | None = None) -> None:
        self.leases = leases
        self.ledger: Ledger = leases.ledger
        self.disk = disk
        super().__init__(f"{leases.identity.host}-{leases.identity.pid}-{uuid4().hex[:8]}", task, wants, options)
        self._member: Lease | None = None
        self._released: list[Lease] = []
        self._seen: Seen | None = None
        self._renewed = self._saved_at = 0.0

    # begin and end

    def join(self) -> None:
        """Become a member. Raises UsageError where this process is one already."""
        with self.ledger.write() as connection:
            began = self.clock()
            self._member = self._acquire_member(connection)
        self._renewed, self._valid_until = began, began + self.leases.ttl
        self._saved_at = began
        self._until = open_whole(self.disk).view.end.seq if not self.options.follow else 0
        try:
            with suppress(RetryableError):  # a capture takes the store over: the next beat tries again
                self.beat()
        except BaseException:
            self.close()
            raise

    def _acquire_member(self, connection: Connection) -> Lease:
        """The member lease of the lowest number that nobody has. One that is ours without our knowing it is taken again: the
        answer to a COMMIT may be lost."""
        read_task(connection, self.task.name, lock=True)
        others = [
            row
            for row in self.leases.list_named(connection, lease_prefix(self.task.name))
            if "/member-" in row.name and row.holder != self.name
        ]
        if any(row.identity == self.leases.identity for row in others):
            raise UsageError(
                f"this process is a member of task {self.task.name} already",
                hint="start another process; or use `run(callback, workers=N)` for more threads",
                subject=self.task.name,
            )
        taken = {row.name for row in others}
        number = next(n for n in range(len(others) + 1) if member_lease(self.task.name, n) not in taken)
        return self.leases.acquire_within(connection, member_lease(self.task.name, number), self.name)

    def _leave(self) -> None:
        with self._beating:
            leaving = list(self._held.values())
            with self._state:
                self._held = {}
            # CRASH WINDOW: points are behind what is done, leases are held by a dead process. Who comes next takes them at
            # once on this host, or when they expire, and rows behind the points come again.
            with suppress(RetryableError):
                self._give_back(leaving, [self._member] if self._member else [])
            self._member = None

    # the beat

    def beat(self) -> None:
        """Look at the task once, and do what is to be done."""
        with self._beating:
            self._renew()
            began = self.clock()
            with self.ledger.read() as connection:
                found = read_task_points(connection, self.task.name)
                rows = self.leases.list_named(connection, lease_prefix(self.task.name))
            if found is None:
                raise NotFoundError(f"task {self.task.name} is not in the ledger any more", subject=self.task.name)
            task, points = found
            fences = {row.name: row.fence for row in rows}
            if self._member is None or fences.get(self._member.name) != self._member.fence:
                self._rejoin()
                return
            seen = read_seen(self.name, task.shards, task.generation, rows)
            mine = {held.lease.name for held in self._held.values()}
            orphans = [row for row in rows if row.holder.rpartition("@")[0] == self.name and row.name not in mine]
            self._released += [Lease(row.name, row.fence, row.holder) for row in orphans]
            leaving = self._note_task(task, points, fences, seen)
            if leaving or self._released:
                self._give_back(leaving, [])
            for shard in choose_shards(seen).take:
                self._take(shard)
            self._valid_until = max(self._valid_until, self._renewed + self.leases.ttl)
            if began - self._saved_at >= self.options.checkpoint_seconds:
                self._saved_at = began
                self._give_back([], [])
            with self._state:
                self._blocks.forget([held.cursor.key for held in self._held.values()])
                self._state.notify_all()

    def _renew(self) -> None:
        now = self.clock()
        if now - self._renewed >= self.leases.ttl / 3:
            with self._state:
                mine = [held.lease for held in self._held.values()]
            self.leases.renew([*mine, *([self._member] if self._member else [])])
            self._renewed = now

    def _rejoin(self) -> None:
        """Begin as a new member: this one was taken for dead."""
        with self._state:
            self._released += [held.lease for held in self._held.values()]
            self._held = {}
        self._member = None  # until it is one again: each beat tries
        began = self.clock()
        with self.ledger.write() as connection:
            member = self._acquire_member(connection)
        self._member, self._renewed = member, began

    def _note_task(
        self, task: TaskRow, points: Mapping[int, StoragePoint], fences: Mapping[str, int], seen: Seen
    ) -> list[Held]:
        """Take notice of what is in the ledger. Returns the shards that go now: nothing of them is given out."""
        with self._state:
            for held in list(self._held.values()):
                if fences.get(held.lease.name) != held.lease.fence:
                    del self._held[held.shard]  # another has it
            is_former = task.generation != self.task.generation
            if is_former and not self._held:
                self.task, is_former = task, False
                self._blocks = self._make_blocks()
            elif not is_former:
                self.task = task
            give = set(self._held) if is_former else set(choose_shards(seen).give)
            for held in self._held.values():
                held.is_leaving = held.shard in give
                point = points.get(held.shard)
                if is_former or point is None:
                    continue
                if point.version_ts != held.saved.version_ts:
                    self._begin_again(held, point)
                else:
                    held.saved = point  # the lease is ours, so we wrote it: the answer to a COMMIT may be lost
            self._seen = seen
            return [held for held in self._held.values() if held.is_leaving and not held.undone]

    def _take(self, shard: int) -> None:
        lease_name, me = shard_lease(self.task.name, shard), name_holder(self.name, self.task.generation)
        with self.ledger.write() as connection:
            task = read_task(connection, self.task.name, lock=True)
            rows = self.leases.list_named(connection, lease_prefix(self.task.name))
            now = read_seen(self.name, self.task.shards, self.task.generation, rows)
            if task is None or task.generation != self.task.generation or now.is_former:
                return
            try:
                lease = self.leases.acquire_within(connection, lease_name, me)
            except LeaseHeldError:
                return
            point = read_points(connection, self.task.name)[shard]
        # CRASH WINDOW: the lease is held and nothing is read: as after any death, who comes next takes it.
        try:
            held = Held(shard, lease, point, self._make_cursor(shard, point))
        except TidemarkError:
            self.leases.release(lease)
            raise
        with self._state:
            self._held[shard] = held

    def _give_back(self, leaving: Sequence[Held], more: Sequence[Lease]) -> None:
        """Write all points that are to move, and release the leases of shards that go."""
        with self._state:
            there = {**self._held, **{held.shard: held for held in leaving}}
            places = [(held, held.find_place()) for held in there.values()]
        released = [*self._released, *(held.lease for held in leaving), *more]
        points = [(held, place.as_point(held.saved.version_ts)) for held, place in places if place is not None]
        moves = [(held, point) for held, point in points if point != held.saved]
        if not moves and not released:
            return
        with self.ledger.write() as connection:
            moved = [(held, point) for held, point in moves if self._move(connection, held, point)]
            self.leases.release_within(connection, released)
        # CRASH WINDOW: the points are written and nobody here knows: they are read again by who begins the shard.
        self._released = []
        for held, point in moved:
            held.saved = point
        with self._state:
            for held in leaving:  # only now: a shard whose point could not be written is given away by a later beat
                if self._held.get(held.shard) is held:
                    del self._held[held.shard]

    def _move(self, connection: Connection, held: Held, point: StoragePoint) -> bool:
        try:
            assert_held(connection, held.lease)
        except LeaseLostError:
            return False  # the next beat notes it
        place = (self.task.name, held.shard)
        return move_point(connection, place, held.saved, point, fence=held.lease.fence)

    def _begin_stretches(self, seq: int) -> DiskStretches:
        del seq  # they are asked for what is ahead
        return DiskStretches(self.disk)

    def _look_for_more(self) -> bool:
        """Whether the store has more than it had."""
        end = Reader(self.disk).view.end.seq
        has_more, self._end = end > self._end, end
        return has_more

    def _are_all_held(self) -> bool:
        seen = self._seen
        return seen is not None and set(range(seen.shards)) <= {*seen.held, *self._held}

    def _locate(self, shard: int, point: StoragePoint) -> Start:
        return locate(self.disk, point, f"task {self.task.name}, shard {shard}")


def _tell_point(task: TaskRow, shard: int, version_ts: int, place: Place) -> str:
    return point_text(place.as_point(version_ts), shard, task)
