"""Consumers of one task as processes that are killed with 9 at random, over a store and over a real server."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import tidemark
from tests.commanded import run_here
from tests.delivery_worlds import expected_changes, fill_store
from tests.dump_worlds import start_server
from tests.services.mariadb import PASSWORD, USER
from tests.services.processes import soon

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
PROGRAM = """
import os, sys, time
from tidemark.changes import subscribe
config, heard, pause = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT), float(sys.argv[3])
with subscribe("billing", source="orders", shards=4, settings=config, rows=3, checkpoint_seconds=0.3) as stream:
    for batch in stream:
        for row in batch.to_pylist():
            os.write(heard, f"{batch.shard} {row['seq']} {row['i']}\\n".encode())
        time.sleep(pause)
        batch.done()
"""


class Consumers:
    """Three processes of a task, which tell each row that they get in one file."""

    def __init__(self, config: Path, pause: float) -> None:
        self.config, self.pause = config, pause
        self.heard = config.parent / "heard"
        self.heard.touch()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        path = os.pathsep.join([str(Path(tidemark.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        words = [sys.executable, "-c", PROGRAM, str(self.config), str(self.heard), str(self.pause)]
        self.running.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path}))

    def kill(self, choice: random.Random) -> None:
        process = self.running.pop(choice.randrange(len(self.running)))
        assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def rows(self) -> list[tuple[int, tuple[int, int]]]:
        """(shard, (transaction, row)) as they were given, in the order of time. A line that is being written is none."""
        lines = self.heard.read_text().split("\n")[:-1]
        return [(shard, (seq, row)) for shard, seq, row in (map(int, line.split()) for line in lines)]


@contextmanager
def consuming(config: Path, pause: float) -> Iterator[Consumers]:
    consumers = Consumers(config, pause)
    try:
        for _ in range(3):
            consumers.start()
        yield consumers
    finally:
        for process in consumers.running:
            process.kill()
            process.wait()


def assert_in_order(rows: list[tuple[int, tuple[int, int]]]) -> None:
    """Whenever a row of a shard is given, those before it have been given, whoever else gave some again."""
    newest: dict[int, list[tuple[int, int]]] = {}
    for shard, row in rows:
        known = newest.setdefault(shard, [])
        if not known or row > known[-1]:
            known.append(row)
        else:
            assert row in known, (shard, row)


def kill_often(consumers: Consumers, kills: int, last: int) -> None:
    choice = random.Random(SEED)
    every = expected_changes(1, last)
    for number in range(kills):
        least = len(every) * (number + 1) // (kills + 2)
        assert soon(lambda: len({row for _, row in consumers.rows()}) >= least, 60)  # noqa: B023
        consumers.kill(choice)
        consumers.start()
    assert soon(lambda: {row for _, row in consumers.rows()} >= every, 60)


@pytest.mark.full
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_three_consumers_are_killed_at_random(tmp_path: Path, kills: int) -> None:
    last = 50 * kills
    fill_store(tmp_path / "store", 1, last)
    config = tmp_path / "tidemark.toml"
    config.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')
    with consuming(config, 0.01) as consumers:
        kill_often(consumers, kills, last)
    assert {row for _, row in consumers.rows()} == expected_changes(1, last)
    assert_in_order(consumers.rows())


@pytest.mark.full
def test_rows_of_a_server_come_to_its_consumers(tmp_path: Path) -> None:
    """A capture that follows, three consumers, deaths among them: the union of the shards is the table."""
    with closing(start_server("mariadb", {})) as server:
        (tmp_path / "password").write_text(PASSWORD, encoding="utf-8")
        config = tmp_path / "tidemark.toml"
        config.write_text(
            '[ledger]\nurl = "sqlite:///ledger.db"\n'
            f'[sources.orders]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{server.port}"\n'
            'password_file = "password"\ntls = "off"\ntables = ["shop.*"]\nheartbeat_seconds = 1\nstart = "earliest"\n'
        )
        server.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, paid DECIMAL(10,2))")
        choice = random.Random(SEED)
        with consuming(config, 0.0) as consumers:
            for round_ in range(4):
                for _ in range(40):
                    number = choice.randrange(30)
                    server.run(
                        choice.choice(
                            [
                                f"REPLACE INTO shop.orders VALUES ({number}, {number}.25)",
                                f"UPDATE shop.orders SET paid = paid + 1 WHERE id = {number}",
                                f"UPDATE IGNORE shop.orders SET id = id + 30 WHERE id = {number}",
                                f"DELETE FROM shop.orders WHERE id = {number}",
                            ]
                        )
                    )
                heard = len(consumers.rows())
                assert run_here(config, "changes", "capture", "orders").code == 0
                assert soon(lambda: len(consumers.rows()) > heard, 60)  # noqa: B023
                if round_ < 3:
                    consumers.kill(choice)
                    consumers.start()
            last = int(run_here(config, "changes", "show", "orders").json["sources"][0]["newest"].removeprefix("seq:"))

            def all_are_done() -> bool:
                [task] = run_here(config, "changes", "show", "orders").json["tasks"]
                return all(point["point"] == f"seq:{last + 1}" for point in task["points"])

            assert soon(all_are_done, 60)
        assert_in_order(consumers.rows())
        out = tmp_path / "out"
        said = run_here(config, "changes", "consume", "folding", "--source", "orders", "--shards", "3", "--out", str(out))
        assert said.code == 0, said
        assert fold(out) == dict(server.run("SELECT id, CAST(paid AS CHAR) FROM shop.orders"))


def fold(out: Path) -> dict[int, str]:
    """The table as the files of the shards leave it, each by itself: a row never moves from one to another unsaid."""
    table: dict[int, str] = {}
    for file in out.iterdir():
        own: dict[int, str] = {}
        for line in map(json.loads, file.read_text().splitlines()):
            if line["k"] == "row":
                if line["before"]:
                    assert own.pop(line["before"][0]) == line["before"][1]
                if line["after"]:
                    own[line["after"][0]] = line["after"][1]
        assert not own.keys() & table.keys()
        table |= own
    return table
