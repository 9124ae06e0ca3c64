"""A whole cluster by the command alone, nodes in local folders: begin, add, remove, even out; readers see the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cluster_world import ClusterWorld, last_json
from tidemark.cluster.migration.migrate import migrate_slots, open_batches

REAL = Path(__file__).resolve().parents[1] / "data" / "iotdb" / "2.0.1-beta" / "data" / "datanode" / "data"
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    """A receiver with three nodes in the settings, and a site with files of a real server."""
    made = ClusterWorld(tmp_path, slots=60)
    for kind in ("sequence", "unsequence"):
        (tmp_path / "site" / "data" / kind).mkdir(parents=True)
    for database in ("root.plant1", "root.plant2"):
        shutil.copytree(REAL / "sequence" / database, tmp_path / "site" / "data" / "sequence" / database)
    return made


@pytest.fixture
def ask(world: ClusterWorld, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str, code: int = 0) -> tuple[int, dict[str, Any]]:
        found = world.run(*words, "--json", "--quiet", "--yes")
        said = capsys.readouterr()
        assert found == code, f"{words}: {said.out}{said.err}"
        return found, last_json(said.out)

    return run


def rows(world: ClusterWorld, ask: Ask) -> list[dict[str, Any]]:
    out = world.folder / "tall.parquet"
    ask("read", "--tall", "--out", str(out))
    found: list[dict[str, Any]] = pq.read_table(out).to_pylist()
    return found


def names(answer: dict[str, Any]) -> list[str]:
    return [node["name"] for node in answer["nodes"]]


@pytest.mark.full
def test_a_cluster_grows_and_shrinks_and_readers_see_the_same(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    seen = rows(world, ask)
    assert seen
    began = ask("cluster", "init")[1]
    assert (began["epoch"], began["state"]) == (1, "done") and began["moved_bytes"] > 0
    assert ask("cluster", "check")[1]["copies"] > 0 and rows(world, ask) == seen

    (world.folder / "n4").mkdir()
    url = f"n4=file://{world.folder / 'n4'}"
    plan = ask("cluster", "plan", "add", url)[1]
    assert {"epoch", "moves", "slots", "bytes", "seconds"} <= set(plan) and plan["epoch"] == 2
    assert sum(move["slots"] for move in plan["moves"]) == plan["slots"] > 0
    assert all({"slots", "from", "to", "bytes"} <= set(move) for move in plan["moves"])
    assert ask("cluster", "show")[1]["epoch"] == 1, "a plan changes nothing"

    added = ask("cluster", "add", url)[1]
    assert (added["epoch"], added["state"], added["moved_slots"]) == (2, "done", plan["slots"])
    shown = ask("cluster", "show")[1]
    counts = [node["slots"] for node in shown["nodes"]]
    assert sum(counts) == 60 and max(counts) - min(counts) <= 1 and shown["moving"] == []
    assert {node["state"] for node in shown["nodes"]} == {"serving"} and names(shown) == ["n1", "n2", "n3", "n4"]
    assert ask("cluster", "check")[1]["problems"] == [] and rows(world, ask) == seen

    removed = ask("cluster", "remove", "n1")[1]
    assert (removed["epoch"], removed["state"]) == (3, "done")
    assert [name for name in names(ask("cluster", "show")[1]) if name != "n1"] == ["n2", "n3", "n4"]
    assert ask("why", "node:n1")[1]["state"] == "left"
    assert ask("cluster", "check")[1]["problems"] == [] and rows(world, ask) == seen
    assert ask("verify", "--deep")[1]["differences"] == []

    ask("cluster", "rebalance")
    assert ask("cluster", "check")[1]["problems"] == [] and rows(world, ask) == seen


@pytest.mark.full
def test_without_waiting_it_moves_when_the_same_command_comes_again(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    ask("cluster", "init")
    (world.folder / "n4").mkdir()
    url = f"n4=file://{world.folder / 'n4'}"
    begun = ask("cluster", "add", url, "--no-wait")[1]
    assert begun["epoch"] == 2 and begun["state"] in ("swapped", "migrating")
    moving = ask("cluster", "show")[1]
    assert moving["moving"] and moving["change"]["node"] == "n4"
    assert ask("cluster", "check")[1]["moving"] > 0
    assert ask("status")[1]["cluster"]["state"] == "moving"
    assert ask("cluster", "remove", "n2", code=5)[1]["hint"], "one change at a time"
    assert ask("cluster", "roll-back", code=2)[1]["hint"], "it is in force"
    assert ask("why", "node:n4")[1]["state"] == "filling"
    assert ask("cluster", "add", url)[1]["state"] == "done"
    assert ask("cluster", "check")[1]["moving"] == 0


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("add", "n1=file:///elsewhere"), 2, "n1"),
        (("add", "n9"), 2, "n9"),
        (("add", "=file:///nowhere"), 2, "names no node"),
        (("add", "n9=sftp://u@127.0.0.1:9/x"), 2, "key"),
        (("remove", "n9"), 2, "n9"),
        (("roll-back",), 3, "no change"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    world: ClusterWorld, ask: Ask, words: tuple[str, ...], code: int, says: str
) -> None:
    ask("cluster", "init")
    before = ask("cluster", "show")[1]
    answer = ask("cluster", *words, code=code)[1]
    assert says in answer["error"] and answer["hint"]
    assert ask("cluster", "show")[1]["epoch"] == before["epoch"] and names(ask("cluster", "show")[1]) == names(before)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("whose", ["n2", "centre", "n5"])
def test_a_folder_that_is_somebody_elses_is_refused_before_anything_is_written(
    world: ClusterWorld, ask: Ask, whose: str
) -> None:
    ask("cluster", "init")
    config = world.folder / "tidemark.toml"
    config.write_text(config.read_text() + '[nodes.n5]\nstore = "n5"\n')
    for words in (("plan", "add"), ("add",)):
        answer = ask("cluster", *words, f"n9=file://{world.folder / whose}/", code=2)[1]
        assert "node n9 needs one of its own" in answer["error"]
    assert ask("cluster", "rebalance")[1]["epoch"] == 1, "no change was begun"


def test_too_few_would_stay(world: ClusterWorld, ask: Ask) -> None:
    ask("cluster", "init")
    ask("cluster", "remove", "n3")
    assert "2" in ask("cluster", "remove", "n2", code=2)[1]["error"]


def test_a_folder_that_holds_something_of_another_cluster_is_refused(world: ClusterWorld, ask: Ask) -> None:
    world.node("n2").claim_folder("somebody else's")
    answer = ask("cluster", "init", code=6)[1]
    assert "somebody else's" in answer["error"]
    assert (world.folder / "n2/.tidemark/node.json").exists()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("lost", ["its disk", "one file"])
def test_a_node_whose_disk_is_lost_leaves_and_what_it_had_comes_from_the_others(
    world: ClusterWorld, ask: Ask, lost: str
) -> None:
    ask("sync", "plant1")
    ask("cluster", "init")
    seen = rows(world, ask)
    if lost == "its disk":
        shutil.rmtree(world.folder / "n3")
    else:
        next((world.folder / "n3").rglob("*.tsfile")).unlink()
    assert ask("cluster", "check", code=20)[1]["problems"][0]["node"] == "n3"
    assert ask("cluster", "remove", "n3")[1]["state"] == "done"
    assert ask("cluster", "check")[1]["nodes"] == 2 and rows(world, ask) == seen
    assert ask("verify", "--deep")[1]["differences"] == []


@pytest.mark.full
def test_a_node_whose_disk_is_lost_is_filled_again_by_leaving_and_joining(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    ask("cluster", "init")
    shutil.rmtree(world.folder / "n3")
    ask("cluster", "remove", "n3")
    (world.folder / "n3").mkdir()
    assert ask("cluster", "add", "n3")[1]["state"] == "done"
    shown = ask("cluster", "show")[1]
    assert {node["name"]: node["state"] for node in shown["nodes"]} == dict.fromkeys(("n1", "n2", "n3"), "serving")
    assert ask("cluster", "check")[1]["problems"] == []


@pytest.mark.full
def test_a_node_whose_disk_is_lost_is_filled_again_where_it_is(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    ask("cluster", "init")
    seen = rows(world, ask)
    ask("cluster", "check", "--lost", "n3", code=2)
    ask("cluster", "check", "--repair", "--lost", "n9", code=3)
    assert ask("cluster", "check", "--repair", "--lost", "n3")[1]["problems"] == [], "it is not lost"
    shutil.rmtree(world.folder / "n3")
    assert ask("cluster", "check", "--repair", "--lost", "n3")[1]["problems"] == []
    assert list((world.folder / "n3" / "data").rglob("*.tsfile"))
    assert ask("verify", "--deep")[1]["differences"] == [] and rows(world, ask) == seen


@pytest.mark.full
def test_a_node_whose_disk_is_lost_while_it_is_filled_is_filled_anew(world: ClusterWorld, ask: Ask) -> None:
    ask("sync", "plant1")
    ask("cluster", "init")
    seen = rows(world, ask)
    ask("cluster", "add", f"n4=file://{world.folder / 'n4'}", "--no-wait")
    *some, _ = open_batches(world.app, world.receiver)
    migrate_slots(world.app, world.receiver, slots=[slot for batch in some for slot in batch.slots])
    held = {path.name for path in (world.folder / "n4" / "data").rglob("*.tsfile")}
    shutil.rmtree(world.folder / "n4")
    ask("cluster", "add", "n4", code=5)
    ask("cluster", "remove", "n4", code=5)

    assert ask("cluster", "check", "--repair", "--lost", "n4")[1]["problems"] == []
    assert ask("cluster", "add", "n4")[1]["state"] == "done"
    assert held and held <= {path.name for path in (world.folder / "n4" / "data").rglob("*.tsfile")}
    assert ask("cluster", "check")[1]["problems"] == [] and rows(world, ask) == seen
    assert ask("verify", "--deep")[1]["differences"] == []
