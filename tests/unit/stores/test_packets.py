"""Packets of a channel are read alike in C and in Python: frames, other messages, what is broken, the stream's end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from paramiko.message import Message

from tidemark.stores.agent.frames import DATA, DONE, HEAD
from tidemark.stores.ssh import packets as compiled_packets
from tidemark.stores.ssh.packets import BulkPacketizer
from tidemark.stores.ssh.sink import PACKET_ROOM, BulkSink, Frame

PLUGINS = Path(__file__).parents[3] / "plugins"
CHANNEL, OTHER_CHANNEL = 3, 4
CHANNEL_DATA, IGNORE = 94, 2
ROOM = 1 << 20


class Wire:
    """One end writes encrypted packets, the other one reads them. `window`: what the reader let the writer send more."""

    def __init__(self, in_c: bool, bits: int = 128) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.near = near = socket.create_connection(door.getsockname())
            self.far = door.accept()[0]
        near.settimeout(0.1)
        key, self.nonce = os.urandom(bits // 8), os.urandom(12)
        self.cipher = AESGCM(key)
        self.packetizer = BulkPacketizer(near)
        self.packetizer.set_inbound_cipher(self.cipher, 16, None, 16, None, aead=True, iv_in=self.nonce)
        if in_c:
            self.packetizer.note_key(self.cipher, key)
        self.window = 0
        open_gate = threading.Event()
        open_gate.set()
        transport = SimpleNamespace(clear_to_send=open_gate, _send_message=self._widened, packetizer=self.packetizer)
        self.came: list[tuple[int, bytes] | None] = []
        self._transport = transport
        self.sink = self.packetizer.sink = self.sink_of(CHANNEL, self._keep)

    def sink_of(self, number: int, deliver: Callable[[Frame | None], None]) -> BulkSink:
        channel: Any = SimpleNamespace(chanid=number, remote_chanid=0, transport=self._transport)
        return BulkSink(channel, ROOM, 2, deliver)

    def packet(self, payload: bytes) -> bytes:
        padding = 16 - (1 + len(payload)) % 16
        padding += 16 if padding < 4 else 0
        return self.sealed(bytes([padding]) + payload + os.urandom(padding))

    def sealed(self, plain: bytes) -> bytes:
        length = len(plain).to_bytes(4, "big")
        sealed = length + self.cipher.encrypt(self.nonce, plain, length)
        count = (int.from_bytes(self.nonce[4:], "big") + 1) % (1 << 64)
        self.nonce = self.nonce[:4] + count.to_bytes(8, "big")
        return sealed

    def data(self, piece: bytes, channel: int = CHANNEL) -> bytes:
        return self.packet(bytes([CHANNEL_DATA]) + channel.to_bytes(4, "big") + len(piece).to_bytes(4, "big") + piece)

    def write(self, stream: bytes | bytearray, pieces: list[int]) -> None:
        """From a thread of its own: cut into `pieces` in turn, then the end."""

        def run() -> None:
            at, turn = 0, 0
            with contextlib.suppress(OSError):  # the reader gave up
                while at < len(stream):
                    size = pieces[turn % len(pieces)]
                    self.far.sendall(stream[at : at + size])
                    at, turn = at + size, turn + 1
                self.far.shutdown(socket.SHUT_WR)

        threading.Thread(target=run, daemon=True).start()

    def messages(self) -> list[tuple[int, bytes]]:
        """All that are no data of the channel, until the stream ends."""
        found = []
        try:
            while True:
                kind, message = self.packetizer.read_message()
                found.append((kind, message.asbytes()))
        except EOFError:
            return found
        finally:
            self.far.close()
            self.packetizer.close()

    def _widened(self, message: Message) -> None:
        self.window += int.from_bytes(message.asbytes()[5:9], "big")

    def _keep(self, frame: Frame | None) -> None:
        self.came.append(None if frame is None else (frame.kind, bytes(frame.data)))
        if frame is not None:
            self.sink.free.put(frame.slab)


@pytest.fixture(scope="module", params=[True, False], ids=["in C", "in Python"])
def wire(request: pytest.FixtureRequest) -> Callable[..., Wire]:
    if request.param and compiled_packets.packet_reader(None, bytes(16)) is None:
        pytest.skip("no C compiler, or no libcrypto of its own")
    return lambda **more: Wire(request.param, **more)


def frame(data: bytes, kind: int = DATA) -> bytes:
    words = json.dumps(len(data)).encode()
    return HEAD.pack(kind, len(words), len(data)) + words + data


def ignored(number: int) -> bytes:
    return bytes([IGNORE]) + number.to_bytes(4, "big")


@pytest.mark.full_after(1)
@pytest.mark.parametrize("bits", [128, 256])
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 32_768, 300_000, ROOM - 64]), min_size=1, max_size=6),
    packet=st.sampled_from([1_000, 32_768, 200_000]),
    pieces=st.lists(st.integers(3_000, 90_000), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_frames_are_whole_and_other_messages_keep_their_order(
    wire: Callable[..., Wire], bits: int, sizes: list[int], packet: int, pieces: list[int], seed: int
) -> None:
    line, dice = wire(bits=bits), random.Random(seed)
    frames = [dice.randbytes(size) for size in sizes]
    stream = b"".join(frame(data) for data in frames)
    sent, others = bytearray(), []
    for at in range(0, len(stream), packet):
        if dice.random() < 0.3:
            others.append((IGNORE, at.to_bytes(4, "big")))
            sent += line.packet(ignored(at))
        if dice.random() < 0.1:
            others.append((CHANNEL_DATA, OTHER_CHANNEL.to_bytes(4, "big") + (2).to_bytes(4, "big") + b"hi"))
            sent += line.data(b"hi", OTHER_CHANNEL)
        sent += line.data(stream[at : at + packet])
    line.write(sent, pieces)

    assert line.messages() == others
    assert line.came == [*((DATA, data) for data in frames), None]
    assert line.sink.received == len(stream)
    assert line.window + line.sink.owed == len(stream)


def test_bytes_that_come_one_by_one(wire: Callable[..., Wire]) -> None:
    line = wire()
    line.write(line.data(frame(b"few")) + line.packet(ignored(1)) + line.data(frame(bytes(500))), [1, 2])
    assert line.messages() == [(IGNORE, (1).to_bytes(4, "big"))]
    assert line.came == [(DATA, b"few"), (DATA, bytes(500)), None]


def test_the_last_frame_ends_it_and_what_follows_is_a_message(wire: Callable[..., Wire]) -> None:
    line = wire()
    line.write(line.data(frame(b"a")) + line.data(frame(b"", DONE)) + line.data(b"late") + line.packet(ignored(1)), [50_000])
    late = CHANNEL.to_bytes(4, "big") + (4).to_bytes(4, "big") + b"late"
    assert line.messages() == [(CHANNEL_DATA, late), (IGNORE, (1).to_bytes(4, "big"))]
    assert line.came == [(DATA, b"a"), (DONE, b"")]


@pytest.mark.parametrize("where", [0, 2, 5, 20, 9_000, -1])
def test_one_flipped_bit_ends_the_connection_and_hands_out_nothing_of_the_packet(
    wire: Callable[..., Wire], where: int
) -> None:
    line = wire()
    good, bad = line.data(frame(b"good")), bytearray(line.data(frame(bytes(10_000))))
    bad[where] ^= 1
    line.write(good + bad + bytes(1 << 19), [60_000])
    with pytest.raises(Exception) as broken:  # of which kind is up to who reads
        line.messages()
    assert not isinstance(broken.value, EOFError)
    assert line.came == [(DATA, b"good"), None]


@pytest.mark.parametrize(
    "plain",
    [
        bytes([31, IGNORE]) + bytes(30),  # nothing but padding, and less of it than it says
        bytes([255, CHANNEL_DATA, 0, 0, 0, CHANNEL]) + bytes(26),
        bytes([4, CHANNEL_DATA, 0, 0, 0, CHANNEL, 0, 0, 0, 19]) + bytes(22),  # data that would reach into the padding
        bytes([4, CHANNEL_DATA, 0, 0, 0, CHANNEL]) + b"\xff" * 26,
        bytes([4, IGNORE]) + bytes(8),  # too short for a packet
        bytes([4, IGNORE]) + bytes(PACKET_ROOM - 65),  # too long
    ],
)
def test_a_server_that_lies_about_sizes_within_a_packet_is_refused(wire: Callable[..., Wire], plain: bytes) -> None:
    line = wire()
    line.write(line.data(frame(b"good")) + line.sealed(plain) + line.data(frame(b"late")), [60_000])
    with pytest.raises(Exception, match="broken"):
        line.messages()
    assert line.came == [(DATA, b"good"), None]


def test_a_stream_that_stops_within_a_packet_is_an_end(wire: Callable[..., Wire]) -> None:
    line = wire()
    line.write(line.data(frame(b"whole")) + line.data(frame(bytes(9_000)))[:5_000], [700])
    assert line.messages() == []
    assert line.came == [(DATA, b"whole"), None]


def test_a_frame_larger_than_agreed_is_refused(wire: Callable[..., Wire]) -> None:
    line = wire()
    line.write(line.data(HEAD.pack(DATA, 0, 4 * ROOM)) + line.data(bytes(1000)), [5_000])
    with pytest.raises(Exception, match="larger than agreed"):
        line.messages()


@pytest.mark.full_after(1)
def test_who_looks_whether_a_slow_line_moves_sees_it_before_the_frame_is_whole(wire: Callable[..., Wire]) -> None:
    line = wire()
    reader = threading.Thread(target=line.messages)
    reader.start()
    begun = frame(bytes(ROOM - 64))
    seen = 0
    for at in range(0, 60_000, 1_000):  # each comes before the line would count as silent
        line.far.sendall(line.data(begun[at : at + 1_000]))
        time.sleep(0.02)
        seen = seen or line.sink.received
    line.far.close()
    reader.join(10)
    assert 0 < seen < 60_000
    assert line.came == [None]


def test_a_few_bytes_of_a_large_frame_and_a_message_are_seen_though_nothing_follows(wire: Callable[..., Wire]) -> None:
    """C has the kernel wake it for many bytes at once: those that are too few for that must not lie there."""
    line = wire()
    large, heard = frame(bytes(ROOM - 64)), threading.Event()

    def run() -> None:
        line.packetizer.read_message()
        heard.set()

    reader = threading.Thread(target=run)
    reader.start()
    line.far.sendall(line.data(large[:40_000]))
    while line.sink.received < 40_000:
        time.sleep(0.01)
    line.far.sendall(line.packet(ignored(1)))
    assert heard.wait(10)
    reader.join(10)
    assert line.near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1, "whoever reads next waits for any byte"
    line.write(b"".join(line.data(large[at : at + 32_768]) for at in range(40_000, len(large), 32_768)), [90_000])
    assert line.messages() == []
    assert line.came == [(DATA, bytes(ROOM - 64)), None]


def test_a_sink_that_takes_over_meanwhile_gets_its_bytes(wire: Callable[..., Wire]) -> None:
    line = wire()
    reader = threading.Thread(target=line.messages)
    reader.start()
    line.far.sendall(line.data(frame(b"old")[:5]))
    while not line.sink.received:
        time.sleep(0.01)
    came: list[tuple[int, bytes]] = []
    new = line.sink_of(OTHER_CHANNEL, lambda frame: came.append((frame.kind, bytes(frame.data))) if frame else None)
    line.packetizer.sink = new
    line.far.sendall(line.data(frame(b"new"), OTHER_CHANNEL) + line.data(frame(b"", DONE), OTHER_CHANNEL))
    line.far.close()
    reader.join(10)
    assert came == [(DATA, b"new"), (DONE, b"")]


def test_a_silent_wire_is_looked_at_and_left_when_it_is_closed(wire: Callable[..., Wire]) -> None:
    line = wire()
    line.far.sendall(line.data(frame(b"first")))
    reader = threading.Thread(target=line.messages)
    reader.start()
    reader.join(0.3)  # longer than one look at a silent socket
    assert reader.is_alive()
    line.packetizer.close()
    reader.join(10)
    assert not reader.is_alive()
    assert line.came == [(DATA, b"first"), None]


_ANOTHER_LIBRARY = """
import ctypes
from tidemark.stores.ssh import packets as compiled_packets
found = compiled_packets.load_libcrypto()
for _ in range(50):  # each time one that no other thread has set up yet
    compiled_packets.load_libcrypto = lambda: ctypes.CDLL(found._name)
    assert compiled_packets.packet_reader(None, bytes(16)).state.context
"""


@pytest.mark.full
@pytest.mark.real("C compiler")
def test_a_reader_is_made_while_another_thread_asks_for_the_cipher_library_too() -> None:
    """Both found none yet and load it; who got the other's went on with an address cut to 32 bits, and the process died."""
    if compiled_packets.packet_reader(None, bytes(16)) is None:
        pytest.skip("no C compiler, or no libcrypto of its own")
    words = [sys.executable, "-c", _ANOTHER_LIBRARY]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(PLUGINS)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
