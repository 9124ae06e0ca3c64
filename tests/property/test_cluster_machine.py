"""Whatever is done to the nodes, in whatever order, dying anywhere: every file stays readable with its digest, and it ends.

A machine over loading, adding, removing, rebalancing, moving some slots, rolling back, nodes that are away and processes
that die at any effect. The model is plain: location → bytes that readers see, the names of the members, the change that is
open. What must hold at every instant is `MovingWorld.audit`; at the end, with all nodes back, `MovingWorld.settled`.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.crash.explorer import Died, Effects
from tests.moving_world import RECEIVER, MovingWorld, put
from tidemark.app import App
from tidemark.cluster.health.housekeeping import keep_nodes
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster, roll_back
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.replicas.cache import evict_cache
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.errors import NoQuorumError, NotFoundError, RetryableError, UsageError
from tidemark.settings.model import ClusterSettings

NODES = ("n1", "n2", "n3", "n4", "n5")
REPLICAS = 2
DEATHS = st.one_of(st.just(0), st.integers(1, 120))  # at which effect the process dies; 0: it lives


class ClusterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tidemark-machine-"))
        self.files: dict[str, str] = {}  # location → digest that readers see
        self.members: set[str] = set()
        self.open: Wanted | None = None  # the change that is open: kind, node and whom that replaces
        self.in_force = False  # whether its table is

    @initialize(
        first=st.sampled_from([("n1", "n2"), ("n1", "n2", "n3")]), balance=st.sampled_from(["slots", "bytes", "compat"])
    )
    def begin(self, first: tuple[str, ...], balance: str) -> None:
        self.world = MovingWorld(
            self.folder,
            first,
            tuple(name for name in NODES if name not in first),
            ClusterSettings(replicas=REPLICAS, quorum=1, slots=6, grace_hours=0, cache_bytes=0, balance=balance),
        )
        self.load("root.early", 1, 0)
        with self.world.app(nodes=first) as app:
            init_cluster(app, self.world.receiver)
        self.members = set(first)

    # what is done

    @rule(database=st.sampled_from(["root.a", "root.b"]), partition=st.integers(-3, 9), wide=st.integers(0, 3))
    def load(self, database: str, partition: int, wide: int) -> None:
        try:
            with self.world.app() as app:
                file = put(app, self.world.receiver, database, partition, partition + wide, "", f"{len(self.files)}")
        except NoQuorumError:
            assert self.world.away, "every node is there"
            return
        self.files[file.location] = file.sha256

    @rule(kind=st.sampled_from(["add", "remove"]), node=st.sampled_from(NODES), wait=st.booleans(), death=DEATHS)
    def change(self, kind: str, node: str, wait: bool, death: int) -> None:
        self._change(Wanted(kind, node), wait, death)

    @rule(death=DEATHS)
    def rebalance(self, death: int) -> None:
        self._change(Wanted("rebalance"), True, death)

    @rule(death=DEATHS)
    def go_on(self, death: int) -> None:
        if self.open is not None:
            self._change(self.open, True, death)

    @rule(gone=st.sampled_from(NODES), node=st.sampled_from(NODES), leaves=st.booleans(), wait=st.booleans(), death=DEATHS)
    def supersede(self, gone: str, node: str, leaves: bool, wait: bool, death: int) -> None:
        """A node of the table in force is replaced, or leaves, while slots of the change before still move."""
        states = {str(name): state for name, state in self.world.sql("SELECT node, state FROM cluster_node")}
        if not self.in_force or gone not in self.members or (leaves and len(self.members) <= REPLICAS):
            return
        if not leaves and states.get(node, "left") != "left":
            return
        ((before,),) = self.world.sql("SELECT change_id FROM cluster_change WHERE state IN ('swapped', 'migrating')")
        wanted = Wanted("remove", gone) if leaves else Wanted("replace", node, gone=gone)
        asked = replace(wanted, supersedes=str(before))
        self._try(lambda app: change_nodes(app, self.world.receiver, asked, wait=wait), death, asked)

    @rule(share=st.floats(0, 1), death=DEATHS)
    def move_some_slots(self, share: float, death: int) -> None:
        slots = range(round(share * self.world.cluster.slots))
        self._try(lambda app: migrate_slots(app, self.world.receiver, slots=slots), death)

    @rule(death=DEATHS)
    def roll_back(self, death: int) -> None:
        def act(app: App) -> None:
            try:
                roll_back(app, self.world.receiver)
            except NotFoundError:
                assert self.open is None
            except UsageError:
                assert self.in_force

        self._try(act, death)

    @rule(node=st.sampled_from(("", *NODES)))
    def goes_away(self, node: str) -> None:
        """One at most; "" brings it back."""
        self.world.away = {node} if node else set()

    @rule()
    def catch_up(self) -> None:
        with self.world.app() as app, self.world.open(app) as cluster:
            catch_up(cluster, self.world.stores[RECEIVER])

    @rule()
    def give_up_the_cache(self) -> None:
        """The receiver forgets what every member holds."""
        with self.world.app() as app, self.world.open(app) as cluster:
            evict_cache(cluster, self.world.stores[RECEIVER], 1)

    # what must hold

    @invariant()
    def every_file_is_readable(self) -> None:
        if not self.members:
            return
        self.world.audit()
        seen = {str(location): sha256 for location, sha256 in self.world.sql("SELECT location, sha256 FROM catalog_file")}
        assert seen == self.files
        for location, sha256 in self.files.items():
            places = [name for name in self.world.stores if self.world.digest(name, location) == sha256]
            assert places, location
            data = self.world.stores[places[0]].read(location)
            assert hashlib.sha256(data).hexdigest() == sha256

    def teardown(self) -> None:
        try:
            if self.members:
                self._end()
        finally:
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        self.world.away = set()
        if self.open is not None:
            self._change(self.open, True, 0)
        with self.world.app() as app:
            migrate_slots(app, self.world.receiver)
            with self.world.open(app) as cluster:
                keep_nodes(cluster, self.world.stores[RECEIVER])  # what loads without a quorum left goes with it
        self.every_file_is_readable()
        self.world.settled()
        self.world.proved()

    # the model

    def _change(self, wanted: Wanted, wait: bool, death: int) -> None:
        refused = self._refusal(wanted)

        def act(app: App) -> None:
            if refused is None:
                change_nodes(app, self.world.receiver, wanted, wait=wait)
                return
            try:
                change_nodes(app, self.world.receiver, wanted, wait=wait)
            except refused:
                return
            raise AssertionError(f"{wanted} was not refused")

        self._try(act, death, wanted)

    def _refusal(self, wanted: Wanted) -> type[Exception] | None:
        if self.open is not None:
            return None if self.open == wanted else RetryableError
        if wanted.kind == "remove" and wanted.node not in self.members:  # said again it is done
            left = [s for n, s in self.world.sql("SELECT node, state FROM cluster_node") if n == wanted.node]
            return None if left == ["left"] else UsageError
        if wanted.kind == "remove" and len(self.members) <= REPLICAS:
            return UsageError
        return None

    def _try(self, act: Callable[[App], Any], death: int, wanted: Wanted | None = None) -> None:
        """Do it, dying where asked; then learn from the ledger how far it came, which must be one of the ways it may."""
        try:
            with self.world.app(Effects(die_at=death)) as app:
                act(app)
        except Died:
            pass
        except (RetryableError, NoQuorumError) as away:
            assert self.world.away, f"every node is there: {away}"
        self._learn(wanted)

    def _learn(self, wanted: Wanted | None) -> None:
        ended = "('done', 'rolled_back', 'superseded')"
        found = self.world.sql(f"SELECT kind, node, gone, state FROM cluster_change WHERE state NOT IN {ended}")
        epoch = self.world.sql("SELECT max(epoch) FROM cluster_table")[0][0]
        assert len(found) <= 1 and isinstance(epoch, int) and epoch - self.world.epoch in (0, 1)
        if epoch > self.world.epoch:
            asked = wanted if wanted is not None and wanted.supersedes else self.open or wanted
            assert asked is not None, "a table came into force that nobody asked for"
            leaving = asked.node if asked.kind == "remove" else asked.gone
            joining = {asked.node} if asked.kind in ("add", "replace") else set()
            self.members = (self.members | joining) - {leaving}
        self.open = Wanted(str(found[0][0]), str(found[0][1]), gone=str(found[0][2])) if found else None
        self.in_force = bool(found) and found[0][3] != "planned"
        serving = {str(row[0]) for row in self.world.sql("SELECT node FROM cluster_node WHERE state = 'serving'")}
        assert serving == self.members


QUICK = (Phase.explicit, Phase.reuse, Phase.generate)  # a failure comes as it is found: shrinking takes many minutes


def test_nodes_change_in_any_order_and_nothing_is_lost() -> None:
    run_state_machine_as_test(
        ClusterMachine, settings=settings(max_examples=settings().max_examples // 6, stateful_step_count=12, phases=QUICK)
    )


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_nodes_change_in_any_order_for_long() -> None:
    run_state_machine_as_test(ClusterMachine, settings=settings(max_examples=200, stateful_step_count=40, phases=QUICK))
