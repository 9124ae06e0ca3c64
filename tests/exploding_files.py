"""TsFiles that are sound and small and need more time or memory than any process has: what a limit must end.

Written by hand (docs/formats/tsfile.md); V3, one device `root.sg.big` with one INT64 series `s`.
"""

from __future__ import annotations

import struct

from tests.unit.tsfiles.handmade import INT64, HandmadeFile, string, uvarint

DEVICE, SERIES = "root.sg.big", "s"
_RLE, _SEVERAL_PAGES = 2, 1


def many_chunks(count: int) -> bytes:
    """An index of `count` chunks, each of one page of one point: far more bytes in memory than in the file."""
    chunk = _chunk([_page(0, 1)])
    places = b"".join(struct.pack(">q", _first_chunk() + n * len(chunk)) + _statistics(1, 0, 0) for n in range(count))
    return _file(chunk * count, _entry(_statistics(count, 0, 0), places, several=True))


def many_points(pages: int, points: int) -> bytes:
    """Pages of some hundred bytes with `points` points each: their times in one step, their values in one run."""
    body = [_page(number * points, points) for number in range(pages)]
    return _of_chunk(body, pages * points)


def many_pages(count: int) -> bytes:
    """A chunk of `count` pages of one point each, the last time first: in that order they are read one by one."""
    return _of_chunk([_page(number, 1) for number in reversed(range(count))], count)


def _of_chunk(pages: list[bytes], points: int) -> bytes:
    place = struct.pack(">q", _first_chunk())
    return _file(_chunk(pages), _entry(_statistics(points, 0, points - 1), place, several=False))


def _page(start: int, points: int) -> bytes:
    """Times `start`, `start` + 1 …: one pack of differences of no bits; values: one run of ones."""
    times = struct.pack(">iiqq", points - 1, 0, 1, start)
    run = b"\x01" + uvarint(points << 1) + b"\x01"
    data = uvarint(len(times)) + times + uvarint(len(run)) + run
    return uvarint(len(data)) * 2 + _statistics(points, start, start + points - 1) + data


def _statistics(count: int, start: int, end: int) -> bytes:
    return uvarint(count) + struct.pack(">qq", start, end) + bytes(40)


def _chunk(pages: list[bytes]) -> bytes:
    body = b"".join(pages)
    return bytes([_SEVERAL_PAGES]) + string(SERIES) + uvarint(len(body)) + bytes([INT64, 0, _RLE]) + body


def _entry(statistics: bytes, places: bytes, several: bool) -> bytes:
    return bytes([several]) + string(SERIES) + bytes([INT64]) + uvarint(len(places)) + statistics + places


def _group() -> bytes:
    return b"TsFile\x03\x00" + string(DEVICE)


def _first_chunk() -> int:
    return len(_group())


def _file(chunk: bytes, entry: bytes) -> bytes:
    chunks = _group() + chunk
    index = chunks + b"\x02" + entry
    node = HandmadeFile._node([(SERIES, len(chunks) + 1)], len(index), 3)
    metadata = (
        HandmadeFile._node([(DEVICE, len(index))], len(index) + len(node), 1) + struct.pack(">q", len(chunks)) + b"\x00"
    )
    return index + node + metadata + struct.pack(">i", len(metadata)) + b"TsFile"
