"""What the source says of files whose bytes came: their digests made there, or that it has not changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.stores.protocol import Range
from tidemark.stores.relay_job import Job
from tidemark.stores.transfer_items import TryAgain, Wire, changed
from tidemark.stores.transfer_proof import identity, unsure


def source_digests(wire: Wire, jobs: Sequence[Job], started: float) -> list[str | TryAgain]:
    """For each the digest of what the source holds now; "" where it did not change and who read it need not read it again.

    `started`: when the entries were looked at, by this machine's clock.
    """
    asked = [job for job in jobs if _to_digest(wire, job, started)]
    ranges = [Range(job.item.source_path, 0, job.item.size) for job in asked if job.beside is None]
    made = iter(wire.source.digests(ranges) if ranges else ())
    digests = {job: job.beside.digest() if job.beside is not None else next(made) for job in asked}
    after = dict(zip(jobs, wire.source.stat_many([job.item.source_path for job in jobs]), strict=True))
    found: list[str | TryAgain] = []
    for job in jobs:
        entry, digest = after[job], digests.get(job, "")
        same = entry is not None and identity(job.item, entry) == job.identity and entry.size >= job.item.size
        found.append(digest if same and digest is not None else changed(job.item))
    return found


def _to_digest(wire: Wire, job: Job, started: float) -> bool:
    if wire.digests_far:
        return wire.options.digest_at_source
    if not wire.proven_at_source and not job.small:
        return False  # only reading all of it again would tell
    return job.running is None or unsure(job.item, job.entry, started)
