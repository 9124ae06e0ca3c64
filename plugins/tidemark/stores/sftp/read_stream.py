"""Read many files over an SFTP session as one stream: the next files are opened and read while one file's bytes come.

Source: research/transfer.md §4.3 and §4.5 (pipelining with a bound; requests of hundreds of files on one channel).
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tidemark.stores.sftp.protocol import CLOSE, EOF, FOR_READ, NO_ATTRIBUTES, OPEN, READ, Reply, encode_string
from tidemark.stores.sftp.session import BulkWire

AHEAD_BYTES = 12 << 20  # requested, or to be requested from opened files
AHEAD_FILES = 200  # open files; far below what servers allow

_Data = bytes | memoryview


class Place(NamedTuple):
    """`length` bytes from `offset` of the file at an absolute place. The caller has checked that it is a regular file."""

    number: int
    place: str
    offset: int
    length: int


class _Read:
    """One READ: its range and the bytes received for it."""

    __slots__ = ("data", "done", "offset", "wanted")

    def __init__(self, offset: int, wanted: int) -> None:
        self.offset = offset
        self.wanted = wanted
        self.done = False
        self.data: _Data = b""


class _File:
    __slots__ = ("asked", "handle", "left", "number", "offset", "place", "trouble")

    def __init__(self, want: Place) -> None:
        self.number, self.place, self.offset, self.left = want  # `offset`, `left`: of the bytes not yet requested
        self.handle = b""
        self.trouble: OSError | None = None
        self.asked: deque[_Read] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether bytes can be yielded, or the file's end or failure is known."""
        if self.asked:
            return self.asked[0].done
        return self.trouble is not None or (bool(self.handle) and not self.left)


class ReadStream:
    """One stream; `read_places` may be called once."""

    def __init__(self, wire: BulkWire, ahead: int = 0) -> None:
        self._wire = wire
        self._ahead = min(ahead or AHEAD_BYTES, AHEAD_BYTES)
        self._files: deque[_File] = deque()  # in the order of the wants
        self._unasked: deque[_File] = deque()  # those with bytes not yet requested
        self._asked = self._promised = 0  # bytes requested and not yet yielded; bytes of `_unasked` to be requested
        self._over = False

    def read_places(self, wants: Iterator[Place]) -> Iterator[tuple[int, _Data, OSError | None]]:
        """Yield (number, bytes, None) until a want is complete, or (number, b"", trouble), then the next want. An empty want
        gives one empty piece. Bytes are valid until the next item. A file that ends too early gives ERANGE."""
        try:
            while True:
                self._open_more(wants)
                self._ask_more()
                if not self._files:
                    return
                one = self._files[0]
                while not one.is_ready:
                    self._wire.step()
                if one.asked:
                    yield from self._hand_out(one)
                elif one.trouble is None:
                    yield one.number, b"", None  # an empty want
                if not one.asked and (one.trouble is not None or not one.left):
                    self._files.popleft()
                    self._post_close(one)
                    if one.trouble is not None:
                        yield one.number, b"", one.trouble
        finally:
            self._over = True
            for one in self._files:
                self._post_close(one)

    def _hand_out(self, one: _File) -> Iterator[tuple[int, _Data, OSError | None]]:
        read = one.asked.popleft()
        self._asked -= read.wanted
        if one.trouble is None:
            yield one.number, read.data, None
            if len(read.data) < read.wanted:
                one.trouble = OSError(errno.ERANGE, "ends before the asked range does", one.place)
        self._wire.release(read.data)

    def _open_more(self, wants: Iterator[Place]) -> None:
        while len(self._files) < AHEAD_FILES and self._asked + self._promised < self._ahead:
            want = next(wants, None)
            if want is None:
                return
            one = _File(want)
            self._promised += one.left
            self._files.append(one)
            self._unasked.append(one)
            payload = encode_string(one.place) + struct.pack(">I", FOR_READ) + NO_ATTRIBUTES
            self._wire.post(OPEN, payload, lambda reply, one=one: self._on_opened(one, reply))  # type: ignore[misc]

    def _on_opened(self, one: _File, reply: Reply) -> None:
        try:
            one.handle = bytes(reply.parse_string())
        except OSError as refused:
            one.trouble = OSError(refused.errno, refused.strerror, one.place)
        if self._over:
            self._post_close(one)
        else:
            self._ask_more()

    def _ask_more(self) -> None:
        """Post READs of the open files, in order, up to the limit."""
        while self._unasked and self._asked < self._ahead:
            one = self._unasked[0]
            if one.trouble is not None or not one.left:
                self._promised -= one.left
                self._unasked.popleft()
            elif not one.handle:
                return
            else:
                read = _Read(one.offset, min(one.left, self._wire.read_size))
                one.asked.append(read)
                one.offset += read.wanted
                one.left -= read.wanted
                self._promised -= read.wanted
                self._asked += read.wanted
                self._post_read(one, read)

    def _post_read(self, one: _File, read: _Read) -> None:
        have = len(read.data)
        payload = encode_string(one.handle) + struct.pack(">QI", read.offset + have, read.wanted - have)
        self._wire.post(READ, payload, lambda reply: self._on_data(one, read, reply))

    def _on_data(self, one: _File, read: _Read, reply: Reply) -> None:
        if self._over or one.trouble is not None:
            read.done = True
            return
        if reply.is_status(EOF):
            read.done = True
            return
        try:
            data: _Data = reply.parse_string()
        except OSError as failed:
            one.trouble = OSError(failed.errno, failed.strerror, one.place)
            read.done = True
            return
        read.data = bytes(read.data) + bytes(data) if read.data else data
        if data and len(read.data) < read.wanted:  # a server may send less in the middle of a file
            self._post_read(one, read)
        else:
            read.done = True

    def _post_close(self, one: _File) -> None:
        if one.handle:
            self._wire.post(CLOSE, encode_string(one.handle), lambda _reply: None)
            one.handle = b""
