"""Parts of rows as one batch: what a part does not have is null, one part alone is not copied."""

from __future__ import annotations

import pyarrow as pa

from tidemark.tsfiles.spark.arrow import Part, concatenate_parts, rows_at_once

SCHEMA = pa.schema([("time", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_())])


def test_columns_that_a_part_does_not_have_are_null_in_its_rows() -> None:
    parts = [
        Part(2, {"time": pa.array([1, 2]), "b": pa.array(["x", None])}),
        Part(1, {"time": pa.array([3])}),
        Part(1, {"time": pa.array([4]), "b": pa.array([""]), "a": pa.array([7], pa.int32())}),
        Part(1, {"time": pa.array([5])}),
    ]
    assert concatenate_parts(parts, SCHEMA).to_pydict() == {
        "time": [1, 2, 3, 4, 5],
        "a": [None, None, None, 7, None],
        "b": ["x", None, None, "", None],
        "c": [None] * 5,
    }


def test_one_part_alone_is_not_copied() -> None:
    times = pa.array([1, 2, 3])
    batch = concatenate_parts([Part(3, {"time": times})], SCHEMA)
    assert batch.column("time").buffers()[1].address == times.buffers()[1].address


def test_of_very_many_columns_a_batch_has_the_fewer_rows() -> None:
    assert [rows_at_once(columns, 65_536) for columns in (3, 256, 2_000, 1 << 30)] == [65_536, 65_536, 8_388, 1]
