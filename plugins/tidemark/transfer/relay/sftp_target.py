"""The target of a relay over an SFTP session: requests of many files are in flight at once.

A small file is opened, written, made durable, read back and closed without waiting for answers. The store digests a large
file (read back, or by a tool there).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.agent.part_file import SYNC_BYTES
from tidemark.stores.protocol import Range
from tidemark.stores.sftp.write_stream import Part, PartStream
from tidemark.transfer.existing import part_taken_error, read_digests
from tidemark.transfer.items import BulkWriting, Wire
from tidemark.transfer.relay.job import Job

MOST_OPEN = 200  # parts and journals; servers allow a thousand, some fewer


class SftpTarget:
    """Writes parts and journals by pipelined SFTP requests.

    Verifies small files by reading them back if the store `reads_back`, else by its digests. The bytes that are read back
    count under the link's cap. When the connection is cut, at most a quarter of a block in flight is lost.
    """

    def __init__(self, store: BulkWriting, wire: Wire) -> None:
        session = store.bulk_session()
        self._store = store
        self._wire = wire
        self._reads_back = store.reads_back
        self._whole_read = session.read_size
        self._stream = PartStream(session, max(1, wire.options.block_bytes // 4))
        self._begun: deque[tuple[Job, bytes]] = deque()  # not opened yet, in the order of their bytes; journals found
        self._parts: dict[int, Part] = {}
        self._journals: dict[int, Part] = {}
        self._synced: dict[int, int] = {}
        self._at: dict[int, int] = {}  # the end of each one's last claim
        self._claimed: list[tuple[Part, int, int]] = []  # (part, offset, end)

    @property
    def kept_bytes(self) -> int:
        return sum(end - offset for part, offset, end in self._claimed if part.written >= end)

    def expect_jobs(self, jobs: Sequence[Job]) -> None:
        self._store.make_folders(sorted({job.item.target_path.rpartition("/")[0] for job in jobs}))

    def begin_job(self, job: Job, known: bytes) -> None:
        """Open the job's files at once, unless many are open, so that its bytes need not wait for the answer."""
        self._begun.append((job, known))
        self._open_more()
        if not job.bytes_left:
            self._open_until(job)
            self._end_part(job)

    def write_data(self, job: Job, data: bytes | memoryview) -> None:
        if job.number not in self._parts:
            self._open_until(job)
        part = self._parts[job.number]
        self._stream.write_part(part, data)
        if part.trouble is not None and not job.small:  # else it would show only after the last byte
            raise self._store.explain_error(part.trouble, job.part_path)
        if job.small and part.offset == job.item.size:
            self._end_part(job)
        if self._begun:
            self._open_more()

    def journal_claim(self, job: Job) -> None:
        # CRASH WINDOW: the journal claims bytes that did not arrive: the rerun compares digests, and sends them again.
        self._stream.write_part(self._journals[job.number], job.claims[-1].encode_line())
        self._claimed.append((self._parts[job.number], self._at[job.number], job.at))
        self._at[job.number] = job.at
        if not job.bytes_left:
            self._end_part(job)
        elif job.at - self._synced[job.number] >= SYNC_BYTES:
            self._synced[job.number] = job.at
            self._stream.sync_part(self._parts[job.number])

    def digest_parts(self, jobs: Sequence[Job]) -> list[str | TidemarkError | None]:
        parts = [self._parts.pop(job.number) for job in jobs]
        records = [self._journals.pop(job.number) for job in jobs if not job.small]
        self._stream.await_parts([*parts, *records])
        asked = [job for job, part in zip(jobs, parts, strict=True) if part.trouble is None and not self._in_stream(job)]
        made = dict(zip(asked, read_digests(self._wire, self._store, [Range(job.part_path) for job in asked]), strict=True))
        found: list[str | TidemarkError | None] = []
        for job, part in zip(jobs, parts, strict=True):
            if part.trouble is not None:
                found.append(self._store.explain_error(part.trouble, job.part_path))
            else:
                found.append(made[job] if job in made else hashlib.sha256(part.read_back).hexdigest())
        return found

    def give_names(self, jobs: Sequence[Job]) -> dict[Job, TidemarkError]:
        # CRASH WINDOW: durable parts without final names, or some with: the rerun finds the rest and seals them.
        lost = self._store.name_durable([(job.part_path, job.item.target_path, job.item.size) for job in jobs])
        # CRASH WINDOW: final names there, journals left over; `find_already_there` of the rerun removes them.
        self._store.remove([job.journal_path for n, job in enumerate(jobs) if job.has_journal and n not in lost])
        return {jobs[number]: part_taken_error(jobs[number].item) for number in lost}

    def abandon_jobs(self, jobs: Sequence[Job]) -> None:
        gone = set(jobs)
        if any(job in gone for job, _ in self._begun):
            self._begun = deque(begun for begun in self._begun if begun[0] not in gone)
        for job in jobs:
            for open_now in (self._parts, self._journals):
                part = open_now.pop(job.number, None)
                if part is not None:
                    self._stream.close_part(part)

    def close(self) -> None:
        """Do nothing: `abandon_jobs` closed the handles."""

    def _open_more(self) -> None:
        while self._begun and self._stream.handles < MOST_OPEN:
            self._open_job(*self._begun.popleft())

    def _open_until(self, job: Job) -> None:
        """Open jobs in order up to this one. Bytes of earlier jobs may never come, so more handles are open for a while."""
        while job.number not in self._parts:
            self._stream.await_handles(MOST_OPEN)
            self._open_job(*self._begun.popleft())

    def _open_job(self, job: Job, known: bytes) -> None:
        self._parts[job.number] = self._stream.open_part(self._store.locate_path(job.part_path), job.at, fresh=not job.at)
        if job.small:
            return
        self._synced[job.number] = self._at[job.number] = job.at
        journal = job.encode_journal()
        kept = len(journal) if job.at and known.startswith(journal) else 0
        self._journals[job.number] = self._stream.open_part(self._store.locate_path(job.journal_path), kept, fresh=not kept)
        if not kept:
            self._stream.write_part(self._journals[job.number], journal)

    def _in_stream(self, job: Job) -> bool:
        """Whether the file is read back in the same stream, behind its writes."""
        return self._reads_back and job.small and job.item.size <= self._whole_read

    def _end_part(self, job: Job) -> None:
        in_stream = self._in_stream(job)
        if in_stream:
            self._wire.bucket.consume_tokens(job.item.size)
        self._stream.finish_part(self._parts[job.number], in_stream)
        if not job.small:
            self._stream.close_part(self._journals[job.number])
