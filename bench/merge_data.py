"""The files that `bench merge` merges: old rows and newer ones of sensor-like devices, as TsFiles and as Parquet.

    python -m bench.merge_data FOLDER DEVICES OLD_ROWS NEW_ROWS EVERY PARQUET

FOLDER/old-N.tsfile and new-N.tsfile (aligned tree devices), and the same rows as .parquet where PARQUET is 1. Of the new
rows half have the time of an old one, half a time between two; one column has no value in 30 % of them. Only every
EVERY-th device has new rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import TsFileWriter

SERIES = {"pres": DataType.FLOAT, "st": DataType.INT64, "temp": DataType.DOUBLE}
START = 1_699_488_000_000  # a week begins
STEP = 1_000
OLD_FILES, NEW_FILES = 8, 4
DEVICE = "root.bench.line.d{:05d}"

Rows = dict[str, tuple[NDArray[np.int64], NDArray[Any]]]  # column → times, values


def old_rows(device: int, rows: int) -> Rows:
    random = np.random.default_rng(2 * device)
    times = START + np.arange(rows) * STEP
    return {name: (times, values) for name, values in _values(random, rows).items()}


def new_rows(device: int, rows: int, among: int) -> Rows:
    """`among`: how many old rows there are."""
    random = np.random.default_rng(2 * device + 1)
    same = random.choice(among, rows // 2, replace=False) * STEP
    between = random.choice(among, rows - rows // 2, replace=False) * STEP + STEP // 2
    times = START + np.sort(np.concatenate([same, between]))
    values = _values(random, rows)
    there = random.random(rows) >= 0.3
    return {name: (times[there], one[there]) if name == "pres" else (times, one) for name, one in values.items()}


def _values(random: np.random.Generator, rows: int) -> dict[str, NDArray[Any]]:
    return {
        "pres": np.round(random.normal(100, 1, rows), 2).astype(np.float32),
        "st": random.integers(0, 10, rows),
        "temp": np.round(20 + np.cumsum(random.normal(0, 0.01, rows)), 3),
    }


def write(folder: Path, devices: int, old: int, new: int, every: int, parquet: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    everyone = range(devices)
    touched = range(0, devices, every)
    for number in range(OLD_FILES):
        mine = everyone[number * devices // OLD_FILES : (number + 1) * devices // OLD_FILES]
        _write(folder / f"old-{number}", mine, [old_rows(device, old) for device in mine], parquet)
    for number in range(NEW_FILES):
        mine = touched[number * len(touched) // NEW_FILES : (number + 1) * len(touched) // NEW_FILES]
        if mine:
            _write(folder / f"new-{number}", mine, [new_rows(device, new, old) for device in mine], parquet)


def _write(place: Path, devices: Sequence[int], rows: Sequence[Rows], parquet: bool) -> None:
    with TsFileWriter(place.with_suffix(".tsfile")) as writer:
        for device, columns in zip(devices, rows, strict=True):
            made = {name: Column(SERIES[name], times, values) for name, (times, values) in columns.items()}
            writer.write_device(("root.bench.line", DEVICE.format(device).rpartition(".")[2]), made, aligned=True)
    if parquet:
        _write_parquet(place.with_suffix(".parquet"), devices, rows)


def _write_parquet(place: Path, devices: Sequence[int], rows: Sequence[Rows]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"device": pa.string(), "time": pa.int64(), "pres": pa.float32(), "st": pa.int64(), "temp": pa.float64()}
    with pq.ParquetWriter(place, pa.schema(list(kinds.items())), compression="zstd") as writer:
        for device, columns in zip(devices, rows, strict=True):
            times = columns["temp"][0]
            table = {"device": pa.repeat(DEVICE.format(device), len(times)), "time": pa.array(times)}
            for name, (own, values) in columns.items():
                there = np.isin(times, own, assume_unique=True)
                spread = np.zeros(len(times), values.dtype)
                spread[there] = values
                table[name] = pa.array(spread, mask=~there)
            writer.write_table(pa.table(table, schema=writer.schema))


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:6]), parquet=sys.argv[6] == "1")
