"""The other ways to merge the same rows: DuckDB, polars, and plans of Spark that shuffle.

`duckdb-tsfile`, `polars-tsfile`: Tidemark's reader and writer around them, two threads each for reading and writing, devices
as numbers: as good as it gets for them. `duckdb-parquet`: Parquet in and out (zstd), no TsFile at all. `spark-cogroup`,
`spark-join`: the format `tsfile` in and out, two threads, one session for all merges.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.merge_data import DEVICE, SERIES
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.write.writer import TsFileWriter

THREADS = 2
COLUMNS = ", ".join(f"coalesce(n.{name}, o.{name}) AS {name}" for name in SERIES)
FULL_JOIN = (
    f"SELECT coalesce(o.device, n.device) AS device, coalesce(o.time, n.time) AS time, {COLUMNS} "
    "FROM {old} o FULL JOIN {new} n ON o.device = n.device AND o.time = n.time ORDER BY device, time"
)


def merges(kind: str, folder: Path, scratch: Path) -> Callable[[Path], None]:
    """The merge of a contender: what is in `folder` goes into the folder it is given."""
    if kind.startswith("spark-"):
        return _Spark(kind, folder, str(scratch)).merge
    return lambda out: {"duckdb-tsfile": _duckdb, "polars-tsfile": _polars, "duckdb-parquet": _parquet}[kind](folder, out)


def _duckdb(folder: Path, out: Path) -> None:
    import duckdb

    old, new = _table(sorted(folder.glob("old-*.tsfile"))), _table(sorted(folder.glob("new-*.tsfile")))
    with duckdb.connect(config={"threads": THREADS}) as connection:
        connection.register("old", old)
        connection.register("new", new)
        merged = connection.sql(FULL_JOIN.format(old="old", new="new")).to_arrow_table()
    del old, new
    _write(merged, out)


def _polars(folder: Path, out: Path) -> None:
    import polars as pl

    old = pl.from_arrow(_table(sorted(folder.glob("old-*.tsfile"))))
    new = pl.from_arrow(_table(sorted(folder.glob("new-*.tsfile"))))
    joined = old.lazy().join(new.lazy(), on=["device", "time"], how="full", coalesce=True, suffix="_new")
    chosen = joined.select("device", "time", *(pl.coalesce(f"{name}_new", name).alias(name) for name in SERIES))
    merged = chosen.sort("device", "time").collect()
    del old, new
    _write(merged.to_arrow(), out)


def _parquet(folder: Path, out: Path) -> None:
    import duckdb

    old, new = (f"read_parquet('{folder}/{name}-*.parquet')" for name in ("old", "new"))
    with duckdb.connect(config={"threads": THREADS, "temp_directory": str(out)}) as connection:
        query = FULL_JOIN.format(old=old, new=new)
        connection.execute(f"COPY ({query}) TO '{out}/merged.parquet' (FORMAT parquet, COMPRESSION zstd)")


def _table(files: Sequence[Path]) -> Any:
    """All rows of TsFiles as an Arrow table: the number of the device, the time, the columns with nulls."""
    import pyarrow as pa

    with ThreadPoolExecutor(THREADS) as pool:
        batches = [batch for found in pool.map(_batches, files) for batch in found]
    return pa.Table.from_batches(batches)


def _batches(place: Path) -> list[Any]:
    import pyarrow as pa

    batches = []
    with TsFile(place) as file:
        for device in file.list_devices():
            columns = {name: file.read_column(device, name) for name in SERIES}
            times = columns["temp"].times
            arrays = {"device": pa.array(np.full(len(times), int(device[-5:]), np.int32)), "time": pa.array(times)}
            for name, column in columns.items():
                values, mask = column.values, None
                if len(column) != len(times):
                    there = np.searchsorted(times, column.times)
                    values, mask = np.zeros(len(times), column.values.dtype), np.ones(len(times), np.bool_)
                    values[there] = column.values
                    mask[there] = False
                arrays[name] = pa.array(values, mask=mask)
            batches.append(pa.record_batch(arrays))
    return batches


def _write(table: Any, out: Path) -> None:
    """Rows sorted by device and time, as two TsFiles."""
    whole = table.combine_chunks()
    devices = whole["device"].to_numpy()
    starts = np.flatnonzero(np.append(True, devices[1:] != devices[:-1]))
    bounds = list(zip(starts.tolist(), [*starts[1:].tolist(), len(devices)], strict=True))
    halves = [bounds[: len(bounds) // 2], bounds[len(bounds) // 2 :]]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda half: _write_half(whole, half[1], out / f"merged-{half[0]}.tsfile"), enumerate(halves)))


def _write_half(table: Any, bounds: Sequence[tuple[int, int]], place: Path) -> None:
    with TsFileWriter(place) as writer:
        for start, end in bounds:
            part = table.slice(start, end - start)
            number = part["device"][0].as_py()
            writer.write_device(
                ("root.bench.line", DEVICE.format(number).rpartition(".")[2]), dict(_columns(part)), aligned=True
            )


def _columns(part: Any) -> Iterator[tuple[str, Column]]:
    times = part["time"].to_numpy()
    for name, kind in SERIES.items():
        if part[name].null_count:
            there = part[name].is_valid().to_numpy()
            yield name, Column(kind, times[there], part[name].drop_null().to_numpy())
        else:
            yield name, Column(kind, times, part[name].to_numpy().astype(VALUE_DTYPES[kind], copy=False))


class _Spark:
    """A session of two threads, kept; the plan that `kind` names."""

    def __init__(self, kind: str, folder: Path, scratch: str) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(f"local[{THREADS}]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.local.dir", scratch).config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        builder = builder.config("spark.driver.memory", "4g").config("spark.sql.shuffle.partitions", "8")
        self.spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.kind = kind
        self.folder = folder

    def merge(self, out: Path) -> None:
        old, new = (
            self.spark.read.format("tsfile").load([str(place) for place in sorted(self.folder.glob(f"{name}-*.tsfile"))])
            for name in ("old", "new")
        )
        merged = self._joined(old, new) if self.kind == "spark-join" else self._cogrouped(old, new)
        merged.write.format("tsfile").mode("append").save(str(out / "merged"))
        for left in out.glob("merged/_staging-*"):
            shutil.rmtree(left)

    def _joined(self, old: Any, new: Any) -> Any:
        from pyspark.sql import functions

        renamed = new.selectExpr("time", "device", *(f"{name} AS {name}_new" for name in SERIES))
        joined = old.join(renamed, ["time", "device"], "full_outer")
        chosen = (functions.coalesce(f"{name}_new", name).alias(name) for name in SERIES)
        return joined.select("time", "device", *chosen).sortWithinPartitions("device", "time")

    def _cogrouped(self, old: Any, new: Any) -> Any:
        return old.groupBy("device").cogroup(new.groupBy("device")).applyInArrow(newest_wins, old.schema)


def newest_wins(old: Any, new: Any) -> Any:
    """The rows of one device, merged by numpy."""
    import pyarrow as pa

    from tidemark.tsfiles.points.column import overlay_times

    tables = [table.sort_by("time").combine_chunks() for table in (old, new) if table.num_rows]
    rows = overlay_times([table["time"].to_numpy() for table in tables]).times
    device = tables[0]["device"][0].as_py()
    columns = {"time": pa.array(rows), "device": pa.repeat(device, len(rows))}
    for name, kind in SERIES.items():
        values, mask = np.zeros(len(rows), VALUE_DTYPES[kind]), np.ones(len(rows), np.bool_)
        for table in tables:
            there = table[name].is_valid().to_numpy()
            at = np.searchsorted(rows, table["time"].to_numpy()[there])
            values[at] = table[name].drop_null().to_numpy()
            mask[at] = False
        columns[name] = pa.array(values, mask=mask)
    return pa.table({name: columns[name] for name in old.schema.names})
