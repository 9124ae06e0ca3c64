"""The rows of a long answer as the server sends them, many at a time: where each value lies, and no object a value.

The form is that of the text protocol ("Text Resultset" of MySQL's internals manual): a packet a row, in it each value behind
its length. An answer ends with a packet that begins with 0xfe, or with an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.changes.connection.login import Server
from tidemark.changes.connection.packets import explain_refusal
from tidemark.errors import CorruptionError, UnreachableError

READ_BYTES = 1 << 20
_HEAD, _LARGEST = 4, 0xFFFFFF
_NULL, _END, _ERROR = 0xFB, 0xFE, 0xFF
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
    """The rows that answer an SQL statement. Nothing else can be asked before the last one; who leaves early closes it.

    Raises as `Server.ask`, at any time.
    """
    width, stream = server.begin_answer(question)
    waiting = bytearray()
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
            while len(waiting) >= _HEAD:
                found, used, ended = _walk(waiting, width, server.name)
                if found is not None:
                    yield found
                del waiting[:used]
                if ended or not used:
                    break
    finally:
        if not ended:
            server.close()


def _walk(waiting: bytearray, width: int, peer: str) -> tuple[Values | None, int, bool]:
    """(the whole rows at the beginning, their bytes, whether the answer ends behind them)."""
    starts: list[int] = []
    lengths: list[int] = []
    at, end = 0, len(waiting)
    ended = False
    while at + _HEAD <= end:
        size = int.from_bytes(waiting[at : at + 3], "little")
        behind = at + _HEAD + size
        if size == _LARGEST:
            return _join(waiting, width, peer) if at == 0 else (_take(waiting, at, width, starts, lengths), at, False)
        if behind > end:
            break
        place = at + _HEAD
        first = waiting[place] if size else _END
        if first == _ERROR:
            raise _refusal(bytes(waiting[place:behind]), peer)
        if first == _END and size < 9:
            return _take(waiting, at, width, starts, lengths), behind, True
        _read_row(waiting, place, behind, width, (starts, lengths), peer)
        at = behind
    return _take(waiting, at, width, starts, lengths), at, ended


def _read_row(
    data: bytes | bytearray, place: int, behind: int, width: int, found: tuple[list[int], list[int]], peer: str
) -> None:
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
        raise CorruptionError(f"{peer} answers with a row that is none", subject=peer)


def _join(waiting: bytearray, width: int, peer: str) -> tuple[Values | None, int, bool]:
    """A row that takes more than one packet, if it is there wholly."""
    pieces, at, size = [], 0, _LARGEST
    while size == _LARGEST:
        size = int.from_bytes(waiting[at : at + 3], "little")
        behind = at + _HEAD + size
        if at + _HEAD > len(waiting) or behind > len(waiting):
            return None, 0, False
        pieces.append(waiting[at + _HEAD : behind])
        at = behind
    data = b"".join(pieces)
    starts: list[int] = []
    lengths: list[int] = []
    _read_row(data, 0, len(data), width, (starts, lengths), peer)
    return _take(data, len(data), width, starts, lengths), at, False


def _take(data: bytes | bytearray, used: int, width: int, starts: list[int], lengths: list[int]) -> Values | None:
    if not starts:
        return None

    def by_column(found: list[int]) -> Any:
        return np.ascontiguousarray(np.array(found, np.int64).reshape(-1, width).T)

    return Values(bytes(data[:used]), by_column(starts), by_column(lengths))


def _refusal(packet: bytes, peer: str) -> Exception:
    code = int.from_bytes(packet[1:3], "little")
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return explain_refusal(code, text.decode("utf-8", "replace"), peer)
