"""Adding and removing nodes may die before and after every effect: nothing is lost, nothing is unowned, and it ends.

After every death the world is looked at as a reader would: one table, each slot one group, every held copy there byte for
byte, every live file readable. Then another process goes on, by the same command, to the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.explorer import Effects, explore, explore_double
from tests.memory_store import MemoryStore
from tests.moving_world import RECEIVER, MovingWorld
from tidemark.app import App
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.settings.model import ClusterSettings

BEHIND = "behind"
SMALL = ClusterSettings(replicas=2, quorum=1, slots=4, grace_hours=0, cache_bytes=0)


class ChangeWorld:
    """A life is the command, as its administrator or Airflow would give it again."""

    def __init__(self, folder: Path, template: MovingWorld, wanted: Wanted) -> None:
        shutil.copytree(template.folder, folder)
        stores = {name: _copied(store) for name, store in template.stores.items()}
        away = {wanted.gone} if wanted.supersedes else set()
        self.world = MovingWorld(folder, template.names, template.others, template.cluster, stores, away)
        self.wanted = wanted
        self.folder = folder
        self.done = False

    def live(self, effects: Effects) -> None:
        with self.world.app(effects, nodes=self.nodes) as app:
            assert self.say(app) == "done"

    def say(self, app: App) -> str:
        if self.wanted.kind == "init":
            return init_cluster(app, self.world.receiver).state
        return change_nodes(app, self.world.receiver, self.wanted).state

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.world.names if self.wanted.kind == "init" else ()

    def lose_power(self) -> None:
        self.world.audit()
        if not self.world.away and self.wanted.request != BEHIND:  # who missed a file lacks it, and is told so
            self.world.proved()

    def check(self) -> None:
        if self.world.away:  # who died is back, with nothing that counts: it loses what came to it
            self.world.away.clear()
            with self.world.app() as app:
                self.say(app)
        if self.wanted.request == BEHIND:  # what a member missed comes to it by a catch-up, not by the change
            with self.world.app() as app, self.world.open(app) as cluster:
                catch_up(cluster, self.world.stores[RECEIVER])
        self.world.settled()
        before = self.world.sql("SELECT * FROM cluster_change"), self.world.sql("SELECT * FROM cluster_node")
        with self.world.app(nodes=self.nodes) as app:
            assert self.say(app) == "done", "said again after its end there is nothing to do"
        assert before == (self.world.sql("SELECT * FROM cluster_change"), self.world.sql("SELECT * FROM cluster_node"))

    def close(self) -> None:
        shutil.rmtree(self.folder)


def _copied(store: MemoryStore) -> MemoryStore:
    found = MemoryStore(store.name)
    for entry in store.list_files([""]).entries:
        found.put(entry.path, store.read(entry.path), entry.mtime)
    return found


Build = Callable[[Wanted], Callable[[], ChangeWorld]]


@pytest.fixture
def worlds(tmp_path: Path) -> Build:
    """Fresh worlds with the same nodes and files: one over two partitions, one with mods."""
    counter = iter(range(1_000_000))

    def build(wanted: Wanted) -> Callable[[], ChangeWorld]:
        (tmp_path / "template").mkdir()
        template = MovingWorld(tmp_path / "template", ("n1", "n2", "n3"), ("n4", "n5"), SMALL)
        if wanted.kind != "init":
            with template.app(nodes=template.names) as app:
                init_cluster(app, template.receiver)
        for partition in range(1 if wanted.kind == "init" else 3):
            template.put("root.sg", partition)
        template.put("root.sg", 3, 4, mods="deletion")
        if wanted.request == BEHIND:
            template.away = {"n1"}
            for partition in range(5, 9):
                template.put("root.sg", partition)
            template.away = set()
            assert template.sql("SELECT in_step FROM group_log WHERE header = 'n1'") == [(f'["{wanted.node}"]',)]
        if wanted.supersedes:
            with template.app() as app:
                first = Wanted("replace", wanted.gone, gone="n2", request=wanted.supersedes)
                change_nodes(app, template.receiver, first, wait=False)
                some = [template.open(app).table.owners.index(wanted.gone)]
                migrate_slots(app, template.receiver, slots=some)
        return lambda: ChangeWorld(tmp_path / str(next(counter)), template, wanted)

    return build


CHANGES = [
    Wanted("init"),
    Wanted("add", "n4"),
    Wanted("remove", "n2", request="r1"),
    Wanted("remove", "n3", request=BEHIND),  # the one that has all of a group's log leaves, who stays missed some
    Wanted("replace", "n5", gone="n4", request="r2", supersedes="r1"),  # who replaced n2 died with a part of its slots
]
every_change = pytest.mark.parametrize("wanted", CHANGES, ids=str)


@pytest.mark.full_after(1)
@every_change
@pytest.mark.timeout(600)
def test_a_change_may_die_at_any_effect(worlds: Build, wanted: Wanted, when: str) -> None:
    explored = explore(worlds(wanted), when=when)
    assert explored.all_died and explored.points > 20


@pytest.mark.full_after(1)
@every_change
def test_recovery_may_die_too(worlds: Build, wanted: Wanted) -> None:
    assert explore_double(worlds(wanted), pairs=8).crashes > 8


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@every_change
def test_recovery_may_die_at_any_pair_of_effects(worlds: Build, wanted: Wanted) -> None:
    explore_double(worlds(wanted), pairs=120)
