"""The near end of a pull: what comes is checked, written into the `.part`, journaled; a large file's digest runs along.

A small file is one write. Of a large one every piece is digested as it comes: pieces in order by the hash of the file so
far, which the far end's record must equal (nothing is hashed twice), others by their own, and the hash of the file catches
up from the part. A piece is journaled after its bytes were written. Every call is made by one thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass, field
from typing import Any

from tidemark.stores import durable
from tidemark.stores.block_journal import Block, Identity, header, journal_of, part_of
from tidemark.stores.disk import Disk
from tidemark.stores.far_stream import BARE, BLOCK, PREFIX
from tidemark.stores.transfer_items import SendItem

_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_BACK = 1 << 20  # bytes read back at once
SYNC_BYTES = 64 << 20  # so much of a large file is made durable while more comes: a power loss costs at most this


class Differs(Exception):
    """A piece's digest is not the one its record has."""

    def __init__(self, offset: int, length: int) -> None:
        super().__init__(offset, length)
        self.offset = offset
        self.length = length


@dataclass
class Resumed:
    """What an earlier try left in the part, digested again: the file's hash up to `prefix`, and blocks behind it."""

    prefix: int = 0
    running: Any = field(default_factory=hashlib.sha256)
    blocks: list[Block] = field(default_factory=list)

    def spans(self) -> list[tuple[int, int]]:
        return [(0, self.prefix), *((block.offset, block.end) for block in self.blocks)]


class PartFile:
    """The `.part` of one large file while it comes."""

    def __init__(self, disk: Disk, item: SendItem, identity: Identity, resumed: Resumed) -> None:
        self.item = item
        self.running = resumed.running
        self.hashed = resumed.prefix  # the hash covers the file up to here
        self.later = {block.offset: block.end for block in resumed.blocks}  # whole pieces behind it
        self.synced = self.got = sum(end - offset for offset, end in resumed.spans())
        self._handle = _open(disk.locate(part_of(item.target_path)), bool(self.got))
        self._paper = -1
        try:
            self._paper = _open(disk.locate(journal_of(item.target_path)), False)
            known = [Block(0, resumed.prefix, resumed.running.copy().hexdigest())] if resumed.prefix else []
            lines = b"".join(block.line() for block in [*known, *resumed.blocks])
            os.write(self._paper, header(identity) + lines)
        except BaseException:
            self.close()
            raise

    @property
    def complete(self) -> bool:
        return self.hashed == self.item.size

    def digest(self) -> str:
        return str(self.running.hexdigest())

    def take(self, offset: int, data: memoryview, kind: int, digest: bytes) -> None:
        """Check, write, journal one piece. Raises Differs, and OSError of the disk."""
        end = offset + len(data)
        if end <= self.hashed or self.later.get(offset, 0) >= end:
            return  # came before, from another connection
        block = self._checked(offset, data, kind, digest)
        _write(self._handle, data, offset)
        # CRASH WINDOW: bytes in the part, the journal does not know: the rerun asks for this piece again.
        os.write(self._paper, block.line())
        self.got += len(data)
        if self.hashed < end:  # not hashed while it was checked
            if offset <= self.hashed:
                self.running.update(data[self.hashed - offset :])
                self.hashed = end
            else:
                self.later[offset] = max(end, self.later.get(offset, 0))
        self._catch_up()

    def sync_due(self) -> int:
        """A handle to sync when much has come since the last time, for another thread; else -1. It closes it."""
        if self.got - self.synced < SYNC_BYTES:
            return -1
        self.synced = self.got
        return os.dup(self._handle)

    def close(self) -> None:
        for handle in (self._handle, self._paper):
            if handle >= 0:
                os.close(handle)
        self._handle = self._paper = -1

    def _checked(self, offset: int, data: memoryview, kind: int, digest: bytes) -> Block:
        end = offset + len(data)
        if offset <= self.hashed and kind != BLOCK:
            self.running.update(data[self.hashed - offset :])
            self.hashed = end
            total = self.running.copy().digest()
            if kind == PREFIX and total != digest:
                raise Differs(offset, len(data))
            return Block(0, end, total.hex())
        if kind == PREFIX:  # its sender sends in order, so all before it should have come from there
            raise Differs(offset, len(data))
        own = hashlib.sha256(data)
        if kind != BARE and own.digest() != digest:
            raise Differs(offset, len(data))
        return Block(offset, len(data), own.hexdigest())

    def _catch_up(self) -> None:
        """Take whole pieces that now follow the hashed part into the hash."""
        while self.later:
            reach = [(o, e) for o, e in self.later.items() if o <= self.hashed]
            if not reach:
                return
            for offset, end in sorted(reach):
                del self.later[offset]
                if end > self.hashed:
                    self._hash_back(self.running, self.hashed, end)
                    self.hashed = end

    def _hash_back(self, total: Any, offset: int, end: int) -> None:
        while offset < end:
            piece = os.pread(self._handle, min(_BACK, end - offset), offset)
            if not piece:
                raise OSError(errno.EIO, "lost bytes that were written")
            total.update(piece)
            offset += len(piece)


def write_small(place: bytes, data: memoryview) -> None:
    """A small file's `.part`, whole; durable only once it is sealed."""
    handle = os.open(place, durable.PART, 0o644)
    try:
        _write(handle, data, 0)
    finally:
        os.close(handle)


def _open(place: bytes, keep: bool) -> int:
    handle = os.open(place, _WRITE, 0o644)
    if not keep:
        os.ftruncate(handle, 0)
    return handle


def _write(handle: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(handle, data, offset)
        data, offset = data[done:], offset + done
