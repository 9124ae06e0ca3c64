"""`adopt`: what an original Sync Tool had delivered, after any crash of it, is known from then on; the rest is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import Effects, explore
from tests.crash.sync_world import SITE_ID, SyncWorld
from tidemark.errors import NotFoundError, UsageError
from tidemark.sync.adopt import ADDED, DELETED, AdoptResult, adopt

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "sync_recovery_vectors.json").read_text())["cases"]
LETTERS = {letter: path_of(number, partition=number % 2) for number, letter in enumerate("ABCDEF", 1)}
LISTS = {"last": "last_local_files.txt", "current": "current_local_files.txt", "log": "sync.log"}


def sender_folder(folder: Path, case: Mapping[str, Any]) -> Path:
    """…/sync-sender/<receiver> as the original leaves it, with the paths of its own machine."""
    place = folder / "sync-sender" / "192.0.2.16_5555"
    place.mkdir(parents=True)
    (place.parent / "uuid.txt").write_text(SITE_ID)
    for key, name in LISTS.items():
        if case[key] is not None:
            lines = [f"/opt/iotdb/{LETTERS[line]}\n" if line in LETTERS else f"{line}\n" for line in case[key]]
            whole = "".join(lines)
            (place / name).write_text(whole[:-1] if key == "log" and case["torn_last_line"] else whole)
    return folder


def adopted(world: SyncWorld, folder: Path, effects: Effects | None = None, other_uuid: bool = False) -> AdoptResult:
    app = world.app(effects or Effects())
    try:
        return adopt(app, "plant1", folder, other_uuid=other_uuid)
    finally:
        app.ledger.close()


def site_of_letters(world: SyncWorld) -> None:
    for number, path in enumerate(LETTERS.values(), 1):
        world.edge.seal(path, extent={"root.sg.d1": (number * 10, number * 10 + 9)})


def sent(world: SyncWorld) -> set[str]:
    return {file.path for paper in world.manifests() for file in paper.files}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("case", VECTORS, ids=[c["id"] for c in VECTORS])
def test_recovery_vectors(case: dict[str, Any], world: SyncWorld, tmp_path: Path) -> None:
    """Every file of the site is either what the original had delivered or sent now: none twice, none never."""
    site_of_letters(world)
    expected = {LETTERS[name] for name in case["expected"] if name in LETTERS}
    if not any(case[key] for key in LISTS):  # R7: it never ran
        with pytest.raises(UsageError, match="holds neither"):
            adopted(world, sender_folder(tmp_path, case))
        world.sync()
        assert sent(world) == set(LETTERS.values())
        return
    result = adopted(world, sender_folder(tmp_path, case))
    assert (result.files, result.listed, result.unmatched) == (len(expected), len(expected), 0)
    assert not result.note
    assert not sent(world)
    world.sync()
    assert sent(world) == set(LETTERS.values()) - expected
    assert world.sync().state == "nothing"
    assert world.inventory() == {path: len(data) for path, data in world.edge.contents.items()}


def test_what_another_sender_delivered_is_not_this_sites(world: SyncWorld, tmp_path: Path) -> None:
    site_of_letters(world)
    folder = sender_folder(tmp_path, {"last": list(LETTERS), "current": None, "log": None, "torn_last_line": False})
    for uuid in ("6a1f2a7e-0f52-4a64-9a55-000000000000", "no uuid"):
        (folder / "sync-sender" / "uuid.txt").write_text(uuid)
        with pytest.raises(UsageError, match=uuid) as refused:
            adopted(world, folder)
        assert "--other-uuid" in refused.value.hint
    assert adopted(world, folder, other_uuid=True).listed == len(LETTERS)


def test_files_that_are_none_of_the_sites_are_told(world: SyncWorld, tmp_path: Path) -> None:
    site_of_letters(world)
    (tmp_path / "9-9-0-0.tsfile").write_bytes(b"something stray")
    assert "names a TsFile that the site has" in adopted(world, tmp_path).note
    other = {"last": ["/data/of/another/1-1-0-0.tsfile"], "current": None, "log": None, "torn_last_line": False}
    assert "names a TsFile that the site has" in adopted(world, sender_folder(tmp_path / "other", other)).note


def test_a_later_change_of_an_adopted_file_sends_it_whole(world: SyncWorld, tmp_path: Path) -> None:
    site_of_letters(world)
    adopted(world, sender_folder(tmp_path, {"last": list(LETTERS), "current": None, "log": None, "torn_last_line": False}))
    assert world.sync().state == "nothing"
    world.edge.seal(LETTERS["B"], "changed")
    world.sync()
    assert sent(world) == {LETTERS["B"]}
    assert world.manifests()[-1].files[0].tsfile is not None


class AdoptWorld:
    """A life is an adoption and the sync after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = SyncWorld.in_memory()
        site_of_letters(self.world)

    def live(self, effects: Effects) -> None:
        adopted(self.world, self.folder, effects)
        self.world.sync(effects=effects)

    def check(self) -> None:
        assert sent(self.world) == {LETTERS[letter] for letter in "CDEF"}
        assert self.world.inventory().keys() == self.world.edge.contents.keys()
        assert self.world.sync().state == "nothing"

    def lose_power(self) -> None:
        self.world.lose_power()

    def close(self) -> None:
        self.world.close()


@pytest.mark.full
def test_an_adoption_may_die_anywhere(tmp_path: Path) -> None:
    case = {"last": ["A"], "current": None, "log": [ADDED, "B", DELETED, "C"], "torn_last_line": False}
    folder = sender_folder(tmp_path, case)
    explored = explore(lambda: AdoptWorld(folder))
    assert explored.all_died and explored.points > 40


def test_a_folder_without_anything_to_adopt(world: SyncWorld, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(UsageError, match="holds neither"):
        adopted(world, tmp_path)
    with pytest.raises(NotFoundError):
        adopted(world, tmp_path / "gone")
