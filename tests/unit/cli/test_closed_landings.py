"""Who sends may close its folders and files, put a folder where a paper is written, or lead us elsewhere in the middle: that
costs the sender's landing, by name. The healthy site behind it loads, and every proof of it is made."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.landing_maker import SITE_A, Sender
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.small_files import sealed, source
from tidemark.formats.layout import MANIFEST, RECEIPT
from tidemark.receiver.load import load as load_landings
from tidemark.stores.agent.disk import Disk

Harm = Callable[[Path, Path], Path]  # (loaded landing, waiting one) → what was closed


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """An edge with one landing loaded and one that waits, and a healthy site that sorts behind it."""
    world = Commanded(tmp_path, monkeypatch)
    edge = Sender(world.root)
    for number in (1, 2):
        edge.land({source(number): sealed({f"root.edge.d{number}": {"s": [(1, 1)]}})})
        if number == 1:
            assert world.run("load").code == 0
    world.seal(1)
    assert world.sync("--no-load").code == 0
    return world


def landings(world: Commanded) -> list[Path]:
    return sorted((world.root / "landing" / SITE_A).iterdir())


def closed(place: Path) -> Path:
    place.chmod(0)
    return place


def read_only(place: Path) -> Path:
    place.chmod(0o555)
    return place


CLOSED: dict[str, Harm] = {
    "landing": lambda _, waiting: closed(waiting),
    "loaded landing": lambda loaded, _: closed(loaded),
    "all of the edge's": lambda loaded, _: closed(loaded.parent),
    "manifest": lambda _, waiting: closed(waiting / MANIFEST),
    "file": lambda _, waiting: closed(next(waiting.rglob("*.tsfile"))),
    "folder in a landing": lambda _, waiting: closed(next(waiting.rglob("*.tsfile")).parent),
    "landing for writing": lambda _, waiting: read_only(waiting),
}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("harm", CLOSED.values(), ids=CLOSED.keys())
def test_what_an_edge_closes_stays_closed_for_it_alone(world: Commanded, harm: Harm) -> None:
    place = harm(*landings(world))
    try:
        with as_anybody():
            for words in (("status",), ("coverage",), ("verify",), ("why", SITE_A)):
                assert world.run(*words).code in (0, 6, 20, 23)
            said = world.run("load")
            assert said.code in (7, 23) and "Permission denied" in str(said.json["troubles"]), said
            assert "root.sg.d1" in world.devices()
            verified = world.run("verify")
            assert verified.code in (0, 6, 20, 23) and verified.json["checked"] >= 2, verified  # the healthy site's too
            for words in (("coverage",), ("verify", "--repair"), ("ledger", "rebuild", "--replace", "--yes"), ("load",)):
                after = world.run(*words)
                assert after.code in (0, 6, 7, 20, 23) and "Traceback" not in after.out + after.err, after
            assert "root.sg.d1" in world.devices()
    except PartMissing as missing:
        pytest.skip(str(missing))
    finally:
        place.chmod(0o755)
    assert world.run("load").code in (0, 7)  # 7: what a repair of a closed file put away
    assert {"root.sg.d1", "root.edge.d1", "root.edge.d2"} <= set(world.devices())


def test_a_folder_where_the_answer_is_written(world: Commanded) -> None:
    for landing in landings(world):
        (landing / RECEIPT).unlink(missing_ok=True)
        (landing / RECEIPT).mkdir()
    said = world.run("load")
    assert said.code == 23 and all(one["landing"] for one in said.json["troubles"]), said
    assert {"root.sg.d1", "root.edge.d1", "root.edge.d2"} == set(world.devices())


def test_a_file_that_its_disk_does_not_give(world: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    read, copied = os.pread, os.copy_file_range

    def refusing(does: Callable[..., Any]) -> Callable[..., Any]:
        def refused(handle: int, *words: Any) -> Any:
            if f"/landing/{SITE_A}/" in str(Path(f"/proc/self/fd/{handle}").readlink()):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return does(handle, *words)

        return refused

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", refusing(read))
        patched.setattr(os, "copy_file_range", refusing(copied))
        said = world.run("load")
    assert said.code == 23 and "Input/output error" in said.json["error"], said
    assert {"root.sg.d1", "root.edge.d1"} == set(world.devices())
    assert world.run("load").code == 0
    assert "root.edge.d2" in world.devices()


@pytest.mark.parametrize("swapped", ["landing", "its site"])
def test_an_answer_is_not_led_elsewhere(world: Commanded, monkeypatch: pytest.MonkeyPatch, swapped: str) -> None:
    """The folder becomes a symlink when the landing is loaded, after the last look at where the answer goes."""
    elsewhere = world.root / "elsewhere"
    waiting = landings(world)[1]
    doomed = waiting if swapped == "landing" else waiting.parent
    keep, locate = load_landings.keep_receipt, Disk.locate
    kept: list[Any] = []

    def keep_and_tell(*words: Any) -> None:
        keep(*words)
        kept.extend(words)

    def locate_and_swap(disk: Disk, path: str) -> bytes:
        place = locate(disk, path)
        if waiting.name in kept and not elsewhere.exists():
            doomed.rename(elsewhere)
            doomed.symlink_to(elsewhere)
        return place

    monkeypatch.setattr(load_landings, "keep_receipt", keep_and_tell)
    monkeypatch.setattr(Disk, "locate", locate_and_swap)
    said = world.run("load")
    place = elsewhere if swapped == "landing" else elsewhere / waiting.name
    assert sorted(one.name for one in place.iterdir() if one.is_file()) == [MANIFEST]
    assert said.code == 23 and "symlink" in str(said.json["troubles"]), said
    assert {"root.sg.d1", "root.edge.d2"} <= set(world.devices())
