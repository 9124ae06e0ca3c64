"""What is written beside a TsFile is what IoTDB 2.x writes there, and reads as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.expected import SITES
from tidemark.tsfiles.companions.mods import Deletion, TagRule, parse_mods
from tidemark.tsfiles.companions.resource import read_extent
from tidemark.tsfiles.devices import table_device
from tidemark.tsfiles.layout.bytes import Cursor
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.write.companions import encode_resource, encode_table_deletion

DEVICES: dict[Segments, tuple[int, int]] = {
    ("t",): (-5, 7),
    ("t", "a.b", None, "ü"): (0, 0),
    ("t", ""): (1, 1 << 62),
}


def test_a_resource_tells_devices_and_their_times() -> None:
    assert read_extent(encode_resource(DEVICES), "works") == tuple(
        sorted((table_device("works", device), *span) for device, span in DEVICES.items())
    )


def test_devices_and_times_are_the_bytes_of_a_real_resource() -> None:
    compared = 0
    for path in sorted((Path(SITES["2.0.1-beta"].root)).rglob("*.tsfile.resource")):
        cursor = Cursor(data := path.read_bytes(), str(path))
        cursor.read_exactly(2)
        spans = [cursor.read_i64_pair() for _ in range(cursor.read_i32())]
        numbers, extent = [], {}
        for _ in spans:
            device = tuple(cursor.read_var_string() for _ in range(cursor.read_count(1)))
            numbers.append(cursor.read_i32())
            extent[device] = spans[numbers[-1]]
        if numbers == sorted(numbers):  # the server's order is that of a hash map
            assert encode_resource(extent)[: cursor.position] == data[: cursor.position]
            compared += 1
    assert compared


@pytest.mark.parametrize("device", [None, ("t", "a"), ("t", "a", None, "b"), ("t", "")])
@pytest.mark.parametrize("measurements", [(), ("n",), ("n", "größe")])
def test_a_deletion_reads_as_it_was_meant(device: Segments | None, measurements: tuple[str, ...]) -> None:
    made = encode_table_deletion((-3, 9), "t", device, measurements)
    rule = TagRule() if device is None else TagRule(devices=((device,),))
    assert parse_mods(made + made, "mods2") == (Deletion(-3, 9, table="t", rule=rule, measurements=measurements),) * 2


def test_of_many_deletions_those_of_a_device_are_found() -> None:
    data = b"".join(encode_table_deletion((n, n), "t", ("t", f"m{n}"), ("n",)) for n in range(100))
    data += encode_table_deletion((7, 8), "t") + encode_table_deletion((1, 2), "other")
    found = parse_mods(data, "mods2")
    assert sorted((one.start, one.end) for one in found.of_series("works.t.m3", "n")) == [(3, 3), (7, 8)]
    assert [(one.start, one.end) for one in found.of_series("works.t.m3", "other")] == [(7, 8)]
    assert [(one.start, one.end) for one in found.of_series("works.other", "n")] == [(1, 2)]
