"""A table of a real MariaDB through a `catalog` sink, a link and a receiver into a real IoTDB: both answer the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from tests.dump_worlds import start_server
from tests.e2e.test_catalog_sink import FIELDS as CHANGED
from tests.e2e.test_catalog_sink import Plant
from tests.services.iotdb import IoTDB
from tests.services.mariadb import MariaDb
from tidemark.receiver.iotdb.server import Connected
from tidemark.receiver.iotdb.thrift import Server
from tidemark.tsfiles.points.codes import DataType

pytestmark = [pytest.mark.full, pytest.mark.real("iotdb"), pytest.mark.real("mariadb"), pytest.mark.timeout(600)]
TEXT = "CHARACTER SET utf8mb4"
FIELDS: dict[str, tuple[str, Any, Any]] = {
    "tiny": ("TINYINT", -128, 127),
    "tiny_u": ("TINYINT UNSIGNED", 0, 255),
    "small_u": ("SMALLINT UNSIGNED", 0, 65535),
    "medium": ("MEDIUMINT", -8388608, 8388607),
    "whole": ("INT", -(2**31), 2**31 - 1),
    "whole_u": ("INT UNSIGNED", 0, 2**32 - 1),
    "big": ("BIGINT", -(2**63), 2**63 - 1),
    "big_u": ("BIGINT UNSIGNED", 0, 2**63 - 1),
    "flag": ("BOOL", 0, 1),
    "born": ("YEAR", 1901, 2155),
    "rate": ("FLOAT", -0.5, 1.1),
    "level": ("DOUBLE", -1e308, 0.1),
    "price": ("DECIMAL(30,10)", "-99999999999999999999.0000000001", "0.1000000000"),
    "note": (f"TEXT {TEXT}", "", "ü🚲 'q'"),
    "kind": (f"ENUM('hot', 'kühl') {TEXT}", "hot", "kühl"),
    "raw": ("VARBINARY(40)", b"", b"\x00\xff"),
    "day": ("DATE", "1000-01-01", "9999-12-31"),
    "hour": ("TIME(3)", "-838:59:59.000", "23:00:00.125"),
    "moment": ("TIMESTAMP(6) NULL", "1970-01-02 00:00:01.000001", "2037-12-31 23:59:59.999999"),
    "stamp": ("DATETIME", "1000-01-01 00:00:00", "2026-11-27 12:00:00"),
}
"""Columns with their type at the source, and two values."""
LEAST, MOST = (tuple(field[place] for field in FIELDS.values()) for place in (1, 2))
AS_TEXT = ("line", "price", "note", "kind", "day", "hour", "moment", "stamp")
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with closing(start_server("mariadb")) as found:
        yield found


@pytest.fixture
def plant(tmp_path: Path, server: MariaDb, node: IoTDB) -> Plant:
    """The source, its sink, and a receiver that gives what it loads to an IoTDB, which has no such database yet."""
    if any(row[0] == "plant" for row in node.query("show databases", table=True)):
        node.run("drop database plant", table=True)
    made = Plant(tmp_path, server, 7)
    text = made.config.read_text(encoding="utf-8")
    told = f'[receivers.centre]\niotdb = "iotdb://root@127.0.0.1:{node.ports["rpc"]}"\n'
    made.config.write_text(text.replace("[receivers.centre]\n", told), encoding="utf-8")
    return made


def select_iotdb(node: IoTDB, table: str, columns: list[str]) -> list[Row]:
    """All rows that the server answers, values by the types that it tells."""
    with Connected(Server("127.0.0.1", node.ports["rpc"], "root", "root")) as connected:
        told = connected.rows(f"select {', '.join(columns)} from plant.{table}", table=True)
    found = []
    for cells in told.cells:
        values = iter(cells.values.tolist())
        column = [next(values) if there else None for there in cells.present.tolist()]
        if cells.type in (DataType.TEXT, DataType.STRING):
            column = [None if value is None else value.decode() for value in column]
        found.append(column)
    return sorted(zip(*found, strict=True), key=repr)


def select_source(server: MariaDb, table: str, columns: list[str]) -> list[Row]:
    """The same rows of the source; times in ms, what a catalog keeps as text as text."""
    told = [f"CAST({name} AS CHAR)" if name in AS_TEXT else f"{name} + 0e0" if name == "rate" else name for name in columns]
    rows = server.run(f"SELECT at, {', '.join(told[1:])} FROM plant.{table}")
    return sorted(((round(at.replace(tzinfo=UTC).timestamp() * 1000), *rest) for at, *rest in rows), key=repr)


def quote_value(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def test_every_type_and_what_changes_later(plant: Plant, server: MariaDb, node: IoTDB) -> None:
    columns = ["time", "machine", "line", *FIELDS]
    server.run(
        f"CREATE TABLE plant.kinds (at DATETIME(3), machine VARCHAR(20) {TEXT}, line BIGINT UNSIGNED,"
        f" {', '.join(f'{name} {kind}' for name, (kind, _, _) in FIELDS.items())}, PRIMARY KEY (at, machine, line))"
    )

    def insert(at: str, machine: str, line: int, values: Row) -> None:
        server.run(f"INSERT INTO plant.kinds VALUES ({', '.join(map(quote_value, (at, machine, line, *values)))})")

    def assert_same(count: int) -> None:
        plant.deliver()
        rows = select_source(server, "kinds", columns)
        assert len(rows) == count
        assert select_iotdb(node, "kinds", columns) == rows

    server.run("SET time_zone = '+00:00'")
    for number, machine in enumerate(["m1", "ä.b", "it's", ""]):
        for second in range(5):
            insert(f"2026-11-2{second} 10:00:0{second}.125", machine, number, (LEAST, MOST)[second % 2])
        insert("1969-12-31 23:59:59.875", machine, 2**63 + number, MOST)
    assert_same(24)
    # A later file that overwrites, before and after what is there, in partitions that have files and in new ones.
    server.run("UPDATE plant.kinds SET level = level / 2, note = CONCAT(note, '!') WHERE machine IN ('m1', '')")
    insert("2026-11-22 10:00:03", "m1", 0, MOST)
    insert("2026-11-29 10:00:03", "new", 3, LEAST)
    assert_same(26)
    server.run(
        "DELETE FROM plant.kinds WHERE machine = 'ä.b' AND at < '2026-11-22'",
        "UPDATE plant.kinds SET machine = 'm3' WHERE machine = 'it''s' AND at > '2026-11-23'",
    )
    assert_same(23)
    insert("2026-11-20 10:00:00.125", "ä.b", 1, LEAST)
    assert_same(24)
    # A value that becomes NULL.
    server.run("UPDATE plant.kinds SET tiny = NULL, note = NULL, level = 7 WHERE at BETWEEN '2026-11-21' AND '2026-11-22'")
    assert_same(24)


@pytest.mark.soak
def test_random_changes(plant: Plant, server: MariaDb, node: IoTDB) -> None:
    """Several batches in a landing: files come with deletions, later ones overlap them, or change those that are there."""
    for _ in range(3):
        for _ in range(2):
            plant.change(30)
            plant.run("changes", "capture", "plant")
            plant.run("changes", "deliver", "series")
        plant.deliver()
        rows = sorted(((time, *values) for _, time, *values in plant.select()), key=repr)
        assert len(rows) > 20
        seen = select_iotdb(node, "readings", ["time", *CHANGED])
        assert [tuple(one.hex() if isinstance(one, bytes) else one for one in row) for row in seen] == rows
    assert list(plant.folder.glob("series/**/*.mods2"))
    plant.run("merge")
    plant.deliver()
    assert len(select_iotdb(node, "readings", ["time"])) == len(rows)
