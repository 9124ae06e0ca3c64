"""A store is proved against the logs that it is from: what is missing, doubled, made up or changed in it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.binlog_maker import SIGNED, charset, field, log, rows_event, table_map, uint
from tests.commanded import Said
from tests.unit.changes.test_capture import NAMES, World
from tests.unit.changes.test_incidents import XID, maria, prepared_xa, query
from tidemark.changes.binlog.layout import EventType as E
from tidemark.changes.binlog.tables import ColumnType as T
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows, Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Writer

Change = Callable[[Iterable[Transaction]], Iterator[Transaction]]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The workload's logs with XA, DDL and savepoints, captured. Nobody changes this one."""
    world = World(tmp_path_factory.mktemp("captured"))
    world.capture("--files", *world.unpack(*(f"workload/{name}" for name in NAMES[:12])))
    return world


def planted(captured: World, folder: Path, change: Change) -> World:
    """The same logs beside a store that holds something else."""
    world = World(folder)
    for path in captured.folder.glob("mysql-bin.0*"):
        (folder / path.name).symlink_to(path)
    world.config.write_bytes(captured.config.read_bytes())
    (folder / "store").mkdir()
    for name in ("source.json", "patterns.json"):
        (folder / "store" / name).write_bytes((captured.folder / "store" / name).read_bytes())
    reader = Reader(Disk(captured.folder / "store"))
    with Writer(Disk(folder / "store"), 1) as writer:
        for transaction in change(one for _, one in reader.read_whole()):
            writer.append(transaction, reader.view.gtids)
    return world


def prove(world: World, *words: str, code: int = 0) -> dict[str, Any]:
    said = world.run("verify", "orders", *words, "--files", str(world.folder / "mysql-bin.0*"))
    assert said.code == code, said
    return said.json


@pytest.mark.full_after(1)
@pytest.mark.parametrize("deep", [(), ("--deep",)])
def test_all_that_the_logs_have_is_in_the_store(captured: World, deep: tuple[str, ...]) -> None:
    found = prove(captured, *deep)
    assert found["logs"] == {
        "compared": found["checked"],
        "rows_compared": bool(deep),
        "purged": 0,
        "in_gaps": 0,
        "not_captured": 0,
        "counts": {},
    }


@pytest.mark.full
def test_what_is_not_captured_yet_is_told_and_no_difference(world: World) -> None:
    files = world.unpack(*(f"workload/{name}" for name in NAMES[:12]))
    world.capture("--until", "seq:100", "--files", *files)
    found = prove(world, "--deep")
    assert found["logs"]["compared"] == 99 and found["differences"] == []
    assert world.capture("--files", *files)["transactions"]
    whole = prove(world, "--deep")["logs"]["compared"]
    for name in NAMES[:4]:
        (world.folder / name).unlink()
    found = prove(world)
    assert found["logs"]["purged"] + found["logs"]["compared"] == whole and found["logs"]["purged"]


def without(number: int) -> Change:
    return lambda found: (one for at, one in enumerate(found, 1) if at != number)


def twice(number: int) -> Change:
    def change(found: Iterable[Transaction]) -> Iterator[Transaction]:
        for at, one in enumerate(found, 1):
            yield one
            if at == number:
                yield one

    return change


def renamed(number: int) -> Change:
    def change(found: Iterable[Transaction]) -> Iterator[Transaction]:
        for at, one in enumerate(found, 1):
            yield one._replace(gtid="0-7-1") if at == number else one

    return change


def changed(number: int) -> Change:
    """The first value of this transaction that is a number."""

    def change(found: Iterable[Transaction]) -> Iterator[Transaction]:
        for at, one in enumerate(found, 1):
            yield from with_one_value_changed([one]) if at == number else [one]

    return change


def with_one_value_changed(found: Iterable[Transaction]) -> Iterator[Transaction]:
    is_done = False
    for one in found:
        records = list(one.records)
        for at, record in enumerate(records):
            if isinstance(record, Rows) and not is_done and (row := next(record.rows())).after is not None:
                column = next(number for number, value in enumerate(row.after) if isinstance(value, int))
                after = (*row.after[:column], int(str(row.after[column])) ^ 1, *row.after[column + 1 :])
                records[at] = Rows.of(record.shape, [replace(row, after=after), *list(record.rows())[1:]])
                is_done = True
        yield one._replace(records=tuple(records))


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("change", "whats"),
    [(without(50), ["missing"]), (twice(50), ["double"]), (renamed(50), ["missing", "unknown"])],
    ids=["missing", "doubled", "another"],
)
def test_a_transaction_that_is_not_as_it_should_be_is_named(
    captured: World, tmp_path: Path, change: Change, whats: list[str]
) -> None:
    found = prove(planted(captured, tmp_path, change), code=20)
    assert [one["what"] for one in found["differences"]] == whats
    assert found["differences"][0]["problem"].startswith("0-1-50 ")
    assert found["logs"]["counts"] == dict.fromkeys(whats, 1)


@pytest.mark.full
def test_a_changed_value_is_found_where_rows_are_compared(captured: World, tmp_path: Path) -> None:
    world = planted(captured, tmp_path, with_one_value_changed)
    assert prove(world)["differences"] == []
    [one] = prove(world, "--deep", code=20)["differences"]
    assert one["what"] == "changed"


@pytest.mark.full_after(1)
@pytest.mark.parametrize("order", [0, 1], ids=["more", "fewer"])
def test_tables_are_judged_by_what_was_asked_for_when_they_were_captured(world: World, order: int) -> None:
    """Whatever the settings say by now. Rows of a table that came in later must be there from then on."""
    files = world.unpack(*(f"workload/{name}" for name in NAMES[:12]))
    asked = ['tables = ["alpha.*"]', 'tables = ["**"]\nexclude = ["*.wide*"]'][:: -1 if order else 1]
    world.write_settings(asked[0])
    world.capture("--until", "seq:100", "--files", *files)
    world.write_settings('tables = ["beta.*"]')
    assert not world.capture("--until", "seq:100", "--files", *files)["transactions"], "as one that dies at once"
    world.write_settings(asked[1])
    assert prove(world, "--deep")["differences"] == [], "before anything is captured with the other tables"
    world.capture("--until", "seq:200", "--files", *files)
    assert prove(world, "--deep")["differences"] == []
    world.write_settings('tables = ["beta.*"]')
    assert prove(world, "--deep")["logs"]["compared"] == 199
    tables = [
        {row["db"] for row in world.read() if row["k"] == "row" and (row["seq"] < 100) == first} for first in (True, False)
    ]
    assert len(tables[order]) == 1 < len(tables[1 - order])
    (world.folder / "store" / "patterns.json").write_bytes(b"{")
    damaged = world.run("verify", "orders", "--deep", "--files", *files)
    damaged.refused(7, "patterns.json of the store is damaged")
    assert "remove it" in damaged.json["hint"]
    (world.folder / "store" / "patterns.json").unlink()
    world.write_settings(asked[1])
    assert set(prove(world, "--deep", code=20)["logs"]["counts"]) == {"changed"}, "they are what tells it"


MARIA = "10.11.9-MariaDB"
SOUND, ANOTHER, NAMELESS, OLD = (
    [
        table_map([kind], b"", SIGNED, *names, table_id=number).replace(b"\x01t\0", table),
        rows_event(b"\0" + value, 1, kind=E.WRITE_ROWS_V1, table_id=number),
    ]
    for number, table, kind, value, names in (
        (7, b"\x01t\0", T.LONG, uint(7, 4), [field(4, b"\x01a")]),
        (8, b"\x01x\0", T.LONG, uint(7, 4), [field(4, b"\x01a")]),
        (8, b"\x01x\0", T.LONG, uint(7, 4), []),  # the log does not tell the names of its columns
        (8, b"\x01x\0", T.DATETIME, b"\xff" * 8, [field(4, b"\x01a")]),  # DATETIME(6) of MariaDB 5.3
    )
)
LARGE = [  # more than is decoded together
    table_map([T.LONG, T.BLOB], b"\4", SIGNED, charset(63), field(4, b"\x01a\x01b")),
    rows_event(b"\0" + uint(7, 4) + uint(1 << 20, 4) + bytes(1 << 20), 2, kind=E.WRITE_ROWS_V1),
]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("events", "refused", "number"),
    [
        ([maria(2), *SOUND, *NAMELESS, XID], 6, 2),
        (prepared_xa(*SOUND, *NAMELESS), 6, 3),
        ([maria(2), *SOUND, *OLD, XID], 7, 2),
        ([maria(2), *LARGE, *OLD, XID], 7, 2),
        (prepared_xa(*SOUND, *OLD), 7, 3),
        ([maria(2), *ANOTHER, query(b"ROLLBACK"), maria(3), *SOUND, XID], 6, 3),
    ],
    ids=["no names", "no names, xa", "no value", "no value, large", "no value, xa", "rolled back"],
)
def test_a_table_that_ended_the_capture_and_was_left_out_then_does_no_harm(
    tmp_path: Path, events: list[bytes], refused: int, number: int
) -> None:
    """Nor before a table came in. The rows that stand beside it are compared."""
    folders = [tmp_path / name for name in ("excluded", "widened", "changed")]
    first, later, last = ([maria(at), *SOUND, XID] for at in (1, 4, 5))
    for folder in folders:
        folder.mkdir()

    def capture(world: World, *found: bytes) -> Said:
        place = world.folder / "mysql-bin.000001"
        place.write_bytes(log(*found, server=MARIA))
        return world.run("capture", "orders", "--files", str(place))

    excluded, widened = World(folders[0]), World(folders[1])
    assert capture(excluded, *first).code == 0
    capture(excluded, *first, *events, *later).refused(refused)
    excluded.write_settings('exclude = ["db.x"]')
    assert capture(excluded, *first, *events, *later).code == 0
    assert prove(excluded, "--deep")["differences"] == []
    [one] = prove(planted(excluded, folders[2], changed(number)), "--deep", code=20)["differences"]
    assert one["what"] == "changed" and one["problem"].startswith(f"0-1-{number} ")

    widened.write_settings('tables = ["db.t"]')
    assert capture(widened, *first, *events, *later).code == 0
    widened.write_settings()
    assert capture(widened, *first, *events, *later, *last).code == 0
    assert prove(widened, "--deep")["differences"] == []


def test_without_gtids_places_are_compared(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("sound", "missing", "double")]
    for folder in folders:
        folder.mkdir()
    captured = World(folders[0])
    captured.write_settings('tables = ["other.*"]')  # this log has no names of columns
    captured.put_log("real/tsdb-mysql-bin.000002", "mysql-bin.000003")
    count = captured.capture("--files", str(captured.folder / "mysql-bin.000003"))["transactions"]
    assert prove(captured)["logs"]["compared"] == count > 4
    for folder, change in zip(folders[1:], (without(3), twice(3)), strict=True):
        world = planted(captured, folder, change)
        [one] = prove(world, code=20)["differences"]
        assert one["what"] == folder.name and one["problem"].startswith("a transaction without GTID")


def test_rows_of_an_xa_transaction_that_the_log_does_not_describe_are_not_compared(tmp_path: Path) -> None:
    world = World(tmp_path)
    place = tmp_path / "mysql-bin.000001"
    row = rows_event(b"\0" + uint(7, 4), 1, kind=E.WRITE_ROWS_V1)
    for fields in ((SIGNED, field(4, b"\x01a")), ()):
        table = table_map([T.LONG], b"", *fields)
        events = prepared_xa(table, row)
        place.write_bytes(log(maria(1), table, row, XID, *events, server="10.11.9-MariaDB"))
        if fields:
            world.capture("--files", str(place))
    assert prove(world, "--deep", code=20)["logs"]["counts"] == {"changed": 3}, "a source whose logs have names"
    world.write_settings('metadata = "catalog"')
    assert prove(world, "--deep")["differences"] == []


def test_what_lies_in_a_gap_on_record_is_told_as_such(captured: World, tmp_path: Path) -> None:
    from tidemark.changes.trust.gaps import Gap, record_gap

    world = planted(captured, tmp_path, without(50))
    record_gap(
        Disk(tmp_path / "store"),
        Gap("", "db", "mysql-bin.000001:4", "mysql-bin.000012:4", "0-1-49", "0-1-50", ("a.b",), 1e9),
    )
    found = prove(world, code=31)
    assert found["logs"]["in_gaps"] == 1 and found["differences"] == []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
