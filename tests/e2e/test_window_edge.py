"""At the edge of a window no more than a block comes, of large and small files, over all connections together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World, every_line_is_long
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import Failed, SendOptions, send_files

pytestmark = pytest.mark.real("sshd")
BLOCK = 2 * MB
RATE = 2e6  # bytes a second a connection
KINDS = {"large": [12 * MB] * 4, "small": [50_000] * 2000, "of a megabyte": [1_000_000] * 60}
QUICK_ONES = {("pull", "small", 4), ("push", "small", 4)}


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("way", "kind", "connections"),
    [
        pytest.param(way, kind, many, marks=() if (way, kind, many) in QUICK_ONES else pytest.mark.full)
        for way in ("pull", "push")
        for kind in KINDS
        for many in (1, 4)
    ],
)
def test_no_more_than_a_block_comes_after_it(
    sshd: Sshd, tmp_path: Path, way: str, kind: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connections > 1:
        every_line_is_long(monkeypatch)
    world = World.of(sshd, tmp_path, way)
    items = [world.put(f"{number}", size) for number, size in enumerate(KINDS[kind])]
    crossed: list[int] = []
    at_edge: list[int] = []

    def at_the_edge() -> bool:
        if not at_edge and sum(crossed) >= 6 * MB:
            at_edge.append(sum(crossed))
        return bool(at_edge)

    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.read_slowly(16_384, RATE)  # what is in the buffers of a line comes, whoever stops
        world.port = wire.port
        with world.ends() as (source, target):
            options = SendOptions(block_bytes=BLOCK, connections=connections, should_stop=at_the_edge)
            outcomes = list(send_files(source, target, items, options, crossed.append))
        assert connections in (wire.most_at_once, 1)
    untold = connections * RATE * 0.1 if way == "pull" else 0  # came when the caller looked, and was told after that
    assert at_edge and sum(crossed) - at_edge[0] <= BLOCK + untold
    assert not [one for one in outcomes if isinstance(one, Failed)] and len(outcomes) < len(items)
    world.port = 0
    assert world.arrived(world.move(items))


@pytest.mark.full
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.soak) if kind == "small" else kind for kind in KINDS])
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
        list(send_files(source, target, items, options, crossed.append))
    assert at_edge and sum(crossed) - at_edge[0] <= options.block_bytes
    assert world.arrived(world.move(items))
