"""`read` as its users call it: forms, the choice of rows, times, stdout."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark
from tests.centre import Centre
from tests.commanded import Commanded
from tests.landing_maker import SITE_B
from tests.small_files import sealed, source
from tidemark.cli.main import main
from tidemark.errors import UsageError
from tidemark.receiver.read import Query, read

D1 = {"root.sg.d1": {"a_x": [(1, 10), (2, 20), (3, 30)], "b": [(2, 5)]}}
D2 = {"root.sg.d2": {"a_x": [(4, 7)]}}
WIDE = [
    {"time": 1, "device": "root.sg.d1", "a_x": 10},
    {"time": 2, "device": "root.sg.d1", "a_x": 20, "b": 5},
    {"time": 3, "device": "root.sg.d1", "a_x": 30},
    {"time": 4, "device": "root.sg.d2", "a_x": 7},
]


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A catalog of two devices; the site counts microseconds."""
    made = Commanded(tmp_path, monkeypatch, site_keys={"time_unit": "us"})
    made.put(source(1), sealed(D1))
    made.put(source(2), sealed(D2))
    assert made.sync().code == 0
    monkeypatch.chdir(tmp_path)
    return made


def to_stdout(capsysbinary: pytest.CaptureFixture[bytes], *words: str) -> bytes:
    capsysbinary.readouterr()
    assert main(["read", "--out", "-", *words]) == 0
    return capsysbinary.readouterr().out


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def test_every_form_has_the_same_rows_in_a_file_and_on_stdout(
    edge: Commanded, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for form in ("parquet", "csv", "jsonl"):
        assert edge.run("read", "--out", f"points.{form}").json["rows"] == 4
        written = (edge.folder / f"points.{form}").read_bytes()
        assert to_stdout(capsysbinary, "--format", form) == written
    assert lines((edge.folder / "points.jsonl").read_bytes()) == WIDE
    csv_rows = csv.DictReader((edge.folder / "points.csv").read_text().splitlines())
    assert [{key: value for key, value in row.items() if value} for row in csv_rows] == [
        {key: str(value) for key, value in row.items()} for row in WIDE
    ]
    table = pq.read_table(edge.folder / "points.parquet")
    table = table.set_column(0, "time", table["time"].cast(pa.int64()))
    assert [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()] == WIDE
    assert to_stdout(capsysbinary) == (edge.folder / "points.csv").read_bytes()


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--limit", "2"), WIDE[:2]),
        (("--limit", "9"), WIDE),
        (("--tail", "1"), [WIDE[2], WIDE[3]]),
        (("--tail", "2", "--limit", "1"), [WIDE[1]]),
        (("--measurement", "b"), [{"time": 2, "device": "root.sg.d1", "b": 5}]),
        (("--measurement", "a_*", "--tail", "1", "--device", "root.sg.d1"), [WIDE[2]]),
        (("--measurement", "*", "--measurement", "b"), WIDE),
        (("--measurement", "a.x"), []),
    ],
)
def test_rows_are_chosen(
    edge: Commanded, capsysbinary: pytest.CaptureFixture[bytes], words: tuple[str, ...], kept: list[dict[str, Any]]
) -> None:
    assert lines(to_stdout(capsysbinary, "--format", "jsonl", *words)) == kept


def test_of_each_series_the_newest_points_where_the_table_is_tall(
    edge: Commanded, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    rows = lines(to_stdout(capsysbinary, "--format", "jsonl", "--tall", "--tail", "1"))
    assert [(row["device"], row["measurement"], row["time"]) for row in rows] == [
        ("root.sg.d1", "a_x", 3),
        ("root.sg.d1", "b", 2),
        ("root.sg.d2", "a_x", 4),
    ]
    assert edge.run("read", "--tall", "--limit", "2", "--out", "p.csv").json["devices"] == 1


def test_a_wide_parquet_file_has_instants_of_the_unit_and_says_what_it_is(edge: Commanded) -> None:
    said = edge.run("read", "--device", "root.sg.d1", "--out", "p.parquet")
    assert said.json["time_unit"] == "us"
    schema = pq.read_schema("p.parquet")
    assert schema.field("time").type == pa.timestamp("us", "UTC")
    assert pq.read_table("p.parquet")["time"][0].as_py() == datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    assert schema.metadata[b"tidemark.time_unit"] == b"us"
    assert schema.metadata[b"tidemark.receiver"] == b"centre"
    assert json.loads(schema.metadata[b"tidemark.query"]) == {"device": "root.sg.d1"}
    assert schema.field("a_x").metadata[b"tidemark.type"] == b"INT64"
    for words in (("--times", "number"), ("--tall",)):
        edge.run("read", *words, "--out", "p.parquet")
        assert pq.read_schema("p.parquet").field("time").type == pa.int64()
        assert pq.read_schema("p.parquet").metadata[b"tidemark.time_unit"] == b"us"


def test_instants_in_text_are_iso_8601(edge: Commanded, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ("--times", "instant", "--limit", "1", "--tall")
    [row] = lines(to_stdout(capsysbinary, "--format", "jsonl", *words))
    assert row["time"] == "1970-01-01T00:00:00.000001Z"
    [row] = csv.DictReader(io.StringIO(to_stdout(capsysbinary, *words).decode()))
    assert row["time"] == "1970-01-01T00:00:00.000001Z"
    assert edge.run("read", "--out", "p.parquet", *words).code == 0
    assert pq.read_schema("p.parquet").field("time").type == pa.timestamp("us", "UTC")


def test_a_bound_finer_than_the_site_counts_divides_its_times(
    edge: Commanded, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An instant that a site of nanoseconds was read with is pasted as a bound."""
    found = {}
    for bound in ("--from", "--to"):
        rows = lines(to_stdout(capsysbinary, "--format", "jsonl", bound, "1970-01-01T00:00:00.000001500Z"))
        found[bound] = [row["time"] for row in rows]
    assert found == {"--from": [2, 3, 4], "--to": [1]}


def test_sites_of_two_units_have_numbers_and_no_instants(tmp_path: Path) -> None:
    centre = Centre(tmp_path)
    centre.sender().land({source(1): sealed(D1)})
    centre.sender(SITE_B, time_unit="us").land({source(2): sealed(D2)})
    centre.load()
    out = tmp_path / "p.parquet"
    assert read(centre.app, centre.receiver, Query(), out).time_unit == ""
    assert pq.read_schema(out).field("time").type == pa.int64()
    with pytest.raises(UsageError, match="different units"):
        read(centre.app, centre.receiver, Query(times="instant"), out)
    assert read(centre.app, centre.receiver, Query(times="instant", site=SITE_B), out).time_unit == "us"


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--out", "-"), "--out - and --json exclude each other"),
        (("--out", "p.csv", "--format", "jsonl"), "--format is for --out -"),
        (("--out", "p.csv", "--limit", "0"), "--limit: '0' is not a number from 1 on"),
        (("--out", "p.csv", "--tail", "-1"), "--tail: '-1' is not a number from 1 on"),
        (("--out", "p.csv", "--times", "local"), "--times: invalid choice: 'local'"),
    ],
)
def test_what_contradicts_itself_is_refused(edge: Commanded, words: tuple[str, ...], says: str) -> None:
    edge.run("read", *words).refused(2, says)


def test_a_folder_that_is_not_there_is_not_made(edge: Commanded) -> None:
    said = edge.run("read", "--out", "new folder/p.csv")
    said.refused(6, "its folder is not there")
    assert said.json["hint"] == f"mkdir -p '{edge.folder}/new folder'"
    assert not (edge.folder / "new folder").exists()


def test_what_is_said_of_rows_on_stdout_goes_to_stderr(edge: Commanded, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["read", "--out", "-"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 5
    assert said.err.splitlines()[-1] == "4 rows of 2 devices"


def test_a_terminal_obeys_no_name_and_gets_no_parquet(
    edge: Commanded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge.put(source(3), sealed({"root.sg.d3": {"s\x1b[2J": [(1, 1)]}}))
    assert edge.sync().code == 0
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    capsys.readouterr()
    assert main(["read", "--out", "-", "--tall", "--device", "root.sg.d3"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == '"root.sg.d3","`s\\x1b[2J`",1,"INT64","1"'
    assert main(["read", "--out", "-", "--format", "parquet"]) == 2


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("form", "unbuffered"), [("csv", ""), ("jsonl", "1"), ("parquet", "")])
def test_a_reader_that_closes_its_pipe_early_ends_the_verb_quietly(edge: Commanded, form: str, unbuffered: str) -> None:
    edge.put(source(4), sealed({"root.sg.long": {"s": [(time, time * 7919 % 10_007) for time in range(200_000)]}}))
    assert edge.sync().code == 0
    python = [sys.executable, "-P", "-m", "tidemark.cli", "read", "--out", "-", "--tall", "--format", form, "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tidemark.__file__).parents[1]), "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        python, cwd=edge.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout and reading.stderr
        assert reading.stdout.read(4)
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(60) == 141
    assert not (edge.folder / "var/errors").exists()
