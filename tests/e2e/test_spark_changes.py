"""The format `tidemark_changes` in real Spark: a session, streams that are killed and go on, a standalone cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.commanded import run_here
from tests.delivery_worlds import expected_changes, fill_store
from tests.served_changes import TOKEN, start
from tests.services import spark as spark_service
from tests.services.processes import PartMissing, descendants_named, soon
from tidemark.changes.spark.source import sort_by_shard
from tidemark.engines.java import java_home
from tidemark.errors import UsageError

pytestmark = [pytest.mark.full, pytest.mark.real("spark"), pytest.mark.timeout(600)]
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
LAST = 200
PROGRAM = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

master, package, place, pause, options = sys.argv[1:]
folder, given = Path(place), json.loads(options)
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).config("spark.sql.shuffle.partitions", "2")
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
if package:
    spark.sparkContext.addPyFile(package)
stream = spark.readStream.format("tidemark_changes").options(tables="shop.*", **given).load()

def write(batch, number):
    rows = sorted([row.seq, row.i] for row in batch.select("seq", "i").collect())
    place = folder / "out" / f"{number}.json"
    if place.exists():  # this batch comes again
        assert json.loads(place.read_text()) == rows
    part = place.with_suffix(".tmp")
    part.write_text(json.dumps(rows))
    part.rename(place)
    time.sleep(float(pause))

writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
writer.trigger(availableNow=True).start().awaitTermination()
print("parts", spark.read.format("tidemark_changes").options(**given, shards="4").load().rdd.getNumPartitions())
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        with spark_service.session(tmp_path_factory.mktemp("spark")) as session:
            yield session
    except PartMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    fill_store(tmp_path / "store", 1, LAST)
    file = tmp_path / "tidemark.toml"
    file.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')
    return file


def read_rows(config: Path, *words: str) -> list[dict[str, Any]]:
    """The rows that `changes read` tells."""
    out = config.parent / "changes.jsonl"
    assert run_here(config, "changes", "read", "orders", *words, "--out", str(out)).code == 0
    lines = map(json.loads, out.read_text().splitlines())
    return [line for line in lines if line["k"] == "row"]


def places(rows: Sequence[Any]) -> list[tuple[int, int]]:
    return [(row["seq"], row["i"]) for row in rows]


def load(spark: Any, config: Path, **options: object) -> Any:
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    return spark.read.format("tidemark_changes").options(**given).load(str(config))


def test_frames_equal_changes_read(spark: Any, config: Path) -> None:
    rows = load(spark, config, tables="shop.orders", rowsPerPartition=100).collect()
    told = [line for line in read_rows(config) if line["table"] == "orders"]
    assert [list(row["after"]) for row in rows] == [line["after"] for line in told]
    names = ("seq", "i", "op", "gtid", "file", "txn_pos")
    assert [[row[name] for name in names] for row in rows] == [[line[name] for name in names] for line in told]
    stretch = load(spark, config, from_="seq:10", to="seq:20")
    assert places(stretch.collect()) == places(read_rows(config, "--from", "seq:10", "--to", "seq:20"))
    assert json.loads(stretch.first()["after"]).keys() == {"id", "n"}


def test_a_filter_stays_with_its_query(spark: Any, config: Path) -> None:
    frame = load(spark, config)
    assert frame.where("seq < 10").count() == len(expected_changes(1, 9))
    assert frame.count() == len(expected_changes(1, LAST))
    spark.sql(f"CREATE OR REPLACE TEMP VIEW notes USING tidemark_changes OPTIONS (path '{config}', tables 'shop.notes')")
    told = [line for line in read_rows(config) if line["table"] == "notes"]
    assert spark.sql("SELECT count(*), max(after.n) FROM notes").first() == (len(told), max(t["after"][1] for t in told))


def test_8_shards_are_partitions_and_11_are_sorted(spark: Any, config: Path) -> None:
    eight = load(spark, config, shards=8).rdd.glom().collect()
    eleven = sort_by_shard(load(spark, config, shards=11, rowsPerPartition=100), 11).rdd.glom().collect()
    for shards, parts in ((8, eight), (11, eleven)):
        assert len(parts) == shards
        for shard, rows in enumerate(parts):
            words = ("--shards", str(shards), "--shard", str(shard))
            assert rows and places(rows) == places(read_rows(config, *words))


def test_an_error_says_what_to_do(spark: Any, config: Path) -> None:
    with pytest.raises(Exception, match=r"no rows of shop\.none yet.*hint: \.schema"):
        load(spark, config, tables="shop.none")
    with pytest.raises(Exception, match="only reads"):
        load(spark, config).write.format("tidemark_changes").mode("append").save()


def test_a_stream_of_a_session(spark: Any, config: Path) -> None:
    """Admission and AvailableNow; then what came meanwhile; then nothing; and the point of its task."""
    found: list[list[tuple[int, int]]] = []

    def run() -> list[list[tuple[int, int]]]:
        found.clear()
        stream = spark.readStream.format("tidemark_changes")
        stream = stream.options(tables="shop.orders", rowsPerBatch="100", task="lake", shards="8").load(str(config))
        writer = stream.writeStream.foreachBatch(lambda batch, _number: found.append(sorted(places(batch.collect()))))
        query = writer.option("checkpointLocation", str(config.parent / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return found

    batches = run()
    assert len(batches) > 4 and all(len(batch) <= 100 for batch in batches)
    told = places([line for line in read_rows(config) if line["table"] == "orders"])
    assert [row for batch in batches for row in batch] == told
    fill_store(config.parent / "store", LAST + 1, LAST + 3, fence=2)
    assert [row for batch in run() for row in batch] == sorted(expected_changes(LAST + 1, LAST + 3))
    assert run() == []
    [task] = run_here(config, "changes", "show", "orders").json["tasks"]
    assert task["name"] == "lake" and LAST // 2 < int(task["points"][0]["point"].removeprefix("seq:")) <= LAST + 4


class Program:
    """The program of a user, which writes each batch of a stream to a file of its own."""

    def __init__(
        self, config: Path, master: str, pause: float, *, package: str = "", place: dict[str, str] | None = None
    ) -> None:
        try:
            java = java_home()
        except UsageError as missing:
            pytest.skip(missing.message)
        program = config.parent / "program.py"
        program.write_text(PROGRAM)
        names = {"PYTHONPATH": str(spark_service.PLUGINS), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java)}
        options = json.dumps({"rowsPerBatch": "60", "rowsPerPartition": "20", **(place or {"path": str(config)})})
        self.out = config.parent / "out"
        self.log = config.parent / "program.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, program, master, package, str(config.parent), str(pause), options],
                env={**os.environ, **names, **spark_service.QUICK_JAVA},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The driver, its JVM and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def batches(self) -> int:
        return len(list(self.out.glob("*.json")))

    def end(self) -> None:
        assert self.process.wait(300) == 0, self.log.read_text(errors="replace")[-4000:]

    def rows(self) -> list[tuple[int, int]]:
        return sorted((seq, i) for file in self.out.glob("*.json") for seq, i in json.loads(file.read_text()))


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.soak)])
def test_a_killed_driver_goes_on_from_its_checkpoint(config: Path, kills: int) -> None:
    choice, last = Random(SEED), LAST
    for _ in range(kills):
        program = Program(config, "local[2]", 0.4)
        before, wanted = program.batches(), choice.randrange(1, 4)
        try:
            assert soon(lambda p=program, n=before + wanted: p.batches() >= n or p.process.poll() is not None, 120)
            assert program.process.poll() is None, program.log.read_text(errors="replace")[-4000:]
            assert not soon(lambda: False, choice.random() * 0.6)
        finally:
            program.kill()
        last += 40
        fill_store(config.parent / "store", last - 39, last, fence=last)
    program = Program(config, "local[2]", 0)
    program.end()
    assert program.rows() == sorted(expected_changes(1, last))


@pytest.fixture(params=["server", pytest.param("folder", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest, config: Path) -> Iterator[dict[str, str]]:
    """The store under its path, or by a server of it, whose token each machine reads from a file."""
    if request.param == "folder":
        yield {"path": str(config)}
        return
    (config.parent / "changes.tokens").write_text(f"{TOKEN} billing\n")
    (config.parent / "token").write_text(TOKEN)
    process, address = start(config.parent)
    yield {"url": address, "source": "orders", "task": "billing", "tokenFile": str(config.parent / "token")}
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def test_a_cluster_whose_executor_is_killed(config: Path, place: dict[str, str]) -> None:
    """Executors get the package from the program, and read the store under its path, or by its server."""
    package = config.parent / "tidemark.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in sorted((spark_service.PLUGINS / "tidemark").rglob("*")):
            if path.suffix in (".py", ".c"):
                archive.write(path, path.relative_to(spark_service.PLUGINS))
    try:
        java = java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    with spark_service.cluster(java, config.parent) as running:
        program = Program(config, running.address, 0.3, package=str(package), place=place)
        try:
            assert soon(lambda: program.batches() >= 2 or program.process.poll() is not None, 200)
            victims = [
                p for worker in running.workers for p in descendants_named(worker.pid, "CoarseGrainedExecutorBackend")
            ]
            assert victims
            victims[0].kill()
            program.end()
        finally:
            if program.process.poll() is None:
                program.kill()
    assert program.rows() == sorted(expected_changes(1, LAST))
    assert "parts 4" in program.log.read_text(errors="replace")
    has_token = [path.name for path in config.parent.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert sorted(has_token) == (["changes.tokens", "token"] if "url" in place else [])  # no log, and no checkpoint
