"""Stop a sync before and after every effect; the next run brings the same landings about, once and whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import Effects, explore, explore_double
from tests.crash.sync_world import LINK, SMALL_PARTS, SyncWorld
from tidemark.ledger.sender import links as link_rows

LOG = "system/schema/mlog.bin"


def first_sync(world: SyncWorld) -> SyncWorld:
    """A site that was never synced: two partitions, a file with deletions, a schema log."""
    world.edge.seal(path_of(1))
    world.edge.seal(path_of(2, partition=1))
    world.edge.delete_points(path_of(2, partition=1))
    world.edge.append_schema(LOG, b"create d1;")
    return world


def everything_at_once(world: SyncWorld) -> SyncWorld:
    """A synced site where since then: a file is new, one changed, deletions grew, two were compacted, one dropped."""
    for number in (1, 2, 3, 4):
        world.edge.seal(path_of(number), extent={"root.sg.d1": (number * 10, number * 10 + 9)})
    world.edge.seal(path_of(5, partition=1))
    world.edge.append_schema(LOG, b"create d1;")
    world.sync()
    world.edge.seal(path_of(6, partition=2, unsequence=True))
    world.edge.seal(path_of(5, partition=1), "changed")
    world.edge.delete_points(path_of(1))
    world.edge.compact([path_of(2), path_of(3)], path_of(2, inner=1))
    world.edge.drop(path_of(4))
    world.edge.append_schema(LOG, b"create d2;")
    return world


SCENARIOS = [first_sync, everything_at_once]
MOST = [
    pytest.param(first_sync, marks=pytest.mark.full),
    everything_at_once,
]  # the second does what the first does, and more
EVERY_OTHER = range(
    1, 120, 4
)  # before every other effect, where a scenario differs little from one that is explored in full


def template(scenario: Callable[[SyncWorld], SyncWorld], limits: bool) -> SyncWorld:
    return scenario(SyncWorld.in_memory(limits=SMALL_PARTS if limits else None))


def copies(world: SyncWorld, power: bool) -> Callable[[], SyncWorld]:
    def build() -> SyncWorld:
        clone = world.clone()
        clone.power = random.Random(1) if power else None
        return clone

    return build


@pytest.mark.full_after(1)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_killed_process_on_real_files(scenario: Callable[[SyncWorld], SyncWorld], when: str) -> None:
    found = explore(lambda: scenario(SyncWorld.on_disk()), when=when)
    assert found.all_died and found.points >= 15


@pytest.mark.parametrize("scenario", MOST)
@pytest.mark.parametrize("small_parts", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_power_loss(scenario: Callable[[SyncWorld], SyncWorld], small_parts: bool, when: str) -> None:
    world = template(scenario, small_parts)
    found = explore(copies(world, power=True), when=when)
    world.close()
    assert found.all_died and found.points >= 15


@pytest.mark.parametrize("scenario", MOST)
def test_two_deaths_one_after_the_other(scenario: Callable[[SyncWorld], SyncWorld]) -> None:
    world = template(scenario, True)
    explore_double(copies(world, power=True), pairs=20)
    world.close()


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_pair_of_deaths(scenario: Callable[[SyncWorld], SyncWorld]) -> None:
    world = template(scenario, True)
    explore_double(copies(world, power=True))
    world.close()


def test_a_site_that_cannot_link() -> None:
    world = SyncWorld.in_memory()
    world.site_settings = replace(world.site_settings, snapshot="")
    everything_at_once(world)
    explore(copies(world, power=True), EVERY_OTHER)
    world.close()


def test_drops_are_applied_too() -> None:
    world = SyncWorld.in_memory(replace(LINK, deletes="apply"))
    everything_at_once(world)
    explore(copies(world, power=False), EVERY_OTHER)
    world.close()


def held_drops() -> tuple[SyncWorld, list[str]]:
    """Three files are gone, told as held: the limit is one."""
    world = SyncWorld.in_memory(replace(LINK, deletes="apply", delete_limit_files=1))
    paths = [world.edge.seal(path_of(number), extent={"root.sg.d1": (number * 10, number * 10 + 9)}) for number in range(6)]
    world.sync()
    for path in paths[:3]:
        world.edge.drop(path)
    assert len(world.manifests()) == 1 and world.sync().pending == 3
    assert [v.path for v in world.manifests()[-1].held] == paths[:3]
    return world, paths


def test_held_drops_that_come_back(when: str) -> None:
    world, paths = held_drops()
    world.edge.clock = 1_700_000_000
    for number, path in enumerate(paths[:3]):
        world.edge.seal(path, extent={"root.sg.d1": (number * 10, number * 10 + 9)})
    explore(copies(world, power=True), when=when)
    world.close()


def test_held_drops_that_are_approved(when: str) -> None:
    world, _ = held_drops()
    app = world.app(Effects())
    with app.ledger.write() as connection:
        link = link_rows.get_link(connection, world.link.name)
        assert link is not None
        link_rows.set_link(connection, link.link, approved_run=link.guard_run)
    app.ledger.close()
    explore(copies(world, power=True), when=when)
    world.close()
