"""A `catalog` sink whose settings name a receiver, and the time and the tags of a table whose key is something else."""

from __future__ import annotations

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
from tidemark.changes.sinks.deliver import Request
from tidemark.changes.store.model import Column, Kind, Mark, Row, Rows, Shape
from tidemark.settings.load import load_settings

ID = Column("id", Kind.INT64, "bigint not null", key=True)
SEEN = Column("seen", Kind.TEXT, "datetime(3)")
PLACE, NAME = Column("place", Kind.TEXT, "varchar(20)"), Column("name", Kind.TEXT, "varchar(20)")
VALUE = Column("value", Kind.FLOAT64, "double")
EVENTS = Shape("shop", "events", (ID, PLACE, NAME, SEEN, VALUE))
COLUMNS = '[sinks.lake.columns."shop.events"]\ntime = "seen"\ntags = ["place", "name"]\n'
Values = tuple[Any, ...]


class EventWorld(SinkWorld):
    """The sink `lake` of the receiver `centre`: nothing says of which site."""

    def __init__(self, folder: Path, more: str = COLUMNS, shape: Shape = EVENTS) -> None:
        super().__init__(folder, "catalog", more + '[receivers.centre]\nstore = "centre"\n')
        self.config.write_text(self.config.read_text(encoding="utf-8").replace('"lake"', '"centre"'), encoding="utf-8")
        self.target = folder / "var" / "sinks" / "lake"
        self.shape = shape

    def change(self, *rows: Row) -> None:
        self.append(Rows.of(self.shape, rows))

    def read_all(self, *rows: Row) -> None:
        """Append a reading of all rows."""
        name = f"{self.shape.database}.{self.shape.table}"
        self.append(Mark(BEGIN, name), *([Rows.of(self.shape, rows)] if rows else []), Mark(END, name))

    def see(self) -> list[Values]:
        """What readers of the receiver's catalog see: device, time in ms, id, value."""
        out = self.folder / "seen.parquet"
        said = run_here(self.config, "read", "--out", str(out), "--times", "number")
        assert said.code == 0, said
        found = [(row["device"], row["time"], row.get("id"), row.get("value")) for row in pq.read_table(out).to_pylist()]
        return sorted(found)


@pytest.fixture
def world(tmp_path: Path) -> EventWorld:
    return EventWorld(tmp_path)


def at(second: int) -> str:
    days, rest = divmod(second, 86_400)
    return f"2026-09-{1 + days:02} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}.250"


def ms(second: int) -> int:
    return (1_788_220_800 + second) * 1000 + 250  # 2026-09-01 00:00:00


def row(number: int, place: str | None, second: int, value: float | None = 0.5) -> Values:
    return (number, place, "x", at(second), value)


def test_a_delivery_to_a_receiver_is_in_its_catalog(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1)), read(*row(2, "b", 2, None)))
    said = world.run("deliver", "lake")
    assert said.code == 0, said
    [sent] = said.json["sent"]
    assert (sent["name"], sent["state"]) == ("lake", "loaded")
    assert world.see() == [("shop.events.a.x", ms(1), 1, 0.5), ("shop.events.b.x", ms(2), 2, None)]
    again = world.run("deliver", "lake")
    assert (again.code, again.json["batches"], again.json["sent"][0]["files"]) == (0, 0, 0)
    assert run_here(world.config, "verify", "--site", "lake").json["ok"]


def test_a_file_that_was_not_sent_is_sent_by_the_next_delivery(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1)))
    world.deliver()  # and died before it was sent
    assert world.run("deliver", "lake").json["sent"][0]["files"] == 1
    assert world.see() == [("shop.events.a.x", ms(1), 1, 0.5)]


def test_the_site_of_a_sink_is_always_the_same_one_and_another_for_each_sink(tmp_path: Path) -> None:
    world = EventWorld(tmp_path)
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(
        text + '[sinks.second]\nsource = "orders"\nkind = "catalog"\ntarget = "centre"\n', encoding="utf-8"
    )
    first, again = (load_settings(world.config, {}) for _ in range(2))
    assert first.sites["lake"] == again.sites["lake"]
    assert first.sites["lake"].id != first.sites["second"].id
    assert {link.site: link.receiver for link in first.links.values()} == {"lake": "centre", "second": "centre"}
    assert first.sites["lake"].store == first.sinks["lake"].target != first.sinks["second"].target


def test_what_stands_in_tables_of_the_sink_s_name_counts(tmp_path: Path) -> None:
    world = EventWorld(tmp_path, COLUMNS + '[sites.lake]\nprefix = ""\ntime_unit = "us"\n[links.lake]\nschedule = ""\n')
    found = load_settings(world.config, {})
    assert (found.sites["lake"].time_unit, found.links["lake"].schedule) == ("us", "")
    world.read_all(read(*row(1, "a", 1)))
    assert world.run("deliver", "lake").code == 0
    assert world.see()[0][1] == ms(1) * 1000


def test_a_row_that_changes_its_point_is_at_the_new_one_alone(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1)), read(*row(2, "a", 2)), read(*row(3, None, 3)))
    world.deliver()
    world.change(updated(row(1, "a", 1), row(1, "b", 1)), updated(row(2, "a", 2), row(2, "a", 7, 0.7)))
    world.change(updated(row(3, None, 3), row(3, None, 3, 0.9)))
    assert world.run("deliver", "lake").code == 0
    assert world.see() == [
        ("shop.events.\\N.x", ms(3), 3, 0.9),
        ("shop.events.a.x", ms(7), 2, 0.7),
        ("shop.events.b.x", ms(1), 1, 0.5),
    ]


def test_rows_of_which_a_tag_is_null_are_apart_by_the_others(world: EventWorld) -> None:
    tags = [("a", None), ("b", None), (None, None), (None, "x"), ("a", "x"), ("", None)]
    world.read_all(*(read(number, *two, at(1), number / 2) for number, two in enumerate(tags)))
    assert world.run("deliver", "lake").code == 0
    devices = [f"shop.events.{place}.{name}" for place, name in [(r"\N" if t is None else t for t in two) for two in tags]]
    assert world.see() == sorted((device, ms(1), number, number / 2) for number, device in enumerate(devices))
    world.change(deleted(0, "a", None, at(1), 0.0), updated((1, "b", None, at(1), 0.5), (1, "c", None, at(1), 0.7)))
    assert world.run("deliver", "lake").code == 0
    kept = dict(enumerate(zip(devices, (0.0, 0.7, 1.0, 1.5, 2.0, 2.5), strict=True))) | {1: (r"shop.events.c.\N", 0.7)}
    del kept[0]
    assert world.see() == sorted((device, ms(1), number, value) for number, (device, value) in kept.items())


def test_rows_that_swap_their_points_lose_none(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1, 0.1)), read(*row(2, "a", 2, 0.2)))
    world.deliver()
    world.change(updated(row(1, "a", 1, 0.1), row(1, "a", 2, 0.1)), updated(row(2, "a", 2, 0.2), row(2, "a", 1, 0.2)))
    assert world.run("deliver", "lake").code == 0
    assert world.see() == [("shop.events.a.x", ms(1), 2, 0.2), ("shop.events.a.x", ms(2), 1, 0.1)]


def test_a_row_that_takes_a_point_over_keeps_it_when_the_former_one_goes(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1, 0.1)))
    world.deliver()
    world.change(inserted(*row(2, "a", 1, 0.2)), deleted(*row(1, "a", 1, 0.1)))
    assert world.run("deliver", "lake").code == 0
    assert world.see() == [("shop.events.a.x", ms(1), 2, 0.2)]


@pytest.mark.parametrize("apart", [False, True])
def test_two_rows_of_one_point_stop_the_table_and_hide_nothing(world: EventWorld, apart: bool) -> None:
    world.read_all(read(*row(1, "a", 1, 0.1)))
    if apart:
        world.deliver()
    world.change(inserted(*row(2, "a", 1, 0.2)))
    said = world.run("deliver", "lake")
    assert said.code == 23
    assert "two rows are one point (place a, name x, seen 1788220801250)" in said.json["error"]
    assert "name id among its tags" in said.json["error"]
    assert world.see() == ([("shop.events.a.x", ms(1), 1, 0.1)] if apart else [])


def test_a_row_that_comes_and_goes_leaves_the_other_one_of_its_point(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1, 0.1)))
    world.deliver()
    world.change(inserted(*row(2, "a", 1, 0.2)), deleted(*row(2, "a", 1, 0.2)))
    assert world.run("deliver", "lake").code == 0
    assert world.see() == [("shop.events.a.x", ms(1), 1, 0.1)]


def test_a_row_without_time_stops_the_table(world: EventWorld) -> None:
    world.read_all(read(1, "a", "x", None, 0.5))
    assert "a row has no time: column seen is NULL" in world.run("deliver", "lake").json["error"]


NAMED = [
    ('time = "seen"\n', "its key is id, and its time is seen: name its tags in the settings, too"),
    ('time = "value"\ntags = []\n', "its column of time, value, is double"),
    ('time = "when"\ntags = []\n', "it has no column when"),
    ('time = "seen"\ntags = ["nowhere"]\n', "its tag nowhere of the settings is no column"),
    ('time = "seen"\ntags = ["value"]\n', "its tag value is double"),
    ('time = "seen"\ntags = ["seen"]\n', "its tag seen of the settings is its time"),
]


@pytest.mark.parametrize(("named", "why"), NAMED)
def test_columns_that_do_not_do_stop_the_table(tmp_path: Path, named: str, why: str) -> None:
    world = EventWorld(tmp_path, f'[sinks.lake.columns."shop.events"]\n{named}')
    world.read_all(read(*row(1, "a", 1)))
    said = world.run("deliver", "lake")
    assert (said.code, why in said.json["error"]) == (23, True), said


def test_other_tags_stop_a_table_that_has_some(world: EventWorld) -> None:
    world.read_all(read(*row(1, "a", 1)))
    world.deliver()
    text = world.config.read_text(encoding="utf-8")
    world.config.write_text(text.replace('["place", "name"]', '["place"]'), encoding="utf-8")
    world.change(inserted(*row(2, "a", 2)))
    assert "its tags were place, name and are place now" in world.run("deliver", "lake").json["error"]
    world.read_all(read(*row(1, "a", 1)), read(*row(2, "a", 2)))
    assert world.run("deliver", "lake").code == 0
    assert [number for *_, number, _ in world.see()] == [1, 2]


class Events:
    """A made-up table: random changes, and its rows as they are now. No two are one point when a transaction ends; within
    one they may be."""

    def __init__(self, seed: int) -> None:
        self.choice = Random(seed)
        self.rows: dict[int, Values] = {}

    def change(self) -> list[Row]:
        found = [self._change_one() for _ in range(self.choice.randint(1, 5))]
        while len(self.rows) > 1 and self.choice.random() < 0.3:
            found += self._swap()
        return found

    def _free_point(self) -> tuple[str, int]:
        used = {(values[1], values[3]) for values in self.rows.values()}
        free = [(place, s * 70_000) for place in "ab" for s in range(25) if (place, at(s * 70_000)) not in used]
        return self.choice.choice(free)

    def _change_one(self) -> Row:
        number = self.choice.randrange(25)
        before = self.rows.pop(number, None)
        point, value = self._free_point(), self.choice.choice([None, 0.25, self.choice.random()])
        if before is None:
            self.rows[number] = row(number, *point, value)
            return inserted(*self.rows[number])
        if self.choice.random() < 0.3:
            return deleted(*before)
        stays = self.choice.random() < 0.5
        self.rows[number] = (*before[:4], value) if stays else row(number, *point, value)
        return updated(before, self.rows[number])

    def _swap(self) -> list[Row]:
        one, other = self.choice.sample([*self.rows], 2)
        first, second = self.rows[one], self.rows[other]
        self.rows[one], self.rows[other] = (one, *second[1:]), (other, *first[1:])
        return [updated(first, self.rows[one]), updated(second, self.rows[other])]

    def expect(self) -> list[Values]:
        times = {at(s * 70_000): ms(s * 70_000) for s in range(25)}
        return sorted((f"shop.events.{place}.x", times[seen], n, value) for n, place, _, seen, value in self.rows.values())


@pytest.mark.parametrize("seed", range(3))
def test_any_changes_in_any_batches_are_seen_as_the_table(world: EventWorld, seed: int) -> None:
    events = Events(seed)
    world.read_all()
    for _ in range(3):
        for _ in range(12):
            world.change(*events.change())
        done = world.deliver(Request(limits=Limits(rows=events.choice.choice([4, 15, 1000]))))
        assert done.tables["shop.events"].state == "whole", done.stopped
        assert world.run("deliver", "lake").code == 0
        assert world.see() == events.expect()


def test_a_death_at_any_effect_leaves_what_a_calm_run_leaves(tmp_path: Path) -> None:
    def fill(folder: str) -> tuple[EventWorld, Events]:
        world, events = EventWorld(tmp_path / folder), Events(7)
        world.read_all()
        for _ in range(6):
            world.change(*events.change())
        return world, events

    few = Limits(rows=8)
    calm, events = fill("calm")
    effects: list[str] = []
    calm.deliver(Request(limits=few, effect=effects.append))
    assert any("mods2" in one for one in effects)
    assert calm.run("deliver", "lake").code == 0
    assert calm.see() == events.expect()
    for death in range(0, len(effects), 3):
        world, _ = fill(f"dies{death}")
        left = iter(range(death))

        def die(_what: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise Died

        with pytest.raises(Died):
            world.deliver(Request(limits=few, effect=die))
        assert world.run("deliver", "lake").code == 0
        assert world.see() == events.expect(), effects[death]
