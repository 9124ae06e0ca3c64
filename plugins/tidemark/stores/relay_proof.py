"""What the source says of files whose bytes came: their digests made there, or that it has not changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.stores.agent.reader import editions, same_edition
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import translated
from tidemark.stores.protocol import Range, Store
from tidemark.stores.reading_back import digests
from tidemark.stores.relay_job import Job
from tidemark.stores.transfer_items import TryAgain, Wire, changed
from tidemark.stores.transfer_proof import identity, unsure

CLOCKS_APART = 300  # seconds between the clocks of two machines, at most
SAMPLES, SAMPLE_BYTES = 16, 1 << 14


def source_digests(wire: Wire, jobs: Sequence[Job], started: float) -> list[str | TryAgain]:
    """For each the digest of what the source holds now; "" where it did not change and who read it need not read it again.

    `started`: when the entries were looked at, by this machine's clock.
    """
    times = editions_at(wire.source, jobs)  # before the digests: what changes behind this look shows in them
    told = [_as_it_was(job, now) for job, now in zip(jobs, times, strict=True)]
    asked = [
        job for job, (same, sure) in zip(jobs, told, strict=True) if same and (not sure or _to_digest(wire, job, started))
    ]
    ranges = [Range(job.item.source_path, 0, job.item.size) for job in asked if job.beside is None]
    made = iter(_made_there(wire, ranges))
    known = {job: job.beside.digest() if job.beside is not None else next(made) for job in asked}
    after = dict(zip(jobs, wire.source.stat_many([job.item.source_path for job in jobs]), strict=True))
    found: list[str | TryAgain] = []
    for job, (unchanged, _) in zip(jobs, told, strict=True):
        entry, digest = after[job], known.get(job, "")
        same = unchanged and entry is not None and identity(job.item, entry) == job.identity and entry.size >= job.item.size
        found.append(digest if same and digest is not None else changed(job.item))
    return found


def _made_there(wire: Wire, ranges: Sequence[Range]) -> Iterator[str | None]:
    """Where nobody digests at the source the bytes cross again, under the same cap."""
    if not ranges or wire.proven_at_source or not wire.bucket.pace:
        yield from wire.source.digests(ranges) if ranges else ()
        return
    paced: list[Range] = []
    for one in [*ranges, None]:
        size = sum(length or 0 for _, _, length in paced)
        if paced and (one is None or size + (one.length or 0) > wire.bucket.pace):
            wire.bucket.take(size)
            yield from wire.source.digests(paced)
            paced = []
        if one is not None:
            paced.append(one)


def looks_the_same(wire: Wire, job: Job, end: int) -> bool:
    """Whether the first `end` bytes of the part are the source's, by samples from all over them.

    For a source that nobody digests at: its size and whole seconds alone do not tell a file from one put in its place.
    """
    size = min(SAMPLE_BYTES, end)
    places = sorted({(end - size) * number // (SAMPLES - 1) for number in range(SAMPLES)})
    ends = ((wire.source, job.item.source_path), (wire.target, job.part))
    at_source, at_target = (digests(wire, store, [Range(path, at, size) for at in places]) for store, path in ends)
    return list(at_source) == list(at_target)


def editions_at(source: Store, jobs: Sequence[Job]) -> list[int | None]:
    """What the times of each file say of it (`agent.reader.edition`), where the source is a disk of this machine: who sets
    an mtime back moves the ctime. None where there is nothing more to see than `identity`."""
    if not jobs or not isinstance(source, LocalStore):
        return [None] * len(jobs)
    with translated(source.where, jobs[0].item.source_path, reading=True):
        return editions(source.disk, [job.item.source_path for job in jobs])


def _as_it_was(job: Job, now: int | None) -> tuple[bool, bool]:
    """Whether it may be the file that was begun with; whether the times can tell."""
    if job.edition is None or now is None or job.entry.size != job.item.size:
        return True, True  # `identity` and `unsure` speak alone
    return same_edition(job.edition, now)


def may_be_written(wire: Wire, job: Job, started: float) -> bool:
    """A file nobody digests for us, so young that a change right now might not show in its mtime of whole seconds: its
    first byte is to be asked RACY_SECONDS after the look at it, whatever the clock over there says."""
    return not wire.proven_at_source and job.entry.mtime >= started - CLOCKS_APART


def _to_digest(wire: Wire, job: Job, started: float) -> bool:
    if not wire.proven_at_source:  # that is to read all of it again: `may_be_written` waits instead
        return job.entry.size != job.item.size  # but a growing file's mtime says nothing
    if wire.digests_far:
        return wire.options.digest_at_source or unsure(job.item, job.entry, started - CLOCKS_APART)
    return job.running is None or unsure(job.item, job.entry, started)
