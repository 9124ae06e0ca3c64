"""Rows of a long answer, from bytes as a server sends them, in pieces of any size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest

from tests.binlog_maker import lenenc
from tidemark.changes.binlog.batches import kernels
from tidemark.changes.connection import results
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.results import ask_values
from tidemark.errors import CorruptionError, PermanentError, TidemarkError, UnreachableError

Row = Sequence[bytes | None]
END = b"\xfe\0\0\2\0"


@pytest.fixture(params=["compiled", "slow"], autouse=True)
def walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "slow":
        monkeypatch.setattr(results, "kernels", lambda: None)
    elif kernels() is None:
        pytest.skip("no C compiler")


class FakeServer:
    """An answer on the line. It comes in pieces of up to `most` bytes."""

    name = "a server"

    def __init__(self, width: int, data: bytes, most: int = 1 << 20, seed: int = 0) -> None:
        self.width, self.data, self.most = width, data, most
        self.choice, self.is_closed = random.Random(seed), False

    def begin_answer(self, _question: str) -> tuple[int, FakeServer]:
        return self.width, self

    def read1(self, size: int) -> bytes:
        size = self.choice.randint(1, min(size, self.most))
        piece, self.data = self.data[:size], self.data[size:]
        return piece

    def close(self) -> None:
        self.is_closed = True


def pack(*bodies: bytes) -> bytes:
    made = b""
    for body in bodies:
        for start in range(0, len(body) + 1, 0xFFFFFF):
            part = body[start : start + 0xFFFFFF]
            made += len(part).to_bytes(3, "little") + b"\0" + part
    return made


def encode(row: Row) -> bytes:
    return b"".join(b"\xfb" if value is None else lenenc(len(value)) + value for value in row)


def read(server: Any) -> list[tuple[bytes | None, ...]]:
    found = []
    for values in ask_values(cast(Server, server), "SELECT"):
        found += [tuple(values.value(c, r) for c in range(server.width)) for r in range(values.rows)]
    return found


ROWS: list[Row] = [(b"", None, b"a"), (None, None, None), (b"x" * 250, b"y" * 251, b"z" * 70000), (b"\xfe", b"\xff", b"\0")]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("most", [1, 7, 300, 1 << 20])
def test_rows_come_in_pieces_of_any_size(most: int) -> None:
    server = FakeServer(3, pack(*map(encode, ROWS), END) + b"what comes then is of another answer", most)
    assert read(server) == ROWS
    assert not server.is_closed


def test_an_answer_without_rows() -> None:
    assert read(FakeServer(3, pack(END))) == []


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [0xFFFFFF - 4, 0xFFFFFF - 5, 2 * 0xFFFFFF + 9])
def test_a_row_of_more_than_one_packet(size: int) -> None:
    rows: list[Row] = [(b"a",), (b"y" * size,), (b"b",)]
    assert read(FakeServer(1, pack(*map(encode, rows), END), 1 << 22)) == rows


def test_a_refusal_in_the_middle() -> None:
    server = FakeServer(3, pack(encode(ROWS[0]), b"\xff\x06\x04#HY000Got error 28"))
    with pytest.raises(PermanentError, match=r"error 28 \(1030\)"):
        read(server)
    assert server.is_closed


def test_damage_is_no_row_and_no_end_is_told() -> None:
    whole = pack(*map(encode, ROWS), END)
    with pytest.raises(CorruptionError):
        read(FakeServer(2, whole))
    for cut in range(0, len(whole) - 70000, 9):
        with pytest.raises(UnreachableError):
            read(FakeServer(3, whole[:cut]))
    choice = random.Random(3)
    for _ in range(200):
        torn = bytearray(whole)
        torn[choice.randrange(600)] ^= 1 << choice.randrange(8)
        with suppress(TidemarkError):
            read(FakeServer(3, bytes(torn)))
