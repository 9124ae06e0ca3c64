"""Writers change the tables of a real server at random; its capture, its consumers, a reader and the writers of two sinks
are killed at random meanwhile. A task gets other numbers of shards, and is set back.

At last each consumer has had every row of the store, in the order of its shard, and the sinks hold what the server holds.
TIDEMARK_TEST_SEED adds to the seed, TIDEMARK_TEST_KILLS says how many kills the long run has.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import tidemark
from tests.bootstrap_worlds import read, write_settings
from tests.changing_tables import COUNTER, LARGE, TOGETHER, Writer, fold_tables, make_tables, writing
from tests.commanded import run_here
from tests.dump_worlds import MARIADB, MYSQL_SERVER, start_server
from tests.e2e.test_random_changes import check_alive, follow, select_tables
from tests.served_changes import TOKEN, start
from tests.services.command_forks import Forked, start_command
from tests.services.mariadb import MariaDb
from tests.services.processes import soon

pytestmark = pytest.mark.full

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0")) + 1
WRITERS, CONSUMERS = 3, 3
SETTINGS = """
[sinks.lake]
source = "orders"
kind = "delta"
target = "lake"
tables = ["d.together", "d.counter", "d.large", "d.own*"]

[sinks.past]
source = "orders"
kind = "history"
target = "past"
tables = ["d.*"]
"""
PROGRAM = """
import json, os, sys, time
from tidemark.changes import subscribe
from tidemark.errors import UnreachableError
task, config, url, token, path, shards = sys.argv[1:]
heard = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def consume():
    where = {"url": url, "token": token} if url else {"settings": config}
    with subscribe(task, source="orders", shards=int(shards) if shards else None, checkpoint_seconds=0.3, **where) as stream:
        for batch in stream:
            point = json.loads(batch.point)
            shard = f"{point['generation']} {point['versionTs']} {batch.shard}"
            lines = [f"\\n{shard} {row['seq']} {row['i']} ." for row in batch.to_pylist()]
            os.write(heard, "".join(lines).encode())
            batch.done()

while True:
    try:
        consume()
    except UnreachableError:  # the reader is dead when it begins
        time.sleep(0.2)
"""
Heard = tuple[tuple[int, int, int], tuple[int, int]]
"""(generation of the task's shards, version that a rewind makes new, shard), (transaction, row)."""


@pytest.mark.parametrize(
    "kind", [MARIADB, pytest.param(*MYSQL_SERVER.values, marks=[*MYSQL_SERVER.marks, pytest.mark.soak])]
)
def test_a_few_kills(tmp_path: Path, kind: str) -> None:
    live(tmp_path, 5, kind)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", [MARIADB, MYSQL_SERVER])
def test_two_hundred_kills(tmp_path: Path, kind: str) -> None:
    killed = live(tmp_path, int(os.environ.get("TIDEMARK_TEST_KILLS", "200")), kind)
    assert killed.keys() == {"capture", "consumer", "reader", "lake", "past"}, killed


@dataclass
class World:
    """What runs over one store: a capture that follows, a reader, consumers of the tasks `near` and `far`."""

    config: Path
    server: MariaDb
    chance: random.Random
    capture: Forked | None = None
    reader: subprocess.Popen[str] | None = None
    address: str = ""
    consumers: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        """Once more where it is told to come again: a capture may take the store over at any time."""
        while (said := run_here(self.config, "changes", *words)).code == 5:
            time.sleep(0.2)
        assert said.code in codes, said
        return said

    def consume(self, task: str, shards: int | None = None) -> None:
        """One more member: of `far` over HTTP, of `near` at the store."""
        path = os.pathsep.join([str(Path(tidemark.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        url = self.address if task == "far" else ""
        words = [task, str(self.config), url, TOKEN, str(self.config.parent / f"{task}.heard"), str(shards or "")]
        environment = os.environ | {"PYTHONPATH": path}
        self.consumers.append((task, subprocess.Popen([sys.executable, "-c", PROGRAM, *words], env=environment)))

    def heard(self, task: str) -> list[Heard]:
        """In the order of time. A line that is being written, or whose writer was killed, is none."""
        file = self.config.parent / f"{task}.heard"
        lines = file.read_text().splitlines() if file.exists() else []
        numbers = (tuple(map(int, line.split()[:-1])) for line in lines if line.endswith("."))
        return [((generation, version, shard), (seq, row)) for generation, version, shard, seq, row in numbers]

    def serve(self) -> None:
        words = ("--port", self.address.rpartition(":")[2]) if self.address else ()
        self.reader, self.address = start(self.config.parent, *words)

    def kill_one(self) -> None:
        """Kill what chance says, and start it again."""
        [what] = self.chance.choices(("capture", "consumer", "reader", "lake", "past"), (5, 6, 2, 3, 1))
        self.killed[what] += 1
        check_alive(self.server)
        if what == "capture":
            assert self.capture is not None and self.capture.poll() is None, self.capture and self.capture.communicate()[1]
            self.capture.send_signal(signal.SIGKILL)
            self.capture.communicate()
            self.capture = follow(self.config)
        elif what == "consumer":
            task, process = self.consumers.pop(self.chance.randrange(len(self.consumers)))
            assert process.poll() is None, f"a consumer of {task} ended by itself"
            process.kill()
            process.wait()
            self.consume(task)
        elif what == "reader":
            assert self.reader is not None and self.reader.poll() is None
            self.reader.kill()
            self.reader.wait()
            self.serve()
        else:
            delivery = start_command(["--config", str(self.config), "changes", "deliver", what], os.environ)
            time.sleep(self.chance.uniform(0.2, 3.0))
            delivery.send_signal(signal.SIGKILL) if delivery.poll() is None else None
            delivery.communicate()

    def end_capture(self) -> None:
        assert self.capture is not None
        self.capture.send_signal(signal.SIGTERM)
        assert self.capture.wait(60) in (0, 130, 143)

    def end(self) -> None:
        for one in (self.capture, self.reader, *(process for _, process in self.consumers)):
            if one is not None and one.poll() is None:
                one.kill() if not isinstance(one, Forked) else one.send_signal(signal.SIGKILL)
                one.wait()


def live(folder: Path, kills: int, kind: str) -> Counter[str]:
    """Returns how often what was killed."""
    with closing(start_server(kind)) as server, running(folder, server) as world:
        deeds: dict[int, Callable[[], object]] = {
            kills // 4: lambda: world.run("reshard", "near", "--shards", "5", "--yes"),
            kills // 2: lambda: world.run("rewind", "near", "--to", "earliest", "--yes"),
            kills * 3 // 4: lambda: world.run("reshard", "near", "--shards", "11", "--yes"),
        }
        with writing([Writer(server, number, SEED) for number in range(WRITERS)]):
            assert soon(lambda: len(world.heard("near")) > 0 and len(world.heard("far")) > 0, 120)
            for number in range(kills):
                time.sleep(world.chance.uniform(0.5, 3))
                world.kill_one()
                deeds.get(number, lambda: None)()
        check_alive(server)
        world.end_capture()
        for words in (("capture", "orders"), ("bootstrap", "orders"), ("capture", "orders")):
            world.run(*words)
        lines = read(world.config)
        assert fold_tables(lines) == select_tables(server)
        every = {(line["seq"], line["i"]) for line in lines if line["k"] == "row"}
        for task in ("near", "far"):
            assert soon(lambda: {row for _, row in world.heard(task)} >= every, 180), task  # noqa: B023
            assert {row for _, row in world.heard(task)} == every, task
            assert_in_order(world.heard(task))
        assert len({generation for (generation, _, _), _ in world.heard("near")}) == 3, "of 8, 5 and 11 shards"
        compare_sinks(world, every)
        return world.killed


def compare_sinks(world: World, every: set[tuple[int, int]]) -> None:
    for sink in ("lake", "past"):
        world.run("deliver", sink, codes=(0, 23))
    past = ds.dataset(world.config.parent / "past", format="parquet").to_table(columns=["seq", "i"]).to_pylist()
    assert Counter((row["seq"], row["i"]) for row in past) == Counter(every)
    # What was never defined anew is as at the source; of others a statement may have changed rows that no log holds.
    world.run("verify", "orders", "--sink", "lake", "--tables", TOGETHER, COUNTER, LARGE)
    proved = world.run("verify", "orders", "--sink", "lake", "--repair")
    assert {one["name"] for one in proved.json["tables"]} >= {TOGETHER, COUNTER}


@contextmanager
def running(folder: Path, server: MariaDb) -> Iterator[World]:
    make_tables(server, WRITERS)
    config = write_settings(folder, server)
    text = config.read_text(encoding="utf-8") + "bootstrap_rows = 4000\nheartbeat_seconds = 1\n"
    config.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n' + text + SETTINGS, encoding="utf-8")
    (folder / "changes.tokens").write_text(f"{TOKEN} far\n")
    world = World(config, server, random.Random(SEED))
    world.capture = follow(config)
    try:
        assert soon((folder / "store").exists, 60), world.capture.poll() is not None and world.capture.communicate()
        world.serve()
        for number in range(CONSUMERS):
            world.consume("near", 8 if number == 0 else None)
            if number == 0:
                assert soon(lambda: bool(world.run("show", "orders").json["tasks"]), 60)
        world.consume("far", 4)
        yield world
    finally:
        world.end()


def assert_in_order(heard: list[Heard]) -> None:
    """Whenever a row of a shard is given, those before it have been given, whoever else gave some again."""
    newest: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    known: set[Heard] = set()
    for shard, row in heard:
        rows = newest.setdefault(shard, [])
        if not rows or row > rows[-1]:
            rows.append(row)
            known.add((shard, row))
        else:
            assert (shard, row) in known, (shard, row)
