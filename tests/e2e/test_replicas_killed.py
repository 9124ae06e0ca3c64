"""Loads, rounds of watching, catch-ups and proofs die at random moments, and the ledger comes from an older copy in between.

Three real nodes, each behind an sshd of its own, with a copy of everything each. Commands are killed with -9, whole process
groups, two at a time. A ledger that is older than its nodes is noticed by the first verb, and brought forward from them. A
node's disk is emptied on the way. In the end all members are equal by their digest trees, and readers see the server's own
answers, with the ledger and without one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.killed_world import LOAD, MERGE, SYNC, Command, Killer
from tests.expected import SITES
from tests.services.deployed import HOUSEKEEP, Deployed, read_csv
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
NODES = ("n1", "n2", "n3")
SHOW: Command = ("replica", "show")
VERIFY: Command = ("replica", "verify")
STRUCK = (SYNC, SYNC, LOAD, MERGE, SHOW, VERIFY, HOUSEKEEP)  # a housekeeping brings late members back
BESIDE = (SYNC, LOAD, SHOW)
OLDER = 6  # how a verb ends whose ledger is older than the receiver or the nodes

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.timeout(1800)]


@dataclass
class Life:
    """A site that fills, a centre with three nodes, and the killer of what works there."""

    filling: FillingSite
    deployed: Deployed
    folders: dict[str, Path]
    killer: Killer
    happened: Counter[str] = field(default_factory=Counter)

    def live(self, kills: int, restores: int) -> None:
        """Kill so many times while files come; restore the ledger from older copies, empty a node's disk once."""
        self.filling.reveal()
        self.deployed.run("cluster", "init", "--yes")
        self.settle()
        at = sorted(self.killer.chance.sample(range(1, kills), restores))
        emptied = self.killer.chance.randrange(kills)
        while self.killer.total < kills:
            before = self.killer.total
            if before >= kills * (self.filling.count - len(self.filling.portions)) / self.filling.count:
                self.filling.reveal()
            self.strike()
            if before < self.killer.total and before == emptied:
                self.empty_disk()
            if at and self.killer.total >= at[0]:
                at.pop(0)
                self.restore_older()
        while self.filling.reveal():
            pass

    def strike(self) -> None:
        """One command dies, another works beside it and dies half of the times."""
        beside = self.deployed.start(*self.killer.chance.choice(BESIDE))
        try:
            self.killer.strike(self.deployed, self.killer.chance.choice(STRUCK))
        finally:
            if self.killer.chance.random() < 0.5:
                beside.kill()
            beside.communicate()

    def empty_disk(self) -> None:
        """A node's disk is replaced by an empty one."""
        name = self.killer.chance.choice(NODES)
        shutil.rmtree(self.folders[name])
        self.folders[name].mkdir()
        self.deployed.run("cluster", "check", "--repair", "--lost", name, "--yes", expect=(0, 5, 20, 22, 23, 30))
        self.happened["emptied"] += 1

    def restore_older(self) -> None:
        """The database is restored from a copy that lacks what was committed since: refused, then brought forward."""
        copy = self.deployed.folder / "older.db"
        self.deployed.run("ledger", "backup", str(copy))
        self.filling.reveal()
        self.settle()
        ledger = self.deployed.folder / "var" / "ledger.db"
        for name in ("ledger.db-wal", "ledger.db-shm"):
            (ledger.parent / name).unlink(missing_ok=True)
        shutil.copyfile(copy, ledger)
        copy.unlink()
        told = self.deployed.run(*LOAD, expect=(0, OLDER))
        if not told["ok"]:
            assert "ledger rebuild" in told["hint"], told
            self.deployed.run("ledger", "rebuild", "--replace", "--yes", expect=(0, 23))
            self.happened["noticed"] += 1
        self.happened["restored"] += 1

    def settle(self) -> None:
        self.deployed.run(*SYNC)
        self.deployed.run(*LOAD)

    def rest(self) -> None:
        """Nothing is under way: members are equal, and both ways of reading give what the server itself answers."""
        self.settle()
        self.deployed.run(*HOUSEKEEP)
        seen = self.rows()
        assert read_csv(self.deployed.folder / "points.csv") == self.filling.site.rows()
        proved = self.deployed.run(*VERIFY)
        roots = [{group["root"], *(member["root"] for member in group["members"])} for group in proved["groups"]]
        assert all(len(found) == 1 for found in roots)
        assert self.deployed.run("cluster", "check")["problems"] == []
        roles = [member["role"] for group in self.deployed.run(*SHOW)["groups"] for member in group["members"]]
        assert set(roles) == {"master", "slave"} and roles.count("master") * 3 == len(roles)
        assert self.rows("--from-nodes") == seen
        assert self.deployed.run("verify", "--deep")["differences"] == []
        assert self.rows() == seen

    def rows(self, *words: str) -> bytes:
        place = self.deployed.folder / "points.csv"
        self.deployed.run("read", "--tall", "--out", str(place), *words)
        return place.read_bytes()


@pytest.fixture
def life(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> Callable[[str, int], Life]:
    def build(folder: str, seed: int) -> Life:
        seed += BASE_SEED
        print(f"seed {seed}")
        chance = random.Random(seed)
        servers = {name: start_sshd() for name in NODES}
        folders = {name: server.new_folder(name) for name, server in servers.items()}
        deployed = Deployed(tmp_path / "deployed", SITES[folder], tmp_path / "site", tmp_path / "centre").write()
        nodes = [
            f'[nodes.{name}]\nstore = "{server.url(folders[name])}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"\n'
            for name, server in servers.items()
        ]
        cluster = '[cluster]\nreceiver = "centre"\nreplicas = 3\nquorum = 2\nslots = 100\n'
        with deployed.config.open("a") as config:
            config.write("\n".join(["", cluster, *nodes]))
        return Life(FillingSite(SITES[folder], tmp_path / "site", chance), deployed, folders, Killer(chance))

    return build


def test_killed_at_six_moments(life: Callable[[str, int], Life]) -> None:
    lived = life("2.0.1-beta", 800)
    lived.live(6, restores=1)
    lived.rest()
    assert lived.happened["emptied"] == lived.happened["restored"] == 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(810, 813))
def test_killed_at_thirty_moments(seed: int, life: Callable[[str, int], Life]) -> None:
    lived = life("2.0.1-beta", seed)
    lived.live(30, restores=3)
    lived.rest()
    assert lived.happened["restored"] == 3 and lived.happened["noticed"] and lived.happened["emptied"] == 1
