"""The targets of a relay: write parts and journals of many files. `CallTarget` writes to any store, a block at a time.

A store over SFTP can have many writes in flight: it has its own target (`SftpTarget`), and so has a local disk.
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
    """The writing end of a relay. Bytes of a job come in order, those of a small one in one call. An error that is raised
    concerns more than one job."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that are written and claimed, so that a next try resumes behind them."""
        ...

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        """Prepare for these jobs."""
        ...

    def begin_job(self, job: Job, known: bytes) -> None:
        """Begin a job whose part has `job.at` bytes. `known`: the present journal; it is cut to claim only `job.claims`."""
        ...

    def write_data(self, job: Job, data: bytes | memoryview) -> None: ...

    def journal_claim(self, job: Job) -> None:
        """Journal the last of `job.claims`, so that a next try can resume behind it."""
        ...

    def digest_parts(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        """Return the digest of each part as it is at the target, or its error. All bytes of the jobs were written."""
        ...

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        """Make parts durable under their final names and remove their journals. Returns the jobs that failed, and why. A
        part that vanished, or is not the one whose digest was made, must not get the name."""
        ...

    def abandon_jobs(self, jobs: Sequence[Job]) -> None:
        """Release what is open for these jobs: no more bytes of them will come."""
        ...

    def close(self) -> None:
        """End the round. Its jobs were abandoned before."""
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
    """Writes by the calls of any store. It buffers bytes until they are claimed, or until a small file is complete."""

    def __init__(self, store: Store) -> None:
        self.kept_bytes = 0
        self._store = store
        self._held: dict[int, list[bytes]] = {}
        self._journals: dict[int, int] = {}  # bytes of each journal
        self._synced: dict[int, int] = {}

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        """A folder is made when the first file goes into it."""

    def begin_job(self, job: Job, known: bytes) -> None:
        self._held[job.number] = []
        if job.small:
            return
        self._synced[job.number] = job.at
        journal = job.encode_journal()
        # Further claims of an old journal are cut; a journal of another source is replaced.
        kept = len(journal) if known.startswith(journal) else 0
        self._journals[job.number] = self._store.write_part(job.journal_path, kept, [] if kept else [journal])

    def write_data(self, job: Job, data: bytes | memoryview) -> None:
        self._held[job.number].append(bytes(data))

    def journal_claim(self, job: Job) -> None:
        held, self._held[job.number] = self._held[job.number], []
        self._store.write_part(job.part_path, job.at - sum(map(len, held)), held)
        if job.at - self._synced[job.number] >= SYNC_BYTES:
            self._sync_part(job)
        # CRASH WINDOW: the bytes are in the part, the journal does not claim them: the rerun sends them again.
        record = self._journals[job.number]
        self._journals[job.number] = self._store.write_part(job.journal_path, record, [job.claims[-1].encode_line()])
        self.kept_bytes += sum(map(len, held))

    def _sync_part(self, job: Job) -> None:
        try:
            self._store.write_part(job.part_path, job.at, [], sync=True)
        except TidemarkError:  # a disk reports lost bytes only once: no try may resume from them
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
