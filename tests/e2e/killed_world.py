"""A link over a real server's data folder whose runs are killed with -9 at random, and what must be true at any time."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.services.deployed import HOUSEKEEP, Deployed, read_csv
from tests.services.filling_site import FillingSite
from tidemark.formats.layout import MANIFEST, RECEIPT, landed_path

Command = tuple[str, ...]
SYNC: Command = ("sync", "plant1")
NO_LOAD: Command = ("sync", "plant1", "--no-load")
LOAD: Command = ("load",)
MERGE: Command = ("merge",)
REPAIR: Command = ("verify", "--repair")
HALF = (".part", ".part.blocks", ".tmp")


@dataclass
class Killer:
    """Kills runs at moments spread over what such a run takes."""

    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    lasted: dict[Command, float] = field(default_factory=dict)  # seconds of the longest life of a verb

    def strike(self, deployed: Deployed, command: Command) -> bool:
        """Run a verb and kill it somewhere; False where it was quicker than the blow."""
        began = time.monotonic()
        after = self.chance.uniform(0.0, self.lasted.get(command, 3.0) * 1.1)
        struck = deployed.killed(after, *command)
        self.kills[" ".join(command)] += struck
        lived = time.monotonic() - began
        if struck:
            self.lasted[command] = max(lived, self.lasted.get(command, 3.0))
        else:
            self.lasted[command] = max(lived, 0.9 * self.lasted.get(command, 3.0))
        return struck

    @property
    def total(self) -> int:
        return self.kills.total()


@dataclass
class KilledWorld:
    """A site that fills, a deployment, and its killer. `commands`: what is run and killed, in turn by chance.

    `beside`: the Tidemark at the receiver, where the receiver is remote for the one that sends.
    """

    filling: FillingSite
    deployed: Deployed
    killer: Killer
    commands: Sequence[Command] = (SYNC,)
    beside: Deployed | None = None

    @property
    def keeper(self) -> Deployed:
        """The Tidemark that loads, merges, reads."""
        return self.beside or self.deployed

    def live(self, kills: int) -> None:
        """Reveal all portions while runs are killed `kills` times."""
        a_portion = kills / len(self.filling.portions)
        while self.killer.total < kills:
            done = self.filling.count - len(self.filling.portions)
            if self.killer.total >= a_portion * done:
                self.filling.reveal()
            command = self.killer.chance.choice(self.commands)
            self.killer.strike(self.deployed if command[0] == "sync" else self.keeper, command)
            self.check_landings()
        while self.filling.reveal():
            pass

    def rest(self) -> None:
        """Let it come to rest, then hold it against the server's own answers."""
        keeper, rows = self.keeper, self.filling.site.rows()
        self.deployed.run(*SYNC)
        if self.beside:
            self.beside.run(*LOAD)
            self.deployed.run(*SYNC)  # the answers
        assert self.deployed.run(*SYNC)["state"] == "nothing"
        before = self.readings()
        assert read_csv(keeper.folder / "points.csv") == rows
        assert keeper.run("coverage")["complete"] is True
        self.verify()
        keeper.run(*MERGE)
        self.make_half_files_old()
        keeper.run(*HOUSEKEEP)
        assert self.readings() == before
        self.verify()
        self.check_landings()
        self.check_nothing_left()

    def verify(self) -> None:
        """By points where one Tidemark has the link and the receiver's files, else by digest at both ends."""
        if self.beside is None:
            assert self.deployed.run("verify", "--deep")["differences"] == []
        else:
            for one in (self.beside, self.deployed):
                assert one.run("verify")["differences"] == []

    def readings(self) -> tuple[bytes, ...]:
        """The bytes of both forms of `read --tall`."""
        names = ("points.csv", "points.parquet")
        for name in names:
            self.keeper.run("read", "--tall", "--out", str(self.keeper.folder / name))
        return tuple((self.keeper.folder / name).read_bytes() for name in names)

    # invariants

    def check_landings(self) -> None:
        """A landing with a manifest is whole until it is answered; no file bears a final name that is not."""
        for place in sorted(self.receiver.glob(f"landing/*/*/{MANIFEST}")):
            paper = json.loads(place.read_bytes())
            if not (place.parent / RECEIPT).exists():
                for part in _parts(paper):
                    self._check(place.parent / landed_path(part["path"]), part)

    def check_nothing_left(self) -> None:
        """At rest: landings hold only their papers, every file of the catalog is there as recorded, nothing else is."""
        receiver = self.receiver
        landed = {p.name for p in receiver.glob("landing/*/*/**/*") if p.is_file()}
        assert landed == {MANIFEST, RECEIPT}, landed
        papers = sorted((json.loads(p.read_bytes()) for p in receiver.glob(f"landing/*/*/{MANIFEST}")), key=_sequence)
        assert [paper["sequence"] for paper in papers] == list(range(1, len(papers) + 1))
        sent = Counter((f["path"], f["generation"]) for paper in papers for f in paper["files"])
        assert set(sent.values()) == {1}, "a generation was published twice"
        half = self.half_files()
        assert not half, half
        assert not [p for p in (receiver / "staging").rglob("*") if p.is_file()]
        assert not [p for p in self.filling.root.rglob(".tidemark/*/*/**/*") if p.is_file()]

    def half_files(self) -> list[str]:
        return [str(p.relative_to(self.receiver)) for p in self.receiver.rglob("*") if p.name.endswith(HALF)]

    def make_half_files_old(self) -> None:
        """Two hours later. Housekeeping leaves what somebody may be writing now."""
        for name in self.half_files():
            os.utime(self.receiver / name, (time.time() - 7200,) * 2)

    def _check(self, place: Path, part: dict[str, Any]) -> None:
        data = place.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (part["size"], part["sha256"]), place

    @property
    def receiver(self) -> Path:
        return self.deployed.receiver_root


def _parts(paper: dict[str, Any]) -> list[dict[str, Any]]:
    files = [file.get(role) for file in paper["files"] for role in ("tsfile", "resource", "mods")]
    return [part for part in [*files, *(log["part"] for log in paper["schema"])] if part]


def _sequence(paper: dict[str, Any]) -> int:
    return int(paper["sequence"])
