"""A `catalog` sink of a real server, by commands as users type them: killed at random, readers see the server's rows."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.commanded import Said, run_here
from tests.dump_worlds import REAL_SERVERS, start_server
from tests.services.command_forks import start_command
from tests.services.mariadb import PASSWORD, USER, MariaDb

pytestmark = pytest.mark.full
SITE_ID = "5a1d3c52-7d1b-4a5e-9c1e-cccccccccccc"
COLUMNS = (
    "at DATETIME(3), machine VARCHAR(9) CHARACTER SET utf8mb4, part INT, n INT UNSIGNED NOT NULL, level DOUBLE, rate FLOAT,"
    " price DECIMAL(12,3), note VARCHAR(20) CHARACTER SET utf8mb4, raw BLOB, day DATE, ok BOOL,"
    " PRIMARY KEY (at, machine, part)"
)
FIELDS = ("n", "level", "rate", "price", "note", "raw", "day", "ok")
AS_SEEN = {"price": "CAST(price AS CHAR)", "raw": "LOWER(HEX(raw))", "day": "CAST(day AS CHAR)"}
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module", params=REAL_SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with closing(start_server(request.param)) as found:
        yield found


class Plant:
    """The source `plant` of a server, its sink `series`, and the receiver `centre` of the site that has the sink's files."""

    def __init__(self, folder: Path, server: MariaDb, seed: int) -> None:
        self.folder, self.server, self.choice = folder, server, random.Random(seed)
        self.config = folder / "tidemark.toml"
        (folder / "password").write_text(PASSWORD, encoding="utf-8")
        self.config.write_text(
            f'[sources.plant]\nstore = "store"\nurl = "mysql://{USER}@127.0.0.1:{server.port}"\n'
            'password_file = "password"\ntls = "off"\ntables = ["plant.*"]\n'
            '[sinks.series]\nsource = "plant"\nkind = "catalog"\ntarget = "series"\n'
            '[receivers.centre]\nstore = "centre"\n'
            f'[sites.series]\nid = "{SITE_ID}"\nstore = "series"\npartition_interval_ms = 86400000\n'
            '[links.series]\nsite = "series"\n'
        )
        server.run("DROP DATABASE IF EXISTS plant", "CREATE DATABASE plant", f"CREATE TABLE plant.readings ({COLUMNS})")
        server.run(*(self.make_change() for _ in range(150)))

    def run(self, *words: str, code: int = 0) -> Said:
        said = run_here(self.config, *words)
        assert said.code == code, said
        return said

    def make_change(self) -> str:
        n, m = self.choice.randrange(90), self.choice.randrange(10_000)
        at = f"2026-11-{20 + n % 3} 10:{n % 60:02}:00.125"
        machine, part = self.choice.choice(["ä1", "m.2"]), n % 4
        where = f"at = '{at}' AND machine = '{machine}' AND part = {part}"
        note, raw = self.choice.choice(["NULL", f"'ü{m}'", "''"]), self.choice.choice(["NULL", f"x'00ff{m % 256:02x}'"])
        values = f"('{at}', '{machine}', {part}, {m}, {m} / 3, {m} / 4, {m}.125, {note}, {raw}, '2026-02-03', {m % 2})"
        return self.choice.choice(
            [
                *[f"INSERT IGNORE INTO plant.readings VALUES {values}"] * 4,
                f"REPLACE INTO plant.readings VALUES {values}",
                f"UPDATE plant.readings SET n = {m}, level = NULL, note = {note} WHERE {where}",
                f"UPDATE IGNORE plant.readings SET part = part + 1, day = NULL WHERE {where}",
                f"UPDATE IGNORE plant.readings SET at = at + INTERVAL 1 DAY WHERE {where}",
                f"DELETE FROM plant.readings WHERE {where}",
                f"DELETE FROM plant.readings WHERE at > '{at}' ORDER BY at LIMIT 2",
            ]
        )

    def change(self, count: int) -> None:
        self.server.run(*(self.make_change() for _ in range(count)))

    def kill(self, *words: str) -> None:
        """Run a command, and kill it at a moment by chance."""
        process = start_command(["--config", str(self.config), *words], os.environ)
        time.sleep(self.choice.uniform(0.05, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def deliver(self) -> dict[str, str]:
        """Bring the sink to the server's end, and the receiver to the sink's; how tables are."""
        self.run("changes", "capture", "plant")
        said = run_here(self.config, "changes", "deliver", "series")
        assert said.code in (0, 23), said
        self.run("sync", "series")
        self.run("load")
        return {table["name"]: table["state"] for table in said.json["tables"]}

    def read(self, fields: Sequence[str] = FIELDS) -> Rows:
        out = self.folder / "seen.parquet"
        self.run("read", "--device", "plant.readings.**", "--out", str(out), "--times", "number")
        rows = pq.read_table(out).to_pylist()
        return sorted(((row["device"], row["time"], *(row.get(name) for name in fields)) for row in rows), key=repr)

    def select(self, fields: Sequence[str] = FIELDS) -> Rows:
        found = []
        columns = ", ".join(AS_SEEN.get(name, name) for name in fields)
        for at, machine, part, *values in self.server.run(f"SELECT at, machine, part, {columns} FROM plant.readings"):
            device = f"plant.readings.{machine.replace('.', chr(92) + '.')}.{part}"
            found.append((device, round(at.replace(tzinfo=UTC).timestamp() * 1000), *values))
        return sorted(found, key=repr)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sink_that_is_killed_again_and_again(tmp_path: Path, server: MariaDb, seed: int) -> None:
    plant = Plant(tmp_path, server, seed)
    for number in range(5):
        plant.change(40)
        plant.run("changes", "capture", "plant")
        plant.kill("changes", "deliver", "series")
        if number % 2:
            plant.kill("sync", "series")
    plant.change(40)
    assert plant.deliver() == {"plant.readings": "whole"}
    rows = plant.read()
    assert len(rows) > 20
    said = plant.run("changes", "verify", "plant", "--sink", "series")
    assert (said.json["differences"], [table["rows"] for table in said.json["tables"]]) == ([], [len(rows)])
    assert rows == plant.select()
    assert list((tmp_path / "series").rglob("*.mods2")), "the changes deleted nothing that had been delivered"
    assert not list((tmp_path / "series" / "data").rglob("*.tmp"))
    plant.run("merge")
    assert plant.read() == rows
    assert plant.run("verify").json["ok"]
    (tmp_path / "var" / "ledger.db").unlink()
    plant.run("ledger", "rebuild")
    assert plant.read() == rows
    plant.change(40)
    plant.deliver()
    assert plant.read() == plant.select()


def test_a_schema_changes_and_a_type_that_does_not_fit_stops_its_table_alone(tmp_path: Path, server: MariaDb) -> None:
    plant = Plant(tmp_path, server, 3)
    server.run("CREATE TABLE plant.counters (at TIMESTAMP(3) PRIMARY KEY, c BIGINT UNSIGNED)")
    plant.deliver()
    server.run(
        "ALTER TABLE plant.readings ADD COLUMN more BIGINT, MODIFY n BIGINT UNSIGNED NOT NULL, DROP COLUMN level",
        "INSERT INTO plant.readings VALUES ('2026-11-25', 'new', 1, 5000000000, 0.5, 1.5, NULL, NULL, NULL, 1, 7)",
        "INSERT INTO plant.counters VALUES ('2026-11-25 00:00:00', 18446744073709551615)",
        "UPDATE plant.readings SET more = n, n = n + 1",
    )
    assert plant.deliver() == {"plant.counters": "stopped", "plant.readings": "partial"}
    fields = [*(name for name in FIELDS if name != "level"), "more"]
    assert plant.read(fields) == plant.select(fields)
    server.run("DELETE FROM plant.counters", "INSERT INTO plant.counters VALUES ('2026-11-25 00:00:00', 4)")
    plant.run("changes", "bootstrap", "plant", "--tables", "plant.counters", "plant.readings", "--again")
    assert plant.deliver() == {"plant.counters": "whole", "plant.readings": "whole"}
    assert plant.read(fields) == plant.select(fields)
    said = plant.run("read", "--device", "plant.counters", "--out", str(tmp_path / "counters.jsonl"))
    assert said.json["rows"] == 1


def test_files_that_are_not_the_table_are_found_and_mended(tmp_path: Path, server: MariaDb) -> None:
    plant = Plant(tmp_path, server, 4)
    server.run(
        "CREATE TABLE plant.ticks (line BIGINT UNSIGNED, k BIGINT, at TIMESTAMP(3), v TEXT, w BINARY(3),"
        " PRIMARY KEY (line, k, at))",
        "INSERT INTO plant.ticks VALUES (18446744073709551615, -1, '2026-01-02 03:04:05', 'x', x'000100'),"
        " (2, -1, '2026-01-02 03:04:05', NULL, NULL), (10, 5, '2026-01-02 03:04:05', '', NULL)",
    )
    plant.deliver()
    plant.change(30)
    verify = ("changes", "verify", "plant", "--sink", "series")
    said = plant.run(*verify)
    rows = {table["name"]: table["rows"] for table in said.json["tables"] if table["rows"]}
    assert rows == {"plant.readings": len(plant.select()), "plant.ticks": 2}, "a row without a value is no row of a catalog"
    # A file goes, and so do its rows, but for those that others have, too.
    newest = max((tmp_path / "series").rglob("*.tsfile"), key=lambda path: int(path.name.split("-")[0]))
    newest.unlink()
    Path(f"{newest}.resource").unlink()
    said = plant.run(*verify, code=20)
    assert {one["table"] for one in said.json["differences"]} == {"plant.readings"}
    assert plant.run(*verify, "--repair").json["repaired"] == ["plant.readings"]
    assert plant.run(*verify).json["differences"] == []
    server.run("DROP TABLE plant.ticks")
    assert plant.run(*verify).json["differences"] == []
