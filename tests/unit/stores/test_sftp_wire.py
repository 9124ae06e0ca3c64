"""The SFTP wire, against a server of a few lines: what goes wrong with one piece of work is not another's trouble."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from tidemark.stores.sftp.files import SftpFiles
from tidemark.stores.sftp.protocol import ATTRS, FSTAT, HANDLE, INIT, OPEN, STATUS, VERSION, WRITE, encode_string
from tidemark.stores.sftp.session import BulkWire


class FullServer:
    """Answers each request as it comes. Every WRITE fails as long as the disk is `full`."""

    host = "here"
    is_open = True

    def __init__(self) -> None:
        self.full = True
        self.answers = b""

    def write(self, data: bytes) -> None:
        while data:
            (size,) = struct.unpack_from(">I", data)
            self._answer(data[4], data[5 : 4 + size])
            data = data[4 + size :]

    def divert_bytes(self, make: object) -> None:
        """Only `read` works."""

    def send_bulk(self, pieces: Sequence[memoryview | bytes]) -> None:
        self.write(b"".join(bytes(piece) for piece in pieces))

    def read(self, count: int, *, patient: bool = False) -> bytes:
        data, self.answers = self.answers[:count], self.answers[count:]
        return data

    def close(self) -> None:
        self.is_open = False

    def _answer(self, kind: int, rest: bytes) -> None:
        if kind == INIT:
            self._say(VERSION, rest[:4])
            return
        number, code = rest[:4], 4 if kind == WRITE and self.full else 0
        if kind == OPEN:
            self._say(HANDLE, number + encode_string(b"h"))
        elif kind == FSTAT:
            self._say(ATTRS, number + struct.pack(">IQ", 1, 0))
        else:
            self._say(STATUS, number + struct.pack(">I", code) + encode_string(b"") + encode_string(b""))

    def _say(self, kind: int, body: bytes) -> None:
        self.answers += struct.pack(">IB", len(body) + 1, kind) + body


def test_failed_writes_of_a_file_that_broke_off_are_not_the_next_ones() -> None:
    server = FullServer()
    files = SftpFiles(BulkWire(server))  # type: ignore[arg-type]

    def breaks_off() -> Iterator[bytes]:
        yield b"x" * 100
        raise RuntimeError("the source broke off")

    with pytest.raises(RuntimeError):
        files.write_pieces("/a", 0, breaks_off(), sync=False)
    server.full = False

    assert files.write_pieces("/b", 0, [b"y" * 100], sync=False) == 100


def test_failed_writes_of_the_file_itself_are_told() -> None:
    files = SftpFiles(BulkWire(FullServer()))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="without a reason"):
        files.write_pieces("/a", 0, [b"x" * 100], sync=False)
