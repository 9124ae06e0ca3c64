"""Bytes that flip on the target's disk: what flips once is sent again, what keeps flipping gets no final name.

With python3 at the far end a small file is one write, and sealed at once: what is proved is what was handed to the disk. Of
a large one the part is read back before it gets its name; the lower tiers read back all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World, world_on_a_bad_disk
from tests.e2e.sending_process import moved_apart
from tests.services import bad_disk
from tests.services.processes import soon
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.errors import CorruptionError
from tidemark.stores.agent.block_journal import part_of
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import Failed, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses", "compiler")]
WAYS = pytest.mark.parametrize("way", ["pull", "push"])
LOWER = [pytest.param(tier, marks=pytest.mark.full) for tier in (Tier.POSIX, Tier.SFTP)]


@pytest.mark.full
@pytest.mark.parametrize("tier", [Tier.PYTHON, *LOWER])
def test_a_target_that_keeps_flipping_bytes_gets_no_final_name(
    start_sshd: Callable[..., Sshd], tmp_path: Path, tier: Tier
) -> None:
    world = world_on_a_bad_disk(start_sshd, tmp_path, "push", tier, flip="bad")
    bad = [world.put("bad.large", 6 * MB), *([] if tier is Tier.PYTHON else [world.put("bad.small", 50_000)])]
    good = [world.put("good.small", 50_000), world.put("good.large", 6 * MB)]
    outcomes = world.move([*bad, *good], SendOptions(retries=2))
    for item in bad:
        one = outcomes[item]
        assert isinstance(one, Failed) and isinstance(one.error, CorruptionError), one
        assert item.source_path in one.error.message and one.error.hint
        assert not (world.centre / item.target_path).exists()
        assert one.wire_bytes > item.size  # what differs was sent again
    assert all(isinstance(outcomes[item], Sent) and world.is_whole(item) for item in good)


@pytest.mark.full
def test_our_own_disk_that_keeps_flipping_bytes_gets_no_final_name(sshd: Sshd, tmp_path: Path) -> None:
    world = World.of(sshd, tmp_path, "pull")
    bad = [world.put("bad.large", 6 * MB), world.put("bad.other", 3 * MB)]
    good = [world.put("good.small", 50_000), world.put("good.large", 6 * MB)]
    told = moved_apart(world, [*bad, *good], bad_disk.environment(world.centre, flip="bad"), retries=2)
    for item in bad:
        error = told[item.source_path]
        assert error and error[0] == "CorruptionError" and item.source_path in error[1] and error[2], error
        assert not (world.centre / item.target_path).exists()
    assert all(told[item.source_path] is None and world.is_whole(item) for item in good)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.PYTHON, *LOWER])
@WAYS
def test_a_part_that_somebody_takes_away_while_more_comes_is_brought_again(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier
) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put("large", 24 * MB), *(world.put(f"{n}", 20_000) for n in range(20))]
    part = world.centre / part_of(items[0].target_path)
    harmed: list[Path] = []

    def meanwhile() -> None:
        assert soon(part.exists)
        part.unlink()
        harmed.append(part)

    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.once_at(8 * MB, meanwhile)
        world.port = wire.port
        with world.ends() as (source, target):
            told = list(send_files(source, target, items, SendOptions(block_bytes=MB)))
    assert harmed and world.arrived({one.item: one for one in told}) and len(told) == len(items)
