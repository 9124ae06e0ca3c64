"""Spans of a source at its readers, for who is no member of a task: planned and fetched.

Several readers may serve one store, or copies of it: each number is the same transaction there. Which of them answers is of
no account: a part's blocks must begin and end at the transactions that it was planned with, at whichever reader.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable

from tidemark.changes.delivery.blocks import Key
from tidemark.changes.delivery.http.client.fetched import FetchedStretches
from tidemark.changes.delivery.http.client.held_point import HeldPoint
from tidemark.changes.delivery.http.client.readers import Address, Reader, most_telling
from tidemark.changes.delivery.http.client.session import ReaderClient
from tidemark.changes.delivery.spans import Span, SpanAsked
from tidemark.changes.delivery.storage_points import OtherStoreError, point_after, stands_at
from tidemark.changes.store.block import Chosen
from tidemark.changes.store.read import Stretch
from tidemark.errors import RetryableError, TidemarkError
from tidemark.ledger.delivery import StoragePoint, TaskRow

AGAIN_SECONDS = 0.5


class SpanReaders:
    """Readers of one source. `refused`: the addresses that did not answer of late. They are asked last; who asks again keeps
    the set. Nothing is opened before it is needed."""

    def __init__(self, address: Address, task: str, source: str, refused: set[str] | None = None) -> None:
        self._address = address
        self._task = task
        self._source = source
        self._refused = refused if refused is not None else set()

    def find_span(self, asked: SpanAsked) -> Span:
        """A span of their store, by the first that answers. Raises what says most, where for some seconds none does."""
        turns = Turns(self._open_readers(), self._address.patience_seconds)
        try:
            while True:
                reader = turns.reader
                try:
                    found = reader.find_span(self._task, self._source, asked)
                    self._refused.discard(reader.url)
                    return found
                except TidemarkError as wrong:
                    self._refused.add(reader.url)
                    turns.refuse(wrong)
        finally:
            turns.close()

    def fetch_blocks(self, start: StoragePoint, end: StoragePoint, chosen: Chosen | None = None) -> FetchedSpan:
        """The blocks of a part. `chosen`: the columns of rows that are decoded."""
        readers = self._open_readers()
        random.shuffle(readers)  # so that parts spread
        readers.sort(key=lambda reader: reader.url in self._refused)
        task = TaskRow(self._task, self._source, 1, "mixed", "split")
        return FetchedSpan(Turns(readers, self._address.patience_seconds), task, (start, end), chosen)

    def hold_point(self, point: StoragePoint) -> HeldPoint:
        """The point of the task, which has one shard, held until it is closed; a task that has not begun begins at `point`.
        Errors as of `HeldPoint`."""
        return HeldPoint(self._open_readers(), self._task, self._source, point)

    def _open_readers(self) -> list[Reader]:
        urls = sorted(self._address.urls, key=lambda url: url in self._refused)
        return [Reader(self._address, url) for url in urls]


class Turns:
    """Which reader is asked next. After `refuse` it is the next one; where all refused, they are asked again for a while,
    unless what they say lasts."""

    def __init__(
        self,
        readers: list[Reader],
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._readers = deque(readers)
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._reasons: list[Exception] = []
        self._since: float | None = None

    @property
    def reader(self) -> Reader:
        return self._readers[0]

    def accept(self) -> None:
        self._reasons, self._since = [], None

    def refuse(self, wrong: Exception) -> None:
        """Raises what says most, where no reader is left to be asked."""
        self._since = self._clock() if self._since is None else self._since
        self._reasons.append(wrong)
        self._readers.rotate(-1)
        if len(self._reasons) < len(self._readers):
            return
        is_lasting = not any(isinstance(one, RetryableError) for one in self._reasons)
        if is_lasting or self._clock() - self._since >= self._patience:
            raise most_telling(self._reasons)
        self._reasons = []
        self._sleep(AGAIN_SECONDS)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


class FetchedSpan:
    """The blocks of one part, in order, from whichever reader answers: where one dies, the next goes on behind what was
    given.

    Who reads waits for each. In the middle of a transaction that is in several blocks no other reader goes on: copies may
    have cut it elsewhere.
    """

    def __init__(
        self, turns: Turns, task: TaskRow, part: tuple[StoragePoint, StoragePoint], chosen: Chosen | None = None
    ) -> None:
        self._turns = turns
        self._task = task
        self._at, self._end = part
        self._chosen = chosen
        self._changed = threading.Condition()
        self._fetched: FetchedStretches | None = None
        self._failed: Exception | None = None
        self._is_proven = False  # of this reader: it has what was planned before its first block

    def read_next(self, ahead: Key) -> Stretch:
        """The next block. Raises what says most, where for some seconds no reader has it."""
        while True:
            try:
                found = self._wait_for_next(ahead)
                if not self._is_proven and not stands_at(found, self._at):
                    raise self._tell_other(self._at)
                break
            except TidemarkError as wrong:
                self._leave_reader()
                if ahead.part:
                    raise RetryableError(f"{wrong}, in the middle of transaction seq:{ahead.seq}: run again") from wrong
                self._turns.refuse(wrong)
        self._turns.accept()
        self._is_proven = True
        if found.header.after.seq + 1 >= self._end.seq and not stands_at(found, self._end):
            raise self._tell_other(self._end)
        if found.header.ends:
            self._at = point_after(found.header.after)
        return found

    def close(self) -> None:
        self._leave_reader()
        self._turns.close()

    def _wait_for_next(self, ahead: Key) -> Stretch:
        if self._fetched is None:
            self._begin(self._turns.reader, ahead.seq)
        with self._changed:
            assert self._fetched is not None
            while (found := self._fetched.read_next(ahead)) is None:
                if self._failed is not None:
                    raise self._failed
                self._changed.wait()
        return found

    def _begin(self, reader: Reader, first: int) -> None:
        def connect(seq: int) -> ReaderClient:
            return reader.connect(self._task, seq, self._chosen)

        self._failed, self._is_proven = None, False
        with self._changed:  # its thread tells nothing before it is known here
            self._fetched = FetchedStretches(connect, first, self._note, self._fail, until=self._end.seq)

    def _note(self, seq: int) -> None:
        del seq
        with self._changed:
            self._changed.notify_all()

    def _fail(self, fetched: FetchedStretches, wrong: Exception) -> None:
        with self._changed:
            if fetched is self._fetched:
                self._failed = wrong
            self._changed.notify_all()

    def _leave_reader(self) -> None:
        with self._changed:
            fetched, self._fetched = self._fetched, None
        if fetched is not None:
            fetched.close()

    def _tell_other(self, point: StoragePoint) -> OtherStoreError:
        url = self._turns.reader.url
        return OtherStoreError(
            f"the reader {url} has another transaction before seq:{point.seq} than the query was planned with",
            hint="give addresses of one store, or of copies of it, and start the query again",
            subject=url,
        )
