"""Read parts back while they come, so that the digest a file gets its name by is one of the file, made before the name.

Of what comes nothing is hashed: it is written, and its record's claim is journaled. A thread of its own reads it back
behind the writer, from the page cache, and compares at every piece's end; so a file is hashed once here, beside what still
comes, and bytes that differ are those of a piece that can be asked for again. What an earlier try left is such a piece, too,
once the source said what it has there. What somebody else writes behind that thread
shows in the part's times (`stores.agent.durable.Proof`), and then all of it is read back once more, at the end.
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
from tidemark.stores.agent.part_file import LOOKS, Differs, PartFile

_SIGN_BYTES = 64 << 20  # of a file that is read back whole, between two signs of life
BACK = 1 << 19  # bytes read back at once: a piece is two steps, and stays in the processor's cache


class VerifiedPart(PartFile):
    """The `.part` of a large file of a pull. `write_block` and `reopen_span` are one thread's (it writes), `verify_written`
    another's (it reads).

    `alive` is called now and then while much is read back.
    """

    def __init__(self, disk: Disk, path: str, identity: Identity, alive: Callable[[], None] = lambda: None) -> None:
        self._alive = alive
        self._door = threading.Lock()  # to what both threads look at
        self._reading = threading.Lock()  # held while the handle is read from
        self._over = False
        self._reach = 0  # here without a gap up to that
        self._ends: dict[int, bytes] = {}  # end of a piece: what the file up to there must have; b"": what was read back
        self._due: list[int] = []  # those the reader has not come to, a heap
        self._blocks: list[Block] = []  # claims of pieces of their own
        self._unread: deque[Block] = deque()
        self.kept: set[int] = set()  # where pieces begin that an earlier try left
        self._bare = False  # some of it is known by what was read back alone
        self._bad = False  # bytes that differ wait to be sent again
        self._proven = ""  # its SHA-256, once it was read back whole
        self._buffer = memoryview(b"")
        self._unsigned = 0
        super().__init__(disk, path, identity, None)  # which closes it where it fails

    @property
    def is_complete(self) -> bool:
        """All of it is written."""
        return bool(self._reach == self.size)

    def verified_digest(self) -> str:
        """Of the whole file, once it is proven; from any thread."""
        return self._proven

    def write_block(self, offset: int, data: memoryview, kind: int, digest: bytes) -> None:
        """Write and journal a piece. Raises OSError of the disk."""
        end = offset + len(data)
        if self._has_span(offset, end):
            return  # came before, from another connection
        if kind == BARE and (offset > self._reach or not self._lease.held):  # then all is read again, against what came
            kind, digest = BLOCK, hashlib.sha256(data).digest()
        skipped = max(0, self._reach - offset)  # bytes here already, which may have been read back
        self._put_bytes(data[skipped:], offset + skipped)
        # CRASH WINDOW: bytes in the part, the journal does not know: the rerun asks for this piece again.
        block = Block(offset, len(data), digest.hex()) if kind == BLOCK else Block(0, end, digest.hex())
        if kind == BARE:
            self._bare = True
        else:
            os.write(self._paper, block.encode_line())
        self.got += len(data)
        with self._door:
            if kind == BLOCK:
                self._blocks.append(block)
                self._unread.append(block)
            else:
                self._ends[end] = digest if kind == PREFIX else b""
                heapq.heappush(self._due, end)
            self._add_span(offset, end)

    def keep_block(self, block: Block) -> None:
        """A piece that an earlier try left, with the digest that the source has of it now."""
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
        """Much that an earlier try left may still be to read back."""
        with self._door:
            return any(block.offset in self.kept for block in self._unread)

    def reopen_span(self, offset: int, end: int) -> tuple[int, int]:
        """These bytes differ; returns the span that is to be put again: with them, all of the pieces they are in."""
        with self._door:
            self._blocks, (offset, end) = _split_blocks(self._blocks, offset, end)
            self._unread = deque(block for block in self._unread if block.end <= offset or block.offset >= end)
            spans = [*self.later.items(), (0, self._reach)]
            self.touched = self.touched or offset < self.hashed
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
        """Read back what came since, by way of `buffer`; True when that was the rest, once. Raises Differs, OSError."""
        with self._reading:
            self._buffer = buffer
            with self._door:
                reach = self._reach
            if self._bad or self._over:
                return False
            if self.lost is not None:
                raise self.lost
            if self._proven:  # who asked for a look at each piece may have asked too often
                return False
            if reach == self.size:
                self._read_whole()
            elif self.touched:  # then all of it is hashed at the end
                self._read_pieces()
            else:
                self._read_reached(reach)
            return bool(reach == self.size)

    def close(self) -> None:
        self._over = True
        with self._reading:
            super().close()

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
        for _ in range(LOOKS):
            before = self._cut_stat()
            if self.touched or before != self.proof:
                if self._bare:
                    raise OSError(errno.ESTALE, "was written to by somebody else, and no digest of the source tells what")
                with self._door:
                    self.running, self.hashed, self.touched = hashlib.sha256(), 0, False
                    self._unread, self._due = deque(self._blocks), sorted(self._ends)
            self.proof = before
            self._read_reached(self.size)
            if self._is_unchanged(before):
                self._proven = self.running.hexdigest()
                return
        raise OSError(errno.EBUSY, "is written to by somebody else")

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
        digest, wanted = total.digest(), self._ends[end]
        if not wanted:
            self._ends[end] = digest
            os.write(self._paper, Block(0, end, digest.hex()).encode_line())
        elif digest != wanted:
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
    """The blocks outside of the span, which grows to the borders of those within."""
    while True:
        within = [block for block in blocks if block.offset < end and block.end > offset]
        grown = min([offset, *(block.offset for block in within)]), max([end, *(block.end for block in within)])
        if grown == (offset, end):
            return [block for block in blocks if block.end <= offset or block.offset >= end], grown
        offset, end = grown


class Verification(NamedTuple):
    """What became of a part: proven, or the trouble (Differs, OSError; anything else is a bug)."""

    number: int
    trouble: Exception | None


class Verifier:
    """The thread that reads back. It calls `alive` when there is something for `results`."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self.results: queue.SimpleQueue[Verification] = queue.SimpleQueue()
        self._alive = alive
        self._queue: queue.SimpleQueue[tuple[int, VerifiedPart] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_queue, name="tidemark-prove", daemon=True)
        self._thread.start()

    def queue_part(self, number: int, part: VerifiedPart) -> None:
        """More of it came."""
        self._queue.put((number, part))

    def finish_verifying(self) -> None:
        """Returns when all that came was read back."""
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
