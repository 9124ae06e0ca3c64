"""Write the parts of incoming files: write each piece, read it back, journal it, and keep a large file's digest current.

A small file is one write. Every piece of a large file is read back from the part. Pieces in order are added to the hash
of the file so far. It must equal the digest in the sender's record, so nothing is hashed twice. Other pieces are hashed
by themselves, and the hash of the file catches up from the part. One thread writes, another reads back. Several
processes of ours may write to one part, each with its own hash: they write the same bytes. Where a piece came twice, the
whole part is read back once more. A write by anybody else after the read-back is not noticed here: the digest of the load
or of `verify` finds it (docs/decisions/0011).

Bytes that an earlier try left in a part are kept if they come from the same source and match the journal's digests
(`whole_blocks`). The source's reader compares them by `claims_of`, since the source may have changed. A pull starts from
`claimed_blocks` and asks the source for their digests.

`HeadRoom` checks regularly that the disk has room: at the latest after 64 MB or 1 s, since others write to the disk,
too. It raises before fewer than `reserve` bytes would stay free.

Runs at both ends: Python 3.6, standard library alone. A pull continues in `transfer.stream.verify`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import (
    Block,
    BlockJournal,
    Identity,
    decode_journal,
    encode_header,
    journal_at,
    journal_of,
    part_at,
    part_of,
)
from tidemark.stores.agent.disk import Disk, read_at
from tidemark.stores.agent.frames import BARE, BLOCK, PREFIX

LOOK_BYTES = 64 << 20  # written since the last check, at most
LOOK_SECONDS = 1.0  # others write to the disk, too


class NoRoom(OSError):
    """The disk has fewer free bytes than are to be written and to stay free. `free`: bytes."""

    def __init__(self, free: int) -> None:
        super().__init__(errno.ENOSPC, f"{free} bytes are free")
        self.free = free


class HeadRoom:
    """The free space of the disk that `folder` is on, or will be on. `disk.free_bytes` measures it. `reserve` bytes are to
    stay free. `rarely`: check only every `rarely` * LOOK_SECONDS, where a check costs a round trip."""

    def __init__(self, disk: Any, folder: str, reserve: int, rarely: int = 1) -> None:
        self._disk = disk
        self._folder = folder
        self._reserve = reserve
        self._rarely = rarely
        self._left = 0  # bytes that may be written before the next check
        self._until = 0.0  # by `time.monotonic`

    def claim_room(self, size: int) -> None:
        """Check that `size` bytes may be written. Raises NoRoom, and OSError where the free space cannot be read."""
        self._left -= size
        now = time.monotonic()
        if self._left >= 0 and now < self._until:
            return
        free = self._disk.free_bytes(self._folder)
        if free < self._reserve + size:
            raise NoRoom(free)
        self._left = min(LOOK_BYTES, free - self._reserve - size)
        self._until = now + LOOK_SECONDS * self._rarely


_NEW = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
_BACK = 1 << 18  # bytes read back at once: they stay in the processor's cache
SYNC_BYTES = 64 << 20  # a large file is synced each time so much has come: a power loss costs at most this


class Differs(Exception):
    """A piece's digest is not the one in its record."""

    def __init__(self, offset: int, length: int) -> None:
        super().__init__(offset, length)
        self.offset = offset
        self.length = length


class Resumed:
    """What an earlier try left in the part and was verified: the file's hash up to `prefix`, and blocks after it."""

    def __init__(self) -> None:
        self.prefix = 0
        self.running: Any = hashlib.sha256()
        self.blocks: list[Block] = []

    def known_blocks(self) -> list[Block]:
        first = [Block(0, self.prefix, self.running.copy().hexdigest())] if self.prefix else []
        return first + self.blocks

    def known_spans(self) -> list[tuple[int, int]]:
        return spans_of(self.known_blocks())


def spans_of(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    return [(block.offset, block.end) for block in blocks]


def begin_part(disk: Disk, path: str, identity: Identity, known: Sequence[Block]) -> None:
    """Make the part and the journal for `PartFile`. `known`: the blocks that an earlier try left; they stay in the journal.

    Without `known` the part is a new file that no other process has open. Raises ESTALE when another process makes it now.
    """
    place = disk.locate(path)
    if not known:
        durable.remove_quietly(journal_at(place))
        os.close(_create_new(part_at(place)))
    # CRASH WINDOW: a new part without a journal: the rerun begins it anew. A known part with its old journal: resumed.
    beside = journal_at(place) + b".part"  # a full disk leaves the old journal as it is
    record = _create_new(beside)
    try:
        _write_at(record, memoryview(encode_header(identity) + b"".join(block.encode_line() for block in known)), 0)
        os.rename(beside, journal_at(place))
    except OSError:
        durable.remove_quietly(beside)
        raise
    finally:
        os.close(record)


class PartFile:
    """The `.part` of one large file, made by `begin_part`. Raises ENOENT without one, ESTALE for another source's."""

    def __init__(self, disk: Disk, path: str, identity: Identity, resumed: Resumed | None) -> None:
        self.place = place = disk.locate(path)
        resumed = resumed or Resumed()
        self.size = identity.wanted
        self.rewritten = False  # a piece that was hashed was written again: the hash may be wrong
        self.lost: OSError | None = None  # the error of the sync by which the disk lost bytes
        self.running = resumed.running
        self.hashed = resumed.prefix  # the hash covers the file up to here
        self.later = {block.offset: block.end for block in resumed.blocks}  # verified pieces after it
        self.synced = self.got = sum(end - offset for offset, end in resumed.known_spans())
        self._handle = durable.open_regular(part_at(place), os.O_RDWR)
        self._journal = -1
        try:
            self._journal = durable.open_regular(journal_at(place), os.O_RDWR | os.O_APPEND)
            begun = encode_header(identity)
            if read_at(self._journal, len(begun), 0) != begun:
                raise OSError(errno.ESTALE, "was begun for another source")
        except BaseException:
            self.close()
            raise

    def digest_whole(self) -> bytes:
        """Return the SHA-256 of the whole file, whose pieces are all in the part, whoever wrote them. Raises OSError."""
        if self.lost is not None:
            raise self.lost
        if self.rewritten:
            self.running, self.hashed, self.rewritten = hashlib.sha256(), 0, False
        self._hash_back(self.running, self.hashed, self.size)
        self.hashed = self.size
        return bytes(self.running.digest())

    @property
    def proof(self) -> durable.Proof:
        """Return the part's state, for whoever names it to recognize it."""
        return durable.Proof.from_stat(os.fstat(self._handle))

    def write_piece(self, offset: int, data: memoryview) -> None:
        """Write one piece. Another thread then calls `verify_piece`. Raises the disk's OSError."""
        self._put_bytes(data, offset)
        self.got += len(data)

    def verify_piece(self, offset: int, length: int, kind: int, digest: bytes) -> None:
        """Read a piece back, compare its digest, journal it. Raises Differs, and the disk's OSError."""
        end = offset + length
        if end <= self.hashed or self.later.get(offset, 0) >= end:
            self.rewritten = True  # `digest_whole` will read the whole part
            return
        block = self._verify_block(offset, end, kind, digest)
        # CRASH WINDOW: bytes in the part that the journal lacks: the rerun asks for this piece again.
        os.write(self._journal, block.encode_line())
        if self.hashed < end:
            self.later[offset] = max(end, self.later.get(offset, 0))
        self._catch_up()

    def sync_due(self) -> int:
        """Return a handle for another thread to sync and close, when SYNC_BYTES have come since the last one; else -1."""
        if self.got - self.synced < SYNC_BYTES:
            return -1
        self.synced = self.got
        return os.dup(self._handle)

    def mark_lost(self, error: OSError) -> None:
        """Record that a sync lost bytes of the part. A second sync would succeed, so the part must never be renamed."""
        self.lost = error
        durable.remove_quietly(journal_at(self.place))

    def close(self) -> None:
        """Close the part. Raises OSError where a network disk did not store all bytes: the part must not be resumed."""
        handles, self._handle, self._journal = (self._handle, self._journal), -1, -1
        lost: OSError | None = None
        for handle in handles:
            try:
                if handle >= 0:
                    os.close(handle)
            except OSError as error:
                lost = error
        if lost is not None:
            self.mark_lost(lost)
            raise lost

    def _put_bytes(self, data: memoryview, offset: int) -> None:
        if offset + len(data) > self.size:
            raise OSError(errno.EINVAL, "bytes came that lie behind its end")
        _write_at(self._handle, data, offset)

    def _verify_block(self, offset: int, end: int, kind: int, digest: bytes) -> Block:
        if offset <= self.hashed and kind != BLOCK:
            total = self.running.copy()
            self._hash_back(total, self.hashed, end)
            if kind == PREFIX and total.digest() != digest:
                raise Differs(offset, end - offset)
            self.running, self.hashed = total, end
            return Block(0, end, total.hexdigest())
        if kind == PREFIX:  # such a sender sends in order, so the bytes before should be here
            raise Differs(offset, end - offset)
        own = hashlib.sha256()
        self._hash_back(own, offset, end)
        if kind != BARE and own.digest() != digest:
            raise Differs(offset, end - offset)
        return Block(offset, end - offset, own.hexdigest())

    def _catch_up(self) -> None:
        """Add the pieces that now follow the hashed range to the hash."""
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
        if not hash_range(self._handle, total, offset, end):
            raise OSError(errno.ESTALE, "lost bytes that were written")


def write_small(place: bytes, data: memoryview) -> durable.Proof:
    """Write a small file's `.part`. It is not durable before it is sealed."""
    try:
        handle = os.open(place, _NEW, 0o644)
    except FileExistsError:  # from an earlier try; not reused, as another process may be renaming it
        handle = _create_new(place)
    try:
        _write_at(handle, data, 0)
        return durable.Proof.from_stat(os.fstat(handle))
    finally:
        os.close(handle)


def hash_range(handle: int, total: Any, offset: int, end: int, tell: Callable[[], None] | None = None) -> bool:
    """Add an open file's bytes from `offset` to `end` to the hash `total`. Returns False where the file is shorter.

    `tell` is called after every piece, to report progress.
    """
    while offset < end:
        piece = os.pread(handle, min(_BACK, end - offset), offset)
        if not piece:
            return False
        total.update(piece)
        offset += len(piece)
        if tell is not None:
            tell()
    return True


def digest_of(place: bytes) -> tuple[bytes, durable.Proof] | None:
    """Return the SHA-256 of a part and its proof; None where it was written to meanwhile. Raises as `open_regular`."""
    handle = durable.open_regular(place, os.O_RDONLY)
    try:
        before, total = durable.Proof.from_stat(os.fstat(handle)), hashlib.sha256()
        whole = hash_range(handle, total, 0, before.size)
        return (total.digest(), before) if whole and durable.Proof.from_stat(os.fstat(handle)) == before else None
    finally:
        os.close(handle)


def is_proven_file(places: Sequence[bytes], proof: durable.Proof, digest: bytes) -> bool:
    """Whether the first existing one of `places` is the file whose bytes were verified.

    If only its times differ, perhaps because of a network disk or a backup, its bytes are digested.
    """
    for place in places:
        try:
            info = os.lstat(place)
        except FileNotFoundError:
            continue
        if proof.shown_by(info):
            return True
        found = durable.Proof.from_stat(info)
        return found[:2] == proof[:2] and digest_of(place) == (digest, found)
    return False


def is_proven_after_rename(place: bytes, proof: durable.Proof, digest: bytes) -> bool:
    """`is_proven_file` for a file that was just renamed, which changes its ctime."""
    try:
        info = os.lstat(place)
    except FileNotFoundError:
        return False
    if proof.shown_by(info, renamed=True):
        return True
    found = durable.Proof.from_stat(info)
    return found[:2] == proof[:2] and digest_of(place) == (digest, found)


def _create_new(place: bytes) -> int:
    """Create a file in place of any older one. Returns its handle. Raises ESTALE when another process creates it now."""
    durable.remove_quietly(place)
    try:
        return os.open(place, _NEW, 0o644)
    except FileExistsError as error:
        raise OSError(errno.ESTALE, "is being written by somebody else") from error


def _write_at(handle: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(handle, data, offset)
        data, offset = data[done:], offset + done


def whole_blocks(disk: Disk, path: str, identity: Identity | None) -> Resumed:
    """Return the blocks in the journal that the part's bytes match. Empty where the journal is not of `identity`."""
    blocks = claimed_blocks(disk, path, identity)
    if not blocks:
        return Resumed()
    handle = disk.open(part_of(path))
    try:
        return _verify_blocks(handle, blocks, disk.tell)
    finally:
        os.close(handle)


def claimed_blocks(disk: Disk, path: str, identity: Identity | None) -> list[Block]:
    """Return the journal's blocks, without checking the part's bytes. Empty where the journal is not of `identity`."""
    part, journal = disk.stat(part_of(path)), journal_at_hand(disk, path)
    if part is None or journal is None or journal.identity != identity:
        return []
    return [block for block in journal.blocks if block.end <= part[0]]


def journal_at_hand(disk: Disk, path: str) -> BlockJournal | None:
    """Return the journal of the part of `path`, whatever source it is of; None where there is none."""
    return decode_journal(disk.read(journal_of(path), 0, None)) if disk.stat(journal_of(path)) is not None else None


def claims_of(resumed: Resumed) -> list[tuple[int, int, str]]:
    """Return (offset, length, SHA-256) of each kept block, for the other end to compare."""
    return [tuple(block) for block in resumed.known_blocks()]


def first_bad(disk: Disk, path: str) -> tuple[int, int]:
    """Return (offset, length) of a part's first bytes that differ from the journal's digests; (0, 0) where none do."""
    journal = decode_journal(disk.read(journal_of(path), 0, None))
    if journal is None:
        return 0, 0
    handle = disk.open(part_of(path))
    try:
        kept = _verify_blocks(handle, journal.blocks)
    finally:
        os.close(handle)
    claimed = sorted(block.length for block in journal.blocks if block.offset == 0 and block.length > kept.prefix)
    if claimed:
        return kept.prefix, claimed[0] - kept.prefix
    latest = {block.offset: block for block in journal.blocks if block.offset and block.end > kept.prefix}
    bad = [block for block in latest.values() if block not in kept.blocks]
    return (bad[0].offset, bad[0].length) if bad else (0, 0)


def _verify_blocks(handle: int, blocks: Sequence[Block], tell: Callable[[], None] | None = None) -> Resumed:
    """Return the longest prefix that has its digest, and the blocks after it that have theirs."""
    kept = Resumed()
    prefixes = {block.length: block.sha256 for block in blocks if block.offset == 0}
    following = {block.offset: block for block in blocks if block.offset}
    total, at = hashlib.sha256(), 0
    for end in sorted(prefixes):
        if not hash_range(handle, total, at, end, tell):
            break
        at = end
        if total.hexdigest() == prefixes[end]:  # a longer one may be right, where a piece was sent again
            kept.prefix, kept.running = end, total.copy()
    for block in sorted(following.values(), key=lambda block: block.offset):
        own = hashlib.sha256()
        if block.end <= kept.prefix or not hash_range(handle, own, block.offset, block.end, tell):
            continue
        if own.hexdigest() == block.sha256:
            kept.blocks.append(block)
    return kept
