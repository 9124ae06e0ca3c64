"""Parse the log of a site's schema: created series with their types, and deleted ones. All IoTDB versions.

| file | IoTDB | framing |
|---|---|---|
| `mlog.txt` | 0.9 … 0.11 | a line a record, fields separated by commas, the first a number for the kind |
| `mlog.bin` | 0.12 … 2.x | int32 length, the record (its first byte is the kind), int64 CRC-32 (0.12) or 0 (later) |

A log grows at its end. A torn last record is left for the next reading. Kinds that do not concern series are returned as
`other`, and kinds that this Tidemark does not know as `unknown`, since the framing allows to find the next record.
Source: research/iotdb.md §1.8, `PhysicalPlan` (0.12), `SchemaRegionPlanSerializer` (1.x, 2.x), the real data folders.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from tidemark.tsfiles.devices import table_device, tree_device
from tidemark.tsfiles.layout.bytes import Cursor, corruption_error
from tidemark.tsfiles.points.codes import Compression, DataType, Encoding

Form = Literal["text", "binary"]
Kind = Literal["create", "delete", "create_device", "create_database", "delete_database", "other", "unknown"]

_FRAME = 12  # int32 before and int64 after a record


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """One record of a log. Names are canonical.

    `create`: `series` with `type`, `encoding`, `compression` (names as in IoTDB's SQL), `aligned`. `delete`: `series`, may
    be a pattern. `create_device`: `series` is a device of the table model. `create_database`, `delete_database`: `series`
    is the database. `other`: a known kind that does not concern series. `unknown`: `detail` names the kind.
    """

    kind: Kind
    series: str = ""
    type: str = ""
    encoding: str = ""
    compression: str = ""
    aligned: bool = False
    detail: str = ""


def form_of(name: str) -> Form | None:
    """The form of a file of the schema folder by its name, None if it is no schema log."""
    base = name.rpartition("/")[2]
    return "binary" if base == "mlog.bin" else "text" if base == "mlog.txt" else None


def decode_log(data: bytes, form: Form, what: str = "schema log") -> tuple[list[SchemaRecord], int]:
    """Decode `data`, which begins at a record: (records, offset of the end of its last whole record).

    Raises CorruptionError if a whole record is damaged, because nothing after it can be trusted.
    """
    return _decode_text(data, what) if form == "text" else _decode_binary(data, what)


def _decode_binary(data: bytes, what: str) -> tuple[list[SchemaRecord], int]:
    records: list[SchemaRecord] = []
    at = 0
    while len(data) - at >= _FRAME:
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        if length <= 0:
            if any(data[at:]):
                raise corruption_error(what, f"a record of {length} bytes", at)
            break  # preallocated zeros: nothing is written there yet
        end = at + _FRAME + length
        if end > len(data):
            break
        record = data[at + 4 : end - 8]
        checksum = int.from_bytes(data[end - 8 : end], "big")
        if checksum not in (0, zlib.crc32(record)):
            raise corruption_error(what, "a record differs from its checksum", at)
        records += _decode_record(Cursor(record, what, at + 4))
        at = end
    return records, at


def _decode_record(cursor: Cursor) -> list[SchemaRecord]:
    kind = cursor.read_u8()
    decoder = _BINARY.get(kind)
    if decoder is None:
        return [SchemaRecord("other" if kind in _BINARY_OTHER else "unknown", detail=f"plan {kind}")]
    return decoder(cursor)


def _decode_create_series(cursor: Cursor) -> list[SchemaRecord]:
    path = _read_tree_path(cursor)
    coded = cursor.read_exactly(3)
    return [SchemaRecord("create", path, *_names_of_codes(coded[0], coded[1], coded[2]))]


def _decode_create_aligned(cursor: Cursor) -> list[SchemaRecord]:
    if cursor.read_i32() != -1:  # an early form that no release wrote
        return [SchemaRecord("unknown", detail="plan 41 of an early form")]
    device = _read_tree_path(cursor)
    count = _read_item_count(cursor, 7)
    names = [_read_tree_path(cursor) for _ in range(count)]
    types, encodings, compressions = (cursor.read_exactly(count) for _ in range(3))
    return [
        SchemaRecord("create", f"{device}.{name}", *_names_of_codes(*coded), aligned=True)
        for name, *coded in zip(names, types, encodings, compressions, strict=True)
    ]


def _decode_delete_series(cursor: Cursor) -> list[SchemaRecord]:
    return [SchemaRecord("delete", _read_tree_path(cursor)) for _ in range(_read_item_count(cursor, 4))]


def _decode_create_database(cursor: Cursor) -> list[SchemaRecord]:
    return [SchemaRecord("create_database", _read_tree_path(cursor))]


def _decode_delete_databases(cursor: Cursor) -> list[SchemaRecord]:
    return [SchemaRecord("delete_database", _read_tree_path(cursor)) for _ in range(_read_item_count(cursor, 4))]


def _decode_create_devices(cursor: Cursor) -> list[SchemaRecord]:
    cursor.read_exactly(2)  # the plan node's number
    database, table = (cursor.read_int_string() or "" for _ in range(2))
    devices = []
    for _ in range(_read_item_count(cursor, 4)):
        tags = [_read_tag(cursor) for _ in range(_read_item_count(cursor, 1))]
        devices.append(SchemaRecord("create_device", table_device(database, [table, *tags])))
    return devices


def _read_tag(cursor: Cursor) -> str | None:
    kind = cursor.read_u8()
    if kind == 7:
        return None
    if kind not in (4, 6):  # bytes or text
        raise cursor.corruption_error(f"a tag of type {kind}")
    return cursor.read_int_string()


def _read_tree_path(cursor: Cursor) -> str:
    path = cursor.read_int_string()
    if not path:
        raise cursor.corruption_error("a name is missing")
    return tree_device([path])


def _read_item_count(cursor: Cursor, least: int) -> int:
    count = cursor.read_i32()
    if count < 0 or count * least > cursor.bytes_left():
        raise cursor.corruption_error(f"{count} items announced where {cursor.bytes_left()} bytes are left")
    return count


_BINARY: dict[int, Callable[[Cursor], list[SchemaRecord]]] = {
    3: _decode_create_database,
    4: _decode_create_series,
    19: _decode_delete_databases,
    21: _decode_delete_series,
    41: _decode_create_aligned,
    100: _decode_create_devices,
}
_BINARY_OTHER = frozenset({5, 28, 29, 40, *range(64, 71), *range(101, 109)})
"""Time to live, tag offsets, alias, device without series, marks before a deletion, views; of the table model attributes,
node locations and deleted devices."""


def _decode_text(data: bytes, what: str) -> tuple[list[SchemaRecord], int]:
    end = data.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            fields = line.decode("utf-8").rstrip("\r").split(",")
        except UnicodeDecodeError as error:
            raise corruption_error(f"{what} line {number}", "not UTF-8") from error
        if fields != [""]:
            records.append(_text_record(fields, f"{what} line {number}"))
    return records, end


def _text_record(fields: list[str], what: str) -> SchemaRecord:
    kind = fields[0]
    named = _TEXT.get(kind)
    if named is None:
        return SchemaRecord("other" if kind in _TEXT_OTHER else "unknown", detail=f"record {kind}")
    if len(fields) < (5 if named == "create" else 2) or not fields[1]:
        raise corruption_error(what, f"a record of kind {kind} with {len(fields)} fields")
    path = tree_device([fields[1]])
    if named != "create":
        return SchemaRecord(named, path)
    try:
        codes = [int(field) for field in fields[2:5]]
    except ValueError as error:
        raise corruption_error(what, "a series without numbers for type, encoding, compression") from error
    return SchemaRecord("create", path, *_names_of_codes(*codes))


_TEXT: dict[str, Kind] = {"0": "create", "1": "delete", "2": "create_database", "11": "delete_database"}
_TEXT_OTHER = frozenset({"3", "4", "5", "6", "7", "8", "9", "10", "12", "13"})
"""Property trees, indexes, devices, time to live, offset of tags, alias."""


def _names_of_codes(data_type: int, encoding: int, compression: int) -> tuple[str, str, str]:
    return _name_of_code(DataType, data_type), _name_of_code(Encoding, encoding), _name_of_code(Compression, compression)


def _name_of_code(codes: type[IntEnum], code: int) -> str:
    """The name of a code; `#number` for a code of a newer IoTDB."""
    try:
        return codes(code).name
    except ValueError:
        return f"#{code}"
