"""Owners from an original receiver: Java's stream of a HashMap<String, String>, and the seed's text."""

from __future__ import annotations

import struct

import pytest

from tidemark.errors import CorruptionError
from tidemark.sync.adopt import read_owners, site_of

OWNER = "192.168.130.14_a45b6e63eb434aad891264b5c08d448e"


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def java_map(owners: dict[str, str]) -> bytes:
    """What ObjectOutputStream.writeObject(new HashMap<>(owners)) writes (Java Object Serialization, chapter 6)."""
    handles: dict[str, int] = {}

    def string(text: str) -> bytes:
        if text in handles:
            return b"\x71" + struct.pack(">i", handles[text])
        handles[text] = 0x7E0002 + len(handles)
        return b"\x74" + utf(text)

    out = b"\xac\xed\x00\x05\x73\x72" + utf("java.util.HashMap") + struct.pack(">q", 362498820763181265) + b"\x03"
    out += struct.pack(">H", 2) + b"F" + utf("loadFactor") + b"I" + utf("threshold") + b"\x78\x70"
    out += struct.pack(">fi", 0.75, 12) + b"\x77\x08" + struct.pack(">ii", 16, len(owners))
    return out + b"".join(string(d) + string(o) for d, o in owners.items()) + b"\x78"


def test_a_serialised_map_with_a_repeated_owner() -> None:
    owners = {"root.sg.d1": OWNER, "root.sg.d2": OWNER, "root.sg.é": "other"}
    assert read_owners(java_map(owners)) == owners


def test_the_text_form() -> None:
    assert read_owners(f"root.sg.d1,{OWNER}\nroot.sg.d2 {OWNER}\n".encode()) == {"root.sg.d1": OWNER, "root.sg.d2": OWNER}


@pytest.mark.parametrize("cut", [5, 30, 80, 110])
def test_a_torn_map_is_told(cut: int) -> None:
    with pytest.raises(CorruptionError, match="device_owner"):
        read_owners(java_map({"root.sg.d1": OWNER, "root.sg.d2": OWNER})[:cut])


def test_an_owner_names_a_site_by_its_uuid() -> None:
    assert site_of(OWNER) == "a45b6e63-eb43-4aad-8912-64b5c08d448e"
    assert site_of("root.sg") is None  # the 0.12+ layout wrote storage groups (B13)
