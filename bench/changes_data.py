"""The loads of `bench changes`: a table of ten columns, some 180 bytes a row, filled, changed and thinned out; and one that
is read whole while it is written to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.mariadb import MariaDb

ROWS = {"bulk": 600_000, "oltp": 60_000}
STATEMENT = {"bulk": 1_000, "oltp": 1}
"""Rows of a statement, which is a transaction."""
COLUMNS = (
    "id BIGINT UNSIGNED NOT NULL PRIMARY KEY, device VARCHAR(40) NOT NULL, ts DATETIME(6) NOT NULL, v DOUBLE,"
    " q TINYINT UNSIGNED, price DECIMAL(18,6), at TIMESTAMP(3) NOT NULL, note VARCHAR(400), state ENUM('on','off','fault'),"
    " n INT"
)


def make_load(server: MariaDb, name: str, begin: Callable[[], None] = lambda: None) -> Path:
    """Run a load. Returns the log that has it, and nothing else. `begin` is called before its first change."""
    dice = random.Random(5)
    rows, step = ROWS[name], STATEMENT[name]
    inserted, updated = rows * 8 // 12, rows * 3 // 12
    server.run("SET time_zone = '+00:00'", "CREATE DATABASE bench", f"CREATE TABLE bench.{name} ({COLUMNS})")
    server.run("FLUSH BINARY LOGS")
    log = server.logs[-1]
    begin()
    for first in range(1, inserted + 1, step):
        values = ",".join(make_row(number, dice) for number in range(first, first + step))
        server.run(f"INSERT INTO bench.{name} VALUES {values}")
    changes = {
        f"UPDATE bench.{name} SET v = v + 1.5, n = n - 1": updated,
        f"DELETE FROM bench.{name}": rows - inserted - updated,
    }
    for change, count in changes.items():
        for first in range(1, count + 1, step):
            server.run(f"{change} WHERE id BETWEEN {first} AND {first + step - 1}")
    server.run("FLUSH BINARY LOGS", f"PURGE BINARY LOGS TO '{log.name}'")
    return log


TABLE_ROWS, WRITES_A_SECOND = 2_000_000, 300


def make_table(server: MariaDb) -> None:
    """Make a table of `TABLE_ROWS` rows, in no log that the server has still."""
    server.run("SET time_zone = '+00:00'", "CREATE DATABASE bench", f"CREATE TABLE bench.whole ({COLUMNS}) ENGINE=InnoDB")
    server.run(
        "INSERT INTO bench.whole SELECT seq, CONCAT('dev-', seq % 5000), '2025-01-01' + INTERVAL seq * 7001 MICROSECOND,"
        " seq / 7, seq % 256, seq / 1000, '2025-02-01' + INTERVAL seq SECOND, CONCAT('note ', MD5(seq), MD5(seq % 977)),"
        f" 1 + seq % 3, CAST(seq AS SIGNED) % 99991 - 5 FROM bench.seq_1_to_{TABLE_ROWS}",
        "FLUSH BINARY LOGS",
    )
    server.run(f"PURGE BINARY LOGS TO '{server.logs[-1].name}'")


@contextmanager
def write_to(server: MariaDb) -> Iterator[None]:
    """Change rows of that table, `WRITES_A_SECOND` transactions a second."""
    ended = threading.Event()

    def write() -> None:
        own = MariaDb(server.folder, server.port, server.options, server.process)
        dice, due = random.Random(6), time.monotonic()
        while not ended.is_set():
            own.run(f"UPDATE bench.whole SET v = v + 1 WHERE id = {dice.randint(1, TABLE_ROWS)}")
            due += 1 / WRITES_A_SECOND
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def make_row(number: int, dice: random.Random) -> str:
    clock = f"{number % 24}:{number % 60}"
    note = f"note {dice.randrange(10**9)} " * (1 + number % 9)
    values = (
        *(str(number), f"'dev-{number % 5000:05}-{'x' * (number % 7)}'"),
        f"'2025-01-{1 + number % 28:02} {clock}:{number * 7 % 60}.{dice.randrange(10**6):06}'",
        *(repr(dice.uniform(-1000, 1000)), str(dice.randrange(256))),
        f"'{dice.randrange(10**6)}.{dice.randrange(10**6):06}'",
        f"'2025-02-01 {clock}:{number % 60}.{number % 1000:03}'",
        *(f"'{note}'", f"'{dice.choice(('on', 'off', 'fault'))}'", str(dice.randrange(-(10**9), 10**9))),
    )
    return f"({','.join(values)})"
