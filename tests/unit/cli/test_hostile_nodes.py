"""What lies in a data node's folder costs that node alone: nothing hangs, the others are looked at, a way out is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster_world import Asked, ClusterWorld
from tidemark.ledger.receiver.catalog import CatalogFile

pytestmark = pytest.mark.timeout(60)  # a terabyte takes an hour

Harm = Callable[[Path], None]


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def garbage(place: Path) -> None:
    place.write_bytes(b"\xff\x00" * 100)


def folder(place: Path) -> None:
    (place / "more").mkdir(parents=True)


@pytest.mark.parametrize("place", ["table/1", "table/2", "schema/root.sg.schema"])
def test_a_paper_of_a_terabyte_is_written_again(
    world: ClusterWorld, files: list[CatalogFile], ask: Asked, place: str
) -> None:
    for name in world.names if place.startswith("table") else world.table.route_schema("root.sg").members:
        sparse(world.folder / name / ".tidemark" / place)
    code, answer = ask("cluster", "check")
    assert code == 20 and answer["hint"] == "./tidemark cluster check --repair", answer
    assert ask("cluster", "check", "--repair")[1]["problems"] == []


HARMS = {"a pipe": os.mkfifo, "a folder": folder, "garbage": garbage, "a link": lambda place: place.symlink_to("/dev/zero")}
each_harm = pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())


@pytest.fixture
def files(world: ClusterWorld) -> list[CatalogFile]:
    return [world.put("root.sg", partition, b"points %d" % partition) for partition in range(4)]


def test_a_copy_of_a_terabyte_is_told_by_its_length_and_made_again(
    world: ClusterWorld, files: list[CatalogFile], ask: Asked
) -> None:
    node = world.members(files[0])[0]
    sparse(world.folder / node / files[0].location)
    code, answer = ask("cluster", "check")
    assert code == 20 and f"{1 << 40} bytes" in answer["error"] and files[0].location in answer["error"]
    code, answer = ask("verify")
    assert code == 20 and [one["where"] for one in answer["differences"]] == [f"node {node}"]
    assert ask("cluster", "check", "--repair")[0] == 0


@each_harm
def test_what_stands_in_a_newer_tables_place_is_taken_away(world: ClusterWorld, ask: Asked, harm: Harm) -> None:
    place = world.folder / "n1/.tidemark/table/999"
    harm(place)
    code, answer = ask("cluster", "check")
    assert code == 20 and answer["hint"] == "./tidemark cluster check --repair"
    assert "n1" in answer["error"] and "999" in answer["error"]
    assert ask("cluster", "check", "--repair")[0] == 0
    assert not place.exists() and world.node("n1").read_table() == world.node("n2").read_table()


@pytest.mark.parametrize("name", ["\u0663", "007", "9" * 200])
def test_a_name_that_is_no_epoch_is_no_table(world: ClusterWorld, ask: Asked, name: str) -> None:
    garbage(world.folder / "n1/.tidemark/table" / name)
    assert ask("cluster", "check")[0] == 0
    (world.folder / "n4").mkdir()
    assert ask("cluster", "add", f"n4=file://{world.folder / 'n4'}", "--yes")[1]["state"] == "done"


def test_a_claim_that_is_damaged_costs_its_node_alone(world: ClusterWorld, files: list[CatalogFile], ask: Asked) -> None:
    garbage(world.folder / "n1/.tidemark/node.json")
    other = next(f for f in files if set(world.members(f)) - {"n1"})
    node = next(name for name in world.members(other) if name != "n1")
    (world.folder / node / other.location).unlink()
    code, answer = ask("verify")
    assert code == 20 and [one["where"] for one in answer["differences"]] == [f"node {node}"]
    assert "node n1" in [one["site"] for one in answer["unreachable"]]
    assert ask("cluster", "check", "--repair")[0] == 20
    code, answer = ask("verify")
    assert code == 6 and "node n1" in answer["error"] and "--lost" in answer["hint"], "it does not pass by itself"
    shutil.rmtree(world.folder / "n1")  # as the hint says
    code, answer = ask("cluster", "check", "--repair", "--lost", "n1", "--yes")
    assert code == 0, answer


@pytest.mark.parametrize("where", ["data", ".tidemark/schema", ".tidemark/table"])
def test_a_repair_says_what_stands_in_its_way(world: ClusterWorld, files: list[CatalogFile], ask: Asked, where: str) -> None:
    for name in world.names:
        place = world.folder / name / where
        if place.is_dir():
            shutil.rmtree(place)
            garbage(place)
    code, answer = ask("cluster", "check", "--repair")
    assert code == 20 and answer["problems"]
    for one in answer["problems"]:
        assert "cannot be made again" in one["problem"] and where in one["problem"], one
        assert one["next"] != "./tidemark cluster check --repair", "that was just done"


def test_a_node_that_cannot_take_the_table_can_leave(world: ClusterWorld, files: list[CatalogFile], ask: Asked) -> None:
    shutil.rmtree(world.folder / "n1/.tidemark/table")
    garbage(world.folder / "n1/.tidemark/table")
    code, answer = ask("cluster", "remove", "n1", "--yes")
    assert code == 0, answer
    assert answer["state"] == "done"
    assert ask("cluster", "check")[1]["problems"] == []


@pytest.mark.full_after(1)
@pytest.mark.parametrize("change", ["add n4", "remove n1", "remove n2"])
def test_a_damaged_claim_stands_in_no_other_nodes_way(
    world: ClusterWorld, files: list[CatalogFile], ask: Asked, change: str
) -> None:
    garbage(world.folder / "n1/.tidemark/node.json")
    kind, name = change.split()
    (world.folder / "n4").mkdir()
    request = f"n4=file://{world.folder / 'n4'}" if kind == "add" else name
    code, answer = ask("cluster", kind, request, "--yes")
    if change == "remove n2":  # two would stay, one of them cannot take anything
        assert code in (5, 7) and "n1" in answer["error"] and answer["hint"], answer
        return
    assert code == 0, answer
    assert answer["state"] == "done"
    assert {one["node"] for one in ask("cluster", "check")[1]["problems"]} <= {"n1"}
