"""File contents over an SFTP session: pipelined reads and writes with every status read, fsync, hard links, renames."""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemark.stores.sftp_bulk import BulkWire
from tidemark.stores.sftp_flow import Place, ReadFlow
from tidemark.stores.sftp_parts import PartStream
from tidemark.stores.sftp_wire import (
    CLOSE,
    CREATE,
    EXTENDED,
    FOR_READ,
    FOR_WRITE,
    FSETSTAT,
    FSTAT,
    FSYNC,
    HARDLINK,
    LSTAT,
    NO_ATTRIBUTES,
    NO_SUCH_FILE,
    OPEN,
    REMOVE,
    RENAME,
    RENAME_OVER,
    STATVFS,
    WRITE,
    Reply,
    size_attribute,
    text,
)

WRITE_AHEAD = 8 << 20  # bytes handed on, not known to be written


class SftpFiles:
    """Places are absolute paths at the server, looked at before: they are regular files, or not there."""

    def __init__(self, wire: BulkWire) -> None:
        self.wire = wire

    def stream(self, place: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """`length` bytes from `offset` in pieces of at most `size`, many READs ahead. ERANGE where the file ends before."""
        for _, data, trouble in ReadFlow(self.wire).stream(iter([Place(0, place, offset, length)])):
            if trouble is not None:
                raise trouble
            for start in range(0, len(data), size):
                yield bytes(data[start : start + size])

    def read_range(self, place: str, offset: int, length: int) -> bytes:
        """As much of it as there is."""
        found = b""
        for _, data, trouble in ReadFlow(self.wire).stream(iter([Place(0, place, offset, length)])):
            if trouble is not None and trouble.errno != errno.ERANGE:
                raise trouble
            found += data
        return found

    def read_whole(self, places: Sequence[str], lengths: Sequence[int]) -> list[bytes | None]:
        """The first `lengths[i]` bytes of each file, fewer where it ends before; None for what is gone."""
        found: list[bytes | None] = [None] * len(places)
        wants = (Place(number, place, 0, lengths[number]) for number, place in enumerate(places))
        for number, data, trouble in ReadFlow(self.wire).stream(wants):
            if trouble is None:
                found[number] = (found[number] or b"") + bytes(data)
            elif trouble.errno not in (errno.ENOENT, errno.ERANGE):
                raise trouble
        return found

    def digests(self, wants: Sequence[Place]) -> list[str | None]:
        """SHA-256 of each, by reading them; None where one is gone or shorter than that."""
        totals = [hashlib.sha256() for _ in wants]
        bad: set[int] = set()
        for number, data, trouble in ReadFlow(self.wire).stream(iter(wants)):
            totals[number].update(data)
            if trouble is not None:
                if trouble.errno not in (errno.ENOENT, errno.ERANGE):
                    raise trouble
                bad.add(number)
        return [None if number in bad else total.hexdigest() for number, total in enumerate(totals)]

    def write(self, place: str, offset: int, pieces: Iterable[bytes], sync: bool) -> int:
        """Write from `offset`, cutting what lay beyond; the new length. ERANGE when that would leave a hole."""
        handle = self._open(place, FOR_WRITE | CREATE)
        wire = self.wire
        writing = _Writing()
        try:
            there = wire.ask(FSTAT, text(handle)).attributes().size
            if there < offset:
                raise OSError(errno.ERANGE, "is shorter than the offset to go on from", place)
            if there > offset:  # some servers cut nothing: those that make files alone need not
                wire.ask(FSETSTAT, text(handle) + size_attribute(offset)).check()
            for piece in pieces:
                for start in range(0, len(piece), wire.write_size):
                    data = memoryview(piece)[start : start + wire.write_size]
                    writing.post(wire, handle, offset, data)
                    offset += len(data)
                if writing.failure is not None:
                    break
            writing.settle(wire)
            if sync and FSYNC in wire.extensions:
                wire.ask(EXTENDED, text(FSYNC) + text(handle)).check()
        finally:
            wire.ask(CLOSE, text(handle))
        return offset

    def write_whole(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Make many small files, all in flight at once."""
        stream = PartStream(self.wire, WRITE_AHEAD)
        parts = []
        for place, data in files:
            parts.append(stream.open(place))
            stream.write(parts[-1], data)
            stream.close(parts[-1])
        stream.settle(parts)
        for part in parts:
            if part.trouble is not None:
                raise part.trouble

    def sync(self, places: Sequence[str]) -> None:
        """fsync each file's content, where the server can."""
        if FSYNC not in self.wire.extensions:
            return
        for place in places:
            self._post_open(place, FOR_READ, self._sync_and_close)
        self.wire.settle()

    def link(self, pairs: Sequence[tuple[str, str]]) -> None:
        if pairs and HARDLINK not in self.wire.extensions:
            raise OSError(errno.EOPNOTSUPP, "the SFTP server makes no hard links", pairs[0][1])
        for source, target in pairs:
            self.wire.post(EXTENDED, text(HARDLINK) + text(source) + text(target), Reply.check)
        self.wire.settle()

    def rename_over(self, pairs: Sequence[tuple[str, str]]) -> list[int | None]:
        """Replace each target in one step; how many bytes each has then, None where that did not work."""
        sizes: list[int | None] = [None] * len(pairs)
        if RENAME_OVER not in self.wire.extensions:
            return sizes

        def answered(number: int, reply: Reply) -> None:
            if reply.failure() is None:
                sizes[number] = -1  # until it was looked at

        def looked(number: int, reply: Reply) -> None:
            if sizes[number] is not None and reply.failure() is None:
                sizes[number] = reply.attributes().size

        for number, (source, target) in enumerate(pairs):
            payload = text(RENAME_OVER) + text(source) + text(target)
            self.wire.post(EXTENDED, payload, lambda reply, number=number: answered(number, reply))  # type: ignore[misc]
            self.wire.post(LSTAT, text(target), lambda reply, number=number: looked(number, reply))  # type: ignore[misc]
        self.wire.settle()
        return sizes

    def rename(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Replace each target; atomic where the server has posix-rename."""
        if RENAME_OVER in self.wire.extensions:
            for source, target in pairs:
                self.wire.post(EXTENDED, text(RENAME_OVER) + text(source) + text(target), Reply.check)
            self.wire.settle()
            return
        for source, target in pairs:
            if self.wire.ask(RENAME, text(source) + text(target)).failure() is not None:
                # CRASH WINDOW: the old target is gone, the source still there under its temp name; the rerun renames it.
                self.wire.ask(REMOVE, text(target)).check((NO_SUCH_FILE,))
                self.wire.ask(RENAME, text(source) + text(target)).check()

    def free_bytes(self, place: str) -> int | None:
        """None where the server cannot say or `place` does not exist."""
        if STATVFS not in self.wire.extensions:
            return None
        reply = self.wire.ask(EXTENDED, text(STATVFS) + text(place))
        if reply.failure() is not None or len(reply.body) < 40:
            return None
        _, fragment, _, _, available = struct.unpack_from(">QQQQQ", reply.body)
        return int(fragment * available)

    def _open(self, place: str, flags: int) -> bytes:
        return self.wire.ask(OPEN, _opening(place, flags)).string()

    def _post_open(self, place: str, flags: int, opened: Callable[[bytes], None]) -> None:
        self.wire.post(OPEN, _opening(place, flags), lambda reply: opened(reply.string()))

    def _sync_and_close(self, handle: bytes) -> None:
        self.wire.post(EXTENDED, text(FSYNC) + text(handle), Reply.check)
        self.wire.post(CLOSE, text(handle), lambda _reply: None)


class _Writing:
    """The WRITEs of one file. What fails is this file's trouble: it never waits in the session for another one."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._waits_for = self._on_way = 0

    def post(self, wire: BulkWire, handle: bytes, offset: int, data: memoryview) -> None:
        size = len(data)

        def written(reply: Reply) -> None:
            self._waits_for -= 1
            self._on_way -= size
            self.failure = self.failure or reply.failure()

        self._waits_for += 1
        self._on_way += size
        wire.post_data(WRITE, text(handle) + struct.pack(">Q", offset), data, written)
        while self._on_way > WRITE_AHEAD:
            wire.step()

    def settle(self, wire: BulkWire) -> None:
        """Returns when all are answered; raises the first failure."""
        while self._waits_for:
            wire.step()
        if self.failure is not None:
            raise self.failure


def _opening(place: str, flags: int) -> bytes:
    return text(place) + struct.pack(">I", flags) + NO_ATTRIBUTES
