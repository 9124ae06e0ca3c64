"""A real IoTDB LOADs what our writer and our merges make, and answers the same points."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.centre import Centre
from tests.expected import SITES
from tests.landing_maker import companions, tsfiles_below
from tests.services.iotdb import IoTDB
from tidemark.receiver.merge.merge import merge
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column, format_values
from tidemark.tsfiles.spark.arrow import devices_of
from tidemark.tsfiles.spark.options import write_options
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write.writer import TsFileWriter, device_order

pytestmark = [pytest.mark.full, pytest.mark.real("iotdb")]
SITE = SITES["2.0.1-beta"]
ROWS = 3_000


def all_types(rows: int) -> dict[str, Column]:
    """Every type; every column has other rows than the next. Values that the server's command line prints plainly."""
    random = np.random.default_rng(rows)
    times = np.cumsum(random.integers(1, 500, rows)) + 1_700_000_000_000
    words = np.empty(rows, object)
    words[:] = [f"word {n % 13} é".encode() for n in range(rows)]
    values = {
        DataType.BOOLEAN: random.random(rows) < 0.5,
        DataType.INT32: random.integers(-(2**31), 2**31, rows).astype(np.int32),
        DataType.INT64: random.integers(-(2**63), 2**63 - 1, rows),
        DataType.FLOAT: random.integers(-1000, 1000, rows).astype(np.float32) / 4,
        DataType.DOUBLE: random.integers(-(10**6), 10**6, rows) / 8,
        DataType.TEXT: words,
        DataType.TIMESTAMP: times,
        DataType.DATE: random.choice(np.array([19700101, 20240229, 20991231], np.int32), rows),
        DataType.STRING: words,
    }
    made = {}
    for shift, (data_type, all_values) in enumerate(values.items()):
        keep = (np.arange(rows) + shift) % 10 != 0
        made[f"a_{data_type.name.lower()}"] = Column(
            data_type, times, all_values.astype(VALUE_DTYPES[data_type])
        ).select_where(keep)
    return made


def write(place: Path, devices: Mapping[tuple[str | None, ...], dict[str, Column]], aligned: bool) -> None:
    with TsFileWriter(place, {"meters": ["region", "line"]}) as writer:
        for segments in sorted(devices, key=device_order):
            writer.write_device(segments, devices[segments], aligned)


def check_types(node: IoTDB, device: str, columns: Mapping[str, Column]) -> None:
    """All values of the types whose canonical text the command line prints too, and the counts of all."""
    names = sorted(columns)
    counts = node.query(f"select {', '.join(f'count({name})' for name in names)} from {device}")
    assert [int(n) for n in counts[0]] == [len(columns[name]) for name in names]
    plain = ["a_boolean", "a_double", "a_int32", "a_int64", "a_string", "a_text"]
    found: dict[str, dict[int, str]] = {name: {} for name in plain}
    for start in range(0, ROWS, 500):
        for time, *cells in node.query(f"select {', '.join(plain)} from {device} limit 500 offset {start}"):
            for name, cell in zip(plain, cells, strict=True):
                if cell != "null":
                    found[name][int(time)] = cell
    for name in plain:
        column = columns[name]
        assert found[name] == dict(zip(column.times.tolist(), format_values(column.type, column.values), strict=True)), name


@pytest.mark.parametrize("aligned", [False, True], ids=["not aligned", "aligned"])
def test_every_type_in_one_chunk_and_in_many(node: IoTDB, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = all_types(ROWS)
    form = "aligned" if aligned else "plain"  # in the files' names: the server remembers a path it has read
    one, many = (node.incoming / f"{form}_{name}.tsfile" for name in ("one", "many"))
    write(one, {(f"root.{form}.line", "one"): columns}, aligned)
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 100)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 4)
    write(many, {(f"root.{form}.line", "many"): columns}, aligned)
    for file, name in ((one, "one"), (many, "many")):
        node.run(f"load '{file}' with ('on-success'='none')")
        check_types(node, f"root.{form}.line.{name}", columns)


def test_columns_without_a_value_in_a_whole_chunk(node: IoTDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 10)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 2)
    times = np.arange(200, dtype=np.int64)
    columns = {
        "full": Column(DataType.INT32, times, times.astype(np.int32)),
        "late": Column(DataType.INT32, times[-5:], times[-5:].astype(np.int32)),
        "early": Column(DataType.INT64, times[3:4], times[3:4]),
    }
    write(node.incoming / "holes.tsfile", {("root.holes.a", "d"): columns}, aligned=True)
    node.run(f"load '{node.incoming}/holes.tsfile' with ('on-success'='none')")
    assert node.query("select count(full), count(late), count(early) from root.holes.a.d") == [["200", "5", "1"]]
    assert node.query("select late from root.holes.a.d where time >= 198") == [["198", "198"], ["199", "199"]]
    assert node.query("select early from root.holes.a.d where time = 3") == [["3", "3"]]


def test_many_devices_measurements_and_odd_names(node: IoTDB) -> None:
    one = {"s": Column(DataType.INT32, np.array([1, 2]), np.array([3, 4], np.int32))}
    many = {f"s{n}": Column(DataType.INT32, np.array([n]), np.array([n], np.int32)) for n in range(600)}
    devices = {("root.wide.a", f"d{n}"): one for n in range(600)}
    devices |= {("root.wide.b", "many"): many, ("root.wide.c", "`odd.node`", "x"): {"`odd name`": one["s"]}}
    for aligned in (False, True):
        file = node.incoming / f"wide_{aligned}.tsfile"
        write(file, devices, aligned)
        node.run(f"load '{file}' with ('on-success'='none')")
        assert node.query("count timeseries root.wide.**") == [["1201"]]
        assert node.query("select s from root.wide.a.d599") == [["1", "3"], ["2", "4"]]
        assert node.query("select s599 from root.wide.b.many where time = 599") == [["599", "599"]]
        assert node.query("select `odd name` from root.wide.c.`odd.node`.x") == [["1", "3"], ["2", "4"]]
        node.run("delete database root.wide")


def test_names_as_rows_have_them(node: IoTDB) -> None:
    """What SQL takes in back-quotes only is found under its name: the files have the quotes where a server writes them."""
    device = ["root.quotes.a.my-dev", "root.quotes.a.`x.y`"]
    rows = pa.table({"device": device, "time": [1, 1], "my col": [1, 2], "a.b": [3, 4], "1": [5, 6]})
    asked = write_options({"path": "/nowhere"}, rows.schema, False)
    file = node.incoming / "names.tsfile"
    with TsFileWriter(file) as writer:
        for segments, columns in devices_of(rows, asked):
            writer.write_device(segments, columns, aligned=True)
    node.run(f"load '{file}' with ('on-success'='none')")
    assert node.query("select `my col`, `a.b`, `1` from root.quotes.a.`my-dev`") == [["1", "1", "3", "5"]]
    assert node.query("select `my col`, `a.b`, `1` from root.quotes.a.`x.y`") == [["1", "2", "4", "6"]]
    assert sorted(row[0] for row in node.query("show devices root.quotes.**")) == [
        f"root.quotes.a.{n}" for n in ("`my-dev`", "`x.y`")
    ]


def test_tables_with_null_tags(node: IoTDB) -> None:
    columns = all_types(200)
    devices = {("meters", "r1", "l1"): columns, ("meters", None, "l1"): columns, ("meters", "r1"): columns}
    write(node.incoming / "meters.tsfile", devices, aligned=True)
    node.run(f"load '{node.incoming}/meters.tsfile' with ('database-name'='shop','on-success'='none')", table=True)
    counted = "region, line, count(a_int64), count(a_text), count(a_date)"
    found = node.query(f"select {counted} from shop.meters group by region, line order by region, line", table=True)
    counts = [str(len(columns[name])) for name in ("a_int64", "a_text", "a_date")]
    assert sorted(found) == sorted([tags + counts for tags in (["r1", "l1"], ["null", "l1"], ["r1", "null"])])


def test_a_merged_real_folder_answers_what_the_folder_did(node: IoTDB, tmp_path: Path) -> None:
    """Everything readers see after a merge, loaded into an empty server: the counts of every series."""
    centre: Centre = Centre(tmp_path)
    centre.sender(data=SITE.data).land({path: companions(SITE.root, path) for path in tsfiles_below(SITE.root, SITE.data)})
    centre.load()
    assert merge(centre.app, centre.receiver, engine="pool").exit_code == 0
    visible = "SELECT location, mods_location FROM catalog_file WHERE visible = 1 AND model = 'tree'"
    for location, mods in centre.sql(visible):
        name = Path(location).name
        shutil.copy(centre.root / location, node.incoming / name)
        if mods:
            shutil.copy(centre.root / mods, node.incoming / f"{name}.mods2")
        node.run(f"load '{node.incoming / name}' with ('on-success'='delete')")
    rows = [row for row in centre.rows() if row[0].startswith("root.plant")]
    wanted = Counter((device, measurement) for device, measurement, *_ in rows)
    for device in sorted({device for device, _ in wanted}):
        names = sorted(measurement for d, measurement in wanted if d == device)
        counts = node.query(f"select {', '.join(f'count({name})' for name in names)} from {device}")
        assert [int(n) for n in counts[0]] == [wanted[device, name] for name in names], device
