"""Copy whole devices: all their chunks and index entries as bytes, without an object for each.

For merges, where most devices are in one file only. Needs the compiled parsers of entries and headers
(`kernels_index.c`). Devices that they do not support (no compiler, sparse columns, overlapping chunks, names that are not
canonical, …) are copied stretch by stretch or decoded (`reader`).
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

_TOGETHER = 32 << 20  # most bytes of a device that are read at once
_SPREAD = 1 << 12, 32  # most bytes from first to last chunk, plus so many a point: beyond it lie chunks of other devices
_SEVERAL = 0x3F  # bits of an entry's first byte: whether the series has several chunks
_SHORT_NAME = 64  # bytes, including the byte of its length
_MOST_SERIES = 256  # what one node of the index holds


class Row(NamedTuple):
    """A series or one of its chunks, as `tm_series` returns it. Names with `_at` are offsets in the entries."""

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
    """The conditions for copying a device whole: chunks of at least `rows` times (or a single one) in one partition.

    `interval`: the length of a time partition of the catalog."""

    rows: int
    interval: int


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """A device by its `entries` in the index of one file. `chunks`: their rows in file order. `types`: by measurement."""

    entries: bytes
    chunks: Sequence[Row]
    types: tuple[tuple[str, DataType], ...]
    aligned: bool
    points: int
    partition: int


Piece = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class CopiedDevice:
    """The bytes of a device, which begin at byte `base` of its file.

    `pieces`: (begin, end, whether a chunk group begins) of the parts of `data` to copy."""

    device: WholeDevice
    data: bytes
    base: int
    pieces: Sequence[Piece]


def find_whole_device(entries: bytes, of_table: bool, terms: Terms) -> WholeDevice | None:
    """Parse a device whose series are all in `entries`. None if it cannot be copied whole under these terms."""
    compiled = kernels()
    found = _group_by_series([*map(Row._make, compiled.parse_series(entries))]) if compiled is not None else []
    if not found or len(found) > _MOST_SERIES or not all(_adds_up(rows) for rows in found):
        return None
    aligned = found[0][0].of_type == DataType.VECTOR
    types = _measurement_types(entries, [rows[0] for rows in found], of_table, aligned)
    columns = [rows[1:] or rows for rows in found]  # the chunks of each series: a single one is in the row of its series
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
    """Read the device's chunks undecoded. None if they are far apart or differ from the index.

    Raises CorruptionError if the file is too short for them.
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
    """Group the rows by series: the row of the series, then those of its chunks if it has several."""
    found: list[list[Row]] = []
    for row in rows:
        if row.flags < 0:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _adds_up(rows: Sequence[Row]) -> bool:
    """Whether a series has points, and count and interval are those of its chunks."""
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
    """The measurements with their types. None if there are none, or one is out of order or not under its canonical name."""
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
    """A measurement's name; None unless it is canonical and sorts as its bytes do (beyond U+FFFF Java sorts otherwise)."""
    try:
        name = data.decode()
    except UnicodeDecodeError:
        return None
    sorts = all(char < "\ud800" for char in name)
    return name if sorts and (of_table or measurement_name(name) == name) else None


def _one_after_another(chunks: Sequence[Row], least: int) -> bool:
    """Whether chunks follow each other in time and in the file and have `least` points. A single chunk may be smaller."""
    if len(chunks) == 1:
        return chunks[0].points > 0
    apart = all(a.last < b.first and a.offset < b.offset for a, b in itertools.pairwise(chunks))
    return apart and all(row.points >= max(1, least) for row in chunks)


def _side_by_side(columns: Sequence[Sequence[Row]]) -> bool:
    """Whether each chunk of times (first column) is followed by one chunk of every column, and one of these has points."""
    times, *values = columns
    for place, begin in enumerate(times):
        end = times[place + 1].offset if place + 1 < len(times) else 1 << 63
        if not all(len(column) == len(times) and begin.offset < column[place].offset < end for column in values):
            return False
        if not any(column[place].points for column in values):
            return False
    return True


def _find_chunk_end(file: FileBytes, chunk: Row, chunks_end: int) -> int:
    """The end of a chunk by its header, 0 if the header does not state it."""
    begin = chunk.offset + 1 + chunk.name_bytes
    size = 0
    for at, byte in enumerate(file.read_up_to(begin, 5, chunks_end)):
        size |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return begin + at + 4 + size  # type, compression and encoding lie between length and pages
    return 0


def _join_chunks(device: WholeDevice, base: int, ends: Sequence[int]) -> list[Piece]:
    """Join adjacent chunks to pieces. A chunk group begins with the first chunk, or with each chunk of times."""
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
    """The index entries of a copy in which piece n begins at byte `starts[n]`. Sets the flags of time and value columns."""
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
    """[type][compression][encoding]: 1 if the reader decodes it without comparing statistics."""
    table = bytearray(16 * 16 * (max(DATA_TYPES) + 1))
    for of_type, compression, encoding in itertools.product(DATA_TYPES, COMPRESSIONS, ENCODINGS):
        kind = DataType.INT64 if of_type == DataType.VECTOR else DATA_TYPES[of_type]
        sure = Encoding(encoding) not in UNSURE and can_decode(kind, Encoding(encoding), Compression(compression))
        table[(of_type * 16 + compression) * 16 + encoding] = sure
    return bytes(table)
