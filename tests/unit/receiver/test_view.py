"""Which files make up a device as readers see it, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.view import overlay_points, seen_devices
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column

FILE = CatalogFile(
    receiver="centre",
    site_id="a",
    role="source",
    path="x",
    generation=1,
    database="works",
    model="table",
    format=4,
    partition_from=0,
    partition_to=0,
    location="data/works/0/x",
    sha256="",
    size=1,
    mods_location="",
    mods_sha256="",
    points=1,
    rank=(0, 1, 0, 0, 0),
    created=0.0,
    file_id=1,
)


def held(*names: str) -> tuple[CatalogDevice, ...]:
    return tuple(CatalogDevice(name, 0, 1, 1) for name in names)


def test_devices_of_tables_are_padded_to_the_latest_number_of_tags() -> None:
    files = [FILE, replace(FILE, file_id=2, rank=(0, 2, 0, 0, 0))]
    devices = {1: held("works.s.r1", "works.`t.u`.x"), 2: held("works.s.r1.k2", "works.s.r1")}
    widths = {("a", "works", "s"): 2, ("a", "works", "t.u"): 1, ("b", "works", "s"): 9}
    seen = seen_devices(files, devices, {}, widths)
    assert {d.name: [layer.file.file_id for layer in d.layers] for d in seen} == {
        "works.`t.u`.x": [1],
        "works.s.r1.\\N": [1, 2],
        "works.s.r1.k2": [2],
    }


def test_the_present_owner_is_read_over_the_former_one() -> None:
    former = replace(FILE, model="tree", database="root.sg", rank=(1, 99, 0, 0, 0))
    present = replace(former, site_id="b", file_id=2, rank=(0, 1, 0, 0, 0))
    devices = {1: held("root.sg.d"), 2: held("root.sg.d")}
    [device] = seen_devices([former, present], devices, {"root.sg.d": "b"}, {})
    assert [layer.file.site_id for layer in device.layers] == ["a", "b"]


def test_points_of_two_types_lie_over_each_other() -> None:
    low = Column(DataType.INT32, np.array([1, 2], np.int64), np.array([10, 20], np.int32))
    high = Column(DataType.TEXT, np.array([2, 3], np.int64), np.array([b"b", b"c"], object))
    found = overlay_points([low, high])
    assert list(zip(found.times.tolist(), found.types, found.texts, strict=True)) == [
        (1, "INT32", "10"),
        (2, "TEXT", "b"),
        (3, "TEXT", "c"),
    ]
    assert len(overlay_points([]).times) == 0
