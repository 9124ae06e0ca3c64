"""Scans without Spark: what is planned from statistics alone, what the tasks give."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.expected import FOLDERS, SITES
from tidemark.errors import CorruptionError, UnsupportedError, UsageError
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.spark import scan_read
from tidemark.tsfiles.spark.arrow import arrow_array, arrow_times
from tidemark.tsfiles.spark.dataset import find_files
from tidemark.tsfiles.spark.options import ScanOptions, TimeLimit, scan_options
from tidemark.tsfiles.spark.scan_plan import ScanTask, shape_of, tasks_of
from tidemark.tsfiles.spark.scan_read import TaskReader
from tidemark.tsfiles.spark.survey import survey_files
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write.writer import TsFileWriter

BETA = SITES["2.0.1-beta"]


def planned(asked: ScanOptions) -> tuple[list[ScanTask], TaskReader]:
    found = survey_files(find_files(asked.paths), asked.wanted)
    shape = shape_of(found, asked.cut)
    return tasks_of(found, asked.cut, shape), TaskReader(shape, asked.unit, asked.lenient)


def scan(path: Path, **options: str) -> pa.Table:
    tasks, reader = planned(scan_options({"path": str(path), **options}))
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read_task(task)], reader.schema)


def write(place: Path, devices: dict[str, dict[str, Column]], aligned: bool = True) -> Path:
    with TsFileWriter(place) as writer:
        for name, columns in sorted(devices.items()):
            writer.write_device(("root.a", name), columns, aligned)
    return place


def ints(*points: tuple[int, int]) -> Column:
    return Column(DataType.INT32, np.array([t for t, _ in points], np.int64), np.array([v for _, v in points], np.int32))


def test_planning_reads_no_page(tmp_path: Path) -> None:
    """A file whose pages are all garbage is planned as if it were sound."""
    source = write(tmp_path / "a.tsfile", {"d": {"s": ints(*((n, n) for n in range(100)))}})
    data = bytearray(source.read_bytes())
    with FileBytes(source) as file:
        end = read_footer(file).chunks_end
    tasks, _ = planned(scan_options({"path": str(source)}))
    data[10:end] = bytes(end - 10)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.tsfile").write_bytes(data)
    again, _ = planned(scan_options({"path": str(tmp_path / "b")}))
    assert [(task.devices, task.rows) for task in again] == [(task.devices, task.rows) for task in tasks]
    with pytest.raises(CorruptionError, match="no chunk of"):
        scan(tmp_path / "b")


@pytest.mark.full_after(1)
@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
def test_a_long_device_is_cut_by_time_into_tasks_that_hold_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 1000)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 5)
    old = ints(*((n, 1) for n in range(0, 1_200_000, 3)))
    new = ints(*((n, 2) for n in range(0, 900_000, 5)))
    write(tmp_path / "1-1-0-0.tsfile", {"d": {"s": old}}, aligned)
    write(tmp_path / "2-2-0-0.tsfile", {"d": {"s": new}}, aligned)
    tasks, _ = planned(scan_options({"path": str(tmp_path), "rowsPerTask": "100000"}))
    assert len(tasks) > 4 and all(task.start is None or task.end is None or task.start < task.end for task in tasks)
    table = scan(tmp_path, rowsPerTask="100000")
    expected = dict.fromkeys(range(0, 1200000, 3), 1) | dict.fromkeys(range(0, 900000, 5), 2)
    assert table.column("time").to_pylist() == sorted(expected)
    assert table.column("s").to_pylist() == [expected[n] for n in sorted(expected)]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("start", "end"), [("100001", "399999"), ("", "250000"), ("900000", ""), ("500000", "500000"), ("7", "3")]
)
def test_a_long_device_is_cut_within_the_times_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, end: str
) -> None:
    """Its chunks go on behind the end of the question: no task does."""
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 1000)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 5)
    write(tmp_path / "1-1-0-0.tsfile", {"d": {"s": ints(*((n, 1) for n in range(0, 1_200_000, 3)))}})
    table = scan(tmp_path, rowsPerTask="100000", start=start, end=end)
    wanted = range(int(start or 0), int(end or 1_200_000))
    assert table.column("time").to_pylist() == [n for n in range(0, 1_200_000, 3) if n in wanted]


def test_a_device_in_more_files_than_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device has after some days of flushes, or of late points."""
    monkeypatch.setattr(scan_read, "_OPEN_FILES", 3)
    for n in range(10):
        write(tmp_path / f"{n}-{n}-0-0.tsfile", {"d": {"s": ints((n, n), (n + 1, n))}, f"e{n}": {"s": ints((n, n))}})
    rows = [(row["device"], row["time"], row["s"]) for row in scan(tmp_path).to_pylist()]
    assert rows == [("root.a.d", n, min(n, 9)) for n in range(11)] + [(f"root.a.e{n}", n, n) for n in range(10)]


def test_the_files_of_one_device_are_closed_before_those_of_the_next_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_read, "_OPEN_FILES", 3)
    for n in range(8):
        write(tmp_path / f"{n}-{n}-0-0.tsfile", {"ab"[n // 4]: {"s": ints((n, n))}})
    open_now = []

    class Counted(scan_read.TsFile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            open_now.append(self.path)
            most.append(len(open_now))

        def close(self) -> None:
            super().close()
            open_now.remove(self.path)

    most: list[int] = []
    monkeypatch.setattr(scan_read, "TsFile", Counted)
    assert scan(tmp_path).column("s").to_pylist() == list(range(8))
    assert max(most) == 4 and not open_now


@pytest.mark.full
def test_of_thousands_of_columns_a_task_and_a_batch_hold_the_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of them null: what is in memory at once are cells, not rows."""
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 1000)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 5)
    many = {f"s{n:04}": ints((n, n)) for n in range(2000)}
    few = {f"d{n}": {f"s{n:04}": ints(*((t, n) for t in range(50)))} for n in range(600)}
    write(tmp_path / "a.tsfile", {"long": {"s0000": ints(*((t, t) for t in range(150_000)))}, "many": many, **few})
    tasks, reader = planned(scan_options({"path": str(tmp_path)}))
    assert max(task.rows for task in tasks if "root.a.long" not in task.devices) <= 35_000
    assert sum("root.a.long" in task.devices for task in tasks) > 3
    found: dict[str, int] = {}
    for batch in (batch for task in tasks for batch in reader.read_task(task)):
        assert batch.num_rows <= 10_000
        devices = batch.column("device").to_pylist()
        for number, device in enumerate(devices):
            found[device] = found.get(device, 0) + 1
            if number % 500 == 0:
                row = {name: cell for name, cell in batch.slice(number, 1).to_pylist()[0].items() if cell is not None}
                time, name = row["time"], f"s{row['time']:04}" if device == "root.a.many" else None
                name = name or ("s0000" if device == "root.a.long" else f"s{int(device[8:]):04}")
                value = time if device in ("root.a.many", "root.a.long") else int(device[8:])
                assert row == {"time": time, "device": device, name: value}
    assert found == {"root.a.long": 150_000, "root.a.many": 2000, **dict.fromkeys(map("root.a.{}".format, few), 50)}


def tables(place: Path, database: str, tags: tuple[str, ...], *devices: tuple[str, ...]) -> None:
    """A file of the table `t` where a database has it."""
    folder = place / "sequence" / database / "1" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.iterdir())) + 1
    with TsFileWriter(folder / f"{number}-{number}-0-0.tsfile", {"t": tags}) as writer:
        for device in sorted(devices):
            writer.write_device(("t", *device), {"f": ints((1, 7))}, True)


def test_tables_of_one_name_have_the_tags_of_their_own_database(tmp_path: Path) -> None:
    tables(tmp_path, "works", ("region", "line"), ("r0", "l0"))
    tables(tmp_path, "works", ("region", "line", "slot"), ("r1", "l1", "s1"))
    tables(tmp_path, "other", ("a", "b", "c", "d"), ("x",))
    assert scan(tmp_path, database="works").to_pylist() == [
        {"time": 1, "region": "r0", "line": "l0", "slot": None, "f": 7},
        {"time": 1, "region": "r1", "line": "l1", "slot": "s1", "f": 7},
    ]
    tables(tmp_path, "works", ("line", "region"), ("l2", "r2"))
    with pytest.raises(
        UsageError, match=r"table t has the tags line, region in .*3-3-0-0\.tsfile, and region, line, slot in"
    ):
        scan(tmp_path, database="works")


def test_files_and_devices_that_are_not_asked_for_are_in_no_task(tmp_path: Path) -> None:
    write(tmp_path / "1-1-0-0.tsfile", {"d1": {"s": ints((1, 1))}, "d2": {"t": ints((1, 1))}})
    write(tmp_path / "2-2-0-0.tsfile", {"d1": {"s": ints((100, 1))}})

    def held(**options: str) -> list[tuple[list[str], list[str]]]:
        tasks, _ = planned(scan_options({"path": str(tmp_path), **options}))
        return [([Path(file.path).name[:1] for file in task.files], sorted(task.devices)) for task in tasks]

    assert held() == [(["1", "2"], ["root.a.d1", "root.a.d2"])]
    assert held(columns="t") == [(["1"], ["root.a.d2"])]
    assert held(devices="root.*.d1") == [(["1", "2"], ["root.a.d1"])]
    assert held(start="50") == [(["2"], ["root.a.d1"])]
    assert held(end="50", devices="root.a.d1,root.b.**") == [(["1"], ["root.a.d1"])]
    assert held(end="0") == []


def test_types_that_differ_between_files(tmp_path: Path) -> None:
    """What one type holds exactly becomes that type, all else is canonical text."""
    times = np.array([1, 2], np.int64)
    double = Column(DataType.DOUBLE, times[1:], np.array([0.5]))
    text = Column(DataType.TEXT, times[1:], np.array([b"hi"], object))
    long = Column(DataType.INT64, times[1:], np.array([2**53 + 1]))
    write(tmp_path / "1-1-0-0.tsfile", {"d": {"a": ints((1, 7)), "b": ints((1, 7)), "c": ints((1, 7)), "d": double}})
    write(tmp_path / "2-2-0-0.tsfile", {"d": {"a": double, "b": text, "c": long, "d": long}})
    table = scan(tmp_path)
    assert [str(kind) for kind in table.schema.types[2:]] == ["double", "string", "int64", "string"]
    assert [list(row.values())[2:] for row in table.to_pylist()] == [
        [7.0, "7", 7, None],
        [0.5, "hi", 2**53 + 1, str(2**53 + 1)],
    ]


def test_columns_of_which_none_is_a_field_give_all_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.tsfile", {"d": {"a": ints((1, 7)), "b": ints((2, 7))}}, aligned=False)
    assert scan(tmp_path, columns="device,time").to_pylist() == [
        {"device": "root.a.d", "time": 1},
        {"device": "root.a.d", "time": 2},
    ]
    assert scan(tmp_path, columns="b").to_pylist() == [{"b": 7}]


def test_a_measurement_called_like_a_column_of_ours(tmp_path: Path) -> None:
    """Spark knows no case: of `time` and `Time` it would find neither."""
    write(tmp_path / "a.tsfile", {"d": {"time": ints((5, 7)), "Device": ints((5, 8)), "DeVice2": ints((5, 9))}})
    assert scan(tmp_path).to_pylist() == [
        {"time": 5, "device": "root.a.d", "DeVice2": 9, "measurement.Device": 8, "measurement.time": 7}
    ]


def test_what_cannot_be_decoded_fails_by_name_or_is_null() -> None:
    folder = FOLDERS.parent / "encodings" / "2.0.1-beta"
    asked = {"devices": "root.wild.of_double", "columns": "time,SPRINTZ,GORILLA"}
    with pytest.raises(UnsupportedError, match=r"root\.wild\.of_double\.SPRINTZ"):
        scan(folder, **asked)
    table = scan(folder, **asked, undecodable="null")
    with gzip.open(folder / "expected.json.gz", "rt") as file:
        expected = json.load(file)
    assert table.column("SPRINTZ").null_count == len(table) == len(expected["root.wild.of_double.GORILLA"][1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "long"}, "allowed are wide, tall"),
        ({"rowsPerTask": "0"}, "a whole number from 1 on"),
        ({"layout": "tall", "columns": "a"}, "its own columns"),
        ({"columns": "time,a,time"}, "columns names one twice"),
        ({"columns": '["a"'}, "not a JSON list"),
        ({"timeUnit": "s"}, "allowed are ms, us, ns"),
        ({"Model": "table", "table": "nothing"}, "no points"),
        ({"dedup": "true"}, "no option 'dedup'"),
    ],
)
def test_wrong_words_are_told(options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        scan(BETA.root / "data", **({"model": "tree"} | options if "Model" not in options else options))
    with pytest.raises(UsageError, match="no path"):
        scan_options({})


def test_dates_and_instants_are_exact_or_an_error() -> None:
    rows = np.arange(4, dtype=np.int64)
    dates = Column(DataType.DATE, rows, np.array([10000101, 19691231, 20240229, 99991231], np.int32))
    assert [str(day) for day in arrow_array(dates, rows, "").to_pylist()] == [
        "1000-01-01",
        "1969-12-31",
        "2024-02-29",
        "9999-12-31",
    ]
    with pytest.raises(CorruptionError, match="20230229 is not a date"):
        arrow_array(replace(dates, values=np.array([20230229] * 4, np.int32)), rows, "")
    assert str(arrow_times(np.array([-1]), "ms").to_pylist()[0]) == "1969-12-31 23:59:59.999000+00:00"
    assert arrow_times(np.array([-1]), "ns").cast(pa.int64()).to_pylist() == [-1]
    with pytest.raises(CorruptionError, match="beyond what an instant can be"):
        arrow_times(np.array([2**62]), "ms")


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("use", "ends_by"),
    [
        ("now = time.process_time\nbegan = now()\nwhile now() - began < seconds: pass", signal.SIGXCPU),
        ("time.sleep(seconds)", signal.SIGALRM),
    ],
    ids=["computes", "waits"],
)
def test_a_task_that_goes_on_for_ever_is_ended_by_the_kernel(use: str, ends_by: int) -> None:
    """The kill timers of a scan: CPU seconds and seconds by the clock while a device is decoded, and no longer."""
    outside = f"seconds = 2.5\n{use}\n"
    inside = f"seconds = 100\nwith limit:\n{textwrap.indent(use, '    ')}\n"
    cpu, wall = (1, 0) if ends_by == signal.SIGXCPU else (0, 1)
    program = (
        "import time\nfrom tidemark.tsfiles.spark.options import TimeLimit\n"
        f"limit = TimeLimit({cpu}, {wall})\nwith limit: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + outside + inside], check=False, timeout=120, env={"PYTHONPATH": "plugins"}
    )
    assert done.returncode == -ends_by


@pytest.mark.full
def test_an_alarm_that_the_process_has_stays() -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with TimeLimit(wall_seconds=5):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 5
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
