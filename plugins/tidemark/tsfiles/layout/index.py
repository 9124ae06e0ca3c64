"""Walk the metadata index of a TsFile: a tree of nodes from devices to measurements to the metadata of their series.

A node is: children (name, offset), the offset where the last child ends, one byte of type. Names are strings, or
segments for the devices of V4. A child begins at its offset and ends where the next begins. It lies before its parent,
so every walk moves towards the head of the file and ends. Source: `MetadataIndexNode` of the TsFile library.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error

INTERNAL_DEVICE, LEAF_DEVICE, INTERNAL_MEASUREMENT, LEAF_MEASUREMENT = range(4)
_DEEPEST = 48

Segments = tuple[str | None, ...]


class Child(NamedTuple):
    """A range of the file that a node points to, with the name of its first entry."""

    name: Segments
    start: int
    end: int


class Node(NamedTuple):
    kind: int
    children: tuple[Child, ...]


def parse_node(cursor: Cursor, version: int, of_devices: bool) -> Node:
    """Parse the node at the cursor. `of_devices`: whether its names are devices (V4 writes those as segments)."""
    begin = cursor.base + cursor.position
    names: list[Segments] = []
    offsets: list[int] = []
    for _ in range(cursor.read_count(9)):
        names.append(device_name(cursor) if version == 4 and of_devices else (cursor.read_var_name(),))
        offsets.append(cursor.read_i64())
    offsets.append(cursor.read_i64())
    kind = cursor.read_u8()
    if kind > LEAF_MEASUREMENT or (kind <= LEAF_DEVICE) != of_devices:
        raise cursor.corruption_error(f"an index node of type {kind} is out of place")
    if any(low >= high for low, high in itertools.pairwise(offsets)) or offsets[0] < 0 or offsets[-1] > begin:
        raise cursor.corruption_error("the offsets of an index node are out of order", begin - cursor.base)
    return Node(kind, tuple(map(Child, names, offsets, offsets[1:])))


def device_name(cursor: Cursor) -> Segments:
    """Read the segments of a device in a V4 file."""
    return tuple([cursor.read_var_string() for _ in range(cursor.read_count(1))]) or ("",)


class IndexWalk:
    """Walks the index of one file. Reads no more bytes than a sound index can have, even in a malicious file."""

    def __init__(self, file: FileBytes, version: int, chunks_end: int) -> None:
        self._file = file
        self._version = version
        self._first = chunks_end + 1
        self._allowance = 2 * (file.size - chunks_end)

    def iterate_devices(self, root: Node, depth: int = 0) -> Iterator[Child]:
        """Yield the devices below a node of devices: name, and the range of the node of their measurements."""
        if root.kind == LEAF_DEVICE:
            yield from root.children
            return
        for child in root.children:
            yield from self.iterate_devices(self._read_node(child, of_devices=True, depth=depth), depth + 1)

    def series_ranges(self, device: Child, depth: int = 0) -> Iterator[Child]:
        """Yield the ranges of the file that hold the series of a device, or of an inner node of its measurements."""
        node = self._read_node(device, of_devices=False, depth=depth)
        for child in node.children:
            if node.kind == LEAF_MEASUREMENT:
                yield child
            else:
                yield from self.series_ranges(child, depth + 1)

    def read_child(self, child: Child) -> Cursor:
        """Read the bytes of a child. Raises CorruptionError for bytes outside the index or read too often."""
        if child.start < self._first or child.end > self._file.size:
            raise corruption_error(self._file.path, "the index points outside of itself", child.start)
        self._allowance -= child.end - child.start
        if self._allowance < 0:
            raise corruption_error(self._file.path, "the index points to the same bytes again and again", child.start)
        return Cursor(self._file.read(child.start, child.end - child.start), self._file.path, child.start)

    def _read_node(self, child: Child, of_devices: bool, depth: int) -> Node:
        if depth > _DEEPEST:
            raise corruption_error(self._file.path, "the index is too deep", child.start)
        cursor = self.read_child(child)
        node = parse_node(cursor, self._version, of_devices)
        if cursor.bytes_left():
            raise cursor.corruption_error(f"{cursor.bytes_left()} bytes after an index node")
        return node
