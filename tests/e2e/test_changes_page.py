"""The examples of docs/changes.md do what the page says: every block of commands or Python is played in a scene.

A scene makes what the block needs: logs of the test data, a store, a real server. Each line that the page shows must come,
in its order. Numbers, times and sizes may differ; `…` stands for anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.delivery_worlds import expected_changes, fill_store
from tests.dump_worlds import start_server
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tests.services.processes import PartMissing, soon, stop
from tests.services.spark import PLUGINS, session
from tests.unit.changes.test_capture import NAMES, World
from tidemark.changes import subscribe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "changes.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(\.\d+)?( [kMG]?B\b)?")
PATH = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])
SHOWN_STORE = "/srv/tidemark/changes/orders"
TOKEN = "token-of-the-page-which-is-long-enough"
PLAYED = ("console", "python", "json")
FILES = "$ ./tidemark changes capture orders --files mysql-bin.00000?"
STATEMENTS = "$ ./tidemark changes capture orders --files mysql-bin.000001"
CAPTURE = "$ ./tidemark changes capture orders\ntidemark: "
LACKS, GAP, PARKED = f"{CAPTURE}127.0.0.1", f"{CAPTURE}gap 1", f"{CAPTURE}shop.orders is parked"
DOCTOR, REPAIR = "$ ./tidemark changes doctor orders", "$ ./tidemark changes repair orders"
BOOTSTRAP, SHOW = "$ ./tidemark changes bootstrap orders", "$ ./tidemark changes show"
READ, LINES, RETAIN = "$ ./tidemark changes read orders", '{"k":"row"', "$ ./tidemark changes retain orders"
CONSUME, REWIND = "$ ./tidemark changes consume billing", "$ ./tidemark changes rewind billing"
SUBSCRIBE, KEPT = "from tidemark.changes import subscribe", 'with subscribe("billing", source="orders", point=read_kept)'
SERIES = "$ ./tidemark changes deliver series"
DELIVER, STOPPED = "$ ./tidemark changes deliver lake\n12,567 rows", "$ ./tidemark changes deliver lake\n2 rows"
VERIFY_SINK = "$ ./tidemark changes verify orders --sink lake"
REMOTE, CONSUME_REMOTE = 'with subscribe("billing", source="orders", url=', f"{CONSUME} --source orders --url"
SPARK, SPARK_SERVED = 'orders = spark.read.format("tidemark_changes")', 'served = {"url": '
SETTINGS = '[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n'


@dataclass(frozen=True)
class Block:
    """A block of the page."""

    language: str
    text: str


def blocks() -> list[Block]:
    found = [Block(*one) for one in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    return [one for one in found if one.language in PLAYED]


def plain(line: str) -> str:
    return re.sub(r"\s+", " ", NUMBER.sub("0", line)).strip()


def assert_prints(wanted: str, output: str, command: str) -> None:
    rest = [plain(line) for line in output.splitlines()]
    for line in wanted.splitlines():
        pattern = re.compile(re.escape(plain(line)).replace("…", ".*"))
        while rest and not pattern.fullmatch(rest[0]):
            rest.pop(0)
        assert rest, f"{line!r} does not come (any more) in what {command!r} prints:\n{output}"


def type_commands(folder: Path, block: Block) -> None:
    """Type the commands of a block in a folder, each by itself, and compare what they print with the page."""
    command = folder / "tidemark"
    command.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{PATH}" "{sys.executable}" -P -m tidemark.cli "$@"\n')
    command.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    for part in block.text.removeprefix("$ ").split("\n$ "):
        typed, _, wanted = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=250,
        )
        assert_prints(wanted, done.stdout.replace(str(folder / "store"), SHOWN_STORE), typed)


def play(folder: Path, begins: str) -> Block:
    """Find the block of the page that begins so, and type its commands."""
    block = find(begins)
    type_commands(folder, block)
    return block


def find(begins: str) -> Block:
    [found] = [one for one in blocks() if one.text.startswith(begins)]
    return found


# without a server


def capture_logs(folder: Path) -> None:
    world = World(folder)
    (folder / "tidemark.toml").write_text(SETTINGS)
    world.unpack(*(f"workload/{name}" for name in NAMES))


def play_capture_of_files(folder: Path) -> None:
    """And what the page shows of that store: what is there, a stretch, what is cleaned."""
    capture_logs(folder)
    play(folder, FILES)
    block = find(SHOW)
    type_commands(folder, Block(block.language, block.text[block.text.index("$ ./tidemark changes find") :]))
    play(folder, READ)
    assert (folder / "changes.jsonl").read_text(encoding="utf-8").endswith(find(LINES).text.partition("\n")[2])
    (folder / "tidemark.toml").write_text(SETTINGS + "retain_hours = 1000000\ncompress_hours = 2\n")
    play(folder, RETAIN)


def play_statements(folder: Path) -> None:
    (folder / "tidemark.toml").write_text(SETTINGS)
    World(folder).put_log("variants/statement_and_mixed.binlog")
    (folder / "tidemark.toml").write_text(SETTINGS)
    play(folder, STATEMENTS)


def play_task(folder: Path) -> None:
    fill_store(folder / "store", 1, 10_000)
    (folder / "tidemark.toml").write_text(SETTINGS)
    play(folder, f"{CONSUME} --source orders --shards")
    play(folder, REWIND)


def run_python(folder: Path, block: Block, names: dict[str, Any]) -> dict[str, Any]:
    before = os.environ.get("TIDEMARK_CONFIG")
    os.environ["TIDEMARK_CONFIG"] = str(folder / "tidemark.toml")
    try:
        exec(compile(block.text, str(PAGE), "exec"), names)
    finally:
        os.environ.pop("TIDEMARK_CONFIG") if before is None else os.environ.update(TIDEMARK_CONFIG=before)
    return names


class Enough(Exception):
    """A program of the page goes on for good."""


def play_subscribe(folder: Path) -> None:
    fill_store(folder / "store", 1, 60)
    (folder / "tidemark.toml").write_text(SETTINGS)
    billed: list[Any] = []

    def bill(batch: Any) -> None:
        billed.extend(batch.to_pylist())
        if len(billed) >= 170:
            raise Enough

    with pytest.raises(Enough):
        run_python(folder, find(SUBSCRIBE), {"bill": bill})
    kept = {row["seq"] for row in billed}
    assert len(kept) > 40
    asked: list[int] = []

    def read_kept(shard: int) -> str | None:
        asked.append(shard)
        if len(asked) == 8:
            raise Enough
        return None

    block = find(KEPT)
    with pytest.raises(Enough):
        run_python(folder, block, {"subscribe": subscribe, "read_kept": read_kept})
    assert len(set(asked)) == len(asked)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a reader of the folder's source."""
    (folder / "changes.tokens").write_text(f"{TOKEN} billing\n")
    (folder / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "tidemark.cli", "--config", str(folder / "tidemark.toml"), "changes", "serve"]
    names = {**os.environ, "PYTHONPATH": PATH}
    server = subprocess.Popen([*command, "--port", "0", "--json"], env=names, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["address"]
    finally:
        stop(server)


def play_other_machine(folder: Path) -> None:
    """The page's reader has a certificate; this one is on the loopback."""
    fill_store(folder / "store", 1, 60)
    (folder / "tidemark.toml").write_text(SETTINGS)
    billed: list[Any] = []

    def bill(batch: Any) -> None:
        billed.extend(batch.to_pylist())
        if len(billed) >= 170:
            raise Enough

    with serving(folder) as address:
        block = find(REMOTE)
        text = block.text.replace('"https://reader:28332"', repr(address)).replace(', ca="ca.pem"', "")
        with pytest.raises(Enough):
            run_python(folder, Block("python", text), {"subscribe": subscribe, "bill": bill, "token": TOKEN})
        block = find(CONSUME_REMOTE)
        type_commands(folder, Block("console", block.text.replace("https://reader:28332", address)))
    assert list((folder / "changes").glob("billing-*.jsonl"))


# with a server

SERVED = (
    SETTINGS + 'url = "mysql://{user}@127.0.0.1:{port}"\npassword_file = "password"\ntls = "off"\nheartbeat_seconds = 1\n'
)


@contextmanager
def served(folder: Path, more: str = "", **options: str) -> Iterator[MariaDb]:
    """A MariaDB with the tables of the page, of which the folder has a source."""
    with closing(start_server("mariadb", {"expire_logs_days": "10", **options})) as server:
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, paid DECIMAL(10,2))")
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        (folder / "tidemark.toml").write_text(SERVED.format(user=USER, port=server.port) + f'tables = ["shop.*"]\n{more}')
        yield server


def add_tables(server: MariaDb) -> None:
    server.run(
        "CREATE TABLE shop.odd (a INT, b INT)",
        "CREATE TABLE shop.lines (id INT PRIMARY KEY, o INT,"
        " CONSTRAINT of_order FOREIGN KEY (o) REFERENCES shop.orders (id) ON DELETE CASCADE)",
    )


def play_doctor(folder: Path) -> None:
    options = {"binlog_format": "MIXED", "binlog_row_metadata": "MINIMAL"}
    with served(folder, **options) as server:
        add_tables(server)
        play(folder, DOCTOR)


def play_restored_server(folder: Path) -> None:
    with served(folder, 'start = "earliest"\n') as server:
        server.run("SET SESSION gtid_domain_id = 2", "INSERT INTO shop.orders VALUES (1, 1)", "DELETE FROM shop.orders")
        type_commands(folder, Block("console", "$ ./tidemark changes capture orders\n"))
        server.reset()
        server.run(
            "SET SESSION gtid_domain_id = 0", *(f"CREATE DATABASE IF NOT EXISTS {name}" for name in ("shop", "other"))
        )
        server.run("SET SESSION gtid_domain_id = 2", "INSERT INTO shop.orders VALUES (3, 3)")
        play(folder, LACKS)


def play_gap(folder: Path) -> None:
    with served(folder, 'start = "earliest"\n') as server:
        add_tables(server)
        server.run("INSERT INTO shop.orders VALUES (1, 1), (2, 2), (3, 3)")
        type_commands(folder, Block("console", "$ ./tidemark changes capture orders\n"))
        server.run("INSERT INTO shop.orders VALUES (4, 4)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        purge(server)
        server.run("INSERT INTO shop.orders VALUES (5, 5)")
        play(folder, GAP)
        play(folder, REPAIR)


def purge(server: MariaDb) -> None:
    def is_purged() -> bool:
        server.run(f"PURGE BINARY LOGS TO '{server.logs[-1].name}'")
        return len(server.logs) == 1

    server.run("FLUSH BINARY LOGS")
    assert soon(is_purged, 60)


def play_parked(folder: Path) -> None:
    with served(folder, 'metadata = "catalog"\nstart = "earliest"\n', binlog_row_metadata="MINIMAL") as server:
        server.run("INSERT INTO shop.orders VALUES (1, 1)", "ALTER TABLE shop.orders ADD COLUMN note INT")
        play(folder, PARKED)


def play_bootstrap(folder: Path) -> None:
    with served(folder, 'start = "earliest"\n') as server:
        server.run("CREATE TABLE shop.notes (id INT PRIMARY KEY)", "INSERT INTO shop.notes VALUES (1)")
        server.run("INSERT INTO shop.orders SELECT seq, seq FROM shop.seq_1_to_10000")
        play(folder, BOOTSTRAP)


def play_show(folder: Path) -> None:
    with served(folder, 'start = "earliest"\n') as server:
        server.run("INSERT INTO shop.orders VALUES (1, 1), (2, 2), (3, 3)")
        type_commands(folder, Block("console", "$ ./tidemark changes capture orders\n"))
        block = find(SHOW)
        type_commands(folder, Block(block.language, block.text[: block.text.index("$ ./tidemark changes find")]))


# with Spark


def play_spark(folder: Path) -> None:
    fill_store(folder / "store", 1, 60)
    (folder / "tidemark.toml").write_text(SETTINGS)
    block, kept = find(SPARK), []
    text = block.text.replace('"tidemark.toml"', f"{str(folder / 'tidemark.toml')!r}").replace("after.state", "after.id")
    names = {"keep": lambda batch, _number: kept.append(batch.count()), "place": str(folder / "checkpoint")}
    try:
        with session(folder) as spark:
            run_python(folder, Block("python", text), {**names, "spark": spark})
            for query in spark.streams.active:
                query.awaitTermination()
            with serving(folder) as address:  # which is on the loopback, without a certificate, for another task
                text = find(SPARK_SERVED).text.replace("https://reader:28332", address).replace('"lake"', '"billing"')
                text = text.replace("/run/secrets/lake", str(folder / "token")).replace('"ca": "/etc/ssl/ca.pem", ', "")
                frame = run_python(folder, Block("python", text), {"spark": spark})["orders"]
                assert (
                    frame.count()
                    == spark.read.format("tidemark_changes")
                    .load(str(folder / "tidemark.toml"))
                    .where("table = 'orders'")
                    .count()
                )
    except PartMissing as missing:
        pytest.skip(str(missing))
    assert sum(kept) == len(expected_changes(1, 60))


def play_lake(folder: Path) -> None:
    lake = '[sinks.lake]\nsource = "orders"\nkind = "delta"\ntarget = "lake"\ntables = ["shop.*"]\n'
    with served(folder, lake) as server:
        server.run("INSERT INTO shop.orders SELECT seq, seq FROM shop.seq_1_to_1000")
        capture = Block("console", "$ ./tidemark changes capture orders\n")
        type_commands(folder, capture)
        play(folder, DELIVER)
        DeltaTable(str(folder / "lake" / "shop.orders")).update(predicate="id = 7", updates={"paid": "8"})
        DeltaTable(str(folder / "lake" / "shop.orders")).delete("id = 12")
        play(folder, VERIFY_SINK)
        server.run("CREATE TABLE shop.lines (id INT PRIMARY KEY)", "INSERT INTO shop.lines VALUES (1)")
        server.run("ALTER TABLE shop.orders MODIFY id VARCHAR(20) NOT NULL", "INSERT INTO shop.orders VALUES ('x', 1)")
        type_commands(folder, capture)
        play(folder, STOPPED)


def play_series(folder: Path) -> None:
    series = (
        '[sinks.series]\nsource = "orders"\nkind = "catalog"\ntarget = "centre"\ntables = ["plant.*"]\n'
        '[sinks.series.columns."plant.events"]\ntime = "seen"\ntags = ["place"]\n'
        '[receivers.centre]\nstore = "centre"\n'
    )
    with served(folder) as server:
        config = folder / "tidemark.toml"
        config.write_text(config.read_text().replace('tables = ["shop.*"]', 'tables = ["plant.*"]') + series)
        server.run(
            "CREATE DATABASE plant",
            "CREATE TABLE plant.readings (at DATETIME, machine VARCHAR(9), level DOUBLE, pieces INT,"
            " PRIMARY KEY (at, machine))",
            "INSERT INTO plant.readings SELECT '2026-11-27 12:00:00' + INTERVAL seq SECOND, 'm1', 0.5, seq"
            " FROM shop.seq_1_to_1001",
            "CREATE TABLE plant.events (id INT PRIMARY KEY, place VARCHAR(9), seen DATETIME, what VARCHAR(9))",
            "INSERT INTO plant.events VALUES (7, 'gate', '2026-11-27 12:00:01', 'open')",
            "INSERT INTO plant.events VALUES (8, 'gate', '2026-11-27 12:00:02', 'shut')",
        )
        type_commands(folder, Block("console", "$ ./tidemark changes capture orders\n"))
        server.run("INSERT INTO plant.readings VALUES ('2026-11-27 12:16:42', 'm1', NULL, 1002)")
        type_commands(folder, Block("console", "$ ./tidemark changes capture orders\n"))
        play(folder, SERIES)


Scene = Callable[[Path], None]
QUICK: dict[Scene, tuple[str, ...]] = {
    play_statements: (STATEMENTS,),
    play_subscribe: (SUBSCRIBE, KEPT),
}
LONG: dict[Scene, tuple[str, ...]] = {
    play_capture_of_files: (FILES, READ, LINES, RETAIN),
    play_task: (f"{CONSUME} --source orders --shards", REWIND),
    play_other_machine: (REMOTE, CONSUME_REMOTE),
}
SERVED_SCENES: dict[Scene, tuple[str, ...]] = {
    play_doctor: (DOCTOR,),
    play_restored_server: (LACKS,),
    play_gap: (GAP, REPAIR),
    play_parked: (PARKED,),
    play_bootstrap: (BOOTSTRAP,),
    play_show: (SHOW,),
    play_series: (SERIES,),
    play_lake: (DELIVER, VERIFY_SINK, STOPPED),
}


def test_every_example_has_a_scene() -> None:
    played = [begins for scenes in (QUICK, LONG, SERVED_SCENES) for some in scenes.values() for begins in some]
    played += [SPARK, SPARK_SERVED]
    for block in blocks():
        assert [begins for begins in played if block.text.startswith(begins)], block.text
    assert len(blocks()) == len(played)


@pytest.mark.parametrize("scene", QUICK, ids=lambda scene: scene.__name__)
def test_an_example(tmp_path: Path, scene: Scene) -> None:
    scene(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("scene", LONG, ids=lambda scene: scene.__name__)
def test_an_example_that_takes_seconds(tmp_path: Path, scene: Scene) -> None:
    scene(tmp_path)


@pytest.mark.full
@pytest.mark.real("mariadb")
@pytest.mark.parametrize("scene", SERVED_SCENES, ids=lambda scene: scene.__name__)
def test_an_example_with_a_server(tmp_path: Path, scene: Scene) -> None:
    scene(tmp_path)


@pytest.mark.full
@pytest.mark.real("spark")
@pytest.mark.timeout(600)
def test_the_example_of_spark(tmp_path: Path) -> None:
    play_spark(tmp_path)
