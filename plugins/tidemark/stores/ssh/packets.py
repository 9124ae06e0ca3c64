"""paramiko's packet layer with faster reading and writing for AES-GCM: packets are decrypted in place, with few copies.

paramiko still does the handshake, keys, host key, login, channels and rekeying. Only reading and writing packets is
replaced. Packets are cut from one large receive buffer. Those of a channel with a `BulkSink` are decrypted right into the
sink's slab. This costs half of paramiko's CPU time (research/transfer.md §1.2, transfer-pull.md). It uses private
attributes. So it serves only the paramiko versions in KNOWN, and only if the attributes exist. Else paramiko's own layer
is used.

Where C can be built (`packets.c`), packets of one channel are received and decrypted in C until a frame is whole. For
each packet of 32 KB Python would take as long as the decryption, and compete for the interpreter's lock. The cipher comes
from the libcrypto that `hashlib` uses. Without C, Python does the same, packet by packet.

`tcp_info` reads the kernel's data about a TCP connection: Linux's struct tcp_info, zeros elsewhere.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.message import Message
from paramiko.packet import NeedRekeyException, Packetizer
from paramiko.ssh_exception import SSHException

from tidemark.native import load_libcrypto, load_library
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.sink import PACKET_ROOM, BulkSink

KNOWN = ("5.1.0",)
_TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", 12)
_RECEIVE = 1 << 19
_WINDOW_STEP = 1 << 22  # bytes received before the window is opened by as many
_CHANNEL_DATA, _CHANNEL_WINDOW_ADJUST, _CHANNEL_EOF, _CHANNEL_CLOSE = 94, b"\x5d", 96, 97
_PACKET_HEAD = struct.Struct(">BBII")  # padding, type; of channel data: channel, bytes
_PRIVATE = (
    *("iv_in", "aead_in", "block_engine_in", "compress_engine_in", "remainder", "sequence_number_in", "received_bytes"),
    *("iv_out", "aead_out", "block_engine_out", "compress_engine_out", "sequence_number_out", "sent_bytes", "write_lock"),
    "keepalive_last",
)
_PRIVATE_CALLS = ("write_all", "_check_keepalive", "_trigger_rekey", "need_rekey", "handshake_timed_out", "read_message")


class BulkPacketizer(Packetizer):  # type: ignore[misc]
    """The `packetizer_class` for a `paramiko.Transport`. `sink` is to be set before the far end begins to send."""

    REKEY_BYTES, REKEY_PACKETS = 1 << 35, 1 << 31  # half of what AES allows a key (RFC 4344: 2^32 blocks, 64 GiB)

    # paramiko's, by their mangled names
    _Packetizer__iv_in: bytes
    _Packetizer__sequence_number_in: int
    _Packetizer__remainder: bytes
    _Packetizer__iv_out: bytes
    _Packetizer__sequence_number_out: int
    _Packetizer__sent_bytes: int
    _Packetizer__sent_packets: int

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.stall = math.inf
        self.sink: BulkSink | None = None
        self._sock = sock
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self._from = self._to = 0
        self._plain = bytearray(PACKET_ROOM)
        self._key: tuple[Any, bytes] = (None, b"")  # paramiko's engine and its key
        self._reader: PacketReader | None = None
        self._reading = threading.Lock()  # held while C uses the socket

    @property
    def is_fast_out(self) -> bool:
        return bool(self._Packetizer__aead_out) and self._Packetizer__compress_engine_out is None

    @contextmanager
    def encrypting_packets(self) -> Iterator[Callable[[memoryview, memoryview, memoryview], None]]:
        """Hold the write lock. Yields a function that encrypts one packet: (plain text, length field, target)."""
        with self._Packetizer__write_lock:
            if not self.is_fast_out:
                raise SSHException("the cipher is not AES-GCM any more")
            engine, iv = self._Packetizer__block_engine_out, self._Packetizer__iv_out
            fixed, count = iv[:4], int.from_bytes(iv[4:], "big")

            def encrypt(plain: memoryview, length: memoryview, out: memoryview) -> None:
                nonlocal count
                engine.encrypt_into(fixed + count.to_bytes(8, "big"), plain, length, out)
                count += 1

            try:
                yield encrypt
            finally:
                self._Packetizer__iv_out = fixed + count.to_bytes(8, "big")

    def write_all(self, out: bytes | memoryview) -> None:
        """Write all of `out`. Unlike paramiko's, raises TimeoutError when no byte was acknowledged for `stall` seconds."""
        self._Packetizer__keepalive_last = time.time()
        left, moved, since = memoryview(out), -1, time.monotonic()
        while left and not self.closed:
            try:
                left, since = left[self._sock.send(left) :], time.monotonic()
            except (TimeoutError, BlockingIOError):
                before, moved = moved, tcp_info(self._sock).acknowledged
                since = since if moved == before else time.monotonic()
                if time.monotonic() - since > self.stall:
                    raise TimeoutError from None
            except OSError:
                break
        if left:
            raise EOFError

    def write_packets(self, out: memoryview, packets: int) -> None:
        """Write encrypted packets to the socket. To be called within `encrypting_packets`."""
        self._Packetizer__sequence_number_out = (self._Packetizer__sequence_number_out + packets) & 0xFFFFFFFF
        self.write_all(out)
        self._Packetizer__sent_bytes += len(out)
        self._Packetizer__sent_packets += packets
        if not self.need_rekey() and (
            self._Packetizer__sent_bytes >= self.REKEY_BYTES or self._Packetizer__sent_packets >= self.REKEY_PACKETS
        ):
            self._Packetizer__received_bytes_overflow = self._Packetizer__received_packets_overflow = 0
            self._trigger_rekey()

    @property
    def fast(self) -> bool:
        """Whether incoming packets can be decrypted in place."""
        return bool(self._Packetizer__aead_in) and self._Packetizer__compress_engine_in is None

    def read_message(self) -> Any:
        with suppress(OSError):  # acknowledge at once: the server delays a small packet until its last one is acknowledged
            self._sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)
        try:
            if not self.fast:
                self._give_back()
                return super().read_message()
            return self._read_gcm()
        except NeedRekeyException:
            raise
        except BaseException:
            if self.sink is not None:
                self.sink.mark_lost()
            raise

    def note_key(self, engine: Any, key: bytes) -> None:
        """Keep the key of the next inbound cipher, for the reader in C."""
        self._key = engine, key

    def _read_gcm(self) -> tuple[int, Message]:
        """Return the next message that is not bulk data, as (type, Message)."""
        while True:
            sink = self.sink
            reader = self._reader_in_c() if sink is not None else None
            message = self._read_one() if sink is None or reader is None else self._read_many(reader, sink)
            if message is not None:
                return message

    def _reader_in_c(self) -> PacketReader | None:
        """Return the reader in C for the current key; None where `_read_one` is to be used."""
        engine, iv = self._Packetizer__block_engine_in, self._Packetizer__iv_in
        if self._reader is None or self._reader.engine is not engine:
            self._reader = None
            if self._key[0] is engine and not self._Packetizer__remainder:
                self._reader = packet_reader(*self._key)
                self._key = None, b""
            if self._reader is not None:
                self._reader.bind_buffers(self._buffer, self._plain, iv[:4])
        return self._reader

    def _read_many(self, reader: PacketReader, sink: BulkSink) -> tuple[int, Message] | None:
        """Read packets up to the end of a frame (returns None) or to another message than the sink's data (returns it)."""
        state, iv, begun = reader.state, self._Packetizer__iv_in, sink.end
        state.at, state.to, state.counter = self._from, self._to, int.from_bytes(iv[4:], "big")
        state.end, state.need, state.most = begun, sink.need, _WINDOW_STEP
        reader.aim_at_slab(sink.slab, sink.number, sink.together)
        with self._reading:
            if self.closed:
                raise EOFError
            state.socket = self._sock.fileno()
            why = reader.read_packets()
        self._from, self._to = state.at, state.to
        self._Packetizer__iv_in = iv[:4] + state.counter.to_bytes(8, "big")
        self._count_packets(state.packets, state.wire)
        self._take(sink, state.end - begun)
        if why == OTHER:
            return self._take_other_message(sink, bytes(self._plain[: state.other_size]))
        if why == BROKEN:
            raise SSHException("a packet is broken")
        if why == ENDED or self.closed:
            raise EOFError
        if why == FAILED:
            raise OSError(state.error, os.strerror(state.error))
        if why == IDLE:
            if self._to == self._from and self.need_rekey():
                raise NeedRekeyException
            self._check_keepalive()
        self._widen_window(sink)
        return None

    def _take_other_message(self, old: BulkSink, said: bytes) -> tuple[int, Message] | None:
        """Handle a message that is not data of `old`. It may be data of a sink that replaced `old` while C was waiting."""
        sink = self.sink
        if sink is None or sink is old or said[0] != _CHANNEL_DATA or int.from_bytes(said[1:5], "big") != sink.number:
            return self._message(said[0], said[1:])
        data = said[9:]
        sink.slab[sink.end : sink.end + len(data)] = data
        self._take(sink, len(data))
        self._widen_window(sink)
        return None

    def close(self) -> None:
        """Close the socket, once C is done with it. C has only its number, which must not be reused before."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes C
        with self._reading:
            super().close()

    def _read_one(self) -> tuple[int, Message] | None:
        """`_read_many` for one packet, in Python."""
        if self._to - self._from < 4:
            self._fill(4)
        view, iv = self._view, self._Packetizer__iv_in
        length = int.from_bytes(view[self._from : self._from + 4], "big")
        if not 16 <= length <= PACKET_ROOM - 64:
            raise SSHException("a packet's length is broken")
        if self._to - self._from < length + 20:
            self._fill(length + 20)
        at, sink = self._from, self.sink
        slab, end = (sink.slab, sink.end) if sink is not None else (self._plain, 10)
        kept = bytes(slab[end - 10 : end])
        out = memoryview(slab)[end - 10 : end - 10 + length]
        self._Packetizer__block_engine_in.decrypt_into(iv, view[at + 4 : at + length + 20], view[at : at + 4], out)
        self._from = at + length + 20
        self._Packetizer__iv_in = iv[:4] + (int.from_bytes(iv[4:], "big") + 1).to_bytes(8, "big")
        self._count_packets(1, length + 20)
        padding, kind, channel, size = _PACKET_HEAD.unpack_from(slab, end - 10)
        if padding + 2 > length:
            raise SSHException("a packet is broken")
        if sink is None or kind != _CHANNEL_DATA or channel != sink.number:
            payload = bytes(slab[end - 8 : end - 10 + length - padding])
            slab[end - 10 : end] = kept
            return self._message(kind, payload)
        slab[end - 10 : end] = kept
        if size + padding + 10 > length:
            raise SSHException("a packet is broken")
        self._take(sink, size)
        self._widen_window(sink)
        return None

    def _take(self, sink: BulkSink, size: int) -> None:
        """Count `size` new bytes in the sink's slab. Cuts frames when enough have come."""
        sink.end += size
        sink.received += size
        sink.owed += size
        if sink.end >= sink.need:
            sink.cut_frames()
            if sink.over and self.sink is sink:
                self.sink = None

    def _widen_window(self, sink: BulkSink) -> None:
        """Open the far end's window by the received bytes, once they are _WINDOW_STEP."""
        if sink.owed < _WINDOW_STEP and not sink.over:
            return
        if self.need_rekey():  # requested while packets were counted
            raise NeedRekeyException
        transport = sink.channel.transport
        if transport.clear_to_send.is_set():
            message = Message()
            message.add_byte(_CHANNEL_WINDOW_ADJUST)
            message.add_int(sink.channel.remote_chanid)
            message.add_int(sink.owed)
            sink.owed = 0
            transport._send_message(message)

    def _message(self, kind: int, payload: bytes) -> tuple[int, Message]:
        message = Message(payload)
        message.seqno = (self._Packetizer__sequence_number_in - 1) & 0xFFFFFFFF
        sink = self.sink
        if sink is not None and kind in (_CHANNEL_EOF, _CHANNEL_CLOSE) and int.from_bytes(payload[:4], "big") == sink.number:
            self.sink = None
            sink.mark_lost()
        return kind, message

    def _count_packets(self, packets: int, size: int) -> None:
        self._Packetizer__sequence_number_in = (self._Packetizer__sequence_number_in + packets) & 0xFFFFFFFF
        self._Packetizer__received_bytes += size
        self._Packetizer__received_packets += packets
        if not self.need_rekey() and (
            self._Packetizer__received_bytes >= self.REKEY_BYTES or self._Packetizer__received_packets >= self.REKEY_PACKETS
        ):
            self._Packetizer__received_bytes_overflow = self._Packetizer__received_packets_overflow = 0
            self._trigger_rekey()

    def _fill(self, count: int) -> None:
        """Receive until the buffer has `count` unread bytes."""
        if self._to - self._from >= count:
            return
        left, over = self._to - self._from, self._Packetizer__remainder
        if len(self._buffer) - self._from < count + len(over) or not left or over:
            self._buffer[:left] = self._buffer[self._from : self._to]
            self._from, self._to = 0, left
        if over:  # read with the server's banner
            self._buffer[left : left + len(over)] = over
            self._to += len(over)
            self._Packetizer__remainder = b""
        while self._to - self._from < count:
            if self.handshake_timed_out():
                raise EOFError
            try:
                got = self._sock.recv_into(self._view[self._to :])
            except TimeoutError:
                if self.closed:
                    raise EOFError from None
                if self._to == self._from and self.need_rekey():
                    raise NeedRekeyException from None
                self._check_keepalive()
                continue
            except OSError:
                if self.closed:
                    raise EOFError from None
                raise
            if not got:
                raise EOFError
            self._to += got

    def _give_back(self) -> None:
        """Return unread bytes to paramiko, which reads on because the new cipher is not AES-GCM."""
        if self._to > self._from:
            self._Packetizer__remainder = bytes(self._view[self._from : self._to]) + self._Packetizer__remainder
            self._from = self._to = 0


def packetizer_class() -> type[Packetizer]:
    """Return `BulkPacketizer` where paramiko's version is known and has the needed attributes, else paramiko's own class."""
    plain = Packetizer(socket.socket())
    plain.close()
    fits = (
        paramiko.__version__ in KNOWN
        and all(hasattr(plain, f"_Packetizer__{name}") for name in _PRIVATE)
        and all(callable(getattr(plain, name, None)) for name in _PRIVATE_CALLS)
        and hasattr(AESGCM, "decrypt_into")
        and hasattr(AESGCM, "encrypt_into")
    )
    return BulkPacketizer if fits else Packetizer


WHOLE, OTHER, IDLE, ENDED, FAILED, BROKEN = range(6)
"""Why reading stopped: what was needed is there, or some of it for now; a message that is no data; nothing came for
`PATIENCE`; the stream's end; an error of the socket; a packet that is none."""

PATIENCE = 0.1  # seconds
_CIPHERS = {16: "EVP_aes_128_gcm", 32: "EVP_aes_256_gcm"}
_CALLS = ("EVP_DecryptInit_ex", "EVP_DecryptUpdate", "EVP_DecryptFinal_ex", "EVP_CIPHER_CTX_ctrl")
_CONTEXT = ("EVP_CIPHER_CTX_new", "EVP_CIPHER_CTX_free", "EVP_DecryptInit_ex")


class _Reader(ctypes.Structure):
    """`Reader` of packets.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("init", "update", "final", "control", "context", "buffer")),
        *((name, ctypes.c_uint64) for name in ("room", "at", "to")),
        ("slab", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("slab_room", "end", "need")),
        ("other", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("other_size", "most", "packets", "wire", "counter")),
        ("fixed", ctypes.c_uint8 * 4),
        *((name, ctypes.c_uint32) for name in ("channel", "largest")),
        *((name, ctypes.c_int32) for name in ("together", "woken_for", "socket", "patience", "error")),
    )


class PacketReader:
    """Reads the packets of one connection in C, as long as one key is used. `engine`: paramiko's object for that key.

    To be set before `read_packets`: `state.at` and `.to` (the unread part of `buffer`), `.counter`, `.end`, `.need`,
    `.most`, `.socket`. After it they, and `.packets`, `.wire`, `.error`, are updated. After OTHER, the first
    `.other_size` bytes of `other` are the message.
    """

    def __init__(self, code: ctypes.CDLL, crypto: ctypes.CDLL, engine: Any, key: bytes) -> None:
        self.engine = engine
        self._code = code
        self.state = _Reader(*(ctypes.cast(crypto[name], ctypes.c_void_p) for name in _CALLS))
        # By index, which gives new function objects: attributes are shared with other threads that may be setting them.
        new, free, begin, cipher = (crypto[name] for name in (*_CONTEXT, _CIPHERS[len(key)]))
        address = ctypes.c_void_p
        new.restype, free.restype, cipher.restype = address, None, address
        free.argtypes, begin.argtypes = (address,), (address, address, address, ctypes.c_char_p, address)
        self.state.context = new()
        if not self.state.context:
            raise MemoryError("no cipher context")
        weakref.finalize(self, free, self.state.context).atexit = False  # a thread may still read at exit
        if begin(self.state.context, cipher(), None, key, None) != 1:
            raise MemoryError("no cipher context")

    def bind_buffers(self, buffer: bytearray, other: bytearray, fixed: bytes) -> None:
        """Set `buffer` for the socket's bytes, `other`, as large as the largest packet, and `fixed`, every nonce's start."""
        state = self.state
        state.buffer, state.room, state.other = _address_of(buffer), len(buffer), _address_of(other)
        state.largest, state.patience = len(other) - 64, int(PATIENCE * 1000)
        state.fixed[:] = fixed

    def aim_at_slab(self, slab: bytearray, channel: int, together: int) -> None:
        """Let data of `channel` go to `slab`. A wait for more ends when `together` bytes have come, or all it needs."""
        self.state.slab, self.state.slab_room, self.state.channel = _address_of(slab), len(slab), channel
        self.state.together = together

    def read_packets(self) -> int:
        self.state.packets = self.state.wire = 0
        return int(self._code.tm_read_packets(ctypes.byref(self.state)))


def packet_reader(engine: Any, key: bytes) -> PacketReader | None:
    """Return a reader; None where C cannot be built or the library lacks this cipher."""
    code, crypto = _load_library(), load_libcrypto()
    if code is None or crypto is None or len(key) not in _CIPHERS:
        return None
    try:
        return PacketReader(code, crypto, engine, key)
    except (MemoryError, AttributeError):
        return None


def _address_of(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@lru_cache(maxsize=1)
def _load_library() -> ctypes.CDLL | None:
    return load_library("tidemark.stores.ssh.connection", "packets.c")


_TCP_INFO = 11
_SHORT = struct.Struct("=I")
_LONG = struct.Struct("=Q")
_MIN_RTT, _OUT_OF_ORDER, _SENT_AGAIN, _ACKED, _RECEIVED = 148, 224, 100, 120, 128  # offsets


class TcpInfo(NamedTuple):
    """The kernel's data about a connection. `lost`: packets that came out of order plus packets sent again."""

    round_trip: float  # seconds, the minimum so far
    lost: int
    acknowledged: int  # bytes that the other end has received
    received: int  # bytes, with those of incomplete packets


def tcp_info(sock: socket.socket | None) -> TcpInfo:
    """Read the kernel's data about `sock`. Zeros where it has none or the connection is closed."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256) if sock is not None else b""
    except OSError:
        told = b""

    def field(kind: struct.Struct, at: int) -> int:
        return int(kind.unpack_from(told, at)[0]) if len(told) >= at + kind.size else 0

    return TcpInfo(
        field(_SHORT, _MIN_RTT) / 1e6,
        field(_SHORT, _OUT_OF_ORDER) + field(_SHORT, _SENT_AGAIN),
        field(_LONG, _ACKED),
        field(_LONG, _RECEIVED),
    )
