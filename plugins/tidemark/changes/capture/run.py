"""Capture: events into the store, from its durable end on.

One capture a source: the lease's fence is the fence of the store's writer. Where to go on is what the store says, nothing
else. The transaction it ends with is read again and must be the same one, or the logs are of another server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.capture.ahead import read_ahead
from tidemark.changes.capture.identity import (
    Head,
    Logs,
    Origin,
    number_of,
    read_lost,
    read_origin,
    write_lost,
    write_origin,
)
from tidemark.changes.capture.parked import Parked
from tidemark.changes.capture.plain import Gtids, Run
from tidemark.changes.capture.rows import MOST_BYTES, Item, gather_items
from tidemark.changes.capture.transactions import (
    GO_ON,
    UNPROVED,
    XA_COMMIT,
    XA_PREPARE,
    XID,
    CutOff,
    Group,
    Rules,
    Transactions,
)
from tidemark.changes.connection.files import open_files
from tidemark.changes.connection.model import Block, Dump, FilePosition, RawEvent
from tidemark.changes.mirror import Mirror
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import BinlogInfo, Mark, Record, Rows, Transaction
from tidemark.changes.store.read import Reader, Target
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    NotFoundError,
    PermanentError,
    PermissionDeniedError,
    TidemarkError,
    UnreachableError,
    UnsupportedError,
)
from tidemark.progress import Progress, Tick, ignore_progress

PROGRESS_SECONDS = 0.2
WAIT_SECONDS = 0.05
"""How long a transaction waits for others to be decoded with."""
LEAST_WAIT, MOST_WAIT = 1.0, 30.0
"""Seconds before a server that is away is asked again."""

LOG_HEAD = FilePosition("").position
"""Where the first event of a log is."""
GAP = "gap"
"""The word of the mark that stands in a store where a stretch of the logs is lost."""


@dataclass
class Captured:
    """What a capture did. `first`, `last`: the states before and after. `read_to`: where the events ended that it read;
    None: there were none, or only those behind a GTID set, which may end before the log does."""

    first: State
    last: State
    rows: int = 0
    bytes: int = 0
    read_to: FilePosition | None = None

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
Switch = Callable[[Place, PermanentError], Dump]
"""From where a store ends to the events behind its GTID set, where its position is not believed: other logs stand there.
Proves that the server has what the store has, or raises. Given is what was found, to be raised where there are no GTIDs."""


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
    """What to capture, and how. `start`: the first transaction that a new store takes. `until`: the first that is left out;
    positions are those of the logs that are read. `switch`: None: logs that the store is not from are refused.
    `follow`: the events have no end, and a server that is away is asked again; it ends where `is_asked` for something.
    `mirror`: keeps the logs, too."""

    disk: Disk
    fence: int
    rules: Rules
    open_dump: OpenDump
    until: Target | None = None
    start: Target | None = None
    follow: bool = False
    is_asked: Callable[[], bool] = bool
    limits: Limits | None = None
    switch: Switch | None = None
    mirror: Mirror | None = None


def capture(job: Job, progress: Progress = ignore_progress) -> Captured:
    """Capture from the store's durable end to the end of the events, or to `until`."""
    with open_writer(job) as writer:
        return capture_into(job, writer, progress)


def open_writer(job: Job) -> Writer:
    """The writer of a job's store."""
    # Who follows is waited for; on the way to an end, a group each second spares encoding most transactions twice.
    limits = job.limits or (Limits() if job.follow else Limits(group_seconds=1.0))
    return Writer(job.disk, job.fence, limits, before_durable=job.mirror.sync if job.mirror else bool)


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
        self.origin = read_origin(job.disk) or Origin()
        self.change_id = writer.state.info.change_id or 1
        self.last_read: RawEvent | Block | None = None
        self.heads: dict[int, tuple[str, Head]] = {}  # of the logs that are read, by number
        self.waiting: list[tuple[Group, list[Item]]] = []  # whole transactions whose rows are not decoded yet
        self.waiting_bytes = 0
        self.waiting_since = 0.0

    def run(self) -> Captured:
        if not self.job.follow:
            self._run_to_gap()
            return self._make_durable()
        wait, lost_at = LEAST_WAIT, -1
        while True:
            before = self.writer.state.seq
            try:
                self._run_to_gap()
                return self._make_durable()
            except _AskedError:
                return self._make_durable()
            except BinlogGapError:
                if self.writer.state.seq == lost_at:
                    raise
                lost_at = self.writer.state.seq  # purged while it was read, or made anew: opened again, it is judged
            except UnreachableError as away:
                # What was not durable may stay so: the server is asked from the store's end on, which has it.
                wait = LEAST_WAIT if self.writer.state.seq > before else min(2 * wait, MOST_WAIT)
                self._make_durable()
                self.progress(Tick(f"{away.message}: again in {wait:g} s"))
                time.sleep(wait)

    def _run_to_gap(self) -> None:
        try:
            self._run_once()
        except BinlogGapError:
            self._make_durable()  # the gap lies behind it
            raise

    def _make_durable(self) -> Captured:
        self._append_waiting()
        self.writer.sync()
        if self.job.mirror is not None:
            self.job.mirror.sync()  # also what stands behind the last transaction
        self.parked.forget(self.writer.durable)
        self.done.last = self.writer.durable
        if self.last_read is not None:
            self.done.read_to = FilePosition(self.last_read.file, self.last_read.end)
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
        self.change_id = state.info.change_id or 1
        if not state.seq:
            self._append_from(*self._open(None))
            return
        if state.info.change_id not in self.origin.changes:
            raise PermanentError("source.json of the store is missing", hint="bring it back from a copy")
        name = self.origin.name_log(state.info.file, state.info.change_id)
        end = Place(FilePosition(name, state.info.offset), parse_gtids(self.writer.gtids))
        try:
            self._append_from(*self._open(end), end=end)
        except _OtherLogsError as met:
            if self.job.switch is None:
                raise
            self.change_id += 1
            self._append_from(self.job.switch(end, met), comes_again=False)

    def _open(self, end: Place | None) -> tuple[Dump | None, bool]:
        try:
            dump, comes_again = self.job.open_dump(end)
        except NotFoundError:
            return None, False
        return dump, comes_again and end is not None and not is_log_head(end.position)

    def _append_from(self, dump: Dump | None, comes_again: bool, end: Place | None = None) -> None:
        """Append what a dump has. `end`: it goes on with the logs that the store is from, or by the GTID set of that end."""
        if dump is None:
            return
        try:
            mirror = self.job.mirror
            found: Iterable[RawEvent | Block]
            found = dump.events() if mirror is not None else dump.blocks()
            if self.job.follow:
                found = read_ahead(found, self._rest)
            events = self._note_places(found, is_whole=comes_again or end is None or is_log_head(end.position))
            try:
                first = next(events, None)
            except (CorruptionError, PermanentError) as damaged:
                if not comes_again or isinstance(damaged, PermissionDeniedError):
                    raise
                raise _other_logs(_name_place(end), damaged.message) from damaged
            if first is None:
                return
            assert isinstance(first, RawEvent)  # the format description
            if end is not None:
                self._judge_first(first, end, comes_again=comes_again)
            events = chain([first], events)
            if mirror is not None:
                singly = (each for each in events if isinstance(each, RawEvent))
                is_begun = self.writer.state.info.change_id == self.change_id
                events = mirror.keep(singly, self.change_id, is_proved=not comes_again, is_begun=is_begun)
            rules, offset = replace(self.job.rules, change_id=self.change_id), self.writer.state.gtid_offset
            if rules.catalog is not None:
                rules.catalog.begin(self.change_id, self.writer.state.info.order[:3])
            gtids = parse_gtids(self.writer.gtids)
            transactions = Transactions(events, rules, gtids, offset, ahead=True, waits=not self.job.follow)
            found_groups = transactions.read()
            if not comes_again and (end is None or not is_log_head(end.position)):
                transactions.lost += self._read_lost()
            if comes_again:
                self._pass_known(found_groups, _name_place(end))
                if mirror is not None:
                    mirror.prove()
            try:
                self._append_all(transactions, found_groups)
            finally:
                if transactions.lost:
                    self._make_durable()  # it stands behind this
                write_lost(self.job.disk, self.writer.state.seq, [mark.text for mark in transactions.lost])
        finally:
            dump.close()

    def _read_lost(self) -> Sequence[Mark]:
        """What the former logs told as lost behind the store's end: nobody reads it there again."""
        lost = [Mark(UNPROVED, what) for what in read_lost(self.job.disk, self.writer.state.seq)]
        if lost and self.job.rules.stops:
            raise PermanentError(
                f"behind the end of the store {lost[0].text}", hint=f"what was lost stands in no log; {GO_ON}"
            )
        return lost

    def _note_places(self, events: Iterable[RawEvent | Block], *, is_whole: bool) -> Iterator[RawEvent | Block]:
        """Note how the logs begin, and how far they are read. `is_whole`: no event is left out."""
        for raw in events:
            if isinstance(raw, RawEvent) and raw.position == LOG_HEAD and raw.data:
                self.heads[number_of(raw.file)] = raw.file, Head.of(raw)
            self.last_read = raw if is_whole else None
            yield raw

    def _judge_first(self, first: RawEvent, end: Place, *, comes_again: bool) -> None:
        """Whether the log that comes first is one of those that the store is from. Where the GTID set alone says what comes
        next, it need not be: then a new change id begins."""
        known, head = self.origin.changes[self.change_id], Head.of(first)
        is_same = known.may_be(first.file, head)
        if is_log_head(end.position) or comes_again:
            if not is_same:
                raise _other_logs(_name_place(end), f"its log was begun at {head.time} by server id {head.server_id}")
        elif not is_same or number_of(first.file) < number_of(end.position.file):
            self.change_id += 1

    def _pass_known(self, groups: Iterator[Group | Run], place: str) -> None:
        """Read the transaction that the store ends with again: it must be that one."""
        try:
            group = next(groups, None)
        except PermissionDeniedError:
            raise
        except (CorruptionError, PermanentError) as damaged:
            raise _other_logs(place, damaged.message) from damaged
        if not isinstance(group, Group):
            raise _other_logs(place, "there is nothing")
        what = f"{group.head.gtid or 'one without GTID'} of {group.head.info}"
        if group.head.info != self.writer.state.info:
            raise _other_logs(place, f"there is {what}")
        if self.writer.state == self.writer.taken and not self._has_known_rows(group):
            raise _other_logs(place, f"there is {what}, with other rows")

    def _has_known_rows(self, group: Group) -> bool:
        """Whether a transaction has the rows that the store has of it: logs that were made in one second begin alike."""
        from tidemark.changes.capture.batches import convert_stream  # here and below: it imports Arrow
        from tidemark.changes.capture.known import read_beginning, read_stored

        stored = read_stored(Reader(self.job.disk), group.head.info)
        try:
            return stored is None or stored.may_be(read_beginning(convert_stream(group.items)))
        except CutOff:
            return False

    def _record_log(self, number: int) -> None:
        """Record the log that the next transaction is from."""
        logs = self.origin.changes.get(self.change_id)
        file, head = self.heads[number]
        if logs is not None and logs.heads.get(number) == head:
            return
        if self.writer.state.info.change_id != self.change_id:
            logs = None  # what is recorded of it is from a capture that died before its first transaction
        found = (logs or Logs.of(file)).with_head(number, head)
        self.origin = self.origin.with_logs(self.change_id, found)
        # CRASH WINDOW: a log, or a change id, of which the store has no transaction: the next capture records its own.
        write_origin(self.job.disk, self.origin)

    def _append_all(self, transactions: Transactions, found: Iterator[Group | Run]) -> None:
        until, ahead = self.job.until, self.writer.state
        start = self.job.start if not self.writer.state.seq else None
        last = time.monotonic()
        is_told_by_state = until is None or until.by_state is not None  # else each transaction is looked at
        transactions.gives_runs = start is None and is_told_by_state
        try:
            for group in found:
                if isinstance(group, Run):
                    after = _after_run(ahead, group)
                    if until is not None and _is_reached_in(until, after):
                        self._append_before(transactions.read_each(group), until, ahead)
                        return
                    self._append_run(transactions, group)
                    ahead = after
                else:
                    if start is not None and not _is_reached(start, ahead, group.head):
                        group.leave_out()
                        continue
                    start, transactions.gives_runs = None, is_told_by_state
                    if until is not None and _is_reached(until, ahead, group.head):
                        return
                    self._record_log(group.head.info.file)
                    with suppress(CutOff):
                        self._append(group)
                        ahead = ahead.after(group.head) if until is not None else ahead
                if (now := time.monotonic()) - last > PROGRESS_SECONDS:
                    last = now
                    done = self.writer.state.seq - self.done.first.seq
                    self.progress(Tick("capture", done=done, bytes_done=self.done.bytes, things="transactions"))
                    self._check_asked()
        finally:
            self._append_waiting()

    def _append_before(self, groups: Iterator[Group], until: Target, ahead: State) -> None:
        """Append the plain transactions before a border."""
        for group in groups:
            if _is_reached(until, ahead, group.head):
                return
            self._record_log(group.head.info.file)
            self._append(group)
            ahead = ahead.after(group.head)

    def _append_run(self, transactions: Transactions, run: Run) -> None:
        """Append plain transactions together, or one by one where that cannot be."""
        from tidemark.changes.capture.batches import convert_run

        self._record_log(number_of(run.stretch.file))
        self._append_waiting()
        try:
            converted = convert_run(run, transactions.is_wanted, XID)
        except (CorruptionError, UnsupportedError):
            converted = None  # those before the one that cannot be read are appended
        if converted is None:
            for group in transactions.read_each(run):
                self._append(group)
            return
        self.writer.append_run(converted)
        self.done.rows += sum(batch.num_rows for _, batch in converted.wholes)
        self.done.bytes += sum(batch.nbytes for _, batch in converted.wholes)
        self.parked.forget(self.writer.durable)

    def _append(self, group: Group) -> None:
        """Have a transaction wait for others, with which it is decoded, or append it. One that is cut off does neither."""
        if group.is_xa:
            self._append_waiting()
            self._append_xa(group)
            return
        items, size = gather_items(group.items)
        if size >= MOST_BYTES:
            from tidemark.changes.capture.batches import convert_stream

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
                rows = iter([self._miss_xa(group, mark.text)])
            others = [other for other in gathered.marks if other is not mark]  # what was lost meanwhile
            records = chain(rows or (), others, [mark]) if mark.word == XA_COMMIT else [*others, mark]
        self._append_large(group, records)

    def _miss_xa(self, group: Group, xid: str) -> Mark:
        """What stands in the place of the rows of an XA transaction that were logged where the store has nothing."""
        if self.job.rules.stops:
            raise BinlogGapError(
                f"{group.head.gtid or group.head.info} commits the XA transaction {xid}, whose rows the store does not have:"
                " it was prepared before the store begins, or in a gap",
                hint=f"begin a new store with a log from before it was prepared; or {GO_ON}",
                subject=xid,
            )
        return Mark(UNPROVED, f"XA transaction {xid}")

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
    transactions do, and what stands for a gap."""
    return position.position == LOG_HEAD


class _OtherLogsError(PermanentError):
    """Where the store ends, logs stand that it is not from."""


def _name_place(end: Place | None) -> str:
    return f"{end.position.file}:{end.position.position}" if end else ""


def _other_logs(place: str, found: str) -> _OtherLogsError:
    return _OtherLogsError(
        f"at {place} the transaction with which the store ends is not ({found}): the log is damaged, of another server, or"
        " was made again",
        hint="bring that log back from a copy; a server of its own is a source of its own, with a store of its own",
        subject=place,
    )


def _is_reached(target: Target, state: State, head: Transaction) -> bool:
    return _is_reached_in(target, state.after(head)) if target.by_state else target.by_gtid(head.gtid)


def _is_reached_in(target: Target, state: State) -> bool:
    # Who writes FILE:POS means the logs that are read, whichever change id they have.
    here = replace(state, info=state.info._replace(change_id=1))
    return target.by_state is not None and target.by_state(here)


def _after_run(state: State, run: Run) -> State:
    """The state after the transactions of a run, without the name of the last one."""
    heads, last = run.stretch.heads, run.stretch.heads[-1].tolist()
    place = run.stretch.position + last[8]
    info = BinlogInfo(run.change_id, last[4], number_of(run.stretch.file), place, timestamp=last[3])
    return State(state.seq + run.stretch.count, info, max(state.newest, int(heads[:, 3].max())), int(run.offsets[-1]))


def parse_gtids(text: str) -> Gtids:
    """A store's GTID set; None where it has none."""
    if not text:
        return None
    return MysqlGtidSet.parse(text) if ":" in text else MariaGtidPosition.parse(text)
