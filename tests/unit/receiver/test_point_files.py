"""A result file of very many columns holds few of its cells in memory at once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.receiver.read import PointFile
from tidemark.tsfiles.spark import arrow as arrow_parts
from tidemark.tsfiles.spark.arrow import Part


def test_a_long_device_among_very_many_columns_is_written_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_parts, "_CELLS", 1_000)
    schema = pa.schema([("time", pa.int64()), *((f"s{n}", pa.int64()) for n in range(99))])
    numbers = pa.array(range(105), pa.int64())
    with PointFile(tmp_path / "wide.parquet", schema) as out:
        out.add_rows(Part(105, {"time": numbers, "s7": numbers}))
        out.add_rows(Part(1, {"time": pa.array([105], pa.int64())}))
    assert out.rows == 106
    written = pq.ParquetFile(tmp_path / "wide.parquet")
    assert max(written.metadata.row_group(n).num_rows for n in range(written.num_row_groups)) == 10
    table = written.read(["time", "s7", "s8"])
    assert table.column("time").to_pylist() == list(range(106))
    assert table.column("s7").to_pylist() == [*range(105), None]
    assert table.column("s8").null_count == 106
