"""Where a relay writes on a disk of this machine: parts and journals are open while their bytes come, nothing is held."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.local import LocalStore
from tidemark.stores.part_file import SYNC_BYTES
from tidemark.stores.protocol import Range
from tidemark.stores.relay_job import Job
from tidemark.stores.translation import translated

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskTarget:
    def __init__(self, store: LocalStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._handles: dict[int, int] = {}
        self._papers: dict[int, int] = {}
        self._synced: dict[int, int] = {}
        self._claimed: dict[int, int] = {}

    def expect(self, jobs: Sequence[Job]) -> None:
        self._store.make_folders(sorted({job.item.target_path.rpartition("/")[0] for job in jobs}))

    def begin(self, job: Job, known: bytes) -> None:
        """Opened when its first bytes come: many may be on their way."""
        self._synced[job.number] = self._claimed[job.number] = job.at
        if job.small:
            return
        journal = job.journal()
        with translated(self._store.where, job.paper):
            paper = os.open(self._store.disk.locate(job.paper), _OPEN | os.O_APPEND, 0o644)
            self._papers[job.number] = paper
            if not known.startswith(journal):
                os.ftruncate(paper, 0)
                os.write(paper, journal)
            else:  # what it claims behind that is cut
                os.ftruncate(paper, len(journal))

    def write(self, job: Job, data: bytes | memoryview) -> None:
        with translated(self._store.where, job.part):
            handle = self._handle(job)
            left, offset = memoryview(data), job.at
            while left:
                done = os.pwrite(handle, left, offset)
                left, offset = left[done:], offset + done

    def claim(self, job: Job) -> None:
        with translated(self._store.where, job.part):
            if job.at - self._synced[job.number] >= SYNC_BYTES:
                os.fsync(self._handle(job))
                self._synced[job.number] = job.at
            # CRASH WINDOW: the bytes lie in the part, the journal does not know: the rerun sends them again.
            os.write(self._papers[job.number], job.claims[-1].line())
        self.kept_bytes += job.at - self._claimed[job.number]
        self._claimed[job.number] = job.at

    def proven(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        for job in jobs:
            if not job.item.size:
                with translated(self._store.where, job.part):
                    self._handle(job)
        self.abandon(jobs)
        return list(self._store.digests([Range(job.part) for job in jobs]))

    def give_names(self, jobs: Sequence[Job]) -> None:
        # CRASH WINDOW: whole parts without final names, or some with: the rerun finds the rest and seals them.
        self._store.seal_parts([(job.part, job.item.target_path) for job in jobs])
        # CRASH WINDOW: final names there, journals left over; `already_there` of the rerun removes them.
        self._store.remove([job.paper for job in jobs if not job.small])

    def abandon(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for open_now in (self._handles, self._papers):
                handle = open_now.pop(job.number, -1)
                if handle >= 0:
                    os.close(handle)

    def _handle(self, job: Job) -> int:
        handle = self._handles.get(job.number, -1)
        if handle < 0:
            handle = os.open(self._store.disk.locate(job.part), _OPEN, 0o644)
            self._handles[job.number] = handle
            os.ftruncate(handle, job.at)  # what lies behind was not proved
        return handle
