"""At the edge of a window no more than a block comes, of large and small files, over all connections together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores import line, schedule
from tidemark.stores.protocol import Tier
from tidemark.stores.transfer import Failed, SendOptions, send

pytestmark = pytest.mark.real("sshd")
RATE = 2e6  # bytes a second a connection
KINDS = {"large": [12 * MB] * 4, "small": [50_000] * 2000, "of a megabyte": [1_000_000] * 60}


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_no_more_than_a_block_comes_after_it(
    sshd: Sshd, tmp_path: Path, way: str, kind: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections > 1:
        monkeypatch.setattr(line, "SHORT_ROUND_TRIP", 0.0)
        monkeypatch.setattr(schedule, "SHORT_ROUND_TRIP", 0.0)
    world = World.of(sshd, tmp_path, way)
    items = [world.put(f"{number}", size) for number, size in enumerate(KINDS[kind])]
    crossed: list[int] = []
    at_edge: list[int] = []

    def at_the_edge() -> bool:
        if not at_edge and sum(crossed) >= 6 * MB:
            at_edge.append(sum(crossed))
        return bool(at_edge)

    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.pace(RATE)
        world.port = wire.port
        with world.ends() as (source, target):
            options = SendOptions(block_bytes=MB, connections=connections, should_stop=at_the_edge)
            outcomes = list(send(source, target, items, options, crossed.append))
        assert connections in (wire.most_at_once, 1)
    untold = connections * RATE * 0.1  # came when the caller looked, and was told after that
    assert at_edge and sum(crossed) - at_edge[0] <= options.block_bytes + untold
    assert not [one for one in outcomes if isinstance(one, Failed)] and len(outcomes) < len(items)
    again = world.move(items)
    assert world.arrived(again)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize("tier", [Tier.POSIX, Tier.SFTP])
def test_nor_on_the_lower_tiers(sshd: Sshd, tmp_path: Path, tier: Tier, way: str, kind: str) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"{number}", size) for number, size in enumerate(KINDS[kind])]
    crossed: list[int] = []
    at_edge: list[int] = []

    def at_the_edge() -> bool:
        if not at_edge and sum(crossed) >= 6 * MB:
            at_edge.append(sum(crossed))
        return bool(at_edge)

    with world.ends() as (source, target):
        options = SendOptions(block_bytes=MB, should_stop=at_the_edge)
        list(send(source, target, items, options, crossed.append))
    assert at_edge and sum(crossed) - at_edge[0] <= options.block_bytes
    assert world.arrived(world.move(items))
