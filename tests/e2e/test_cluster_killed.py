"""A centre on real nodes, each behind an sshd of its own, grows by two and loses one, while it loads and everything dies.

Commands are killed with -9 at random moments, whole process groups, changes of the cluster and what loads beside them.
After every step the copies are what they should be and readers see what they saw; in the end the server's own answers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.killed_world import LOAD, MERGE, SYNC, Command, Killer
from tests.expected import SITES
from tests.services.deployed import Deployed, read_csv
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
NODES = ("n1", "n2", "n3", "n4", "n5")
FIRST = NODES[:3]
STEPS = (("init", ""), ("add", "n4"), ("add", "n5"), ("remove", "n1"))

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.timeout(1800)]


@dataclass
class Life:
    """A site that fills, a centre with nodes, and the killer of both."""

    filling: FillingSite
    deployed: Deployed
    nodes: dict[str, Command]  # what `cluster add` is told of each
    killer: Killer
    beside: tuple[Command, ...] = (SYNC, SYNC, LOAD, MERGE)
    done: list[str] = field(default_factory=list)

    def step(self, kind: str, node: str, kills: int) -> None:
        """One change of the cluster, killed so many times while files come and are loaded; then carried to its end."""
        command = ("cluster", kind, "--yes", *(self.nodes[node] if kind == "add" else filter(None, [node])))
        struck = 0
        while struck < kills and not self.is_done(kind, node):
            self.filling.reveal()
            loading = self.deployed.start(*self.killer.chance.choice(self.beside))
            try:
                struck += self.killer.strike(self.deployed, command)
            finally:
                if self.killer.chance.random() < 0.5:
                    loading.kill()
                loading.communicate()
            self.look()
        if not self.is_done(kind, node):
            self.deployed.run(*command)
        assert self.is_done(kind, node)
        self.rest()

    def is_done(self, kind: str, node: str) -> bool:
        """Killed may be killed too late: the change was made, and the same command would be another one."""
        shown = self.deployed.run("cluster", "show", expect=(0, 3))
        if not shown["ok"] or shown["moving"] or shown.get("change"):
            return False
        there = {one["name"] for one in shown["nodes"] if one["state"] == "serving"}
        return there >= set(FIRST) if kind == "init" else (node in there) == (kind == "add")

    def look(self) -> None:
        """Whatever was just killed, at every node there is what the ledger says, and every point is read. Before `init` is
        in force there is no table."""
        seen = self.deployed.run("cluster", "check", expect=(0, 3))
        assert seen["kind"] == 3 if "error" in seen else seen["problems"] == []
        proof = self.deployed.run("verify", "--deep", expect=(0, 23))
        assert proof["differences"] == [] and (proof["ok"] or proof["not_compared"]), proof  # 23: the site's run was killed

    def rest(self) -> None:
        """Nothing is under way: all copies are there and nothing else, each way of reading gives the same. A load brings
        what members missed of one that was killed; a sync without news starts none."""
        self.deployed.run(*SYNC)
        self.deployed.run(*LOAD)
        seen = self.rows()
        assert self.deployed.run("cluster", "check")["problems"] == []
        assert self.deployed.run("verify", "--deep")["differences"] == []
        assert self.rows() == seen

    def rows(self) -> bytes:
        place = self.deployed.folder / "points.csv"
        self.deployed.run("read", "--tall", "--out", str(place))
        return place.read_bytes()


@pytest.fixture
def life(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> Callable[[str, int], Life]:
    def build(folder: str, seed: int) -> Life:
        seed += BASE_SEED
        print(f"seed {seed}")
        chance = random.Random(seed)
        servers = {name: start_sshd() for name in NODES}
        urls = {name: server.url(server.new_folder(name)) for name, server in servers.items()}
        known = [
            f'[nodes.{name}]\nstore = "{urls[name]}"\nhost_key = "{servers[name].host_key}"\nkey = "{servers[name].key}"\n'
            for name in FIRST
        ]
        deployed = Deployed(tmp_path / "deployed", SITES[folder], tmp_path / "site", tmp_path / "centre").write()
        cluster = '[cluster]\nreceiver = "centre"\nreplicas = 2\nquorum = 2\nslots = 100\n'
        with deployed.config.open("a") as config:
            config.write("\n".join(["", cluster, *known]))
        added = {
            name: (f"{name}={urls[name]}", "--host-key", server.host_key, "--key", str(server.key))
            for name, server in servers.items()
        }
        return Life(FillingSite(SITES[folder], tmp_path / "site", chance), deployed, added, Killer(chance))

    return build


def live(life: Life, kills: int, steps: Sequence[tuple[str, str]] = STEPS) -> None:
    life.filling.reveal()
    for kind, node in steps:
        life.step(kind, node, kills // len(steps))
    while life.filling.reveal():
        pass
    life.rest()
    assert read_csv(life.deployed.folder / "points.csv") == life.filling.site.rows()
    assert life.deployed.run("coverage")["complete"] is True


def test_killed_at_six_moments(life: Callable[[str, int], Life]) -> None:
    live(life("2.0.1-beta", 700), 6, (("init", ""), ("add", "n4"), ("remove", "n1")))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("folder", list(SITES))
@pytest.mark.parametrize("seed", range(710, 713))
def test_killed_at_many_moments(folder: str, seed: int, life: Callable[[str, int], Life]) -> None:
    live(life(folder, seed), 32)
