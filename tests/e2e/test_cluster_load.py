"""Loads go to real nodes, each behind an sshd of its own: with one away, with too few, with an emptied receiver, damaged."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.expected import SITES
from tests.services.deployed import Deployed, read_csv
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

NODES = ("n1", "n2", "n3")
FOLDER = "2.0.1-beta"
PATIENCE = 60.0  # seconds a load may take while a node is away

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.timeout(900)]


@dataclass
class Centre:
    """A site that fills, and a centre of three nodes with three copies of everything."""

    filling: FillingSite
    deployed: Deployed
    servers: dict[str, Sshd]
    folders: dict[str, Path]

    def sync(self, expect: tuple[int, ...] = (0,)) -> float:
        """Reveal more of the site and bring it here; seconds."""
        self.filling.reveal()
        begun = time.monotonic()
        self.deployed.run("sync", "plant1", expect=expect)
        return time.monotonic() - begun

    def rows(self) -> bytes:
        place = self.deployed.folder / "points.csv"
        self.deployed.run("read", "--tall", "--out", str(place))
        return place.read_bytes()

    def copies(self, node: str) -> set[str]:
        return {p.relative_to(self.folders[node]).as_posix() for p in (self.folders[node] / "data").rglob("*.tsfile*")}

    def is_sound(self) -> None:
        assert self.deployed.run("cluster", "check")["problems"] == []
        assert self.deployed.run("verify", "--deep")["differences"] == []


@pytest.fixture
def centre(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> Centre:
    servers = {name: start_sshd() for name in NODES}
    folders = {name: server.new_folder(name) for name, server in servers.items()}
    deployed = Deployed(tmp_path / "deployed", SITES[FOLDER], tmp_path / "site", tmp_path / "centre", here=True).write()
    with deployed.config.open("a") as config:
        config.write('\n[cluster]\nreceiver = "centre"\nreplicas = 3\nquorum = 2\nslots = 100\n')
        for name, server in servers.items():
            store = f'store = "{server.url(folders[name])}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"\n'
            config.write(f"[nodes.{name}]\n{store}")
    filling = FillingSite(SITES[FOLDER], tmp_path / "site", Random(7), count=4)
    centre = Centre(filling, deployed, servers, folders)
    deployed.run("cluster", "init")
    return centre


def test_one_node_may_be_away_and_catches_up_two_may_not(centre: Centre) -> None:
    centre.sync()
    assert centre.copies("n1") == centre.copies("n2") == centre.copies("n3") != set()
    centre.servers["n2"].stop()
    slowed = centre.sync()
    assert slowed < PATIENCE
    seen = centre.rows()
    assert centre.copies("n2") < centre.copies("n1") == centre.copies("n3")

    centre.servers["n3"].stop()
    centre.filling.reveal()
    landed = centre.deployed.run("sync", "plant1", expect=(30,))
    assert landed["ok"] is False
    assert "n2" in landed["error"] and "n3" in landed["error"] and "2 are needed" in landed["error"]
    centre.servers["n3"].restart()
    assert centre.rows() == seen  # nothing of it is visible
    centre.servers["n2"].restart()
    centre.deployed.run("load")
    while centre.filling.reveal():
        pass
    centre.sync()
    centre.rows()
    assert read_csv(centre.deployed.folder / "points.csv") == centre.filling.site.rows()
    assert centre.copies("n1") == centre.copies("n2") == centre.copies("n3")
    centre.is_sound()


def test_an_emptied_receiver_reads_merges_and_verifies_the_same(centre: Centre) -> None:
    while centre.filling.reveal():
        pass
    centre.sync()
    seen = centre.rows()
    kept = centre.deployed.folder.parent / "centre" / "data"
    shutil.rmtree(kept)
    assert centre.deployed.run("verify")["differences"] == []
    assert not kept.exists()
    assert centre.rows() == seen
    assert kept.exists()
    shutil.rmtree(kept)
    centre.deployed.run("merge", expect=(0, 23))
    assert centre.rows() == seen
    shutil.rmtree(kept)
    centre.servers["n1"].stop()  # one fewer to ask
    assert centre.rows() == seen
    centre.servers["n1"].restart()
    centre.is_sound()


def test_damage_at_a_node_is_named_and_mended(centre: Centre) -> None:
    centre.sync()
    location = min(centre.copies("n2"))
    path = centre.folders["n2"] / location
    path.write_bytes(bytes(len(path.read_bytes())))
    gone = max(centre.copies("n3"))
    (centre.folders["n3"] / gone).unlink()
    report = centre.deployed.run("verify", expect=(20,))
    assert {(d["where"], d["path"]) for d in report["differences"]} == {("node n2", location), ("node n3", gone)}
    mended = centre.deployed.run("verify", "--repair")
    assert mended["repaired"] == 2
    centre.is_sound()


def test_the_watch_replaces_a_master_that_is_away_and_brings_it_back_home(centre: Centre) -> None:
    """Rounds over SSH: no answer, another master, what was loaded meanwhile, home again; then a member is taken anew."""
    centre.sync()
    watch = centre.deployed.run("replica", "watch")
    assert (watch["masters"], watch["offline"], watch["groups"]) == ({}, {}, 3)
    centre.servers["n1"].stop()
    for _ in range(3):
        watch = centre.deployed.run("replica", "watch")
    assert watch["offline"] == {"n1": 3} and watch["masters"].get("n1") in ("n2", "n3")
    centre.sync()
    centre.servers["n1"].restart()
    assert centre.deployed.run("replica", "recover", "n1")["left"] == []
    homes = [centre.deployed.run("replica", "watch")["home"] for _ in range(3)]
    assert {"n1": "n1"} in homes and homes[-1] == {}
    assert centre.deployed.run("replica", "resync", "n2", "n1", "--yes")["done"]
    assert list(centre.folders["n2"].glob(".tidemark/quarantine/*/data/**/*.tsfile"))
    assert centre.deployed.run("replica", "switchover", "n1", "--to", "n2")["done"]
    assert centre.deployed.run("replica", "verify")["ok"]
    centre.is_sound()
