"""Writes over an SFTP session whose server refuses some of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tidemark.stores.sftp.files import SftpFiles
from tidemark.stores.sftp.protocol import CLOSE, HANDLE, OPEN, READ, STATUS, WRITE, Reply
from tidemark.stores.sftp.write_stream import PartStream

OK, FAILURE = (struct.pack(">I", code) for code in (0, 4))


class Wire:
    """Answers as a server, in order and when asked to; WRITEs whose bytes are b"bad…" fail."""

    write_size = read_size = 1000

    def __init__(self) -> None:
        self.extensions: dict[str, bytes] = {}
        self.failure: OSError | None = None
        self._answers: list[Any] = []

    def post(self, kind: int, payload: bytes, then: Any) -> None:
        handle = Reply(HANDLE, struct.pack(">I", 1) + b"h")
        self._answers.append((then, handle if kind == OPEN else Reply(STATUS, OK)))

    def post_data(self, kind: int, head: bytes, data: memoryview, then: Any) -> None:
        assert kind == WRITE
        self._answers.append((then, Reply(STATUS, FAILURE if bytes(data[:3]) == b"bad" else OK)))

    def ask(self, kind: int, payload: bytes) -> Reply:
        box: list[Reply] = []
        self.post(kind, payload, box.append)
        while not box:
            self.step()
        if kind not in (OPEN, CLOSE, READ) and box[0].kind == STATUS:
            return Reply(105, struct.pack(">IQ", 1, 0)) if kind == 8 else box[0]
        return box[0]

    def step(self) -> None:
        then, reply = self._answers.pop(0)
        try:
            then(reply)
        except OSError as error:
            self.failure = self.failure or error


def test_a_write_that_fails_behind_a_readers_trouble_is_not_the_next_files_trouble() -> None:
    wire: Any = Wire()
    files = SftpFiles(wire)

    def pieces() -> Iterator[bytes]:
        yield b"bad bytes"
        raise ValueError("the reader's own")

    with pytest.raises(ValueError, match="the reader's own"):
        files.write_pieces("/a", 0, pieces(), False)

    assert files.write_pieces("/b", 0, [b"good bytes"], False) == 10
    assert wire.failure is None


def test_a_part_whose_write_fails_is_alone_in_trouble() -> None:
    wire: Any = Wire()
    stream = PartStream(wire, 10_000)
    parts = [stream.open_part(f"/{number}") for number in range(3)]
    for number, part in enumerate(parts):
        stream.write_part(part, b"bad" if number == 1 else b"good")
        stream.finish_part(part)
    stream.await_parts(parts)
    assert [part.trouble is not None for part in parts] == [False, True, False]
    assert [part.written for part in parts] == [4, 3, 4]
