"""The parts of files while they come: what comes is written, read back, journaled; a large file's digest runs along.

A small file is one write. Of a large one every piece is read back from the part. Pieces in order are read back by
the hash of the file so far, which the sender's record must equal, so nothing is hashed twice. Others are read back
by a hash of their own, and the hash of the file catches up from the part. One thread writes, another reads back.
Several processes may write to one part, each with a hash of its own. A hash is one of the part as long as its times
show that nobody else wrote to it (`durable.Proof`). Where they do not, `digest_whole` reads all of it back.

A write of somebody else between two checks of a file's times vanishes behind our own. So the part is held under a
lease of the kernel (fcntl(2), F_SETLEASE; `PartLease`). Whoever opens the part breaks the lease and waits until we
notice, which is soon. What was read back under a lease that held is what is in the file. Where the lease broke, or
the file system has none, all is read back at the end.

What an earlier try left in a part is still good where it is of the same source and its bytes digest alike
(`whole_blocks`). That the source still has these bytes is for who reads it to say, by `claims_of`. A pull goes by what
is `claimed` and asks the source for the digests of it.

`HeadRoom` asks, again and again, whether the disk that is written to still has room, and says so before it has none:
after 64 MB at most and after 1 s at most, since others write to the disk, too. `reserve` bytes stay free.

It runs at both ends: Python 3.6, standard library alone. A pull goes on from here in `transfer.stream.verify`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import threading
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

LOOK_BYTES = 64 << 20  # written since the last look, at most
LOOK_SECONDS = 1.0  # others write to the disk, too


class NoRoom(OSError):
    """Fewer bytes are free than are to be written and kept free."""

    def __init__(self, free: int) -> None:
        super().__init__(errno.ENOSPC, f"{free} bytes are free")
        self.free = free


class HeadRoom:
    """Of the disk that `folder` is on, or will be; `disk` says its `free_bytes`. `reserve` bytes of it are to stay free.
    `rarely`: so many times LOOK_SECONDS lie between two looks, where one costs a round trip."""

    def __init__(self, disk: Any, folder: str, reserve: int, rarely: int = 1) -> None:
        self._disk = disk
        self._folder = folder
        self._reserve = reserve
        self._rarely = rarely
        self._left = 0  # may be written before the next look
        self._until = 0.0  # by `time.monotonic`

    def claim_room(self, size: int) -> None:
        """`size` bytes are to be written. Raises NoRoom, and OSError where nobody can look."""
        self._left -= size
        now = time.monotonic()
        if self._left >= 0 and now < self._until:
            return
        free = self._disk.free_bytes(self._folder)
        if free < self._reserve + size:
            raise NoRoom(free)
        self._left = min(LOOK_BYTES, free - self._reserve - size)
        self._until = now + LOOK_SECONDS * self._rarely


class PartLease:
    """Of an open file that nobody else has open. `held` once broken stays false."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._door = threading.Lock()  # one thread looks now and then, another may close the file
        self.held = False
        try:
            fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # who breaks it sends us that: by itself it does nothing
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            self.held = True
        except (OSError, AttributeError):
            return  # somebody has it open, or there are no leases here

    def check_held(self) -> bool:
        """Whether it holds; if somebody waits to open the file, let them."""
        with self._door:
            if self.held and fcntl.fcntl(self._handle, fcntl.F_GETLEASE) != fcntl.F_WRLCK:
                self._drop_lease()
            return self.held

    def release_lease(self) -> None:
        """Before the file is closed or opened once more."""
        with self._door:
            if self.held:
                self._drop_lease()

    def _drop_lease(self) -> None:
        self.held = False
        try:
            fcntl.fcntl(self._handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return  # who waited too long for us has it already


_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = _WRITE | os.O_CREAT | os.O_EXCL
_BACK = 1 << 18  # bytes read back at once: they stay in the processor's cache
LOOKS = 3  # times that a part is read back because somebody wrote to it meanwhile
SYNC_BYTES = 64 << 20  # so much of a large file is made durable while more comes: a power loss costs at most this


class Differs(Exception):
    """A piece's digest is not the one its record has."""

    def __init__(self, offset: int, length: int) -> None:
        super().__init__(offset, length)
        self.offset = offset
        self.length = length


class Resumed:
    """What an earlier try left in the part, digested again: the file's hash up to `prefix`, and blocks behind it."""

    def __init__(self) -> None:
        self.prefix = 0
        self.running: Any = hashlib.sha256()
        self.blocks: list[Block] = []
        self.seen: Any = None  # the part's `durable.Proof` when it was digested

    def known_blocks(self) -> list[Block]:
        first = [Block(0, self.prefix, self.running.copy().hexdigest())] if self.prefix else []
        return first + self.blocks

    def known_spans(self) -> list[tuple[int, int]]:
        return spans_of(self.known_blocks())


def spans_of(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    return [(block.offset, block.end) for block in blocks]


def begin_part(disk: Disk, path: str, identity: Identity, known: Sequence[Block]) -> None:
    """Make part and journal for `PartFile`. With nothing to go on from the part is a new file: nobody else has it open.

    `known`: what an earlier try left in it, which stays claimed. ESTALE when somebody else makes them at this moment.
    """
    place = disk.locate(path)
    if not known:
        durable.remove_quietly(journal_at(place))
        os.close(_create_new(part_at(place)))
    # CRASH WINDOW: a part without a journal: the rerun begins it anew; or with what was known, and the journal before.
    beside = journal_at(place) + b".part"  # what was claimed stays so, should the disk be full
    paper = _create_new(beside)
    try:
        _write_at(paper, memoryview(encode_header(identity) + b"".join(block.encode_line() for block in known)), 0)
        os.rename(beside, journal_at(place))
    except OSError:
        durable.remove_quietly(beside)
        raise
    finally:
        os.close(paper)


class PartFile:
    """The `.part` of one large file that `begin_part` made. ENOENT where there is none, ESTALE for another source's."""

    def __init__(self, disk: Disk, path: str, identity: Identity, resumed: Resumed | None) -> None:
        self.place = place = disk.locate(path)
        resumed = resumed or Resumed()
        self.size = identity.wanted
        self.touched = False  # by somebody else, while it was ours
        self.lost: OSError | None = None  # what the disk said of bytes that it lost
        self.running = resumed.running
        self.hashed = resumed.prefix  # the hash covers the file up to here
        self.later = {block.offset: block.end for block in resumed.blocks}  # whole pieces behind it
        self.synced = self.got = sum(end - offset for offset, end in resumed.known_spans())
        self._handle = os.open(part_at(place), _WRITE)
        self._paper = -1
        self._lease = None  # type: Any
        try:
            self._paper = os.open(journal_at(place), _WRITE | os.O_APPEND)
            begun = encode_header(identity)
            if read_at(self._paper, len(begun), 0) != begun:
                raise OSError(errno.ESTALE, "was begun for another source")
            self._lease = PartLease(self._handle)
            self.proof = self._stat_part()  # after our last write; after `digest_whole` of the whole
            self.touched = not self._lease.held or (resumed.seen is not None and resumed.seen != self.proof)
        except BaseException:
            self.close()
            raise

    def digest_whole(self) -> bytes:
        """The digest of the whole file, all of whose pieces are in the part, whoever wrote them. Raises OSError."""
        for _ in range(LOOKS):
            if self.lost is not None:
                raise self.lost
            before = self._cut_stat()
            if self.touched or before != self.proof:
                self.running, self.hashed, self.touched = hashlib.sha256(), 0, False
            self._hash_back(self.running, self.hashed, self.size)
            self.hashed, self.proof = self.size, before
            if self._is_unchanged(before):
                return bytes(self.running.digest())
        raise OSError(errno.EBUSY, "is written to by somebody else")

    def write_piece(self, offset: int, data: memoryview) -> None:
        """One piece, which `verify_piece` of another thread follows. Raises OSError of the disk."""
        self._put_bytes(data, offset)
        self.got += len(data)

    def verify_piece(self, offset: int, length: int, kind: int, digest: bytes) -> None:
        """Read a piece back, compare, journal it. Raises Differs, and OSError of the disk."""
        end = offset + length
        if end <= self.hashed or self.later.get(offset, 0) >= end:
            self.touched = True  # came before and was written over: `digest_whole` will read all of it
            return
        block = self._verify_block(offset, end, kind, digest)
        # CRASH WINDOW: bytes in the part, the journal does not know: the rerun asks for this piece again.
        os.write(self._paper, block.encode_line())
        if self.hashed < end:
            self.later[offset] = max(end, self.later.get(offset, 0))
        self._catch_up()

    def sync_due(self) -> int:
        """A handle to sync when much has come since the last time, for another thread; else -1. It closes it."""
        if self.got - self.synced < SYNC_BYTES:
            return -1
        self.synced = self.got
        return os.dup(self._handle)

    def check_lease(self) -> None:
        """Asked now and then, even if nothing comes: whoever wants to open the part waits for it."""
        self.touched = not self._lease.check_held() or self.touched

    def mark_lost(self, error: OSError) -> None:
        """The disk lost bytes of it, as a sync said: no other sync would say so again, so it must never get its name."""
        self.lost = error
        durable.remove_quietly(journal_at(self.place))

    def close(self) -> None:
        """Raises what a disk far away says then of bytes that it did not take: nobody may go on from them."""
        if self._lease is not None:
            self._lease.release_lease()
        handles, self._handle, self._paper = (self._handle, self._paper), -1, -1
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

    def _stat_part(self) -> durable.Proof:
        return durable.Proof.from_stat(os.fstat(self._handle))

    def _is_unchanged(self, before: durable.Proof) -> bool:
        """Whether what was read back is what there is; where no lease held from the first byte on, by the times."""
        if self._lease.held and not self._lease.check_held():
            self.touched = True
            return False
        self._lease.release_lease()
        return self._stat_part() == before

    def _cut_stat(self) -> durable.Proof:
        """Once what somebody wrote behind the file's end is cut off, which no digest would tell of."""
        seen = self._stat_part()
        if seen.size > self.size:
            os.ftruncate(self._handle, self.size)
            self.touched = True
            return self._stat_part()
        return seen

    def _put_bytes(self, data: memoryview, offset: int) -> None:
        if offset + len(data) > self.size:
            raise OSError(errno.EINVAL, "bytes came that lie behind its end")
        self.check_lease()
        self.touched = self.touched or self._stat_part() != self.proof
        _write_at(self._handle, data, offset)
        self.proof = self._stat_part()

    def _verify_block(self, offset: int, end: int, kind: int, digest: bytes) -> Block:
        if offset <= self.hashed and kind != BLOCK:
            total = self.running.copy()
            self._hash_back(total, self.hashed, end)
            if kind == PREFIX and total.digest() != digest:
                raise Differs(offset, end - offset)
            self.running, self.hashed = total, end
            return Block(0, end, total.hexdigest())
        if kind == PREFIX:  # its sender sends in order, so all before it should have come from there
            raise Differs(offset, end - offset)
        own = hashlib.sha256()
        self._hash_back(own, offset, end)
        if kind != BARE and own.digest() != digest:
            raise Differs(offset, end - offset)
        return Block(offset, end - offset, own.hexdigest())

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
        if not hash_range(self._handle, total, offset, end):
            raise OSError(errno.ESTALE, "lost bytes that were written")


def write_small(place: bytes, data: memoryview) -> durable.Proof:
    """A small file's `.part`, whole; durable only once it is sealed."""
    try:
        handle = os.open(place, _NEW, 0o644)
    except FileExistsError:  # of an earlier try; never the same file, which may be getting its name just now
        handle = _create_new(place)
    try:
        _write_at(handle, data, 0)
        return durable.Proof.from_stat(os.fstat(handle))
    finally:
        os.close(handle)


def hash_range(handle: int, total: Any, offset: int, end: int, tell: Callable[[], None] | None = None) -> bool:
    """Take the bytes of an open file from `offset` to `end` into the hash `total`; False where it has not all of them.

    `tell` is called behind every piece, so that who waits hears of it.
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
    """SHA-256 of a part that nobody wrote to meanwhile, and its proof; None of one that somebody did."""
    handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        before, total = durable.Proof.from_stat(os.fstat(handle)), hashlib.sha256()
        whole = hash_range(handle, total, 0, before.size)
        return (total.digest(), before) if whole and durable.Proof.from_stat(os.fstat(handle)) == before else None
    finally:
        os.close(handle)


def is_proven_file(places: Sequence[bytes], proof: durable.Proof, digest: bytes) -> bool:
    """The first of `places` that is there is the very file whose bytes were proven.

    Other times alone may be the doing of a network disk, or of a backup: then its bytes say.
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
    """`is_proven_file`, of a file that got its name just now, which moves its ctime."""
    try:
        info = os.lstat(place)
    except FileNotFoundError:
        return False
    if proof.shown_by(info, renamed=True):
        return True
    found = durable.Proof.from_stat(info)
    return found[:2] == proof[:2] and digest_of(place) == (digest, found)


def _create_new(place: bytes) -> int:
    """A handle of a file that is no older one. ESTALE when somebody else makes one there at this moment."""
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
    """The journal's claims that the part's bytes bear out, where it is a journal of `identity`; else an empty start."""
    blocks = claimed_blocks(disk, path, identity)
    if not blocks:
        return Resumed()
    handle = disk.open(part_of(path), writing=True)  # as who goes on will: one who hangs loses all of a lease, not half
    try:
        before = durable.Proof.from_stat(os.fstat(handle))
        resumed = _verify_blocks(handle, blocks, disk.tell)
        resumed.seen = before
        return resumed
    finally:
        os.close(handle)


def claimed_blocks(disk: Disk, path: str, identity: Identity | None) -> list[Block]:
    """What the journal says lies in the part, where it is a journal of `identity`; nobody looked at the bytes."""
    part, journal = disk.stat(part_of(path)), journal_at_hand(disk, path)
    if part is None or journal is None or journal.identity != identity:
        return []
    return [block for block in journal.blocks if block.end <= part[0]]


def journal_at_hand(disk: Disk, path: str) -> BlockJournal | None:
    """The journal of the part of `path`, whatever it is of."""
    return decode_journal(disk.read(journal_of(path), 0, None)) if disk.stat(journal_of(path)) is not None else None


def claims_of(resumed: Resumed) -> list[tuple[int, int, str]]:
    """(offset, length, SHA-256) of what is kept, for the other end to compare."""
    return [tuple(block) for block in resumed.known_blocks()]


def first_bad(disk: Disk, path: str) -> tuple[int, int]:
    """(offset, length) of the first bytes of a part that are not what its journal claims; (0, 0) where all are."""
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
    """The longest prefix, and blocks behind it."""
    kept = Resumed()
    prefixes = {block.length: block.sha256 for block in blocks if block.offset == 0}
    following = {block.offset: block for block in blocks if block.offset}
    total, at = hashlib.sha256(), 0
    for end in sorted(prefixes):
        if not hash_range(handle, total, at, end, tell):
            break
        at = end
        if total.hexdigest() == prefixes[end]:  # one that differs may be followed by one written again
            kept.prefix, kept.running = end, total.copy()
    for block in sorted(following.values(), key=lambda block: block.offset):
        own = hashlib.sha256()
        if block.end <= kept.prefix or not hash_range(handle, own, block.offset, block.end, tell):
            continue
        if own.hexdigest() == block.sha256:
            kept.blocks.append(block)
    return kept
