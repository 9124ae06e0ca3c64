"""The owners that an original receiver wrote down: a Java-serialised map from device to owner, or the seed's text log.

Pure. Only a map of strings is understood, and of Java's stream only what such a map is made of: class descriptions are
skipped, strings are collected, repeated strings are references to earlier ones. An owner is a folder name
`<sender's IP>_<UUID, 32 hex digits>`. Source: seed 000 "Others", research/iotdb.md §1.6 (B13: the 0.12+ layout wrote
storage groups there; such owners name no UUID and are left out by `site_of`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from uuid import UUID

from tidemark.errors import CorruptionError

_MAGIC = b"\xac\xed\x00\x05"
_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _LONG_STRING, _BLOCK, _END = 0x70, 0x71, 0x72, 0x73, 0x74, 0x7C, 0x77, 0x78
_FIRST_HANDLE = 0x7E0000
_LINE = re.compile(r"(.+?)\s*[,=\t ]\s*(\S+)")
_UUID = re.compile(r"(?:^|_)([0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})$")


def read_owners(data: bytes) -> Mapping[str, str]:
    """{device: owner as written}. Raises CorruptionError where the bytes are neither form."""
    return _java_map(data) if data.startswith(_MAGIC) else _text(data)


def site_of(owner: str) -> str | None:
    """The UUID in an owner's name, with its dashes; None where it has none."""
    found = _UUID.search(owner)
    return str(UUID(found[1])) if found else None


def _text(data: bytes) -> Mapping[str, str]:
    owners = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise CorruptionError(f'device_owner: line {number} is not "device,owner": {line[:80]!r}')
            owners[found[1]] = found[2]
    return owners


def _java_map(data: bytes) -> Mapping[str, str]:
    reader = _Stream(data)
    try:
        if reader.byte() != _OBJECT:
            raise CorruptionError("device_owner: not a serialised map")
        fields = reader.class_fields()
        reader.handles.append(None)  # the map itself
        for type_code in fields:
            reader.skip(_FIELD_SIZES[type_code])
        if reader.byte() != _BLOCK:
            raise CorruptionError("device_owner: not a serialised java.util.HashMap")
        size = struct.unpack(">i", reader.take(reader.byte())[4:8])[0]
        return {reader.text(): reader.text() for _ in range(size)}
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as broken:
        raise CorruptionError(f"device_owner: the serialised map ends early or is damaged: {broken}") from broken


_FIELD_SIZES = {"B": 1, "C": 2, "D": 8, "F": 4, "I": 4, "J": 8, "S": 2, "Z": 1}


class _Stream:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = len(_MAGIC)
        self.handles: list[str | None] = []

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        if len(piece) < size:
            raise IndexError(f"{size} bytes wanted at {self.at}")
        self.at += size
        return piece

    def skip(self, size: int) -> None:
        self.take(size)

    def byte(self) -> int:
        return self.take(1)[0]

    def utf(self) -> str:
        return self.take(int.from_bytes(self.take(2), "big")).decode()

    def class_fields(self) -> list[str]:
        """Type codes of the class's primitive fields; its superclasses have none worth reading."""
        mark = self.byte()
        if mark == _NULL:
            return []
        if mark != _CLASS:
            raise KeyError(f"class description expected, found {mark:#x}")
        self.utf()
        self.handles.append(None)
        self.skip(8 + 1)  # serialVersionUID, flags
        fields = []
        for _ in range(int.from_bytes(self.take(2), "big")):
            fields.append(chr(self.byte()))
            self.utf()
        if self.byte() != _END:
            raise KeyError("annotations in a class description")
        self.class_fields()
        return fields

    def text(self) -> str:
        mark = self.byte()
        if mark == _REFERENCE:
            found = self.handles[int.from_bytes(self.take(4), "big") - _FIRST_HANDLE]
            if found is None:
                raise KeyError("a reference to something else than a string")
            return found
        if mark not in (_STRING, _LONG_STRING):
            raise KeyError(f"string expected, found {mark:#x}")
        size = int.from_bytes(self.take(2 if mark == _STRING else 8), "big")
        text = self.take(size).decode()
        self.handles.append(text)
        return text
