"""Lines between two ends that are slow, fine-grained or end in an odd order: every file arrives once and whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World, every_line_is_long
from tests.e2e.store_ends import FASTEST_FIRST, QUICK
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import UnreachableError
from tidemark.stores.protocol import Tier
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import Failed, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
WAYS = pytest.mark.parametrize("way", ["pull", "push"])


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", FASTEST_FIRST)
@WAYS
def test_bytes_that_come_one_by_one(sshd: Sshd, tmp_path: Path, way: str, tier: Tier) -> None:
    """Greeting, keys, requests, answers and the first files: no read brings more than a byte."""
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"{n}", size) for n, size in enumerate([0, 1, 20_000, *[3000] * 10, 2 * MB + 3])]
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.singly(60_000)
        world.port = wire.port
        assert world.arrived(world.move(items))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", FASTEST_FIRST)
@WAYS
def test_a_reader_that_is_slow(sshd: Sshd, tmp_path: Path, way: str, tier: Tier) -> None:
    """The smallest window there is, always full: who writes waits all the time, and nobody takes that for a stall."""
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"{n}", size) for n, size in enumerate([*[500] * 40, MB + 7])]
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.read_slowly(1400, 700_000)
        world.port = wire.port
        outcomes = world.move(items)
    assert world.arrived(outcomes)
    assert sum(one.wire_bytes for one in outcomes.values()) == sum(item.size for item in items)


@pytest.mark.full
@WAYS
def test_a_line_on_which_a_packet_takes_longer_than_a_stall_may_last(sshd: Sshd, tmp_path: Path, way: str) -> None:
    """Bytes move all the time: nobody takes that for silence."""
    world = World.of(sshd, tmp_path, way)
    world.limits = Limits(connect=10, handshake=60, stall=3)
    items = [world.put("large", 80_000), *(world.put(f"{n}", 500) for n in range(10))]
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.read_slowly(500, 8000)
        world.port = wire.port
        outcomes = world.move(items, SendOptions(retries=0))
    assert world.arrived(outcomes)
    assert sum(one.wire_bytes for one in outcomes.values()) == sum(item.size for item in items)


@pytest.mark.full
def test_a_push_over_a_line_that_takes_all_at_once_and_carries_it_slowly(sshd: Sshd, tmp_path: Path) -> None:
    """What lies in the middle has left this end and is not at the other: only that one can tell that bytes come."""
    world = World.of(sshd, tmp_path, "push")
    world.limits = Limits(connect=10, handshake=60, stall=5)
    items = [world.put("large", 650_000), world.put("small", 500)]
    with Wire(sshd.port, upwards=True) as wire:
        wire.pace(40_000)
        world.port = wire.port
        outcomes = world.move(items, SendOptions(retries=0))
    assert world.arrived(outcomes)
    assert sum(one.wire_bytes for one in outcomes.values()) == sum(item.size for item in items)


@pytest.mark.full_after(1)
@WAYS
@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_ends_at_the_server_after_those_that_came_later(
    sshd: Sshd, tmp_path: Path, way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far program of a connection that is lost still works at what it was sent, while another one makes up for it."""
    every_line_is_long(monkeypatch)
    world = World.of(sshd, tmp_path, way)
    items = [world.put(f"{n}", size) for n, size in enumerate([9 * MB, 5 * MB + 1, *[30_000] * 60])]
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.pace(30e6)
        wire.cut_the_server_late(1.0)
        wire.cut_after(MB * (1 + 2 * seed), times=3)
        world.port = wire.port
        outcomes = world.move(items, SendOptions(connections=4))
        assert wire.cuts == 3
    assert world.arrived(outcomes)
    time.sleep(0.2)
    assert world.arrived(outcomes)  # what came late changed nothing


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", FASTEST_FIRST)
@WAYS
def test_a_cap_that_is_lifted_leaves_no_journal_of_the_slower_try(sshd: Sshd, tmp_path: Path, way: str, tier: Tier) -> None:
    """Below a low cap a file comes in blocks that travels whole without it."""
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"{n}", 500_000) for n in range(3)]
    crossed: list[int] = []
    stopped = threading.Event()

    def stop() -> bool:
        if sum(crossed) > 600_000:
            stopped.set()
        return stopped.is_set()

    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.once_at(1_000_000, lambda: stopped.wait(15))
        world.port = wire.port
        with world.ends() as (source, target):
            list(send_files(source, target, items, SendOptions(bandwidth=800_000, should_stop=stop), crossed.append))
    world.port = 0
    assert any(name.endswith(".part.blocks") for name in world.names())
    assert world.arrived(world.move(items))


@pytest.mark.full_after(1)
@WAYS
def test_a_server_that_is_started_again_in_the_middle(start_sshd: Callable[..., Sshd], tmp_path: Path, way: str) -> None:
    server = start_sshd(FarEnd.SHELL)
    world = World.of(server, tmp_path, way)
    world.limits = QUICK
    items = [world.put(f"{n}", size) for n, size in enumerate([12 * MB, *[100_000] * 60])]
    gone, over = threading.Event(), threading.Event()

    def down_and_up() -> None:
        server.stop()
        gone.set()
        server.restart()
        over.wait()  # it would end with the thread that started it

    def again() -> None:
        threading.Thread(target=down_and_up).start()
        gone.wait(60)

    options = SendOptions(retries=50, block_bytes=2 * MB)
    try:
        with Wire(server.port, upwards=way == "push") as wire:
            wire.once_at(6 * MB, again)
            world.port = wire.port
            with world.ends() as (source, target):
                first = list(send_files(source, target, items, options))
            assert gone.is_set()
    finally:
        over.set()
    outcomes = {one.item: one for one in first}
    assert world.arrived(outcomes) and len(first) == len(items)
    for item in items:  # of a small file that still waits for its name nothing is left
        assert outcomes[item].wire_bytes <= item.size + min(item.size, options.block_bytes)


@pytest.mark.full_after(1)
@WAYS
def test_a_server_that_goes_away_for_good_is_told_with_what_to_do(
    start_sshd: Callable[..., Sshd], tmp_path: Path, way: str
) -> None:
    server = start_sshd(FarEnd.SHELL)
    world = World.of(server, tmp_path, way)
    world.limits = QUICK
    items = [world.put(f"{n}", 2 * MB) for n in range(8)]
    with Wire(server.port, upwards=way == "push") as wire:
        wire.once_at(5 * MB, server.stop)
        world.port = wire.port
        with world.ends() as (source, target):
            told = list(send_files(source, target, items, SendOptions(retries=1)))
    failed = [one for one in told if isinstance(one, Failed)]
    assert len(told) == len(items) and failed
    assert all(isinstance(one.error, UnreachableError) and one.error.hint for one in failed)
    assert f":{wire.port}" in failed[0].error.message
    server.restart()
    world.port = 0
    again = world.move(items)
    assert world.arrived(again)
    assert all(one.wire_bytes == 0 for one in again.values() if one.item in {o.item for o in told if isinstance(o, Sent)})
