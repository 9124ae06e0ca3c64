"""Every layout of `.resource` (research/iotdb.md §5); those of the real files are proved in test_real_folders."""

from __future__ import annotations

import struct

import pytest

from tests.unit.tsfiles.handmade import int_string, string
from tidemark.errors import CorruptionError
from tidemark.tsfiles.companions.resource import read_extent, read_mods_name

FIRST, LAST = 1_704_326_799_999, 1_704_351_710_326


def tail() -> bytes:
    """Plan indexes, no mods name, an empty block: what follows the index from 0.12 on."""
    return struct.pack(">qqi", 5, 1, -1) + b"\x00"


def test_up_to_011_two_maps_in_orders_of_their_own() -> None:
    starts = (
        struct.pack(">i", 2)
        + int_string("root.a.d1")
        + struct.pack(">q", 10)
        + int_string("root.a.d2")
        + struct.pack(">q", 20)
    )
    ends = (
        struct.pack(">i", 2)
        + int_string("root.a.d2")
        + struct.pack(">q", 29)
        + int_string("root.a.d1")
        + struct.pack(">q", 19)
    )
    versions = struct.pack(">iq", 1, 7)
    expected = (("root.a.d1", 10, 19), ("root.a.d2", 20, 29))
    assert read_extent(starts + ends) == expected
    assert read_extent(starts + ends + versions) == expected


def test_012_to_1x_devices_are_paths() -> None:
    data = b"\x01\x01" + struct.pack(">iqqqq", 2, FIRST, LAST, -5, 5)
    data += int_string("root.a.d2") + struct.pack(">i", 1) + int_string("root.a.d1") + struct.pack(">i", 0) + tail()
    assert read_extent(data) == (("root.a.d1", FIRST, LAST), ("root.a.d2", -5, 5))


def test_2x_devices_are_segments_of_either_model() -> None:
    data = b"\x01\x03" + struct.pack(">iqqqqqq", 3, 1, 2, 3, 4, 5, 6)
    data += b"\x02" + string("root.a.b") + string("c") + struct.pack(">i", 2)
    data += b"\x03" + string("sensors") + string(None) + string("x") + struct.pack(">i", 0)
    data += b"\x02" + string("sensors") + string("r0") + struct.pack(">i", 1) + tail()
    assert read_extent(data, "works") == (
        ("root.a.b.c", 5, 6),
        ("works.sensors.\\N.x", 1, 2),
        ("works.sensors.r0", 3, 4),
    )


def test_a_file_index_of_012_gives_its_devices_the_files_interval() -> None:
    data = (
        b"\x01\x00"
        + struct.pack(">i", 2)
        + int_string("root.a.d2")
        + int_string("root.a.d1")
        + struct.pack(">qq", 7, 9)
        + tail()
    )
    assert read_extent(data) == (("root.a.d1", 7, 9), ("root.a.d2", 7, 9))


def test_a_file_index_without_devices_speaks_for_all() -> None:
    assert read_extent(b"\x01\x02" + struct.pack(">qq", 7, 9) + tail()) == (("**", 7, 9),)


def test_a_device_without_points_is_left_out() -> None:
    data = b"\x01\x01" + struct.pack(">iqqqq", 2, 1, 2, 2**63 - 1, -(2**63))
    data += int_string("root.a.d1") + struct.pack(">i", 0) + int_string("root.a.d2") + struct.pack(">i", 1) + tail()
    assert read_extent(data) == (("root.a.d1", 1, 2),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x01",
        b"\x01\x01" + struct.pack(">i", 2_000_000_000),
        b"\x01\x01"
        + struct.pack(">iqq", 1, 1, 2)
        + int_string("root.a.d1")
        + struct.pack(">i", 1)
        + tail(),  # no interval 1
        b"\x01\x01" + struct.pack(">iqq", 1, 1, 2) + int_string("root.a.d1") + struct.pack(">i", 0),  # no plan indexes
        struct.pack(">i", 1) + int_string("root.a.d1") + struct.pack(">qi", 1, 0),  # different devices
        struct.pack(">i", 1) + b"\x00\x00\x00\x02\xff\xfe" + struct.pack(">q", 1),  # not UTF-8
    ],
)
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"x\.resource: "):
        read_extent(data, what="x.resource")


MODS = "1-1-2-1.tsfile.mods"


def test_the_name_of_its_deletions() -> None:
    head = b"\x01\x01" + struct.pack(">iqq", 1, FIRST, LAST) + int_string("root.a.d1") + struct.pack(">i", 0)
    plan = struct.pack(">qq", 5, 1)
    assert read_mods_name(head + plan + int_string(MODS)) == MODS
    assert read_mods_name(head + plan) == read_mods_name(head + tail()) == ""
    for torn in (head, head + plan + b"\0", head + plan + int_string(MODS)[:-1], head + plan + struct.pack(">i", -7)):
        with pytest.raises(CorruptionError):
            read_mods_name(torn)


def test_up_to_011_the_name_of_its_deletions_stands_behind_versions() -> None:
    maps = 2 * (struct.pack(">i", 1) + int_string("root.a.d1") + struct.pack(">q", 10))
    assert read_mods_name(maps + struct.pack(">iqq", 2, 7, 8) + int_string(MODS)) == MODS
    assert read_mods_name(maps) == read_mods_name(maps + struct.pack(">iq", 1, 7)) == ""
    with pytest.raises(CorruptionError):
        read_mods_name(maps + struct.pack(">i", -1) + int_string(MODS))
