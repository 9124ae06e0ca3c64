"""The index that the writer puts behind the chunks: metadata of the series, nodes of measurements, nodes of devices.

A node has at most 256 children, which lie one behind the other right before it is written; the root node of each table (in
the tree model: of each first segment) goes into the file metadata. Source: `MetadataIndexConstructor` of the TsFile
library; `index` reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidemark.tsfiles.codes import DataType
from tidemark.tsfiles.index import INTERNAL_DEVICE, INTERNAL_MEASUREMENT, LEAF_DEVICE, LEAF_MEASUREMENT, Segments
from tidemark.tsfiles.series import Statistics
from tidemark.tsfiles.writer_statistics import serialised, together
from tidemark.tsfiles.writer_values import uvarint, var_string

FAN_OUT = 256

T = TypeVar("T")


@dataclass
class SeriesEntry:
    """A series as the index knows it. `chunks`: (offset, statistics) of each, in file order; `statistics` of all of them."""

    name: str
    type: DataType
    column: int
    chunks: list[tuple[int, Statistics]] = field(default_factory=list)
    statistics: bytes = b""

    def finish(self) -> Statistics:
        """All its chunks are there: what they hold together."""
        whole = together(self.type, [own for _, own in self.chunks])
        self.statistics = serialised(whole)
        return whole

    def encode(self) -> bytes:
        several = len(self.chunks) > 1
        places = b"".join(struct.pack(">q", offset) + (serialised(own) if several else b"") for offset, own in self.chunks)
        head = bytes((self.column | several,)) + var_string(self.name) + bytes((self.type,)) + uvarint(len(places))
        return head + self.statistics + places


@dataclass
class DeviceEntry:
    """A device as the index knows it; its series in the order they are found by (the time column first).

    `copied`: the entries of all of them (of FAN_OUT at most), as they are to stand there; `first`: the name of the first.
    """

    segments: Segments
    series: dict[str, SeriesEntry] = field(default_factory=dict)
    copied: bytes = b""
    first: str = ""


@dataclass(frozen=True)
class _Node:
    """A node that is not in the file yet, and the (encoded) name its parent will know it by."""

    name: bytes
    data: bytes


def encode_index(devices: Sequence[DeviceEntry], start: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """(bytes of the index, which begins at byte `start` of the file; table → root node), devices in index order."""
    out = bytearray()
    of_measurements = [_measurement_root(device, out, start) for device in devices]
    roots = []
    for table in dict.fromkeys(device.segments[0] or "" for device in devices):
        mine = [node for node, d in zip(of_measurements, devices, strict=True) if (d.segments[0] or "") == table]
        leaves = [_join(group, out, start, LEAF_DEVICE) for group in _groups(mine)]
        roots.append((table, _root(leaves, out, start, INTERNAL_DEVICE).data))
    return bytes(out), roots


def device_id(segments: Segments) -> bytes:
    """A device as chunk groups and index nodes write it: its segments, each a string or null."""
    return uvarint(len(segments)) + b"".join(var_string(segment) for segment in segments)


def _measurement_root(device: DeviceEntry, out: bytearray, start: int) -> _Node:
    """The series of a device and all nodes above them but the last, which the device's node will point to."""
    if device.copied:
        begin = start + len(out)
        out += device.copied
        return _Node(
            device_id(device.segments), _node([(var_string(device.first), begin)], start + len(out), LEAF_MEASUREMENT)
        )
    series = list(device.series.values())
    leaves = []
    for group in _groups(series, FAN_OUT * FAN_OUT):
        places = []
        for some in _groups(group):
            places.append((var_string(some[0].name), start + len(out)))
            for one in some:
                out += one.encode()
        leaves.append(_Node(places[0][0], _node(places, start + len(out), LEAF_MEASUREMENT)))
    return _Node(device_id(device.segments), _root(leaves, out, start, INTERNAL_MEASUREMENT).data)


def _root(nodes: list[_Node], out: bytearray, start: int, kind: int) -> _Node:
    while len(nodes) > 1:
        nodes = [_join(group, out, start, kind) for group in _groups(nodes)]
    return nodes[0]


def _join(children: Sequence[_Node], out: bytearray, start: int, kind: int) -> _Node:
    """Put the children into the index; the node above them."""
    places = []
    for child in children:
        places.append((child.name, start + len(out)))
        out += child.data
    return _Node(children[0].name, _node(places, start + len(out), kind))


def _node(places: Sequence[tuple[bytes, int]], end: int, kind: int) -> bytes:
    children = b"".join(name + struct.pack(">q", offset) for name, offset in places)
    return uvarint(len(places)) + children + struct.pack(">qB", end, kind)


def _groups(items: Sequence[T], size: int = 0) -> list[Sequence[T]]:
    size = size or FAN_OUT
    return [items[at : at + size] for at in range(0, len(items), size)]
