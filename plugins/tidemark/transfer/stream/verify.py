"""Read parts back from disk while bytes come, so that a file is named only after the file on disk was digested.

Bytes that come are not hashed: they are written, and the claim of their record is journaled. A second thread reads them
back behind the writer, from the page cache, and compares the digest at the end of every piece. So a file is hashed once
here, and a piece that differs can be requested again. Bytes of an earlier try are such pieces too, once the source sent
their digests. A piece that came without a digest is hashed as it comes, so that it can be compared, too.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemark.stores.agent.block_journal import Block, Identity
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import BARE, BLOCK, PREFIX
from tidemark.stores.agent.part_file import Differs, PartFile

_SIGN_BYTES = 64 << 20  # of a file that is read back whole, between two calls of `alive`
BACK = 1 << 19  # bytes read back at once: a piece is two steps, and stays in the processor's cache


class VerifiedPart(PartFile):
    """The `.part` of a large file of a pull. One thread calls `write_block` and `reopen_span`, another `verify_written`.
    `alive` is called from time to time while many bytes are read back."""

    def __init__(self, disk: Disk, path: str, identity: Identity, alive: Callable[[], None] = lambda: None) -> None:
        self._alive = alive
        self._door = threading.Lock()  # guards what both threads use
        self._reading = threading.Lock()  # held while the handle is read from
        self._over = False
        self._reach = 0  # written without a gap up to this offset
        self._ends: dict[int, bytes] = {}  # end of a piece: the digest of the file up to there
        self._due: list[int] = []  # ends that the reader has not reached, a heap
        self._blocks: list[Block] = []  # claims of pieces of their own
        self._unread: deque[Block] = deque()
        self.kept: set[int] = set()  # offsets of pieces that an earlier try left
        self._came, self._came_end = hashlib.sha256(), 0  # the hash of pieces that came in order without a digest
        self._bad = False  # a piece that differs waits to be sent again
        self._proven = ""  # its SHA-256, once it was read back whole
        self._buffer = memoryview(b"")
        self._unsigned = 0
        super().__init__(disk, path, identity, None)  # closes the part if it fails

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are written."""
        return bool(self._reach == self.size)

    def verified_digest(self) -> str:
        """Return the SHA-256 of the whole file once it is verified, else "". Any thread may call it."""
        return self._proven

    def write_block(self, offset: int, data: memoryview, kind: int, digest: bytes) -> None:
        """Write and journal a piece. Raises OSError of the disk."""
        end = offset + len(data)
        if self._has_span(offset, end):
            return  # came before, from another connection
        if kind == BARE:
            kind, digest = self._digest_bare(offset, data)
        skipped = max(0, self._reach - offset)  # bytes here already, which may have been read back
        self._put_bytes(data[skipped:], offset + skipped)
        # CRASH WINDOW: bytes in the part that the journal does not claim: the rerun asks for this piece again.
        block = Block(offset, len(data), digest.hex()) if kind == BLOCK else Block(0, end, digest.hex())
        os.write(self._journal, block.encode_line())
        self.got += len(data)
        with self._door:
            if kind == BLOCK:
                self._blocks.append(block)
                self._unread.append(block)
            else:
                self._ends[end] = digest
                heapq.heappush(self._due, end)
            self._add_span(offset, end)

    def keep_block(self, block: Block) -> None:
        """Add a piece that an earlier try left, with the source's present digest of it."""
        if self._has_span(block.offset, block.end):
            return
        # CRASH WINDOW: compared or not, the journal claims what it claimed before; the rerun asks and reads again.
        with self._door:
            self.kept.add(block.offset)
            self._blocks.append(block)
            self._unread.append(block)
            self._add_span(block.offset, block.end)

    @property
    def is_behind(self) -> bool:
        """Whether pieces that an earlier try left are still to be read back. They may be large."""
        with self._door:
            return any(block.offset in self.kept for block in self._unread)

    def reopen_span(self, offset: int, end: int) -> tuple[int, int]:
        """Mark bytes that differ as missing. Returns the span to write again: all pieces that contain such bytes."""
        with self._door:
            self._blocks, (offset, end) = _split_blocks(self._blocks, offset, end)
            self._unread = deque(block for block in self._unread if block.end <= offset or block.offset >= end)
            spans = [*self.later.items(), (0, self._reach)]
            self.rewritten = self.rewritten or offset < self.hashed
            self._reach = min(self._reach, offset)
            self.kept = {start for start in self.kept if not offset <= start < end}
            self.later = {}
            for start, stop in spans:
                for good, until in ((start, min(stop, offset)), (max(start, end), stop)):
                    if good < until:
                        self.later[good] = max(until, self.later.get(good, 0))
            self._join_later()
            self._bad = False
        return offset, end

    def verify_written(self, buffer: memoryview) -> bool:
        """Read back, through `buffer`, what was written since the last call. Returns True once, when the whole file is
        verified. Raises Differs, OSError."""
        with self._reading:
            self._buffer = buffer
            with self._door:
                reach = self._reach
            if self._bad or self._over:
                return False
            if self.lost is not None:
                raise self.lost
            if self._proven:  # one call is queued for each piece, which may be more than needed
                return False
            if reach == self.size:
                self._read_whole()
            elif self.rewritten:  # the whole file is hashed at the end
                self._read_pieces()
            else:
                self._read_reached(reach)
            return bool(reach == self.size)

    def close(self) -> None:
        self._over = True
        with self._reading:
            super().close()

    def _digest_bare(self, offset: int, data: memoryview) -> tuple[int, bytes]:
        """Return (kind, digest) of a piece that came without a digest. In order it is that of the file up to there: so the
        piece is read back once."""
        if offset != self._came_end:
            return BLOCK, hashlib.sha256(data).digest()
        self._came.update(data)
        self._came_end += len(data)
        return PREFIX, self._came.digest()

    def _has_span(self, offset: int, end: int) -> bool:
        return end <= self._reach or self.later.get(offset, 0) >= end

    def _add_span(self, offset: int, end: int) -> None:
        self.later[offset] = max(end, self.later.get(offset, 0))
        self._join_later()

    def _join_later(self) -> None:
        for offset in sorted(self.later):
            if offset > self._reach:
                return
            self._reach = max(self._reach, self.later.pop(offset))

    def _read_whole(self) -> None:
        if self.rewritten:
            with self._door:
                self.running, self.hashed, self.rewritten = hashlib.sha256(), 0, False
                self._unread, self._due = deque(self._blocks), sorted(self._ends)
        self._read_reached(self.size)
        self._proven = self.running.hexdigest()

    def _read_reached(self, reach: int) -> None:
        self._read_pieces()
        while self._due and self._due[0] <= reach:
            with self._door:
                end = heapq.heappop(self._due)
            if end > self.hashed:
                self._read_to(end)
        self._hash_back(self.running, self.hashed, reach)
        self.hashed = reach

    def _read_pieces(self) -> None:
        while self._unread:
            block = self._unread[0]
            own = hashlib.sha256()
            self._hash_back(own, block.offset, block.end)
            if own.hexdigest() != block.sha256:
                raise self._mark_different(block.offset, block.end)
            with self._door:
                self._unread.popleft()

    def _read_to(self, end: int) -> None:
        total = self.running.copy()
        self._hash_back(total, self.hashed, end)
        if total.digest() != self._ends[end]:
            with self._door:
                heapq.heappush(self._due, end)
            raise self._mark_different(self.hashed, end)
        self.running, self.hashed = total, end

    def _mark_different(self, offset: int, end: int) -> Differs:
        self._bad = True
        return Differs(offset, end - offset)

    def _hash_back(self, total: Any, offset: int, end: int) -> None:
        while offset < end:
            if self._over:
                raise OSError(errno.ECANCELED, "is not waited for any more")
            got = os.preadv(self._handle, [self._buffer[: end - offset]], offset)
            if not got:
                raise OSError(errno.ESTALE, "lost bytes that were written")
            total.update(self._buffer[:got])
            offset += got
            self._unsigned += got
            if self._unsigned >= _SIGN_BYTES:
                self._unsigned = 0
                self._alive()


def _split_blocks(blocks: list[Block], offset: int, end: int) -> tuple[list[Block], tuple[int, int]]:
    """Return the blocks outside the span, and the span extended to the borders of the blocks that it overlaps."""
    while True:
        within = [block for block in blocks if block.offset < end and block.end > offset]
        grown = min([offset, *(block.offset for block in within)]), max([end, *(block.end for block in within)])
        if grown == (offset, end):
            return [block for block in blocks if block.end <= offset or block.offset >= end], grown
        offset, end = grown


class Verification(NamedTuple):
    """The result for a part: verified, or an error (Differs, OSError; anything else is a bug)."""

    number: int
    trouble: Exception | None


class Verifier:
    """The thread that reads parts back. It calls `alive` after it put something into `results`."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self.results: queue.SimpleQueue[Verification] = queue.SimpleQueue()
        self._alive = alive
        self._queue: queue.SimpleQueue[tuple[int, VerifiedPart] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_queue, name="tidemark-prove", daemon=True)
        self._thread.start()

    def queue_part(self, number: int, part: VerifiedPart) -> None:
        """Queue a part of which more bytes came."""
        self._queue.put((number, part))

    def finish_verifying(self) -> None:
        """Wait until all queued parts were read back, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run_queue(self) -> None:
        buffer = memoryview(bytearray(BACK))
        while True:
            job = self._queue.get()
            if job is None:
                return
            number, part = job
            try:
                proven = part.verify_written(buffer)
            except Exception as trouble:
                self.results.put(Verification(number, trouble))
                self._alive()
            else:
                if proven:
                    self.results.put(Verification(number, None))
                    self._alive()
