"""The one writer of a store: it takes over, appends whole transactions, makes them durable, closes blocks, begins buckets.

A transaction goes its way in three steps. `append` keeps it in memory. A group of them is written to the tail and synced:
from then on readers see it. A full block of them is compressed into the bucket, and the tail begins anew. A block is closed
at a new hour, when it is full, by clock, and at the end.

A call that fails leaves the writer unusable: what the disk has is known only to the next one, who looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from tidemark.changes.store.block import (
    Draft,
    Encoded,
    decode_gtids,
    decode_transactions,
    encode_block,
)
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.holders import (
    Fences,
    Holders,
    Span,
    claim_path,
    close_spans,
    find_outdated,
    record_path,
)
from tidemark.changes.store.index import ENTRY_BYTES, L1_PATH, Entry, Index, encode_index
from tidemark.changes.store.layout import (
    OFFSETS,
    BucketFile,
    BucketId,
    DataPosition,
    State,
    TailFile,
    end_of_hour,
    hour_of,
    next_bucket,
    parse_tail,
)
from tidemark.changes.store.model import Ddl, Mark, Record, Rows, Transaction
from tidemark.changes.store.run import Run
from tidemark.changes.store.view import TAIL, Group, View, read_first, read_view
from tidemark.errors import LeaseLostError, PermanentError

_RECORD_BYTES = 100  # what a record or a transaction takes beside its values, roughly


@dataclass(frozen=True)
class Limits:
    """When what is closed. `block_bytes` of memory; `index_bytes` between entries of L2; `group_seconds` that a transaction
    waits for others to be synced with. A full block is durable at once, so bytes close no group."""

    bucket_bytes: int = 1 << 30
    block_bytes: int = 4 << 20
    index_bytes: int = 64 << 10
    block_seconds: float = 60.0
    group_seconds: float = 0.1


class Writer:
    """The holder of a store. `fence` comes from the lease: it is higher than that of any holder before.

    `state` and `gtids` are as of the last transaction appended, `durable` as of the last one that readers see, `taken` as of
    the last one of the holder before. A capture resumes at `state` of a new writer, and tells nobody of a transaction before
    it is durable. `before_durable` is called before transactions become so.
    """

    def __init__(
        self,
        disk: Disk,
        fence: int,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        before_durable: Callable[[], object] = bool,
    ) -> None:
        self.disk = disk
        self.fence = fence
        self.limits = limits or Limits()
        self.clock = clock
        self.before_durable = before_durable
        self.state = self.durable = State()
        self._gtids: object = ""
        self._durable_gtids = ""
        self._closed, self._closed_gtids = State(), ""  # as of the last block
        self._waiting: list[Transaction | Run] = []  # those that no block has; the first `_grouped` of them are in the tail
        self._waiting_bytes = self._grouped = 0
        self._block_since = self._group_since = clock()
        self._tail: TailFile | None = None
        self._tail_bytes = 0
        self._bucket: BucketFile | None = None  # of this holder
        self._last_id: BucketId | None = None  # of any holder
        self._offset = 0
        self._entries: list[Entry] = []  # L1
        self._indexed = self._indexed_offset = 0  # entries of the bucket's L2, and where the last one points to
        self._weighed: Any = None  # the batch whose rows have `_row_bytes` on the average: to ask it is dear
        self._row_bytes = 0.0
        self._broken = False
        with self._unusable_on_error():
            self._take_over()
        self.taken = self.state

    @property
    def gtids(self) -> str:
        return str(self._gtids)

    def append(self, transaction: Transaction, gtids: object) -> None:
        """Append a transaction. `gtids`: the source's GTID set with it, as in `append_all`."""
        self.append_all([(transaction, gtids)])

    def append_all(self, transactions: Iterable[tuple[Transaction, object]]) -> None:
        """Append transactions, each with the source's GTID set: anything whose text is that set, for the text may be long,
        and is needed where a group or a block ends alone. Raises PermanentError where the source went back."""
        self._check_usable()
        for transaction, gtids in transactions:
            self._append_one(transaction, gtids)

    def _append_one(self, transaction: Transaction, gtids: object) -> None:
        state = self.state.after(transaction)
        if hour_of(state.newest) > hour_of(self.state.newest):
            with self._unusable_on_error():
                self._close_block()
        now = self._note_times()
        self._waiting.append(transaction)
        self._waiting_bytes += self._weigh(transaction.records)
        self.state, self._gtids = state, gtids
        self._close_what_is_due(now)

    def _note_times(self) -> float:
        """Note since when there is a block, and a group."""
        now = self.clock()
        if not self._waiting:
            self._block_since = now
        if self._grouped == len(self._waiting):
            self._group_since = now
        return now

    def _close_what_is_due(self, now: float) -> None:
        is_full = self._waiting_bytes >= self.limits.block_bytes or now - self._block_since >= self.limits.block_seconds
        if is_full or now - self._group_since >= self.limits.group_seconds:
            with self._unusable_on_error():
                if is_full:
                    self._close_block()
                else:
                    self._write_group()

    def append_run(self, run: Run) -> None:
        """Append the transactions of a run, as `append_all` would."""
        self._check_usable()
        while len(run):
            run = run.cut(self._append_part(run), len(run))

    def _append_part(self, run: Run) -> int:
        """Append as many of a run as are of one hour and have room in the block. Returns how many."""
        import numpy as np

        after = self.state.after(run.head(0))
        if hour_of(after.newest) > hour_of(self.state.newest):
            with self._unusable_on_error():
                self._close_block()
        now = self._note_times()
        sizes = self._waiting_bytes + np.cumsum(run.count_bytes(_RECORD_BYTES))
        newest = np.maximum.accumulate(np.maximum(run.timestamps, after.newest))
        of_hour = int(np.searchsorted(newest, end_of_hour(after.newest)))
        count = min(of_hour, int(np.searchsorted(sizes, self.limits.block_bytes)) + 1, len(run))
        last = run.head(count - 1)
        self._waiting.append(run.cut(0, count))
        self._waiting_bytes = int(sizes[count - 1])
        self.state = State(self.state.seq + count, last.info, int(newest[count - 1]), last.gtid_offset)
        self._gtids = run.set_after(count - 1)
        self._close_what_is_due(now)
        return count

    def append_large(self, head: Transaction, records: Iterable[Record], gtids: object) -> None:
        """Append a transaction that memory may not hold: `head` with `records`. One larger than a block goes to the
        bucket in parts, which readers do not see before the last one. What `records` raises leaves the store as it was."""
        after = self.state.after(head)
        start, found, size = None, [], 0
        try:
            for record in records:
                found.append(record)
                size += self._weigh((record,))
                if size >= self.limits.block_bytes:
                    with self._unusable_on_error():
                        if start is None:
                            self._close_block()
                        draft = self._draft_part(head._replace(records=tuple(found)), begins=start is None)
                        # CRASH WINDOW: parts without their end; the next holder cuts the bucket before them.
                        place = self._place_block(encode_block(draft, compress=True), hour_of(after.newest))
                        start = place if start is None else start
                    found, size = [], 0
        except BaseException:
            if start is not None and not self._broken:
                with self._unusable_on_error():
                    self._cut_bucket(start)
            raise
        last = head._replace(records=tuple(found))
        if start is None:
            self.append(last, gtids)
            return
        with self._unusable_on_error():
            draft = replace(self._draft_part(last, begins=False), after=after, gtids_after=str(gtids), ends=True)
            self._place_block(encode_block(draft, compress=True), hour_of(after.newest))
            self.state, self._gtids = after, gtids
            self._begin_tail()

    def sync(self) -> State:
        """Make everything appended durable. Returns the state after it. Raises LeaseLostError where a new holder came: then
        it is unknown what became of the transactions since the last time, and the new holder knows."""
        with self._unusable_on_error():
            if self._waiting and self.clock() - self._block_since >= self.limits.block_seconds:
                self._close_block()
            self._write_group()
        return self.durable

    def close(self) -> None:
        """Close the block, and end. The store does not need it; readers and the next holder have less to do."""
        with self._unusable_on_error():
            self._close_block()
        self._broken = True

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()

    # taking over

    def _take_over(self) -> None:
        names = self.disk.list_names("holders")
        if Fences.of(names).claim >= self.fence:
            raise LeaseLostError(f"the change store has a holder with fence {Fences.of(names).claim}, ours is {self.fence}")
        self.disk.publish(claim_path(self.fence), b"")
        # CRASH WINDOW: a claim without a record: the former holder stops, readers leave out its end; the next one goes on.
        view = read_view(self.disk, self.fence)
        last = view.buckets[-1] if view.buckets else None
        self._last_id = last.file.id if last else None
        self._entries = self._read_entries(view)
        self._cut_torn_indexes(view)
        self.state = self.durable = view.end
        self._gtids = view.gtids
        if view.tail:
            self._place_block(encode_block(_join_groups(view), compress=True), hour_of(view.end.newest))
            # CRASH WINDOW: a bucket whose holder has no record: nobody reads it, and the next holder seals the tail again.
        begin = self._bucket.id if self._bucket else next_bucket(self._last_id, self._last_id.hour if self._last_id else 0)
        self._begin_tail()
        length = last.length if last and last.length else 0
        oldest = view.buckets[0].file.id if view.buckets else None
        spans = close_spans(view.holders, last.file if last else None, length, oldest)
        self._check_held()
        self.disk.publish(record_path(self.fence), Holders((*spans, Span(self.fence, begin)), view.end.seq).encode())
        # CRASH WINDOW: claims, records and tails of former holders: nobody reads them, the next holder removes them.
        tails = [tail for name in self.disk.list_names("tail") if (tail := parse_tail(name)) and tail.fence < self.fence]
        self.disk.remove([*(tail.path for tail in tails), *find_outdated(self.disk.list_names("holders"), self.fence)])

    def _read_entries(self, view: View) -> list[Entry]:
        """L1 as it should be: what the file lacks comes from the buckets."""
        index = Index(self.disk.map_file(L1_PATH))
        known = {(entry.position, entry.fence): entry for entry in map(index.__getitem__, range(len(index))) if entry}
        return [
            known.get((DataPosition(b.file.id, 0), b.file.fence))
            or Entry(read_first(self.disk, b.file)[0].before, DataPosition(b.file.id, 0), b.file.fence)
            for b in view.buckets
        ]

    def _cut_torn_indexes(self, view: View) -> None:
        """Cut the former holder's L2 before what a power loss tore. What it lacks then is read from the blocks."""
        for bucket in view.buckets:
            if view.holders is not None and bucket.file.fence == view.holders.open.fence:
                index = Index(self.disk.map_file(bucket.file.index_path))
                sound = next((number for number in range(len(index)) if index[number] is None), len(index))
                if sound < len(index):
                    self.disk.append_index(bucket.file.index_path, sound * ENTRY_BYTES, b"")

    # groups, blocks, buckets

    def _write_group(self) -> None:
        if self._grouped == len(self._waiting):
            return
        assert self._tail is not None
        group = self._waiting[self._grouped :]
        draft = Draft(self.durable, self.state, self._durable_gtids, self.gtids, group)
        data = encode_block(draft, compress=False).place(DataPosition(TAIL, self._tail_bytes).pack(), self.fence)
        self.before_durable()
        self._check_held()
        self.disk.append(self._tail.path, self._tail_bytes, data)
        self._check_held()  # a holder that claimed the store before may have read the tail before it had this group
        self._tail_bytes += len(data)
        self._grouped = len(self._waiting)
        self.durable, self._durable_gtids = self.state, self.gtids

    def _close_block(self) -> None:
        """Put all that waits into the bucket. What is not in the tail yet becomes durable by this."""
        if self._waiting:
            draft = Draft(self._closed, self.state, self._closed_gtids, self.gtids, self._waiting)
            self._place_block(encode_block(draft, compress=True), hour_of(self.state.newest))
            # CRASH WINDOW: bucket and tail have the same transactions; readers know by their numbers.
            self._begin_tail()

    def _begin_tail(self) -> None:
        """Begin an empty tail behind the last block. That it is there proves that the blocks before it were durable."""
        former = self._tail
        self._tail = TailFile(self.fence, self.state.seq + 1)
        self._check_held()
        self.disk.append(self._tail.path, 0, b"")
        if former is not None:
            # CRASH WINDOW: the former tail is there, too; readers have its transactions from the bucket.
            self.disk.remove([former.path])
        self._tail_bytes = 0
        self._waiting = []
        self._waiting_bytes = self._grouped = 0
        self._closed = self.durable = self.state
        self._closed_gtids = self._durable_gtids = self.gtids

    def _draft_part(self, part: Transaction, *, begins: bool) -> Draft:
        return Draft(self.state, self.state, self.gtids, self.gtids, [part], begins=begins, ends=False)

    def _place_block(self, block: Encoded, hour: int) -> int:
        """Append a block to the bucket, or to a new one. Returns its offset. Parts that go on stay in their bucket."""
        full = self._bucket is not None and self._offset > 0 and self._offset + block.size > self.limits.bucket_bytes
        if self._bucket is None or (block.draft.begins and (full or hour > self._bucket.id.hour)):
            self._last_id = next_bucket(self._last_id, hour)
            self._bucket, self._offset = BucketFile(self._last_id, self.fence), 0
            self._indexed, self._indexed_offset = 0, 0
        if self._offset + block.size > OFFSETS:
            raise PermanentError("a transaction takes more than 4 GiB of a bucket", subject=self._bucket.path)
        position = DataPosition(self._bucket.id, self._offset)
        data = block.place(position.pack(), self.fence)
        self.before_durable()
        self._check_held()
        self.disk.append(self._bucket.path, self._offset, data)
        # CRASH WINDOW: a block that no index tells of; readers walk on from the last one that is told.
        self._check_held()
        if block.draft.begins:
            self._index_block(Entry(block.draft.before, position, self.fence))
        self._offset += len(data)
        return position.offset

    def _index_block(self, entry: Entry) -> None:
        assert self._bucket is not None
        offset = entry.position.offset
        if offset == 0:
            if self._entries[-1:] != [entry]:  # the same, where parts of a transaction were cut
                self._entries.append(entry)
            self.disk.publish(L1_PATH, encode_index(self._entries))
        if self._indexed == 0 or offset - self._indexed_offset >= self.limits.index_bytes:
            self.disk.append_index(self._bucket.index_path, self._indexed * ENTRY_BYTES, entry.encode())
            self._indexed, self._indexed_offset = self._indexed + 1, offset

    def _cut_bucket(self, offset: int) -> None:
        """Put a block of nothing in the place of parts that will have no end. So a bucket is never empty, and what L2 tells
        of this place stays true."""
        assert self._bucket is not None
        nothing = encode_block(Draft(self.state, self.state, self.gtids, self.gtids, ()), compress=True)
        data = nothing.place(DataPosition(self._bucket.id, offset).pack(), self.fence)
        self._check_held()
        self.disk.append(self._bucket.path, offset, data)
        self._offset = offset + len(data)

    def _weigh(self, records: Iterable[Record]) -> int:
        """The bytes that a transaction of these records takes in memory, roughly: of a batch, its share by rows."""
        size = _RECORD_BYTES
        for record in records:
            size += _RECORD_BYTES
            if isinstance(record, Rows):
                if record.whole is not self._weighed:
                    self._weighed, self._row_bytes = record.whole, record.whole.nbytes / max(1, record.whole.num_rows)
                size += int(self._row_bytes * record.count)
            elif isinstance(record, Ddl):
                size += len(record.sql)
            elif isinstance(record, Mark):
                size += len(record.text)
        return size

    # fences and failures

    def _check_held(self) -> None:
        """Raise LeaseLostError where somebody claimed the store. Comes before each effect: at most one is too late."""
        Fences.of(self.disk.list_names("holders")).check_held(self.fence)

    def _check_usable(self) -> None:
        if self._broken:
            raise PermanentError("this writer of the change store has ended", hint="open a new one, with a fence of its own")

    @contextmanager
    def _unusable_on_error(self) -> Iterator[None]:
        self._check_usable()
        try:
            yield
        except BaseException:
            self._broken = True
            raise


def _join_groups(view: View) -> Draft:
    first: Group = view.tail[0]
    before = decode_gtids(first.rest[: first.header.head_bytes])[0]
    transactions = [
        t for group in view.tail for t in decode_transactions(group.header, group.rest[group.header.head_bytes :])
    ]
    return Draft(first.header.before, view.end, before, view.gtids, transactions)
