"""What an edge puts into its landings harms the edge alone: no command hangs, none takes memory without end, the healthy
sites behind it load."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.commanded import Commanded, Said
from tests.landing_maker import SITE_A, Sender
from tests.small_files import deletion, sealed, source
from tidemark.formats.layout import MANIFEST, RECEIPT
from tidemark.untrusted_files import MOST_RECORD

WALL = 20  # seconds a command may take here; it takes well under one
MEMORY = 1 << 30  # bytes of address space that it may add to what the tests have

Harm = Callable[[Path], None]


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """The block ends within `WALL` seconds and takes less than `MEMORY`, or fails."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt("it hangs")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(WALL)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def run(world: Commanded, *words: str) -> Said:
    begun = time.monotonic()
    with bounded():
        said = world.run(*words)
    assert said.code not in (1, 5, 130), said
    assert "Traceback" not in said.out + said.err
    assert time.monotonic() - begun < WALL
    return said


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A healthy site with a file to load, and one that was healthy so far and sorts before it."""
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    assert world.sync().code == 0
    Sender(world.root).land({source(1): sealed({"root.edge.d1": {"s": [(1, 1)]}})})
    assert world.run("load").code == 0
    world.seal(2)
    assert world.sync("--no-load").code == 0
    return world


def another(world: Commanded) -> Path:
    """The edge's second landing, as yet unharmed."""
    first = next((world.root / "landing" / SITE_A).iterdir())
    sender = Sender(world.root, sequence=1, previous=first.name)
    return sender.land({source(2): sealed({"root.edge.d2": {"s": [(1, 1)]}})})


def replaced(name: str, by: Harm) -> Harm:
    def harm(landing: Path) -> None:
        place = next(landing.rglob(name))
        place.unlink()
        by(place)

    return harm


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)


def empty_fifo(landing: Path) -> None:
    """A FIFO of size 0 where the manifest says that a file of size 0 lies."""
    place = next(landing.rglob("*.tsfile"))
    paper = landing / MANIFEST
    text = paper.read_text().replace(f'"size":{place.stat().st_size},', '"size":0,')
    paper.write_text(text)
    place.unlink()
    os.mkfifo(place)


def fifo_receipt(landing: Path) -> None:
    os.mkfifo(landing / RECEIPT)


def link(to: str) -> Harm:
    return lambda place: place.symlink_to(to)


def swapped_folder(landing: Path) -> None:
    """The files lie elsewhere, behind a link."""
    data = landing / "data"
    data.rename(landing.parent.parent.parent / "elsewhere")
    data.symlink_to(landing.parent.parent.parent / "elsewhere")


HARMS: dict[str, Harm] = {
    "manifest is a FIFO": replaced(MANIFEST, os.mkfifo),
    "manifest is a link to /dev/zero": replaced(MANIFEST, link("/dev/zero")),
    "manifest is a terabyte": replaced(MANIFEST, sparse),
    "file is a FIFO": replaced("*.tsfile", os.mkfifo),
    "file is a link to /dev/zero": replaced("*.tsfile", link("/dev/zero")),
    "file of size 0 is a FIFO": empty_fifo,
    "receipt is a FIFO": fifo_receipt,
    "folder is a link": swapped_folder,
}


@pytest.mark.full_after(2)
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_no_command_hangs_on_what_lies_in_a_landing(world: Commanded, harm: Harm) -> None:
    landing = another(world)
    harm(landing)
    for words in (("verify",), ("verify", "--deep"), ("coverage",), ("status",), ("why", landing.name)):
        run(world, *words)
    said = run(world, "load")
    assert said.json["loaded"] >= 1, said  # of the healthy site
    for words in (("verify", "--repair"), ("coverage",), ("why", landing.name), ("ledger", "rebuild", "--replace", "--yes")):
        run(world, *words)
    assert {"root.sg.d1", "root.sg.d2"} <= set(world.devices())
    assert run(world, "load").code != 5  # nobody holds the lease


@pytest.mark.full_after(1)
@pytest.mark.parametrize("folder", ["decided", "settled"])
def test_a_record_of_a_terabyte_is_told_and_passed_over(world: Commanded, folder: str) -> None:
    (world.root / folder).mkdir(exist_ok=True)
    sparse(world.root / folder / "1.json")
    said = run(world, "ledger", "rebuild", "--replace", "--yes")
    assert f"{folder}/1.json has more than the {MOST_RECORD} bytes" in str(said.json), said
    assert said.code == 23, said


@pytest.mark.full_after(1)
@pytest.mark.parametrize("name", ["*-3-0-0.tsfile", "*-3-0-0.tsfile*.mods"])
@pytest.mark.parametrize("by", [os.mkfifo, link("/dev/zero"), sparse], ids=["a FIFO", "a link to /dev/zero", "a terabyte"])
def test_no_command_hangs_on_what_lies_in_the_catalog(world: Commanded, by: Harm, name: str) -> None:
    world.put(source(3), sealed({"root.sg.d3": {"s": [(1, 1), (2, 2)]}}, deletion("root.sg.d3.s", 1, 1)))
    world.put(source(4, unsequence=True), sealed({"root.sg.d3": {"s": [(1, 7)]}}))
    assert world.sync().code == 0
    place = next((world.root / "data").rglob(name))
    place.unlink()
    by(place)
    for words in (("read", "--out", "x.csv"), ("merge",), ("verify", "--deep"), ("coverage",), ("verify", "--repair")):
        run(world, *words)
