"""Runs of a link killed with -9, whole process groups, at random moments, while real files come to light in portions.

Whatever dies, the end is the same: `read --tall` equals the server's own answers, coverage is complete, `verify --deep`
finds nothing; where the receiver is remote, `verify` at both ends. The seed stands in the test's id; TIDEMARK_TEST_SEED adds
to it, for other sweeps.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.killed_world import LOAD, MERGE, NO_LOAD, REPAIR, SYNC, KilledWorld, Killer
from tests.expected import SITES
from tests.services.deployed import HOUSEKEEP, Deployed
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
FOLDERS = pytest.mark.parametrize("folder", list(SITES))
World = Callable[..., KilledWorld]
EVERY_VERB = (SYNC, NO_LOAD, LOAD, MERGE, REPAIR, HOUSEKEEP)


@pytest.fixture
def pushing(tmp_path: Path, sshd: Sshd) -> World:
    """The site's Tidemark sends to a receiver behind ssh; another one loads there. Runs of both are killed."""

    def build(folder: str, seed: int) -> KilledWorld:
        seed += BASE_SEED
        print(f"seed {seed}")
        chance, site, receiver = random.Random(seed), tmp_path / "site", sshd.new_folder("receiver")
        sending = Deployed(tmp_path / "at_site", SITES[folder], site, receiver, receiver_through=sshd).write()
        beside = replace(sending, folder=tmp_path / "at_centre", site_root=tmp_path, receiver_through=None)
        beside.folder.mkdir()
        beside.config.write_text(f'[receivers.centre]\nstore = "file://{receiver}"\n')
        filling = FillingSite(SITES[folder], site, chance)
        return KilledWorld(filling, sending, Killer(chance), (SYNC, SYNC, LOAD, MERGE), beside)

    return build


@pytest.fixture
def world(tmp_path: Path) -> World:
    def build(folder: str, seed: int, through: Sshd | None = None, ledger: str = "sqlite:///var/ledger.db") -> KilledWorld:
        seed += BASE_SEED
        print(f"seed {seed}")
        chance = random.Random(seed)
        root = through.new_folder("site") if through else tmp_path / "site"
        filling = FillingSite(SITES[folder], root, chance)
        deployed = Deployed(
            tmp_path / "deployed", SITES[folder], root, tmp_path / "centre", site_through=through, ledger=ledger
        )
        return KilledWorld(filling, deployed.write(), Killer(chance))

    return build


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_dozen_kills(world: World) -> None:
    killed = world("2.0.1-beta", 1)
    killed.live(12)
    killed.rest()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_dozen_kills_over_ssh(world: World, sshd: Sshd) -> None:
    killed = world("0.12.0", 2, through=sshd)
    killed.live(12)
    killed.rest()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_verb_killed(world: World) -> None:
    killed = world("0.12.0", 3)
    killed.commands = EVERY_VERB
    killed.live(12)
    killed.rest()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_push_killed_at_both_ends(pushing: World) -> None:
    killed = pushing("2.0.1-beta", 4)
    killed.live(12)
    killed.rest()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
@pytest.mark.parametrize("seed", range(500, 502))
def test_a_push_killed_fifty_times(folder: str, seed: int, pushing: World) -> None:
    killed = pushing(folder, seed)
    killed.live(50)
    killed.rest()


def damage(killed: KilledWorld, count: int) -> None:
    """Flip a bit, cut or remove `count` files that readers see; merged ones, deletions and landed papers' too."""
    chance = killed.killer.chance
    for place in chance.sample(sorted(p for p in (killed.receiver / "data").rglob("*") if p.is_file()), count):
        data = bytearray(place.read_bytes())
        match chance.randrange(3):
            case 0:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                place.write_bytes(data)
            case 1:
                place.write_bytes(data[: chance.randrange(len(data))])
            case _:
                place.unlink()


def repairs_killed(killed: KilledWorld, kills: int) -> None:
    """Damage, then repairs that are killed; the last one is not."""
    deployed, rounds = killed.deployed, 3
    while killed.filling.reveal():
        pass
    deployed.run(*SYNC)
    deployed.run(*MERGE)
    for done in range(1, rounds + 1):
        damage(killed, 6)
        assert deployed.run("verify", expect=(20,))["differences"]
        while killed.killer.total < kills * done // rounds:
            killed.killer.strike(deployed, REPAIR)
    deployed.run(*REPAIR, expect=(0, 20))
    assert deployed.read() == killed.filling.site.rows()
    killed.rest()


@pytest.mark.full
@pytest.mark.timeout(900)
def test_repairs_killed(world: World) -> None:
    repairs_killed(world("0.12.0", 5), 6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
@pytest.mark.parametrize("seed", range(600, 602))
def test_repairs_killed_thirty_times(folder: str, seed: int, world: World) -> None:
    repairs_killed(world(folder, seed), 30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
@pytest.mark.parametrize("seed", range(100, 103))
def test_fifty_kills(folder: str, seed: int, world: World) -> None:
    killed = world(folder, seed)
    killed.live(50)
    killed.rest()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
@pytest.mark.parametrize("seed", range(200, 202))
def test_fifty_kills_over_ssh(folder: str, seed: int, world: World, sshd: Sshd) -> None:
    killed = world(folder, seed, through=sshd)
    killed.live(50)
    killed.rest()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
@pytest.mark.parametrize("seed", range(300, 302))
def test_every_verb_killed_fifty_times(folder: str, seed: int, world: World) -> None:
    killed = world(folder, seed)
    killed.commands = EVERY_VERB
    killed.live(50)
    killed.rest()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@FOLDERS
def test_fifty_kills_with_a_ledger_in_postgresql(folder: str, world: World, postgres_url: str) -> None:
    killed = world(folder, 400, ledger=postgres_url)
    killed.commands = (SYNC, SYNC, NO_LOAD, LOAD, MERGE)
    killed.live(50)
    killed.rest()
