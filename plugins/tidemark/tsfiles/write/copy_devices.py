"""Devices that are copied whole: all their chunks and their entries in the index as they stand, without an object for each.

For merges, where most devices are in one file alone: what a copy costs then is reading and writing its bytes. Needs the
compiled readers of entries and headers (`kernels_index.c`). What they do not take (no compiler, sparse columns, chunks that
overlap, names that are not canonical, …) is copied stretch by stretch or decoded, by those who read every form.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from tidemark.tsfiles.decode.compression import can_decode
from tidemark.tsfiles.decode.rare import UNSURE
from tidemark.tsfiles.devices import measurement_name
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.series import PLAIN_SERIES, TIME_COLUMN, VALUE_COLUMN
from tidemark.tsfiles.points.codes import COMPRESSIONS, DATA_TYPES, ENCODINGS, Compression, DataType, Encoding
from tidemark.tsfiles.points.kernels import kernels

_TOGETHER = 32 << 20  # bytes of a device that are read at once, at most
_SPREAD = 1 << 12, 32  # bytes from its first chunk to its last at most, and more of them a point: more is not its own
_SEVERAL = 0x3F  # bits of an entry's first byte: whether the series has several chunks
_SHORT_NAME = 64  # bytes, with the one of its length
_MOST_SERIES = 256  # what one node of the index holds


class Row(NamedTuple):
    """A series or one of its chunks, as `tm_series` gives it. `_at`: places in the entries."""

    of_type: int
    flags: int  # the first byte of the entry; -1: a chunk of a series of several
    name_at: int
    name_bytes: int
    points: int
    first: int
    last: int
    offset: int
    offset_at: int


class Terms(NamedTuple):
    """When a device may be copied whole: chunks of at least `rows` times (or one alone), all in one catalog partition."""

    rows: int
    interval: int


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """A device by its `entries` in the index of one file. `chunks`: their rows in file order; `types` by measurement."""

    entries: bytes
    chunks: Sequence[Row]
    types: tuple[tuple[str, DataType], ...]
    aligned: bool
    points: int
    partition: int


Piece = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class CopiedDevice:
    """Its bytes as the file has them from byte `base` on. `pieces`: (begin, end, whether a chunk group begins), the parts
    of `data` that go into another file."""

    device: WholeDevice
    data: bytes
    base: int
    pieces: Sequence[Piece]


def find_whole_device(entries: bytes, of_table: bool, terms: Terms) -> WholeDevice | None:
    """What the index of a file says of a device, whose series are all in `entries`; None where it is not copied whole."""
    compiled = kernels()
    found = _group_by_series([*map(Row._make, compiled.parse_series(entries))]) if compiled is not None else []
    if not found or len(found) > _MOST_SERIES or not all(_adds_up(rows) for rows in found):
        return None
    aligned = found[0][0].of_type == DataType.VECTOR
    types = _measurement_types(entries, [rows[0] for rows in found], of_table, aligned)
    columns = [rows[1:] or rows for rows in found]  # the chunks of each: a single one is in the row of its series
    leading = columns[:1] if aligned else columns
    if types is None or not all(_one_after_another(chunks, terms.rows) for chunks in leading):
        return None
    if aligned and not _side_by_side(columns):
        return None
    partition = min(chunks[0].first for chunks in leading) // terms.interval
    if max(chunks[-1].last for chunks in leading) // terms.interval != partition:
        return None
    chunks = sorted(itertools.chain.from_iterable(columns), key=attrgetter("offset"))
    points = sum(rows[0].points for rows in found[aligned:])
    return WholeDevice(entries, chunks, types, aligned, points, partition)


def read_whole_device(file: FileBytes, device: WholeDevice, chunks_end: int) -> CopiedDevice | None:
    """The device's chunks as they stand in the file; None where they are far apart or not as the index says.

    CorruptionError where the file is too short for them.
    """
    compiled, last = kernels(), device.chunks[-1]
    base = device.chunks[0].offset
    if compiled is None or base < 0 or last.offset - base > _SPREAD[0] + _SPREAD[1] * device.points:
        return None
    end = _find_chunk_end(file, last, chunks_end)
    if not base < end <= min(base + _TOGETHER, chunks_end):
        return None
    data = file.read(base, end - base)
    ends = compiled.find_chunk_ends(data, base, device.entries, device.chunks, device.aligned, _decodable_table())
    return CopiedDevice(device, data, base, _join_chunks(device, base, ends)) if ends else None


def _group_by_series(rows: Sequence[Row]) -> list[list[Row]]:
    """The row of each series, and behind it those of its chunks where it has several."""
    found: list[list[Row]] = []
    for row in rows:
        if row.flags < 0:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _adds_up(rows: Sequence[Row]) -> bool:
    """Whether a series has points, and just those of its chunks."""
    whole = rows[0]
    if not whole.flags & _SEVERAL:
        return whole.points > 0
    filled = [row for row in rows[1:] if row.points]
    if not filled or sum(row.points for row in filled) != whole.points:
        return False
    return min(row.first for row in filled) == whole.first and max(row.last for row in filled) == whole.last


def _measurement_types(
    entries: bytes, series: Sequence[Row], of_table: bool, aligned: bool
) -> tuple[tuple[str, DataType], ...] | None:
    """The measurements; None where there are none, or one is not under its canonical name or out of order."""
    found = []
    before = b""
    for place, row in enumerate(series):
        data = entries[row.name_at + 1 : row.name_at + row.name_bytes]
        if row.name_bytes > _SHORT_NAME or (place and before >= data):
            return None
        before = data
        if aligned and not place:
            if data:
                return None
            continue
        name = _canonical_name(data, of_table)
        if name is None or row.of_type == DataType.VECTOR:
            return None
        found.append((name, DATA_TYPES[row.of_type]))
    return tuple(found) or None


@lru_cache(maxsize=4096)
def _canonical_name(data: bytes, of_table: bool) -> str | None:
    """A measurement's name where it is the canonical one, and sorts as its bytes do (beyond U+FFFF Java sorts otherwise)."""
    try:
        name = data.decode()
    except UnicodeDecodeError:
        return None
    sorts = all(char < "\ud800" for char in name)
    return name if sorts and (of_table or measurement_name(name) == name) else None


def _one_after_another(chunks: Sequence[Row], least: int) -> bool:
    """Whether chunks follow each other in time and in the file, none too small to be copied but a single one."""
    if len(chunks) == 1:
        return chunks[0].points > 0
    apart = all(a.last < b.first and a.offset < b.offset for a, b in itertools.pairwise(chunks))
    return apart and all(row.points >= max(1, least) for row in chunks)


def _side_by_side(columns: Sequence[Sequence[Row]]) -> bool:
    """Whether each chunk of times (the first column) has one of every column between itself and the next, and points."""
    times, *values = columns
    for place, begin in enumerate(times):
        end = times[place + 1].offset if place + 1 < len(times) else 1 << 63
        if not all(len(column) == len(times) and begin.offset < column[place].offset < end for column in values):
            return False
        if not any(column[place].points for column in values):
            return False
    return True


def _find_chunk_end(file: FileBytes, chunk: Row, chunks_end: int) -> int:
    """Where a chunk ends, by its header; 0 where that does not say it."""
    begin = chunk.offset + 1 + chunk.name_bytes
    size = 0
    for at, byte in enumerate(file.read_up_to(begin, 5, chunks_end)):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return begin + at + 4 + size  # between both: type, compression, encoding
    return 0


def _join_chunks(device: WholeDevice, base: int, ends: Sequence[int]) -> list[Piece]:
    """Chunks that follow each other without a gap. A chunk group begins with the first, in an aligned device with each
    chunk of times."""
    found: list[Piece] = []
    for row, end in zip(device.chunks, ends, strict=True):
        begin = row.offset - base
        heads = not found or row.of_type == DataType.VECTOR
        if not heads and begin == found[-1][1]:
            found[-1] = found[-1][0], end, found[-1][2]
        else:
            found.append((begin, end, heads))
    return found


def move_entries(copied: CopiedDevice, starts: Sequence[int]) -> bytes:
    """The entries where piece n begins at byte `starts[n]` of the file; their flags tell times from values."""
    device = copied.device
    entries = bytearray(device.entries)
    where = iter(zip(copied.pieces, starts, strict=True))
    end = shift = 0
    for row in device.chunks:
        while row.offset - copied.base >= end:
            (begin, end, _), start = next(where)
            shift = start - begin - copied.base
        entries[row.offset_at : row.offset_at + 8] = (row.offset + shift).to_bytes(8, "big")
        column = PLAIN_SERIES if not device.aligned else TIME_COLUMN if row.of_type == DataType.VECTOR else VALUE_COLUMN
        entries[row.name_at - 1] = entries[row.name_at - 1] & _SEVERAL | column
    return bytes(entries)


@lru_cache(maxsize=1)
def _decodable_table() -> bytes:
    """[type][compression][encoding]: 1 where the reader decodes it without looking at statistics."""
    table = bytearray(16 * 16 * (max(DATA_TYPES) + 1))
    for of_type, compression, encoding in itertools.product(DATA_TYPES, COMPRESSIONS, ENCODINGS):
        kind = DataType.INT64 if of_type == DataType.VECTOR else DATA_TYPES[of_type]
        sure = Encoding(encoding) not in UNSURE and can_decode(kind, Encoding(encoding), Compression(compression))
        table[(of_type * 16 + compression) * 16 + encoding] = sure
    return bytes(table)
