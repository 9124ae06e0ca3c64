"""TsFiles written by hand, byte for byte from docs/formats/tsfile.md, for shapes that no writer at hand makes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TIME, VALUE, PLAIN = 0x80, 0x40, 0
INT64, VECTOR = 2, 6


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def string(text: str | None) -> bytes:
    """Length as varint, -1 for null."""
    return b"\x01" if text is None else uvarint(len(text.encode()) << 1) + text.encode()


def int_string(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()


def longs(values: list[int]) -> bytes:
    return struct.pack(f">{len(values)}q", *values)


def statistics(kind: int, times: list[int]) -> bytes:
    """Count and interval; the values of smallest, largest, first, last and sum are not looked at by readers of points."""
    head = uvarint(len(times)) + struct.pack(">qq", *((min(times), max(times)) if times else (2**63 - 1, -(2**63))))
    return head + (bytes(40) if kind == INT64 else b"")


@dataclass
class Chunk:
    """A chunk of INT64 in PLAIN: `pages` of (times, values), values None for a page without any; rows of an aligned
    page without a value are None in the list."""

    name: str
    column: int
    pages: list[tuple[list[int], list[int | None] | None]]
    offset: int = 0

    @property
    def kind(self) -> int:
        return VECTOR if self.column == TIME else INT64

    def times(self) -> list[int]:
        """The times of what counts in the statistics: rows of the time column, values that are not null otherwise."""
        if self.column == TIME:
            return [time for times, _ in self.pages for time in times]
        return [
            t
            for times, values in self.pages
            for t, v in zip(times, values or [None] * len(times), strict=True)
            if v is not None
        ]

    def data(self) -> bytes:
        several = len(self.pages) > 1
        body = b""
        for times, values in self.pages:
            if self.column != TIME and values is None:
                body += b"\x00"
                continue
            page = self._page(times, values or [])
            size = uvarint(len(page)) * 2  # as long as it is: not compressed
            counted = (
                times if self.column == TIME else [t for t, v in zip(times, values or [], strict=True) if v is not None]
            )
            body += size + (statistics(self.kind, counted) if several else b"") + page
        head = bytes([(1 if several else 5) | self.column]) + string(self.name) + uvarint(len(body))
        return head + bytes([self.kind, 0, 0]) + body

    def _page(self, times: list[int], values: list[int | None]) -> bytes:
        if self.column == TIME:
            return longs(times)
        if self.column == PLAIN:
            return uvarint(8 * len(times)) + longs(times) + longs([value or 0 for value in values])
        bits = "".join("0" if value is None else "1" for value in values)
        bits += "0" * (-len(bits) % 8)
        bitmap = int(bits, 2).to_bytes(len(bits) // 8, "big")
        return struct.pack(">i", len(values)) + bitmap + longs([value for value in values if value is not None])


@dataclass
class HandmadeFile:
    """A V3 file of one device; `groups` are its chunk groups in order."""

    device: str
    groups: list[list[Chunk]] = field(default_factory=list)

    def data(self) -> bytes:
        out = bytearray(b"TsFile\x03")
        series: dict[str, list[Chunk]] = {}
        for group in self.groups:
            out += b"\x00" + string(self.device)
            for chunk in group:
                chunk.offset = len(out)
                out += chunk.data()
                series.setdefault(chunk.name, []).append(chunk)
        chunks_end = len(out)
        out += b"\x02"
        leaves = []
        for name in sorted(series):
            leaves.append((name, len(out)))
            out += self._series(name, series[name])
        inner = self._node(leaves, len(out), 3)
        inner_at = len(out)
        out += inner
        metadata = self._node([(self.device, inner_at)], len(out), 1) + struct.pack(">q", chunks_end) + b"\x00"
        return bytes(out) + metadata + struct.pack(">i", len(metadata)) + b"TsFile"

    @staticmethod
    def _series(name: str, chunks: list[Chunk]) -> bytes:
        several = len(chunks) > 1
        kind = chunks[0].kind
        body = b"".join(
            struct.pack(">q", chunk.offset) + (statistics(kind, chunk.times()) if several else b"") for chunk in chunks
        )
        all_times = sorted(time for chunk in chunks for time in chunk.times())
        head = bytes([chunks[0].column | several]) + string(name) + bytes([kind]) + uvarint(len(body))
        return head + statistics(kind, all_times) + body

    @staticmethod
    def _node(children: list[tuple[str, int]], end: int, kind: int) -> bytes:
        body = b"".join(string(name) + struct.pack(">q", at) for name, at in children)
        return uvarint(len(children)) + body + struct.pack(">q", end) + bytes([kind])
