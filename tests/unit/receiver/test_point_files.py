"""Rows go to a file or a stream batch by batch, exactly, and whole or not at all."""

from __future__ import annotations

import gc
import io
import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.receiver import point_file
from tidemark.receiver.point_file import PointFile
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


SCHEMA = pa.schema([("name", pa.string()), ("single", pa.float32()), ("double", pa.float64()), ("whole", pa.int64())])


def odd_rows() -> Part:
    columns = {
        "name": pa.array(['a\n\x1b"\u202e', None]),
        "single": pa.array([0.1, float("inf")], pa.float32()),
        "double": pa.array([float("nan"), -0.0]),
        "whole": pa.array([2**63 - 1, None]),
    }
    return Part(2, columns)


def test_json_lines_name_every_value_exactly_and_show_nothing_invisible() -> None:
    stream = io.BytesIO()
    with PointFile(stream, SCHEMA, "jsonl") as out:
        out.add_rows(odd_rows())
    text = stream.getvalue().decode()
    assert text.replace("\n", "").isprintable()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"name": 'a\n\x1b"\u202e', "single": 0.1, "double": "nan", "whole": 2**63 - 1},
        {"single": "inf", "double": -0.0},
    ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_stream_gets_its_rows_as_they_come(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_file, "BATCH_ROWS", 4)
    stream = io.BytesIO()
    with PointFile(stream, SCHEMA, form) as out:
        lengths = []
        for _ in range(6):
            out.add_rows(odd_rows())
            lengths.append(len(stream.getvalue()))
        assert lengths[1] < lengths[3] < lengths[5]


def test_json_lines_of_a_long_series_are_made_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_file, "BATCH_ROWS", 4)
    pieces: list[bytes] = []
    stream = io.BytesIO()
    stream.write = lambda data: pieces.append(bytes(data)) or len(data)  # type: ignore[method-assign]
    with PointFile(stream, pa.schema([("time", pa.int64())]), "jsonl") as out:
        out.add_rows(Part(10, {"time": pa.array(range(10), pa.int64())}))
    assert [len(piece.splitlines()) for piece in pieces] == [4, 4, 2]
    assert [json.loads(line)["time"] for line in b"".join(pieces).splitlines()] == list(range(10))


@pytest.mark.full
def test_a_stream_that_ends_by_an_error_is_no_parquet_file() -> None:
    stream = io.BytesIO()
    with pytest.raises(RuntimeError, match="disk"), PointFile(stream, SCHEMA, "parquet") as out:
        out.add_rows(odd_rows())
        raise RuntimeError("a disk dies")
    del out
    gc.collect()  # pyarrow's writer closes itself when it goes
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(io.BytesIO(stream.getvalue()))


def test_what_a_killed_export_left_goes_with_one_of_an_hour_later(tmp_path: Path) -> None:
    names = ["[a].csv.7.tmp", "[a].csv.8.tmp", "[a].csv.mine.tmp", "a.csv.7.tmp", "[a].csv.7"]
    for name in names:
        (tmp_path / name).write_bytes(b"rows")
        age = 60 if name == "[a].csv.8.tmp" else 3700
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with PointFile(tmp_path / "[a].csv", SCHEMA) as out:
        out.add_rows(odd_rows())
    assert {path.name for path in tmp_path.iterdir()} == {"[a].csv", *names[1:]}
