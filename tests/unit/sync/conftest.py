"""A link in memory for tests of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.sync_world import SyncWorld


@pytest.fixture
def world() -> Iterator[SyncWorld]:
    world = SyncWorld.in_memory()
    yield world
    world.close()


@pytest.fixture
def make_world() -> Iterator[Callable[..., SyncWorld]]:
    made: list[SyncWorld] = []

    def make(**given: Any) -> SyncWorld:
        made.append(SyncWorld.in_memory(**given))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def disk_world() -> Iterator[SyncWorld]:
    world = SyncWorld.on_disk()
    yield world
    world.close()
