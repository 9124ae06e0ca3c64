"""The far end of a pull: answer requests for ranges of many files with frames, without a round trip for each file.

`frames` describes requests and answers. The bytes are hashed as they are sent. Blocks requested in order from a file's
start get the digest of the file *up to the block's end* (PREFIX). So the last one is the whole file's, and nothing is
hashed twice. A block requested out of order gets its own digest (BLOCK). For bytes that an earlier try left at the near
end, the digest alone is requested (KEPT). Runs at the far end (see `server`): the standard library alone, Python 3.6.
Source: research/transfer-pull.md, "What to know first" 2-4.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat as modes
import time
from collections.abc import Callable
from typing import Any

from tidemark.stores.agent.disk import Disk, read_at
from tidemark.stores.agent.frames import ALONE, ANY, BARE, BLOCK, CHANGED, KEPT, NOTHING, PREFIX, RANGE, RECORD, SHORT

RACY_SECONDS = 2  # a younger file may change without a new mtime: written by mmap, or the clock is coarse
TICK_SECONDS = 0.02  # the same for the ctime, which nobody can set, on a disk that keeps more than whole seconds
PIPE_BYTES = 1 << 20
_AT_ONCE = 1 << 18  # bytes read to be hashed alone: they stay in the processor's cache
_LOW32, _LOW31 = (1 << 32) - 1, (1 << 31) - 1
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ


class RangeReader:
    """Answers requests by `send(records, bytes)`, at most `frame` bytes each. `digest`: hash what is read."""

    def __init__(self, disk: Disk, send: Callable[[bytes, Any], None], frame: int, digest: bool) -> None:
        self.disk = disk
        self.send = send
        self.digest = digest
        self.buffer = memoryview(bytearray(frame))
        self.filled = 0
        self.now = 0.0  # when the request under way came
        self.records: list[bytes] = []
        self.running: dict[int, tuple[int, Any]] = {}  # number: how far it is hashed, the hash

    def answer(self, asked: bytes) -> None:
        """Send the frames for one request."""
        at = 0
        self.now = time.time()
        self.disk.forget_folders()
        while at < len(asked):
            number, offset, length, wanted, mtime, inode, name = RANGE.unpack_from(asked, at)
            at += RANGE.size + name
            self._answer_range(number, offset, length, wanted, (mtime, inode), asked[at - name : at].decode())
        self.flush_frame()

    def flush_frame(self) -> None:
        if self.records:
            self.send(b"".join(self.records), self.buffer[: self.filled])
            self.records, self.filled = [], 0

    def _answer_range(self, number: int, offset: int, length: int, wanted: int, known: tuple[int, int], path: str) -> None:
        try:
            handle = self.disk.open(path)
        except OSError as error:
            self._add_trouble(number, offset, error.errno or errno.EIO)
            return
        try:
            before = os.fstat(handle)
            if before.st_size < wanted:
                self._add_trouble(number, offset, SHORT, before.st_size)
            elif known[0] != ANY and known != (before[modes.ST_MTIME], before.st_ino):
                self._add_trouble(number, offset, CHANGED)
            elif length >= ALONE:
                self._answer_digest(number, handle, (offset, length - ALONE), before)
            elif length == wanted <= len(self.buffer):
                self._answer_small_file(number, handle, wanted, before)
            else:
                self._answer_pieces(number, handle, (offset, length), before)
        except OSError as error:
            self._add_trouble(number, offset, error.errno or errno.EIO)
        finally:
            os.close(handle)

    def _answer_small_file(self, number: int, handle: int, wanted: int, before: os.stat_result) -> None:
        """Answer a small file by one record, with bytes that were all in the file at one moment; else by CHANGED."""
        if self.filled + wanted > len(self.buffer):
            self.flush_frame()
        view = self.buffer[self.filled : self.filled + wanted]
        filled, after = _read_into(handle, view), os.fstat(handle)
        same = filled and not _has_changed(before, after)
        kind, total = (PREFIX, hashlib.sha256(view).digest()) if self.digest else (BARE, NOTHING)
        if same and (before.st_size != wanted or before.st_ctime_ns != after.st_ctime_ns or _is_young(before, self.now)):
            same = read_at(handle, wanted, 0) == view  # its times cannot show a change
        if same:
            self._add_record(number, 0, wanted, kind, total, 0)
        else:
            self._add_trouble(number, 0, CHANGED)

    def _answer_pieces(self, number: int, handle: int, span: tuple[int, int], before: os.stat_result) -> None:
        """Answer each piece by a record, or by CHANGED, so that the near end never waits for a piece that does not come."""
        offset, length = span
        done, running = self.running.pop(number, (0, None))
        if running is None or done != offset:
            running = hashlib.sha256() if offset == 0 else None
        os.lseek(handle, offset, os.SEEK_SET)
        while length:
            if self.filled == len(self.buffer):
                self.flush_frame()
            size = min(length, len(self.buffer) - self.filled)
            view = self.buffer[self.filled : self.filled + size]
            filled, after = _read_into(handle, view), os.fstat(handle)
            if not filled or _has_changed(before, after):
                self._add_trouble(number, offset, CHANGED)
                return
            kind, total = self._hash_bytes(view, running)
            self._add_record(number, offset, size, kind, total, edition_of(after, self.now))
            offset += size
            length -= size
        if running is not None:
            self.running[number] = (offset, running)

    def _answer_digest(self, number: int, handle: int, span: tuple[int, int], before: os.stat_result) -> None:
        offset, left = span
        total, view = hashlib.sha256(), memoryview(bytearray(min(left, _AT_ONCE)))
        os.lseek(handle, offset, os.SEEK_SET)
        while left and _read_into(handle, view[:left]):
            total.update(view[:left])
            left -= len(view[:left])
        after = os.fstat(handle)
        if left or _has_changed(before, after):
            self._add_trouble(number, offset, CHANGED)
        else:
            of = edition_of(after, self.now)
            self.records.append(RECORD.pack(number, offset, span[1], 0, KEPT, of, total.digest()))

    def _hash_bytes(self, view: memoryview, running: Any) -> tuple[int, bytes]:
        if not self.digest:
            return BARE, NOTHING
        if running is None:
            return BLOCK, hashlib.sha256(view).digest()
        running.update(view)
        return PREFIX, running.copy().digest()

    def _add_record(self, number: int, offset: int, size: int, kind: int, total: bytes, of: int) -> None:
        self.records.append(RECORD.pack(number, offset, size, 0, kind, of, total))
        self.filled += size
        if self.filled == len(self.buffer):
            self.flush_frame()

    def _add_trouble(self, number: int, offset: int, trouble: int, size: int = 0) -> None:
        self.running.pop(number, None)
        self.records.append(RECORD.pack(number, offset, 0, trouble, BARE, size, NOTHING))


def edition_of(info: os.stat_result, now: float) -> int:
    """Return a file's edition in 64 bits: the low bits of its mtime and ctime, and whether it is young.

    `now`: by the clock of the machine that has the file.
    """
    return (info.st_mtime_ns & _LOW32) << 32 | (info.st_ctime_ns & _LOW31) << 1 | _is_young(info, now)


def editions_of(disk: Disk, paths: list[str]) -> list[int | None]:
    """Return each path's edition; None where there is no file."""
    now, found = time.time(), []
    for path, place in zip(paths, disk.locate_all(paths)):  # noqa: B905 Python 3.6
        there = disk.stat(path)
        found.append(edition_of(os.lstat(place), now) if there else None)
    return found


def same_edition(one: int, other: int) -> tuple[bool, bool]:
    """Return whether both editions have one mtime, and whether the times prove that the bytes are the same. The ctime alone
    does not decide: a hard link changes it, too."""
    return one >> 32 == other >> 32, one == other and not one & 1


def widen_pipe(handle: int) -> None:
    """Let a pipe hold more than 64 KB, so that reader and writer alternate less often."""
    try:
        fcntl.fcntl(handle, _SET_PIPE_SIZE, PIPE_BYTES)
    except OSError:
        return  # no pipe, or not Linux: it works as it is


def write_all(handle: int, pieces: list[Any]) -> None:
    """Write all bytes of `pieces` without joining them."""
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        done = os.writev(handle, left)
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left:
            left[0] = left[0][done:]


def _read_into(handle: int, view: memoryview) -> bool:
    while view:
        got = os.readv(handle, [view])
        if not got:
            return False
        view = view[got:]
    return True


def _has_changed(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)


def _is_young(info: os.stat_result, now: float) -> bool:
    tick = RACY_SECONDS if info.st_ctime_ns % 10**9 == 0 else TICK_SECONDS
    return info[modes.ST_MTIME] >= now - RACY_SECONDS or info.st_ctime_ns >= (now - tick) * 1e9
