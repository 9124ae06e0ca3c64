"""What the writer writes is what readers read: ours, and the official package as a second opinion."""

from __future__ import annotations

import datetime
import hashlib
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemark.tsfiles.devices import file_device
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.points.codes import BINARY_TYPES, Compression, DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import describe_file
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write import writer as writer_index
from tidemark.tsfiles.write.writer import TsFileWriter, device_order

I64, F32 = np.iinfo(np.int64), np.finfo(np.float32)
LARGE = 2**62
EXTREMES: dict[DataType, list[Any]] = {
    DataType.BOOLEAN: [True, False, False, True],
    DataType.INT32: [2**31 - 1, -(2**31), 0, 2**31 - 1, -1],
    DataType.INT64: [I64.max, I64.min, 0, I64.max, -1, LARGE, -LARGE],
    DataType.FLOAT: [np.nan, np.inf, -np.inf, -0.0, 0.0, F32.tiny, F32.max, 0.1],
    DataType.DOUBLE: [np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 0.1],
    DataType.TEXT: [b"", b"a\0b", "température 気温 🌡".encode(), b"x" * 5000],
    DataType.TIMESTAMP: [I64.max, I64.min, 0, 1_700_000_000_000],
    DataType.DATE: [19691231, 20240229, 19000101, 99991231],
    DataType.BLOB: [b"", b"\0", bytes(range(256)), b"\0\xff"],
    DataType.STRING: [b"", b"null", b"a\0b", "é".encode()],
}

Columns = dict[str, Column]
Key = tuple[tuple[str | None, ...], str]


def column(data_type: DataType, times: Sequence[int], values: Sequence[Any]) -> Column:
    made = np.empty(len(values), VALUE_DTYPES[data_type])
    made[:] = values
    return Column(data_type, np.array(times, np.int64), made)


def extremes() -> Columns:
    """All types; columns have different rows, so aligned devices have nulls everywhere."""
    made = {}
    for shift, (data_type, values) in enumerate(EXTREMES.items()):
        times = [I64.min, *range(shift, shift + 3 * (len(values) - 2), 3), I64.max][: len(values)]
        made[data_type.name.lower()] = column(data_type, times, values)
    return made


def many_rows(rows: int, step: int = 1) -> Columns:
    random = np.random.default_rng(rows)
    times = np.cumsum(random.integers(1, 1000, rows))
    texts = np.empty(rows, object)
    texts[:] = [f"row {n % 97}".encode() for n in range(rows)]
    columns = {
        "whole": Column(DataType.INT64, times, random.integers(-1000, 1000, rows)),
        "real": Column(DataType.DOUBLE, times, random.normal(size=rows)),
        "text": Column(DataType.TEXT, times, texts),
        "seldom": Column(DataType.INT32, times, random.integers(0, 9, rows).astype(np.int32)),
    }
    columns["seldom"] = columns["seldom"].select_where(np.arange(rows) % 20_011 == 7)
    return {name: one.select_where(np.arange(rows) % step == 0) for name, one in columns.items()}


def write(path: Path, devices: Mapping[tuple[str | None, ...], tuple[Columns, bool]], **options: Any) -> TsFileWriter:
    with TsFileWriter(path, **options) as writer:
        for segments in sorted(devices, key=device_order):
            columns, aligned = devices[segments]
            writer.write_device(segments, columns, aligned)
    return writer


def read_ours(path: Path) -> dict[tuple[str, str], Column]:
    with TsFile(path, "db") as file:
        return {(d, m): file.read_column(d, m) for d in file.list_devices() for m in file.list_measurements(d)}


def read_official(path: Path) -> dict[Key, tuple[int, list[int], list[Any]]]:
    program = Path(__file__).with_name("official_reader.py")
    done = subprocess.run([sys.executable, program, path], capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: dict[Key, tuple[int, list[int], list[Any]]] = pickle.loads(done.stdout)
    return found


def same(left: Column, right: Column) -> bool:
    """Equal bit for bit: NaN is NaN, -0.0 is not 0.0."""
    if left.type != right.type or not np.array_equal(left.times, right.times):
        return False
    if left.type in BINARY_TYPES:
        return list(left.values) == list(right.values)
    return left.values.tobytes() == right.values.tobytes()


def as_official(one: Column) -> list[Any]:
    if one.type in (DataType.TEXT, DataType.STRING):
        return [value.decode() for value in one.values]
    if one.type == DataType.DATE:
        return [datetime.date(v // 10000, v // 100 % 100, v % 100) for v in one.values.tolist()]
    return list(one.values.tolist())


def check(path: Path, devices: Mapping[tuple[str | None, ...], tuple[Columns, bool]], official: bool = True) -> None:
    wanted = {(segments, name): one for segments, (columns, _) in devices.items() for name, one in columns.items()}
    wanted = {key: one for key, one in wanted.items() if len(one)}
    ours = read_ours(path)
    assert ours.keys() == {(file_device(segments, "db"), name) for segments, name in wanted}
    for (segments, name), one in wanted.items():
        assert same(ours[file_device(segments, "db"), name], one), (segments, name)
    if official:
        theirs = read_official(path)
        assert theirs.keys() == wanted.keys()
        for key, one in wanted.items():
            kind, times, values = theirs[key]
            assert kind == one.type and times == one.times.tolist(), key
            assert repr(values) == repr(as_official(one)), key  # repr tells NaN, -0.0 and types apart


@pytest.mark.full
def test_all_types_at_their_extremes_in_every_layout(tmp_path: Path) -> None:
    devices = {
        ("root.plant.line", "plain"): (extremes(), False),
        ("root.plant.line", "wide"): (extremes(), True),
        ("root.plant.line", "x", "`odd.node`"): (extremes(), True),
        ("meters", None, "null"): (extremes(), True),
        ("meters", "a.b\\c", "ü"): (extremes(), True),
        ("meters", "a.b\\c"): (extremes(), True),
    }
    write(tmp_path / "f.tsfile", devices, tables={"meters": ["region", "line"]})
    check(tmp_path / "f.tsfile", devices)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("compression", [Compression.UNCOMPRESSED, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_many_pages(tmp_path: Path, compression: Compression) -> None:
    devices = {("root.a.b", "d1"): (many_rows(25_001), False), ("root.a.b", "d2"): (many_rows(40_003), True)}
    write(tmp_path / "f.tsfile", devices, compression=compression)
    check(tmp_path / "f.tsfile", devices)


@pytest.mark.full
def test_many_chunks_of_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 100)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 3)
    devices = {("root.a.b", "d1"): (many_rows(2_000), False), ("root.a.b", "d2"): (many_rows(2_000), True)}
    write(tmp_path / "f.tsfile", devices)
    check(tmp_path / "f.tsfile", devices)


@pytest.mark.full
def test_large_values_make_small_pages(tmp_path: Path) -> None:
    blobs = column(DataType.BLOB, range(12), [bytes([n]) * 400_000 for n in range(12)])
    devices = {("root.a.b", "d1"): ({"blob": blobs}, False), ("root.a.b", "d2"): ({"blob": blobs}, True)}
    write(tmp_path / "f.tsfile", devices)
    check(tmp_path / "f.tsfile", devices)
    assert writer_pages.page_cuts(12, np.full(12, 400_000)) == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("count", [256, 257, 700])
def test_more_devices_than_an_index_node_holds(tmp_path: Path, count: int) -> None:
    one = {"s": column(DataType.INT32, [1, 2], [3, 4])}
    devices: dict[tuple[str | None, ...], tuple[Columns, bool]] = {
        ("root.plant.line", f"d{n}"): (one, bool(n % 2)) for n in range(count)
    }
    devices |= {("meters", f"tag {n}"): (one, True) for n in range(count)}
    write(tmp_path / "f.tsfile", devices, tables={"meters": ["tag"]})
    check(tmp_path / "f.tsfile", devices)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_more_measurements_than_an_index_node_holds(tmp_path: Path, count: int) -> None:
    columns = {f"s{n}": column(DataType.INT32, [n], [n]) for n in range(count)}
    devices = {("root.a.b", "d1"): (columns, False), ("root.a.b", "d2"): (columns, True), ("t", "x"): (columns, True)}
    write(tmp_path / "f.tsfile", devices, tables={"t": ["tag"]})
    check(tmp_path / "f.tsfile", devices)


@pytest.mark.full
def test_an_index_of_many_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_index, "FAN_OUT", 3)
    columns = {f"s{n:02}": column(DataType.INT32, [n], [n]) for n in range(100)}
    devices = {("root.a.b", f"d{n:03}"): (columns, bool(n % 2)) for n in range(100)}
    write(tmp_path / "f.tsfile", devices)
    check(tmp_path / "f.tsfile", devices, official=False)  # the official package searches nodes of 256


def test_statistics_and_structure_tell_what_was_written(tmp_path: Path) -> None:
    devices = {("root.a.b", "d"): (many_rows(12_000), True), ("t", "x"): (extremes(), True)}
    writer = write(tmp_path / "f.tsfile", devices, tables={"t": ["tag"], "unused": ["tag"]})
    data = (tmp_path / "f.tsfile").read_bytes()
    assert writer.size == len(data) and writer.sha256 == hashlib.sha256(data).hexdigest()
    assert check_structure(tmp_path / "f.tsfile") == 4
    facts = describe_file(tmp_path / "f.tsfile", "db")
    assert facts.points == writer.points and facts.tables == {"t": 1} and facts.undecodable == ()
    by_name = {device.device: device for device in facts.devices}
    for segments, (columns, _) in devices.items():
        known = by_name[file_device(segments, "db")]
        times = np.concatenate([c.times for c in columns.values()])
        assert (known.start, known.end) == (times.min(), times.max())
        assert {n: (s.type, s.points) for n, s in known.series.items()} == {
            n: (c.type, len(c)) for n, c in columns.items() if len(c)
        }


def test_nothing_stands_under_the_final_name_before_close(tmp_path: Path) -> None:
    path = tmp_path / "f.tsfile"
    writer = TsFileWriter(path)
    writer.write_device(("root.a", "d"), many_rows(10), False)
    assert not path.exists()
    writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["f.tsfile"]


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="power"), TsFileWriter(tmp_path / "f.tsfile") as writer:
        writer.write_device(("root.a", "d"), many_rows(10), False)
        raise RuntimeError("power")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    one = {"s": column(DataType.INT32, [1], [3])}
    other = {"s": column(DataType.TEXT, [1], [b"3"])}
    writer = TsFileWriter(tmp_path / "f.tsfile", {"t": ["tag"]})
    with pytest.raises(ValueError, match="needs a device"):
        TsFileWriter(tmp_path / "empty.tsfile").close()
    writer.write_device(("root.b", "d"), one, False)
    with pytest.raises(ValueError, match="comes after"):
        writer.write_device(("root.a", "d"), one, False)
    with pytest.raises(ValueError, match="'v' is not declared"):
        writer.write_device(("v", "x"), one, True)
    writer.write_device(("t", "x"), one, True)
    with pytest.raises(ValueError, match="INT32 and TEXT"):
        writer.write_device(("t", "y"), other, True)
    with pytest.raises(ValueError, match="more tags"):
        writer.write_device(("t", "z", "z"), one, True)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full_after(1)
@pytest.mark.parametrize("aligned", [False, True])
def test_pages_of_one_point_each(tmp_path: Path, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 1)
    times, values = [I64.min, -1, 0, 7, I64.max], [I64.max, 0, -1, 5, I64.min]
    with TsFileWriter(tmp_path / "a.tsfile") as writer:
        writer.write_device(("root.db.a", "d1"), {"s": column(DataType.INT64, times, values)}, aligned)
    with TsFile(tmp_path / "a.tsfile") as file:
        read = file.read_column("root.db.a.d1", "s")
        assert read.times.tolist() == times and read.values.tolist() == values
        assert file.read_column("root.db.a.d1", "s", 0, 8).times.tolist() == [0, 7]
