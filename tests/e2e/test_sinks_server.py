"""Sinks of a real server, by the commands that users type: killed at random, they end as the server's tables."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.commanded import Said, run_here
from tests.dump_worlds import REAL_SERVERS, start_server
from tests.services.command_forks import start_command
from tests.services.mariadb import PASSWORD, USER, MariaDb
from tidemark.app import open_app
from tidemark.changes.sinks.deliver import find_sink, read_sink_table
from tidemark.settings.load import load_settings

pytestmark = pytest.mark.full
KEYS = 400
TABLES = {
    "orders": "id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(20) CHARACTER SET utf8mb4, paid DECIMAL(12,3), at DATETIME(3)",
    "stock": "place VARCHAR(9), item INT, pieces INT NOT NULL, rate DOUBLE, photo BLOB, PRIMARY KEY (place, item)",
}
AS_TEXT = {"orders": "id, name, CAST(paid AS CHAR), CAST(at AS CHAR)", "stock": "place, item, pieces, rate, photo"}


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param)) as found:
        yield found


class Lake:
    """The source `orders` of a server, and its sinks `lake` and `past`."""

    def __init__(self, folder: Path, server: MariaDb, seed: int) -> None:
        self.folder, self.server, self.choice = folder, server, random.Random(seed)
        self.config = folder / "tidemark.toml"
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        sinks = [f'[sinks.{n}]\nsource = "orders"\nkind = "{k}"\ntarget = "{n}"\n' for n, k in SINKS.items()]
        self.config.write_text(
            f'[sources.orders]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{server.port}"\n'
            'password_file = "password"\ntls = "off"\ntables = ["shop.*"]\n' + "".join(sinks)
        )
        server.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
        for table, columns in TABLES.items():
            server.run(f"CREATE TABLE shop.{table} ({columns})")
            server.run(*(self.make_change(table) for _ in range(200)))

    def run(self, *words: str) -> Said:
        said = run_here(self.config, "changes", *words)
        assert said.code == 0, said
        return said

    def make_change(self, table: str) -> str:
        n, m = self.choice.randrange(KEYS), self.choice.randrange(10_000)
        if table == "orders":
            key, values = f"id = {n}", f"({n}, 'ü{m}', {m}.125, '2026-11-27 10:00:00.{m % 1000:03}')"
            moved, changed = f"id = id + {KEYS}", f"paid = paid - {m}, name = 'n{m}'"
        else:
            key, values = f"place = 'p{n % 7}' AND item = {n}", f"('p{n % 7}', {n}, {m}, {m} / 3, x'00ff{n % 256:02x}')"
            moved, changed = "place = UPPER(place)", f"pieces = {m}, photo = NULL"
        return self.choice.choice(
            [
                f"INSERT IGNORE INTO shop.{table} VALUES {values}",
                f"INSERT IGNORE INTO shop.{table} VALUES {values}",
                f"UPDATE IGNORE shop.{table} SET {changed} WHERE {key}",
                f"UPDATE IGNORE shop.{table} SET {moved} WHERE {key}",
                f"DELETE FROM shop.{table} WHERE {key}",
                f"REPLACE INTO shop.{table} VALUES {values}",
            ]
        )

    def change(self, count: int) -> None:
        self.server.run(*(self.make_change(self.choice.choice([*TABLES])) for _ in range(count)))

    def kill(self, *words: str) -> None:
        """Run a command, and kill it at a moment by chance."""
        process = start_command(["--config", str(self.config), "changes", *words], os.environ)
        time.sleep(self.choice.uniform(0.05, 0.9))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def select(self, table: str) -> list[tuple[Any, ...]]:
        rows = self.server.run(f"SELECT {AS_TEXT[table]} FROM shop.{table}")
        return sorted((tuple(row) for row in rows), key=repr)

    def read_lake(self, table: str) -> list[tuple[Any, ...]]:
        sink = find_sink(open_app(load_settings(self.config, {}), whose_ever=True), "lake")
        found = []
        for batch in read_sink_table(sink, f"shop.{table}"):
            for row in batch.to_pylist():
                plain = [value for name, value in row.items() if name not in ("id", "paid")]
                if table == "orders":
                    plain = [int(row["id"]), row["name"], None if row["paid"] is None else str(row["paid"]), row["at"]]
                found.append(tuple(plain))
        return sorted(found, key=repr)

    def read_numbered(self) -> list[tuple[Any, ...]]:
        """The rows of `orders` once it has the column `n`."""
        sink = find_sink(open_app(load_settings(self.config, {}), whose_ever=True), "lake")
        rows = [row for batch in read_sink_table(sink, "shop.orders") for row in batch.to_pylist()]
        return [(int(row["id"]), row["name"], row["paid"], row["n"]) for row in rows]

    def read_past(self) -> list[tuple[int, int]]:
        """(transaction, row) of every change in the files."""
        found = []
        for path in (self.folder / "past").rglob("*.parquet"):
            table = pq.read_table(path, columns=["seq", "i"])
            found += list(zip(table["seq"].to_pylist(), table["i"].to_pylist(), strict=True))
        return sorted(found)

    def read_store(self) -> list[tuple[int, int]]:
        out = self.folder / "changes.jsonl"
        self.run("read", "orders", "--out", str(out))
        lines = map(json.loads, out.read_text(encoding="utf-8").splitlines())
        return sorted((line["seq"], line["i"]) for line in lines if line["k"] == "row")


SINKS = {"lake": "delta", "past": "history"}


@pytest.mark.parametrize("seed", [1, 2])
def test_sinks_that_are_killed_again_and_again(tmp_path: Path, server: MariaDb, seed: int) -> None:
    lake = Lake(tmp_path, server, seed)
    for _ in range(4):
        lake.change(60)
        lake.run("capture", "orders")
        for sink in SINKS:
            lake.kill("deliver", sink)
    lake.change(60)
    lake.run("capture", "orders")
    for sink in SINKS:
        lake.run("deliver", sink)
    for table in TABLES:
        assert lake.read_lake(table) == lake.select(table)
    assert lake.read_past() == lake.read_store()
    states = {table["name"]: table["state"] for table in lake.run("deliver", "lake").json["tables"]}
    assert states == {"shop.orders": "whole", "shop.stock": "whole"}


def test_definitions_change_and_a_table_is_read_again(tmp_path: Path, server: MariaDb) -> None:
    lake = Lake(tmp_path, server, 3)
    lake.run("capture", "orders")
    lake.run("deliver", "lake")
    server.run(
        "ALTER TABLE shop.orders ADD COLUMN n INT NOT NULL DEFAULT 7, MODIFY paid DECIMAL(16,5)",
        "INSERT INTO shop.orders VALUES (100001, 'new', 1.5, NULL, 8)",
        "TRUNCATE TABLE shop.stock",
        "INSERT INTO shop.stock VALUES ('x', 1, 2, NULL, NULL)",
    )
    lake.run("capture", "orders")
    tables = {table["name"]: table for table in lake.run("deliver", "lake").json["tables"]}
    assert tables["shop.orders"]["state"] == "partial"
    assert "a column was added" in tables["shop.orders"]["why"]
    assert lake.read_lake("stock") == lake.select("stock") == [("x", 1, 2, None, None)]
    lake.run("bootstrap", "orders", "--tables", "shop.orders", "--again")
    tables = {table["name"]: table for table in lake.run("deliver", "lake").json["tables"]}
    assert tables["shop.orders"]["state"] == "whole"
    assert lake.read_numbered() == server.run("SELECT id, name, paid, n FROM shop.orders ORDER BY id")
    # As tools change a large table on-line.
    server.run(
        "CREATE TABLE shop.ghost LIKE shop.orders",
        "INSERT INTO shop.ghost SELECT * FROM shop.orders WHERE id < 300",
        "RENAME TABLE shop.orders TO shop.old, shop.ghost TO shop.orders",
        "DROP TABLE shop.old",
        "UPDATE shop.orders SET n = n + 1",
    )
    lake.run("capture", "orders")
    tables = {table["name"]: table["state"] for table in lake.run("deliver", "lake").json["tables"]}
    assert set(tables.values()) == {"whole"}
    assert lake.read_numbered() == server.run("SELECT id, name, paid, n FROM shop.orders ORDER BY id")
