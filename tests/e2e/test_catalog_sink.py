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
COLUMNS = (
    "at DATETIME(3), machine VARCHAR(9) CHARACTER SET utf8mb4, part INT, n INT UNSIGNED NOT NULL, level DOUBLE, rate FLOAT,"
    " price DECIMAL(12,3), note VARCHAR(20) CHARACTER SET utf8mb4, raw BLOB, day DATE, ok BOOL,"
    " PRIMARY KEY (at, machine, part)"
)
EVENTS = (
    "id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, place VARCHAR(9) CHARACTER SET utf8mb4, seen DATETIME(3) NOT NULL,"
    " n INT, UNIQUE (place, seen)"
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
            '[sinks.series]\nsource = "plant"\nkind = "catalog"\ntarget = "centre"\n'
            '[sinks.series.columns."plant.events"]\ntime = "seen"\ntags = ["place"]\n'
            '[receivers.centre]\nstore = "centre"\n'
            '[sites.series]\nstore = "series"\npartition_interval_ms = 86400000\n'
        )
        server.run("DROP DATABASE IF EXISTS plant", "CREATE DATABASE plant", f"CREATE TABLE plant.readings ({COLUMNS})")
        server.run(f"CREATE TABLE plant.events ({EVENTS})")
        server.run(*(self.make_change() for _ in range(150)), *(self.make_event() for _ in range(50)))

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

    def make_event(self) -> str:
        """A change of a table whose key is a number: its time and its tag are any columns."""
        n, m = self.choice.randrange(60), self.choice.randrange(10_000)
        seen = f"'2026-11-{20 + n % 3} 10:{n:02}:00.250'"
        place, low = self.choice.choice(["'p1'", "'ä'"]), self.choice.randrange(100)
        return self.choice.choice(
            [
                *[f"INSERT IGNORE INTO plant.events (place, seen, n) VALUES ({place}, {seen}, {m})"] * 3,
                f"REPLACE INTO plant.events (place, seen, n) VALUES ({place}, {seen}, {m})",
                f"UPDATE plant.events SET n = {m} WHERE id > {low} LIMIT 3",
                f"UPDATE IGNORE plant.events SET seen = seen + INTERVAL 1 MINUTE WHERE id > {low} ORDER BY seen LIMIT 5",
                f"UPDATE IGNORE plant.events SET place = {place} WHERE seen = {seen}",
                f"UPDATE IGNORE plant.events SET id = id + 1 WHERE id = {low}",
                f"DELETE FROM plant.events WHERE id > {low} LIMIT 1",
            ]
        )

    def change(self, count: int) -> None:
        self.server.run(*(make() for _ in range(count) for make in (self.make_change, self.make_event)))

    def read_events(self) -> Rows:
        out = self.folder / "events.parquet"
        self.run("read", "--device", "plant.events.**", "--out", str(out), "--times", "number")
        return sorted((row["device"], row["time"], row["id"], row["n"]) for row in pq.read_table(out).to_pylist())

    def select_events(self) -> Rows:
        found = self.server.run("SELECT place, seen, id, n FROM plant.events")
        return sorted(
            (f"plant.events.{place}", round(seen.replace(tzinfo=UTC).timestamp() * 1000), *values)
            for place, seen, *values in found
        )

    def kill(self, *words: str) -> None:
        """Run a command, and kill it at a moment by chance."""
        process = start_command(["--config", str(self.config), *words], os.environ)
        time.sleep(self.choice.uniform(0.05, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()

    def deliver(self) -> dict[str, str]:
        """Bring the receiver to the server's end; how tables are."""
        self.run("changes", "capture", "plant")
        said = run_here(self.config, "changes", "deliver", "series")
        assert said.code in (0, 23), said
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


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_sink_that_is_killed_again_and_again(tmp_path: Path, server: MariaDb, seed: int) -> None:
    plant = Plant(tmp_path, server, seed)
    for number in range(5):
        plant.change(40)
        plant.run("changes", "capture", "plant")
        plant.kill("changes", "deliver", "series")
        if number % 2:
            plant.kill("sync", "series")
    plant.change(40)
    assert plant.deliver() == {"plant.events": "whole", "plant.readings": "whole"}
    rows, events = plant.read(), plant.read_events()
    assert min(len(rows), len(events)) > 20
    said = plant.run("changes", "verify", "plant", "--sink", "series")
    assert (said.json["differences"], [table["rows"] for table in said.json["tables"]]) == ([], [len(events), len(rows)])
    assert rows == plant.select()
    assert events == plant.select_events()
    assert list((tmp_path / "series").rglob("*.mods2")), "the changes deleted nothing that had been delivered"
    assert not list((tmp_path / "series" / "data").rglob("*.tmp"))
    plant.run("merge")
    assert (plant.read(), plant.read_events()) == (rows, events)
    assert plant.run("verify").json["ok"]
    (tmp_path / "var" / "ledger.db").unlink()
    plant.run("ledger", "rebuild")
    assert (plant.read(), plant.read_events()) == (rows, events)
    plant.change(40)
    plant.deliver()
    assert (plant.read(), plant.read_events()) == (plant.select(), plant.select_events())


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
    assert plant.deliver() == {"plant.counters": "stopped", "plant.events": "whole", "plant.readings": "partial"}
    fields = [*(name for name in FIELDS if name != "level"), "more"]
    assert plant.read(fields) == plant.select(fields)
    server.run("DELETE FROM plant.counters", "INSERT INTO plant.counters VALUES ('2026-11-25 00:00:00', 4)")
    plant.run("changes", "bootstrap", "plant", "--tables", "plant.counters", "plant.readings", "--again")
    assert plant.deliver() == {"plant.counters": "whole", "plant.events": "whole", "plant.readings": "whole"}
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
        "INSERT INTO plant.events (place, seen, n) VALUES (NULL, '2026-11-19', 5)",
    )
    plant.deliver()
    plant.change(30)
    verify = ("changes", "verify", "plant", "--sink", "series")
    said = plant.run(*verify)
    rows = {table["name"]: table["rows"] for table in said.json["tables"] if table["rows"]}
    expected = {"plant.events": len(plant.select_events()), "plant.readings": len(plant.select()), "plant.ticks": 2}
    assert rows == expected, "a row without a value is no row of a catalog"
    # A file goes, and so do its rows, but for those that others have, too.
    newest = max((tmp_path / "series").rglob("*.tsfile"), key=lambda path: int(path.name.split("-")[0]))
    newest.unlink()
    Path(f"{newest}.resource").unlink()
    said = plant.run(*verify, code=20)
    damaged = {one["table"] for one in said.json["differences"]}
    assert "plant.readings" in damaged <= {"plant.readings", "plant.events"}
    assert plant.run(*verify, "--repair").json["repaired"] == sorted(damaged)
    assert plant.run(*verify).json["differences"] == []
    server.run("DROP TABLE plant.ticks")
    assert plant.run(*verify).json["differences"] == []
