"""A verb for several links or receivers: one that fails costs itself alone, and the exit code says what there was."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.centre import run_inline
from tests.commanded import Said, run_here
from tests.services.processes import soon
from tests.small_files import sealed, source
from tidemark.app import App
from tidemark.errors import exit_code_of_several
from tidemark.sync import steps

SITES = ("north-1", "north-2", "south")


class Many:
    """Three sites with a file each, of which a pattern makes links to one of two receivers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = '[receivers.centre]\nstore = "centre"\n[receivers.other]\nstore = "other"\n'
        self.settings += '[links."*"]\nreceiver = "centre"\n[links.south]\nsite = "south"\nreceiver = "other"\n'
        for name in SITES:
            self.settings += f'[sites.{name}]\nid = "{uuid4()}"\nstore = "{name}"\n'
            self.seal(name, 1)
        self.write()

    def write(self, at_once: int = 4) -> None:
        bounded = self.settings.replace('store = "centre"', f'store = "centre"\nlinks_at_once = {at_once}')
        (self.folder / "tidemark.toml").write_text(bounded)

    def seal(self, name: str, version: int) -> None:
        (self.folder / name / "data" / "unsequence").mkdir(parents=True, exist_ok=True)
        for end, data in sealed({f"root.{name.replace('-', '_')}.d{version}": {"s": [(version, 1)]}}).items():
            place = self.folder / name / (source(version) + end)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def seal_equal(self, *names: str) -> None:
        """A file at each of these sites that has the same device."""
        for name in names:
            for end, data in sealed({"root.plant.d1": {"s": [(9, 1)]}}).items():
                (self.folder / name / (source(9) + end)).write_bytes(data)

    def run(self, *words: str) -> Said:
        return run_here(self.folder / "tidemark.toml", *words)


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Many:
    run_inline(monkeypatch)
    return Many(tmp_path)


@pytest.mark.full
def test_all_links_are_synced_with_a_line_and_a_sum(many: Many) -> None:
    said = many.run("sync", "--all")
    assert said.code == 0, said
    assert [(link["name"], link["state"], link["ok"]) for link in said.json["links"]] == [
        (name, "loaded", True) for name in SITES
    ]
    assert (said.json["files"], said.json["loaded"]) == (3, 3)
    assert (many.run("sync", "--all", "--fail-if-nothing").code, many.run("sync", "--all").code) == (9, 0)
    many.seal("south", 2)
    assert many.run("sync", "--all", "--fail-if-nothing").code == 0, "one had something to do"


def test_a_pattern_names_links(many: Many) -> None:
    said = many.run("sync", "north-*")
    assert [link["name"] for link in said.json["links"]] == ["north-1", "north-2"]
    many.run("sync", "west-*").refused(3, "no link matches 'west-*'", "north-1, north-2, south")


def test_a_link_that_fails_costs_itself_alone(many: Many) -> None:
    shutil.rmtree(many.folder / "north-1")
    (many.folder / "north-1").write_text("a file in the place of the disk")
    said = many.run("sync", "--all")
    assert (said.code, said.json["error"]) == (23, "1 of 3 links needs a look: north-1"), said
    first, *others = said.json["links"]
    assert (first["ok"], first["kind"]) == (False, 6)
    assert "north-1 is a file" in first["error"]
    assert said.json["hint"] == first["hint"]
    assert [link["state"] for link in others] == ["loaded", "loaded"]
    alone = many.run("sync", "north-1*")
    assert alone.code == 6, "nothing else was done: its own code"


@pytest.mark.parametrize("at_once", [1, 2])
def test_of_new_sites_with_the_same_devices_one_is_sent(many: Many, at_once: int) -> None:
    """Nothing of the other one is, so that it may still get a prefix; a site of another receiver is no concern."""
    many.write(at_once)
    many.seal_equal("north-1", "north-2", "south")
    said = many.run("sync", "--all")
    (refused,) = (one for one in said.json["links"] if not one["ok"])
    assert (said.code, refused["kind"]) == (21, 21), said
    assert "root.plant.d1 of site north-" in refused["error"] and "prefix = " in refused["hint"]
    assert said.json["files"] == said.json["loaded"] == 4, "two files of each of the others"
    many.settings = many.settings.replace(f'store = "{refused["name"]}"', f'store = "{refused["name"]}"\nprefix = "root.x"')
    many.write(at_once)
    assert (many.run("sync", "--all").code, len(many.run("owners", "list", "--receiver", "centre").json["owners"])) == (0, 4)


def test_a_fault_of_ours_costs_its_link_alone(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.sync import run

    sync = run.run_sync

    def break_one(app: object, link: str, *more: object) -> object:
        if link == "north-2":
            raise ZeroDivisionError("no")
        return sync(app, link, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_sync", break_one)
    said = many.run("sync", "--all")
    assert said.code == 23
    assert [link["ok"] for link in said.json["links"]] == [True, False, True]
    assert "ZeroDivisionError" in said.json["links"][1]["error"]
    assert "var/errors" in said.json["links"][1]["hint"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_links_of_a_receiver_run_beside_each_other_up_to_a_bound(
    many: Many, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    from tidemark.sync import run

    many.write(at_once)
    sync, together, most = run.run_sync, threading.Barrier(3 if at_once == 2 else 2), [0, 0]
    lock = threading.Lock()

    def meet(app: App, link: str, *more: object) -> object:
        with lock:
            most[0] += link != "south"
            most[1] = max(most)
        if at_once == 2 or link != "north-2":  # south is another receiver's: it runs beside in any case
            together.wait(60)
        try:
            return sync(app, link, *more)  # type: ignore[arg-type]
        finally:
            with lock:
                most[0] -= link != "south"

    monkeypatch.setattr(run, "run_sync", meet)
    said = many.run("sync", "--all")
    assert (said.code, most[1]) == (0, at_once), said
    assert [link["state"] for link in said.json["links"]] == ["loaded"] * 3


def test_a_signal_stops_all_links_and_the_next_run_goes_on(many: Many, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.sync.send import transfer_files

    begun, act = threading.Semaphore(0), transfer_files.transfer_files

    def last(work: Any, batch: int | None = None) -> object:
        begun.release()
        for _ in range(6000):
            work.beat(0, 1, 0, 1)
            time.sleep(0.01)
        return act(work, batch)

    def stop() -> None:
        for _ in SITES:
            begun.acquire()
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr("tidemark.sync.steps._ACTS", {**steps._ACTS, "transfer_files": last})
        stopping = threading.Thread(target=stop)
        stopping.start()
        said = many.run("sync", "--all")
        stopping.join()
    assert (said.code, said.json["error"]) == (143, "stopped"), said

    def show_states() -> dict[str, str]:
        return {link["name"]: link["state"] for link in many.run("status").json["links"]}

    # A thread that ends late dies with its process; here the process lives on.
    assert soon(lambda: show_states() == dict.fromkeys(SITES, "interrupted")), show_states()
    assert many.run("sync", "--all").json["loaded"] == 3


@pytest.mark.parametrize("words", [("sync",), ("sync", "south", "--all"), ("sync", "--all", "--plan", "plan.json")])
def test_what_cannot_be_meant_is_refused(many: Many, words: tuple[str, ...]) -> None:
    assert many.run(*words).code == 2


def test_what_can_be_shown_of_each_receiver_is(many: Many) -> None:
    many.run("sync", "--all", "--no-load")
    loaded = many.run("load")
    assert [(one["receiver"], one["loaded"]) for one in loaded.json["receivers"]] == [("centre", 2), ("other", 1)]
    for words in (("coverage",), ("verify",), ("merge",), ("quarantine", "list"), ("owners", "list")):
        said = many.run(*words)
        assert (said.code, [one["receiver"] for one in said.json["receivers"]]) == (0, ["centre", "other"]), said
        assert "receivers" not in many.run(*words, "--receiver", "other").json
    many.run("coverage", "--html", str(many.folder / "page.html")).refused(
        2, "which receiver? the settings have: centre, other"
    )


def test_a_receiver_with_differences_is_named_beside_a_sound_one(many: Many) -> None:
    many.run("sync", "--all")
    (damaged,) = (many.folder / "other" / "data").rglob("*.tsfile")
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x00")
    said = many.run("verify")
    assert (said.code, said.json["error"]) == (20, "1 of 2 receivers needs a look: other"), said
    assert [len(one["differences"]) for one in said.json["receivers"]] == [0, 1]


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([9, 9], 9),
        ([9, 0], 0),
        ([5, 5], 5),
        ([5, 0], 23),
        ([5, 6], 23),
        ([0, 10], 10),
        ([10, 5], 23),
        ([20, 0], 20),
        ([7, 20, 23], 7),
        ([7, 21, 1], 21),
        ([21, 22, 0], 22),
    ],
)
def test_the_code_of_several(codes: list[int], code: int) -> None:
    assert exit_code_of_several(codes) == code
