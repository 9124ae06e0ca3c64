"""Parse the headers of chunks and pages, and read page data undecoded.

A chunk is: one byte of kind, name, length of its pages, type, compression, encoding; then the pages. A page is: length of
its data, compressed length, statistics (only in a chunk of several pages), data. A page of length 0 ends after the length:
it has no values. The same in V3 and V4. Source: `ChunkHeader`, `PageHeader` of the TsFile library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tidemark.errors import UnsupportedError
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error
from tidemark.tsfiles.layout.series import (
    TIME_COLUMN,
    VALUE_COLUMN,
    ChunkPlace,
    Series,
    Statistics,
    data_type,
    parse_statistics,
)
from tidemark.tsfiles.points.codes import COMPRESSIONS, DATA_TYPES, ENCODINGS, Compression, DataType, Encoding

_SEVERAL_PAGES, _ONE_PAGE = 1, 5
_PAGES_OF = {_SEVERAL_PAGES: False, _ONE_PAGE: True}  # whether there is one page only
_COLUMN_BITS = 0xC0
_TOGETHER = 32 << 20  # most bytes of a chunk group that are read at once


class ChunkHeader(NamedTuple):
    """The header of a chunk. `column`: PLAIN_SERIES, or in an aligned device TIME_COLUMN or VALUE_COLUMN.

    The pages begin at `data_offset`."""

    offset: int
    name: str
    column: int
    one_page: bool
    type: DataType
    encoding: Encoding
    compression: Compression
    data_offset: int
    data_size: int

    @property
    def end(self) -> int:
        return self.data_offset + self.data_size


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `statistics` is None in a chunk of one page: the chunk's apply. `data` is None for a page without values."""

    offset: int
    statistics: Statistics | None
    data: bytes | None
    size: int  # of the data when decompressed


def read_header(file: FileBytes, offset: int, series: Series, chunks_end: int) -> ChunkHeader:
    """Read the header at `offset`. It must be one of `series`, and its pages must end before `chunks_end`."""
    data = file.read_up_to(offset, 32 + len(name_bytes(series.name)), chunks_end)
    return _plain_header(data, offset, series, chunks_end) or _any_header(
        Cursor(data, file.path, offset), offset, series, chunks_end
    )


def read_stored_chunks(
    file: FileBytes, parts: Sequence[tuple[Series, ChunkPlace]], chunks_end: int
) -> list[tuple[ChunkHeader, bytes]]:
    """Read chunks undecoded: (header, all bytes of header and pages) of each. Raises as `read_header`.

    Chunks that are close together are read at once.
    """
    offsets = [place.offset for _, place in parts]
    first, last = min(offsets), max(offsets)
    if last - first > _TOGETHER:
        return [one for part in parts for one in read_stored_chunks(file, [part], chunks_end)]
    at_end = read_header(file, last, parts[offsets.index(last)][0], chunks_end)
    data = file.read(first, at_end.end - first)
    found = []
    for series, place in parts:
        begin = place.offset - first
        head = data[begin : begin + 64 + 4 * len(series.name)]
        header = _plain_header(head, place.offset, series, chunks_end) or _any_header(
            Cursor(head, file.path, place.offset), place.offset, series, chunks_end
        )
        if header.end > at_end.end:
            raise corruption_error(file.path, f"the pages of {series.name!r} reach into another chunk", place.offset)
        found.append((header, data[begin : header.end - first]))
    return found


def _plain_header(data: bytes, offset: int, series: Series, chunks_end: int) -> ChunkHeader | None:
    """Parse quickly a header that agrees with its series. None for any other, which `_any_header` parses or refuses."""
    name = name_bytes(series.name)
    at = 1 + len(name)
    size = shift = 0
    try:
        if not data.startswith(name, 1):
            return None
        while (byte := data[at]) >= 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        size |= byte << shift
        kind, one_page = data[0] & _COLUMN_BITS, _PAGES_OF[data[0] & ~_COLUMN_BITS]
        of_type = DATA_TYPES[data[at + 1]]
        compression, encoding = COMPRESSIONS[data[at + 2]], ENCODINGS[data[at + 3]]
    except LookupError:
        return None
    data_offset = offset + at + 4
    if series.is_time or of_type is not series.type or kind not in (0, VALUE_COLUMN) or shift > 28:
        return None
    if data_offset + size > chunks_end:
        return None
    return ChunkHeader(offset, series.name, kind, one_page, of_type, encoding, compression, data_offset, size)


@lru_cache(maxsize=4096)
def name_bytes(name: str | None) -> bytes:
    """Encode a name with its length before it, as headers have it. None is a null tag."""
    if name is None:
        return b"\x01"
    text = name.encode()
    length = bytearray()
    left = 2 * len(text)  # zigzag
    while left >= 0x80:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + text


def _any_header(cursor: Cursor, offset: int, series: Series, chunks_end: int) -> ChunkHeader:
    kind = cursor.read_u8()
    if kind & ~_COLUMN_BITS not in (_SEVERAL_PAGES, _ONE_PAGE):
        raise cursor.corruption_error(f"no chunk of {series.name!r} begins here", 0)
    name = cursor.read_var_string() or ""
    size = cursor.read_uvarint()
    of_type = data_type(cursor)
    compression, encoding = _read_compression(cursor), _read_encoding(cursor)
    data_offset = offset + cursor.position
    if name != series.name or (of_type != series.type and not series.is_time):
        raise cursor.corruption_error(f"a chunk of {name!r} ({of_type.name}) where the index has {series.name!r}", 0)
    if (kind & _COLUMN_BITS == TIME_COLUMN) != series.is_time or kind & _COLUMN_BITS == _COLUMN_BITS:
        raise cursor.corruption_error(f"the chunk of {name!r} and the index differ on whether it holds times", 0)
    if data_offset + size > chunks_end:
        raise cursor.corruption_error(f"the pages of {name!r} reach beyond the chunks", 0)
    one_page = kind & ~_COLUMN_BITS == _ONE_PAGE
    return ChunkHeader(offset, name, kind & _COLUMN_BITS, one_page, of_type, encoding, compression, data_offset, size)


def parse_pages(file: FileBytes, header: ChunkHeader, data: bytes) -> Iterator[Page]:
    """Yield the pages of a chunk in order, not decompressed. `data`: all their bytes."""
    cursor = Cursor(data, file.path, header.data_offset)
    while cursor.bytes_left():
        offset = cursor.base + cursor.position
        size = cursor.read_uvarint()
        if size == 0:
            yield Page(offset, None, None, 0)
            continue
        length = cursor.read_uvarint()
        statistics = None if header.one_page else parse_statistics(cursor, header.type)
        yield Page(offset, statistics, cursor.read_exactly(length), size)


def _read_compression(cursor: Cursor) -> Compression:
    code = cursor.read_u8()
    try:
        return Compression(code)
    except ValueError as error:
        raise _unknown_code_error(cursor, "compression", code) from error


def _read_encoding(cursor: Cursor) -> Encoding:
    code = cursor.read_u8()
    try:
        return Encoding(code)
    except ValueError as error:
        raise _unknown_code_error(cursor, "encoding", code) from error


def _unknown_code_error(cursor: Cursor, what: str, code: int) -> UnsupportedError:
    at = cursor.base + cursor.position - 1
    return UnsupportedError(
        f"{cursor.what}: unknown {what} {code} (byte {at})", hint="the file is kept as it came", subject=cursor.what
    )
