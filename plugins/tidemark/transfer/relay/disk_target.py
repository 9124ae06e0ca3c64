"""The target of a relay on a disk of this machine: parts and journals are open while their bytes come, unbuffered."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.agent import durable
from tidemark.stores.agent.part_file import SYNC_BYTES, is_proven_after_rename, is_proven_file
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error, translate_os_errors
from tidemark.stores.protocol import Range
from tidemark.transfer.existing import part_taken_error
from tidemark.transfer.relay.job import Job

_OPEN = os.O_RDWR | os.O_CREAT
_NEW = _OPEN | os.O_EXCL


class DiskTarget:
    def __init__(self, store: LocalStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._handles: dict[int, int] = {}
        self._journals: dict[int, int] = {}
        self._found: dict[int, bytes] = {}  # journals of jobs that received no byte yet
        self._synced: dict[int, int] = {}
        self._claimed: dict[int, int] = {}
        self._seen: dict[int, durable.Proof] = {}  # of small files that are written and closed
        self._proofs: dict[int, tuple[durable.Proof, bytes]] = {}  # of parts whose digests were made
        self._unnamed: set[Job] = set()
        self._disks = durable.DiskHandles()

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        self._unnamed.update(jobs)
        folders = sorted({job.item.target_path.rpartition("/")[0] for job in jobs})
        self._store.make_folders(folders)
        with translate_os_errors(self._store.where, folders[0]):
            for folder in folders:
                self._disks.watch_disk(self._store.disk.locate(folder))

    def begin_job(self, job: Job, known: bytes) -> None:
        """Note the job. Its files are opened when its first bytes come, since many jobs may be begun."""
        self._synced[job.number] = self._claimed[job.number] = job.at
        if not job.small:
            self._found[job.number] = known

    def write_data(self, job: Job, data: bytes | memoryview) -> None:
        if job.number in self._found:
            self._open_journal(job, self._found.pop(job.number))
        with translate_os_errors(self._store.where, job.part_path):
            handle = self._open_part(job)
            left, offset = memoryview(data), job.at
            while left:
                done = os.pwrite(handle, left, offset)
                left, offset = left[done:], offset + done
            if job.small and offset == job.item.size:  # hundreds are verified together: too many to keep open
                self._seen[job.number] = durable.Proof.from_stat(os.fstat(handle))
                os.close(self._handles.pop(job.number))

    def journal_claim(self, job: Job) -> None:
        with translate_os_errors(self._store.where, job.part_path):
            if job.at - self._synced[job.number] >= SYNC_BYTES:
                self._sync_part(job)
            # CRASH WINDOW: the bytes are in the part, the journal does not claim them: the rerun sends them again.
            os.write(self._journals[job.number], job.claims[-1].encode_line())
        self.kept_bytes += job.at - self._claimed[job.number]
        self._claimed[job.number] = job.at

    def digest_parts(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        proofs: list[durable.Proof] = []
        for job in jobs:
            with translate_os_errors(self._store.where, job.part_path):
                seen = (
                    self._seen[job.number]
                    if job.number in self._seen
                    else durable.Proof.from_stat(os.fstat(self._open_part(job)))
                )
            proofs.append(seen)
            self.abandon_jobs([job])
        digests = list(self._store.digest_ranges([Range(job.part_path) for job in jobs]))
        for job, proof, digest in zip(jobs, proofs, digests, strict=True):
            self._proofs[job.number] = proof, bytes.fromhex(digest or "")
        return list(digests)

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        with translate_os_errors(self._store.where, jobs[0].item.target_path):
            places = {job: self._locate_part_and_name(job) for job in jobs}
            ours = [job for job in jobs if self._is_unchanged(job, places)]
            lost = self._unless_lost(ours, lambda: durable.make_durable([places[job] for job in ours], disks=self._disks))
            ours = [job for job in ours if job not in lost and self._is_unchanged(job, places)]
            others: list[int] = []

            def name() -> None:
                others.extend(
                    durable.give_names(
                        [places[job] for job in ours], lambda n: self._has_its_name(ours[n], places), self._disks
                    )
                )

            # CRASH WINDOW: whole parts without final names, or some with: the rerun finds the rest and seals them.
            lost.update(self._unless_lost(ours, name))
        sent = {job for number, job in enumerate(ours) if job not in lost and number not in others}
        self._unnamed -= sent
        # CRASH WINDOW: final names there, journals left over; `find_already_there` of the rerun removes them.
        self._store.remove([job.journal_path for job in sent if job.has_journal])
        return {job: lost.get(job) or part_taken_error(job.item) for job in jobs if job not in sent}

    def abandon_jobs(self, jobs: Sequence[Job]) -> None:
        """Close all files of these jobs, then raise the first error. A network disk may report lost bytes at close."""
        trouble: TidemarkError | None = None
        for job in jobs:
            self._found.pop(job.number, None)
            for open_now in (self._handles, self._journals):
                handle = open_now.pop(job.number, -1)
                try:
                    if handle >= 0:
                        os.close(handle)
                except OSError as error:
                    self._discard_part(job)
                    trouble = trouble or os_error(error, self._store.where, job.part_path)
        if trouble is not None:
            raise trouble

    def close(self) -> None:
        self._disks.close()

    def _open_journal(self, job: Job, known: bytes) -> None:
        journal = job.encode_journal()
        with translate_os_errors(self._store.where, job.journal_path):
            place, ours = self._store.disk.locate(job.journal_path), known.startswith(journal)
            if not ours:
                durable.remove_quietly(place)
            record = durable.open_regular(place, (_OPEN if ours else _NEW) | os.O_APPEND)
            self._journals[job.number] = record
            if ours:  # cut further claims
                os.ftruncate(record, len(journal))
            else:
                os.write(record, journal)

    def _sync_part(self, job: Job) -> None:
        try:
            os.fsync(self._open_part(job))
        except OSError:
            self._discard_part(job)
            raise
        self._synced[job.number] = job.at

    def _discard_part(self, job: Job) -> None:
        """Remove a part of which the disk lost bytes. The disk reports it only once, so no try may resume from them."""
        durable.remove_quietly(self._store.disk.locate(job.part_path))

    def _unless_lost(self, jobs: Sequence[Job], sync: Callable[[], None]) -> dict[Job, TidemarkError]:
        """Call `sync`. Returns the jobs of which the disk lost bytes or the name, with their error. No later sync would
        report it again. If a whole disk failed, removes the parts of all unnamed jobs."""
        try:
            sync()
        except durable.SyncFailed as failed:
            if failed.disk:
                self._store.remove([path for job in self._unnamed for path in (job.part_path, job.journal_path)])
            lost = [job for job in jobs if failed.disk or self._locate_part_and_name(job)[0] in failed.parts]
            return {job: os_error(failed, self._store.where, job.part_path) for job in lost}
        return {}

    def _locate_part_and_name(self, job: Job) -> tuple[bytes, bytes]:
        return self._store.disk.locate(job.part_path), self._store.disk.locate(job.item.target_path)

    def _is_unchanged(self, job: Job, places: dict[Job, tuple[bytes, bytes]]) -> bool:
        """Whether the part is the file whose digest was made, and was not written to since."""
        return is_proven_file(places[job][:1], *self._proofs[job.number])

    def _has_its_name(self, job: Job, places: dict[Job, tuple[bytes, bytes]]) -> bool:
        """Whether the file with the final name is the part that was verified."""
        return is_proven_after_rename(places[job][1], *self._proofs[job.number])

    def _open_part(self, job: Job) -> int:
        handle = self._handles.get(job.number, -1)
        if handle < 0:
            place = self._store.disk.locate(job.part_path)
            if not job.at:  # a new file: a process that has the part of an earlier try open cannot write into ours
                durable.remove_quietly(place)
            handle = durable.open_regular(place, _OPEN if job.at else _NEW)
            self._handles[job.number] = handle
            os.ftruncate(handle, job.at)  # bytes behind that were not verified
        return handle
