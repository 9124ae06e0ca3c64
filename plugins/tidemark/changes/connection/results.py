"""The rows of a long answer as the server sends them, many at a time: where each value lies, and no object a value.

The form is that of the text protocol ("Text Resultset" of MySQL's internals manual): a packet a row, in it each value behind
its length. An answer ends with a packet that begins with 0xfe, or with an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.changes.binlog.batches import kernels
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.packets import explain_refusal
from tidemark.errors import CorruptionError, UnreachableError

READ_BYTES = 1 << 20
_HEAD, _LARGEST = 4, 0xFFFFFF
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF
_LEAST_LARGE = 9
"""Bytes of the smallest packet that begins with 0xfe and is a row."""
_SIZES = {0xFC: 2, 0xFD: 3, 0xFE: 8}


@dataclass(frozen=True)
class Values:
    """Rows of an answer. Value `c` of row `r` is `lengths[c, r]` bytes of `data` from `starts[c, r]` on; -1: null."""

    data: bytes
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def rows(self) -> int:
        return int(self.starts.shape[1])

    def value(self, column: int, row: int) -> bytes | None:
        start, length = int(self.starts[column, row]), int(self.lengths[column, row])
        return None if length < 0 else self.data[start : start + length]


def ask_values(server: Server, question: str) -> Iterator[Values]:
    """The rows that answer an SQL statement, a megabyte or more at a time, each column without a gap in memory.

    Nothing else can be asked before the last one; who leaves early closes it. Raises as `Server.ask`, at any time.
    """
    width, stream = server.begin_answer(question)
    waiting = bytearray()
    found: list[Values] = []
    ended = False
    try:
        while not ended:
            try:
                piece = stream.read1(READ_BYTES)
            except OSError as broken:
                raise UnreachableError(f"{server.name} is not reached: {broken}", subject=server.name) from broken
            if not piece:
                raise UnreachableError(f"{server.name} is not reached: the connection is closed", subject=server.name)
            waiting += piece
            while not ended and _has_packet(waiting):
                values, used = walk_rows(bytes(waiting), width, server.name)
                if values is None:
                    values, used, ended = _take_special(waiting, width, server.name)
                found += [values] if values is not None else []
                del waiting[:used]
                if not used:
                    break
            if ended or sum(len(values.data) for values in found) >= READ_BYTES:
                if found:
                    yield _join(found)
                found = []
    finally:
        if not ended:
            server.close()


def _has_packet(waiting: bytearray) -> bool:
    return len(waiting) >= _HEAD and len(waiting) >= _HEAD + int.from_bytes(waiting[:3], "little")


def walk_rows(data: bytes, width: int, peer: str) -> tuple[Values | None, int]:
    """The rows of one packet each at the beginning of `data`, and their bytes; None where there is none."""
    library = kernels()
    if library is None:
        return _walk_slowly(data, width, peer)
    most = len(data) // (_HEAD + width) + 1
    starts, lengths = np.empty((width, most), np.int64), np.empty((width, most), np.int64)
    used = ctypes.c_uint64()
    place = ctypes.addressof(used)
    rows = library.tm_walk_answer(data, len(data), width, most, starts.ctypes.data, lengths.ctypes.data, place)
    if rows < 0:
        raise _no_row(peer)
    return (Values(data, starts[:, :rows], lengths[:, :rows]) if rows else None), used.value


def _walk_slowly(data: bytes, width: int, peer: str) -> tuple[Values | None, int]:
    starts: list[int] = []
    lengths: list[int] = []
    at = 0
    while at + _HEAD < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        place, behind = at + _HEAD, at + _HEAD + size
        is_row = 0 < size < _LARGEST and behind <= len(data) and data[place] != _ERROR
        if not is_row or (data[place] == _END and size < _LEAST_LARGE):
            break
        _read_row(data, place, behind, width, (starts, lengths), peer)
        at = behind
    return (_make_values(data, width, starts, lengths) if starts else None), at


def _take_special(waiting: bytearray, width: int, peer: str) -> tuple[Values | None, int, bool]:
    """(a row of more than one packet, the bytes of what comes first, whether the answer ends with it)."""
    pieces, at, size = [], 0, _LARGEST
    while size == _LARGEST:
        size = int.from_bytes(waiting[at : at + 3], "little")
        behind = at + _HEAD + size
        if at + _HEAD > len(waiting) or behind > len(waiting):
            return None, 0, False
        pieces.append(bytes(waiting[at + _HEAD : behind]))
        at = behind
    data = b"".join(pieces)
    if data[:1] == bytes([_ERROR]):
        raise _refusal(data, peer)
    if len(data) < _LARGEST:
        if data[:1] != bytes([_END]):
            raise _no_row(peer)
        return None, at, True
    starts: list[int] = []
    lengths: list[int] = []
    _read_row(data, 0, len(data), width, (starts, lengths), peer)
    return _make_values(data, width, starts, lengths), at, False


def _read_row(data: bytes, place: int, behind: int, width: int, found: tuple[list[int], list[int]], peer: str) -> None:
    starts, lengths = found
    try:
        for _ in range(width):
            length = data[place]
            place += 1
            if length >= _NULL:
                if length == _NULL:
                    starts.append(place)
                    lengths.append(-1)
                    continue
                size = _SIZES[length]
                length = int.from_bytes(data[place : place + size], "little")
                place += size
            starts.append(place)
            lengths.append(length)
            place += length
    except LookupError:
        place = -1
    if place != behind:
        raise _no_row(peer)


def _make_values(data: bytes, width: int, starts: list[int], lengths: list[int]) -> Values:
    def by_column(found: list[int]) -> Any:
        return np.ascontiguousarray(np.array(found, np.int64).reshape(-1, width).T)

    return Values(data, by_column(starts), by_column(lengths))


def _join(found: list[Values]) -> Values:
    if len(found) == 1:
        return found[0]
    begins = np.cumsum([0, *(len(values.data) for values in found[:-1])])
    starts = [values.starts + begin for values, begin in zip(found, begins, strict=True)]
    return Values(
        b"".join(values.data for values in found),
        np.concatenate(starts, axis=1),
        np.concatenate([values.lengths for values in found], axis=1),
    )


def _no_row(peer: str) -> CorruptionError:
    return CorruptionError(f"{peer} answers with a row that is none", subject=peer)


def _refusal(packet: bytes, peer: str) -> Exception:
    code = int.from_bytes(packet[1:3], "little")
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return explain_refusal(code, text.decode("utf-8", "replace"), peer)
