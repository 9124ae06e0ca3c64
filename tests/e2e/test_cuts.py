"""A line that is cut at any byte, pull and push: every file arrives once and whole, and nothing is left behind."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.store_ends import address
from tests.services.processes import descendants, soon
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files
from tidemark.transfer.stream import connections as line

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

MB = 1 << 20
OPTIONS = SendOptions(connections=4)
SIZES = [0, 1, 700, *[30_000] * 40, MB - 1, 2 * MB + 5, 9 * MB]
LOGIN = 16_000  # bytes that connecting and asking for python3 take in either direction
MOVES = ["pull", "push"]


@dataclass
class Case:
    """One transfer whose line is cut `times` times. `upwards`: the bytes counted go to the server."""

    way: str
    seed: int
    tier: Tier = Tier.PYTHON

    def __post_init__(self) -> None:
        chance = random.Random(f"{self.way} {self.seed}")
        with_data = chance.random() < 0.8
        self.upwards = (self.way == "push") is with_data
        self.at = chance.randrange(1, LOGIN + sum(SIZES) if with_data else LOGIN)
        if with_data and chance.random() < 0.2:
            self.at = sum(SIZES) + chance.randrange(3 * LOGIN)  # among the last answers and names
        self.times = chance.choice([1, 1, 2, 3])
        self.many = chance.random() < 0.4  # connections


@dataclass
class World:
    server: Sshd
    folder: Path

    def survive(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> int:
        """Runs the case and looks at its end; how many cuts there were."""
        site, centre = (self.folder / f"{case.way}{case.seed}" / end for end in ("site", "centre"))
        items = self.fill(site, case.seed)
        before, elsewhere = len(list(Path("/proc/self/fd").iterdir())), set(descendants(self.server.pid))
        # Two connections at first: with more of them slow small files are asked twice, and that counts as sent again.
        monkeypatch.setattr(line, "SHORT_ROUND_TRIP", 0.0 if case.many else 1.0)
        monkeypatch.setattr(line, "MANY", 1)
        with Wire(self.server.port, upwards=case.upwards) as wire:
            wire.cut_after(case.at, case.times)
            if case.many:
                wire.pace(40e6)
            remote = open_store(address(self.server, site if case.way == "pull" else centre, wire.port), case.tier)
            local = LocalStore(str(centre if case.way == "pull" else site))
            outcomes = list(send_files(*((remote, local) if case.way == "pull" else (local, remote)), items, OPTIONS))
            remote.close()
            cuts = wire.cuts
        for one in outcomes:
            assert isinstance(one, Sent), (case, one)
            assert (site / one.item.source_path).read_bytes() == (centre / one.item.target_path).read_bytes(), case
        assert sorted(one.item.target_path for one in outcomes) == sorted(item.target_path for item in items), case
        assert soon(lambda: set(descendants(self.server.pid)) <= elsewhere), (case, "processes at the far end")
        assert soon(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before), (case, "descriptors")
        assert self.files(centre) == sorted(item.target_path for item in items), case
        again = sum(one.wire_bytes for one in outcomes) - sum(SIZES)
        assert again <= cuts * OPTIONS.block_bytes, (case, cuts, again)
        shutil.rmtree(site.parent)
        return cuts

    def fill(self, site: Path, seed: int) -> list[SendItem]:
        chance = random.Random(seed)
        site.mkdir(parents=True)
        for number, size in enumerate(SIZES):
            (site / f"{number}.tsfile").write_bytes(chance.randbytes(size))
            os.utime(site / f"{number}.tsfile", (1_600_000_000, 1_600_000_000))
        return [SendItem(f"{n}.tsfile", f"landing/d{n % 3}/{n}.tsfile", size) for n, size in enumerate(SIZES)]

    @staticmethod
    def files(folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sweep(world: World, way: str, cases: int, monkeypatch: pytest.MonkeyPatch, tier: Tier = Tier.PYTHON) -> int:
    cuts = 0
    for seed in range(cases):
        with monkeypatch.context() as patch:
            cuts += world.survive(Case(way, seed, tier), patch)
    return cuts


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", MOVES)
def test_a_few_cuts(sshd: Sshd, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(World(sshd, tmp_path), way, 2, monkeypatch) >= 1


@pytest.mark.full
@pytest.mark.parametrize("way", MOVES)
def test_forty_cuts(sshd: Sshd, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(World(sshd, tmp_path), way, 26, monkeypatch) >= 20


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.POSIX, Tier.SFTP])
@pytest.mark.parametrize("way", MOVES)
def test_a_few_cuts_on_the_lower_tiers(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep(World(sshd, tmp_path), way, 2, monkeypatch, tier) >= 1


@pytest.mark.soak
@pytest.mark.parametrize("tier", [Tier.POSIX, Tier.SFTP])
@pytest.mark.parametrize("way", MOVES)
def test_forty_cuts_on_the_lower_tiers(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep(World(sshd, tmp_path), way, 13, monkeypatch, tier) >= 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", MOVES)
def test_five_hundred_cuts(sshd: Sshd, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(World(sshd, tmp_path), way, 620, monkeypatch) >= 500
