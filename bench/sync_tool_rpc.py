"""What little of IoTDB 0.12's client protocol the benchmark needs: say a statement, ask a count, insert a tablet.

Thrift's binary protocol over framed transport, strict form. Field numbers and types as in the `rpc.thrift` of 0.12;
answers are read without it, since the protocol says each field's type. The official client of that time does not install
beside today's packages.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

_STOP, _BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64, _STRING, _STRUCT, _MAP, _SET, _LIST = (
    0,
    2,
    3,
    4,
    6,
    8,
    10,
    11,
    12,
    13,
    14,
    15,
)
_FIXED = {_BOOL: ">b", _BYTE: ">b", _DOUBLE: ">d", _I16: ">h", _I32: ">i", _I64: ">q"}
_CALL, _REPLY = 0x80010001, 0x80010002
_PROTOCOL_V3 = 2
_SUCCESS = (200, 400)  # 400: needs redirection, which is no failure
DOUBLE = 4


class Field(NamedTuple):
    number: int
    kind: int
    value: Any


class Session:
    """A session of user root. RuntimeError where the server refuses, OSError where it is gone."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        login = [Field(2, _STRING, b"UTC"), Field(3, _STRING, b"root"), Field(4, _STRING, b"root")]
        self.id: int = self._ask("openSession", [Field(1, _I32, _PROTOCOL_V3), *login])[3]
        self.statement: int = self._call("requestStatementId", [Field(1, _I64, self.id)])

    def close(self) -> None:
        self.socket.close()

    def execute(self, sql: str) -> dict[int, Any]:
        words = [Field(1, _I64, self.id), Field(2, _STRING, sql.encode()), Field(3, _I64, self.statement)]
        return self._ask("executeStatement", [*words, Field(4, _I32, 1_000)])

    def count(self, pattern: str) -> int:
        """The points of all series below `pattern`; 0 where there is no series."""
        answer = self.execute(f"select count(*) from {pattern}")
        columns: list[bytes] = answer.get(7, {}).get(2, [])
        return sum(struct.unpack(">q", column)[0] for column in columns if column)

    def insert(self, device: str, measurements: Sequence[str], times: bytes, values: bytes) -> None:
        """A tablet of doubles. `times` and `values` are big-endian, the values column after column."""
        names = (_STRING, [name.encode() for name in measurements])
        tablet = [Field(1, _I64, self.id), Field(2, _STRING, device.encode()), Field(3, _LIST, names)]
        tablet += [Field(4, _STRING, values), Field(5, _STRING, times)]
        tablet += [Field(6, _LIST, (_I32, [DOUBLE] * len(measurements))), Field(7, _I32, len(times) // 8)]
        self._ask("insertTablet", tablet)

    def _ask(self, method: str, request: Sequence[Field]) -> dict[int, Any]:
        """A call whose argument is one request and whose answer is a status or holds one as its first field."""
        answer: dict[int, Any] = self._call(method, [Field(1, _STRUCT, request)])
        status = answer[1] if isinstance(answer[1], dict) else answer
        if status[1] not in _SUCCESS:
            raise RuntimeError(f"{method}: {status[1]} {status.get(2, b'').decode(errors='replace')}")
        return answer

    def _call(self, method: str, arguments: Sequence[Field]) -> Any:
        name = method.encode()
        message = struct.pack(">Ii", _CALL, len(name)) + name + struct.pack(">i", 0) + _packed(_STRUCT, arguments)
        self.socket.sendall(struct.pack(">i", len(message)) + message)
        answer = _Reader(self._exactly(struct.unpack(">i", self._exactly(4))[0]))
        kind = answer.number(">I")
        answer.bytes()  # the method's name
        answer.number(">i")
        result = answer.struct()
        if kind != _REPLY or 0 not in result:
            raise RuntimeError(f"{method}: the server answered {result}")
        return result[0]

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.socket.recv(size - len(found))
            if not piece:
                raise ConnectionError("the server closed the connection")
            found += piece
        return bytes(found)


def _packed(kind: int, value: Any) -> bytes:
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == _STRING:
        text: bytes = value
        return struct.pack(">i", len(text)) + text
    if kind == _LIST:
        inner, items = value
        return struct.pack(">bi", inner, len(items)) + b"".join(_packed(inner, item) for item in items)
    fields = (struct.pack(">bh", field.kind, field.number) + _packed(field.kind, field.value) for field in value)
    return b"".join(fields) + bytes([_STOP])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> Any:
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def bytes(self) -> bytes:
        size: int = self.number(">i")
        self.at += size
        return self.data[self.at - size : self.at]

    def struct(self) -> dict[int, Any]:
        """Field number → value."""
        found = {}
        while (kind := self.number(">b")) != _STOP:
            number = self.number(">h")
            found[number] = self.value(kind)
        return found

    def value(self, kind: int) -> Any:
        if kind in _FIXED:
            return self.number(_FIXED[kind])
        if kind == _STRING:
            return self.bytes()
        if kind == _STRUCT:
            return self.struct()
        if kind == _MAP:
            key, inner, count = self.number(">b"), self.number(">b"), self.number(">i")
            return {self.value(key): self.value(inner) for _ in range(count)}
        if kind in (_LIST, _SET):
            inner, count = self.number(">b"), self.number(">i")
            return [self.value(inner) for _ in range(count)]
        raise RuntimeError(f"the server answered with a field of kind {kind}")
