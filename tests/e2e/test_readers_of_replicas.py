"""Two readers on two real servers that committed in another order: consumers change between them without loss or double.

The readers are processes of `changes serve`, each with a capture, a store and a ledger of its own. Some of them are killed.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.dump_worlds import REAL_SERVERS, start_pair
from tests.e2e.test_capture_server import Orders
from tests.served_changes import TOKEN, start
from tests.services.mariadb import MariaDb
from tests.services.processes import soon
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.http.client.member import ReaderStream
from tidemark.changes.delivery.http.client.readers import Address
from tidemark.changes.delivery.stream import Options
from tidemark.changes.delivery.tasks import Wanted
from tidemark.errors import UnreachableError

pytestmark = pytest.mark.full

TABLE = "CREATE TABLE shop.orders (id INT PRIMARY KEY, name VARCHAR(20), paid DECIMAL(10,2))"
TRANSACTIONS, ROWS = 120, 5


@pytest.fixture(params=REAL_SERVERS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[MariaDb, MariaDb]]:
    with start_pair(request.param) as both:
        yield both


@dataclass
class Replica:
    """A server, its capture, and the reader of what that has."""

    orders: Orders
    process: subprocess.Popen[str] | None = None
    address: str = ""

    def capture(self) -> None:
        said = self.orders.run("capture", "orders")
        assert said.code == 0, said

    def serve(self) -> None:
        port = urlsplit(self.address).port
        words = ("--port", str(port)) if port else ()
        self.process, self.address = start(self.orders.folder, *words)

    def end(self, by: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(by)
        self.process.wait(30)


def commit(server: MariaDb, number: int) -> None:
    """The `number`-th transaction of the source: of two that write one after the other at replicas in any order."""
    domain, own = number % 2 + 1, number // 2 + 1
    rows = ", ".join(f"({number * ROWS + row}, 'ü', {row}.5)" for row in range(ROWS))
    server.commit(f"{domain}-1-{own}", f"INSERT INTO shop.orders VALUES {rows}")


def orders_of_commit(chance: random.Random) -> tuple[list[int], list[int]]:
    """All numbers, rising; and shuffled, with those of each writer still rising."""
    lanes = [list(range(writer, TRANSACTIONS, 2)) for writer in (0, 1)]
    mixed = []
    while any(lanes):
        mixed.append(chance.choice([lane for lane in lanes if lane]).pop(0))
    return list(range(TRANSACTIONS)), mixed


def test_consumers_change_between_two_replicas_over_fifty_times(tmp_path: Path, servers: tuple[MariaDb, MariaDb]) -> None:
    chance = random.Random(7)
    orders = orders_of_commit(chance)
    replicas = []
    for number, server in enumerate(servers):
        server.run("SET sql_log_bin = 0", "CREATE DATABASE shop", TABLE, "SET sql_log_bin = 1")
        server.reset()
        folder = tmp_path / f"replica-{number}"
        folder.mkdir()
        (folder / "changes.tokens").write_text(f"{TOKEN} billing\n")
        replicas.append(Replica(Orders(folder, server)))
    halves = TRANSACTIONS // 2
    for replica, order in zip(replicas, orders, strict=True):
        for number in order[:halves]:
            commit(replica.orders.server, number)
        replica.capture()
        replica.serve()
    with ExitStack() as ending:
        for replica in replicas:
            ending.callback(lambda one=replica: one.end(signal.SIGTERM))
        address = Address([one.address for one in replicas], TOKEN, look_seconds=0.2, late_seconds=1.0)
        options = Options(rows=2, beat_seconds=0.05, checkpoint_seconds=0.2)
        consumers = [
            ending.enter_context(
                ReaderStream(address, f"consumer-{number}", Wanted("billing", "orders", 4), options, only=only)
            )
            for number, only in enumerate(([0, 1], [2, 3]))
        ]
        found: list[tuple[int, str, int]] = []
        changes = kills = 0
        is_later = False
        while len(found) < TRANSACTIONS * ROWS:
            for stream in consumers:
                for batch in take(stream, 4):
                    found += [(batch.shard, row["gtid"], row["i"]) for row in batch.to_pylist()]
                    batch.done()
                changes += change_reader(stream)
            if len(found) > 400 * kills + 100:
                kills += 1
                died = replicas[kills % 2]
                died.end(signal.SIGKILL)
                died.serve()
            if not is_later and len(found) >= halves * ROWS // 2:
                is_later = True
                for replica, order in zip(replicas, orders, strict=True):
                    for number in order[halves:]:
                        commit(replica.orders.server, number)
                    replica.capture()
        assert not any(take(stream, 1, patience=1.0) for stream in consumers)
    assert changes > 50 and kills == 2
    named = {servers[0].name_gtid(f"{number % 2 + 1}-1-{number // 2 + 1}") for number in range(TRANSACTIONS)}
    assert Counter((gtid, row) for _, gtid, row in found) == Counter((gtid, row) for gtid in named for row in range(ROWS))
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for shard, gtid, row in found:  # what one writer wrote comes in its order
        writer, number = gtid.replace(":", "-").rsplit("-", 1)
        assert last.get((shard, writer), (0, -1)) < (int(number), row)
        last[shard, writer] = int(number), row


def take(stream: ReaderStream, most: int, patience: float = 0.2) -> list[Batch]:
    found = [stream.next_batch(patience=patience) for _ in range(most)]
    return [batch for batch in found if batch is not None]


def change_reader(stream: ReaderStream) -> int:
    """Have a consumer take its reader for dead. Whether it reads at the other one then: that may lack what is done, or be
    dead itself."""
    former = stream.reader
    with stream._state:
        stream._failed = UnreachableError("it is said to be dead")
    assert soon(lambda: stream._failed is None)
    return stream.reader != former
