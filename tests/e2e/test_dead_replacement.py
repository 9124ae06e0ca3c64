"""A node dies for good, and so does the one that replaces it, in the middle of its files; the next one takes the place.

Five nodes, each behind an sshd of its own, and the command alone: who dies is a server that is stopped. Files come before
and behind. In the end the members of each group are equal, nothing differs at any node, and readers see what they saw.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.killed_world import LOAD, SYNC
from tests.expected import SITES
from tests.services.deployed import Deployed, read_csv
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

FIRST, SPARE = ("n1", "n2", "n3"), ("n4", "n5")
CLUSTER = """
[cluster]
receiver = "centre"
replicas = 3
quorum = 2
slots = 100
grace_hours = 0
replace_hours = 1
"""
SLOW = 'bandwidth = "30 kB/s"\n'  # so slow that a replacement is seen half filled

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.timeout(900)]


@dataclass
class Life:
    """A site that fills, and a centre whose nodes may die."""

    filling: FillingSite
    deployed: Deployed
    servers: dict[str, Sshd]
    folders: dict[str, Path]

    def come(self) -> bytes:
        """More files come, and are loaded; what readers see then."""
        self.filling.reveal()
        self.deployed.run(*SYNC)
        self.deployed.run(*LOAD)
        return self.rows()

    def rows(self, *words: str) -> bytes:
        place = self.deployed.folder / "points.csv"
        self.deployed.run("read", "--tall", "--out", str(place), *words)
        return place.read_bytes()

    def watch(self) -> dict[str, Any]:
        return self.deployed.run("replica", "watch", expect=(0, 5))

    def stay_away(self, *nodes: str) -> None:
        """The watch has missed them for two hours."""
        for _ in range(3):
            told = self.watch()
        assert set(told["offline"]) == set(nodes)
        with closing(sqlite3.connect(self.deployed.folder / "var" / "ledger.db")) as ledger, ledger:
            ledger.execute("UPDATE node_watch SET since = since - 7200 WHERE misses > 0")
        assert set(self.watch()["due"]) == set(nodes)

    def die_half_filled(self, node: str) -> None:
        """The node joins by `replica replace`, and its server stops once some of its files are there."""
        settings = self.deployed.config.read_text()
        self.deployed.config.write_text(settings.replace("[cluster]\n", "[cluster]\n" + SLOW))
        replacing = self.deployed.start("replica", "replace")
        until = time.monotonic() + 120
        while not self.files_at(node):
            assert time.monotonic() < until, "nothing came to it"
            time.sleep(0.05)
        self.servers[node].stop()
        out, err = replacing.communicate()
        assert replacing.wait() == 5, (out, err)
        self.deployed.config.write_text(settings)

    def files_at(self, node: str) -> list[Path]:
        return sorted((self.folders[node] / "data").rglob("*.tsfile"))

    def changes(self) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self.deployed.folder / "var" / "ledger.db")) as ledger:
            return ledger.execute("SELECT kind, node, gone, state FROM cluster_change ORDER BY begun, from_epoch").fetchall()

    def is_whole(self, *ring: str) -> None:
        """These nodes serve. The members of each group are equal on their disks, and no node has anything that differs."""
        proved = self.deployed.run("replica", "verify")["groups"]
        assert {member["node"] for group in proved for member in group["members"]} == set(ring)
        roots = [{group["root"], *(member["root"] for member in group["members"])} for group in proved]
        assert all(len(found) == 1 for found in roots)
        assert self.deployed.run("cluster", "check")["problems"] == []
        shown = self.deployed.run("replica", "show")["groups"]
        assert {member["role"] for group in shown for member in group["members"]} == {"master", "slave"}


@pytest.fixture
def life(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> Life:
    servers = {name: start_sshd() for name in (*FIRST, *SPARE)}
    folders = {name: server.new_folder(name) for name, server in servers.items()}
    site = SITES["2.0.1-beta"]
    deployed = Deployed(tmp_path / "deployed", site, tmp_path / "site", tmp_path / "centre").write()
    made = Life(FillingSite(site, tmp_path / "site", random.Random(7), count=3), deployed, servers, folders)
    made.come()
    write_settings(made, CLUSTER, *FIRST)
    deployed.run("cluster", "init", "--yes")
    write_settings(made, "", *SPARE)
    return made


def write_settings(life: Life, more: str, *nodes: str) -> None:
    with life.deployed.config.open("a") as config:
        config.write(more)
        for name in nodes:
            server = life.servers[name]
            at = f'store = "{server.url(life.folders[name])}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"'
            config.write(f"\n[nodes.{name}]\n{at}\n")


def test_the_next_node_takes_the_place_of_a_replacement_that_died(life: Life) -> None:
    life.servers["n2"].stop()
    seen = life.come()
    life.stay_away("n2")
    life.die_half_filled("n4")
    assert life.changes()[-1][:3] == ("replace", "n4", "n2") and life.changes()[-1][3] in ("swapped", "migrating")
    assert life.rows() == seen, "the two that are left answer"
    life.deployed.run("replica", "replace", expect=(5,))  # n4 is not away for so long: it may come back
    life.stay_away("n4")  # n2 is asked no more: it is in no table since the first change
    wanted = len(life.files_at("n1"))
    assert 0 < len(life.files_at("n4")) < wanted

    told = life.deployed.run("replica", "replace")
    assert (told["node"], told["did"], told["state"]) == ("n4", "replace n4 by n5", "done")
    assert life.changes()[-2:] == [("replace", "n4", "n2", "superseded"), ("replace", "n5", "n4", "done")]
    life.watch()
    life.is_whole("n1", "n3", "n5")
    assert life.rows() == seen == life.rows("--from-nodes")

    assert life.come() != seen
    life.is_whole("n1", "n3", "n5")
    assert read_csv(life.deployed.folder / "points.csv") == life.filling.site.rows()

    for node in ("n2", "n4"):  # they are up again, and nothing of theirs counts
        life.servers[node].restart()
    assert life.watch()["nodes"] == 3
    assert life.deployed.run("replica", "replace")["did"] == ""
    life.is_whole("n1", "n3", "n5")
