"""The work of a sink's batches as tasks: the same bytes and the same tables as in one process, whoever began and whatever
dies."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.explorer import Died
from tests.sink_worlds import ORDERS, InlineEngine, Model, SinkWorld, deleted, inserted, read, updated
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.capture.run import GAP
from tidemark.changes.capture.transactions import UNPROVED
from tidemark.changes.sinks.batches import Limits, read_content
from tidemark.changes.sinks.deliver import DELTA, HISTORY, Delivered, Request, read_sink_table
from tidemark.changes.sinks.engine import STAGING, HereEngine, divide_batch, open_engine
from tidemark.changes.store.model import Column, Ddl, Kind, Mark, Record, Row, Rows, Shape
from tidemark.changes.store.read import open_whole
from tidemark.engines.choose import PoolEngine
from tidemark.engines.task import Outcome
from tidemark.errors import PermanentError, RetryableError, UsageError
from tidemark.ledger.delivery import SinkBatch

ID, NAME, PAID = ORDERS.columns
WIDE = Shape("shop", "orders", (ID, NAME, Column("paid", Kind.TEXT, "decimal(14,4)"), Column("note", Kind.TEXT, "text")))
ODD = Shape("shop", "orders", (Column("id", Kind.TEXT, "varchar(9)", key=True), NAME, PAID))
BARE = Shape("shop", "bare", (NAME,))
AT = Column("at", Kind.TEXT, "datetime(3) not null", key=True)
TICKS = Shape("plant", "ticks", (AT, Column("n", Kind.INT64, "int"), Column("raw", Kind.BYTES, "blob")))
SMALL = Limits(rows=120, blocks=9)
SITE = '[sites.plant]\nid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"\nstore = "lake"\n'


def rows_of(table: str, rows: Sequence[Row], shape: Shape = ORDERS) -> Rows:
    return Rows.of(replace(shape, table=table), rows)


def list_transactions(seed: int) -> list[Sequence[Record] | Record]:
    """Of all kinds: several tables and shapes, statements of every effect, readings, what is lost, rows that do not fit."""
    model, other = Model(seed), Model(seed + 100)

    def change(count: int) -> Iterator[Sequence[Record]]:
        for number in range(count):
            both = [rows_of("orders", model.change()), rows_of("other", other.change())]
            yield both if number % 3 else both[:1]

    return [
        *change(20),
        [Mark(BEGIN, "shop.orders"), rows_of("orders", [read(500, "r", "1.00")]), Mark(END, "shop.orders")],
        *change(20),
        Ddl("shop", "RENAME TABLE other TO late, orders TO other"),
        rows_of("other", [inserted(900, "x", "2.00")]),
        Ddl("shop", "TRUNCATE TABLE late"),
        Ddl("shop", "RENAME TABLE other TO orders"),
        [rows_of("late", [inserted(1, "l", "1.00")]), rows_of("orders", [deleted(900, "x", "2.00")])],
        Rows.of(WIDE, [inserted(901, "wide", "1.2500", "n")]),
        Mark(GAP, "1"),
        Rows.of(BARE, [inserted("no key")]),
        Ddl("shop", "ALTER TABLE late ADD COLUMN n INT"),
        Mark(UNPROVED, "shop.late"),
        [Rows.of(TICKS, [inserted(f"2026-09-0{n} 10:00:00.250", n, None if n % 2 else b"\0") for n in range(1, 9)])],
        [Rows.of(TICKS, [updated(("2026-09-02 10:00:00.250", 2, b"\0"), ("2026-09-20 10:00:00.250", 2, None))])],
        [Mark(BEGIN, "plant.ticks"), Rows.of(TICKS, [read("2026-09-03 10:00:00.250", 7, b"z")]), Mark(END, "plant.ticks")],
        rows_of("late", [updated((1, "l", "1.00"), (2, "m", "1.50"))]),
        Rows.of(ODD, [inserted("no int", "n", "1.00")]),
        Ddl("shop", "DROP TABLE late"),
        Rows.of(replace(ODD, table="late"), [inserted("anew", "n", "1.00")]),
    ]


def make_world(folder: Path, kind: str, seed: int = 1) -> SinkWorld:
    world = SinkWorld(folder, kind, SITE if kind == "catalog" else "")
    world.append(*list_transactions(seed))
    world.append_large(*(rows_of("orders", [inserted(n, "large " * 9, "1.00")]) for n in range(2000, 2120)))
    return world


def digest(world: SinkWorld) -> dict[str, str]:
    """The files of a target by their path, and what they hold."""
    paths = [path for path in sorted(world.target.rglob("*")) if path.is_file()]
    return {str(path.relative_to(world.target)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def look(world: SinkWorld, done: Delivered) -> dict[str, Any]:
    """What a sink has: of `delta` the rows, else the bytes of all files. And how its tables are."""
    found: dict[str, Any] = {"states": done.tables, "end": done.end}
    if world.sink().settings.kind != DELTA:
        return found | digest(world)
    for name in done.tables:
        found[name] = [row for batch in read_sink_table(world.sink(), name) for row in batch.to_pylist()]
    return found


@pytest.mark.full_after(4)
@pytest.mark.parametrize("kind", ["history", "delta", "catalog"])
@pytest.mark.parametrize("limits", [SMALL, Limits(), Limits(run=3000)], ids=["small", "one", "runs"])
def test_tasks_give_what_one_process_gives(tmp_path: Path, kind: str, limits: Limits) -> None:
    here, there, engine = make_world(tmp_path / "here", kind), make_world(tmp_path / "there", kind), InlineEngine()
    expected = look(here, here.deliver(Request(limits=limits)))
    assert look(there, there.deliver(Request(limits=limits, engine=engine))) == expected
    assert engine.tasks["ReadTask"] > 4
    assert engine.tasks["EncodeTask" if kind == HISTORY else "FoldTask"] > 1
    assert expected["end"] == there.count + 1
    assert not (there.target / STAGING).exists()


def test_tasks_in_child_processes(tmp_path: Path) -> None:
    model, worlds = Model(1), [SinkWorld(tmp_path / name, HISTORY) for name in ("here", "there")]
    changes = [model.change() for _ in range(40)]
    for world in worlds:
        world.append(*changes)
    expected = look(worlds[0], worlds[0].deliver())
    assert look(worlds[1], worlds[1].deliver(Request(engine=PoolEngine(1)))) == expected
    assert len(worlds[1].files()) == 1


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", ["history", "delta", "catalog"])
def test_a_death_at_any_effect_and_another_engine_goes_on(tmp_path: Path, kind: str) -> None:
    calm, effects = make_world(tmp_path / "calm", kind), []
    expected = look(calm, calm.deliver(Request(limits=SMALL, effect=effects.append)))
    step = max(1, len(effects) // 12)
    for number in range(1, len(effects) + 1, step):
        world, left = make_world(tmp_path / str(number), kind), number

        def die(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died(name)

        first, second = (InlineEngine(), None) if number // step % 2 else (None, InlineEngine())
        with pytest.raises(Died):
            world.deliver(Request(limits=SMALL, engine=first, effect=die))
        done = world.deliver(Request(limits=SMALL, engine=second))
        assert look(world, done) == expected, effects[number - 1]
        shutil.rmtree(world.folder)


def test_what_a_dead_run_staged_goes_with_the_next_one(tmp_path: Path) -> None:
    world = make_world(tmp_path, HISTORY)
    left = world.target / STAGING / "dead" / "1"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"rows")
    world.deliver()
    assert not (world.target / STAGING).exists()
    assert len(world.files()) > 4


class FailingEngine(InlineEngine):
    """Its first answer to a class of tasks is an error: an executor died."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        for outcome in super().run(kind, tasks):
            fails = outcome.index == 0 and type(tasks[0]).__name__ == self.of
            yield Outcome(0, error=RetryableError("its process was killed by SIGKILL")) if fails else outcome


@pytest.mark.parametrize("of", ["ReadTask", "EncodeTask"])
def test_a_task_that_dies_ends_the_run_and_the_next_one_goes_on(tmp_path: Path, of: str) -> None:
    calm, world = make_world(tmp_path / "calm", HISTORY), make_world(tmp_path / "world", HISTORY)
    expected = look(calm, calm.deliver())
    with pytest.raises(RetryableError, match="killed by SIGKILL"):
        world.deliver(Request(engine=FailingEngine(of)))
    assert world.run("show", "orders").json["tasks"][0]["points"][0]["point"] == "seq:1"
    assert look(world, world.deliver(Request(engine=InlineEngine()))) == expected


class ElsewhereEngine(InlineEngine):
    """Its executors have other folders at the paths of these: `store`, and then `staging`."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        if self.what == "store":
            tasks = [replace(task, store=f"{task.store}-elsewhere") for task in tasks]
        yield from super().run(kind, tasks)
        if self.what == "staging":
            for task in tasks:
                Path(task.place).unlink(missing_ok=True)


@pytest.mark.parametrize(("what", "told"), [("store", "shows no seq:1 here"), ("staging", "a task wrote it elsewhere")])
def test_executors_that_see_other_folders_are_named_and_nothing_is_left_out(tmp_path: Path, what: str, told: str) -> None:
    world = make_world(tmp_path, DELTA)
    with pytest.raises((PermanentError, RetryableError), match=told) as caught:
        world.deliver(Request(engine=ElsewhereEngine(what)))
    assert 'engine = "pool"' in caught.value.hint
    assert world.run("show", "orders").json["tasks"][0]["points"][0]["point"] == "seq:1"


def test_a_store_that_shows_less_than_a_batch_has_leaves_no_row_out(tmp_path: Path) -> None:
    """As where a capture takes it over, or an older copy is there: the batch is as it was recorded, or it is not written."""
    world = SinkWorld(tmp_path, HISTORY)
    world.append([inserted(1, "a", "1.00")], [inserted(2, "b", "1.00")])
    with pytest.raises(RetryableError, match=r"shows no seq:3 here"):
        read_content(world.disk, lambda _database, _table: True, SinkBatch(1, 1, 4, 0))


def test_where_a_statement_ends_a_batch_one_task_is_done_again(tmp_path: Path) -> None:
    """The task that read rows behind it; it gives the rows that one process has."""
    world, tasks = make_world(tmp_path, HISTORY), InlineEngine()
    batch = SinkBatch(1, 1, world.count + 1, 0)
    spans = divide_batch(open_whole(world.disk).read_headers(1, batch.end), batch)
    sink = world.sink()
    with open_engine(sink.settings, sink.app.settings.spark, world.disk, tasks) as engine:
        found = engine.read(batch, (), 1 << 30)
        here = HereEngine(world.disk, sink.settings.tables).read(batch, (), 1 << 30)
        assert 1 < found.end == here.end < spans[-1][0]
        assert any(first < found.end < end for first, end in spans)
        assert tasks.tasks["ReadTask"] == len(spans) + 1 > 3
        rows = [
            [(name, run.load().join().to_pylist()) for name, table in content.tables.items() for run in table.runs]
            for content in (found, here)
        ]
        assert rows[0] == rows[1] != []


def test_a_batch_is_cut_where_transactions_begin(tmp_path: Path) -> None:
    world = make_world(tmp_path, HISTORY)
    reader, end = open_whole(world.disk), world.count + 1
    for first, blocks in ((1, 1), (1, 3), (7, 2), (world.count, 1)):
        spans = divide_batch(reader.read_headers(first, end), SinkBatch(1, first, end, 0), blocks)
        assert [span[0] for span in spans[1:]] == [span[1] for span in spans[:-1]]
        assert (spans[0][0], spans[-1][1]) == (first, end)
        assert len(spans) > 3 or first == world.count
    assert divide_batch([], SinkBatch(1, 3, 3, 0)) == []


def test_the_settings_choose(tmp_path: Path) -> None:
    world = make_world(tmp_path, HISTORY)
    begun = world.config.read_text(encoding="utf-8")

    def choose(of_sink: str, of_spark: str) -> bool:
        """Whether it is done in this process."""
        world.config.write_text(f"{begun}{of_sink}\n[spark]\n{of_spark}\n", encoding="utf-8")
        sink = world.sink()
        with open_engine(sink.settings, sink.app.settings.spark, world.disk) as engine:
            return isinstance(engine, HereEngine)

    assert choose("", "")
    assert choose("", 'engine = "spark"')
    assert not choose('engine = "spark"', "")
    assert choose('engine = "spark"', 'engine = "pool"')
    world.config.write_text(f'{begun}engine = "flink"\n', encoding="utf-8")
    world.run("deliver", "lake").refused(2, "sinks.lake.engine", 'must be one of "pool", "spark"')
    with pytest.raises(UsageError, match="executors have to see its folder") as caught:
        choose('engine = "spark"', 'files = "sftp://user@host:22/"')
    assert caught.value.hint == 'set engine = "pool" for the sink'
