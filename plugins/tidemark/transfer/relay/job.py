"""One file that passes through this machine: its progress, and the digests of its bytes.

While the hash from the file's start is known, a claim covers all bytes so far (offset 0), so nothing is hashed twice. A
file that is resumed gets claims of single blocks behind the bytes that earlier tries left.

When all bytes came, the source is asked for a digest, or whether the file is unchanged. A digest is made if the link
wants one, and whenever times cannot show a change. The clocks of two machines may be 300 s apart. If the source cannot
digest, all bytes would cross again under the same cap. So only a growing file is digested there, and the first byte of a
young file is requested two seconds after its entry was read. The bytes that an earlier try left are compared by 16
samples of 16 KB each, because size and whole seconds alone do not show that a file was replaced. A source on a disk of
this machine also shows its change time (`editions_at`), which moves when a modification time is set back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.stores.agent.block_journal import Block, BlockJournal, Identity, journal_of, part_of
from tidemark.stores.agent.reader import editions_of, same_edition
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import translate_os_errors
from tidemark.stores.protocol import Entry, PendingDigest, Range, Store
from tidemark.transfer.existing import identity_of, may_have_changed, read_digests
from tidemark.transfer.items import SendItem, TryAgain, Wire, source_changed_error


@dataclass(eq=False)
class Job:
    number: int
    item: SendItem
    entry: Entry  # of the source, before its first byte was read
    small: bool  # one piece, without a journal
    claims: list[Block] = field(default_factory=list)  # in the journal
    at: int = 0  # the next byte
    kept: int = 0  # the end of the last claim: a next try would resume here
    running: Any = field(default_factory=hashlib.sha256)  # hash of all bytes; None when some came by an earlier try
    block: Any = None  # hash of the bytes since the last claim, if `running` is None
    edition: int | None = None  # of a source on a disk of this machine, before its first byte was read
    beside: PendingDigest | None = None  # the source's digest, being made while the bytes come

    @property
    def part_path(self) -> str:
        return part_of(self.item.target_path)

    @property
    def has_journal(self) -> bool:
        return not self.small or self.item.may_have_an_old_journal

    @property
    def journal_path(self) -> str:
        return journal_of(self.item.target_path)

    @property
    def identity(self) -> Identity:
        return identity_of(self.item, self.entry)

    @property
    def bytes_left(self) -> int:
        return self.item.size - self.at

    def resume_from(self, claims: Sequence[Block]) -> None:
        """Resume from the claims of an earlier try."""
        self.claims = list(claims)
        self.at = self.kept = max((claim.end for claim in claims), default=0)
        self.running = None if self.at else self.running

    def receive_data(self, data: bytes | memoryview) -> None:
        """Hash and count the next bytes."""
        self.at += len(data)
        if self.running is not None:
            self.running.update(data)
        else:
            self.block = self.block or hashlib.sha256()
            self.block.update(data)

    def claim_block(self) -> Block:
        """Claim the bytes since the last claim. Returns a line for the journal."""
        if self.running is not None:
            made = Block(0, self.at, self.running.copy().hexdigest())
        else:
            made = Block(self.kept, self.at - self.kept, self.block.hexdigest())
            self.block = None
        self.claims.append(made)
        self.kept = self.at
        return made

    def received_digest(self) -> str:
        """Return the digest of all received bytes; "" if some came by an earlier try."""
        return "" if self.running is None else str(self.running.hexdigest())

    def encode_journal(self) -> bytes:
        return BlockJournal(self.identity, self.claims).encode()


def good_claims(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> list[Block]:
    """Return the claims that a try can resume from: the longest correct beginning, and the correct blocks that follow it.

    `claims` are in the order of the journal. `digests` returns those of the part's present bytes. It is asked about few
    claims: a part with one bad place is good before it and bad behind it.
    """
    from_start = sorted({claim.length: claim for claim in claims if claim.offset == 0}.values(), key=lambda c: c.length)
    good = from_start[: _first_bad(from_start, digests)][-1:]
    at = good[-1].end if good else 0
    following: list[Block] = []
    for claim in claims:
        if claim.offset and claim.offset == at:
            following.append(claim)
            at = claim.end
    found = digests(following) if following else ()
    for claim, digest in zip(following, found, strict=True):
        if digest != claim.sha256:
            break
        good.append(claim)
    return good


def first_bad_block(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> Block | None:
    """Return the first bytes that differ from their claim, as a block; None if all are correct."""
    at = max((claim.end for claim in good_claims(claims, digests)), default=0)
    following = sorted(claim.end for claim in claims if claim.end > at)
    return Block(at, following[0] - at, "") if following else None


def _first_bad(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> int:
    """Return how many claims are good by binary search, last one first. Each claim contains the one before it."""
    low, high = 0, len(claims)  # the answer is within
    look = high - 1
    while low < high:
        if digests([claims[look]])[0] == claims[look].sha256:
            low = look + 1
        else:
            high = look
        look = (low + high) // 2
    return low


CLOCKS_APART = 300  # seconds between the clocks of two machines, at most
SAMPLES, SAMPLE_BYTES = 16, 1 << 14


def source_digests(wire: Wire, jobs: Sequence[Job], started: float) -> list[str | TryAgain]:
    """Return for each job the source's digest now; "" if it did not change and needs no digest; TryAgain if it changed.
    `started`: when the entries were read, by this machine's clock."""
    times = editions_at(wire.source, jobs)  # before the digests: a later change shows in them
    told = [_as_it_was(job, now) for job, now in zip(jobs, times, strict=True)]
    asked = [
        job for job, (same, sure) in zip(jobs, told, strict=True) if same and (not sure or _to_digest(wire, job, started))
    ]
    ranges = [Range(job.item.source_path, 0, job.item.size) for job in asked if job.beside is None]
    made = iter(_made_there(wire, ranges))
    known = {job: job.beside.await_digest() if job.beside is not None else next(made) for job in asked}
    after = dict(zip(jobs, wire.source.stat_many([job.item.source_path for job in jobs]), strict=True))
    found: list[str | TryAgain] = []
    for job, (unchanged, _) in zip(jobs, told, strict=True):
        entry, digest = after[job], known.get(job, "")
        same = (
            unchanged and entry is not None and identity_of(job.item, entry) == job.identity and entry.size >= job.item.size
        )
        found.append(digest if same and digest is not None else source_changed_error(job.item))
    return found


def _made_there(wire: Wire, ranges: Sequence[Range]) -> Iterator[str | None]:
    """Yield the source's digests. If it cannot digest, the bytes cross again, under the same cap."""
    if not ranges or wire.proven_at_source or not wire.bucket.pace_bytes:
        yield from wire.source.digest_ranges(ranges) if ranges else ()
        return
    paced: list[Range] = []
    for one in [*ranges, None]:
        size = sum(length or 0 for _, _, length in paced)
        if paced and (one is None or size + (one.length or 0) > wire.bucket.pace_bytes):
            wire.bucket.consume_tokens(size)
            yield from wire.source.digest_ranges(paced)
            paced = []
        if one is not None:
            paced.append(one)


def looks_the_same(wire: Wire, job: Job, end: int) -> bool:
    """Whether samples of the first `end` bytes are equal in the part and the source, which cannot digest its files."""
    size = min(SAMPLE_BYTES, end)
    places = sorted({(end - size) * number // (SAMPLES - 1) for number in range(SAMPLES)})
    ends = ((wire.source, job.item.source_path), (wire.target, job.part_path))
    at_source, at_target = (read_digests(wire, store, [Range(path, at, size) for at in places]) for store, path in ends)
    return list(at_source) == list(at_target)


def editions_at(source: Store, jobs: Sequence[Job]) -> list[int | None]:
    """Return each file's times as one number (`stores.agent.reader.edition_of`) if the source is a disk of this machine.
    Setting an mtime back moves the ctime. None for any other source: `identity` is all there is."""
    if not jobs or not isinstance(source, LocalStore):
        return [None] * len(jobs)
    with translate_os_errors(source.where, jobs[0].item.source_path, reading=True):
        return editions_of(source.disk, [job.item.source_path for job in jobs])


def _as_it_was(job: Job, now: int | None) -> tuple[bool, bool]:
    """Return (it may be the file that the transfer began with, the times are proof of that)."""
    if job.edition is None or now is None or job.entry.size != job.item.size:
        return True, True  # `identity` and `may_have_changed` decide alone
    return same_edition(job.edition, now)


def may_be_written(wire: Wire, job: Job, started: float) -> bool:
    """Whether a file that the source cannot digest is so young that a change might not show in its mtime. Its first byte
    must be requested RACY_SECONDS after its entry was read, whatever the source's clock says."""
    return not wire.proven_at_source and job.entry.mtime >= started - CLOCKS_APART


def _to_digest(wire: Wire, job: Job, started: float) -> bool:
    if not wire.proven_at_source:  # a digest would read all of it again: `may_be_written` makes it wait instead
        return job.entry.size != job.item.size  # but a growing file's mtime says nothing
    if wire.has_far_digests:
        return wire.options.digest_at_source or may_have_changed(job.item, job.entry, started - CLOCKS_APART)
    return job.running is None or may_have_changed(job.item, job.entry, started)
