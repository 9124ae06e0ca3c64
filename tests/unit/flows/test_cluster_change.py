"""Adding, removing and rebalancing nodes through the doors: what is where in the end, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moving_world import MovingWorld
from tidemark.flows.cluster_change import Wanted, change, init, plan_change


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    yield MovingWorld(tmp_path)


def begun(world: MovingWorld) -> MovingWorld:
    """Three nodes, files of two databases over some partitions, one over three of them, one with mods."""
    with world.app(nodes=world.names) as app:
        init(app, world.receiver)
    for partition in range(10):
        world.put("root.sg", partition)
        world.put("root.other", partition)
    world.put("root.sg", 3, 5, content="wide")
    world.put("root.sg", 7, mods="deletion")
    return world


def test_what_the_receiver_had_comes_to_its_first_nodes(world: MovingWorld) -> None:
    for partition in range(6):
        world.put("root.sg", partition, mods="deletion" if partition == 2 else "")
    with world.app(nodes=world.names) as app:
        result = init(app, world.receiver)
    assert (result.epoch, result.state) == (1, "done") and result.moved_slots > 1 and result.moved_bytes > 0
    world.settled()


def test_a_node_joins_and_one_leaves(world: MovingWorld) -> None:
    begun(world).settled()
    with world.app() as app:
        planned = plan_change(app, world.receiver, Wanted("add", "n4"))
        result = change(app, world.receiver, Wanted("add", "n4"))
    assert (result.epoch, result.state, result.moved_slots) == (2, "done", planned.slots)
    world.settled()
    with world.app() as app:
        assert change(app, world.receiver, Wanted("remove", "n1")).state == "done"
    world.settled()
    with world.app() as app:
        assert change(app, world.receiver, Wanted("add", "n1")).epoch == 4
    world.settled()
