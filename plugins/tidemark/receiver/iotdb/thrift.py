"""The address of an IoTDB, and its client protocol: Thrift's binary protocol, strict form, framed.

Implements only what Tidemark uses. `Server` is address and login. A call is a method's name and numbered fields. A reply
states the type of each of its fields, so no interface file is needed, and one client serves 0.12 as well as 2.x
(docs/decisions/0013).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Server:
    """The address of an IoTDB and the login. `password` is never shown."""

    host: str
    port: int
    user: str
    password: str

    @classmethod
    def from_url(cls, url: str, password: str, user: str = "root") -> Server:
        """From `iotdb://user@host:port` (checked by the settings). `user`: if the address has none."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 6667, parts.username or user or "root", password)

    @property
    def name(self) -> str:
        """The server's name in the ledger and in messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Server({self.user}@{self.name})"


STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = (0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15)
_FIXED = {BOOL: ">b", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
_CALL, _REPLY = 0x80010001, 0x80010002
_LONGEST_ANSWER = 1 << 30  # bytes; a larger frame is no answer of IoTDB's
_MOST_ITEMS = 1 << 24


class Field(NamedTuple):
    """A field of a request: its number, its type, its value."""

    number: int
    kind: int
    value: Any


class WireError(Exception):
    """The reply does not follow this protocol: the peer is no IoTDB, or the data was damaged."""


class Wire:
    """One connection. `call` raises OSError if it is broken, and WireError for bytes that are no reply."""

    def __init__(self, host: str, port: int, connect_seconds: float, answer_seconds: float) -> None:
        self._socket = socket.create_connection((host, port), timeout=connect_seconds)
        self._socket.settimeout(answer_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, arguments: Sequence[Field]) -> Any:
        """Call a method and return its result: a number, or a struct as {field number: value} with strings as bytes."""
        self._socket.sendall(encode_call(method, arguments))
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        if not 0 < size <= _LONGEST_ANSWER:
            raise WireError(f"{method}: an answer of {size} bytes")
        return decode_reply(method, self._receive_exactly(size))

    def _receive_exactly(self, size: int) -> bytes:
        found = bytearray(size)
        view, at = memoryview(found), 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if not count:
                raise ConnectionResetError("the server closed the connection")
            at += count
        return bytes(found)


def encode_call(method: str, arguments: Sequence[Field]) -> bytes:
    """Return the frame of a call."""
    name = method.encode()
    message = struct.pack(">Ii", _CALL, len(name)) + name + struct.pack(">i", 0) + _encode_value(STRUCT, arguments)
    return struct.pack(">i", len(message)) + message


def decode_reply(method: str, frame: bytes) -> Any:
    """Decode a frame without its length. WireError if it is no reply."""
    reader = _Reader(frame)
    try:
        kind = reader.read_number(">I")
        reader.read_binary()  # the method's name
        reader.read_number(">i")
        result = reader.read_struct()
    except (struct.error, IndexError, RecursionError) as torn:
        raise WireError(f"{method}: the answer cannot be read: {torn}") from torn
    if kind != _REPLY or 0 not in result:
        raise WireError(f"{method}: the server answered {str(result)[:200]}")
    return result[0]


def _encode_value(kind: int, value: Any) -> bytes:
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == STRING:
        text: bytes = value
        return struct.pack(">i", len(text)) + text
    if kind == LIST:
        inner, items = value
        return struct.pack(">bi", inner, len(items)) + b"".join(_encode_value(inner, item) for item in items)
    if kind == MAP:
        words: Mapping[bytes, bytes] = value
        pairs = (_encode_value(STRING, word) for pair in words.items() for word in pair)
        return struct.pack(">bbi", STRING, STRING, len(words)) + b"".join(pairs)
    fields = (struct.pack(">bh", field.kind, field.number) + _encode_value(field.kind, field.value) for field in value)
    return b"".join(fields) + bytes([STOP])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read_number(self, form: str) -> Any:
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def read_binary(self) -> bytes:
        size: int = self.read_number(">i")
        if size < 0 or self.at + size > len(self.data):
            raise IndexError(f"a text of {size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def read_struct(self) -> dict[int, Any]:
        """Return field number → value."""
        found = {}
        while (kind := self.read_number(">b")) != STOP:
            number = self.read_number(">h")
            found[number] = self.read_value(kind)
        return found

    def read_value(self, kind: int) -> Any:
        if kind in _FIXED:
            return self.read_number(_FIXED[kind])
        if kind == STRING:
            return self.read_binary()
        if kind == STRUCT:
            return self.read_struct()
        if kind == MAP:
            key, inner = self.read_number(">b"), self.read_number(">b")
            return dict(self._read_items(lambda: (self.read_value(key), self.read_value(inner))))
        if kind in (LIST, SET):
            inner = self.read_number(">b")
            return self._read_items(lambda: self.read_value(inner))
        raise IndexError(f"a field of kind {kind}")

    def _read_items(self, one: Callable[[], Any]) -> list[Any]:
        count: int = self.read_number(">i")
        if not 0 <= count <= _MOST_ITEMS:
            raise IndexError(f"{count} items")
        return [one() for _ in range(count)]
