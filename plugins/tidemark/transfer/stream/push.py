"""Send files of a disk of this machine to a far end that has python3, as fast as the line.

The coordinating thread (`session`) decides what is sent over which connection (`push_connection`). The far end checks,
writes and answers each piece (`stores.agent.writer`). Complete files get their names there, companions first. The reader
may be another node instead (`direct`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.agent.block_journal import Block, Identity, copy_of, journal_of, part_of
from tidemark.stores.agent.frames import ANY, CHANGED, DIFFERS, FILE, LARGE, LOST, NOTHING, SEALED, SHARED, SOURCE
from tidemark.stores.agent.part_file import spans_of
from tidemark.stores.agent.reader import editions_of, same_edition
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.python.store import PythonStore
from tidemark.stores.retrying import SOON
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.existing import block_differs_error, digest_differs_error, identity_of, may_have_changed, same_at
from tidemark.transfer.items import SendItem, TryAgain, Wire
from tidemark.transfer.stream.connection import Connection
from tidemark.transfer.stream.connections import Connections
from tidemark.transfer.stream.publish import Whole
from tidemark.transfer.stream.push_connection import UNCONFIRMED, UNSENT, Feed, PushConnection, Seal
from tidemark.transfer.stream.schedule import Span, uncovered_spans
from tidemark.transfer.stream.session import Ending, Session

_GONE = (errno.ESTALE, "somebody else took its part away, or wrote to it")
_AGAIN = {errno.ENOENT: _GONE, errno.ESTALE: _GONE, LOST: (errno.EIO, "the disk lost bytes that were written")}
_UNKNOWN = Identity(0, 0, 0)  # of a small file: it has no journal


@dataclass
class _Pieces:
    """A file of more than one piece."""

    identity: Identity
    gaps: list[tuple[int, int]]
    kept: bool  # an earlier try left bytes of it
    confirm: bool  # its times cannot show a change: always digested again at the source before it is named
    repeated: int = 0  # pieces asked for again


@dataclass
class _Sealing:
    """Complete files without names: naming is asked of a connection, or waits for one."""

    digests: dict[int, str] = field(default_factory=dict)  # by number; "" if the far end will send it
    waiting: list[int] = field(default_factory=list)
    by: dict[int, int] = field(default_factory=dict)  # small file: the connection that has its part


class Push(Session):
    def __init__(self, wire: Wire, source: LocalStore | PythonStore, target: PythonStore, items: Sequence[SendItem]) -> None:
        super().__init__(wire, items, source.where, target.where)
        self.source = source
        self.target = target
        root, reserve = source.where.root, wire.options.reserve
        feed = Feed(
            root,
            reserve,
            self._describe_file,
            self._note_read,
            self._note_asked,
            self._edge.admit_bytes,
            self._count_crossed,
            partial(self.end_round, Ending.BUG),
        )
        self.line = self._make_connections(feed)
        self._large: dict[int, _Pieces] = {}  # all of the round
        self._first: dict[int, int] = {}  # small file: the connection that was asked for it first
        self._editions: dict[int, int] = {}  # of large files, when they were listed or first read
        self._wholes: dict[int, bytes] = {}  # digests of large files that went in order over one connection
        self._sealing = _Sealing()

    def receive_frame(self, carrier: Connection, frame: Frame) -> None:
        assert isinstance(carrier, PushConnection)
        for number, offset, length, trouble, kind, size, digest in self._parse_records(frame):
            if number >= len(self._files):
                raise self._not_asked()
            if kind == SEALED:
                carrier.seals.discard(number)
                self._on_published(carrier, Span(number, offset, length), trouble, digest)
            elif trouble:
                self.schedule.record_refusal(carrier.number, number, length)
                self._on_trouble(number, (offset, length), trouble, kind, size)
            else:
                self._on_kept(carrier, number, (offset, length), digest)
        self._publish_complete(carrier)

    def on_connected(self) -> None:
        self._publish_complete(None)

    def on_connection_lost(self, carrier: Connection) -> None:
        """Ask another connection to name the files that this one was to name. Repeating a request is harmless."""
        assert isinstance(carrier, PushConnection)
        self._sealing.waiting += sorted(carrier.seals)
        carrier.seals.clear()
        self._publish_complete(None)

    def has_published_all(self) -> bool:
        return not self._sealing.digests

    def close(self) -> None:
        if self.wire.litter and not isinstance(self.error, UnreachableError):
            self.target.remove(self.wire.litter)
            self.wire.litter.clear()

    # the reader

    def _make_connections(self, feed: Feed) -> Connections:
        return Connections(
            self.target, self.schedule, self.asking, self.wire, lambda *what: PushConnection(feed, *what), sends=True
        )

    def _editions_of(self, paths: list[str]) -> Sequence[int | None]:
        assert isinstance(self.source, LocalStore)
        return editions_of(self.source.disk, paths)

    # for the threads that send

    def _describe_file(self, number: int, flags: int) -> bytes:
        item, large = self._files[number], self._large.get(number)
        path = item.target_path.encode()
        if large is None:
            known, flags = _UNKNOWN, flags | (SHARED if self.line.is_long else 0)
        else:
            known, flags = large.identity, LARGE
        return FILE.pack(number, item.size, known.mtime, known.inode, flags, len(path)) + path

    def _note_read(self, number: int, edition: int, end: int, prefix: bytes) -> bool:
        large = self._large.get(number)
        if large is None:
            return True
        same, sure = same_edition(self._editions.setdefault(number, edition), edition)
        if not same and large.identity.mtime != ANY:
            return False
        large.confirm = large.confirm or not sure
        if prefix and end == self._files[number].size:
            self._wholes[number] = prefix
        return True

    def _note_asked(self, connection: int, spans: Sequence[Span]) -> list[int]:
        copies = []
        for number in [span.number for span in spans if span.number not in self._large]:
            if self._first.setdefault(number, connection) != connection:
                copies.append(number)
                path = self._files[number].target_path
                self.wire.litter += [part_of(path), copy_of(path)]
        return copies

    def _count_crossed(self, pieces: Sequence[tuple[int, int]]) -> None:
        self.wire.add_spent((self._files[number].target_path, length) for number, length in pieces)
        self._outcomes.put(sum(length for _, length in pieces))

    # answers of the far end

    def _on_kept(self, carrier: PushConnection, number: int, span: tuple[int, int], digest: bytes) -> None:
        item, (offset, length) = self._files[number], span
        carrier.bytes += length
        awaited = self.schedule.record_arrival(carrier.number, number, offset, length)
        large = self._large.get(number)
        if not awaited:
            return
        if large is None:
            if length != item.size:
                raise self._not_asked()
            self._sealing.by[number] = carrier.number
            self._file_complete(number, Whole(item, b"", digest.hex(), False, number=number))
            return
        self.kept_bytes += length
        if self.schedule.has_arrived_whole(number):
            self.schedule.complete_file(number)
            self._order.add_complete(number, Whole(item, b"", "", True, number=number))

    def _on_trouble(self, number: int, span: tuple[int, int], trouble: int, kind: int, size: int) -> None:
        if trouble == UNSENT or not self.schedule.waits_for(number):
            return
        item = self._files[number]
        if kind == SOURCE:
            self._source_trouble(number, trouble, size)
        elif trouble == DIFFERS:  # its journal says what is good: the next try sends the rest
            self._retry_file(number, TryAgain(block_differs_error(item, "target", *span)))
        elif trouble in _AGAIN:
            self._retry_file(number, TryAgain(self._at_target(number, trouble)))
        elif trouble == errno.ENOSPC and size:
            self._fail_file(number, self._no_room(size))
        else:
            self._fail_file(number, self._at_target(number, trouble))

    def _at_target(self, number: int, trouble: int) -> TidemarkError:
        said = _AGAIN.get(trouble, (trouble, os.strerror(trouble)))
        return os_error(OSError(*said), self.target.where, self._files[number].target_path)

    # names

    def _publish_complete(self, carrier: PushConnection | None) -> None:
        """Ask for the names of complete files: small ones of the connection that has their part, others of `carrier`."""
        sealing = self._sealing
        for whole in self._order.pop_ready():
            sealing.digests[whole.number] = whole.sha256
            sealing.waiting.append(whole.number)
        if not sealing.waiting:
            return
        live = {c.number: c for c in self.line.active if isinstance(c, PushConnection)}
        if carrier is None or carrier.number not in live:
            carrier = next(iter(live.values()), None)
        if carrier is None:
            return  # the round is about to end
        asked: dict[PushConnection, list[Seal]] = {}
        for number in sealing.waiting:
            by = live.get(sealing.by.get(number, carrier.number), carrier)
            asked.setdefault(by, []).append(self._to_seal(number))
        sealing.waiting.clear()
        for by, seals in asked.items():
            by.publish_files(seals)

    def _to_seal(self, number: int) -> Seal:
        """Make the naming request with the digest that the file must have. The source is digested then if its pieces went
        over several connections or may be of two versions."""
        large, item = self._large.get(number), self._files[number]
        if large is None:
            return Seal(number, bytes.fromhex(self._sealing.digests[number]))
        if item.sha256:
            return Seal(number, bytes.fromhex(item.sha256))
        if not large.confirm and not self.wire.options.digest_at_source:
            return Seal(number, NOTHING)
        if not large.confirm and number in self._wholes:
            return Seal(number, self._wholes[number])
        return Seal(number, NOTHING, lambda: self._digest_now(item))

    def _digest_now(self, item: SendItem) -> bytes | None:
        (found,) = self.source.digest_ranges([Range(item.source_path, 0, item.size)])
        return None if found is None else bytes.fromhex(found)

    def _on_published(self, carrier: PushConnection, span: Span, trouble: int, digest: bytes) -> None:
        number, offset, length = span
        item, known = self._files[number], self._sealing.digests.pop(number, None)
        if known is None:
            return
        if trouble == UNCONFIRMED:
            error = carrier.unconfirmed.pop(number, None) or self._not_asked()
            if isinstance(error, SOON):
                self._retry_file(number, TryAgain(error))
            else:
                self._fail_file(number, error)
        elif trouble == CHANGED:
            self._source_trouble(number, trouble, 0)
        elif trouble in _AGAIN:
            self._retry_file(number, TryAgain(self._at_target(number, trouble)))
        elif trouble == DIFFERS and length:
            self._repeat_piece(number, offset, length)
        elif trouble == DIFFERS:
            self._discard_journal(number)
            self._retry_file(number, TryAgain(digest_differs_error(item, digest.hex(), item.sha256 or "the source's")))
        elif trouble:
            self._fail_file(number, self._at_target(number, trouble))
        else:
            if number not in self._large and item.may_have_an_old_journal:
                self.wire.litter.append(journal_of(item.target_path))
            self._outcomes.put([self.wire.make_sent(item, known or digest.hex())])

    def _repeat_piece(self, number: int, offset: int, length: int) -> None:
        """Send a piece again that differs in the part. Fails the file after `retries` of them."""
        large = self._large[number]
        large.repeated += 1
        if large.repeated > self.wire.options.retries:
            self._fail_file(number, block_differs_error(self._files[number], "target", offset, length))
            return
        self.schedule.repeat_span(number, offset, offset + length)
        self.line.top_up_all()

    def _discard_journal(self, number: int) -> None:
        """Have the journal of a large file removed: its part differs from the source at an unknown place."""
        if number in self._large:
            self.wire.litter.append(journal_of(self._files[number].target_path))

    # before the first byte

    def find_kept(self, files: dict[int, Entry]) -> dict[int, list[tuple[int, int]]]:
        started = time.time()
        known = {number: identity_of(self._files[number], entry) for number, entry in files.items()}
        seen = self._editions_of([self._files[number].source_path for number in files])
        self._editions = {number: edition for number, edition in zip(files, seen, strict=True) if edition is not None}
        kept = self._begin_parts({number: (known[number], True) for number in files})
        stale = {number for number, blocks in list(kept.items()) if not self._has_blocks(kept, number, blocks)}
        if self.is_stopping:
            return {}  # parts and journals stay
        kept.update(self._begin_parts({number: (known[number], False) for number in stale & kept.keys()}))
        for number, blocks in kept.items():
            item = self._files[number]
            confirm = may_have_changed(item, files[number], started)
            gaps = uncovered_spans(item.size, spans_of(blocks))
            self._large[number] = _Pieces(known[number], gaps, bool(blocks), confirm)
        return {number: self._large[number].gaps for number in kept}

    def begin_large_file(self, number: int) -> None:
        large = self._large[number]
        if not large.gaps:
            self._order.add_complete(number, Whole(self._files[number], b"", "", True, number=number))

    def on_no_room(self, number: int) -> None:
        large = self._large.get(number)
        if large is not None and not large.kept:  # `find_kept` made its part
            path = self._files[number].target_path
            self.wire.litter += [part_of(path), journal_of(path)]

    def _has_blocks(self, kept: dict[int, list[Block]], number: int, blocks: Sequence[Block]) -> bool:
        """Whether the source still has these blocks. If it cannot be read, fails the file and removes it from `kept`."""
        if self.is_stopping:
            return True
        try:
            return same_at(self.source, self._files[number].source_path, blocks, lambda: self.is_stopping)
        except TidemarkError as error:
            del kept[number]
            self._fail_file(number, error)
            return True

    def _begin_parts(self, files: dict[int, tuple[Identity, bool]]) -> dict[int, list[Block]]:
        """Create or open the files' parts. Returns the good blocks of each; files whose part cannot be made fail."""
        asked = [(self._files[number].target_path, known, keep) for number, (known, keep) in files.items()]
        kept: dict[int, list[Block]] = {}
        for number, (trouble, found) in zip(files, self.target.begin_parts(asked), strict=True):
            if trouble in _AGAIN:
                self._retry_file(number, TryAgain(self._at_target(number, trouble)))
            elif trouble:
                self._fail_file(number, self._at_target(number, trouble))
            else:
                kept[number] = [Block(*claim) for claim in found]
        return kept
