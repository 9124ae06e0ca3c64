"""TsFiles of a few points, with their companions, for tests that say which point is where."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.crash.edge import resource_bytes
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.write.writer import TsFileWriter, device_order, tree_segments

Devices = Mapping[str, Mapping[str, Sequence[tuple[int, int]]]]  # device → measurement → (time, value)


def tsfile(devices: Devices, data_type: DataType = DataType.INT64) -> bytes:
    """A TsFile of the tree model whose series all have one integer type."""
    dtype = np.int32 if data_type is DataType.INT32 else np.int64
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "1-1-0-0.tsfile"
        with TsFileWriter(place) as writer:
            for device in sorted(devices, key=lambda d: device_order(tree_segments(d))):
                columns = {
                    measurement: Column(
                        data_type, np.array([t for t, _ in points], np.int64), np.array([v for _, v in points], dtype)
                    )
                    for measurement, points in devices[device].items()
                }
                writer.write_device(tree_segments(device), columns, aligned=False)
        return place.read_bytes()


def sealed(devices: Devices, mods: str = "", data_type: DataType = DataType.INT64) -> dict[str, bytes]:
    """A sealed file as the site keeps it: TsFile, `.resource` and, where given, `.mods`."""
    extent = {
        device: (min(t for points in series.values() for t, _ in points), max(t for p in series.values() for t, _ in p))
        for device, series in devices.items()
    }
    parts = {"": tsfile(devices, data_type), ".resource": resource_bytes(extent)}
    return {**parts, ".mods": mods.encode()} if mods else parts


def deletion(series: str, start: int, end: int) -> str:
    """One entry of the text form, for every chunk of its file."""
    return f"DELETION,{series},{1 << 40},{start},{end}\n"


def source(version: int, *, inner: int = 0, cross: int = 0, unsequence: bool = False, database: str = "root.sg") -> str:
    """A source path; higher versions win."""
    folder = "unsequence" if unsequence else "sequence"
    return f"data/{folder}/{database}/0/0/{1_600_000_000_000 + version}-{version}-{inner}-{cross}.tsfile"


def file_of(
    devices: Mapping[tuple[str | None, ...], Mapping[str, Column]],
    aligned: bool = False,
    tables: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, bytes]:
    """A TsFile of any columns, by the segments of their devices, without companions. `tables`: table → its tag columns."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "1-1-0-0.tsfile"
        with TsFileWriter(place, tables) as writer:
            for segments in sorted(devices, key=device_order):
                writer.write_device(segments, devices[segments], aligned)
        return {"": place.read_bytes()}


def column_of(data_type: DataType, points: Mapping[int, object]) -> Column:
    """The points (time → value) of a series of any type."""
    values = np.empty(len(points), VALUE_DTYPES[data_type])
    values[:] = [points[time] for time in sorted(points)]
    return Column(data_type, np.array(sorted(points), np.int64), values)
