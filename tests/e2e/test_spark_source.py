"""The formats `tsfile` and `tidemark` in a real session: folders and catalogs read, all types written, all or nothing."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre
from tests.clustered import SLOTS, Clustered
from tests.expected import SITES, RealSite
from tests.landing_maker import companions, tsfiles_below
from tests.services import spark as spark_service
from tests.services.processes import PartMissing
from tests.small_files import sealed, source, tsfile
from tidemark.cluster.replicas.commit import record_slots
from tidemark.engines.java import java_home
from tidemark.errors import UsageError
from tidemark.tsfiles.spark.dataset import DATASET_MANIFEST, read_dataset_manifest

pytestmark = [pytest.mark.full, pytest.mark.real("spark")]
ALL_SITES = pytest.mark.parametrize("site", SITES.values(), ids=SITES.keys())


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        with spark_service.session(tmp_path_factory.mktemp("spark")) as session:
            yield session
    except PartMissing as missing:
        pytest.skip(str(missing))


def tall(spark: Any, site: RealSite, model: str, **options: str) -> list[tuple[object, ...]]:
    reader = spark.read.format("tsfile").options(model=model, layout="tall", rowsPerTask="3000", **options)
    return [tuple(row) for row in reader.load(str(site.root / "data")).collect()]


@ALL_SITES
def test_every_point_of_a_real_folder(spark: Any, site: RealSite) -> None:
    """What the server answers, deletions and overlapping files included, for both models."""
    rows = tall(spark, site, "tree") + (tall(spark, site, "table") if site.name.startswith("2") else [])
    assert sorted(rows, key=lambda row: (row[0].encode(), row[1].encode(), row[2])) == site.rows()


@ALL_SITES
def test_wide_rows_are_those_points_too(spark: Any, site: RealSite) -> None:
    frame = spark.read.format("tsfile").option("model", "tree").load(str(site.root / "data"))
    expected = [row for row in site.rows() if row[0].startswith("root.")]
    measurements = {row[1] for row in expected}
    assert set(frame.columns) == {"time", "device", *measurements}
    counts = frame.selectExpr(*[f"count(`{name}`) as `{name}`" for name in sorted(measurements)]).first().asDict()
    assert counts == {name: sum(row[1] == name for row in expected) for name in measurements}
    assert frame.count() == len({(device, time) for device, _, time, *_ in expected})


def test_only_what_options_name_is_read(spark: Any) -> None:
    site = SITES["2.0.1-beta"]
    expected = site.rows()
    device = next(row[0] for row in expected if row[0].startswith("root.plant1"))
    of_device = [row for row in expected if row[0] == device]
    start, end = sorted({row[2] for row in of_device})[5], sorted({row[2] for row in of_device})[50]
    rows = tall(spark, site, "tree", devices=device, start=str(start), end=str(end))
    assert sorted(rows) == sorted(row for row in of_device if start <= row[2] < end)
    name = of_device[0][1]
    reader = spark.read.format("tsfile").options(model="tree", devices="root.plant1.**", columns=f"{name},time")
    frame = reader.load([str(site.root / folder) for folder in site.data])  # several paths
    assert frame.columns == [name, "time"]
    assert frame.count() == sum(row[1] == name and row[0].startswith("root.plant1.") for row in expected)


def test_tables_have_their_tags_and_times_become_instants(spark: Any) -> None:
    site = SITES["2.0.1-beta"]
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW works USING tsfile "
        f"OPTIONS (path '{site.root}/data', model 'table', timeUnit 'ms', columns 'time,region,line,k')"
    )
    found = spark.sql("SELECT region, line, count(k), min(time) FROM works GROUP BY ALL").collect()
    points = [row for row in site.rows() if not row[0].startswith("root.") and row[1] == "k"]
    by_device: dict[str, list[int]] = {}
    for device, _, time, *_ in points:
        by_device.setdefault(device.split(".", 2)[2], []).append(time)
    told = {
        f"{region or chr(92) + 'N'}.{line or chr(92) + 'N'}": (count, int(first.replace(tzinfo=UTC).timestamp() * 1000))
        for region, line, count, first in found
    }
    assert told == {device: (len(times), min(times)) for device, times in by_device.items()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"the files hold models table, tree: .* \(hint: \.option\(\"model\", \"table\"\)\)"),
        ({"model": "tree", "colums": "a"}, "no option 'colums'"),
        ({"model": "tree", "columns": "nope"}, "no column nope"),
        ({"model": "tree", "start": "yesterday"}, "'yesterday' is neither"),
        ({"model": "forest"}, "allowed are tree, table"),
    ],
)
def test_what_is_wrong_is_said(spark: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        spark.read.format("tsfile").options(**options).load(str(SITES["2.0.1-beta"].root / "data"))


ROWS = [
    ("root.a.b.d1", 5, True, 2**31 - 1, -(2**63), math.inf, -0.0, "", b"\0\xff", date(1969, 7, 20)),
    ("root.a.b.d1", -7, False, -(2**31), 2**63 - 1, -math.inf, 5e-324, "Grüße 温度", b"", date(1000, 1, 1)),
    ("root.a.b.d1", 2**62, None, None, 0, None, None, None, None, date(9999, 12, 31)),
    ("root.a.b.d0", 5, None, 1, None, 1.5, 2.5, "x", None, None),
    ("root.z.`odd.node`", 0, True, None, None, None, None, None, b"z", None),
]
SCHEMA = "device string, time bigint, b boolean, i int, l bigint, f float, d double, s string, x binary, day date"


@pytest.mark.parametrize("aligned", ["true", "false"])
def test_all_types_come_back_as_they_were_written(spark: Any, tmp_path: Path, aligned: str) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    frame.repartition(2).write.format("tsfile").mode("append").option("aligned", aligned).save(str(tmp_path / "set"))
    back = spark.read.format("tsfile").load(str(tmp_path / "set")).select(frame.columns)
    assert sorted(map(repr, back.collect())) == sorted(map(repr, frame.collect()))


def test_a_table_with_null_tags_and_instants(spark: Any, tmp_path: Path) -> None:
    rows = [
        (datetime(2026, 1, 1, 12, 0, second), region, line, float(second))
        for second in range(50)
        for region, line in (("r0", "l0"), ("r0", None), (None, "l1"))
    ]
    frame = spark.createDataFrame(rows, "time timestamp, Region string, Line string, Temp double")
    writer = frame.write.format("tsfile").mode("append").options(table="Sensors", tags="Region,Line", rowsPerFile="20")
    writer.save(str(tmp_path))
    back = spark.read.format("tsfile").option("timeUnit", "ms").load(str(tmp_path))
    assert back.columns == ["time", "region", "line", "temp"]
    assert sorted(map(repr, map(tuple, back.collect()))) == sorted(map(repr, rows))


def test_later_rows_win_and_overwrite_replaces_all(spark: Any, tmp_path: Path) -> None:
    def write(mode: str, *values: int) -> None:
        frame = spark.createDataFrame(
            [("root.a.d", n, value) for n, value in enumerate(values)], "device string, time long, v int"
        )
        frame.write.format("tsfile").mode(mode).option("graceSeconds", "0").save(str(tmp_path))

    def held() -> list[int]:
        return [row.v for row in spark.read.format("tsfile").load(str(tmp_path)).orderBy("time").collect()]

    write("append", 1, 2, 3, 4)
    write("append", 9, 8)
    assert held() == [9, 8, 3, 4]
    write("overwrite", 5)
    assert held() == [5]
    assert len(list(tmp_path.glob("*.tsfile"))) == 1


def test_a_task_that_fails_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    """One task: others of the job may still be writing when it is given up."""
    spark.createDataFrame([("root.a.d", 1, 1)], "device string, time long, v int").write.format("tsfile").mode(
        "append"
    ).save(str(tmp_path))
    before = (tmp_path / DATASET_MANIFEST).read_bytes()
    bad = spark.range(0, 1000, 1, 1).selectExpr(
        "if(id = 999, 'no device', concat('root.a.d', id % 3)) as device", "id as time", "cast(id as int) as v"
    )
    with pytest.raises(Exception, match="is no device of the tree model"):
        bad.write.format("tsfile").mode("overwrite").save(str(tmp_path))
    assert (tmp_path / DATASET_MANIFEST).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [DATASET_MANIFEST, "_lock", *read_dataset_manifest(tmp_path).names]
    )
    with pytest.raises(Exception, match=r"two rows of root\.a\.d have the time 1"):
        twice = spark.createDataFrame([("root.a.d", 1, 1), ("root.a.d", 1, 2)], "device string, time long, v int")
        twice.coalesce(1).write.format("tsfile").mode("append").save(str(tmp_path))
    assert (tmp_path / DATASET_MANIFEST).read_bytes() == before


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(spark: Any, tmp_path: Path) -> None:
    """Nobody writes into it: whoever opened it as a file would wait for ever."""
    place = tmp_path / "1-1-0-0.tsfile"
    place.write_bytes(tsfile({"root.a.d": {"v": [(1, 1)]}}))
    frame = spark.read.format("tsfile").option("wallSeconds", "2").load(str(place))
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(Exception, match=r"1-1-0-0\.tsfile.*regular file"):
        frame.collect()


def test_a_folder_of_somebody_else_is_not_written_into(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "theirs.tsfile").write_bytes(b"TsFile")
    with pytest.raises(Exception, match="holds TsFiles that Tidemark did not write"):
        spark.createDataFrame([("root.a.d", 1, 1)], "device string, time long, v int").write.format("tsfile").mode(
            "append"
        ).save(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["theirs.tsfile"]


def test_a_receivers_folder_is_refused_and_the_sites_own_is_read(spark: Any, tmp_path: Path) -> None:
    """The same file at both. However a place of the receiver is named, the refusal says how its rows are had."""
    parts = sealed({"root.sg.d": {"v": [(1, 10), (2, 20)]}})
    for end, data in parts.items():
        (place := tmp_path / "site" / (source(1) + end)).parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    centre = Centre(tmp_path)
    centre.sender().land({source(1): parts})
    centre.load()
    data = centre.root / "data"
    (held,) = data.rglob("*.tsfile")
    reader, plain = spark.read.format("tsfile"), str(tmp_path / "site")
    known = spark.read.format("tsfile").schema("time long, device string, v long")  # nobody asks the files for it
    asked = [(reader, at) for at in (data, held.parent, held, data / "*" / "*" / "*.tsfile", tmp_path)]
    for by, at in (*asked, (known, data), (reader, [plain, str(data)])):
        with pytest.raises(Exception, match=r"they alone give wrong rows \(hint: spark\.read\.format\(\"tidemark\"\)"):
            by.load(at if isinstance(at, list) else str(at)).collect()
    assert [tuple(row) for row in reader.load(plain).collect()] == [(1, "root.sg.d", 10), (2, "root.sg.d", 20)]


@pytest.fixture(params=[Centre, Clustered], ids=["receiver", "nodes"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Centre:
    """A real folder, loaded: into a receiver, or to its nodes."""
    made: Centre = request.param(tmp_path)
    settings = '[receivers.centre]\nstore = "centre"\n'
    if isinstance(made, Clustered):
        made.begin("n1", "n2", "n3")
        settings += f'[cluster]\nreceiver = "centre"\nslots = {SLOTS}\n'
    (tmp_path / "tidemark.toml").write_text(settings)
    site = SITES["2.0.1-beta"]
    made.sender(data=site.data).land({at: companions(site.root, at) for at in tsfiles_below(site.root, site.data)})
    made.load()
    return made


def test_a_catalog_in_spark_is_what_read_gives(spark: Any, catalog: Centre) -> None:
    """Before and after merges; nodes alone have the files when the planning begins."""

    def rows(**options: str) -> list[tuple[object, ...]]:
        reader = spark.read.format("tidemark").options(layout="tall", rowsPerTask="3000", **options)
        found = [tuple(row) for row in reader.load(str(catalog.folder / "tidemark.toml")).collect()]
        return sorted(found, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))

    def forget() -> None:
        if isinstance(catalog, Clustered):
            catalog.empty_cache()

    expected = SITES["2.0.1-beta"].rows()
    forget()
    assert rows() == expected
    assert catalog.merge().files_out
    forget()
    assert rows() == expected
    first = expected[0][0]
    assert rows(devices=first) == [row for row in expected if row[0] == first]
    frame = spark.read.format("tidemark").option("model", "tree").load(str(catalog.folder / "tidemark.toml"))
    assert frame.count() == len({(row[0], row[2]) for row in expected if row[0].startswith("root.")})


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("catalog", [Clustered], indirect=True)
def test_without_a_ledger_a_running_session_reads_from_the_nodes(spark: Any, catalog: Clustered) -> None:
    assert catalog.merge().files_out
    with catalog.cluster() as cluster:
        record_slots(cluster)
    catalog.app.ledger.close()
    catalog.empty_cache()
    settings = catalog.folder / "tidemark.toml"
    nodes = "".join(f'[nodes.n{n}]\nstore = "nodes/n{n}"\n' for n in (1, 2, 3))
    away = '[ledger]\nurl = "postgresql+psycopg://nobody@127.0.0.1:1/none"\n'
    settings.write_text(away + settings.read_text() + "quorum = 2\n" + nodes)

    def rows(**options: str) -> list[tuple[object, ...]]:
        reader = spark.read.format("tidemark").options(layout="tall", rowsPerTask="3000", **options)
        found = [tuple(row) for row in reader.load(str(settings)).collect()]
        return sorted(found, key=lambda row: (row[0].encode(), row[1].encode(), row[2]))

    expected = SITES["2.0.1-beta"].rows()
    assert rows(fromNodes="true") == expected
    shutil.rmtree(catalog.node("n2"))
    assert rows(fromNodes="true") == expected
    shutil.rmtree(catalog.node("n3") / ".tidemark" / "log")
    with pytest.raises(Exception, match="committed last"):
        rows(fromNodes="true")


def run_example(name: str, *arguments: Path) -> str:
    """Run a program of docs/examples as a user would; return what it prints."""
    try:
        java = java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    script = Path(__file__).resolve().parents[2] / "docs" / "examples" / name
    paths = {"PYTHONPATH": str(spark_service.PLUGINS), "JAVA_HOME": str(java)}
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env={**os.environ, **paths, **spark_service.QUICK_JAVA},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    """Over the folder of a real node."""
    shutil.copytree(SITES["2.0.1-beta"].root / "data" / "datanode" / "data", tmp_path / "data")
    told = run_example("spark_tsfile.py", tmp_path / "data")
    assert "8112 rows of" in told
    assert "3 of them -999" in told


@pytest.mark.parametrize("catalog", [Centre], indirect=True)
def test_the_example_of_a_catalog_runs(catalog: Centre) -> None:
    told = run_example("spark_catalog.py", catalog.folder / "tidemark.toml")
    assert "8112 rows of" in told
    assert f"{len(SITES['2.0.1-beta'].rows())} points" in told
