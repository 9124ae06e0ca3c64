"""A `catalog` sink: a table becomes files of a site, and what readers of the catalog see is the table, whatever dies."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.commanded import run_here
from tests.crash.explorer import Died
from tests.sink_worlds import SinkWorld, deleted, inserted, read, updated
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.sinks.batches import Limits
from tidemark.changes.sinks.deliver import Delivered, Request
from tidemark.changes.store.model import Column, Ddl, Kind, Mark, Row, Rows, Shape
from tidemark.operations.housekeeping import housekeep
from tidemark.tsfiles.devices import table_device

SITE_ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
MORE = (
    '[receivers.centre]\nstore = "centre"\n'
    f'[sites.plant]\nid = "{SITE_ID}"\nstore = "lake"\n'
    '[links.plant]\nsite = "plant"\nreceiver = "centre"\n'
)
AT = Column("at", Kind.TEXT, "datetime(3) not null", key=True)
MACHINE = Column("machine", Kind.TEXT, "varchar(20) not null", key=True)
FIELDS = (
    Column("n", Kind.INT64, "int"),
    Column("level", Kind.FLOAT64, "double"),
    Column("note", Kind.TEXT, "varchar(20)"),
    Column("raw", Kind.BYTES, "blob"),
)
READINGS = Shape("plant", "readings", (AT, MACHINE, *FIELDS))
NULLS = (None, None, None)
Values = tuple[Any, ...]


class CatalogWorld(SinkWorld):
    """The sink `lake` is the site `plant` of the receiver `centre`."""

    def __init__(self, folder: Path, more: str = "") -> None:
        super().__init__(folder, "catalog", more + MORE)

    def change(self, rows: Sequence[Row], shape: Shape = READINGS) -> None:
        self.append(Rows.of(shape, rows))

    def read_all(self, rows: Sequence[Row], shape: Shape = READINGS) -> None:
        """Append a reading of all rows."""
        name = f"{shape.database}.{shape.table}"
        self.append(Mark(BEGIN, name), *([Rows.of(shape, rows)] if rows else []), Mark(END, name))

    def land(self) -> None:
        """Send what the site has, and load it."""
        for words in (("sync", "plant"), ("load",)):
            said = run_here(self.config, *words)
            assert said.code == 0, said

    def see(self, *names: str) -> list[Values]:
        """What readers of the catalog see: device, time in ms, fields."""
        self.land()
        return self.look(*names)

    def look(self, *names: str) -> list[Values]:
        out = self.folder / "seen.parquet"
        said = run_here(self.config, "read", "--out", str(out), "--times", "number")
        assert said.code == 0, said
        rows = pq.read_table(out).to_pylist()
        wanted = names or [column.name for column in FIELDS]
        return sorted((row["device"], row["time"], *(row.get(name) for name in wanted)) for row in rows)

    def digest(self) -> dict[str, str]:
        """The files of the site by their path, and what they hold."""
        paths = [path for path in sorted(self.target.rglob("*")) if path.is_file() and ".tidemark" not in path.parts]
        return {str(path.relative_to(self.target)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture
def world(tmp_path: Path) -> CatalogWorld:
    return CatalogWorld(tmp_path)


def at(second: int) -> str:
    """A time of the table; an hour more than a week is another time partition."""
    days, rest = divmod(second, 86_400)
    return f"2026-09-{1 + days:02} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}.250"


def ms(second: int) -> int:
    return (1_788_220_800 + second) * 1000 + 250  # 2026-09-01 00:00:00


def row(second: int, machine: str, n: int | None, level: float | None = None, note: str | None = None) -> Values:
    return (at(second), machine, n, level, note, None)


def state_of(done: Delivered, table: str = "plant.readings") -> str:
    return done.tables[table].state


def test_a_table_is_seen_as_at_the_source(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 5, 0.5, "ü")), read(*row(2, "a.b", 6))])
    world.change([inserted(at(3), "m1", None, 1e300, "", b"\x00\xff")])
    done = world.deliver()
    assert state_of(done) == "whole"
    assert world.see() == [
        ("plant.readings.a\\.b", ms(2), 6, None, None, None),
        ("plant.readings.m1", ms(1), 5, 0.5, "ü", None),
        ("plant.readings.m1", ms(3), None, 1e300, "", "00ff"),
    ]


def test_an_update_overwrites_and_a_null_takes_the_value_away(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 5, 0.5, "x")), read(*row(2, "m1", 6, 0.6, "y"))])
    world.deliver()
    assert len(world.see()) == 2
    world.change([updated(row(1, "m1", 5, 0.5, "x"), row(1, "m1", 7, None, "x"))])
    world.deliver()
    assert world.see() == [
        ("plant.readings.m1", ms(1), 7, None, "x", None),
        ("plant.readings.m1", ms(2), 6, 0.6, "y", None),
    ]


def test_a_delete_is_a_deletion_and_a_key_that_changes_is_two(world: CatalogWorld) -> None:
    world.read_all([read(*row(n, "m1", n)) for n in range(1, 7)])
    world.deliver()
    world.land()
    world.change([deleted(*row(n, "m1", n)) for n in (2, 3, 4)])
    world.change([updated(row(6, "m1", 6), row(7, "m2", 6))])
    world.deliver()
    [mods] = world.target.rglob("*.mods2")
    assert [(device, time) for device, time, *_ in world.see()] == [
        ("plant.readings.m1", ms(1)),
        ("plant.readings.m1", ms(5)),
        ("plant.readings.m2", ms(7)),
    ]
    size = mods.stat().st_size
    world.change([inserted(*row(2, "m1", 22))])
    world.deliver()
    assert ("plant.readings.m1", ms(2), 22, None, None, None) in world.see()
    assert mods.stat().st_size == size, "a row that comes back adds no deletion where it is no more"


def test_tags_are_any_text(world: CatalogWorld) -> None:
    machines = ["", "\\N", "a\\", "`", "a b", "🚲", "null", ".", "x" * 300]
    world.read_all([read(*row(second, machine, second, 0.5)) for machine in machines for second in (1, 2)])
    world.deliver()
    world.land()
    for machine in machines:
        world.change([updated(row(1, machine, 1, 0.5), row(1, machine, 7)), deleted(*row(2, machine, 2, 0.5))])
    world.deliver()
    expected = [(table_device("plant", ("readings", machine)), ms(1), 7, None) for machine in machines]
    assert [seen[:4] for seen in world.see()] == sorted(expected)
    assert run_here(world.config, "merge").code == 0
    assert [seen[:4] for seen in world.look()] == sorted(expected)


class Plant:
    """A made-up table: random changes of `READINGS`, and its rows as they are now."""

    def __init__(self, seed: int, times: int = 25) -> None:
        self.choice = Random(seed)
        self.rows: dict[tuple[str, str], Values] = {}
        self.times: dict[str, int] = {at(second * 50_000): second * 50_000 for second in range(25 - times, 25)}

    def change(self) -> list[Row]:
        return [self._change_one() for _ in range(self.choice.randint(1, 6))]

    def _make(self, key: tuple[str, str]) -> Values:
        number = self.choice.randrange(1000)
        values = (number, number / 7, f"n{number}", bytes([number % 256]))
        made = [None if self.choice.random() < 0.25 else value for value in values[1:]]
        return (*key, number, *made)

    def _change_one(self) -> Row:
        key = (self.choice.choice([*self.times]), f"m{self.choice.randrange(3)}")
        before = self.rows.pop(key, None)
        if before is None:
            self.rows[key] = self._make(key)
            return inserted(*self.rows[key])
        if self.choice.random() < 0.3:
            return deleted(*before)
        other = (self.choice.choice([*self.times]), key[1])
        new = other if other not in self.rows and self.choice.random() < 0.3 else key
        self.rows[new] = self._make(new)
        return updated(before, self.rows[new])

    def expect(self) -> list[Values]:
        found = []
        for time, machine, n, level, note, raw in self.rows.values():
            found.append(
                (f"plant.readings.{machine}", ms(self.times[time]), n, level, note, None if raw is None else raw.hex())
            )
        return sorted(found)


@pytest.mark.parametrize("seed", range(2))
def test_any_changes_in_any_batches_are_seen_as_the_table(world: CatalogWorld, seed: int) -> None:
    plant = Plant(seed)
    world.read_all([])
    for _ in range(3):
        for _ in range(12):
            world.change(plant.change())
        done = world.deliver(Request(limits=Limits(rows=plant.choice.choice([4, 15, 1000]))))
        assert state_of(done) == "whole"
        assert world.see() == plant.expect()
    assert run_here(world.config, "merge").code == 0
    assert world.look() == plant.expect()


def test_a_death_at_any_effect_leaves_what_a_calm_run_leaves(tmp_path: Path) -> None:
    def fill(folder: str) -> tuple[CatalogWorld, Plant]:
        world, plant = CatalogWorld(tmp_path / folder), Plant(7, times=4)
        world.read_all([])
        for _ in range(9):
            world.change(plant.change())
        return world, plant

    few = Limits(rows=8)
    calm, plant = fill("calm")
    effects: list[str] = []
    calm.deliver(Request(limits=few, effect=effects.append))
    assert any("mods2" in one for one in effects)
    assert any("resource" in one for one in effects)
    expected = calm.digest()
    assert calm.see() == plant.expect()
    for death in range(len(effects)):
        world, _ = fill(f"dies{death}")
        seen: list[str] = []

        def die(what: str, seen: list[str] = seen, death: int = death) -> None:
            seen.append(what)
            if len(seen) == death + 1:
                raise Died

        with pytest.raises(Died):
            world.deliver(Request(limits=few, effect=die))
        world.deliver(Request(limits=few))
        assert world.digest() == expected, effects[death]


def test_what_was_sent_between_two_effects_is_mended_by_the_next_run(tmp_path: Path) -> None:
    world, plant = CatalogWorld(tmp_path), Plant(5)
    world.read_all([])
    for _ in range(12):
        world.change(plant.change())
    world.deliver(Request(limits=Limits(rows=20), effect=lambda what: world.land() if "after" in what else None))
    assert world.see() == plant.expect()


def test_rows_that_a_reading_did_not_see_go(world: CatalogWorld) -> None:
    world.change([inserted(*row(1, "m1", 1)), inserted(*row(2, "m1", 2, 0.5)), inserted(*row(3, "m1", 3))])
    done = world.deliver()
    assert state_of(done) == "partial"
    assert len(world.see()) == 3
    world.change([inserted(*row(4, "m1", 4))])
    world.append(Mark(BEGIN, "plant.readings"))
    world.change([read(*row(2, "m1", 2))])
    assert state_of(world.deliver()) == "partial"
    world.change([inserted(*row(5, "m1", 5))])
    world.append(Mark(END, "plant.readings"))
    assert state_of(world.deliver()) == "whole"
    assert [(time, n, level) for _, time, n, level, *_ in world.see()] == [(ms(2), 2, None), (ms(5), 5, None)]


def test_statements_empty_tables(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1))])
    world.deliver()
    world.append([Rows.of(READINGS, [inserted(*row(2, "m1", 2))])], Ddl("plant", "TRUNCATE readings"))
    world.change([inserted(*row(3, "m1", 3))])
    world.deliver()
    assert [time for _, time, *_ in world.see()] == [ms(3)]
    world.append(Ddl("plant", "DROP TABLE readings"))
    world.deliver()
    assert world.see() == []


def test_columns_come_are_widened_and_stay_when_dropped(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1, 0.5)), read(*row(2, "m1", 2, 0.5))])
    world.deliver()
    wide = Shape("plant", "readings", (AT, MACHINE, Column("n", Kind.INT64, "bigint"), Column("new", Kind.TEXT, "text")))
    world.change([inserted(at(3), "m1", 1 << 40, "came"), updated((at(2), "m1", 2, None), (at(2), "m1", 22, None))], wide)
    assert state_of(world.deliver()) == "whole"
    assert [seen[1:] for seen in world.see("n", "level", "new")] == [
        (ms(1), 1, 0.5, None),
        (ms(2), 22, None, None),
        (ms(3), 1 << 40, None, "came"),
    ]


def shaped(*columns: Column, table: str = "readings") -> Shape:
    return Shape("plant", table, columns)


N = FIELDS[0]
UNFIT = [
    (shaped(AT, MACHINE, Column("n", Kind.TEXT, "varchar(9)")), (at(9), "m1", "x"), "column n is varchar(9) now"),
    (
        shaped(AT, MACHINE, Column("u", Kind.UINT64, "bigint unsigned")),
        (at(9), "m1", 1 << 63),
        "column u does not fit int64",
    ),
    (shaped(AT, N, Column("k", Kind.INT64, "int", key=True)), (at(9), 1, 1), "its key was at, machine"),
    (shaped(AT, MACHINE, N), ("0000-00-00 00:00:00", "m1", 1), "a time of column at is none in ms"),
    (shaped(AT, MACHINE, N), ("2026-09-01 00:00:00.000001", "m1", 1), "a time of column at is none in ms"),
]


@pytest.mark.parametrize(("shape", "values", "why"), UNFIT)
def test_what_does_not_fit_stops_its_table_alone(world: CatalogWorld, shape: Shape, values: Values, why: str) -> None:
    other = shaped(AT, MACHINE, N, table="other")
    world.read_all([read(*row(1, "m1", 1))])
    world.read_all([], other)
    world.change([inserted(*values)], shape)
    world.change([inserted(at(2), "m1", 2)], other)
    said = world.run("deliver", "lake")
    assert said.code == 23, said
    assert why in said.json["error"]
    assert [(one["name"], one["state"]) for one in said.json["tables"]] == [
        ("plant.other", "whole"),
        ("plant.readings", "stopped"),
    ]
    assert "changes bootstrap orders --tables plant.readings --again" in said.json["hint"]
    assert {(device, time) for device, time, *_ in world.see()} == {
        ("plant.readings.m1", ms(1)),
        ("plant.other.m1", ms(2)),
    }
    # It is made anew by a reading, with what its columns are now.
    world.read_all([read(at(5), "m1", 5)], shaped(AT, MACHINE, N))
    assert state_of(world.deliver()) == "whole"
    assert [time for device, time, *_ in world.see() if "readings" in device] == [ms(5)]


def test_a_table_that_is_read_anew_may_have_other_types(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1)), read(*row(2, "m1", 2))])
    world.deliver()
    world.land()
    text = shaped(AT, MACHINE, Column("n", Kind.TEXT, "varchar(9)"))
    world.change([inserted(at(3), "m1", "x")], text)
    assert state_of(world.deliver()) == "stopped"
    world.read_all([read(at(1), "m1", "one"), read(at(3), "m1", "three")], text)
    assert state_of(world.deliver()) == "whole"
    expected = [("plant.readings.m1", ms(1), "one"), ("plant.readings.m1", ms(3), "three")]
    assert world.see("n") == expected
    assert run_here(world.config, "merge").code == 0
    assert world.look("n") == expected


REFUSED = [
    (shaped(AT, MACHINE), (at(1), "m1"), "no column beside its time and tags"),
    (
        shaped(Column("id", Kind.INT64, "int", key=True), Column("at", Kind.TEXT, "datetime"), N),
        (1, at(1), 2),
        "0 columns of",
    ),
    (shaped(AT, Column("w", Kind.FLOAT64, "double", key=True), N), (at(1), 0.5, 2), "its tag w is double"),
    (shaped(Column("at", Kind.TEXT, "datetime"), N), (at(1), 2), "it has no primary key"),
    (shaped(AT, MACHINE, N, table="a/b"), (at(1), "m1", 2), "a/b is no name that TsFiles can have here"),
]


@pytest.mark.parametrize(("shape", "values", "why"), REFUSED)
def test_tables_that_are_no_time_series_stop(world: CatalogWorld, shape: Shape, values: Values, why: str) -> None:
    world.change([inserted(*values)], shape)
    [stopped] = world.deliver().stopped
    assert why in stopped.why
    assert not list(world.target.rglob("*.tsfile"))


def test_the_settings_name_a_time_that_the_key_does_not_tell(tmp_path: Path) -> None:
    world = CatalogWorld(tmp_path, 'columns = {"plant.ticks" = {time = "tick"}}\n')
    ticks = shaped(
        Column("tick", Kind.INT64, "bigint", key=True), Column("line", Kind.INT64, "int", key=True), N, table="ticks"
    )
    world.read_all([read(-5, 7, 1)], ticks)
    world.change([inserted(10, 7, 2)], ticks)
    world.deliver()
    assert [seen[:3] for seen in world.see()] == [("plant.ticks.7", -5, 1), ("plant.ticks.7", 10, 2)]


def test_a_column_that_is_renamed_in_its_case_alone(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1)), read(*row(2, "m1", 2))])
    assert state_of(world.deliver()) == "whole"
    spelled = replace(READINGS, columns=tuple(replace(one, name=one.name.title()) for one in READINGS.columns))
    world.change([updated(row(1, "m1", 1), row(1, "m1", 5)), deleted(*row(2, "m1", 2))], spelled)
    assert state_of(world.deliver()) == "whole"
    assert [seen[:3] for seen in world.see()] == [("plant.readings.m1", ms(1), 5)]


def test_a_renamed_table_is_empty_under_its_former_name_and_stops_under_the_new_one(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1))])
    world.append(Ddl("plant", "RENAME TABLE readings TO measured"))
    done = world.deliver()
    assert {name: table.state for name, table in done.tables.items()} == {
        "plant.measured": "stopped",
        "plant.readings": "whole",
    }
    assert world.see() == []
    measured = shaped(AT, MACHINE, *FIELDS, table="measured")
    world.read_all([read(*row(1, "m1", 1))], measured)
    assert state_of(world.deliver(), "plant.measured") == "whole"
    assert [seen[:3] for seen in world.see()] == [("plant.measured.m1", ms(1), 1)]


def test_rows_of_files_that_settled_are_overwritten_and_deleted(tmp_path: Path) -> None:
    world, plant = CatalogWorld(tmp_path), Plant(6)
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(text.replace("[receivers.centre]\n", "[receivers.centre]\nsettle_days = 0\n"), encoding="utf-8")
    world.read_all([])
    for _ in range(2):
        for _ in range(10):
            world.change(plant.change())
        world.deliver()
        world.land()
    assert run_here(world.config, "merge").code == 0
    app, kept = world.app(), world.folder / "centre" / "data"
    now = app.clock()
    assert list(kept.rglob("*-1-1-0-0.tsfile"))
    for days in (2, 4):
        app.clock = lambda days=days: now + days * 86_400  # type: ignore[misc]
        housekeep(app, app.settings.receivers["centre"])
    assert not list(kept.rglob("*-1-1-0-0.tsfile")), "the sources of merged files are there"
    for _ in range(10):
        world.change(plant.change())
    world.deliver()
    world.land()  # the receipt asks for files whose deletions meet a settled one
    assert world.see() == plant.expect()


def test_a_rewind_or_another_ledger_writes_nothing_again(world: CatalogWorld) -> None:
    plant = Plant(3)
    world.read_all([])
    for _ in range(12):
        world.change(plant.change())
    world.deliver(Request(limits=Limits(rows=10)))
    before = world.digest()
    assert world.run("rewind", "lake", "--to", "earliest").code == 0
    world.deliver()
    assert world.digest() == before
    (world.folder / "var" / "ledger.db").unlink()
    world.change(plant.change())
    world.deliver()
    assert before.items() - world.digest().items() <= {("catalog.json", before["catalog.json"])} | {
        item for item in before.items() if item[0].endswith("mods2")
    }
    assert world.see() == plant.expect()


def test_a_ledger_that_was_lost_is_rebuilt_from_the_store_and_the_sink_goes_on(world: CatalogWorld) -> None:
    plant = Plant(4)
    world.read_all([])
    for _ in range(12):
        world.change(plant.change())
    world.deliver(Request(limits=Limits(rows=15)))
    assert world.see() == plant.expect()
    (world.folder / "var" / "ledger.db").unlink()
    assert run_here(world.config, "ledger", "rebuild").code == 0
    assert world.look() == plant.expect()
    world.change(plant.change())
    world.deliver()
    assert world.see() == plant.expect()


def test_a_site_that_counts_otherwise_is_refused(world: CatalogWorld) -> None:
    world.read_all([read(*row(1, "m1", 1))])
    world.deliver()
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(text.replace("[sites.plant]\n", '[sites.plant]\ntime_unit = "us"\n'), encoding="utf-8")
    world.run("deliver", "lake").refused(2, "was begun with time_unit = ms", "its site says time_unit = us")


def test_another_time_of_a_table_stops_it(world: CatalogWorld) -> None:
    two = shaped(AT, Column("since", Kind.INT64, "bigint", key=True), N)
    world.read_all([read(at(1), 5, 1)], two)
    assert state_of(world.deliver()) == "whole"
    text = world.config.read_text(encoding="utf-8")
    told = '[sinks.lake]\ncolumns = {"plant.readings" = {time = "since"}}\n'
    world.config.write_text(text.replace("[sinks.lake]\n", told), encoding="utf-8")
    world.change([inserted(at(2), 6, 1)], two)
    [stopped] = world.deliver().stopped
    assert "its column of time was at and is since now" in stopped.why


def test_a_catalog_sink_without_its_site_is_refused_by_name(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "catalog")
    said = world.run("deliver", "lake")
    said.refused(2, "sinks.lake", "must be the name of a receiver, or the store of a site")
