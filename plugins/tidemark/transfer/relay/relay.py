"""Copy files between any two stores through this machine: read as one stream, write as bytes come, verify, rename.

One thread. Read requests run ahead across files (`stores.protocol.read_stream`). Writes to the target are in flight while
more bytes come (`target`). Complete files are verified and named in batches: at most 512 files, on a slow line those of two
seconds. A cut loses less than a block in all. Between python3 and a local disk, `transfer.stream` is faster; the outcomes
are the same.

`TargetRoom` checks the target's free space: before the first byte of each file, and repeatedly while bytes come. A far
disk is asked ten times less often, because each answer is waited for. If its free space is unknown, all files fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tidemark.errors import DiskFullError, TidemarkError
from tidemark.stores.agent.block_journal import Block, decode_journal
from tidemark.stores.agent.part_file import HeadRoom, NoRoom
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import DigestingBeside, Piece, Range, Store, Tier, Want, read_records, read_stream
from tidemark.transfer.attempts import Outcome
from tidemark.transfer.existing import (
    RACY_SECONDS,
    block_differs_error,
    digest_differs_error,
    find_already_there,
    read_digests,
)
from tidemark.transfer.items import Failed, SendItem, TryAgain, Wire, no_room_for, no_room_left, require_source
from tidemark.transfer.relay.job import (
    Job,
    editions_at,
    first_bad_block,
    good_claims,
    looks_the_same,
    may_be_written,
    source_digests,
)
from tidemark.transfer.relay.target import CallTarget, Target, target_of
from tidemark.untrusted_files import MOST_SMALL

BATCH_FILES = 512  # verified and named at once
BATCH_SECONDS = 2.0  # on a slow line a batch is named before it is full: until then nobody sees that files arrive
BESIDES = {Tier.POSIX: 256, Tier.SFTP: 256}  # overhead bytes of a small file of such a source: answers


class Relay:
    """One round, see `transfer.attempts`."""

    halves = True

    def __init__(self, wire: Wire, items: Sequence[SendItem]) -> None:
        self.error: TidemarkError | None = None
        self._wire = wire
        self._items = items
        source = wire.source
        self._beside = source if wire.options.digest_at_source and isinstance(source, DigestingBeside) else None
        self._target: Target = CallTarget(wire.target)  # until `iter_outcomes` connects
        # A cut loses bytes in flight (a quarter of a block), bytes without a claim, and small files without their names
        # (a quarter, and one file more): less than a block in all.
        self._step = max(1, wire.options.block_bytes // 8)
        self._batch = max(1, wire.options.block_bytes // 4)
        self._jobs: dict[int, Job] = {}  # with bytes to come
        self._journals: dict[int, bytes] = {}  # found at the target
        self._whole: list[Job] = []  # all bytes written, not verified yet
        self._batch_began = 0.0  # when its first file was whole, by `time.monotonic`
        self._useless: list[str] = []  # journals of parts that are not what the source has
        self._resumed = 0  # bytes that earlier tries left
        self._started = time.time()
        self._looked = 0.0  # when all source entries had been read, by `time.monotonic`
        self._room: TargetRoom | None = None

    @property
    def kept_bytes(self) -> int:
        return self._resumed + self._target.kept_bytes

    def iter_outcomes(self) -> Iterator[Outcome]:
        try:
            self._target = target_of(self._wire)
            yield from self._prepare_jobs()
            yield from self._transfer_jobs()
        except TidemarkError as error:
            self.error = error
        finally:
            try:
                self._let_go([*self._jobs.values(), *self._whole])
            except TidemarkError as error:
                self.error = self.error or error
            self._target.close()

    # before the first byte

    def _prepare_jobs(self) -> Iterator[Outcome]:
        """Yield the outcomes of items that exist already, vanished or have no room; make jobs of the rest."""
        wire = self._wire
        there = find_already_there(wire, self._items)
        for item, digest in there.items():
            yield wire.make_sent(item, digest)
        items = [item for item in self._items if item not in there]
        jobs: list[Job] = []
        for item, entry in zip(items, wire.source.stat_many([item.source_path for item in items]), strict=True):
            try:
                jobs.append(Job(len(jobs), item, require_source(item, entry), item.size <= wire.small_limit))
            except TidemarkError as error:
                yield wire.make_failed(item, error)
        self._looked = time.monotonic()
        for job, edition in zip(jobs, editions_at(wire.source, jobs), strict=True):
            job.edition = edition
        self._resume_jobs([job for job in jobs if not job.small])
        self._room = TargetRoom(wire, jobs[0].item.target_path.rpartition("/")[0]) if jobs else None
        for job in jobs:
            try:
                assert self._room is not None
                self._room.promise_room(job.item, job.bytes_left)
            except DiskFullError as full:
                yield wire.make_failed(job.item, full)
            else:
                self._jobs[job.number] = job

    def _resume_jobs(self, jobs: Sequence[Job]) -> None:
        """Resume jobs from journals of the same source, as far as the part and the source both match the claims."""
        target, source = self._wire.target, self._wire.source
        records = [path for job in jobs for path in (job.journal_path, job.part_path)]
        found = {path: entry for path, entry in zip(records, target.stat_many(records), strict=True) if entry is not None}
        left = [job for job in jobs if job.journal_path in found and job.part_path in found]
        for job, told in zip(left, read_records(target, [job.journal_path for job in left], MOST_SMALL), strict=True):
            data = told if isinstance(told, bytes) else b""  # one that is too long is none
            self._journals[job.number] = data
            journal = decode_journal(data)
            if journal is None or journal.identity != job.identity:
                continue
            good = good_claims(journal.blocks, self._digests_of(target, job.part_path))
            if good and self._wire.proven_at_source:
                good = good_claims(good, self._digests_of(source, job.item.source_path))
            elif good and not looks_the_same(self._wire, job, good[-1].end):
                good = []
            job.resume_from(good)
            self._resumed += job.at

    # the stream

    def _transfer_jobs(self) -> Iterator[Outcome]:
        jobs = self._jobs
        if jobs:
            self._target.expect_jobs(list(jobs.values()))
        for job in [job for job in jobs.values() if not job.bytes_left and not job.small]:  # whole in its part
            self._target.begin_job(job, self._journals.get(job.number, b""))
            yield from self._complete_job(job)
        for piece in read_stream(self._wire.source, self._generate_wants(list(jobs.values())), self._bytes_of_paces(2)):
            if piece.number not in jobs:
                continue
            job = jobs[piece.number]
            if not self._still_room(len(piece.data)):
                break
            if piece.trouble is not None:
                yield self._retry_job(job, TryAgain(piece.trouble))
            else:
                self._receive_piece(job, piece)
                if job.bytes_left:
                    if late := self._fail_overdue(job):
                        yield late
                        break  # bytes in flight are of this slow file; the other files go on in the next round
                    if self._wire.is_stopped() and job.kept == job.at:
                        break
                    continue
                yield from self._complete_job(job)
            if self._wire.is_stopped():
                break
        yield from self._name_all()

    def _still_room(self, size: int) -> bool:
        """Whether `size` bytes fit. If not, sets `error`, and the round ends with what it has."""
        try:
            if self._room is not None:
                self._room.consume_room(size, lambda: sum(job.bytes_left for job in self._jobs.values()))
        except DiskFullError as full:
            self.error = full
        return self.error is None

    def _generate_wants(self, jobs: Sequence[Job]) -> Iterator[Want]:
        for job in jobs:
            if may_be_written(self._wire, job, self._started):
                self._wait_from(self._looked)
            if self._wire.is_stopped():
                return
            self._target.begin_job(job, self._journals.get(job.number, b""))
            if self._beside is not None:
                job.beside = self._beside.digest_beside(job.item.source_path, job.item.size)
            yield from self._pace_want(Want(job.number, job.item.source_path, job.at, job.bytes_left, job.small))

    def _wait_from(self, looked: float) -> None:
        while (left := looked + RACY_SECONDS - time.monotonic()) > 0 and not self._wire.is_stopped():
            time.sleep(min(left, 0.1))

    def _pace_want(self, want: Want) -> Iterator[Want]:
        """Split a want into small ones, and wait for the cap before each: bytes that came have crossed already."""
        bucket = self._wire.bucket
        at, left = want.offset, want.length
        most = left if want.small else self._bytes_of_paces(1) or left
        while not self._wire.is_stopped():
            length = min(left, most)
            bucket.consume_tokens(length + BESIDES.get(self._wire.source.properties.tier, 0) * want.small)
            yield want._replace(offset=at, length=length)
            at, left = at + length, left - length
            if not left:
                return

    def _bytes_of_paces(self, count: int) -> int:
        """Return the bytes of `count` paces of a capped link; 0: no cap."""
        return count * self._wire.bucket.pace_bytes

    def _receive_piece(self, job: Job, piece: Piece) -> None:
        """Write and hash the piece, and journal a claim for each step."""
        data = memoryview(piece.data)
        while data:
            taken = len(data) if job.small else min(len(data), self._step - (job.at - job.kept) % self._step)
            self._wire.count_bytes(job.item, taken)
            self._target.write_data(job, data[:taken])
            job.receive_data(data[:taken])
            data = data[taken:]
            if not job.small and (job.at - job.kept >= self._step or not job.bytes_left):
                job.claim_block()
                self._target.journal_claim(job)
                if self._wire.is_stopped():
                    return

    def _fail_overdue(self, job: Job) -> Failed | None:
        """Return the outcome of a file that is late, else None. The next run resumes from its claims."""
        deadlines, path, now = self._wire.deadlines, job.item.source_path, time.monotonic()
        deadlines.begin_file(path, now)
        error = deadlines.overdue_error(path, job.item.size, now)
        return self._wire.make_failed(job.item, error) if error is not None else None

    def _complete_job(self, job: Job) -> Iterator[Outcome]:
        """Move a file whose bytes all came to the batch to be named, and name the batch if it is full."""
        self._wire.deadlines.end_file(job.item.source_path)
        del self._jobs[job.number]
        now = time.monotonic()
        self._batch_began = self._batch_began if self._whole else now
        self._whole.append(job)
        unnamed = sum(whole.item.size for whole in self._whole)
        if len(self._whole) >= BATCH_FILES or unnamed >= self._batch or now - self._batch_began >= BATCH_SECONDS:
            yield from self._name_all()

    def _retry_job(self, job: Job, again: TryAgain) -> tuple[SendItem, TryAgain]:
        """End this try of the file; another may succeed."""
        del self._jobs[job.number]
        self._let_go([job])
        return job.item, again

    def _let_go(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.beside is not None:
                job.beside.close()
        self._target.abandon_jobs(jobs)

    # verify and name

    def _name_all(self) -> Iterator[Outcome]:
        jobs = self._whole
        if not jobs:
            return
        proved: dict[Job, str] = {}
        sources = source_digests(self._wire, jobs, self._started)
        for job, at_target, at_source in zip(jobs, self._target.digest_parts(jobs), sources, strict=True):
            outcome = self._judge_digests(job, at_target, at_source)
            if isinstance(outcome, str):
                proved[job] = outcome
                continue
            yield (job.item, outcome) if isinstance(outcome, TryAgain) else self._wire.make_failed(job.item, outcome)
        self._wire.target.remove(self._useless)
        self._useless.clear()
        lost = self._target.give_names(list(proved)) if proved else {}
        # CRASH WINDOW: final names that are not recorded; the rerun finds them by `find_already_there`.
        self._whole = []
        self._let_go(jobs)
        for job, digest in proved.items():
            yield (job.item, TryAgain(lost[job])) if job in lost else self._wire.make_sent(job.item, digest)

    def _judge_digests(
        self, job: Job, at_target: str | TidemarkError | None, at_source: str | TryAgain
    ) -> str | TryAgain | TidemarkError:
        """Return the file's digest if it is as expected at the source and at the target; else the error."""
        if isinstance(at_target, TidemarkError):
            return at_target
        if isinstance(at_source, TryAgain):
            return at_source
        arrived = job.received_digest()
        for end, digest in (("source", at_source), ("target", at_target)):
            if arrived and digest and digest != arrived:
                return self._what_differs(job, end) or self._retry_from_start(job, digest, arrived)
        expected = job.item.sha256 or at_source or arrived or at_target
        if at_target != expected or not at_target:
            return self._what_differs(job, "target") or self._retry_from_start(job, str(at_target), str(expected))
        return self._what_differs(job, "target") or at_target if not (at_source or arrived) else at_target

    def _retry_from_start(self, job: Job, actual: str, expected: str) -> TryAgain:
        """Discard the journal: no single block is wrong, so there is none to resume from."""
        if job.small:
            return TryAgain(block_differs_error(job.item, "target", 0, job.item.size))
        self._useless.append(job.journal_path)
        return TryAgain(digest_differs_error(job.item, actual, expected))

    def _what_differs(self, job: Job, end: str) -> TryAgain | None:
        """Return the error that names the first block that differs at that end from what came; None if all are equal."""
        if job.small:
            return None
        store, path = (self._wire.source, job.item.source_path) if end == "source" else (self._wire.target, job.part_path)
        if end == "source" and not self._wire.proven_at_source:
            return None
        block = first_bad_block(job.claims, self._digests_of(store, path))
        return TryAgain(block_differs_error(job.item, end, block.offset, block.length)) if block is not None else None

    def _digests_of(self, store: Store, path: str) -> Callable[[Sequence[Block]], Sequence[str | None]]:
        return lambda blocks: read_digests(self._wire, store, [Range(path, block.offset, block.length) for block in blocks])


FAR_LOOKS = 10  # `rarely` of a far disk: each check is a round trip


class TargetRoom:
    """Free space of the disk below `folder` of the target. If it is unknown, all files fit."""

    def __init__(self, wire: Wire, folder: str) -> None:
        self._wire = wire
        target, reserve = wire.target, wire.options.reserve
        free = target.free_bytes(folder)
        self._left = None if free is None else max(0, free - reserve)  # not promised to a file yet
        rarely = 1 if isinstance(target, LocalStore) else FAR_LOOKS
        self._head = None if free is None else HeadRoom(_Free(target), folder, reserve, rarely)

    def promise_room(self, item: SendItem, missing: int) -> None:
        """Reserve room for `missing` bytes of a file. Raises DiskFullError if there is not enough."""
        if self._left is None:
            return
        if missing > self._left:
            raise no_room_for(self._wire, item, missing, self._left)
        self._left -= missing

    def consume_room(self, size: int, missing: Callable[[], int]) -> None:
        """Account for `size` bytes to be written, of the `missing` ones. Raises DiskFullError before the disk is full."""
        if self._head is None:
            return
        try:
            self._head.claim_room(size)
        except NoRoom as none:
            raise no_room_left(self._wire, none.free, missing()) from none


class _Free:
    """The interface that `HeadRoom` needs of a disk, for any store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def free_bytes(self, folder: str) -> int:
        free = self._store.free_bytes(folder)
        return 1 << 62 if free is None else free
