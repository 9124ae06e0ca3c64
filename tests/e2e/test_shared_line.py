"""A link and slots that move share a receiver's cap: processes of their own, real servers, counted on the wire."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.test_bandwidth_kept import counted, in_windows
from tests.expected import RealSite
from tests.moving_world import put
from tests.services.command_forks import Forked
from tests.services.deployed import Deployed
from tests.services.processes import soon
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.app import open_app
from tidemark.cluster.membership.change import init_cluster
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.proof.overview import status
from tidemark.settings.load import load_settings

pytestmark = pytest.mark.real("sshd")
CAP = 2e6  # bytes a second of all together
SIZE = 600_000
SETTINGS = """
[receivers.centre]
store = "centre"
bandwidth = "2 MB/s"
[cluster]
replicas = 1
quorum = 1
slots = 60
grace_hours = 0
"""
SITE = """
[sites.{name}]
id = "0f8e3c1a-2b4d-4c6e-8f10-2132435465{number}"
store = "{store}"
host_key = "{host_key}"
key = "{key}"
[links.{name}]
site = "{name}"
bandwidth = "{bandwidth}"
"""
NODE = '[nodes.{name}]\nstore = "{store}"\nhost_key = "{host_key}"\nkey = "{key}"\n'


@dataclass
class Line:
    """What the site and the nodes send, together."""

    link: Wire
    nodes: Wire

    @property
    def came(self) -> int:
        return self.link.came + self.nodes.came


@dataclass
class World:
    """A site and a node n1 behind one server, a node n2 that may join behind another; both ways are counted."""

    folder: Path
    near: Sshd
    far: Sshd
    line: Line
    started: list[Forked] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "centre").mkdir()
        self.first, self.second = self.near.new_folder("n1"), self.far.new_folder("n2")
        self.sites: dict[str, Path] = {}
        self.links = ""
        self.configure(["n1"])
        self.app = open_app(load_settings(str(self.folder / "tidemark.toml"), {}))

    def configure(self, nodes: Iterable[str]) -> None:
        tables = {
            "n1": NODE.format(name="n1", store=self.near.url(self.first), host_key=self.near.host_key, key=self.near.key),
            "n2": NODE.format(
                name="n2",
                store=through(self.line.nodes, self.far, self.second),
                host_key=self.far.host_key,
                key=self.far.key,
            ),
        }
        (self.folder / "tidemark.toml").write_text(SETTINGS + self.links + "".join(tables[name] for name in nodes))

    def site(self, name: str, files: int, bandwidth: str = "") -> None:
        """A site with so many files, and its link."""
        root = self.near.new_folder(name)
        folder = root / "data" / "sequence" / "root.sg" / "0" / "0"
        folder.mkdir(parents=True)
        (root / "data" / "unsequence").mkdir()
        for number in range(files):
            place = folder / f"{1_600_000_000_000 + number}-{number + 1}-0-0.tsfile"
            place.write_bytes(os.urandom(SIZE))
            place.with_name(place.name + ".resource").write_bytes(b"none of ours")
        self.links += SITE.format(
            name=name,
            number=10 + len(self.sites),
            store=through(self.line.link, self.near, root),
            host_key=self.near.host_key,
            key=self.near.key,
            bandwidth=bandwidth,
        )
        self.sites[name] = root

    def slots(self, files: int) -> None:
        """About so many files that will move to n2, and as many that stay at n1. The last of what the settings need."""
        for number in range(2 * files):
            put(self.app, self.app.receiver_settings(), "root.sg", number, number, "", os.urandom(SIZE // 6).hex())
        init_cluster(self.app, self.app.receiver_settings())
        self.configure(["n1", "n2"])

    def start(self, *words: str) -> Forked:
        ours = Deployed(self.folder, RealSite("", self.folder, (), ""), self.folder, self.folder / "centre").start(*words)
        self.started.append(ours)
        return ours

    def both(self) -> tuple[Forked, Forked]:
        return self.start("sync", "plant1", "--no-load"), self.start("cluster", "add", "n2")

    def shares(self) -> dict[str, float]:
        """Who may send how much now, as `status` tells it."""
        (line,) = status(self.app).lines
        return dict(line.holders)

    def sent(self, link: str = "plant1") -> int:
        with self.app.ledger.read() as connection:
            return sum(landing.files for landing in run_rows.sent_landings(connection, link))

    def moved(self) -> int:
        with self.app.ledger.read() as connection:
            return len(copy_rows.copies_at(connection, "centre", "n2"))


def through(wire: Wire, server: Sshd, folder: Path) -> str:
    return server.url(folder).replace(f":{server.port}/", f":{wire.port}/")


def within_the_cap(seen: list[tuple[float, int]]) -> None:
    rates = in_windows(seen)
    print(f"{len(rates)} windows of 10 s: {min(rates):.0f} to {max(rates):.0f} bytes a second")
    assert max(rates) <= 1.05 * CAP


def ended(process: Forked) -> dict[str, object]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    answer: dict[str, object] = json.loads(out.splitlines()[-1])
    return answer


@pytest.fixture
def world(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> Iterator[World]:
    near, far = start_sshd(), start_sshd()
    with Wire(near.port) as link, Wire(far.port, upwards=True) as nodes:
        made = World(tmp_path, near, far, Line(link, nodes))
        try:
            yield made
        finally:
            for process in made.started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            made.app.ledger.close()


@pytest.mark.full
@pytest.mark.timeout(150)
def test_a_link_and_slots_that_move_are_together_within_the_cap(world: World) -> None:
    world.site("plant1", 24)
    world.slots(24)
    with counted(world.line) as seen:
        link, move = world.both()
        assert soon(lambda: list(world.shares().values()) == [CAP / 2, CAP / 2], 30)
        assert ended(move)["roads"], "from node to node"
        ended(link)
    within_the_cap(seen)
    assert world.shares() == {} and world.moved() > 20 and world.sent() == 24


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_five_that_come_and_go_are_together_within_the_cap(world: World) -> None:
    """One of them has a lower cap of its own: the others have the rest."""
    files = {"plant1": 24, "plant2": 18, "plant3": 12, "plant4": 3}
    for name, count in files.items():
        world.site(name, count, bandwidth="0.2 MB/s" if name == "plant4" else "")
    world.slots(24)
    with counted(world.line) as seen:
        working = [world.start("cluster", "add", "n2"), *(world.start("sync", name, "--no-load") for name in files)]
        assert soon(lambda: sorted(world.shares().values()) == pytest.approx([0.1 * CAP, *[0.225 * CAP] * 4]), 30)
        for process in working:
            ended(process)
    within_the_cap(seen)
    assert {name: world.sent(name) for name in files} == files and world.moved() > 20


@pytest.mark.full
@pytest.mark.timeout(150)
@pytest.mark.parametrize("victim", ["link", pytest.param("move", marks=pytest.mark.soak)])
def test_the_share_of_one_that_is_killed_goes_to_the_other(world: World, victim: str) -> None:
    world.site("plant1", 28)
    world.slots(28)
    link, move = world.both()
    assert soon(lambda: list(world.shares().values()) == [CAP / 2, CAP / 2], 30)
    dead, alive = (link, move) if victim == "link" else (move, link)

    os.killpg(dead.pid, signal.SIGKILL)

    dead.communicate()
    assert soon(lambda: list(world.shares().values()) == [CAP], 30)
    ended(alive)
    assert world.shares() == {}
    ended(world.start("sync", "plant1", "--no-load") if victim == "link" else world.start("cluster", "add", "n2"))
    assert world.moved() > 20 and world.sent() == 28
