"""A `history` sink: every change in Parquet, once, in files whose bytes are the same each time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from tests.crash.explorer import Died
from tests.sink_worlds import LIMITS, ORDERS, SERVER, START, Model, SinkWorld, deleted, inserted, updated
from tidemark.changes.delivery.stream import Options, Stream
from tidemark.changes.delivery.tasks import find_task
from tidemark.changes.sinks.batches import Limits
from tidemark.changes.sinks.deliver import Request, deliver_sink
from tidemark.changes.store.model import ABSENT, BinlogInfo, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.errors import LeaseLostError
from tidemark.ledger.leases import Leases
from tidemark.stores.agent import durable

SMALL = Limits(rows=40)


@pytest.fixture
def world(tmp_path: Path) -> SinkWorld:
    return SinkWorld(tmp_path, "history")


def list_changes(world: SinkWorld) -> list[tuple[int, int]]:
    """(transaction, row) of every change in the files."""
    found = []
    for path in sorted(world.target.rglob("*.parquet")):
        table = pq.read_table(path)
        found += list(zip(table["seq"].to_pylist(), table["i"].to_pylist(), strict=True))
    return sorted(found)


def fill(world: SinkWorld, transactions: int, seed: int = 1) -> list[tuple[int, int]]:
    """Append random changes; (transaction, row) of each."""
    model, begin = Model(seed), world.count
    made = [model.change() for _ in range(transactions)]
    world.append(*made)
    return [(begin + number, row) for number, rows in enumerate(made, 1) for row in range(len(rows))]


def test_a_change_has_its_place_its_time_and_both_images(world: SinkWorld) -> None:
    world.append([inserted(1, "ä", "1.50")], [updated((1, "ä", "1.50"), (2, None, "1.50"))], [deleted(2, None, "1.50")])
    said = world.run("deliver", "lake")
    assert said.code == 0, said
    assert said.json["state"] == "delivered"
    assert (said.json["rows"], said.json["point"]) == (3, "seq:4")
    [path] = world.target.rglob("*.parquet")
    assert path.relative_to(world.target) == Path("shop.orders/lake-000000000001-000000000003.parquet")
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    assert [(row["seq"], row["i"], row["op"]) for row in rows] == [(1, 0, "I"), (2, 0, "U"), (3, 0, "D")]
    assert rows[1]["before"] == {"id": 1, "name": "ä", "paid": "1.50"}
    assert rows[1]["after"] == {"id": 2, "name": None, "paid": "1.50"}
    assert (rows[0]["before"], rows[2]["after"]) == (None, None)
    assert rows[1]["gtid"] == "11111111-2222-3333-4444-555555555555:2"
    assert rows[1]["ts"].isoformat() == "2026-09-21T14:13:22+00:00"
    assert world.run("deliver", "lake").json["state"] == "nothing new"


def test_columns_that_an_image_lacks_are_named(world: SinkWorld) -> None:
    world.append(Rows.of(ORDERS, [updated((1, ABSENT, ABSENT), (ABSENT, "b", ABSENT))]))
    world.deliver()
    [path] = world.target.rglob("*.parquet")
    [row] = pq.read_table(path).to_pylist()
    assert (row["before_absent"], row["after_absent"]) == (["name", "paid"], ["id", "paid"])


def test_a_death_at_any_effect_leaves_what_a_calm_run_leaves(tmp_path: Path) -> None:
    calm = SinkWorld(tmp_path / "calm", "history")
    few = Limits(rows=10)
    expected = fill(calm, 12)
    effects: list[str] = []
    calm.deliver(Request(limits=few, effect=effects.append))
    assert len(calm.files()) > 2
    assert list_changes(calm) == expected
    for number in range(1, len(effects) + 1):
        world = SinkWorld(tmp_path / str(number), "history")
        fill(world, 12)
        left = number

        def die(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died(name)

        with pytest.raises(Died):
            world.deliver(Request(limits=few, effect=die))
        world.deliver(Request(limits=few))
        assert world.files() == calm.files(), effects[number - 1]
        shutil.rmtree(world.folder)


def test_a_run_that_slept_past_its_lease_removes_no_file_of_who_rewound_the_sink_meanwhile(world: SinkWorld) -> None:
    expected = [change for number in range(6) for change in fill(world, 1, seed=number)]
    slept = False

    def sleep(name: str) -> None:
        nonlocal slept
        if slept or not name.startswith("after"):
            return
        slept = True
        with world.app().ledger.write() as connection:  # as who gets an expired lease
            connection.execute(sa.text("UPDATE lease SET fence = fence + 1, holder = '' WHERE name = 'sink:lake'"))
        assert world.run("rewind", "lake", "--to", "earliest", "--yes").code == 0
        world.deliver()

    with pytest.raises(LeaseLostError):
        world.deliver(Request(limits=Limits(rows=2), effect=sleep))
    assert slept and list_changes(world) == expected


def test_what_a_killed_run_left_under_a_temporary_name_goes_with_the_next_one(world: SinkWorld) -> None:
    expected = fill(world, 3)
    folder = world.target / "shop.orders"
    names = ("lake-000000000001-000000000003.parquet.0a1b2c3d.tmp", "other-000000000001-000000000003.parquet.0a1b2c3d.tmp")
    folder.mkdir(parents=True)
    left, others = folder / names[0], [folder / names[1], folder / "lake-mine.tmp"]
    for place in (left, *others):
        place.write_bytes(b"PAR1")
    world.deliver()
    assert not left.exists()
    assert all(place.exists() for place in others), "not of this sink"
    assert list_changes(world) == expected


def test_a_planned_batch_keeps_its_end_when_the_store_grows(world: SinkWorld) -> None:
    expected = fill(world, 10)

    def die(name: str) -> None:
        raise Died(name)

    with pytest.raises(Died):
        world.deliver(Request(effect=die))
    expected += fill(world, 10, seed=2)
    world.deliver()
    assert [name.rpartition("/")[2] for name in world.files()] == [
        "lake-000000000001-000000000010.parquet",
        "lake-000000000011-000000000020.parquet",
    ]
    assert list_changes(world) == expected


@pytest.mark.full_after(2)
@pytest.mark.parametrize("seq", [23, 1, 7, 60])
def test_a_rewind_writes_again_and_nothing_stands_twice(world: SinkWorld, seq: int) -> None:
    expected = fill(world, 60)
    world.deliver(Request(limits=SMALL))
    said = world.run("rewind", "lake", "--to", f"seq:{seq}", "--yes")
    assert said.code == 0, said
    done = world.deliver(Request(limits=Limits(rows=70)))
    assert done.batches
    assert done.end == 61
    assert list_changes(world) == expected


def test_another_process_writes_it(world: SinkWorld) -> None:
    fill(world, 10)
    app = world.app()
    with Leases(app.ledger, app.identity).hold_lease("sink:lake", "another"):
        world.run("deliver", "lake").refused(5, "sink:lake is held by another")
    assert world.run("deliver", "lake").code == 0


def test_up_to_a_point(world: SinkWorld) -> None:
    expected = fill(world, 30)
    said = world.run("deliver", "lake", "--to", "seq:11")
    assert said.json["point"] == "seq:11"
    assert list_changes(world) == [one for one in expected if one[0] < 11]
    assert deliver_sink(world.sink(), Request(end=21)).end == 21
    assert list_changes(world) == [one for one in expected if one[0] < 21]


def test_a_sink_takes_its_tables_alone_and_is_no_task_of_consumers(tmp_path: Path) -> None:
    world = SinkWorld(tmp_path, "history", 'tables = ["other.*"]\n')
    fill(world, 5)
    assert world.run("deliver", "lake").json["point"] == "seq:6"
    assert world.files() == {}
    said = world.run("consume", "lake", "--source", "orders", "--out", str(tmp_path / "out"))
    said.refused(2, "lake is a sink")
    [task] = world.run("show", "orders").json["tasks"]
    assert (task["name"], task["shards"], task["points"][1]["point"]) == ("lake", 2, "seq:6")


def test_points_that_a_member_of_its_task_moved_have_no_rows_left_out(world: SinkWorld) -> None:
    expected = fill(world, 10)
    world.deliver()
    expected += fill(world, 10, seed=2)
    app = world.app()
    leases, options = Leases(app.ledger, app.identity), Options(follow=False)
    with Stream(leases, world.disk, find_task(app.ledger, "lake"), lambda _d, _t: True, options) as stream:
        assert [batch.done() for batch in stream]
    assert world.run("show", "orders").json["tasks"][0]["points"][0]["point"] == "seq:21"
    assert world.deliver().batches == 1
    assert list_changes(world) == expected


def test_a_name_that_is_no_sink(world: SinkWorld) -> None:
    world.run("deliver", "lak").refused(3, "the settings have: lake")


def test_a_store_that_begins_behind_purged_logs_is_the_same_one_once_its_first_block_is_closed(world: SinkWorld) -> None:
    def fill(first: int, last: int) -> None:
        for number in range(first, last + 1):
            info = BinlogInfo(1, 7, 1, 1000 * number, SERVER.bytes, 500 + number, 0, START + number)
            one = Transaction(
                info, f"{SERVER}:{500 + number}", 500 + number, (Rows.of(ORDERS, [inserted(number, "a", "1.00")]),)
            )
            writer.append(one, f"{SERVER}:1-{500 + number}")
        writer.sync()

    with Writer(world.disk, 1, replace(LIMITS, group_seconds=0)) as writer:
        fill(1, 3)
        assert world.deliver().end == 4
        fill(4, 5)
    assert world.deliver().end == 6


def test_files_that_go_are_gone_for_good_before_a_point_says_so(world: SinkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the folder's own sync they come back where the power fails, and their changes are there twice."""
    fill(world, 30)
    world.deliver(Request(limits=SMALL))
    world.run("rewind", "lake", "--to", "seq:1", "--yes")
    done: list[tuple[str, str]] = []
    remove, sync = durable.remove_quietly, durable.sync_folder
    monkeypatch.setattr(durable, "remove_quietly", lambda place: (done.append(("gone", place.decode())), remove(place)))
    monkeypatch.setattr(durable, "sync_folder", lambda place: (done.append(("synced", place.decode())), sync(place)))
    world.deliver()
    last = max(number for number, (what, _) in enumerate(done) if what == "gone")
    assert ("synced", str(world.target / "shop.orders")) in done[last:]


def test_rows_that_one_arrow_array_would_not_hold_are_in_several_files(world: SinkWorld) -> None:
    """Arrow arrays of text end at 2 GiB. The limit is lower here."""
    made = fill(world, 60)
    world.deliver(Request(limits=Limits(run=2000)))
    names = [path.name for path in world.target.rglob("*.parquet")]
    assert "lake-000000000001-000000000060-1.parquet" in names
    assert list_changes(world) == sorted(made)
