"""The messages of the protocol, field by field (protobuf 3). Numbers and names are the original's; a client needs no more.

`message_class` gives a message as a class of the `protobuf` package, made from this list. `encode_field` writes bytes
without it: what is sent is the same bytes for the same changes, and a row costs a third. `read_fields` reads without it: a
message within a message is a view, and not a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

PARTITIONED, MESSAGE, ERROR = 1, 2, 3  # messageType
MYSQL = 1  # sourceType
GTID_OFFSET, BINLOG_OFFSET, TIME = 1, 2, 3  # positionType
INSERT, UPDATE, DELETE, CREATE, ALTER, ERASE, QUERY, TRUNCATE, RENAME, CINDEX, DINDEX = range(1, 12)  # eventType
GTID, XACOMMIT, XAROLLBACK, TRANSACTIONBEGIN, TRANSACTIONEND, HEARTBEAT = range(12, 18)
UNDIVIDED = -1
"""Instead of a shard: rows of all shards, for a client that divides them itself."""

FIELDS = {
    "RdsEnvelope": "int32 version 1, int32 messageType 2, bytes message 3, int32 error_code 4, string error_message 5,"
    " int64 totalEventCount 6, repeated Pair props 7, Checkpoint latestCheckpoint 8",
    "RdsPartitionedMessage": "map int32 RdsMessage partitionedMessages 1, repeated Pair props 2",
    "RdsMessage": "int64 messageCount 1, int64 messageSize 2, repeated bytes messages 3, repeated Pair props 4",
    "RdsEvent": "RdsHeader header 1, bool isDdl 2, int32 eventType 3, RowData rowData 4, repeated Pair props 5,"
    " string ddlSchemaName 6, string sql 7, string comment 8",
    "RdsHeader": "int32 version 1, Checkpoint checkpoint 2, string encode 3, int64 executeTime 4, int32 sourceType 5,"
    " string tableName 6, int64 tableId 7, string partitionKey 8, repeated Pair props 9, string primaryKey 10",
    "RowData": "map string Column before 1, map string Column after 2, repeated Pair props 3",
    "Column": "int32 index 1, int32 sqlType 2, string name 3, bool isKey 4, bool updated 5, bool isNull 6,"
    " repeated Pair props 7, string value 8, int32 length 9, string mysqlType 10",
    "Pair": "string key 1, string value 2",
    "Checkpoint": "string uuid 1, int64 transactionId 2, int64 eventIndex 3, int32 serverId 4, int32 binlogFile 5,"
    " int64 binlogOffset 6, int64 timestamp 7, int32 positionType 8, int64 versionTs 9",
}
_SCALARS = {"int32": 5, "int64": 3, "bool": 8, "string": 9, "bytes": 12}
_PACKAGE = "tidemark.changes"


def message_class(name: str) -> Any:
    """A message as a class of the `protobuf` package."""
    return _make_classes()[name]


@cache
def _make_classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="tidemark/changes.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for declared in fields.split(", "):
            *kinds, field, number = declared.split()
            if kinds[0] == "map":
                entry = message.nested_type.add(name=f"{field[0].upper()}{field[1:]}Entry")
                entry.options.map_entry = True
                _add_field(entry, kinds[1], "key", 1)
                _add_field(entry, kinds[2], "value", 2)
                _add_field(message, f"{name}.{entry.name}", field, int(number), repeated=True)
            else:
                _add_field(message, kinds[-1], field, int(number), repeated=kinds[0] == "repeated")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in FIELDS}


def _add_field(message: Any, kind: str, name: str, number: int, *, repeated: bool = False) -> None:
    field = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = 11, f".{_PACKAGE}.{kind}"


# bytes


@lru_cache(maxsize=1 << 14)
def encode_varint(number: int) -> bytes:
    """A number as protobuf writes it; a negative one has ten bytes. Lengths are the same few thousand numbers."""
    if 0 <= number < 128:
        return bytes((number,))
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def encode_field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: a number, a text, or the bytes of a message. What is 0 or "" is left out."""
    if not value:
        return b""
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return b"".join((encode_varint(number << 3 | 2), encode_varint(len(data)), data))


def read_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a message, in their order: numbers, 0 or larger, and views of what is longer. ValueError: it is no
    message. Numbers of a fixed size, which no message here has, are left out."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"field {number} is of wire type {kind}")
        length, at = _read_varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
        if length > size - at:
            raise ValueError(f"field {number} is cut off")
        if kind == 2:
            yield number, data[at : at + length]
        at += length


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at
    raise ValueError("a number is cut off")


def encode_part(number: int, data: bytes) -> bytes:
    """A member of a repeated field: there also where it is empty."""
    return b"".join((encode_varint(number << 3 | 2), encode_varint(len(data)), data))


def encode_pairs(number: int, pairs: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(encode_part(number, encode_field(1, key) + encode_field(2, value)) for key, value in pairs)
