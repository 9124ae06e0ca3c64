"""Fetch files from a far end that has python3 to a disk of this machine, as fast as the line.

The coordinating thread of `session` writes the bytes. A second thread reads large files back and verifies them
(`verify`). A third gives final names (`publish`). A piece that differs in the part is requested again, alone, `retries`
times a file.

Bytes that an earlier try left are compared while the missing bytes come. The far end sends the digest of each such piece
in between, and the piece is read back like new bytes. A piece that differs, here or at the source, is then a missing one.

The folders of a local target are made when their first file comes (`TargetFolders`).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty
from typing import NamedTuple

from tidemark.stores.agent.block_journal import Block, Identity, journal_of, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.durable import DiskHandles, make_folder, make_folders, remove_quietly
from tidemark.stores.agent.frames import ANY, BARE, KEPT
from tidemark.stores.agent.part_file import Differs, begin_part, claimed_blocks, journal_at_hand, spans_of
from tidemark.stores.agent.reader import same_edition
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error
from tidemark.stores.protocol import Entry
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.existing import block_differs_error, identity_of
from tidemark.transfer.items import SendItem, TryAgain, source_changed_error
from tidemark.transfer.stream.connection import Connection
from tidemark.transfer.stream.connections import Connections
from tidemark.transfer.stream.publish import WORTH_IT, Arrived, Publisher, SmallFiles, Whole
from tidemark.transfer.stream.schedule import Span, uncovered_spans
from tidemark.transfer.stream.session import Ending, Existing, Session
from tidemark.transfer.stream.verify import VerifiedPart, Verifier

COMPARED = 4 << 20  # bytes of a piece that is here already: so many are fetched again for one bad byte
MOST_UNPROVEN = 32  # files that are written and held open until they are read back
TOLD_AT_ONCE, TELL_SECONDS = 4 << 20, 0.05  # received bytes are reported after so many, or so often
NAME_SECONDS = 0.02  # complete files are queued for naming so often: waking a thread takes as long as several files


@dataclass
class _Large:
    """A file of more than one piece."""

    identity: Identity
    claims: Sequence[Block]  # of an earlier try, about the bytes in its part
    confirm: bool  # its times cannot show a change: digested again at the source before it is named
    edition: int | None = None  # the source's times when its first piece was read, by the source's clock
    syncs_failed: int = 0  # of the disk, before its first byte
    repeated: int = 0  # pieces asked for again
    part: VerifiedPart | None = None  # once its first piece came
    kept: dict[int, int] = field(default_factory=dict)  # pieces of an earlier try that are compared: offset, end
    other: set[int] = field(default_factory=set)  # offsets of those that differ: their bytes were asked for


class _Small(NamedTuple):
    """A small file as it came: its place in the frame, and the digest of its record."""

    number: int
    at: int
    size: int
    kind: int
    digest: bytes


class Pull:
    """The direction from a far end to a disk of this machine."""

    def __init__(self, session: Session) -> None:
        source, target, wire = session.source, session.target, session.wire
        assert isinstance(source, PythonStore) and isinstance(target, LocalStore)
        self.line = Connections(source, session.schedule, session.asking, wire)
        self._session = session
        self._target = target
        self._large: dict[int, _Large] = {}  # under way
        self._small_files = SmallFiles(quick=len(session.files) >= WORTH_IT)
        self._sealer = Publisher(wire, target.disk, target.where, session.report, self._small_files)
        self._folders = TargetFolders(target.disk, session.files, self._sealer.disks)
        self._prover = Verifier(self.line.wake)
        self._put_at = 0.0  # when complete files were queued for naming
        self._unproven: set[int] = set()  # all written, not all read back
        self._untold = 0  # bytes not reported to the caller yet, and when it was last informed
        self._told_at = 0.0

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        connection.bytes += len(frame.data)
        session, schedule, at, large, data = self._session, self._session.schedule, 0, self._large, frame.data
        files, proven = session.files, session.wire.options.digest_at_source
        small: list[_Small] = []
        for number, offset, length, trouble, kind, note, digest in session.parse_records(frame):
            begin, at = at, at + (0 if kind == KEPT else length)
            size = files[number].size if number < len(files) else -1
            odd = at > len(data) or offset + length > size or (not length and size) or (proven and kind == BARE)
            if size < 0 or (odd and not trouble):
                raise self._session.not_asked()
            if trouble:
                schedule.record_refusal(connection.number, number)
                if schedule.waits_for(number):
                    session.on_source_error(number, trouble, note)
            elif number in large:
                new = schedule.record_arrival(connection.number, number, offset, length)
                if self._is_same_edition(number, note):
                    self._receive_piece(Span(number, offset, length), data[begin:at], (kind, digest))
                    session.kept_bytes += length if new and number in large else 0
            elif schedule.record_arrival(connection.number, number, 0, length):  # else it has its outcome
                small.append(_Small(number, begin, at - begin, kind, digest))
        if at != len(data):
            raise self._session.not_asked()
        if small:
            self._write_small(data, small)
        self._untold += at

    def _report_bytes(self, now: float) -> None:
        """Report bytes to the caller's thread, many at a time so that it wakes seldom."""
        self._session.report(self._untold)
        self._untold, self._told_at = 0, now

    def advance(self) -> bool:
        self._collect_verified()
        now = time.monotonic()
        if self._untold >= TOLD_AT_ONCE or (self._untold and now - self._told_at >= TELL_SECONDS):
            self._report_bytes(now)  # also while nothing comes
        order = self._session.order
        if order.ready and now - self._put_at >= NAME_SECONDS:
            self._put_at = now
            self._sealer.queue_files(order.pop_ready())
        return not any(not (self._session.is_stopping and self._is_behind(number)) for number in self._unproven)

    def _is_behind(self, number: int) -> bool:
        """Whether bytes of an earlier try are still to be read back. A stop does not wait for that; the next try does it."""
        part = self._large[number].part
        return part is not None and part.is_behind

    def finish(self) -> None:
        self._report_bytes(0.0)
        for number in list(filter(self._is_behind, self._large)):
            self.on_dropped(number, again=False)
        self._prover.finish_verifying()
        self._collect_verified()
        for large in self._large.values():
            _close_part(large)
        try:
            self._sealer.queue_files(self._session.order.pop_ready())
            self._sealer.finish_publishing()
        except Exception as bug:
            self._session.end_round(Ending.BUG, bug)

    def _write_small(self, frame: memoryview, small: Sequence[_Small]) -> None:
        """Write the small files of one frame and queue them for naming."""
        placed: list[tuple[_Small, SendItem, bytes]] = []
        for one in small:
            item = self._session.files[one.number]
            if one.size != item.size:
                raise self._session.not_asked()
            try:
                placed.append((one, item, self._folders.locate_file(item.target_path)))
            except OSError as error:
                self._not_kept(one.number, None, error)
        self._session.wire.add_spent([(item.target_path, item.size) for _, item, _ in placed])
        syncs_failed = self._sealer.syncs_failed
        arrived = [Arrived(part_at(place), one.at, one.size) for one, _, place in placed]
        written = self._small_files.write_parts(frame, arrived)
        for (one, item, place), (part, _, _), (digest, seen, trouble) in zip(placed, arrived, written, strict=True):
            if trouble is not None:
                self._not_kept(one.number, None, trouble)
            elif one.kind != BARE and digest != one.digest:
                remove_quietly(part)
                self._session.retry_file(one.number, TryAgain(block_differs_error(item, "target", 0, item.size)))
            else:
                self._session.complete_file(
                    one.number, Whole(item, place, digest.hex(), False, proof=seen, syncs_failed=syncs_failed)
                )

    def _is_same_edition(self, number: int, edition: int) -> bool:
        """Whether this piece is of the same file version as the others. If times cannot show it, a digest will later."""
        large = self._large[number]
        same, sure = same_edition(edition if large.edition is None else large.edition, edition)
        if not same and large.identity.mtime != ANY:
            self._session.retry_file(number, source_changed_error(self._session.files[number]))
            return False
        large.edition, large.confirm = edition, large.confirm or not sure
        return True

    def _receive_piece(self, span: Span, data: memoryview, proof: tuple[int, bytes]) -> None:
        number, offset, length = span
        kind, digest = proof
        item, large = self._session.files[number], self._large[number]
        self._session.wire.add_spent([(item.target_path, len(data))])
        try:
            part = self._open_part(item, large)
            if kind == KEPT:
                if large.kept.get(offset) != span.end:
                    raise self._session.not_asked()
                if offset not in large.other:  # else it is the late answer to a request that was made twice
                    part.keep_block(Block(offset, length, digest.hex()))
            else:
                part.write_block(offset, data, kind, digest)
            handle = part.sync_due()
            if handle >= 0:
                self._sealer.queue_sync(handle, part)
        except OSError as error:
            self._not_kept(number, None, error)
            return
        if part.is_complete:
            self._session.schedule.complete_file(number)
            self._unproven.add(number)
        self._prover.queue_part(number, part)
        while len(self._unproven) > MOST_UNPROVEN:  # and the far end waits for us
            self._on_verified(*self._prover.results.get())

    def _collect_verified(self) -> None:
        with suppress(Empty):
            while True:
                self._on_verified(*self._prover.results.get_nowait())

    def _on_verified(self, number: int, trouble: Exception | None) -> None:
        """Process the result of reading a part back."""
        large = self._large.get(number)
        if large is None or large.part is None:
            return
        if trouble is None:
            self._complete_large(number, large.part)
        elif isinstance(trouble, Differs):
            self._repeat_piece(number, trouble)
        elif isinstance(trouble, OSError):
            self._not_kept(number, large.part, trouble)
        else:
            raise trouble

    def _repeat_piece(self, number: int, other: Differs) -> None:
        """Request a piece again that differs in the part. Fails the file after `retries` of them."""
        item, large = self._session.files[number], self._large[number]
        assert large.part is not None
        if other.offset in large.part.kept:
            large.other.add(other.offset)
        else:
            large.repeated += 1
        if large.repeated > self._session.wire.options.retries:
            self._session.fail_file(number, block_differs_error(item, "target", other.offset, other.length))
            return
        offset, end = large.part.reopen_span(other.offset, other.offset + other.length)
        self._unproven.discard(number)
        self._session.kept_bytes -= end - offset
        self._session.schedule.repeat_span(number, offset, end)
        self._prover.queue_part(number, large.part)  # to read back its other bytes
        self.line.top_up_all()

    def _not_kept(self, number: int, part: VerifiedPart | None, error: OSError) -> None:
        said = os_error(error, self._target.where, self._session.files[number].target_path)
        if (part is not None and part.lost is not None) or error.errno in (
            errno.ESTALE,
            errno.ENOENT,
        ):  # removed by another process
            self._session.retry_file(number, TryAgain(said))
        else:
            self._session.fail_file(number, said)

    def _open_part(self, item: SendItem, large: _Large) -> VerifiedPart:
        if large.part is None:
            self._folders.locate_file(item.target_path)
            disk, path = self._target.disk, item.target_path
            large.syncs_failed = self._sealer.syncs_failed
            begin_part(disk, path, large.identity, large.claims)
            large.part = VerifiedPart(disk, path, large.identity, self.line.wake)
        return large.part

    def _complete_large(self, number: int, part: VerifiedPart) -> None:
        item, large = self._session.files[number], self._large.pop(number)
        self._unproven.discard(number)
        digest, proof = part.verified_digest(), part.proof
        part.close()
        place = self._folders.locate_file(item.target_path)
        whole = Whole(item, place, digest, True, large.confirm, proof=proof, syncs_failed=large.syncs_failed)
        self._session.complete_file(number, whole)

    def on_dropped(self, number: int, again: bool) -> None:
        if again:  # the part differs from the source: the journal must not claim it
            self._target.disk.remove([journal_of(self._session.files[number].target_path)])
        self._unproven.discard(number)
        if number in self._large:
            _close_part(self._large.pop(number))

    # before the first byte

    def plan_existing(self, large: dict[int, SendItem]) -> dict[int, Existing]:
        """Read the journals. The source has to send the digest of each claimed piece: it counts once both have the same."""
        found: dict[int, Existing] = {}
        disk = Disk(self._target.where.root)  # one that no other thread uses
        for number, entry in self._session.require_entries(large, self._journaled_entries(disk, large)).items():
            item = large[number]
            known = identity_of(item, entry)
            try:
                claims = claimed_blocks(disk, item.target_path, known)
            except OSError as error:
                self._not_kept(number, None, error)
                continue
            gaps = uncovered_spans(item.size, spans_of(claims))
            kept = uncovered_spans(item.size, gaps)
            pieces = {start: min(start + COMPARED, end) for offset, end in kept for start in range(offset, end, COMPARED)}
            self._large[number] = _Large(known, claims, entry.size != item.size, kept=pieces)
            found[number] = Existing(known, gaps, list(pieces.items()))
        return found

    def _journaled_entries(self, disk: Disk, large: dict[int, SendItem]) -> Sequence[Entry]:
        """Return the entries from the files' journals, without a round trip; none if one of them has no journal. The far end
        checks with every piece that the entry is still right. A file whose entry is not costs a try."""
        found: list[Entry] = []
        for item in large.values() if self._session.wire.options.retries else ():
            journal = None
            with suppress(OSError):  # `plan_existing` reports it
                journal = journal_at_hand(disk, item.target_path)
            if journal is None or journal.identity.wanted != item.size or journal.identity.mtime == ANY:
                return ()
            found.append(Entry(item.source_path, *journal.identity))
        return found


def _close_part(large: _Large) -> None:
    if large.part is not None:
        with suppress(OSError):  # its journal is removed then
            large.part.close()


class TargetFolders:
    """The folders of a local target, made on demand. `disks` watches each of them. Not thread-safe."""

    def __init__(self, disk: Disk, items: Iterable[SendItem], disks: DiskHandles) -> None:
        self._disk = disk
        self._disks = disks
        self._made: dict[str, bytes] = {}  # their paths on the disk, with a slash
        self._beside: dict[str, dict[str, None]] = {}  # parent → its folders that files go to, until one of them is made
        for item in items:
            folder = item.target_path.rpartition("/")[0]
            self._beside.setdefault(folder.rpartition("/")[0], {})[folder] = None

    def locate_file(self, path: str) -> bytes:
        """Return the disk path of a file, and make its folder. Raises OSError, also if the folder is a symlink."""
        folder, _, name = path.rpartition("/")
        above = self._made.get(folder)
        if above is None:
            self._make_beside(folder)
            place = self._disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            make_folder(above.rstrip(b"/") or b"/")
            self._disks.watch_disk(above)
            self._made[folder] = above
        return above + name.encode()

    def _make_beside(self, folder: str) -> None:
        """Make a folder and its siblings that files go to, so that their parent is synced once for all of them. Ignores a
        sibling that cannot be made: the error is reported for the files that go there."""
        places = []
        for other in self._beside.pop(folder.rpartition("/")[0], {}):
            with suppress(OSError):  # a symlink is in its path
                places.append(self._disk.locate(other))
        with suppress(FileExistsError, NotADirectoryError):
            make_folders(places)
