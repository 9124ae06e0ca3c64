"""Incidents: a server says in its log that it lost changes. Whether the capture stops, and what marks the place."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.binlog_maker import MAGIC, SIGNED, description, event, field, log, rows_event, table_map, uint
from tests.change_worlds import read_all
from tests.unit.changes.test_capture import World
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.changes.capture.run import Job, capture
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.connection.files import open_files
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark
from tidemark.errors import PermanentError

ROW = [table_map([T.LONG], b"", SIGNED, field(4, b"\x01a")), rows_event(b"\0" + uint(7, 4), 1, kind=E.WRITE_ROWS_V1)]
INCIDENT, XID = event(E.INCIDENT, uint(1, 2) + b"\x04gone"), event(E.XID, uint(9, 8))
LOST = ("unproved", "the server lost changes (gone)")


def query(sql: bytes) -> bytes:
    return event(E.QUERY, bytes(8) + b"\0" + bytes(4) + b"\0" + sql)


def maria(number: int, flags: bytes = bytes(7)) -> bytes:
    return event(E.MARIA_GTID, uint(number, 8) + uint(0, 4) + flags)


def mysql(number: int) -> bytes:
    return event(E.GTID, b"\1" + bytes(15) + b"\7" + uint(number, 8))


def prepared_xa(*rows: bytes, between: tuple[bytes, ...] = ()) -> list[bytes]:
    """An XA transaction with these rows, and its commit behind what lies in between."""
    xa, name = uint(1, 4) + b"\x02\0xa", uint(1, 4) + uint(2, 4) + uint(0, 4) + b"xa"
    commit = [maria(3, b"\x81" + xa), query(b"XA COMMIT X'7861',X'',1")]
    return [maria(2, b"\x40" + xa), *rows, event(E.XA_PREPARE, b"\0" + name), *between, *commit]


@pytest.mark.parametrize(
    ("server", "events", "found"),
    [
        ("10.11.9-MariaDB", [INCIDENT, maria(2), *ROW, XID], ["row", "commit", LOST, "row", "commit"]),
        ("10.11.9-MariaDB", [maria(2), *ROW, INCIDENT, *ROW, XID], ["row", "commit", "row", LOST, "row", "commit"]),
        (
            "10.11.9-MariaDB",
            prepared_xa(*ROW, between=(INCIDENT,)),
            ["row", "commit", "xa_prepare", "row", LOST, "xa_commit"],
        ),
        ("8.4.0", [mysql(2), INCIDENT, mysql(3), query(b"BEGIN"), *ROW, XID], ["row", "commit", LOST, "row", "commit"]),
    ],
    ids=["between", "inside", "xa", "mysql"],
)
def test_an_incident_stands_where_changes_were_lost(
    world: World, server: str, events: list[bytes], found: list[str | tuple[str, str]]
) -> None:
    before = [mysql(1), query(b"BEGIN")] if server == "8.4.0" else [maria(1)]
    place = world.folder / "mysql-bin.000001"
    place.write_bytes(log(*before, *ROW, XID, *events, server=server))
    said = world.run("capture", "orders", "--files", str(place))
    said.refused(6, "the server lost changes (gone)")
    assert 'unsafe = "mark"' in said.json["hint"]
    world.write_settings('unsafe = "mark"')
    # At first the log ends with what was lost.
    place.write_bytes(log(*before, *ROW, XID, *events[: events.index(INCIDENT) + 1], server=server))
    world.capture("--files", str(place))
    place.write_bytes(log(*before, *ROW, XID, *events, server=server))
    world.capture("--files", str(place))
    lines = [line for line in world.read() if line["k"] != "schema"]
    assert [(line["k"], line["text"]) if line["k"] == "unproved" else line["k"] for line in lines] == found
    assert len({line["gtid"] for line in lines}) == len(events_with_gtid(before + events))
    proven = world.run("verify", "orders", "--deep", "--files", str(place))
    assert (proven.code, proven.json["differences"]) == (0, []), proven


def test_an_incident_before_a_transaction_that_is_cut_off_stands_in_the_next(world: World) -> None:
    world.write_settings('unsafe = "mark"')
    first, second = (world.folder / f"mysql-bin.00000{number}" for number in (1, 2))
    server = "10.11.9-MariaDB"
    begun = MAGIC + description(server, flags=1) + b"".join([maria(1), *ROW, XID, INCIDENT, maria(2), *ROW])
    first.write_bytes(begun)
    second.write_bytes(log(maria(2), *ROW, XID, server=server))
    world.capture("--files", str(first), str(second))
    found = [(line["gtid"], line["k"]) for line in world.read() if line["k"] != "schema"]
    assert found == [("0-1-1", "row"), ("0-1-1", "commit"), ("0-1-2", "unproved"), ("0-1-2", "row"), ("0-1-2", "commit")]


def test_an_incident_at_the_end_of_a_log_that_is_purged_is_not_forgotten(tmp_path: Path) -> None:
    first, second = (tmp_path / f"mysql-bin.00000{number}" for number in (1, 2))
    first.write_bytes(log(maria(1), *ROW, XID, INCIDENT, server="10.11.9-MariaDB"))
    second.write_bytes(log(maria(2), *ROW, XID, server="10.11.9-MariaDB"))
    disk, fences = Disk(tmp_path / "store"), count(1)

    def run(*places: Path, stops: bool) -> None:
        rules = Rules(lambda *_: True, stops=stops)
        capture(Job(disk, next(fences), rules, lambda end: (open_files(places), end is not None and places[0] == first)))

    for _ in range(2):
        with pytest.raises(PermanentError, match="lost changes"):
            run(first, stops=True)
    with pytest.raises(PermanentError, match="lost changes"):
        run(second, stops=True)
    run(second, stops=False)
    marks = [[one.word for one in each.records if isinstance(one, Mark)] for each in read_all(disk)]
    assert marks == [["commit"], ["unproved", "commit"]]
    assert not (disk.root / "lost.json").exists()


def events_with_gtid(events: list[bytes]) -> list[bytes]:
    return [one for one in events if one[4] in (E.GTID, E.MARIA_GTID)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
