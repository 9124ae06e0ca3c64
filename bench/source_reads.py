"""One contender of `bench source` in a process of its own: reads when asked, says what it took and what it read.

    python -m bench.source_reads KIND PATH…     a line on stdin is one read; a JSON line on stdout answers

KIND: `ours` and `official` read all points of the tree file PATH into arrays. `spark` asks a session for the same aggregate
over one of several FORMAT=PATH behind its scratch folder; the line names the format. Only the read is timed; `seen` is what
must be equal between contenders.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.source_data import SERIES

Seen = tuple[float, int, str]  # seconds, points, digest
_EVER = (-(2**62), 2**62)


def read_ours(path: str) -> Seen:
    from tidemark.tsfiles.reader import TsFile

    began = time.perf_counter()
    with TsFile(path) as file:
        found = [
            file.read_column(device, series) for device in file.list_devices() for series in file.list_measurements(device)
        ]
    took = time.perf_counter() - began
    digest = hashlib.sha256()
    for column in found:
        digest.update(column.times.tobytes())
        digest.update(column.values.tobytes())
    return took, sum(map(len, found)), digest.hexdigest()


def read_official(path: str) -> Seen:
    """`query_timeseries` and `read_data_frame`: the row API of the package as its documentation shows it."""
    from tsfile import TsFileReader

    began = time.perf_counter()
    reader = TsFileReader(path)
    frames = []
    for device in sorted(device.path for device in reader.get_all_devices()):
        result = reader.query_timeseries(device, sorted(SERIES), *_EVER)
        while len(frame := result.read_data_frame(65_536)):
            frames.append((device, frame))
        result.close()
    reader.close()
    took = time.perf_counter() - began
    digest, points = hashlib.sha256(), 0
    for device in sorted({device for device, _ in frames}):
        mine = [frame for name, frame in frames if name == device]
        times = np.concatenate([frame["time"].to_numpy(np.int64) for frame in mine])
        for series in sorted(SERIES):
            digest.update(times.tobytes())
            column = np.concatenate([frame[f"{device}.{series}"].to_numpy() for frame in mine])
            digest.update(column.tobytes())
            points += len(column)
    return took, points, digest.hexdigest()


class SparkReads:
    """A warm local session; the aggregate of three columns over the path of a format."""

    def __init__(self, scratch: str, *paths: str) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.local.dir", scratch).config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        self.spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        self.paths = dict(path.split("=", 1) for path in paths)

    def read(self, which: str) -> Seen:
        began = time.perf_counter()
        reader = self.spark.read.format(which)
        if which != "parquet":
            reader = reader.option("columns", "level,speed,total")
        frame = reader.load(self.paths[which])
        row = frame.selectExpr("count(level)", "max(speed)", "min(level)", "sum(total)").first()
        return time.perf_counter() - began, int(row[0]), repr(tuple(row))


def main(kind: str, paths: list[str]) -> None:
    once: Callable[[str], Seen]
    if kind == "spark":
        once = SparkReads(*paths).read
    else:
        reader = read_ours if kind == "ours" else read_official
        once = lambda _: reader(paths[0])  # noqa: E731
    for line in sys.stdin:
        seconds, points, seen = once(line.strip())
        answer: dict[str, Any] = {"seconds": seconds, "points": points, "seen": seen, "peak_mb": peak_mb()}
        print(json.dumps(answer), flush=True)


def peak_mb() -> float:
    """The largest resident size this process ever had, in megabytes (10**6 bytes)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
