"""A load into three nodes, a merge and a housekeeping that die before or after any of their effects: nothing is visible that
lacks a quorum, and afterwards every file lies at all members once, with the right digest."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clustered import Clustered, everything_is_held, logs_tell_the_catalog
from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, explore, explore_double, identity
from tests.crash.test_merge_crash import CrashingEngine
from tests.small_files import deletion, sealed, source
from tidemark.app import App
from tidemark.cluster.health.check import check_cluster
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.stores.protocol import Store, StoreAddress

NODES = ("n1", "n2", "n3")
EXPECTED = [
    ("root.sg.d1", "s", 1, "INT64", "11"),
    ("root.sg.d1", "s", 5, "INT64", "50"),
    ("root.sg2.d2", "s", 3, "INT64", "3"),
]
QUORUM = 2


def build_landings(centre: Clustered) -> None:
    """Two databases, two landings: the second one's file lies over the first one's."""
    site = centre.sender()
    other = source(2).replace("root.sg", "root.sg2")
    site.land(
        {
            source(1): sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}}, deletion("root.sg.d1.s", 2, 2)),
            other: sealed({"root.sg2.d2": {"s": [(3, 3)]}}),
        }
    )
    site.land({source(3, unsequence=True): sealed({"root.sg.d1": {"s": [(1, 11), (5, 50)]}})})


class ForwardWorld:
    """Landings wait at a centre with three nodes; a life is a load. `on`: what a life does after the load."""

    def __init__(self, folder: Path, landed: Path, on: str) -> None:
        self.centre = Clustered(folder)
        shutil.copytree(landed, self.centre.root)
        self.centre.begin(*NODES)
        self.on = on
        if on:
            self.centre.load()

    def live(self, effects: Effects) -> None:
        centre = self.centre
        ledger = CrashingLedger(centre.app.ledger.url, effects)

        def opener(address: StoreAddress) -> Store:
            return CrashingStore(centre.open_store(address), effects, address.url.rpartition("/")[2])

        late = 40 * DAY if self.on == "housekeep" else 0.0
        centre.app = App(centre.app.settings, ledger, identity(), lambda: time.time() + late, opener)
        try:
            if not self.on:
                centre.load()
            elif self.on == "merge":
                assert centre.merge(engine=CrashingEngine(effects)).exit_code == 0
            else:
                centre.merge(engine=CrashingEngine(effects))
                housekeep(centre.app, centre.receiver)
                centre.app.clock = lambda: time.time() + 42 * DAY
                housekeep(centre.app, centre.receiver)
        finally:
            ledger.close()

    def lose_power(self) -> None:
        """Whatever readers see now lies at a quorum, and is read though the receiver's own copies are gone."""
        centre = self.centre
        centre.reopen()
        assert check_cluster(centre.app, centre.receiver).problems == ()
        held = centre.copies()
        seen = centre.sql("SELECT location, mods_location FROM catalog_file WHERE visible = 1")
        assert all(len(held.get(at, ())) >= QUORUM for row in seen for at in row if at)
        assert centre.rows() in ([EXPECTED] if self.on else [[], BEFORE_THE_SECOND, EXPECTED])

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == EXPECTED
        if self.on == "merge":  # what a merge that died sealed at nodes and wrote down nowhere
            centre.app.clock = lambda: time.time() + 2 * DAY
            housekeep(centre.app, centre.receiver)
        everything_is_held(centre)
        logs_tell_the_catalog(centre)
        assert centre.sql("SELECT count(*) FROM group_operation WHERE state = 'proposed'") == [(0,)]
        behind = (
            "SELECT m.header, m.node FROM group_member m WHERE m.applied <"
            " (SELECT MAX(o.version) FROM group_operation o WHERE o.header = m.header AND o.state = 'committed')"
        )
        assert centre.sql(behind) == []
        with centre.cluster() as cluster:
            for database in ("root.sg", "root.sg2"):
                for node in cluster.table.route_schema(database).members:
                    assert f"{database}.d".encode() in (cluster.open_folder(node).read_schema(database) or b"")
        centre.empty_cache()
        assert centre.rows() == EXPECTED
        assert [name for name in centre.files("recall") if name] == []

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)


BEFORE_THE_SECOND = [("root.sg.d1", "s", 1, "INT64", "10"), ("root.sg2.d2", "s", 3, "INT64", "3")]


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[..., Callable[[], ForwardWorld]]:
    template = tmp_path / "template"
    template.mkdir()
    build_landings(Clustered(template))
    counter = iter(range(1_000_000))

    def of(on: str = "") -> Callable[[], ForwardWorld]:
        def build() -> ForwardWorld:
            folder = tmp_path / str(next(counter))
            folder.mkdir()
            return ForwardWorld(folder, template / "centre", on)

        return build

    return of


@pytest.mark.timeout(600)
def test_a_load_into_nodes_may_die_at_any_effect(worlds: Callable[..., Callable[[], ForwardWorld]], when: str) -> None:
    explored = explore(worlds(), when=when)
    assert explored.all_died and explored.points > 50
    assert {name.split()[1].split(".")[0] for name in explored.names} >= {*NODES, "centre", "commit"}


@pytest.mark.timeout(600)
def test_a_merge_into_nodes_may_die_at_any_effect(worlds: Callable[..., Callable[[], ForwardWorld]]) -> None:
    explored = explore(worlds("merge"), when="before")
    assert explored.all_died and explored.points > 15


@pytest.mark.timeout(600)
def test_housekeeping_of_nodes_may_die_at_any_effect(worlds: Callable[..., Callable[[], ForwardWorld]]) -> None:
    explored = explore(worlds("housekeep"), when="before")
    assert explored.all_died and explored.points > 30


@pytest.mark.timeout(600)
def test_recovery_may_die_too(worlds: Callable[..., Callable[[], ForwardWorld]]) -> None:
    assert explore_double(worlds(), pairs=8).crashes > 8


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_any_effect_of_any_of_it_and_any_two_of_a_load(worlds: Callable[..., Callable[[], ForwardWorld]]) -> None:
    explore(worlds("merge"))
    explore(worlds("housekeep"))
    explore_double(worlds(), pairs=2000)
