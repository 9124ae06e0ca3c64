"""What a merge left, as one digest: every point of every column of every device, whoever wrote it and in whatever files.

    python -m bench.merge_seen FOLDER     TsFiles or Parquet files, at any depth

Prints JSON: rows, points, digest. A process of its own, so that looking does not count to anybody's memory.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.merge_data import SERIES

Device = tuple[str, dict[str, tuple[Any, Any]]]  # its columns: times and values of the points that are there


def of_tsfiles(files: list[Path]) -> Iterator[Device]:
    from tidemark.tsfiles.points.column import overlay_columns
    from tidemark.tsfiles.reader import TsFile

    where: dict[str, list[TsFile]] = {}
    for file in map(TsFile, files):
        for device in file.list_devices():
            where.setdefault(device, []).append(file)
    for device, holders in sorted(where.items()):
        columns = {}
        for name in SERIES:
            parts = [file.read_column(device, name) for file in holders if name in file.list_measurements(device)]
            whole = overlay_columns(parts)
            if len(whole) != sum(map(len, parts)):
                raise RuntimeError(f"{device}.{name} has a point in two files")
            columns[name] = (whole.times, whole.values)
        yield device, columns


def of_parquet(files: list[Path]) -> Iterator[Device]:
    import pyarrow.parquet as pq

    table = pq.read_table(files).combine_chunks()
    names = np.asarray(table["device"].dictionary_encode().combine_chunks().indices)
    dictionary = table["device"].dictionary_encode().combine_chunks().dictionary.to_pylist()
    starts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    for start, end in zip(starts, np.append(starts[1:], len(names)), strict=True):
        part = table.slice(start, end - start)
        times = part["time"].to_numpy()
        columns = {}
        for name in SERIES:
            there = part[name].is_valid().to_numpy()
            columns[name] = (times[there], part[name].drop_null().to_numpy())
        yield dictionary[names[start]], columns


def seen(folder: Path) -> dict[str, Any]:
    tsfiles, parquet = sorted(folder.rglob("*.tsfile")), sorted(folder.rglob("*.parquet"))
    digest = hashlib.sha256()
    points = rows = 0
    for device, columns in of_tsfiles(tsfiles) if tsfiles else of_parquet(parquet):
        for name in sorted(SERIES):
            times, values = columns[name]
            digest.update(f"{device} {name} {len(times)}".encode())
            digest.update(np.ascontiguousarray(times).tobytes())
            digest.update(np.ascontiguousarray(values).tobytes())
            points += len(times)
        rows += max(len(times) for times, _ in columns.values())
    return {"rows": rows, "points": points, "digest": digest.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(seen(Path(sys.argv[1]))))
