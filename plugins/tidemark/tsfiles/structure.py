"""Whether a TsFile is whole: head, tail, metadata, the whole index, and the header of every chunk. No page is decoded.

TsFiles carry no checksum: this finds truncation, mixed-up and overwritten parts; the bytes of the pages are proved by the
digest made at the site (DESIGN §3). Source: research/iotdb.md §5.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from tidemark.tsfiles.chunks import ChunkHeader, read_header
from tidemark.tsfiles.filebytes import FileBytes
from tidemark.tsfiles.footer import HEAD_LENGTH, FileMetadata, read_footer
from tidemark.tsfiles.index import IndexWalk, Segments
from tidemark.tsfiles.series import Series, parse_series
from tidemark.tsfiles.wire import corrupt


def check_structure(path: Path | str) -> int:
    """The version byte (3 or 4) of a TsFile that is whole.

    Raises CorruptionError naming what is wrong and where, UnsupportedError for a sound file that Tidemark does not read
    (V1, V2, encrypted, unknown codes), NotFoundError. Ends on any input, and reads each part of the file a bounded
    number of times.
    """
    with FileBytes(path, all_of_it=True) as file:
        metadata = read_footer(file)
        chunks = [(header.offset, header.end, header.name) for _, _, header in walk_chunks(file, metadata)]
        check_no_overlap(file.path, chunks)
        return metadata.version


def walk_devices(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Iterator[Series]]]:
    """The segments of every device of the file with its series, in the order of the index. One may come several times."""
    walk = IndexWalk(file, metadata.version, metadata.chunks_end)
    for root in metadata.roots:
        for device in walk.devices(root):
            parts = walk.series_ranges(device)
            yield device.name, (series for part in parts for series in parse_series(walk.read(part)))


def walk_series(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series]]:
    """Every series of the file with the segments of its device, in the order of the index."""
    for device, found in walk_devices(file, metadata):
        for series in found:
            yield device, series


def walk_chunks(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series, ChunkHeader]]:
    """Every chunk of the file with its series."""
    for device, series in walk_series(file, metadata):
        for place in series.chunks:
            yield device, series, read_header(file, place.offset, series, metadata.chunks_end)


def check_no_overlap(path: str, chunks: list[tuple[int, int, str]]) -> None:
    """CorruptionError where two of a file's chunks (first byte, byte after the last, name) share bytes."""
    chunks.sort(key=itemgetter(0))
    end = HEAD_LENGTH
    for start, after, name in chunks:
        if start < end:
            raise corrupt(path, f"the chunk of {name!r} overlaps the one before it", start)
        end = after
