"""Spark of `bench delivery`: `STORE SCRATCH ROUNDS ROWS`. Prints the seconds of each round, by what was read.

One warm session of two threads reads all in turn. `shards_4` and `parquet` are one aggregate of three columns, of the store
by 4 shards and of the same rows in Parquet. `pass_4` and `pass_11` take every row in Python, a shard in the order of the
store, as a consumer does: of 4 shards, each a partition, and of 11, which are sorted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.delivery_data import SHAPE

IMAGE = "struct<state: string, v: double, n: bigint>"
TABLE = f"{SHAPE.database}.{SHAPE.table}"


def open_session(scratch: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.local.dir", scratch).config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write_parquet(store: str, place: str) -> None:
    """All columns of the frame, as Spark gets them from the store."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    from tidemark.changes.spark.source import ChangesSource

    source = ChangesSource({"store": store, "tables": TABLE})
    reader = source.reader(source.schema())
    with pq.ParquetWriter(place, to_arrow_schema(source.schema(), timezone="UTC"), compression="zstd") as writer:
        for partition in reader.partitions():
            for batch in reader.read(partition):
                writer.write_batch(batch)


def aggregate(frame: Any) -> list[tuple[object, ...]]:
    """What both read alike: sums over three columns of the images after a change."""
    found = (
        frame.selectExpr("after.state", "after.v", "after.n")
        .groupBy("state")
        .agg({"v": "max", "n": "sum", "*": "count"})
        .collect()
    )
    return sorted((tuple(row) for row in found), key=repr)


def count_in_order(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition; an error where one is not behind the one before it."""
    import numpy as np
    import pyarrow as pa

    rows, last = 0, (0, -1)
    for batch in batches:
        seq, index = (batch.column(name).to_numpy() for name in ("seq", "i"))
        if len(seq):
            behind = (np.diff(seq) > 0) | ((np.diff(seq) == 0) & (np.diff(index) > 0))
            if not behind.all() or (seq[0], index[0]) <= last:
                raise RuntimeError("a row is out of order")
            rows, last = rows + len(seq), (seq[-1], index[-1])
    yield pa.record_batch({"rows": [rows]})


def main() -> int:
    from tidemark.changes.spark.source import sort_by_shard

    store, scratch, rounds, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    spark = open_session(scratch)

    def load(schema: str = "", **options: str) -> Any:
        reader = spark.read.format("tidemark_changes").options(store=store, tables=TABLE, **options)
        return (reader.schema(schema) if schema else reader).load()

    place = str(Path(scratch) / "rows.parquet")
    write_parquet(store, place)
    seen: list[Any] = []

    def take_all(frame: Any) -> None:
        frame = frame.select("shard", "seq", "i", "op", "after")
        taken = frame.mapInArrow(count_in_order, "rows bigint").groupBy().sum("rows").first()[0]
        if taken != rows:
            raise RuntimeError(f"{taken} rows of {rows}")

    chosen = f"shard int, seq bigint, i bigint, op string, after {IMAGE}"
    contenders: dict[str, Callable[[], object]] = {
        "shards_4": lambda: seen.append(aggregate(load(f"after {IMAGE}", shards="4"))),
        "parquet": lambda: seen.append(aggregate(spark.read.parquet(place))),
        "pass_4": lambda: take_all(load(chosen, shards="4")),
        "pass_11": lambda: take_all(sort_by_shard(load(chosen, shards="11"), 11)),
    }
    for read in contenders.values():  # warm
        read()
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            began = time.perf_counter()
            contenders[name]()
            took[name].append(time.perf_counter() - began)
    if any(one != seen[0] for one in seen):
        raise RuntimeError(f"Parquet and the store differ: {seen[:2]}")
    print(json.dumps(took))
    return 0


if __name__ == "__main__":
    sys.exit(main())
