"""Check that a TsFile is whole: head, tail, metadata, the whole index, and the header of every chunk. Decodes no page.

TsFiles have no checksum. This finds truncated, mixed-up and overwritten parts. The digest made at the site proves the
bytes of the pages (DESIGN §3). Source: research/iotdb.md §5.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from tidemark.errors import CorruptionError
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error
from tidemark.tsfiles.layout.chunks import ChunkHeader, name_bytes, read_header
from tidemark.tsfiles.layout.footer import HEAD_LENGTH, FileMetadata, read_footer
from tidemark.tsfiles.layout.index import IndexWalk, Segments, device_name
from tidemark.tsfiles.layout.series import Series, parse_series
from tidemark.untrusted_files import UntrustedFile

_GROUP, _PLANS, _PLANS_LENGTH = 0, 4, 16  # marks between chunks: a device follows; two plan indexes follow
_LONGEST_GAP = 1 << 16


def check_structure(path: Path | str | UntrustedFile) -> int:
    """Check that a TsFile is whole; returns its version byte (3 or 4).

    Raises CorruptionError with problem and byte, UnsupportedError for a sound file that Tidemark does not read (V1, V2,
    encrypted, unknown codes), and NotFoundError. Ends on any input, and reads each part of the file a bounded number of
    times.
    """
    with FileBytes(path, all_of_it=True) as file:
        metadata = read_footer(file)
        places = [place_of(segments, header) for segments, _, header in walk_chunks(file, metadata)]
        check_places(file, metadata.version, places)
        return metadata.version


def walk_devices(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Iterator[Series]]]:
    """Yield each device's segments and its series, in the order of the index. A device may come several times."""
    for device, parts in walk_entries(file, metadata):
        yield device, (series for part in parts for series in parse_series(part))


def walk_entries(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Iterator[Cursor]]]:
    """Yield each device's segments and the unparsed index entries of its series, several entries in one cursor."""
    walk = IndexWalk(file, metadata.version, metadata.chunks_end)
    for root in metadata.roots:
        for device in walk.iterate_devices(root):
            yield device.name, map(walk.read_child, walk.series_ranges(device))


def walk_series(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series]]:
    """Yield every series with the segments of its device, in the order of the index."""
    for device, found in walk_devices(file, metadata):
        for series in found:
            yield device, series


def walk_chunks(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series, ChunkHeader]]:
    """Yield the header of every chunk with its device's segments and its series."""
    for device, series in walk_series(file, metadata):
        for place in series.chunks:
            yield device, series, read_header(file, place.offset, series, metadata.chunks_end)


Place = tuple[int, int, str, Segments]
"""Where a chunk lies: first byte, byte after the last; its name and the device that the index has it under."""


def place_of(segments: Segments, header: ChunkHeader) -> Place:
    return header.offset, header.end, header.name, segments


def check_places(file: FileBytes, version: int, chunks: list[Place]) -> None:
    """Raise CorruptionError if two chunks share bytes, or one lies in the chunk group of another device.

    A chunk group begins with the name of its device. So a wrong device name in the index is found, even if the site's own
    disk flipped the bit and the digest includes it.
    """
    chunks.sort(key=itemgetter(0))
    end, before = HEAD_LENGTH, None
    for start, after, name, device in chunks:
        if start < end:
            raise corruption_error(file.path, f"the chunk of {name!r} overlaps the one before it", start)
        if start > end:
            head = _group_head(version, device)
            if start - len(head) < end or file.read(start - len(head), len(head)) != head:
                _refuse_other_device(file, version, device, (end, start))
        elif before is not None and device != before:
            raise corruption_error(file.path, f"the chunk of {name!r} stands in the group of another device", start)
        end, before = after, device


def _refuse_other_device(file: FileBytes, version: int, device: Segments, gap: tuple[int, int]) -> None:
    """Raise CorruptionError if the gap before a chunk of `device` holds the head of another device's group."""
    start = max(gap[0], gap[1] - _LONGEST_GAP)
    cursor = Cursor(file.read(start, gap[1] - start), file.path, start)
    try:
        while cursor.bytes_left() and cursor.read_u8() == _PLANS:
            cursor.skip_bytes(_PLANS_LENGTH)
        found = device_name(cursor) if version == 4 else (cursor.read_var_name(),)
    except CorruptionError:
        return
    if not cursor.bytes_left() and found != device:
        names = " and ".join(repr(".".join(part or "" for part in one)) for one in (device, found))
        raise corruption_error(file.path, f"index and chunk group name one device {names}", start)


@lru_cache(maxsize=4096)
def _group_head(version: int, device: Segments) -> bytes:
    names = b"".join(name_bytes(part) for part in device)
    return bytes((_GROUP, len(device) & 0x7F)) + names if version == 4 else bytes((_GROUP,)) + names
