"""File contents over an SFTP session: pipelined reads and writes with every status read, fsync, hard links, renames."""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemark.stores.sftp_wire import (
    CLOSE,
    CREATE,
    EOF,
    EXTENDED,
    FOR_READ,
    FOR_WRITE,
    FSETSTAT,
    FSTAT,
    FSYNC,
    HARDLINK,
    IN_FLIGHT,
    NO_ATTRIBUTES,
    NO_SUCH_FILE,
    OPEN,
    READ,
    REMOVE,
    RENAME,
    RENAME_OVER,
    STATVFS,
    TRUNCATE,
    WRITE,
    Reply,
    SftpWire,
    size_attribute,
    text,
)


class SftpFiles:
    """Places are absolute paths at the server, looked at before: they are regular files, or not there."""

    def __init__(self, wire: SftpWire) -> None:
        self.wire = wire

    def stream(self, place: str, offset: int, length: int | None, size: int) -> Iterator[bytes]:
        """Bytes from `offset` in pieces of at most `size`, many READs ahead; ends where the file ends."""
        handle = self._open(place, FOR_READ)
        asked: deque[tuple[int, int, list[Reply]]] = deque()  # (offset, bytes wanted, the reply)
        end = None if length is None else offset + length
        try:
            while True:
                while len(asked) < IN_FLIGHT and (end is None or offset < end):
                    wanted = min(size, self.wire.read_size, (end - offset) if end is not None else size)
                    self._ask_read(handle, offset, wanted, asked)
                    offset += wanted
                if not asked:
                    return
                data, asked_for = self._next(handle, asked)
                if data:
                    yield data
                if len(data) < asked_for:
                    return
        finally:
            while any(not box for _, _, box in asked):
                self.wire.step()
            self.wire.post(CLOSE, text(handle), lambda _reply: None)

    def read_whole(self, places: Sequence[str], lengths: Sequence[int]) -> list[bytes | None]:
        """The first `lengths[i]` bytes of each file, all in flight at once; None for what is gone."""
        found: list[bytes | None] = [None] * len(places)
        for number, place in enumerate(places):
            self._post_read_whole(number, place, lengths[number], found)
        self.wire.settle()
        return found

    def write(self, place: str, offset: int, pieces: Iterable[bytes], sync: bool) -> int:
        """Write from `offset`, cutting what lay beyond; the new length. ERANGE when that would leave a hole."""
        handle = self._open(place, FOR_WRITE | CREATE)
        wire = self.wire
        try:
            if wire.ask(FSTAT, text(handle)).attributes().size < offset:
                raise OSError(errno.ERANGE, "is shorter than the offset to go on from", place)
            wire.ask(FSETSTAT, text(handle) + size_attribute(offset)).check()
            for piece in pieces:
                for start in range(0, len(piece), wire.write_size):
                    data = piece[start : start + wire.write_size]
                    wire.post(WRITE, text(handle) + struct.pack(">Q", offset) + text(data), Reply.check)
                    offset += len(data)
                if wire.failure is not None:
                    break
            wire.settle()
            if sync and FSYNC in wire.extensions:
                wire.ask(EXTENDED, text(FSYNC) + text(handle)).check()
        finally:
            wire.ask(CLOSE, text(handle))
        return offset

    def write_whole(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Make many small files, all in flight at once."""
        for place, data in files:
            self._post_write_whole(place, data)
        self.wire.settle()

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

    def _ask_read(
        self, handle: bytes, offset: int, wanted: int, asked: deque[tuple[int, int, list[Reply]]], first: bool = False
    ) -> None:
        box: list[Reply] = []
        self.wire.post(READ, text(handle) + struct.pack(">QI", offset, wanted), box.append)
        (asked.appendleft if first else asked.append)((offset, wanted, box))

    def _next(self, handle: bytes, asked: deque[tuple[int, int, list[Reply]]]) -> tuple[bytes, int]:
        """The next piece in order, and how long it should be: a server may answer with less in the middle of a file."""
        offset, wanted, box = asked.popleft()
        data = b""
        while True:
            while not box:
                self.wire.step()
            reply = box.pop()
            if reply.is_status(EOF):
                return data, wanted
            data += reply.string()
            if len(data) >= wanted:
                return data, wanted
            rest = struct.pack(">QI", offset + len(data), wanted - len(data))
            self.wire.post(READ, text(handle) + rest, box.append)

    def _post_read_whole(self, number: int, place: str, length: int, found: list[bytes | None]) -> None:
        wire, step = self.wire, self.wire.read_size

        def opened(reply: Reply) -> None:
            if reply.is_status(NO_SUCH_FILE):
                return
            handle = reply.string()
            found[number] = b""

            def ask(offset: int) -> None:
                wire.post(READ, text(handle) + struct.pack(">QI", offset, min(step, length - offset)), got)

            def got(reply: Reply) -> None:
                data = b"" if reply.is_status(EOF) else reply.string()
                found[number] = (found[number] or b"") + data
                if data and len(found[number] or b"") < length:
                    ask(len(found[number] or b""))
                else:
                    wire.post(CLOSE, text(handle), lambda _reply: None)

            if length:
                ask(0)
            else:
                wire.post(CLOSE, text(handle), lambda _reply: None)

        wire.post(OPEN, _opening(place, FOR_READ), opened)

    def _post_write_whole(self, place: str, data: bytes) -> None:
        wire, step = self.wire, self.wire.write_size

        def opened(handle: bytes) -> None:
            for start in range(0, len(data), step):
                piece = data[start : start + step]
                wire.post(WRITE, text(handle) + struct.pack(">Q", start) + text(piece), Reply.check)
            wire.post(CLOSE, text(handle), Reply.check)

        self._post_open(place, FOR_WRITE | CREATE | TRUNCATE, opened)

    def _sync_and_close(self, handle: bytes) -> None:
        self.wire.post(EXTENDED, text(FSYNC) + text(handle), Reply.check)
        self.wire.post(CLOSE, text(handle), lambda _reply: None)


def _opening(place: str, flags: int) -> bytes:
    return text(place) + struct.pack(">I", flags) + NO_ATTRIBUTES
