"""A `delta` sink: tables as they are at the source, whatever dies; one that does not fit stops alone."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.commanded import run_here
from tests.crash.explorer import Died
from tests.sink_worlds import ORDERS, Model, SinkWorld, deleted, inserted, read, updated
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.capture.run import GAP
from tidemark.changes.capture.transactions import UNPROVED
from tidemark.changes.sinks.batches import Limits
from tidemark.changes.sinks.deliver import Delivered, Request, read_sink_table
from tidemark.changes.store.model import ABSENT, Column, Ddl, Kind, Mark, Rows, Shape
from tidemark.cli.main import main

SMALL = Limits(rows=40)
Values = list[tuple[Any, ...]]


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    return SinkWorld(tmp_path, "delta")


def rows_of(world: SinkWorld, table: str = "shop.orders") -> Values:
    """The rows of a table, by its key."""
    return [tuple(row.values()) for batch in read_sink_table(world.sink(), table) for row in batch.to_pylist()]


def state_of(done: Delivered, table: str = "shop.orders") -> str:
    return done.tables[table].state


def shaped(*columns: Column, table: str = "orders") -> Shape:
    return Shape("shop", table, columns)


ID, NAME, PAID = ORDERS.columns


def expected(model: Model) -> Values:
    return [(key, name, Decimal(paid)) for key, name, paid in sorted(model.rows.values())]


def fill(world: SinkWorld, model: Model, transactions: int) -> None:
    world.append(*[model.change() for _ in range(transactions)])


def test_a_table_is_as_at_the_source(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "2.50"), read(3, None, None))
    world.append([updated((1, "a", "1.00"), (10, "ä", "1.00")), deleted(2, "b", "2.50")], [inserted(2, "again", "0.10")])
    said = world.run("deliver", "lake")
    assert said.code == 0, said
    assert said.json["tables"] == [{"name": "shop.orders", "state": "whole", "rows": 6, "why": ""}]
    assert rows_of(world) == [(2, "again", Decimal("0.10")), (3, None, None), (10, "ä", Decimal("1.00"))]
    table = DeltaTable(str(world.target / "shop.orders"))
    assert table.transaction_version("tidemark:lake") == 1


@pytest.mark.parametrize("table", ["заказы", "100%", "a/b", "q?m #", "😀"])
def test_a_table_of_any_name(world: SinkWorld, table: str) -> None:
    world.append(Rows.of(shaped(ID, NAME, table=table), [inserted(1, "a"), inserted(2, "b")]))
    assert world.deliver().tables.keys() == {f"shop.{table}"}
    world.append(Rows.of(shaped(ID, NAME, table=table), [updated((1, "a"), (1, table)), deleted(2, "b")]))
    world.deliver()
    assert rows_of(world, f"shop.{table}") == [(1, table)]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("seed", range(6))
def test_random_changes_in_many_batches(world: SinkWorld, seed: int) -> None:
    model = Model(seed)
    world.bootstrap()
    for _ in range(4):
        fill(world, model, 25)
        world.deliver(Request(limits=SMALL))
        assert rows_of(world) == expected(model)


def test_a_death_at_any_effect(tmp_path: Path) -> None:
    def make(name: str) -> tuple[SinkWorld, Model]:
        world, model = SinkWorld(tmp_path / name, "delta"), Model(5)
        world.bootstrap(read(900, "before", "9.00"))
        model.rows[900] = (900, "before", "9.00")
        fill(world, model, 12)
        wide = shaped(ID, NAME, Column("paid", Kind.TEXT, "decimal(14,4)"), Column("note", Kind.TEXT, "text"))
        world.append(Rows.of(wide, [inserted(901, "wide", "1.2500", "n")]))
        return world, model

    calm, model = make("calm")
    effects: list[str] = []
    calm.deliver(Request(limits=Limits(rows=20), effect=effects.append))
    assert {name.partition(" ")[0] for name in effects} == {"before", "columns", "after"}
    assert len(rows_of(calm)) == len(model.rows) + 1
    for number, name in enumerate(effects, 1):
        world, _ = make(str(number))
        with pytest.raises(Died):
            world.deliver(Request(limits=Limits(rows=20), effect=_die_after(number)))
        done = world.deliver(Request(limits=Limits(rows=1000)))
        assert rows_of(world) == rows_of(calm), name
        assert done.tables == calm.deliver().tables, name


def test_a_batch_that_is_there_is_not_written_again(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    with pytest.raises(Died):
        world.deliver(Request(effect=_die_at("after")))
    before = DeltaTable(str(world.target / "shop.orders")).version()
    world.deliver()
    assert DeltaTable(str(world.target / "shop.orders")).version() == before


def _die_at(word: str) -> Any:
    def die(name: str) -> None:
        if name.startswith(word):
            raise Died(name)

    return die


def _die_after(left: int) -> Any:
    def die(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died(name)

    return die


@pytest.mark.full_after(1)
@pytest.mark.parametrize("seq", [9, 1, 30])
def test_a_rewind_ends_at_the_same_rows(world: SinkWorld, seq: int) -> None:
    model = Model(8)
    world.bootstrap()
    fill(world, model, 40)
    world.deliver(Request(limits=SMALL))
    assert world.run("rewind", "lake", "--to", f"seq:{seq}", "--shard", "1", "--yes").code == 0
    done = world.deliver(Request(limits=SMALL))
    assert done.rows["shop.orders"] > 0
    assert rows_of(world) == expected(model)


def test_a_ledger_that_was_lost_has_no_batch_taken_for_written(world: SinkWorld) -> None:
    model = Model(9)
    world.bootstrap()
    fill(world, model, 40)
    world.deliver(Request(limits=SMALL))
    for place in (world.folder / "var").glob("ledger.db*"):
        place.unlink()
    fill(world, model, 3)
    world.deliver()
    assert rows_of(world) == expected(model)


def test_keys_that_a_second_reading_does_not_see_go(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"), read(2, "lost in a gap", "2.00"), read(3, "c", "3.00"))
    world.deliver()
    world.append(Mark(BEGIN, "shop.orders"), [read(1, "a", "1.00")])
    assert state_of(world.deliver()) == "partial"
    world.append([inserted(4, "d", "4.00")], Mark(END, "shop.orders"))
    assert state_of(world.deliver()) == "whole"
    assert [row[0] for row in rows_of(world)] == [1, 4]


def test_a_transaction_over_several_blocks_is_the_last_of_its_batch(world: SinkWorld) -> None:
    parts = [Rows.of(ORDERS, [read(n, f"row {n}", "1.00") for n in range(100 * k, 100 * k + 100)]) for k in range(5)]
    world.append_large(Mark(BEGIN, "shop.orders"), *parts, Mark(END, "shop.orders"))
    done = world.deliver()
    assert (state_of(done), done.rows, done.end) == ("whole", {"shop.orders": 500}, 2)
    assert [row[0] for row in rows_of(world)] == list(range(500))


@pytest.mark.parametrize(
    ("mark", "states"),
    [
        (Mark(UNPROVED, "shop.orders"), ["partial", "whole"]),
        (Mark(UNPROVED, "shop.nobody"), ["whole", "whole"]),
        (Mark(UNPROVED, "changes came as a statement: UPDATE x"), ["partial", "partial"]),
        (Mark(GAP, "1"), ["partial", "partial"]),
    ],
)
def test_a_table_is_not_whole_where_the_store_says_that_rows_were_lost(
    world: SinkWorld, mark: Mark, states: list[str]
) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    world.append(Ddl("shop", "CREATE TABLE other (id INT PRIMARY KEY)"))
    world.deliver()
    world.append(mark, Mark(BEGIN, "shop.other"))
    tables = world.deliver().tables
    assert tables["shop.orders"].state == states[0]
    assert "being read" in tables["shop.other"].why
    world.append(mark, Mark(END, "shop.other"))  # lost while it is read: what was read may be of before
    assert [state_of(world.deliver(), name) for name in ("shop.orders", "shop.other")] == states
    world.bootstrap(read(1, "a", "1.00"))
    world.bootstrap(table="shop.other")
    assert {table.state for table in world.deliver().tables.values()} == {"whole"}


def test_columns_are_added_widened_and_kept_when_dropped(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    world.deliver()
    wide = shaped(ID, Column("paid", Kind.TEXT, "decimal(14,4)"), Column("Note", Kind.BYTES, "blob"))
    world.append(Ddl("shop", "ALTER TABLE orders DROP name, ADD Note BLOB"), Rows.of(wide, [inserted(2, "2.1250", b"x")]))
    done = world.deliver()
    assert rows_of(world) == [(1, "a", Decimal("1.0000"), None), (2, None, Decimal("2.1250"), b"x")]
    assert state_of(done) == "partial"
    assert "a column was added" in done.tables["shop.orders"].why
    big = shaped(Column("id", Kind.UINT64, "bigint unsigned not null", key=True), *wide.columns[1:])
    world.append(Rows.of(big, [inserted(2**64 - 1, "3.0000", None), updated((1, "1.0000", None), (1, "7.0000", b""))]))
    world.deliver()
    assert [row[0] for row in rows_of(world)] == [1, 2, 2**64 - 1]


def test_a_reading_that_begins_behind_what_does_not_fit_in_one_batch(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"), read(3, "c", "3.00"))
    world.deliver()
    world.append([updated((1, "a", "1.00"), (1, "b", ABSENT))], Mark(BEGIN, "shop.orders"), [read(1, "b", "1.00")])
    assert state_of(world.deliver()) == "partial"
    world.append([read(2, "n", "2.00")], Mark(END, "shop.orders"))
    assert state_of(world.deliver()) == "whole"
    assert [row[:2] for row in rows_of(world)] == [(1, "b"), (2, "n")]
    world.append(Mark(BEGIN, "shop.orders"), [updated((1, "b", "1.00"), (1, "c", ABSENT))])
    assert state_of(world.deliver()) == "stopped"


def test_a_column_without_sign_becomes_a_decimal_within_a_batch(world: SinkWorld) -> None:
    whole = shaped(ID, NAME, Column("paid", Kind.UINT64, "int unsigned"))
    world.bootstrap()
    world.append(Rows.of(whole, [inserted(1, "a", 2**32 - 1)]), [inserted(2, "b", "1.25")])
    done = world.deliver()
    assert state_of(done) == "whole", done.tables
    assert [row[2] for row in rows_of(world)] == [Decimal("4294967295.00"), Decimal("1.25")]


def test_a_type_that_does_not_fit_stops_its_table_alone(world: SinkWorld) -> None:
    other = shaped(ID, table="other")
    world.bootstrap(read(1, "a", "1.00"))
    world.deliver()
    retyped = shaped(Column("id", Kind.TEXT, "varchar(20) not null", key=True), NAME, PAID)
    world.append(Rows.of(retyped, [inserted("x", "b", "2.00")]), Rows.of(other, [inserted(1)]))
    said = world.run("deliver", "lake")
    said.refused(23, "1 of 2 tables stopped: shop.orders", "column id is varchar(20) not null now")
    assert said.json["hint"].startswith("./tidemark changes bootstrap orders --tables shop.orders --again")
    world.append(Rows.of(retyped, [inserted("y", "c", "3.00")]), Rows.of(other, [inserted(2)]))
    said = world.run("deliver", "lake")
    assert (said.code, said.json["point"]) == (23, "seq:8")
    assert rows_of(world) == [(1, "a", Decimal("1.00"))]
    assert rows_of(world, "shop.other") == [(1,), (2,)]
    # Read anew at the source, it is made anew here.
    world.append(Mark(BEGIN, "shop.orders"), Rows.of(retyped, [read("x", "b", "2.00"), read("y", "c", "3.00")]))
    world.append(Mark(END, "shop.orders"))
    assert world.run("deliver", "lake").code == 0
    assert rows_of(world) == [("x", "b", Decimal("2.00")), ("y", "c", Decimal("3.00"))]


def test_what_why_says(world: SinkWorld) -> None:
    def why(subject: str) -> dict[str, Any]:
        said = run_here(world.config, "why", subject)
        assert said.code == 0, said
        return said.json

    assert (why("sink:lake")["state"], why("sink:lake")["next"]) == ("new", "./tidemark changes deliver lake")
    world.bootstrap(read(1, "a", "1.00"))
    with pytest.raises(Died):
        world.deliver(Request(effect=_die_at("before")))
    told = why("task:lake")
    assert (told["kind"], told["state"]) == ("sink", "late")
    assert any("batch 1, seq:1 to seq:3, is on its way" in line for line in told["evidence"])
    world.deliver()
    assert why("sink:lake")["state"] == "current"
    world.append([inserted(1, ABSENT, ABSENT)])
    world.deliver()
    told = why("sink:lake")
    assert told["state"] == "stopped"
    assert told["next"] == "./tidemark changes bootstrap orders --again --tables shop.orders"
    run_here(world.config, "why", "sink:other").refused(3, "lake")


def test_what_doctor_says(world: SinkWorld) -> None:
    checks = {check["name"]: check for check in run_here(world.config, "doctor").json["checks"]}
    assert checks["sink lake: deltalake"]["ok"]
    assert checks["sink lake: target"]["ok"]
    world.target.write_text("no folder", encoding="utf-8")
    checks = {check["name"]: check for check in run_here(world.config, "doctor").json["checks"]}
    assert not checks["sink lake: target"]["ok"]


def test_what_cannot_be_kept_as_it_is(world: SinkWorld) -> None:
    keyless = shaped(Column("n", Kind.INT64, "int"), table="keyless")
    world.append(Rows.of(keyless, [inserted(1)]), Rows.of(ORDERS, [updated((1, ABSENT, ABSENT), (ABSENT, "b", ABSENT))]))
    said = world.run("deliver", "lake")
    said.refused(23, "2 of 2 tables stopped")
    whys = {table["name"]: table["why"] for table in said.json["tables"]}
    assert "no primary key" in whys["shop.keyless"]
    assert "not logged whole" in whys["shop.orders"]


def test_truncated_and_dropped_tables(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "2.00"))
    world.append([inserted(3, "c", "3.00")], Ddl("shop", "TRUNCATE TABLE orders"), [inserted(4, "d", "4.00")])
    world.deliver()
    assert [row[0] for row in rows_of(world)] == [4]
    world.append(Ddl("shop", "TRUNCATE orders"))
    world.deliver()
    assert rows_of(world) == []
    world.append([inserted(5, "e", "5.00")])
    world.deliver()
    made = shaped(Column("code", Kind.TEXT, "varchar(9) not null", key=True))
    world.append(
        Ddl("shop", "DROP TABLE `orders` /* generated by server */"),
        Ddl("shop", "CREATE TABLE orders (code VARCHAR(9) PRIMARY KEY)"),
        Rows.of(made, [inserted("x")]),
    )
    assert state_of(world.deliver()) == "whole"
    assert rows_of(world) == [("x",)]


def swap(world: SinkWorld) -> None:
    """What tools do that change a large table on-line: fill another one, then rename both."""
    wide = (*ORDERS.columns, Column("more", Kind.INT64, "int"))
    ghost = shaped(*wide, table="_ghost")
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "2.00"))
    world.append(Ddl("shop", "CREATE TABLE _ghost (id BIGINT PRIMARY KEY)"))
    world.append(Rows.of(ghost, [inserted(1, "a", "1.00", 7), inserted(2, "b", "2.00", 7)]), [deleted(2, "b", "2.00")])
    world.append(Rows.of(ghost, [deleted(2, "b", "2.00", 7)]))
    world.append(Ddl("shop", "RENAME TABLE orders TO _old, _ghost TO orders"))
    world.append(Rows.of(shaped(*wide), [inserted(3, "c", "3.00", 8)]), Ddl("shop", "DROP TABLE shop._old"))


def test_tables_are_renamed(world: SinkWorld) -> None:
    swap(world)
    done = world.deliver()
    assert rows_of(world) == [(1, "a", Decimal("1.00"), 7), (3, "c", Decimal("3.00"), 8)]
    assert (rows_of(world, "shop._ghost"), rows_of(world, "shop._old")) == ([], [])
    assert {table.state for table in done.tables.values()} == {"whole"}


def test_a_column_that_is_added_before_the_first_row_has_no_row_without_it(world: SinkWorld) -> None:
    wide = shaped(*ORDERS.columns, Column("n", Kind.INT64, "int"))
    add = Ddl("shop", "ALTER TABLE orders ADD n INT DEFAULT 5")
    world.append(Ddl("shop", "CREATE TABLE orders LIKE old"), add)
    assert state_of(world.deliver()) == "whole"
    world.append(Rows.of(wide, [inserted(1, "a", "1.00", 5)]))
    assert state_of(world.deliver()) == "whole"
    world.append(add)
    assert state_of(world.deliver()) == "partial"
    world.append(Ddl("shop", "CREATE OR REPLACE TABLE orders LIKE old"), [inserted(1, "a", "1.00")], add)
    assert state_of(world.deliver()) == "partial"


def test_two_tables_that_change_names_and_a_death_at_any_effect(tmp_path: Path) -> None:
    def make(name: str) -> SinkWorld:
        world = SinkWorld(tmp_path / name, "delta")
        world.bootstrap(read(1, "a", "1.00"))
        world.append(Ddl("shop", "CREATE TABLE other (id BIGINT PRIMARY KEY)"))
        world.append(Rows.of(shaped(*ORDERS.columns, table="other"), [inserted(2, "b", "2.00")]))
        world.append(Ddl("shop", "RENAME TABLE orders TO t, other TO orders, t TO other"))
        return world

    effects: list[str] = []
    make("calm").deliver(Request(effect=effects.append))
    for number in range(1, len(effects) + 1):
        world = make(str(number))
        with pytest.raises(Died):
            world.deliver(Request(effect=_die_after(number)))
        done = world.deliver()
        assert rows_of(world) == [(2, "b", Decimal("2.00"))]
        assert rows_of(world, "shop.other") == [(1, "a", Decimal("1.00"))]
        assert state_of(done) == state_of(done, "shop.other") == "whole"


@pytest.mark.parametrize("names", ["orders TO b", "orders TO t, b TO orders, t TO b"])
def test_a_rewind_to_before_a_table_was_renamed_takes_no_rows_for_all(world: SinkWorld, names: str) -> None:
    b = shaped(*ORDERS.columns, table="b")
    world.append(Ddl("shop", "CREATE TABLE b (id BIGINT PRIMARY KEY)"))
    world.bootstrap(read(1, "a", "1.00"), read(2, "b", "2.00"))
    world.append([updated((2, "b", "2.00"), (2, "c", "3.00"))], Ddl("shop", f"RENAME TABLE {names}"))
    world.append(Rows.of(b, [updated((1, "a", "1.00"), (1, "x", "1.00"))]))
    now = [(1, "x", Decimal("1.00")), (2, "c", Decimal("3.00"))]
    assert state_of(world.deliver(), "shop.b") == "whole"
    assert rows_of(world, "shop.b") == now
    assert world.run("rewind", "lake", "--to", "seq:5", "--yes").code == 0
    done = world.deliver()
    assert state_of(done, "shop.b") == "stopped"
    assert "the sink was rewound to before that" in done.tables["shop.b"].why
    assert world.run("rewind", "lake", "--to", "seq:1", "--yes").code == 0  # all of it comes again
    world.deliver()
    assert world.run("rewind", "lake", "--to", "seq:1", "--yes").code == 0
    world.bootstrap(table="shop.orders")
    world.append(Mark(BEGIN, "shop.b"), Rows.of(b, [read(1, "x", "1.00"), read(2, "c", "3.00")]), Mark(END, "shop.b"))
    assert state_of(world.deliver(), "shop.b") == "whole"
    assert rows_of(world, "shop.b") == now


def test_a_column_is_added_and_the_table_renamed_at_once(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    world.append(Ddl("shop", "ALTER TABLE orders ADD n INT DEFAULT 5, RENAME TO b"))
    assert "a column was added" in world.deliver().tables["shop.b"].why


def test_a_table_that_comes_from_outside_stops(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "delta", 'tables = ["shop.*"]\n')
    world.append(Ddl("shop", "RENAME TABLE staging.orders TO shop.orders"), [inserted(2, "b", "2.00")])
    done = world.deliver()
    assert state_of(done) == "stopped"
    assert "was staging.orders before" in done.tables["shop.orders"].why
    assert [*done.tables] == ["shop.orders"]
    world.bootstrap(read(2, "b", "2.00"))
    assert state_of(world.deliver()) == "whole"
    world.append(Ddl("shop", "RENAME TABLE shop.orders TO archive.orders"))
    assert state_of(world.deliver()) == "whole"
    assert rows_of(world) == []


def test_what_the_command_prints(world: SinkWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    assert main(["--config", str(world.config), "changes", "deliver", "lake"]) == 0
    assert main(["--config", str(world.config), "changes", "deliver", "lake"]) == 0
    said = capsys.readouterr().out
    assert "1 row in 1 batch: up to seq:4" in said
    assert "shop.orders  whole" in said
    assert "nothing new: at seq:4" in said


def test_only_some_rows_are_known_of_a_table_that_was_never_read(world: SinkWorld) -> None:
    world.append([inserted(1, "a", "1.00")])
    done = world.deliver()
    assert state_of(done) == "partial"
    assert rows_of(world) == [(1, "a", Decimal("1.00"))]


def test_a_table_whose_log_is_damaged(world: SinkWorld) -> None:
    world.bootstrap(read(1, "a", "1.00"))
    world.deliver()
    [first, *_] = sorted((world.target / "shop.orders" / "_delta_log").iterdir())
    first.write_text("{", encoding="utf-8")
    world.append([inserted(2, "b", "2.00")])
    world.run("deliver", "lake").refused(6, "shop.orders")


def test_rows_that_one_arrow_array_would_not_hold_are_one_batch_all_the_same(world: SinkWorld) -> None:
    """Arrow arrays of text end at 2 GiB. The limit is lower here."""
    model = Model(1)
    fill(world, model, 60)
    assert world.deliver(Request(limits=Limits(run=2000))).batches == 1
    assert rows_of(world) == expected(model)


@pytest.mark.parametrize(
    "sql",
    [
        "TRUNCATE Orders",
        "DROP TABLE ORDERS",
        "RENAME TABLE Orders TO past",
        "DROP DATABASE Shop",
        "ALTER TABLE Orders ADD x INT",
    ],
)
def test_a_table_that_a_statement_names_in_another_case_is_marked(world: SinkWorld, sql: str) -> None:
    """It is the table where the server does not tell names apart by case, and else another one: its rows stay."""
    world.bootstrap(read(1, "a", "1.00"))
    assert state_of(world.deliver()) == "whole"
    world.append(Ddl("shop", sql))
    table = world.deliver().tables["shop.orders"]
    assert table.state == "partial" and "does not tell names apart by case" in table.why
    assert len(rows_of(world)) == 1
    world.bootstrap()
    assert state_of(world.deliver()) == "whole" and rows_of(world) == []
