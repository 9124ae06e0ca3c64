"""Whether a TsFile is whole: head, tail, metadata, the whole index, and the header of every chunk. No page is decoded.

TsFiles carry no checksum: this finds truncation, mixed-up and overwritten parts; the bytes of the pages are proved by the
digest made at the site (DESIGN §3). Source: research/iotdb.md §5.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    with FileBytes(path) as file:
        metadata = read_footer(file)
        chunks = [header for _, _, header in walk_chunks(file, metadata)]
        _check_no_overlap(file.path, chunks)
        return metadata.version


def walk_series(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series]]:
    """Every series of the file with the segments of its device, in the order of the index."""
    walk = IndexWalk(file, metadata.version, metadata.chunks_end)
    for root in metadata.roots:
        for device in walk.devices(root):
            for part in walk.series_ranges(device):
                for series in parse_series(walk.read(part)):
                    yield device.name, series


def walk_chunks(file: FileBytes, metadata: FileMetadata) -> Iterator[tuple[Segments, Series, ChunkHeader]]:
    """Every chunk of the file with its series."""
    for device, series in walk_series(file, metadata):
        for place in series.chunks:
            yield device, series, read_header(file, place.offset, series, metadata.chunks_end)


def _check_no_overlap(path: str, chunks: list[ChunkHeader]) -> None:
    chunks.sort(key=lambda chunk: chunk.offset)
    end = HEAD_LENGTH
    for chunk in chunks:
        if chunk.offset < end:
            raise corrupt(path, f"the chunk of {chunk.name!r} overlaps the one before it", chunk.offset)
        end = chunk.end
