"""`replica watch` tells its round whatever becomes of a node that stays away; `replica replace` is what replaces it."""

from __future__ import annotations

import shutil

import pytest

from tests.cluster_world import Asked, ClusterWorld
from tidemark.ledger.leases import Identity, Leases


@pytest.fixture
def due(world: ClusterWorld, ask: Asked) -> ClusterWorld:
    """n1 is away for two days, and a fourth node is in the settings."""
    settings = world.folder / "tidemark.toml"
    told = settings.read_text().replace("[cluster]", "[cluster]\nreplace_hours = 48")
    settings.write_text(told + '[nodes.n4]\nstore = "n4"\n')
    for partition in range(6):
        world.put("root.sg", partition)
    shutil.move(world.folder / "n1", world.folder / "lost")
    for _ in range(3):
        ask("replica", "watch")
    world.sql("UPDATE node_watch SET since = since - 48 * 3600 WHERE misses > 0")
    return world


def test_the_round_is_told_while_the_nodes_change_and_where_no_node_can_join(
    due: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, alone = ask("replica", "watch")
    assert (code, alone["nodes"], alone["offline"], alone["due"]) == (0, 3, {"n1": 4}, {"n1": 48})
    leases = Leases(due.app.ledger, Identity("elsewhere", "boot", 1, "start"))
    leases.acquire_lease("cluster:centre", "add n4")  # data moves for hours
    code, beside = ask("replica", "watch")
    assert (code, beside["nodes"], beside["offline"], beside["due"]) == (0, 3, {"n1": 5}, {"n1": 48})
    assert ask("replica", "replace")[0] == 5
    assert due.run("replica", "watch") == 0
    assert "n1 is away for 48 h: ./tidemark replica replace" in capsys.readouterr().out


def test_a_node_that_is_due_is_replaced_by_a_command_of_its_own(
    due: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert due.run("replica", "replace") == 0
    assert "n1 stays away: remove n1 is done" in capsys.readouterr().out
    due.node("n4").claim_folder("other")
    assert ask("replica", "watch")[1]["due"] == {}
    code, failed = ask("replica", "replace")
    assert code == 5 and "folder of node n4 of cluster other" in failed["error"]
    shutil.rmtree(due.folder / "n4")
    assert due.run("replica", "replace") == 0
    assert "n1 stays away: add n4 is done" in capsys.readouterr().out
    assert due.run("replica", "replace") == 0
    assert "no node is away for 48 h" in capsys.readouterr().out


def test_by_default_no_node_is_replaced(due: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    settings = due.folder / "tidemark.toml"
    settings.write_text(settings.read_text().replace("replace_hours = 48", ""))
    assert ask("replica", "watch")[1]["due"] == {}
    assert due.run("replica", "replace") == 0
    assert "replace_hours is 0" in capsys.readouterr().out
