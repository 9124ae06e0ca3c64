"""The client's half of IoTDB's protocol, against a listener that answers bytes; no IoTDB (e2e has the real ones)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import OutcomeUnknownError, PermissionDeniedError, UnreachableError
from tidemark.receiver.iotdb.session import RefusedError, Session
from tidemark.receiver.iotdb.thrift import (
    I32,
    I64,
    LIST,
    STRING,
    STRUCT,
    Field,
    Server,
    WireError,
    decode_reply,
    encode_call,
)

REPLY = 0x80010002


def reply(*fields: Field) -> bytes:
    """A frame without its length, holding one struct as the method's result."""
    sent = encode_call("m", [Field(0, STRUCT, fields)])[4:]
    return struct.pack(">I", REPLY) + sent[4:]


def number_reply(value: int) -> bytes:
    sent = encode_call("m", [Field(0, I64, value)])[4:]
    return struct.pack(">I", REPLY) + sent[4:]


def status(code: int, message: str = "") -> Field:
    return Field(1, STRUCT, [Field(1, I32, code), Field(2, STRING, message.encode())])


LOGIN = [reply(status(200), Field(2, I32, 2), Field(3, I64, 77)), number_reply(5)]


class Listener:
    """Answers one call after another with the given frames; then closes."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.asked: list[bytes] = []

    @property
    def server(self) -> Server:
        return Server("127.0.0.1", self.socket.getsockname()[1], "root", "secret")

    def answer(self, *frames: bytes) -> None:
        def serve() -> None:
            line, _ = self.socket.accept()
            with line, line.makefile("rb") as incoming:
                for frame in frames:
                    self.asked.append(incoming.read(struct.unpack(">i", incoming.read(4))[0]))
                    line.sendall(struct.pack(">i", len(frame)) + frame)
                incoming.read(4)

        threading.Thread(target=serve, daemon=True).start()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.socket.close()


def test_what_is_packed_is_read_back() -> None:
    words = [Field(1, I32, -7), Field(2, STRING, "ü".encode()), Field(3, LIST, (I64, [1, 2**40]))]
    assert decode_reply("m", reply(*words)) == {1: -7, 2: "ü".encode(), 3: [1, 2**40]}


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_an_error_and_never_a_hang(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_reply("m", struct.pack(">I", REPLY) + data)


@given(st.integers(0, 60))
def test_a_torn_answer_is_an_error(cut: int) -> None:
    frame = reply(status(200, "fine"), Field(3, I64, 77))
    if cut < len(frame):
        with pytest.raises(WireError):
            decode_reply("m", frame[:cut])


def test_a_question_gives_columns_with_their_gaps(listener: Listener) -> None:
    times = struct.pack(">3q", 1, 2, 3)
    data = [
        Field(1, STRING, times),
        Field(2, LIST, (STRING, [struct.pack(">2i", 10, 30), struct.pack(">i2s", 2, b"ab")])),
        Field(3, LIST, (STRING, [bytes([0b10100000]), bytes([0b01000000])])),
    ]
    answer = reply(
        status(200),
        Field(2, I64, 9),
        Field(3, LIST, (STRING, [b"root.d.i", b"root.d.t"])),
        Field(6, LIST, (STRING, [b"INT32", b"TEXT"])),
        Field(7, STRUCT, data),
        Field(14, 2, 0),
    )
    listener.answer(*LOGIN, answer)
    with Session(listener.server) as session:
        rows = session.rows("select * from root.d")
    assert rows.times.tolist() == [1, 2, 3]
    assert [cell.decode_texts() for cell in rows.cells] == [["10", None, "30"], [None, "ab", None]]
    assert b"select * from root.d" in listener.asked[2] and b"secret" in listener.asked[0]


def test_a_refusal_says_the_servers_own_words(listener: Listener) -> None:
    listener.answer(*LOGIN, reply(status(1100, "not a valid tsfile")))
    with Session(listener.server) as session, pytest.raises(RefusedError, match="1100 not a valid tsfile") as caught:
        session.run("load '/x'")
    assert caught.value.code == 1100


def test_a_line_that_breaks_under_a_statement_leaves_the_outcome_unknown(listener: Listener) -> None:
    listener.answer(*LOGIN, b"\0")
    with Session(listener.server) as session, pytest.raises(OutcomeUnknownError):
        session.run("load '/x'")


def test_a_login_that_is_refused_names_the_setting_and_never_the_password(listener: Listener) -> None:
    listener.answer(reply(status(801, "Authentication failed.")))
    with pytest.raises(PermissionDeniedError) as caught:
        Session(listener.server)
    assert "iotdb_password_file" in caught.value.hint
    assert "secret" not in f"{caught.value.message}{caught.value.hint}{listener.server!r}"


def test_nobody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError, match="does not answer"):
        Session(Server("127.0.0.1", port, "root", "root"))


def test_something_else_listens_there(listener: Listener) -> None:
    listener.answer(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(UnreachableError, match="broke"):
        Session(listener.server)
