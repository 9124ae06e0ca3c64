"""A real IoTDB LOADs what `df.write.format("tsfile")` writes, and answers the same rows: later files win there, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.services.iotdb import IoTDB
from tidemark.tsfiles.spark.dataset import find_files
from tidemark.tsfiles.spark.options import write_options
from tidemark.tsfiles.spark.sink import TsFileSink

pytestmark = [pytest.mark.full, pytest.mark.real("iotdb"), pytest.mark.real("spark")]
ROWS = 400


def rows(seed: int, keys: dict[str, list[str | None]]) -> pa.Table:
    """Rows in no order, every field null now and then."""
    random = np.random.default_rng(seed)
    order = random.permutation(ROWS)

    def some(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(np.asarray(values)[order], kind, mask=random.random(ROWS) < 0.2)

    columns = {
        name: pa.array([values[n % len(values)] for n in order.tolist()], pa.string()) for name, values in keys.items()
    }
    columns |= {
        "time": pa.array(1_700_000_000_000 + order, pa.int64()),
        "flag": some(random.random(ROWS) < 0.5, pa.bool_()),
        "level": some(random.integers(-(10**6), 10**6, ROWS) / 8, pa.float64()),
        "total": some(random.integers(-(2**60), 2**60, ROWS), pa.int64()),
        "word": some([f"word {n % 7}" for n in range(ROWS)], pa.string()),
    }
    return pa.table(columns)


def write(folder: Path, rows_of: pa.Table, **options: str) -> None:
    sink = TsFileSink(write_options({"path": str(folder), **options}, rows_of.schema, False))
    sink.commit([sink.write(iter(part.to_batches())) for part in (rows_of.slice(0, 150), rows_of.slice(150))])


def shown(table: pa.Table, keys: list[str]) -> dict[tuple[str, ...], list[str]]:
    """(keys, time) → fields as the server's command line prints them; rows without any field are no rows."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in table.to_pylist():
        cells = ["null" if row[name] is None else str(row[name]) for name in ("flag", "level", "total", "word")]
        cells[0] = cells[0].lower()
        if set(cells) != {"null"}:
            found[(*(str(row[key] or "null") for key in keys), str(row["time"]))] = cells
    return found


def load(node: IoTDB, folder: Path, words: str, table: bool = False) -> None:
    for file in find_files([str(folder)]):
        node.run(f"load '{file.path}' with ('on-success'='none'{words})", table=table)


@pytest.mark.parametrize("aligned", ["true", "false"])
def test_devices_of_the_tree_model(node: IoTDB, aligned: str) -> None:
    database = "root.sets" + aligned
    devices: list[str | None] = [f"{database}.d{n}" for n in range(3)]
    first, second = rows(1, {"device": devices}), rows(2, {"device": devices})
    write(node.incoming / aligned, first, aligned=aligned)
    write(node.incoming / aligned, second, aligned=aligned)
    load(node, node.incoming / aligned, "")
    expected = shown(first, ["device"])
    for key, cells in shown(second, ["device"]).items():  # a null never overwrites
        before = expected.get(key, ["null"] * 4)
        expected[key] = [cell if cell != "null" else old for cell, old in zip(cells, before, strict=True)]
    answered = {}
    for device in devices:
        for time, *cells in node.query(f"select flag, level, total, word from {device}"):
            answered[str(device), time] = cells
    assert answered == expected


def test_a_table_with_null_tags(node: IoTDB) -> None:
    table = rows(3, {"region": ["r0", "r1", None], "line": ["l0", None]})
    write(node.incoming / "table", table, table="meters", tags="region,line")
    load(node, node.incoming / "table", ",'database-name'='sets'", table=True)
    answered = {}
    for offset in (0, 250):
        words = (
            f"select region, line, time, flag, level, total, word from sets.meters order by time offset {offset} limit 250"
        )
        for region, line, time, *cells in node.query(words, table=True):
            answered[region, line, _millis(time)] = cells
    assert answered == shown(table, ["region", "line"])


def _millis(time: str) -> str:
    return str(np.datetime64(time.removesuffix("Z"), "ms").astype(int)) if "T" in time else time
