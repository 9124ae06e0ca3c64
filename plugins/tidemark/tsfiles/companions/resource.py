"""Parse a `.resource`: the devices of its TsFile and their intervals. All layouts from 0.8 to 2.x.

It is cheap planning metadata, never trusted more than the TsFile. Source: research/iotdb.md §5, `TsFileResource` and the
`timeindex` package of IoTDB; compared with the true ranges of all files of the real data folders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidemark.tsfiles.devices import file_device
from tidemark.tsfiles.layout.bytes import Cursor

Extent = tuple[tuple[str, int, int], ...]
"""(canonical device, first time, last time), ordered by device; times in the file's unit, both inclusive."""

ANY_DEVICE = "**"
"""Stands for every device where the index knows the whole file's interval only."""

_VERSION: Final = 1


def read_extent(data: bytes, database: str = "", what: str = ".resource") -> Extent:
    """The devices of a TsFile and their intervals, from the bytes of its `.resource`.

    `database` completes the names of table-model devices. A file-level index without devices gives
    `(("**", first, last),)`. One with devices gives each of them the file's interval. A device without points is left
    out. Raises CorruptionError if the bytes are no such index or end too early.
    """
    extent = _read_index(Cursor(data, what), database)
    return tuple(sorted((device, start, end) for device, (start, end) in extent.items() if start <= end))


def read_mods_name(data: bytes, what: str = ".resource") -> str:
    """The name of the file of deletions that the server uses, '' if the `.resource` names none.

    0.12 renames a TsFile after a merge and continues to write deletions under the earlier name. Raises CorruptionError
    if the bytes are no such index.
    """
    cursor = Cursor(data, what)
    _read_index(cursor, "root")
    if not _is_versioned(data) and cursor.bytes_left():  # up to 0.11: versions of the files that were merged into it
        cursor.read_exactly(8 * cursor.read_i32())
    return cursor.read_int_string() or "" if cursor.bytes_left() else ""


def _is_versioned(data: bytes) -> bool:
    return len(data) >= 2 and data[0] == _VERSION and data[1] in _INDEXES


def _read_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """Read the index: device → interval. Leaves the cursor behind it."""
    if not _is_versioned(cursor.data):
        return _old_index(cursor, database)
    cursor.read_exactly(1)
    extent = _INDEXES[cursor.read_u8()](cursor, database)
    cursor.read_i64_pair()  # the highest and the lowest plan index: required, but not used
    return extent


def _string_device(cursor: Cursor, database: str) -> str:
    path = cursor.read_int_string()
    if not path:
        raise cursor.corruption_error("a device has no name")
    return file_device([path], database)


def _segment_device(cursor: Cursor, database: str) -> str:
    segments = [cursor.read_var_string() for _ in range(cursor.read_count(1))]
    if not segments or not segments[0]:
        raise cursor.corruption_error("a device has no name")
    return file_device(segments, database)


def _read_intervals(cursor: Cursor) -> list[tuple[int, int]]:
    number = cursor.read_i32()
    if number < 0 or number * 16 > cursor.bytes_left():
        raise cursor.corruption_error(f"{number} devices announced where {cursor.bytes_left()} bytes are left")
    return [cursor.read_i64_pair() for _ in range(number)]


def _read_device_index(cursor: Cursor, database: str, device_of: Callable[[Cursor, str], str]) -> dict[str, tuple[int, int]]:
    """Read the intervals, then each device with the number of its interval."""
    intervals = _read_intervals(cursor)
    extent = {}
    for _ in intervals:
        device = device_of(cursor, database)
        index = cursor.read_i32()
        if not 0 <= index < len(intervals):
            raise cursor.corruption_error(f"device {device} has no interval {index}")
        extent[device] = intervals[index]
    return extent


def _plain_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """0.12 to 1.x: devices are whole paths."""
    return _read_device_index(cursor, database, _string_device)


def _array_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """2.x: devices are segments."""
    return _read_device_index(cursor, database, _segment_device)


def _old_file_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """0.12's file index: all devices, then one interval for them."""
    number = cursor.read_i32()
    if number < 0 or number * 4 > cursor.bytes_left():
        raise cursor.corruption_error(f"{number} devices announced where {cursor.bytes_left()} bytes are left")
    devices = [_string_device(cursor, database) for _ in range(number)]
    interval = cursor.read_i64_pair()
    return dict.fromkeys(devices or [ANY_DEVICE], interval)


def _file_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """0.13's file index: one interval."""
    return {ANY_DEVICE: cursor.read_i64_pair()}


def _old_index(cursor: Cursor, database: str) -> dict[str, tuple[int, int]]:
    """0.8 to 0.11: two maps, device → first and device → last time, each in its own order."""
    starts, ends = (_old_map(cursor, database) for _ in range(2))
    if starts.keys() != ends.keys():
        raise cursor.corruption_error("first and last times are of different devices")
    return {device: (start, ends[device]) for device, start in starts.items()}


def _old_map(cursor: Cursor, database: str) -> dict[str, int]:
    number = cursor.read_i32()
    if number < 0 or number * 12 > cursor.bytes_left():
        raise cursor.corruption_error(f"{number} devices announced where {cursor.bytes_left()} bytes are left")
    return {_string_device(cursor, database): cursor.read_i64() for _ in range(number)}


_INDEXES: dict[int, Callable[[Cursor, str], dict[str, tuple[int, int]]]] = {
    0: _old_file_index,
    1: _plain_index,
    2: _file_index,
    3: _array_index,
}
