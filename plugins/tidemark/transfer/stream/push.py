"""Send files of a disk of this machine to a far end that has python3, as fast as the line.

The coordinating thread (`session`) decides what is sent over which connection. The far end checks, writes and answers
each piece (`stores.agent.writer`). Complete files get their names there, companions first.

A thread of each connection reads, hashes, encrypts and sends, so that the coordinating thread never waits for the
network. It reads by the program of a far end in a pull (`stores.agent.reader.RangeReader`). Read errors are passed on as
answers, too. The reader may be another node instead (`direct`).
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.agent.block_journal import Block, Identity, copy_of, journal_of, part_of
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import (
    ANSWERS,
    ANY,
    BARE,
    CHANGED,
    COPY,
    DATA,
    DIFFERS,
    FILE,
    HEAD,
    LARGE,
    LOST,
    NOTHING,
    PIECES,
    PREFIX,
    READ,
    RECORD,
    SEALED,
    SEALS,
    SHARED,
    SOURCE,
    WORDS,
)
from tidemark.stores.agent.part_file import spans_of
from tidemark.stores.agent.reader import RangeReader, editions_of, same_edition
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error
from tidemark.stores.protocol import Range
from tidemark.stores.python.store import PythonStore
from tidemark.stores.retrying import SOON
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.existing import block_differs_error, digest_differs_error, identity_of, may_have_changed, same_at
from tidemark.transfer.items import SendItem, TryAgain, source_changed_error
from tidemark.transfer.stream.connection import Asking, Connection
from tidemark.transfer.stream.connections import Connections
from tidemark.transfer.stream.publish import Whole
from tidemark.transfer.stream.schedule import Span, uncovered_spans
from tidemark.transfer.stream.session import Ending, Existing, Session

ANSWERS_ROOM, ANSWERS_SLABS = HEAD.size + ANSWERS * RECORD.size, 3
UNSENT = 249  # local error code of a piece: the end of the link's window came before it
UNCONFIRMED = 253  # local error code of a seal: an error of the source, see `PushConnection.unconfirmed`

_GONE = (errno.ESTALE, "somebody else took its part away, or wrote to it")
_AGAIN = {errno.ENOENT: _GONE, errno.ESTALE: _GONE, LOST: (errno.EIO, "the disk lost bytes that were written")}
_UNKNOWN = Identity(0, 0, 0)  # of a small file: it has no journal


@dataclass
class _Pieces:
    """A file of more than one piece."""

    identity: Identity
    confirm: bool  # its times cannot show a change: always digested again at the source before it is named
    repeated: int = 0  # pieces asked for again


@dataclass
class _Sealing:
    """Complete files without names: naming is asked of a connection, or waits for one."""

    digests: dict[int, str] = field(default_factory=dict)  # by number; "" if the far end will send it
    waiting: list[int] = field(default_factory=list)
    by: dict[int, int] = field(default_factory=dict)  # small file: the connection that has its part


class Seal(NamedTuple):
    """A complete file to name. `digest`: the digest it must have; None: the source is digested for it."""

    number: int
    digest: bytes | None


class Push:
    """The direction to a far end: from a disk of this machine; or, with `path`, from another far end that sends to the
    target over it. `make` makes a connection."""

    def __init__(
        self, session: Session, path: PythonStore | None = None, make: Callable[..., PushConnection] | None = None
    ) -> None:
        source, target, wire = session.source, session.target, session.wire
        assert isinstance(target, PythonStore)
        self.line = Connections(
            path or target, session.schedule, session.asking, wire, partial(make or PushConnection, self), sends=True
        )
        self.session = session
        self.source = source
        self._target = target
        self._large: dict[int, _Pieces] = {}  # all of the round
        self._first: dict[int, int] = {}  # small file: the connection that was asked for it first
        self._editions: dict[int, int] = {}  # of large files, when they were listed or first read
        self._wholes: dict[int, bytes] = {}  # digests of large files that went in order over one connection
        self._sealing = _Sealing()

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        assert isinstance(connection, PushConnection)
        files, schedule = self.session.files, self.session.schedule
        for number, offset, length, trouble, kind, size, digest in self.session.parse_records(frame):
            if number >= len(files) or (kind == READ and isinstance(self.source, LocalStore)):
                raise self.session.not_asked()
            if kind == READ:
                self._on_read(Span(number, offset, length), size, digest)
            elif kind == SEALED:
                connection.seals.discard(number)
                self._on_published(connection, Span(number, offset, length), trouble, digest)
            elif trouble:
                schedule.record_refusal(connection.number, number, length)
                self._on_trouble(number, (offset, length), trouble, kind, size)
            else:
                self._on_kept(connection, number, (offset, length), digest)
        self._publish_complete(connection)

    def advance(self) -> bool:
        if self._sealing.waiting or self.session.order.ready:
            self._publish_complete(None)
        return not self._sealing.digests

    def on_dropped(self, number: int, again: bool) -> None:
        """Nothing is open here. The far end's journal says what is good of the part."""

    def finish(self) -> None:
        litter = self.session.wire.litter
        if litter and not isinstance(self.session.error, UnreachableError):
            self._target.remove(litter)
            litter.clear()

    # for the threads that send

    def describe_file(self, number: int, flags: int) -> bytes:
        item, large = self.session.files[number], self._large.get(number)
        path = item.target_path.encode()
        if large is None:
            known, flags = _UNKNOWN, flags | (SHARED if self.line.is_long else 0)
        else:
            known, flags = large.identity, LARGE
        return FILE.pack(number, item.size, known.mtime, known.inode, flags, len(path)) + path

    def note_read(self, number: int, edition: int, end: int, prefix: bytes) -> bool:
        large = self._large.get(number)
        if large is None:
            return True
        same, sure = same_edition(self._editions.setdefault(number, edition), edition)
        if not same and large.identity.mtime != ANY:
            return False
        large.confirm = large.confirm or not sure
        if prefix and end == self.session.files[number].size:
            self._wholes[number] = prefix
        return True

    def note_asked(self, connection: int, spans: Sequence[Span]) -> list[int]:
        copies = []
        for number in [span.number for span in spans if span.number not in self._large]:
            if self._first.setdefault(number, connection) != connection:
                copies.append(number)
                path = self.session.files[number].target_path
                self.session.wire.litter += [part_of(path), copy_of(path)]
        return copies

    def count_crossed(self, pieces: Sequence[tuple[int, int]]) -> None:
        self.session.wire.add_spent((self.session.files[number].target_path, length) for number, length in pieces)
        self.session.report(sum(length for _, length in pieces))

    def digest_source(self, number: int) -> bytes | None:
        """Return the digest of the source's bytes now; None if it is missing or shorter. Raises TidemarkError."""
        item = self.session.files[number]
        (found,) = self.source.digest_ranges([Range(item.source_path, 0, item.size)])
        return None if found is None else bytes.fromhex(found)

    def name_elsewhere(self, numbers: Iterable[int]) -> None:
        """Ask another connection to name these files. Repeating a request is harmless."""
        self._sealing.waiting += sorted(numbers)

    # answers of the far end

    def _on_read(self, span: Span, edition: int, digest: bytes) -> None:
        """Record a piece that the far source read and sent. If it is of a changed file, give the file up for this try."""
        number, _, length = span
        self.count_crossed([(number, length)])
        known = digest if digest != NOTHING else b""
        if self.session.schedule.waits_for(number) and not self.note_read(number, edition, span.end, known):
            self.session.retry_file(number, source_changed_error(self.session.files[number]))

    def _on_kept(self, connection: PushConnection, number: int, span: tuple[int, int], digest: bytes) -> None:
        item, (offset, length) = self.session.files[number], span
        connection.bytes += length
        awaited = self.session.schedule.record_arrival(connection.number, number, offset, length)
        large = self._large.get(number)
        if not awaited:
            return
        if large is None:
            if length != item.size:
                raise self.session.not_asked()
            self._sealing.by[number] = connection.number
            self.session.complete_file(number, Whole(item, b"", digest.hex(), False, number=number))
            return
        self.session.kept_bytes += length
        if self.session.schedule.has_arrived_whole(number):
            self.session.schedule.complete_file(number)
            self.session.order.add_complete(number, Whole(item, b"", "", True, number=number))

    def _on_trouble(self, number: int, span: tuple[int, int], trouble: int, kind: int, size: int) -> None:
        if trouble == UNSENT or not self.session.schedule.waits_for(number):
            return
        item = self.session.files[number]
        if kind == SOURCE:
            self.session.on_source_error(number, trouble, size)
        elif trouble == DIFFERS:  # its journal says what is good: the next try sends the rest
            self.session.retry_file(number, TryAgain(block_differs_error(item, "target", *span)))
        elif trouble in _AGAIN:
            self.session.retry_file(number, TryAgain(self._at_target(number, trouble)))
        elif trouble == errno.ENOSPC and size:
            self.session.fail_file(number, self.session.no_room(size))
        else:
            self.session.fail_file(number, self._at_target(number, trouble))

    def _at_target(self, number: int, trouble: int) -> TidemarkError:
        said = _AGAIN.get(trouble, (trouble, os.strerror(trouble)))
        return os_error(OSError(*said), self._target.where, self.session.files[number].target_path)

    # names

    def _publish_complete(self, connection: PushConnection | None) -> None:
        """Ask for the names of complete files: small ones of the connection that has their part, others of `connection`."""
        sealing = self._sealing
        for whole in self.session.order.pop_ready():
            sealing.digests[whole.number] = whole.sha256
            sealing.waiting.append(whole.number)
        if not sealing.waiting:
            return
        live = {c.number: c for c in self.line.active if isinstance(c, PushConnection)}
        if connection is None or connection.number not in live:
            connection = next(iter(live.values()), None)
        if connection is None:
            return  # the round is about to end
        asked: dict[PushConnection, list[Seal]] = {}
        for number in sealing.waiting:
            by = live.get(sealing.by.get(number, connection.number), connection)
            asked.setdefault(by, []).append(self._to_seal(number))
        sealing.waiting.clear()
        for by, seals in asked.items():
            by.publish_files(seals)

    def _to_seal(self, number: int) -> Seal:
        """Make the naming request with the digest that the file must have. The source is digested then if its pieces went
        over several connections or may be of two versions."""
        large, item = self._large.get(number), self.session.files[number]
        if large is None:
            return Seal(number, bytes.fromhex(self._sealing.digests[number]))
        if item.sha256:
            return Seal(number, bytes.fromhex(item.sha256))
        if not large.confirm and not self.session.wire.options.digest_at_source:
            return Seal(number, NOTHING)
        if not large.confirm and number in self._wholes:
            return Seal(number, self._wholes[number])
        return Seal(number, None)

    def _on_published(self, connection: PushConnection, span: Span, trouble: int, digest: bytes) -> None:
        number, offset, length = span
        item, known = self.session.files[number], self._sealing.digests.pop(number, None)
        if known is None:
            return
        if trouble == UNCONFIRMED:
            error = connection.unconfirmed.pop(number, None) or self.session.not_asked()
            if isinstance(error, SOON):
                self.session.retry_file(number, TryAgain(error))
            else:
                self.session.fail_file(number, error)
        elif trouble == CHANGED:
            self.session.on_source_error(number, trouble, 0)
        elif trouble in _AGAIN:
            self.session.retry_file(number, TryAgain(self._at_target(number, trouble)))
        elif trouble == DIFFERS and length:
            self._repeat_piece(number, offset, length)
        elif trouble == DIFFERS:
            self._discard_journal(number)
            self.session.retry_file(
                number, TryAgain(digest_differs_error(item, digest.hex(), item.sha256 or "the source's"))
            )
        elif trouble:
            self.session.fail_file(number, self._at_target(number, trouble))
        else:
            if number not in self._large and item.may_have_an_old_journal:
                self.session.wire.litter.append(journal_of(item.target_path))
            self.session.report([self.session.wire.make_sent(item, known or digest.hex())])

    def _repeat_piece(self, number: int, offset: int, length: int) -> None:
        """Send a piece again that differs in the part. Fails the file after `retries` of them."""
        large = self._large[number]
        large.repeated += 1
        if large.repeated > self.session.wire.options.retries:
            self.session.fail_file(number, block_differs_error(self.session.files[number], "target", offset, length))
            return
        self.session.schedule.repeat_span(number, offset, offset + length)
        self.line.top_up_all()

    def _discard_journal(self, number: int) -> None:
        """Have the journal of a large file removed: its part differs from the source at an unknown place."""
        if number in self._large:
            self.session.wire.litter.append(journal_of(self.session.files[number].target_path))

    # before the first byte

    def plan_existing(self, large: dict[int, SendItem]) -> dict[int, Existing]:
        """Create or open the parts at the far end, and compare what is there with the source."""
        entries, started = self.session.require_entries(large), time.time()
        known = {number: identity_of(large[number], entry) for number, entry in entries.items()}
        seen = self._editions_of([large[number].source_path for number in entries])
        self._editions = {number: edition for number, edition in zip(entries, seen, strict=True) if edition is not None}
        kept = self._begin_parts({number: (known[number], True) for number in entries})
        stale = {number for number, blocks in list(kept.items()) if not self._has_blocks(kept, number, blocks)}
        if self.session.is_stopping:
            return {}  # parts and journals stay
        kept.update(self._begin_parts({number: (known[number], False) for number in stale & kept.keys()}))
        found: dict[int, Existing] = {}
        for number, blocks in kept.items():
            item, path = large[number], large[number].target_path
            confirm = may_have_changed(item, entries[number], started)
            gaps = uncovered_spans(item.size, spans_of(blocks))
            self._large[number] = _Pieces(known[number], confirm)
            found[number] = Existing(known[number], gaps, made=() if blocks else (part_of(path), journal_of(path)))
        return found

    def _editions_of(self, paths: list[str]) -> Sequence[int | None]:
        if isinstance(self.source, LocalStore):
            return editions_of(self.source.disk, paths)
        return self.source.ask_editions(paths)

    def _has_blocks(self, kept: dict[int, list[Block]], number: int, blocks: Sequence[Block]) -> bool:
        """Whether the source still has these blocks. If it cannot be read, fails the file and removes it from `kept`."""
        if self.session.is_stopping:
            return True
        try:
            return same_at(self.source, self.session.files[number].source_path, blocks, lambda: self.session.is_stopping)
        except TidemarkError as error:
            del kept[number]
            self.session.fail_file(number, error)
            return True

    def _begin_parts(self, files: dict[int, tuple[Identity, bool]]) -> dict[int, list[Block]]:
        """Create or open the files' parts. Returns the good blocks of each; files whose part cannot be made fail."""
        asked = [(self.session.files[number].target_path, known, keep) for number, (known, keep) in files.items()]
        kept: dict[int, list[Block]] = {}
        for number, (trouble, found) in zip(files, self._target.begin_parts(asked), strict=True):
            if trouble in _AGAIN:
                self.session.retry_file(number, TryAgain(self._at_target(number, trouble)))
            elif trouble:
                self.session.fail_file(number, self._at_target(number, trouble))
            else:
                kept[number] = [Block(*claim) for claim in found]
        return kept


class Reader(Protocol):
    """The end that reads the files."""

    def answer(self, asked: bytes) -> None:
        """Read and send packed RANGEs, each followed by its path."""
        ...


class PushConnection(Connection):
    def __init__(self, push: Push, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seals: set[int] = set()  # asked, not answered
        self.copies: set[int] = set()  # small files that another connection was asked for, too
        self.unconfirmed: dict[int, TidemarkError] = {}  # files whose source could not be digested again, and why
        self._push = push
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
        self.session.begin_operation("receive", frame, self._push.session.wire.options.reserve)
        return RangeReader(Disk(self._push.source.where.root), self._send_pieces, frame, digest)

    def ask_spans(self, spans: Sequence[Span], files: dict[int, Asking]) -> None:
        self.copies.update(self._push.note_asked(self.number, spans))
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
        self._push.name_elsewhere(self.seals)
        self.seals.clear()
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
            self._push.session.end_round(Ending.BUG, bug)
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
            elif self._push.note_read(number, note, offset + length, digest if kind == PREFIX else b""):
                kept.append((number, records[at : at + RECORD.size], (start, end)))
            else:
                troubles.append(RECORD.pack(number, offset, length, CHANGED, SOURCE, 0, NOTHING))
        if kept and not self._push.session.edge.admit_bytes(sum(end - start for _, _, (start, end) in kept)):
            pieces = [(number, *RECORD.unpack(record)[1:3]) for number, record, _ in kept]
            troubles += [RECORD.pack(*piece, UNSENT, SOURCE, 0, NOTHING) for piece in pieces]
            kept = []
        self._report_records(troubles)
        if not kept:
            return
        numbers = [number for number, _, _ in kept]
        self._push.count_crossed([(number, end - start) for number, _, (start, end) in kept])
        if len(kept) * RECORD.size < len(records):  # bytes of another edition are not sent
            data = memoryview(b"".join([data[start:end] for _, _, (start, end) in kept]))
        self._send_frame(PIECES, numbers, [record for _, record, _ in kept], data)

    def _send_seals(self, seals: Sequence[Seal]) -> None:
        ready: dict[int, bytes] = {}
        troubles: list[bytes] = []
        for number, digest in seals:
            trouble = CHANGED
            try:
                found = self._push.digest_source(number) if digest is None else digest
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
            self._push.describe_file(number, COPY if number in self.copies else 0) for number in dict.fromkeys(numbers)
        )
        self.session.send_bulk_data(b"".join([WORDS.pack(asked, len(files)), files, *records]), data)

    def _report_records(self, records: Sequence[bytes]) -> None:
        if records:
            self._deliver_frame(Frame(DATA, memoryview(b"".join(records)), memoryview(b""), bytearray()))
