"""One connection of a push: reads the requested ranges, sends them in frames, and passes on the far end's answers.

A thread of its own reads, hashes, encrypts and sends, so that the coordinating thread never waits for the network. It
reads by the program of a far end in a pull (`stores.agent.reader.RangeReader`). Read errors are passed on as answers, too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import (
    ANSWERS,
    BARE,
    CHANGED,
    COPY,
    DATA,
    HEAD,
    NOTHING,
    PIECES,
    PREFIX,
    RECORD,
    SEALED,
    SEALS,
    SOURCE,
    WORDS,
)
from tidemark.stores.agent.reader import RangeReader
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.stream.connection import Asking, Connection
from tidemark.transfer.stream.schedule import Span

ANSWERS_ROOM, ANSWERS_SLABS = HEAD.size + ANSWERS * RECORD.size, 3
UNSENT = 249  # local error code of a piece: the end of the link's window came before it
UNCONFIRMED = 253  # local error code of a seal: an error of the source, see `PushConnection.unconfirmed`


class Seal(NamedTuple):
    """A complete file to name. `digest`: the digest it must have; `confirm`, if given, is called for it instead."""

    number: int
    digest: bytes
    confirm: Callable[[], bytes | None] | None = None  # returns None if the source changed; raises TidemarkError


class Feed(NamedTuple):
    """The settings and callbacks that all connections of a push share."""

    root: str  # of the source
    reserve: int  # bytes that stay free at the far end
    describe: Callable[[int, int], bytes]  # file number, flags: a FILE record and its path
    read: Callable[[int, int, int, bytes], bool]  # number, edition, end, digest up to there or b""; False: it is CHANGED
    asked: Callable[[int, Sequence[Span]], Sequence[int]]  # connection, spans: numbers of the files that are COPYs
    passes: Callable[[int], bool]  # whether so many bytes may still be sent
    crossed: Callable[[Sequence[tuple[int, int]]], None]  # (number, bytes) given to a connection
    broke: Callable[[BaseException], None]  # an unexpected error


class Reader(Protocol):
    """The end that reads the files."""

    def answer(self, asked: bytes) -> None:
        """Read and send packed RANGEs, each followed by its path."""
        ...


class PushConnection(Connection):
    def __init__(self, feed: Feed, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seals: set[int] = set()  # asked, not answered
        self.copies: set[int] = set()  # small files that another connection was asked for, too
        self.unconfirmed: dict[int, TidemarkError] = {}  # files whose source could not be digested again, and why
        self._feed = feed
        self._jobs: queue.SimpleQueue[bytes | list[Seal] | None] = queue.SimpleQueue()
        self._closing = False
        self._excuses, self._excused = 0, -1  # in a row; its answers at the last of them

    def start_stream(self, frame: int, slabs: int, digest: bool) -> None:
        self._sink = self.session.pipe.divert_frames(ANSWERS_ROOM, ANSWERS_SLABS, self._deliver_frame)
        reader = self._open_reader(frame, digest)
        if self._sink is None:
            threading.Thread(target=self._read_frames, name=f"tidemark-push-{self.number}", daemon=True).start()
        threading.Thread(target=self._run_requests, args=(reader,), name=f"tidemark-feed-{self.number}", daemon=True).start()

    def _open_reader(self, frame: int, digest: bool) -> Reader:
        """Begin the operation at the far end, and return the reader for it."""
        self.session.begin_operation("receive", frame, self._feed.reserve)
        return RangeReader(Disk(self._feed.root), self._send_pieces, frame, digest)

    def ask_spans(self, spans: Sequence[Span], files: dict[int, Asking]) -> None:
        self.copies.update(self._feed.asked(self.number, spans))
        super().ask_spans(spans, files)

    def queue_ranges(self, ranges: bytes) -> None:
        self._jobs.put(ranges)

    def publish_files(self, seals: list[Seal]) -> None:
        self.seals.update(seal.number for seal in seals)
        self._jobs.put(seals)

    def end_requests(self) -> None:
        self._jobs.put(None)

    @property
    def is_busy(self) -> bool:
        return bool(self.seals)

    def silent_seconds(self, now: float, asked: bool) -> float:
        return super().silent_seconds(now, asked or self.is_busy)

    def is_excused(self) -> bool:
        """Whether it may be silent for longer: a far end may take long to make many bytes durable. Its server must answer a
        keepalive, and the excuses in a row are limited."""
        if super().is_excused():  # a keepalive's answer would come behind all bytes in flight
            return True
        answers = self._answered_bytes()
        self._excuses = self._excuses + 1 if answers == self._excused else 1
        self._excused = answers
        limits = self.connection.limits
        if self._excuses * limits.stall > limits.silence or not self.session.pipe.is_connected:
            return False
        self._heard = time.monotonic()
        return True

    def _answered_bytes(self) -> int:
        """Return how many bytes of answers came."""
        return self._sink.received if self._sink is not None else self.bytes

    def close(self) -> None:
        self._closing = True
        self._jobs.put(None)
        super().close()

    # the thread that sends

    def _run_requests(self, reader: Reader) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if self._closing:
                    return
                if isinstance(job, bytes):
                    reader.answer(job)
                else:
                    self._send_seals(job)
            if not self._closing:
                self.session.end_data()
        except (UnreachableError, OSError):
            self._deliver_frame(None)
        except BaseException as bug:  # else its seals would be waited for until the stall limits end it
            self._feed.broke(bug)
            self._deliver_frame(None)

    def _send_pieces(self, records: bytes, data: memoryview) -> None:
        kept: list[tuple[int, bytes, tuple[int, int]]] = []  # number, record, where its bytes are
        troubles: list[bytes] = []
        end = 0
        for at, (number, offset, length, trouble, kind, note, digest) in zip(
            range(0, len(records), RECORD.size), RECORD.iter_unpack(records), strict=True
        ):
            start, end = end, end + length
            if trouble:
                troubles.append(RECORD.pack(number, offset, 0, trouble, SOURCE, note, NOTHING))
            elif self._feed.read(number, note, offset + length, digest if kind == PREFIX else b""):
                kept.append((number, records[at : at + RECORD.size], (start, end)))
            else:
                troubles.append(RECORD.pack(number, offset, length, CHANGED, SOURCE, 0, NOTHING))
        if kept and not self._feed.passes(sum(end - start for _, _, (start, end) in kept)):
            pieces = [(number, *RECORD.unpack(record)[1:3]) for number, record, _ in kept]
            troubles += [RECORD.pack(*piece, UNSENT, SOURCE, 0, NOTHING) for piece in pieces]
            kept = []
        self._report_records(troubles)
        if not kept:
            return
        numbers = [number for number, _, _ in kept]
        self._feed.crossed([(number, end - start) for number, _, (start, end) in kept])
        if len(kept) * RECORD.size < len(records):  # bytes of another edition are not sent
            data = memoryview(b"".join([data[start:end] for _, _, (start, end) in kept]))
        self._send_frame(PIECES, numbers, [record for _, record, _ in kept], data)

    def _send_seals(self, seals: Sequence[Seal]) -> None:
        ready: dict[int, bytes] = {}
        troubles: list[bytes] = []
        for number, digest, confirm in seals:
            trouble = CHANGED
            try:
                found = confirm() if confirm is not None else digest
            except TidemarkError as error:
                found, trouble, self.unconfirmed[number] = None, UNCONFIRMED, error
            if found is None:
                troubles.append(RECORD.pack(number, 0, 0, trouble, SEALED, 0, NOTHING))
            else:
                ready[number] = found
        self._report_records(troubles)
        records = [
            RECORD.pack(number, 0, 0, 0, BARE if digest == NOTHING else PREFIX, 0, digest)
            for number, digest in ready.items()
        ]
        if records:
            self._send_frame(SEALS, list(ready), records, memoryview(b""))

    def _send_frame(self, asked: int, numbers: Sequence[int], records: Sequence[bytes], data: memoryview) -> None:
        files = b"".join(
            self._feed.describe(number, COPY if number in self.copies else 0) for number in dict.fromkeys(numbers)
        )
        self.session.send_bulk_data(b"".join([WORDS.pack(asked, len(files)), files, *records]), data)

    def _report_records(self, records: Sequence[bytes]) -> None:
        if records:
            self._deliver_frame(Frame(DATA, memoryview(b"".join(records)), memoryview(b""), bytearray()))
