"""Where a relay writes: parts and journals of many files. Of a store in general by its calls, a block at a time.

A store at the far end of an SFTP session can have many writes on their way: it has a target of its own (`SftpTarget`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from tidemark.errors import TidemarkError
from tidemark.stores.agent.part_file import SYNC_BYTES
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Entry, Range, Store
from tidemark.transfer.existing import part_taken_error
from tidemark.transfer.items import BulkWriting, Wire
from tidemark.transfer.relay.disk_target import DiskTarget
from tidemark.transfer.relay.job import Job


class Target(Protocol):
    """Bytes of a job come in order, those of a small one at once. What raises concerns more than one job."""

    @property
    def kept_bytes(self) -> int:
        """What is known to be there with a claim of it, so that a next try goes on behind it."""
        ...

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        """These are about to come."""
        ...

    def begin_job(self, job: Job, known: bytes) -> None:
        """`job.at` bytes are there. `known`: the journal that lies there; it shall claim `job.claims` and no more."""
        ...

    def write_data(self, job: Job, data: bytes | memoryview) -> None: ...

    def journal_claim(self, job: Job) -> None:
        """What was written so far may be gone on from, by the last of `job.claims`."""
        ...

    def digest_parts(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        """All bytes of these were written: the digest of each part as it lies there, or why there is none."""
        ...

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        """Durable, under their final names; what only the sending needed is gone. Those that were not so, and why: a part
        that is gone, or not the one that was proved, must not stand for it."""
        ...

    def abandon_jobs(self, jobs: Sequence[Job]) -> None:
        """No more bytes of these will come."""
        ...

    def close(self) -> None:
        """The round is over, and its jobs abandoned."""
        ...


def target_of(wire: Wire) -> Target:
    store = wire.target
    if isinstance(store, LocalStore):
        return DiskTarget(store)
    if not isinstance(store, BulkWriting):
        return CallTarget(store)
    from tidemark.transfer.relay.sftp_target import SftpTarget  # here: it loads paramiko, and a local site needs none

    return SftpTarget(store, wire)


def _is_same_file(part: Entry | None, final: Entry | None) -> bool:
    return part is not None and final is not None and (part.size, part.inode) == (final.size, final.inode)


class CallTarget:
    """By the calls of any store: what comes is held until it is claimed, or all of it is there."""

    def __init__(self, store: Store) -> None:
        self.kept_bytes = 0
        self._store = store
        self._held: dict[int, list[bytes]] = {}
        self._papers: dict[int, int] = {}  # bytes of each journal
        self._synced: dict[int, int] = {}

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        """A folder is made when the first file goes into it."""

    def begin_job(self, job: Job, known: bytes) -> None:
        self._held[job.number] = []
        if job.small:
            return
        self._synced[job.number] = job.at
        journal = job.encode_journal()
        # What an old journal claims behind that is cut; one of another source is written anew.
        kept = len(journal) if known.startswith(journal) else 0
        self._papers[job.number] = self._store.write_part(job.journal_path, kept, [] if kept else [journal])

    def write_data(self, job: Job, data: bytes | memoryview) -> None:
        self._held[job.number].append(bytes(data))

    def journal_claim(self, job: Job) -> None:
        held, self._held[job.number] = self._held[job.number], []
        self._store.write_part(job.part_path, job.at - sum(map(len, held)), held)
        if job.at - self._synced[job.number] >= SYNC_BYTES:
            self._sync_part(job)
        # CRASH WINDOW: the bytes lie in the part, the journal does not know: the rerun sends them again.
        paper = self._papers[job.number]
        self._papers[job.number] = self._store.write_part(job.journal_path, paper, [job.claims[-1].encode_line()])
        self.kept_bytes += sum(map(len, held))

    def _sync_part(self, job: Job) -> None:
        try:
            self._store.write_part(job.part_path, job.at, [], sync=True)
        except TidemarkError:  # a disk says once that it lost bytes: nobody may go on from them
            with suppress(TidemarkError):
                self._store.remove([job.part_path])
            raise
        self._synced[job.number] = job.at

    def digest_parts(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        small = [job for job in jobs if job.small]
        if small:
            self._store.write_parts([(job.part_path, b"".join(self._held.pop(job.number))) for job in small])
        return list(self._store.digest_ranges([Range(job.part_path) for job in jobs]))

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        parts = dict(zip(jobs, self._store.stat_many([job.part_path for job in jobs]), strict=True))
        ours = [job for job, entry in parts.items() if entry is not None and entry.size == job.item.size]
        # CRASH WINDOW: whole parts without final names, or some with: the rerun finds the rest and seals them.
        self._store.seal_parts([(job.part_path, job.item.target_path) for job in ours])
        finals = self._store.stat_many([job.item.target_path for job in ours])
        named = {job for job, entry in zip(ours, finals, strict=True) if _is_same_file(parts[job], entry)}
        # CRASH WINDOW: final names there, journals left over; `find_already_there` of the rerun removes them.
        self._store.remove([job.journal_path for job in jobs if job in named and job.has_journal])
        return {job: part_taken_error(job.item) for job in jobs if job not in named}

    def abandon_jobs(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._held.pop(job.number, None)

    def close(self) -> None:
        """Nothing is held open."""
