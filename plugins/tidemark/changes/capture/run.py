"""Capture: events into the store, from its durable end on.

One capture a source: the lease's fence is the fence of the store's writer. Where to go on is what the store says, nothing
else. The transaction it ends with is read again and must be the same one, or the logs are of another server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.capture.ahead import read_ahead
from tidemark.changes.capture.identity import number_of, origin_of, read_origin, write_origin
from tidemark.changes.capture.parked import Parked
from tidemark.changes.capture.rows import MOST_BYTES, Item, weigh
from tidemark.changes.capture.transactions import (
    XA_COMMIT,
    XA_PREPARE,
    CutOff,
    Group,
    Gtids,
    Rules,
    Transactions,
)
from tidemark.changes.connection.files import open_files
from tidemark.changes.connection.model import Dump, FilePosition
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import Record, Rows, Transaction
from tidemark.changes.store.read import Target
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    NotFoundError,
    PermanentError,
    TidemarkError,
    UnreachableError,
)
from tidemark.progress import Progress, Tick, ignore_progress

PROGRESS_SECONDS = 0.2
WAIT_SECONDS = 0.05
"""How long a transaction waits for others to be decoded with."""
LEAST_WAIT, MOST_WAIT = 1.0, 30.0
"""Seconds before a server that is away is asked again."""


@dataclass
class Captured:
    """What a capture did. `first`, `last`: the states before and after."""

    first: State
    last: State
    rows: int = 0
    bytes: int = 0

    @property
    def transactions(self) -> int:
        return self.last.seq - self.first.seq


@dataclass(frozen=True)
class Place:
    """Where a store ends: where its last transaction begins in the log, and the GTID set with it."""

    position: FilePosition
    gtids: Gtids


OpenDump = Callable[[Place | None], tuple[Dump, bool]]
"""From where a store ends (None: a new one) to events, and whether they begin with its last transaction."""


def open_log_files(paths: Iterable[Path]) -> OpenDump:
    """Log files as what a capture reads. Those before the store's end are left out."""
    known = sorted(paths)

    def open_dump(end: Place | None) -> tuple[Dump, bool]:
        if end is None:
            return open_files(known), False
        start = end.position
        number = number_of(start.file)
        left = [path for path in known if number_of(path.name) >= number]
        if not left:
            raise NotFoundError("nothing new")
        if all(number_of(path.name) > number for path in left):
            raise BinlogGapError(
                f"the store ends in {start.file}, and the logs that are given begin with {left[0].name}",
                hint=f"give {start.file} and those behind it, too",
                subject=start.file,
            )
        return open_files(left, start), True

    return open_dump


@dataclass(frozen=True)
class Job:
    """What to capture, and how. `start`: the first transaction that a new store takes. `until`: the first that is left out.
    `follow`: the events have no end, and a server that is away is asked again; it ends where `is_asked` for something."""

    disk: Disk
    fence: int
    rules: Rules
    open_dump: OpenDump
    until: Target | None = None
    start: Target | None = None
    follow: bool = False
    is_asked: Callable[[], bool] = bool
    limits: Limits | None = None


def capture(job: Job, progress: Progress = ignore_progress) -> Captured:
    """Capture from the store's durable end to the end of the events, or to `until`."""
    with open_writer(job) as writer:
        return capture_into(job, writer, progress)


def open_writer(job: Job) -> Writer:
    """The writer of a job's store."""
    # Who follows is waited for; on the way to an end, a group each second spares encoding most transactions twice.
    return Writer(job.disk, job.fence, job.limits or (Limits() if job.follow else Limits(group_seconds=1.0)))


def capture_into(job: Job, writer: Writer, progress: Progress = ignore_progress) -> Captured:
    """Capture with a writer that the caller opened, and goes on to use."""
    return _Capture(job, writer, progress).run()


class _AskedError(Exception):
    """Somebody asks for something: who follows ends."""


class _Capture:
    def __init__(self, job: Job, writer: Writer, progress: Progress) -> None:
        self.job, self.writer, self.progress = job, writer, progress
        self.parked = Parked(job.disk, writer.state, job.fence, writer.limits.block_bytes)
        self.done = Captured(writer.state, writer.state)
        self.waiting: list[tuple[Group, list[Item]]] = []  # whole transactions whose rows are not decoded yet
        self.waiting_bytes = 0
        self.waiting_since = 0.0

    def run(self) -> Captured:
        if not self.job.follow:
            try:
                self._run_once()
            except BinlogGapError:
                self._make_durable()  # the gap lies behind it
                raise
            return self._make_durable()
        wait = LEAST_WAIT
        while True:
            before = self.writer.state.seq
            try:
                self._run_once()
                return self._make_durable()
            except _AskedError:
                return self._make_durable()
            except UnreachableError as away:
                # What was not durable may stay so: the server is asked from the store's end on, which has it.
                wait = LEAST_WAIT if self.writer.state.seq > before else min(2 * wait, MOST_WAIT)
                self._make_durable()
                self.progress(Tick(f"{away.message}: again in {wait:g} s"))
                time.sleep(wait)

    def _make_durable(self) -> Captured:
        self._append_waiting()
        self.writer.sync()
        self.parked.forget(self.writer.durable)
        self.done.last = self.writer.durable
        return self.done

    def _rest(self) -> None:
        """A moment without events."""
        self._make_durable()
        self._check_asked()

    def _check_asked(self) -> None:
        if self.job.follow and self.job.is_asked():
            raise _AskedError

    def _run_once(self) -> None:
        """Append what there is from the writer's end on."""
        state = self.writer.state
        end, gtids = None, parse_gtids(self.writer.gtids)
        if state.seq:
            origin = read_origin(self.job.disk)
            if origin is None:
                raise PermanentError("source.json of the store is missing", hint="bring it back from a copy")
            end = Place(FilePosition(origin.name_log(state.info.file), state.info.offset), gtids)
        try:
            dump, comes_again = self.job.open_dump(end)
        except NotFoundError:
            return
        events = read_ahead(dump, self._rest) if self.job.follow else dump.events()
        try:
            groups = iter(Transactions(events, self.job.rules, gtids, state.gtid_offset, ahead=not self.job.follow))
            if end is not None and comes_again and not is_log_head(end.position):
                self._pass_known(groups, end.position)
            self._append_all(groups, dump)
        finally:
            dump.close()

    def _pass_known(self, groups: Iterator[Group], start: FilePosition) -> None:
        """Read the transaction that the store ends with again: it must be that one."""
        place = f"{start.file}:{start.position}"
        try:
            group = next(groups, None)
        except CorruptionError as damaged:
            raise _other_logs(place, damaged.message) from damaged
        if group is None:
            raise _other_logs(place, "there is nothing")
        if group.head.info != self.writer.state.info:
            raise _other_logs(place, f"there is {group.head.gtid or 'one without GTID'} of {group.head.info}")

    def _append_all(self, groups: Iterator[Group], dump: Dump) -> None:
        until, ahead = self.job.until, self.writer.state
        start = self.job.start if not self.writer.state.seq else None
        last = time.monotonic()
        try:
            for group in groups:
                if start is not None and not _is_reached(start, ahead, group.head):
                    continue
                start = None
                if until is not None and _is_reached(until, ahead, group.head):
                    return
                if self.writer.state.seq == 0 and not self.waiting:
                    # CRASH WINDOW: the origin of a store without a transaction; the next capture writes its own.
                    write_origin(self.job.disk, origin_of(dump.file))
                with suppress(CutOff):
                    self._append(group)
                    ahead = ahead.after(group.head) if until is not None else ahead
                if (now := time.monotonic()) - last > PROGRESS_SECONDS:
                    last = now
                    done = self.writer.state.seq - self.done.first.seq
                    self.progress(Tick("capture", done=done, bytes_done=self.done.bytes))
                    self._check_asked()
        finally:
            self._append_waiting()

    def _append(self, group: Group) -> None:
        """Have a transaction wait for others, with which it is decoded, or append it. One that is cut off does neither."""
        if group.is_xa:
            self._append_waiting()
            self._append_xa(group)
            return
        items: list[Item] = []
        size = 0
        for item in group.items:
            items.append(item)
            size += weigh(item)
            if size >= MOST_BYTES:
                from tidemark.changes.capture.batches import convert_stream  # here and below: it imports Arrow

                self._append_waiting()
                self._append_large(group, convert_stream(chain(items, group.items)))
                return
        now = time.monotonic()
        if not self.waiting:
            self.waiting_since = now
        self.waiting.append((group, items))
        self.waiting_bytes += size
        if self.waiting_bytes >= MOST_BYTES or now - self.waiting_since >= WAIT_SECONDS:
            self._append_waiting()

    def _append_waiting(self) -> None:
        """Decode the transactions that wait, together, and append them."""
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        if not waiting:
            return
        from tidemark.changes.capture.batches import convert_items

        try:
            found = convert_items([items for _, items in waiting])
        except TidemarkError:
            if len(waiting) == 1:
                raise
            for one in waiting:  # those before the one that cannot be read are appended
                self.waiting = [one]
                self._append_waiting()
            raise
        heads = [group.head for group, _ in waiting]
        whole = [
            Transaction(head.info, head.gtid, head.gtid_offset, tuple(records))
            for head, records in zip(heads, found, strict=True)
        ]
        self.writer.append_all(zip(whole, [group.gtids for group, _ in waiting], strict=True))
        batches = {id(record.whole): record.whole for records in found for record in records if isinstance(record, Rows)}
        self.done.rows += sum(batch.num_rows for batch in batches.values())
        self.done.bytes += sum(batch.nbytes for batch in batches.values())
        self.parked.forget(self.writer.durable)

    def _append_large(self, group: Group, records: Iterable[Record]) -> None:
        self.writer.append_large(group.head, self._count(records), group.gtids)
        self.parked.forget(self.writer.durable)

    def _append_xa(self, group: Group) -> None:
        from tidemark.changes.capture.batches import convert_stream

        gathered = self.parked.gather(group.head, convert_stream(group.items))
        mark = gathered.xa
        seq = self.writer.state.seq + 1
        records: Iterable[Record]
        if mark is None:
            self._append_large(group, self.parked.read(gathered))
            self.parked.drop(gathered)
            return
        if mark.word == XA_PREPARE:
            # CRASH WINDOW: parked, and its transaction is not in the store: it comes again, and is parked again.
            self.parked.park(gathered, mark.text)
            records = gathered.marks
        else:
            rows = self.parked.take(mark.text, seq)
            if rows is None and mark.word == XA_COMMIT:
                raise BinlogGapError(
                    f"{group.head.gtid or seq} commits the XA transaction {mark.text}, which was prepared"
                    " before the store begins",
                    hint="begin with a log from before it was prepared",
                    subject=mark.text,
                )
            records = chain(rows or (), [mark]) if mark.word == XA_COMMIT else [mark]
        self._append_large(group, records)

    def _count(self, records: Iterable[Record]) -> Iterable[Record]:
        rows = size = 0
        for record in records:
            if isinstance(record, Rows):
                rows += record.count
                size += record.batch.nbytes
            yield record
        self.done.rows += rows
        self.done.bytes += size


def is_log_head(position: FilePosition) -> bool:
    """Whether a place is the first byte of a log. No transaction begins there: rows of a bootstrap that stand before all
    transactions do."""
    return position == FilePosition(position.file)


def _other_logs(place: str, found: str) -> PermanentError:
    return PermanentError(
        f"at {place} the transaction with which the store ends is not ({found}): the log is damaged, of another server, or"
        " was made again",
        hint="bring that log back from a copy; a server of its own is a source of its own, with a store of its own",
        subject=place,
    )


def _is_reached(target: Target, state: State, head: Transaction) -> bool:
    return target.by_state(state.after(head)) if target.by_state else target.by_gtid(head.gtid)


def parse_gtids(text: str) -> Gtids:
    """A store's GTID set; None where it has none."""
    if not text:
        return None
    return MysqlGtidSet.parse(text) if ":" in text else MariaGtidPosition.parse(text)
