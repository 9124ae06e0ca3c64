"""IoTDB moves a sealed file, under its name, to another data folder: from a tier of disks that is full to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import deletion, sealed
from tidemark.app import open_app
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.settings.load import load_settings

D = "root.sg.d"
NAME = "sequence/root.sg/0/0/1600000000001-1-0-0.tsfile"
HOT, COLD = f"hot/{NAME}", f"cold/{NAME}"


def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: str = "keep") -> Commanded:
    """A site of two tiers. A file of the first one is in the catalog."""
    link_keys = {"deletes": deletes, "delete_limit_files": 0}
    world = Commanded(tmp_path, monkeypatch, site_keys={"data": ["hot/sequence", "cold/sequence"]}, link_keys=link_keys)
    (world.site / "cold" / "sequence").mkdir(parents=True)
    world.put(HOT, sealed({D: {"s": [(t, t) for t in (1, 2, 3)]}}))
    world.put(HOT.replace("-1-0-0", "-2-0-0"), sealed({"root.sg.other": {"s": [(1, 1)]}}))
    assert world.sync().code == 0
    return world


def copy(world: Commanded, path: str, to: str) -> None:
    world.put(to, world.sealed[path])


def drop(world: Commanded, path: str) -> None:
    for end in world.sealed.pop(path):
        (world.site / (path + end)).unlink()


def delete(world: Commanded, path: str, start: int, end: int) -> None:
    world.put(path, {**world.sealed[path], ".mods": deletion(f"{D}.s", start, end).encode()})


def times(world: Commanded) -> list[int]:
    return [int(time) for device, _, time, _, _ in world.rows() if device == D]


def housekeep_after(world: Commanded, *days: int) -> None:
    app = open_app(load_settings(world.folder / "tidemark.toml", {}))
    clock = app.clock
    for later in days:
        app.clock = lambda later=later: clock() + later * DAY  # type: ignore[misc]
        housekeep(app, app.receiver_settings())
    app.ledger.close()


def assert_nothing_kept(world: Commanded) -> None:
    assert world.run("status").json["links"][0]["kept_files"] == 0
    assert world.run("verify", "--deep").code == 0
    assert world.sync().json["state"] == "nothing"


@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_a_moved_file_is_no_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: str) -> None:
    world = start(tmp_path, monkeypatch, deletes)
    copy(world, HOT, COLD)
    drop(world, HOT)
    assert world.run("plan", "plant1").json["superseded"] == [{"path": HOT, "by": [COLD]}]
    assert world.sync().code == 0
    housekeep_after(world, 3)  # what left gives up its bytes: they are those of the moved file, too
    assert times(world) == [1, 2, 3]
    assert_nothing_kept(world)


def test_what_is_deleted_after_the_move_is_gone_in_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = start(tmp_path, monkeypatch)
    copy(world, HOT, COLD)
    drop(world, HOT)
    assert world.sync().code == 0
    delete(world, COLD, 2, 3)
    assert world.sync().code == 0
    assert times(world) == [1]
    assert_nothing_kept(world)


@pytest.mark.parametrize("deletes", ["keep", "apply"])
@pytest.mark.parametrize(("first", "last"), [(HOT, COLD), (COLD, HOT)], ids=["moved", "given up"])
def test_a_run_that_meets_both_counts_the_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, last: str, deletes: str
) -> None:
    """The server copies a file before it removes the first one, and removes a copy that it could not end."""
    world = start(tmp_path, monkeypatch, deletes)
    copy(world, HOT, COLD)
    assert world.sync().code == 0
    assert times(world) == [1, 2, 3]
    drop(world, first)
    delete(world, last, 1, 1)
    assert world.sync().code == 0
    assert times(world) == [2, 3]
    assert_nothing_kept(world)


@pytest.mark.parametrize("known", [False, True], ids=["not sent yet", "sent already"])
@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_a_data_folder_moves_and_the_settings_name_the_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: str, known: bool
) -> None:
    world = start(tmp_path, monkeypatch, deletes)
    before = sorted(world.sealed)
    for path in before:
        copy(world, path, path.replace("hot/", "cold/"))
    if known:
        assert world.sync().code == 0
    for path in before:
        drop(world, path)
    world.site_keys = {"data": ["cold/sequence"]}
    world.write_settings()
    plan = world.run("plan", "plant1").json
    assert plan["superseded"] == [{"path": path, "by": [path.replace("hot/", "cold/")]} for path in before]
    assert (plan["drop"], plan["skipped"]) == ([], [])
    assert world.sync().json["notes"] == []
    delete(world, COLD, 2, 3)
    assert world.sync().code == 0
    assert times(world) == [1]
    assert_nothing_kept(world)


def test_a_file_moves_after_its_points_have_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = start(tmp_path, monkeypatch)
    late = HOT.replace("-1-0-0", "-3-0-0")
    world.put(late, sealed({D: {"s": [(3, 33), (4, 44)]}}))
    assert world.sync().code == 0
    assert world.run("merge").code == 0
    housekeep_after(world, 15, 17)
    copy(world, HOT, COLD)
    drop(world, HOT)
    assert world.sync().code == 0
    delete(world, COLD, 1, 1)
    assert world.sync().code == 0
    assert times(world) == [2, 3, 4]
    assert_nothing_kept(world)


@pytest.mark.parametrize(
    "place", [COLD, f"cold/snapshot/root.sg-0/1_1/{NAME}"], ids=["still copied", "a link of a snapshot"]
)
def test_what_only_looks_like_the_moved_file_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = start(tmp_path, monkeypatch, "apply")
    copy(world, HOT, place)
    if place == COLD:
        (world.site / f"{place}.resource").unlink()
    world.site_keys = {"data": ["cold"]}
    world.write_settings()
    assert world.sync().code == 0
    assert times(world) == [1, 2, 3]
    assert world.run("status").json["links"][0]["kept_files"] == 0


@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_a_file_is_moved_and_all_its_points_are_deleted_before_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: str
) -> None:
    world = start(tmp_path, monkeypatch, deletes)
    copy(world, HOT, COLD)
    drop(world, HOT)
    delete(world, COLD, 1, 3)
    assert world.sync().code == 0
    assert times(world) == []
    assert_nothing_kept(world)
