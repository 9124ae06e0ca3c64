"""`changes serve` and clients that are slow on purpose: they lose their connection, and hold no memory beyond a bound."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.types import Message

from tests.delivery_worlds import fill_store
from tests.served_changes import LIMITS, TOKEN, UUID, Served, append, make_large, rows_of, serving
from tests.services.processes import soon
from tests.wire_client import Client, text
from tidemark.changes.delivery.http.app import _PIECE, PiecesResponse
from tidemark.changes.delivery.http.feed import Watch
from tidemark.changes.delivery.http.sessions import IDLE_SECONDS, MOST_OF_TASK, Sessions
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Writer

SHORT = """
from tidemark.changes.delivery.http import app, run
run.HEAD_SECONDS, run.SEND_SECONDS = 1.0, 2.0
app.MOST_HELD, app.ROOM_SECONDS = 9 << 20, 0.5
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Twenty megabytes, and short times."""
    folder = tmp_path_factory.mktemp("slow")
    writer = Writer(Disk(folder / "store"), 1, replace(LIMITS, block_bytes=1 << 20, bucket_bytes=64 << 20))
    append(writer, *(make_large(seq, 12_000) for seq in range(1, 4)))
    with serving(folder, '[sources.orders]\nstore = "store"\n', writer, SHORT) as found:
        yield found


def test_sessions_end_when_they_are_idle_and_a_busy_one_makes_no_room() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    idle = sessions.begin("billing", "orders")
    now[0] = IDLE_SECONDS + 1
    assert idle is not None and sessions.find(idle.id, bool) is None and len(sessions) == 0
    busy, *others = [sessions.begin("billing", "orders") for _ in range(MOST_OF_TASK)]
    assert busy is not None
    busy.is_busy = True
    assert sessions.begin("billing", "orders") is not None and sessions.find(busy.id, bool) is busy
    for one in others[1:]:
        assert one is not None and sessions.find(one.id, bool) is one


def ask(served: Served, client: Client, body: bytes) -> socket.socket:
    """Ask for messages, and read nothing."""
    head = f"POST /v1/fetchMessages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += f"Tidemark-Session: {client.session}\r\nContent-Length: {len(body)}\r\n\r\n"
    one = served.open_socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    one.sendall(head.encode() + body)
    return one


def ask_slowly(served: Served, client: Client) -> socket.socket:
    one = ask(served, client, b'{"maxByteSize": 4194304, "batchSize": 100000}')
    assert one.recv(15) == b"HTTP/1.1 200 OK"
    return one


@pytest.mark.full
def test_a_head_that_does_not_come_ends_the_connection_after_a_request_too(served: Served) -> None:
    with served.open_socket() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200 OK")
        begun = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - begun < 10:
                slow.sendall(b"G" if time.monotonic() - begun < 0.2 else b"E")
                slow.settimeout(0.2)
                try:
                    if not slow.recv(4096):
                        raise OSError
                except TimeoutError:
                    continue
        assert time.monotonic() - begun < 5


def test_who_has_no_token_loses_the_connection(served: Served) -> None:
    with served.open_socket() as one:
        one.sendall(b"POST /v1/subscribe HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        found = b""
        while piece := one.recv(4096):
            found += piece
        assert found.startswith(b"HTTP/1.1 401") and b"connection: close" in found.lower()


@pytest.mark.full
def test_a_session_is_busy_until_its_reply_is_sent_and_memory_is_bounded(served: Served) -> None:
    clients = [served.ready(shards=1) for _ in range(3)]
    first = ask_slowly(served, clients[0])
    busy = clients[0].fetch()
    assert busy.status == 409 and text(busy.envelope, 5).startswith("BUSY")
    second = clients[1].fetch(size=4 << 20)  # two replies, and what is made ahead
    assert second.status == 503 and text(second.envelope, 5).startswith("OVERLOADED")
    until = time.monotonic() + 15  # the first client loses its connection, and what it held
    while (again := clients[0].fetch()).status == 409 and b"BUSY" in again.body and time.monotonic() < until:
        time.sleep(0.1)
    assert text(again.envelope, 5).startswith("NOT_SUBSCRIBED")  # it has not had that reply
    assert clients[0].subscribe().status == clients[0].fetch().status == clients[1].fetch().status == 200
    first.close()


def test_who_gave_up_waiting_for_a_reply_subscribes_again_and_misses_nothing(served: Served) -> None:
    seq = served.writer.state.seq
    point = {"checkpointMode": "NORMAL", "uuid": UUID, "transactionId": seq, "eventIndex": 100_000}
    client = served.ready(shards=1, buffaloCheckpoint=point)
    with ask(served, client, b'{"timeoutMs": 20000}'):
        assert soon(lambda: client.fetch().status == 409), "it is busy"
    append(served.writer, make_large(seq + 1, 5))
    until = time.monotonic() + 15
    while b"BUSY" in (again := client.fetch()).body and time.monotonic() < until:
        time.sleep(0.05)
    assert again.status == 409 and text(again.envelope, 5).startswith("NOT_SUBSCRIBED")
    client.subscribe(buffaloCheckpoint=point)
    assert rows_of(client.fetch_all()[0]) == [(seq + 1, row) for row in range(5)]


@pytest.mark.parametrize("size", [1, _PIECE - 1, _PIECE, _PIECE + 1, 3 * _PIECE])
@pytest.mark.parametrize("leaves", ["behind the last byte", "before it"])
def test_who_leaves_with_the_last_byte_of_a_reply_has_had_it(size: int, leaves: str) -> None:
    """A client with a connection for each request closes as soon as it has all, before the server goes on."""
    got, lost = bytearray(), []

    async def receive() -> Message:
        if len(got) < (size if leaves == "behind the last byte" else size - 1):
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        got.extend(message.get("body", b""))

    reply = PiecesResponse([bytes(size)], "application/protobuf", ExitStack(), lambda: lost.append(True))
    asyncio.run(reply({"type": "http"}, receive, send))
    assert lost == ([] if leaves == "behind the last byte" else [True])
    assert (len(got) == size) is not bool(lost)


def test_blocks_stay_divided_within_the_memory_of_their_source(tmp_path: Path) -> None:
    disk = fill_store(tmp_path / "store", 1, 60)
    blocks, sharding = list(Reader(disk).read_stretches(1)), Sharding(4)
    assert len(blocks) > 2

    def kept(memory: int) -> list[bool]:
        """Whether each block is what it was when it is asked for again."""
        watch = Watch(disk, memory)
        first = [watch.divide(sharding, ("**",), block) for block in blocks]
        return [watch.divide(sharding, ("**",), block) is was for block, was in zip(blocks, first, strict=True)]

    assert all(kept(0)) and all(kept(1 << 30))
    assert not any(kept(1))
