"""Read numbers and strings out of the bytes of an event, and decompress, with every bound checked.

Integers are little-endian. `read_lenenc` is the packed integer of MySQL's protocol. Everything that is wrong raises a
CorruptionError which names the thing and the place. No length is believed before the bytes are there.
"""

from __future__ import annotations

import zlib

from tidemark.errors import CorruptionError, UnsupportedError

LARGEST = 1 << 30
"""Bytes of one event, packed or unpacked: the servers' own limit of a packet."""

_ZLIB_RATIO = 1032  # deflate cannot do better


class Cursor:
    """A position in `data`, of which what begins at `end` is left out. `what` names the thing in errors."""

    __slots__ = ("data", "end", "position", "what")

    def __init__(self, data: bytes, what: str, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.end = len(data) if end is None else end
        self.position = position
        self.what = what

    def error(self, problem: str) -> CorruptionError:
        return CorruptionError(f"{self.what}: {problem} (byte {self.position})", subject=self.what)

    def bytes_left(self) -> int:
        return self.end - self.position

    def skip_bytes(self, length: int) -> None:
        if not 0 <= length <= self.end - self.position:
            raise self.error(f"{length} bytes announced where {self.bytes_left()} are left")
        self.position += length

    def read_exactly(self, length: int) -> bytes:
        start = self.position
        self.skip_bytes(length)
        return self.data[start : self.position]

    def read_rest(self) -> bytes:
        return self.read_exactly(self.bytes_left())

    def read_uint(self, size: int) -> int:
        start = self.position
        if size > self.end - start:  # without a call: numbers are what is read most
            raise self.error(f"a number of {size} bytes where {self.bytes_left()} are left")
        self.position = start + size
        return int.from_bytes(self.data[start : start + size], "little")

    def read_lenenc(self) -> int:
        first = self.read_uint(1)
        if first < 251:
            return first
        if first in (251, 255):
            raise self.error(f"{first} where a length must begin")
        return self.read_uint({252: 2, 253: 3, 254: 8}[first])

    def read_lenenc_bytes(self) -> bytes:
        return self.read_exactly(self.read_lenenc())

    def read_name(self, length: int) -> str:
        return decode_name(self.read_exactly(length))

    def read_varlen(self) -> int:
        """An integer of `mysql::serialization`: the first byte ends in as many ones as bytes follow."""
        first = self.read_uint(1)
        following = next((bit for bit in range(8) if not first >> bit & 1), 8)
        value = self.read_uint(following)
        return value if following == 8 else (value << 8 | first) >> (following + 1)

    def read_signed_varlen(self) -> int:
        value = self.read_varlen()
        return ~(value >> 1) if value & 1 else value >> 1


def decode_name(data: bytes) -> str:
    """A name, or a text for people. Bytes that are no UTF-8 stay visible."""
    return data.decode("utf-8", "backslashreplace")


def inflate(data: bytes, what: str) -> bytes:
    """What MariaDB compressed in an event: a byte with the size of the length, the length (big-endian), then zlib."""
    if not data or data[0] & 0xF0 != 0x80 or not 1 <= data[0] & 7 <= 4:
        raise UnsupportedError(f"{what} is compressed in an unknown way", subject=what)
    begin = 1 + (data[0] & 7)
    return inflate_zlib(data[begin:], int.from_bytes(data[1:begin], "big"), what, zlib.MAX_WBITS)


def inflate_zlib(data: bytes, size: int, what: str, bits: int) -> bytes:
    """Decompress to exactly `size` bytes."""
    if size > min(LARGEST, len(data) * _ZLIB_RATIO):
        raise CorruptionError(f"{what}: {size} bytes announced in {len(data)} compressed ones", subject=what)
    try:
        stream = zlib.decompressobj(bits)
        unpacked = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptionError(f"{what}: {error}", subject=what) from error
    if len(unpacked) != size or not stream.eof:
        raise CorruptionError(f"{what} does not unpack to the {size} bytes announced", subject=what)
    return unpacked
