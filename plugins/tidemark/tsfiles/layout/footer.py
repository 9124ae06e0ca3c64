"""Parse head and tail of a TsFile, and the file metadata that the tail points to.

| part | V3 (0.12 … 1.x) | V4 (2.x) |
|---|---|---|
| head | `TsFile` 0x03 | `TsFile` 0x04 |
| file metadata | index root node | tables: name → index root node; tables: name → schema |
| | offset of the 0x02 that ends the chunks | the same |
| | bloom filter of the paths | bloom filter; properties (encryption) |
| tail | int32 length of the file metadata, `TsFile` | the same |

Source: research/iotdb.md §5, `TsFileMetadata` and `TableSchema` of the TsFile library, seen in the real data folders.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.tsfiles.layout.bytes import Cursor, FileBytes, corruption_error
from tidemark.tsfiles.layout.index import Node, parse_node

MAGIC = b"TsFile"
HEAD_LENGTH = 7
TAIL_LENGTH = 10
SEPARATOR = 2
_OLD = {b"TsFile000001": "V1 (IoTDB 0.9)", b"TsFile000002": "V2 (IoTDB 0.10, 0.11)", b"TsFilev0.8.0": "of IoTDB 0.8"}
_TAG = 0


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """The file metadata. `roots`: the index root nodes, one a table in the table model. `tables`: table → tag columns."""

    version: int
    roots: tuple[Node, ...]
    tables: dict[str, tuple[str, ...]]
    chunks_end: int  # first byte after the chunks
    start: int  # where the file metadata begins: the index lies before it
    properties: dict[str, str | None]


def read_footer(file: FileBytes) -> FileMetadata:
    """Read the file metadata of a sealed TsFile.

    Raises CorruptionError if head, tail or metadata are damaged. Raises UnsupportedError for a version other than V3 and
    V4, and for an encrypted file.
    """
    if file.size < HEAD_LENGTH + TAIL_LENGTH + 1:
        raise corruption_error(file.path, f"{file.size} bytes are too few for a TsFile")
    head = file.read(0, 12)
    if not head.startswith(MAGIC):
        raise corruption_error(file.path, "the first 6 bytes are not `TsFile`", 0)
    version = head[6]
    tail = Cursor(file.read(file.size - TAIL_LENGTH, TAIL_LENGTH), file.path, file.size - TAIL_LENGTH)
    length = tail.read_i32()
    if tail.read_exactly(6) != MAGIC:
        raise corruption_error(file.path, "the last 6 bytes are not `TsFile`: not sealed or cut off", file.size - 6)
    if head in _OLD or version not in (3, 4):
        raise _unsupported_error(file.path, f"TsFile {_OLD.get(head, f'V{version}')} is not read; V3 and V4 are")
    start = file.size - TAIL_LENGTH - length
    if length <= 0 or start < HEAD_LENGTH + 1:
        raise corruption_error(file.path, f"a file metadata of {length} bytes does not fit", file.size - TAIL_LENGTH)
    cursor = Cursor(file.read(start, length), file.path, start)
    metadata = _parse_v3(cursor) if version == 3 else _parse_v4(cursor)
    if file.read(metadata.chunks_end, 1)[0] != SEPARATOR:
        raise corruption_error(file.path, "no end mark after the chunks", metadata.chunks_end)
    _refuse_encryption(file.path, metadata)
    return metadata


def _parse_v3(cursor: Cursor) -> FileMetadata:
    root = parse_node(cursor, 3, of_devices=True)
    chunks_end = _chunks_end(cursor)
    _skip_bloom_filter(cursor)
    return FileMetadata(3, (root,), {}, chunks_end, cursor.base, {})


def _parse_v4(cursor: Cursor) -> FileMetadata:
    roots = []
    for _ in range(cursor.read_count(10)):
        cursor.read_var_string()
        roots.append(parse_node(cursor, 4, of_devices=True))
    tables = {}
    for _ in range(cursor.read_count(2)):
        name = cursor.read_var_name()
        tables[name] = _tag_columns(cursor)
    chunks_end = _chunks_end(cursor)
    _skip_bloom_filter(cursor)
    return FileMetadata(4, tuple(roots), tables, chunks_end, cursor.base, _read_properties(cursor))


def _chunks_end(cursor: Cursor) -> int:
    at = cursor.position
    offset = cursor.read_i64()
    if not HEAD_LENGTH <= offset < cursor.base:
        raise cursor.corruption_error(f"the chunks cannot end at byte {offset}", at)
    return offset


def _tag_columns(cursor: Cursor) -> tuple[str, ...]:
    """Read a table's schema and return the names of its tag columns, in order."""
    tags = []
    for _ in range(cursor.read_count(15)):
        name = cursor.read_int_string()
        cursor.read_exactly(3)  # type, encoding, compression
        for _ in range(cursor.read_i32()):
            cursor.read_int_string()
            cursor.read_int_string()
        if cursor.read_i32() == _TAG:
            tags.append(name or "")
    return tuple(tags)


def _skip_bloom_filter(cursor: Cursor) -> None:
    if cursor.bytes_left() and (length := cursor.read_uvarint()):
        cursor.read_exactly(length)
        cursor.read_uvarint()
        cursor.read_uvarint()


def _read_properties(cursor: Cursor) -> dict[str, str | None]:
    """Read the properties: name → value. Some releases write their number as varint, others as uvarint."""
    found: dict[str, str | None] = {}
    if not cursor.bytes_left():
        return found
    announced = cursor.read_uvarint()
    pairs = 0
    while cursor.bytes_left():
        key = cursor.read_var_name()
        found[key] = cursor.read_var_string()
        pairs += 1
    if announced not in (pairs, 2 * pairs):
        raise cursor.corruption_error(f"{announced} properties announced, {pairs} there")
    return found


def _refuse_encryption(path: str, metadata: FileMetadata) -> None:
    level = metadata.properties.get("encryptLevel") or "0"
    if level != "0":
        kind = metadata.properties.get("encryptType") or "unknown"
        raise _unsupported_error(path, f"the file is encrypted (level {level}, {kind}); its key stays at the site")


def _unsupported_error(path: str, problem: str) -> CorruptionError:
    return UnsupportedError(
        f"{path}: {problem}", hint="the file is kept as it came; load it where it was made", subject=path
    )
