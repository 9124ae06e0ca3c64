"""A channel's AES-GCM packets received and decrypted in C until a frame is whole, where that can be built.

At each packet of 32 KB Python takes as long as the decryption, and fights for the interpreter's lock (`packets.c`). The
cipher is that of the libcrypto which `hashlib` uses. Where there is none `packets` does the same, packet by packet.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import lru_cache
from typing import Any

from tidemark.native import libcrypto, library

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
    """Of one connection, for as long as one key is used. `engine`: paramiko's object for that key.

    Before `read`: `state.at` and `.to` of what is in `buffer`, `.counter`, `.end`, `.need`, `.most`, `.socket`. After it
    they, and `.packets`, `.wire`, `.error`, tell what was done; where OTHER is the answer `other` begins with a message
    of `.other_size` bytes.
    """

    def __init__(self, code: ctypes.CDLL, crypto: ctypes.CDLL, engine: Any, key: bytes) -> None:
        self.engine = engine
        self._code = code
        self.state = _Reader(*(ctypes.cast(crypto[name], ctypes.c_void_p) for name in _CALLS))
        # Functions of our own, by index: attributes of a library are every thread's, and another may be setting them up.
        new, free, begin, cipher = (crypto[name] for name in (*_CONTEXT, _CIPHERS[len(key)]))
        address = ctypes.c_void_p
        new.restype, free.restype, cipher.restype = address, None, address
        free.argtypes, begin.argtypes = (address,), (address, address, address, ctypes.c_char_p, address)
        self.state.context = new()
        if not self.state.context:
            raise MemoryError("no cipher context")
        weakref.finalize(self, free, self.state.context).atexit = False  # a thread may still read then
        if begin(self.state.context, cipher(), None, key, None) != 1:
            raise MemoryError("no cipher context")

    def bind(self, buffer: bytearray, other: bytearray, fixed: bytes) -> None:
        """`buffer` for what the socket has, `other` as large as the largest packet, `fixed`: how every nonce begins."""
        state = self.state
        state.buffer, state.room, state.other = _address(buffer), len(buffer), _address(other)
        state.largest, state.patience = len(other) - 64, int(PATIENCE * 1000)
        state.fixed[:] = fixed

    def aim(self, slab: bytearray, channel: int, together: int) -> None:
        """Data of `channel` goes to `slab`. A wait for more of it is over when `together` bytes came, or all it needs."""
        self.state.slab, self.state.slab_room, self.state.channel = _address(slab), len(slab), channel
        self.state.together = together

    def read(self) -> int:
        self.state.packets = self.state.wire = 0
        return int(self._code.tm_read_packets(ctypes.byref(self.state)))


def packet_reader(engine: Any, key: bytes) -> PacketReader | None:
    """None where C is not to be had, or the library does not do this cipher."""
    code, crypto = _library(), libcrypto()
    if code is None or crypto is None or len(key) not in _CIPHERS:
        return None
    try:
        return PacketReader(code, crypto, engine, key)
    except (MemoryError, AttributeError):
        return None


def _address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    return library("tidemark.stores", "packets.c")
