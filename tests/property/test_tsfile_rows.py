"""Rows in any order become files, and files the same rows: every type, nulls, several devices and tables with null tags."""

from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemark.tsfiles.spark.arrow import devices_of
from tidemark.tsfiles.spark.dataset import find_files
from tidemark.tsfiles.spark.options import scan_options, write_options
from tidemark.tsfiles.spark.scan_plan import shape_of, tasks_of
from tidemark.tsfiles.spark.scan_read import TaskReader
from tidemark.tsfiles.spark.survey import survey_files
from tidemark.tsfiles.write.writer import TsFileWriter

FIELDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "b": (pa.bool_(), st.booleans()),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "d": (pa.float64(), st.floats(allow_nan=False)),
    "s": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=9)),
    "x": (pa.binary(), st.binary(max_size=9)),
    "day": (pa.date32(), st.dates(dt.date(1000, 1, 1), dt.date(9999, 12, 31))),
}
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)
TREE = st.sampled_from([("root.a.d1",), ("root.a.d0",), ("root.a.b.c.d",), ("root.a.`odd.node`",)])
TAG = st.none() | st.sampled_from(["r0", "a.b", "x\\y", "", "null", "\\N"])
TABLE = st.tuples(TAG, TAG)


def rows_of(keys: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """(keys, time, fields), every (keys, time) once, at least one field with a value."""
    fields = st.tuples(*(st.none() | values for _, values in FIELDS.values())).filter(
        lambda row: any(v is not None for v in row)
    )
    row = st.tuples(keys, TIMES, fields)
    return st.lists(row, min_size=1, max_size=40, unique_by=lambda item: (item[0], item[1]))


def through_a_file(rows: list[tuple[Any, ...]], keys: list[str], options: dict[str, str]) -> list[tuple[Any, ...]]:
    types = [*(pa.string() for _ in keys), pa.int64(), *(kind for kind, _ in FIELDS.values())]
    schema = pa.schema(list(zip([*keys, "time", *FIELDS], types, strict=True)))
    flat = [(*key, time, *fields) for key, time, fields in rows]
    table = pa.Table.from_arrays(
        [pa.array(c, t) for c, t in zip(zip(*flat, strict=True), types, strict=True)], schema=schema
    )
    with tempfile.TemporaryDirectory() as folder:
        asked = write_options({"path": folder, **options}, schema, False)
        with TsFileWriter(Path(folder, "a.tsfile"), {asked.table: asked.tags} if asked.table else {}) as writer:
            for segments, found in devices_of(table, asked):
                writer.write_device(segments, found, asked.aligned)
        scan = scan_options({"path": folder})
        surveyed = survey_files(find_files(scan.paths), scan.wanted)
        shape = shape_of(surveyed, scan.cut)
        reader = TaskReader(shape)
        batches = [batch for task in tasks_of(surveyed, scan.cut, shape) for batch in reader.read_task(task)]
    names = pa.Table.from_batches(batches).to_pylist()
    return [tuple(row.get(name) for name in schema.names) for row in names]


def ordered(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(repr(row) for row in rows)


@given(rows=rows_of(TREE), aligned=st.sampled_from(["true", "false"]))
def test_devices_of_the_tree_model(rows: list[tuple[Any, ...]], aligned: str) -> None:
    back = through_a_file(rows, ["device"], {"aligned": aligned})
    assert ordered(back) == ordered([(*key, time, *fields) for key, time, fields in rows])


@given(rows=rows_of(TABLE))
def test_tables_with_two_tags(rows: list[tuple[Any, ...]]) -> None:
    back = through_a_file(rows, ["region", "line"], {"table": "t", "tags": "region,line"})
    assert ordered(back) == ordered([(*key, time, *fields) for key, time, fields in rows])


def test_rows_with_many_tags_of_many_values_keep_their_own() -> None:
    """600 values in each of 8 tags are more combinations than a number of 64 bits can tell apart."""
    count, tags = 600, [f"t{number}" for number in range(8)]
    words = {tag: [f"{tag}-{(row * 7 + place) % 601}" for row in range(count)] for place, tag in enumerate(tags)}
    table = pa.table({"time": range(count), **words, "v": range(count)})
    asked = write_options({"path": "/nowhere", "table": "t", "tags": ",".join(tags)}, table.schema, False)
    found = {segments: columns["v"].values.tolist() for segments, columns in devices_of(table, asked)}
    assert found == {("t", *(words[tag][row] for tag in tags)): [row] for row in range(count)}


def test_a_table_may_have_no_tags() -> None:
    whole = (True, 1, 2, 0.5, 0.25, "a", b"b", dt.date(2024, 2, 29))
    rows: list[tuple[Any, ...]] = [((), 2, whole), ((), 1, whole)]
    assert through_a_file(rows, [], {"table": "t"}) == [(1, *whole), (2, *whole)]
