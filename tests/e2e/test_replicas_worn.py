"""Whatever happens to a group in whatever order: what was acknowledged is read in the end, with a ledger and without one.

Three nodes in folders, small files that overlap. Verbs are run, or killed with -9; the ledger is lost, or comes from an
older copy, with the receiver's mark of that time or a newer one; one member at a time goes away, is put back from an older
copy of its folder, has bits flipped in files and logs. A verb that ends with 6 asks for a rebuild, and gets it.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.centre import run_inline
from tests.commanded import Said, run_here
from tests.expected import RealSite
from tests.services.deployed import Deployed, read_csv
from tests.small_files import sealed, source
from tidemark.tsfiles.names import MARK_FILE

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
NODES = ("n1", "n2", "n3")
SYNC, LOAD, MERGE = ("sync", "plant1"), ("load",), ("merge",)
WATCH, RECOVER, CHECK = ("replica", "watch"), ("replica", "recover"), ("cluster", "check")
SEALED_AT = 1_700_000_000
STEPS = 14

pytestmark = pytest.mark.full


@dataclass
class Worn:
    """A deployment, its chance, and what happened. `doubted`: the one member that something was done to."""

    folder: Path
    chance: random.Random
    points: dict[tuple[str, int], int] = field(default_factory=dict)
    files: int = 0
    copies: list[tuple[Path, bytes]] = field(default_factory=list)  # of the ledger, with the mark of that time
    kept: str = ""  # the node whose folder was copied
    away: str = ""
    doubted: str = ""
    happened: list[str] = field(default_factory=list)

    def begin(self) -> None:
        site = RealSite("made", self.site, ("data/sequence", "data/unsequence"), "schema")
        for place in (*site.data, "schema"):
            (self.site / place).mkdir(parents=True)
        self.deployed = Deployed(self.folder / "deployed", site, self.site, self.folder / "centre", here=True).write()
        nodes = [f'[nodes.{name}]\nstore = "file://{self.node(name)}"\n' for name in NODES]
        with self.deployed.config.open("a") as config:
            config.write("\n[cluster]\nreplicas = 3\nquorum = 2\nslots = 30\nmisses = 1\n" + "".join(nodes))
        for name in NODES:
            self.node(name).mkdir()
        self.seal()
        self.deployed.run(*SYNC)
        self.deployed.run("cluster", "init", "--yes")
        self.copy_ledger()

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def ledger(self) -> Path:
        return self.deployed.folder / "var" / "ledger.db"

    def node(self, name: str) -> Path:
        return self.folder / name

    def seal(self) -> None:
        """A file more at the site. Out of order it overlaps what is there, and wins."""
        self.files += 1
        late, database = self.chance.random() < 0.4, f"root.{self.chance.choice('abcd')}"
        first = self.chance.randrange(1, 40) if late else 1000 * self.files
        points = [(first + number, 100 * self.files + number) for number in range(3)]
        for end, data in sealed({f"{database}.d": {"s": points}}).items():
            place = self.site / (source(self.files, unsequence=late, database=database) + end)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            os.utime(place, (SEALED_AT, SEALED_AT))
        self.points |= {(f"{database}.d", time): value for time, value in points}

    # what happens

    def step(self) -> None:
        acts: list[Callable[[], object]] = [
            *[self.sync] * 5,
            *[self.kill] * 4,
            *[lambda: self.do(*MERGE)] * 2,
            *[lambda: self.do(*WATCH)] * 2,
            lambda: self.do(*RECOVER, *self.chance.choice([(), (self.chance.choice(NODES),)])),
            lambda: self.do(*CHECK),
            *[self.copy_ledger] * 2,
            self.restore_ledger,
            self.lose_ledger,
            *[self.copy_node] * 2,
            *[self.restore_node] * 2,
            self.flip,
            self.go_away,
            *[self.come_back] * 2,
        ]
        self.chance.choice(acts)()

    def do(self, *words: str) -> Said:
        """Run a verb; where it says that the ledger is older than the nodes, make it from them."""
        said = run_here(self.deployed.config, *words, "--yes")
        self.happened.append(f"{' '.join(words)} ended with {said.code}")
        if said.code == 6 and "ledger rebuild" in said.out:
            self.rebuild()
        return said

    def sync(self) -> None:
        self.seal()
        self.do(*SYNC)

    def kill(self) -> None:
        self.seal()
        words = self.chance.choice([SYNC, MERGE, WATCH, RECOVER, LOAD])
        process = self.deployed.start(*words)
        try:
            process.communicate(timeout=self.chance.uniform(0, 0.6))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        self.happened.append(f"{' '.join(words)} was killed")

    def copy_ledger(self) -> None:
        copy = self.folder / f"copy{len(self.copies)}-{self.files}.db"
        copy.unlink(missing_ok=True)
        if self.do("ledger", "backup", str(copy)).code == 0:
            self.copies.append((copy, (self.folder / "centre" / MARK_FILE).read_bytes()))

    def restore_ledger(self) -> None:
        if self.doubted:
            return
        copy, mark = self.chance.choice(self.copies)
        self.remove_ledger()
        shutil.copy(copy, self.ledger)
        if self.chance.random() < 0.7:
            (self.folder / "centre" / MARK_FILE).write_bytes(mark)
        self.happened.append(f"the ledger is {copy.name}")
        self.do(*self.chance.choice([LOAD, MERGE, WATCH, SYNC]))

    def lose_ledger(self) -> None:
        if not self.doubted:
            self.remove_ledger()
            self.happened.append("the ledger is lost")
            self.rebuild()

    def remove_ledger(self) -> None:
        for path in self.ledger.parent.glob("ledger.db*"):
            path.unlink()

    def rebuild(self) -> None:
        self.come_back()
        self.deployed.run("ledger", "rebuild", "--replace", "--yes", expect=(0, 23))
        self.happened.append("the ledger was rebuilt")
        self.copies = []
        self.copy_ledger()

    def copy_node(self) -> None:
        if not self.away:
            self.kept = self.chance.choice(NODES)
            shutil.rmtree(self.folder / "kept", ignore_errors=True)
            shutil.copytree(self.node(self.kept), self.folder / "kept")

    def restore_node(self) -> None:
        if self.kept and self.away in ("", self.kept) and self.doubted in ("", self.kept):
            self.doubted = self.kept
            place = self.folder / "away" if self.away else self.node(self.kept)
            shutil.rmtree(place)
            shutil.copytree(self.folder / "kept", place)
            self.happened.append(f"{self.kept} was put back")

    def flip(self) -> None:
        name = self.doubted or self.chance.choice(NODES)
        places = sorted(path for path in self.node(name).rglob("*") if path.suffix in (".tsfile", ".log"))
        if places and not self.away:
            place = self.chance.choice(places)
            data = bytearray(place.read_bytes())
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            place.write_bytes(data)
            self.doubted = name
            self.happened.append(f"a bit of {place.relative_to(self.folder)} flipped")

    def go_away(self) -> None:
        if not self.away:
            self.away = self.doubted or self.chance.choice(NODES)
            self.node(self.away).rename(self.folder / "away")
            self.happened.append(f"{self.away} is away")

    def come_back(self) -> None:
        if self.away:
            (self.folder / "away").rename(self.node(self.away))
            self.away = ""

    # the end

    def heal(self) -> None:
        self.come_back()
        for words in (SYNC, WATCH, WATCH, WATCH, SYNC, *((*RECOVER, name) for name in NODES), (*CHECK, "--repair")):
            self.do(*words)
        for words in (WATCH, WATCH, SYNC):
            self.deployed.run(*words)

    def prove(self) -> None:
        wanted = sorted((device, "s", time, "INT64", str(value)) for (device, time), value in self.points.items())
        for words in ((), ("--from-nodes",)):
            out = self.folder / "points.csv"
            self.deployed.run("read", "--tall", "--out", str(out), *words)
            assert sorted(read_csv(out)) == wanted
        self.deployed.run("replica", "verify")
        assert self.deployed.run(*CHECK)["problems"] == []


def live(folder: Path, seed: int) -> None:
    print(f"seed {seed}")
    worn = Worn(folder, random.Random(seed))
    worn.begin()
    try:
        for _ in range(STEPS):
            worn.step()
        worn.heal()
        worn.prove()
    finally:
        print("\n".join(worn.happened))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("marked", [True, False], ids=["mark-of-that-time", "newer-mark"])
def test_a_sync_whose_load_is_refused_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: bool) -> None:
    """The ledger is an older copy. The sync says so each time; made from the nodes, everything is there once."""
    run_inline(monkeypatch)
    worn = Worn(tmp_path, random.Random(1))
    worn.begin()
    for _ in range(2):
        worn.seal()
        worn.deployed.run(*SYNC)
    copy, mark = worn.copies[0]
    worn.remove_ledger()
    shutil.copy(copy, worn.ledger)
    if marked:
        (tmp_path / "centre" / MARK_FILE).write_bytes(mark)
    for _ in range(2):
        worn.seal()
        run_here(worn.deployed.config, *SYNC, "--yes").refused(6)
    worn.rebuild()
    for words in (SYNC, WATCH, SYNC):
        worn.deployed.run(*words)
    worn.prove()


@pytest.mark.timeout(600)
def test_a_group_that_everything_happens_to_has_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch)
    live(tmp_path, BASE_SEED + 900)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(901, 951))
def test_fifty_groups_that_everything_happens_to(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)
    live(tmp_path, BASE_SEED + seed)
