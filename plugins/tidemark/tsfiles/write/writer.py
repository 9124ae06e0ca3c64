"""Write TsFiles (V4): tree model, aligned or not, and table model; and the index behind the chunks.

Devices are written one after another. A closed file is durable: it is written to `<name>.tmp`, synced and renamed, then
its folder is synced. A writer that is not closed leaves nothing under the final name. Memory holds one device and the
index. `tsfiles.layout` describes and reads the format.

The index consists of metadata of the series, nodes of measurements and nodes of devices. A node has at most 256
children, which lie consecutively before it. The root node of each table (in the tree model: of each first segment) goes
into the file metadata. Source: `TsFileIOWriter`, `MetadataIndexConstructor` of the TsFile library, seen in the real data
folders.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tidemark.tsfiles.devices import is_table, split_nodes
from tidemark.tsfiles.layout.footer import MAGIC, SEPARATOR
from tidemark.tsfiles.layout.index import INTERNAL_DEVICE, INTERNAL_MEASUREMENT, LEAF_DEVICE, LEAF_MEASUREMENT, Segments
from tidemark.tsfiles.layout.series import TIME_COLUMN, Statistics
from tidemark.tsfiles.points.codes import Compression, DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.copy_devices import CopiedDevice, move_entries
from tidemark.tsfiles.write.pages import Chunk, aligned_chunks, row_times, series_chunks
from tidemark.tsfiles.write.statistics import combine_statistics, encode_statistics
from tidemark.tsfiles.write.values import ENCODINGS, encode_uvarint, encode_var_string, encode_varint

_GROUP = 0
_TAG, _FIELD = 0, 1
_BUFFER = 1 << 20
_PROPERTIES = (("encryptLevel", "0"), ("encryptKey", None), ("encryptType", "org.apache.tsfile.encrypt.UNENCRYPTED"))
_OPEN_FILTER = (
    encode_uvarint(32) + b"\xff" * 32 + encode_uvarint(256) + encode_uvarint(5)
)  # a bloom filter with all bits set, which matches every path


class TsFileWriter:
    """Writes a new TsFile at `path`. `tables`: the tag columns of each table that has devices in the file.

    Call `write_device` in ascending order of `device_order`, then `close`. As a context manager it closes at the end of the
    block, and abandons the file if the block raises.
    """

    def __init__(
        self, path: Path, tables: Mapping[str, Sequence[str]] | None = None, compression: Compression = Compression.LZ4
    ) -> None:
        self.path = path
        self.tables = {name: tuple(tags) for name, tags in (tables or {}).items()}
        self.compression = compression
        self.points = 0
        self._fields: dict[str, dict[str, DataType]] = {name: {} for name in self.tables}
        self._devices: list[DeviceEntry] = []
        self._open: DeviceEntry | None = None
        self._digest = hashlib.sha256()
        self._position = 0
        self._temporary = path.with_name(path.name + ".tmp")
        self._file = self._temporary.open("wb", buffering=_BUFFER)
        self._put_bytes(MAGIC + b"\x04")

    def write_device(self, segments: Segments, columns: Mapping[str, Column], aligned: bool) -> None:
        """Write a device with its series. Series and devices without points are left out.

        Tree model: segments as `tree_segments` gives them. Table model: the table and its tags, always aligned. Times of a
        column ascend strictly. Raises ValueError for devices out of order, an unknown table, a column with two types.
        """
        filled = {name: column for name, column in sorted(columns.items(), key=_by_name) if len(column)}
        if not filled:
            return
        self.begin_device(segments)
        if aligned or is_table(segments):
            for group in aligned_chunks(row_times(filled), filled, self.compression):
                self.put_chunks(group)
        else:
            for name, column in filled.items():
                self.put_chunks(series_chunks(name, column, self.compression), same_group=True)
        self.end_device()

    def copy_device(self, segments: Segments, copied: CopiedDevice) -> None:
        """Copy a device of another file. Raises as `write_device`."""
        self.begin_device(segments)
        head = bytes((_GROUP,)) + device_id(segments)
        data, starts = memoryview(copied.data), []
        for begin, end, heads in copied.pieces:
            if heads:
                self._put_bytes(head)
            starts.append(self._position)
            self._put_bytes(data[begin:end])
        for name, of_type in copied.device.types:
            self._declare_column(segments, name, of_type)
        self.points += copied.device.points
        first = "" if copied.device.aligned else copied.device.types[0][0]
        self._devices.append(DeviceEntry(segments, copied=move_entries(copied, starts), first=first))
        self._open = None

    def begin_device(self, segments: Segments) -> None:
        """Begin a device. Then call `put_chunks` and finally `end_device`. Raises as `write_device`."""
        if self._devices and device_order(segments) <= device_order(self._devices[-1].segments):
            raise ValueError(f"device {segments} comes after {self._devices[-1].segments}")
        if is_table(segments):
            self._require_declared(segments)
        self._open = DeviceEntry(segments)

    def put_chunks(self, chunks: Iterable[Chunk], same_group: bool = False) -> None:
        """Write chunks, encoded or copied, of the device that was begun. Chunks of a series come in order of time.

        Each call is a chunk group. In an aligned device it is the chunk of times, then one of every column, since readers
        match them by number. `same_group`: one chunk group for all calls, for plain series. Raises ValueError for a column
        with two types.
        """
        device = self._open
        if device is None:
            raise ValueError(f"{self.path}: no device was begun")
        if not (same_group and device.series):
            self._put_bytes(bytes((_GROUP,)) + device_id(device.segments))
        for chunk in chunks:
            entry = device.series.setdefault(chunk.name, SeriesEntry(chunk.name, chunk.type, chunk.column))
            entry.chunks.append((self._position, chunk.statistics))
            self._put_bytes(chunk.data)
            if chunk.column != TIME_COLUMN and chunk.statistics.count:
                self._declare_column(device.segments, chunk.name, chunk.type)
                self.points += chunk.statistics.count

    def end_device(self) -> None:
        """End the device that was begun. Columns without any value are left out of the index."""
        device, self._open = self._open, None
        if device is None:
            raise ValueError(f"{self.path}: no device was begun")
        filled = [entry for _, entry in sorted(device.series.items(), key=_by_name) if entry.finish_statistics().count]
        device.series = {entry.name: entry for entry in filled}
        if any(entry.column != TIME_COLUMN for entry in filled):
            self._devices.append(device)

    def close(self) -> None:
        """Write index and footer, and make the file durable under its name. Raises ValueError if no device was written."""
        if not self._devices:
            self.abandon()
            raise ValueError(f"{self.path}: a TsFile needs a device with points")
        self._put_metadata()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        # CRASH WINDOW: a whole `.tmp` is not renamed. Nobody reads it, and the next batch removes it.
        self._temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def abandon(self) -> None:
        """Remove everything that was written."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Number of bytes written so far; once closed, of the whole file."""
        return self._position

    @property
    def sha256(self) -> str:
        """Hex digest of all bytes written so far; once closed, of the whole file."""
        return self._digest.hexdigest()

    def __enter__(self) -> TsFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _put_bytes(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._position += len(data)

    def _require_declared(self, segments: Segments) -> None:
        table = segments[0] or ""
        if table not in self.tables:
            raise ValueError(f"table {table!r} is not declared")
        if len(segments) - 1 > len(self.tables[table]):
            raise ValueError(f"device {segments} has more tags than table {table!r}: {self.tables[table]}")

    def _declare_column(self, segments: Segments, name: str, of_type: DataType) -> None:
        if is_table(segments):
            table = segments[0] or ""
            known = self._fields[table].setdefault(name, of_type)
            if known != of_type:
                raise ValueError(f"column {name!r} of table {table!r} is {known.name} and {of_type.name}")

    def _put_metadata(self) -> None:
        chunks_end = self._position
        self._put_bytes(bytes((SEPARATOR,)))
        index, roots = encode_index(self._devices, self._position)
        self._put_bytes(index)
        begin = self._position
        self._put_bytes(encode_uvarint(len(roots)) + b"".join(encode_var_string(table) + node for table, node in roots))
        schemas = [(table, fields) for table, fields in sorted(self._fields.items()) if fields]
        self._put_bytes(
            encode_uvarint(len(schemas)) + b"".join(self._encode_schema(table, fields) for table, fields in schemas)
        )
        self._put_bytes(struct.pack(">q", chunks_end) + _OPEN_FILTER)
        self._put_bytes(encode_varint(len(_PROPERTIES)))
        self._put_bytes(b"".join(encode_var_string(name) + encode_var_string(value) for name, value in _PROPERTIES))
        self._put_bytes(struct.pack(">i", self._position - begin) + MAGIC)

    def _encode_schema(self, table: str, fields: Mapping[str, DataType]) -> bytes:
        tags = [(name, DataType.STRING, _TAG) for name in self.tables[table]]
        columns = tags + [(name, of_type, _FIELD) for name, of_type in sorted(fields.items(), key=_by_name)]
        parts = [encode_var_string(table), encode_uvarint(len(columns))]
        for name, of_type, category in columns:
            data = name.encode()
            codes = bytes((of_type, ENCODINGS[of_type], self.compression))
            parts += [struct.pack(">i", len(data)), data, codes, struct.pack(">ii", 0, category)]
        return b"".join(parts)


def tree_segments(device: str) -> Segments:
    """The segments of a device of the tree model, given by its canonical name, as TsFiles of V4 write them.

    The first three nodes are one segment (all but the last of a device with less than four). Each further node is one.
    Source: `StringArrayDeviceID` of the TsFile library.
    """
    nodes = split_nodes(device)
    head = min(3, len(nodes) - 1) or 1
    return (".".join(nodes[:head]), *nodes[head:])


@lru_cache(maxsize=4096)
def device_order(segments: Segments) -> tuple[tuple[bool, bytes], ...]:
    """The sort key of devices in the index: segment by segment, null first, as Java compares strings (UTF-16)."""
    return tuple((segment is not None, _encode_utf16(segment or "")) for segment in segments)


def _by_name(item: tuple[str, object]) -> bytes:
    return _encode_utf16(item[0])


def _encode_utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


FAN_OUT = 256

T = TypeVar("T")


@dataclass
class SeriesEntry:
    """The index entry of a series. `chunks`: (offset, statistics) in file order. `statistics`: encoded, of all chunks."""

    name: str
    type: DataType
    column: int
    chunks: list[tuple[int, Statistics]] = field(default_factory=list)
    statistics: bytes = b""

    def finish_statistics(self) -> Statistics:
        """Combine the statistics of all chunks, once they are complete."""
        whole = combine_statistics(self.type, [own for _, own in self.chunks])
        self.statistics = encode_statistics(whole)
        return whole

    def encode_entry(self) -> bytes:
        several = len(self.chunks) > 1
        places = b"".join(
            struct.pack(">q", offset) + (encode_statistics(own) if several else b"") for offset, own in self.chunks
        )
        head = (
            bytes((self.column | several,))
            + encode_var_string(self.name)
            + bytes((self.type,))
            + encode_uvarint(len(places))
        )
        return head + self.statistics + places


@dataclass
class DeviceEntry:
    """The index entry of a device. `series` is in index order (the time column first).

    `copied`: instead of `series`, the encoded entries of at most FAN_OUT series. `first`: the name of the first one.
    """

    segments: Segments
    series: dict[str, SeriesEntry] = field(default_factory=dict)
    copied: bytes = b""
    first: str = ""


@dataclass(frozen=True)
class _Node:
    """An encoded node that is not in the file yet, and its encoded name in the parent node."""

    name: bytes
    data: bytes


def encode_index(devices: Sequence[DeviceEntry], start: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Encode the index, which begins at byte `start` of the file: (its bytes, [(table, root node)]). Devices are sorted."""
    out = bytearray()
    of_measurements = [_measurement_root(device, out, start) for device in devices]
    roots = []
    for table in dict.fromkeys(device.segments[0] or "" for device in devices):
        mine = [node for node, d in zip(of_measurements, devices, strict=True) if (d.segments[0] or "") == table]
        leaves = [_write_children(group, out, start, LEAF_DEVICE) for group in _split_groups(mine)]
        roots.append((table, _write_root(leaves, out, start, INTERNAL_DEVICE).data))
    return bytes(out), roots


def device_id(segments: Segments) -> bytes:
    """Encode a device as chunk groups and index nodes have it: its segments, each a string or null."""
    return encode_uvarint(len(segments)) + b"".join(encode_var_string(segment) for segment in segments)


def _measurement_root(device: DeviceEntry, out: bytearray, start: int) -> _Node:
    """Append a device's series entries and the nodes above them to the index. Returns their root, which is not appended."""
    if device.copied:
        begin = start + len(out)
        out += device.copied
        return _Node(
            device_id(device.segments),
            _encode_node([(encode_var_string(device.first), begin)], start + len(out), LEAF_MEASUREMENT),
        )
    series = list(device.series.values())
    leaves = []
    for group in _split_groups(series, FAN_OUT * FAN_OUT):
        places = []
        for some in _split_groups(group):
            places.append((encode_var_string(some[0].name), start + len(out)))
            for one in some:
                out += one.encode_entry()
        leaves.append(_Node(places[0][0], _encode_node(places, start + len(out), LEAF_MEASUREMENT)))
    return _Node(device_id(device.segments), _write_root(leaves, out, start, INTERNAL_MEASUREMENT).data)


def _write_root(nodes: list[_Node], out: bytearray, start: int, kind: int) -> _Node:
    while len(nodes) > 1:
        nodes = [_write_children(group, out, start, kind) for group in _split_groups(nodes)]
    return nodes[0]


def _write_children(children: Sequence[_Node], out: bytearray, start: int, kind: int) -> _Node:
    """Append the children to the index; returns the node above them."""
    places = []
    for child in children:
        places.append((child.name, start + len(out)))
        out += child.data
    return _Node(children[0].name, _encode_node(places, start + len(out), kind))


def _encode_node(places: Sequence[tuple[bytes, int]], end: int, kind: int) -> bytes:
    children = b"".join(name + struct.pack(">q", offset) for name, offset in places)
    return encode_uvarint(len(places)) + children + struct.pack(">qB", end, kind)


def _split_groups(items: Sequence[T], size: int = 0) -> list[Sequence[T]]:
    size = size or FAN_OUT
    return [items[at : at + size] for at in range(0, len(items), size)]
