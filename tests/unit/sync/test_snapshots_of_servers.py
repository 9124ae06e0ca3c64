"""IoTDB links sealed files into `snapshot` beside `sequence`, for another data node or for Ratis: its own files."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import deletion, sealed
from tidemark.tsfiles import sealed as sealed_files

D = "root.sg.d"
FILE = "data/sequence/root.sg/0/0/1600000000001-1-0-0.tsfile"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A site whose settings name the folder above `sequence`. Its server has made a snapshot of its one file."""
    world = Commanded(tmp_path, monkeypatch, site_keys={"data": ["data"]})
    world.put(FILE, sealed({D: {"s": [(t, t) for t in (1, 2, 3)]}}))
    copies = world.site / "data/snapshot/root.sg-0/3_7/sequence/root.sg/0/0"
    copies.mkdir(parents=True)
    for end in world.sealed[FILE]:
        file = world.site / (FILE + end)
        os.link(file, copies / file.name)
    return world


def test_they_are_not_sent(world: Commanded) -> None:
    plan = world.run("plan", "plant1").json
    assert ([one["path"] for one in plan["send"]], plan["skipped"]) == ([FILE], [])
    assert (world.sync().json["files"], world.sync().json["state"]) == (1, "nothing")
    world.assert_in_step()


def test_what_is_deleted_after_the_snapshot_is_gone_in_the_catalog(world: Commanded) -> None:
    world.sync()
    world.put(FILE, {**world.sealed[FILE], ".mods": deletion(f"{D}.s", 2, 3).encode()})
    assert world.sync().code == 0
    assert [row[2] for row in world.rows()] == ["1"]
    assert world.run("verify", "--deep").code == 0


def test_what_a_former_version_sent_of_them_goes(world: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as former:
        former.setattr(sealed_files, "_IN_COPIES", re.compile("nothing"))
        assert world.sync().json["files"] == 2
    world.put(FILE, {**world.sealed[FILE], ".mods": deletion(f"{D}.s", 2, 3).encode()})
    assert world.sync().code == 0
    assert [row[2] for row in world.rows()] == ["1"]
    assert world.run("verify", "--deep").code == 0
    assert world.sync().json["state"] == "nothing"
