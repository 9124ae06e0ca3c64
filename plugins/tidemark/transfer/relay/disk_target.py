"""Where a relay writes on a disk of this machine: parts and journals are open while their bytes come, nothing is held."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.agent import durable
from tidemark.stores.agent.part_file import SYNC_BYTES, named, still
from tidemark.stores.local import LocalStore
from tidemark.stores.os_errors import os_error, translated
from tidemark.stores.protocol import Range
from tidemark.transfer.existing import taken_away
from tidemark.transfer.relay.job import Job

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = _OPEN | os.O_EXCL


class DiskTarget:
    def __init__(self, store: LocalStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._handles: dict[int, int] = {}
        self._papers: dict[int, int] = {}
        self._found: dict[int, bytes] = {}  # journals of jobs that none of their bytes came of
        self._synced: dict[int, int] = {}
        self._claimed: dict[int, int] = {}
        self._seen: dict[int, durable.Proof] = {}  # of small files that are written and closed
        self._proofs: dict[int, tuple[durable.Proof, bytes]] = {}  # of parts whose digests were made
        self._unnamed: set[Job] = set()
        self._disks = durable.Disks()

    def expect(self, jobs: Sequence[Job]) -> None:
        self._unnamed.update(jobs)
        folders = sorted({job.item.target_path.rpartition("/")[0] for job in jobs})
        self._store.make_folders(folders)
        with translated(self._store.where, folders[0]):
            for folder in folders:
                self._disks.watch(self._store.disk.locate(folder))

    def begin(self, job: Job, known: bytes) -> None:
        """Opened when its first bytes come: many may be on their way."""
        self._synced[job.number] = self._claimed[job.number] = job.at
        if not job.small:
            self._found[job.number] = known

    def write(self, job: Job, data: bytes | memoryview) -> None:
        if job.number in self._found:
            self._open_paper(job, self._found.pop(job.number))
        with translated(self._store.where, job.part):
            handle = self._handle(job)
            left, offset = memoryview(data), job.at
            while left:
                done = os.pwrite(handle, left, offset)
                left, offset = left[done:], offset + done
            if job.small and offset == job.item.size:  # hundreds of them are proved together: as many as may be open
                self._seen[job.number] = durable.Proof.of(os.fstat(handle))
                os.close(self._handles.pop(job.number))

    def claim(self, job: Job) -> None:
        with translated(self._store.where, job.part):
            if job.at - self._synced[job.number] >= SYNC_BYTES:
                self._sync(job)
            # CRASH WINDOW: the bytes lie in the part, the journal does not know: the rerun sends them again.
            os.write(self._papers[job.number], job.claims[-1].line())
        self.kept_bytes += job.at - self._claimed[job.number]
        self._claimed[job.number] = job.at

    def proven(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        proofs: list[durable.Proof] = []
        for job in jobs:
            with translated(self._store.where, job.part):
                seen = self._seen[job.number] if job.number in self._seen else durable.Proof.of(os.fstat(self._handle(job)))
            proofs.append(seen)
            self.abandon([job])
        digests = list(self._store.digests([Range(job.part) for job in jobs]))
        for job, proof, digest in zip(jobs, proofs, digests, strict=True):
            self._proofs[job.number] = proof, bytes.fromhex(digest or "")
        return list(digests)

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        with translated(self._store.where, jobs[0].item.target_path):
            places = {job: self._places(job) for job in jobs}
            ours = [job for job in jobs if self._still(job, places)]
            lost = self._unless_lost(ours, lambda: durable.make_durable([places[job] for job in ours], disks=self._disks))
            ours = [job for job in ours if job not in lost and self._still(job, places)]
            others: list[int] = []

            def name() -> None:
                others.extend(
                    durable.give_names([places[job] for job in ours], lambda n: self._named(ours[n], places), self._disks)
                )

            # CRASH WINDOW: whole parts without final names, or some with: the rerun finds the rest and seals them.
            lost.update(self._unless_lost(ours, name))
        sent = {job for number, job in enumerate(ours) if job not in lost and number not in others}
        self._unnamed -= sent
        # CRASH WINDOW: final names there, journals left over; `already_there` of the rerun removes them.
        self._store.remove([job.paper for job in sent if job.journalled])
        return {job: lost.get(job) or taken_away(job.item) for job in jobs if job not in sent}

    def abandon(self, jobs: Sequence[Job]) -> None:
        """Raises what closing one says, as a disk far away may of bytes that it did not take, once all are closed."""
        trouble: TidemarkError | None = None
        for job in jobs:
            self._found.pop(job.number, None)
            for open_now in (self._handles, self._papers):
                handle = open_now.pop(job.number, -1)
                try:
                    if handle >= 0:
                        os.close(handle)
                except OSError as error:
                    self._lose(job)
                    trouble = trouble or os_error(error, self._store.where, job.part)
        if trouble is not None:
            raise trouble

    def close(self) -> None:
        self._disks.close()

    def _open_paper(self, job: Job, known: bytes) -> None:
        journal = job.journal()
        with translated(self._store.where, job.paper):
            place, ours = self._store.disk.locate(job.paper), known.startswith(journal)
            if not ours:
                durable.remove_quietly(place)
            paper = os.open(place, (_OPEN if ours else _NEW) | os.O_APPEND, 0o644)
            self._papers[job.number] = paper
            if ours:  # what it claims behind that is cut
                os.ftruncate(paper, len(journal))
            else:
                os.write(paper, journal)

    def _sync(self, job: Job) -> None:
        try:
            os.fsync(self._handle(job))
        except OSError:
            self._lose(job)
            raise
        self._synced[job.number] = job.at

    def _lose(self, job: Job) -> None:
        """The disk said that it lost bytes, which it says once: nobody may go on from them."""
        durable.remove_quietly(self._store.disk.locate(job.part))

    def _unless_lost(self, jobs: Sequence[Job], sync: Callable[[], None]) -> dict[Job, TidemarkError]:
        """Those of which the disk lost bytes or the name. No other sync would say so again: their parts are gone, and where
        a whole disk said so, whatever else was written to it before."""
        try:
            sync()
        except durable.SyncFailed as failed:
            if failed.disk:
                self._store.remove([path for job in self._unnamed for path in (job.part, job.paper)])
            lost = [job for job in jobs if failed.disk or self._places(job)[0] in failed.parts]
            return {job: os_error(failed, self._store.where, job.part) for job in lost}
        return {}

    def _places(self, job: Job) -> tuple[bytes, bytes]:
        return self._store.disk.locate(job.part), self._store.disk.locate(job.item.target_path)

    def _still(self, job: Job, places: dict[Job, tuple[bytes, bytes]]) -> bool:
        """Nobody wrote to the part, nor put another one there, since its digest was made."""
        return still(places[job][:1], *self._proofs[job.number])

    def _named(self, job: Job, places: dict[Job, tuple[bytes, bytes]]) -> bool:
        """What has the name now is the part that was proved."""
        return named(places[job][1], *self._proofs[job.number])

    def _handle(self, job: Job) -> int:
        handle = self._handles.get(job.number, -1)
        if handle < 0:
            place = self._store.disk.locate(job.part)
            if not job.at:  # a new file: whoever has the one of an earlier try open does not write into ours
                durable.remove_quietly(place)
            handle = os.open(place, _OPEN if job.at else _NEW, 0o644)
            self._handles[job.number] = handle
            os.ftruncate(handle, job.at)  # what lies behind was not proved
        return handle
