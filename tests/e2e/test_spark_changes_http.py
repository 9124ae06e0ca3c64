"""The format `tidemark_changes` by `changes serve`, in real Spark: the store is seen by its servers alone."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import run_here
from tests.delivery_worlds import expected_changes, fill_store, write_store
from tests.served_changes import TOKEN, make_certificate, start
from tests.services import spark as spark_service
from tests.services.processes import PartMissing, free_port, soon
from tidemark.changes.spark.places import PATIENCE_SECONDS

pytestmark = [pytest.mark.full, pytest.mark.real("spark"), pytest.mark.timeout(600)]
LAST = 200


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes what it does, with its plans."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def spark(events: Path) -> Iterator[Any]:
    try:
        with spark_service.session(events, "local[2,4]") as session:  # a task is tried four times, as on a cluster
            yield session
    except PartMissing as missing:
        pytest.skip(str(missing))


@dataclass
class Served:
    """A store that Spark is not told of, and servers before it, each on a port of its own."""

    config: Path
    ports: Sequence[int]
    processes: list[subprocess.Popen[str] | None]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start(self, number: int) -> None:
        self.processes[number], _ = start(self.config.parent, "--port", str(self.ports[number]))

    def kill(self, number: int, how: int = signal.SIGKILL) -> None:
        process = self.processes[number]
        if process is not None:
            process.send_signal(how)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
        self.processes[number] = None

    def options(self, *numbers: int, **more: object) -> dict[str, str]:
        urls = ",".join(self.urls[number] for number in numbers or range(len(self.ports)))
        given = {"url": urls, "source": "orders", "task": "billing", "tokenFile": self.config.parent / "token", **more}
        return {name.rstrip("_"): str(value) for name, value in given.items()}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    config = write_store(tmp_path, LAST)
    (tmp_path / "changes.tokens").write_text(f"{TOKEN} billing mail\n")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with ExitStack() as ending:
        found = Served(config, [free_port(), free_port()], [None, None])
        for number in range(2):
            found.start(number)
            ending.callback(found.kill, number, signal.SIGTERM)
        yield found


def load(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("tidemark_changes").options(**options).load()


def load_shared(spark: Any, served: Served, **options: object) -> Any:
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    return spark.read.format("tidemark_changes").options(source="orders", **given).load(str(served.config))


def read_rows(served: Served, *words: str) -> list[dict[str, Any]]:
    """The rows that `changes read` tells."""
    out = served.config.parent / "changes.jsonl"
    assert run_here(served.config, "changes", "read", "orders", *words, "--out", str(out)).code == 0
    return [line for line in map(json.loads, out.read_text().splitlines()) if line["k"] == "row"]


def places(rows: Sequence[Any]) -> list[tuple[int, int]]:
    return [(row["seq"], row["i"]) for row in rows]


def test_frames_equal_changes_read_and_the_shared_folder(spark: Any, served: Served) -> None:
    one = {"tables": "shop.orders", "rowsPerPartition": 100}
    rows = load(spark, served.options(**one)).collect()
    told = [line for line in read_rows(served) if line["table"] == "orders"]
    names = ("seq", "i", "op", "gtid", "file", "txn_pos")
    assert [[row[name] for name in names] for row in rows] == [[line[name] for name in names] for line in told]
    assert [list(row["after"]) for row in rows] == [line["after"] for line in told]
    assert rows == load_shared(spark, served, **one).collect()
    stretch = {"from_": "seq:10", "to": "seq:20", "controls": "true"}
    lines = load(spark, served.options(**stretch)).collect()
    assert lines == load_shared(spark, served, **stretch).collect()
    assert places([row for row in lines if row["k"] == "row"]) == places(
        read_rows(served, "--from", "seq:10", "--to", "seq:20")
    )


def test_8_shards_are_partitions_in_order(spark: Any, served: Served) -> None:
    parts = load(spark, served.options(shards=8)).rdd.glom().collect()
    assert len(parts) == 8
    for shard, rows in enumerate(parts):
        assert rows and places(rows) == places(read_rows(served, "--shards", "8", "--shard", str(shard)))
    assert parts == load_shared(spark, served, shards=8).rdd.glom().collect()


class Query:
    """A stream that ends where the store ends, and its batches."""

    def __init__(self, spark: Any, served: Served) -> None:
        self.spark = spark
        self.checkpoint = served.config.parent / "checkpoint"
        self.batches: list[list[tuple[int, int]]] = []

    def run(self, options: dict[str, str]) -> list[list[tuple[int, int]]]:
        self.batches.clear()
        stream = self.spark.readStream.format("tidemark_changes").options(tables="shop.orders", **options).load()
        writer = stream.writeStream.foreachBatch(lambda batch, _: self.batches.append(sorted(places(batch.collect()))))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return list(self.batches)


def test_a_stream_of_a_session(spark: Any, served: Served) -> None:
    """Admission and AvailableNow; then what came meanwhile, at another address; then nothing; and the point of its task."""
    query = Query(spark, served)
    batches = query.run(served.options(0, rowsPerBatch=100, shards=8))
    assert len(batches) > 4 and all(len(batch) <= 100 for batch in batches)
    told = places([line for line in read_rows(served) if line["table"] == "orders"])
    assert [row for batch in batches for row in batch] == told
    fill_store(served.config.parent / "store", LAST + 1, LAST + 3, fence=2)
    assert [row for batch in query.run(served.options(1)) for row in batch] == sorted(expected_changes(LAST + 1, LAST + 3))
    assert query.run(served.options(0)) == []
    [task] = run_here(served.config, "changes", "show", "orders").json["tasks"]
    assert task["name"] == "billing" and LAST // 2 < int(task["points"][0]["point"].removeprefix("seq:")) <= LAST + 4


def test_by_tls_with_the_certificate_that_vouches(spark: Any, served: Served) -> None:
    folder = served.config.parent
    with served.config.open("a") as config:
        config.write('[changes]\ncertificate = "c.pem"\nkey = "k.pem"\n')
    make_certificate(folder)
    served.kill(1)
    served.start(1)
    safe = {"url": served.urls[1].replace("http", "https"), "ca": folder / "c.pem"}
    assert sorted(places(load(spark, served.options(**safe)).collect())) == sorted(expected_changes(1, LAST))
    assert sum(map(len, Query(spark, served).run(served.options(**safe)))) > LAST
    with pytest.raises(Exception, match=r"no ca is given, .*hint: ca names the certificate"):
        load(spark, served.options(url=safe["url"]))


def collect_slowly(frame: Any, sign: Path) -> list[tuple[int, int]]:
    """The places of all rows. The first task that has some makes `sign`; each takes its time."""

    def slow_down(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        for batch in batches:
            Path(sign_at).touch()
            time.sleep(0.2)
            yield batch

    sign_at, rows = str(sign), frame.select("seq", "i")
    return sorted(places(rows.mapInArrow(slow_down, rows.schema).collect()))


def count_failed_tasks(spark: Any, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    return sum(tracker.getStageInfo(stage).numFailedTasks for job in jobs for stage in job.stageIds)


def test_a_reader_that_dies_under_tasks_changes_no_row(spark: Any, served: Served) -> None:
    """First the other address goes on. Then there is none for longer than a task waits: Spark tries it again."""
    whole, sign = sorted(expected_changes(1, LAST)), served.config.parent / "sign"

    def kill_at_first_rows(number: int, away: float = 0) -> None:
        if soon(sign.exists, 200):
            served.kill(number)
            if away:
                time.sleep(away)
                served.start(number)

    killing = threading.Thread(target=kill_at_first_rows, args=(0,))
    killing.start()
    assert collect_slowly(load(spark, served.options(rowsPerPartition=30)), sign) == whole
    killing.join()
    assert served.processes[0] is None
    sign.unlink()
    spark.sparkContext.setJobGroup("away", "a reader that is away")
    killing = threading.Thread(target=kill_at_first_rows, args=(1, PATIENCE_SECONDS + 4))
    killing.start()
    assert collect_slowly(load(spark, served.options(1, rowsPerPartition=30)), sign) == whole
    killing.join()
    assert count_failed_tasks(spark, "away") > 0


def test_errors_say_what_to_do(spark: Any, served: Served) -> None:
    (served.config.parent / "wrong").write_text("no-token-of-this-server\n")
    wrong = served.options(tokenFile=served.config.parent / "wrong")
    with pytest.raises(Exception, match=r"UNAUTHORIZED.*hint: give a token that is a line") as told:
        load(spark, wrong)
    assert "no-token-of-this-server" not in str(told.value)
    with pytest.raises(Exception, match=r"NO_SOURCE.*hint: give a reader of this source: \./tidemark changes show"):
        load(spark, served.options(source="billing"))
    query = Query(spark, served)
    query.run(served.options(0))
    (served.config.parent / "store").rename(served.config.parent / "moved")
    fill_store(served.config.parent / "store", 1, 20)
    with pytest.raises(Exception, match=r"is ahead of the store of this reader.*hint: "):
        query.run(served.options(0))


def test_the_token_is_in_no_plan_event_or_checkpoint(
    spark: Any, served: Served, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = load(spark, served.options())
    frame.explain(True)
    frame.explain("formatted")
    assert frame.count() == len(expected_changes(1, LAST))
    Query(spark, served).run(served.options(rowsPerBatch=300))
    shown = capsys.readouterr().out
    assert "tidemark_changes" in shown and TOKEN not in shown
    told = [path for path in (events / "events").rglob("*") if path.is_file()]
    kept = [path for path in (served.config.parent / "checkpoint").rglob("*") if path.is_file()]
    assert told and kept and not [path for path in (*told, *kept) if TOKEN.encode() in path.read_bytes()]
    assert any(b"tidemark_changes" in path.read_bytes() for path in told)
