"""`read` gives rows of files that are what was loaded, and of no others."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import deletion, sealed
from tidemark.receiver import proved_files as bytes_check

READ = ("read", "--tall", "--out")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    world.seal(2)
    assert world.sync().code == 0
    return world


def data_file(world: Commanded, number: int, end: str = "file") -> Path:
    (found,) = (world.root / "data").rglob(f"*-{1_600_000_000_000 + number}-{number}-0-0.ts*{end}")
    return found


def flip(place: Path, at: int = 40) -> None:
    """One bit."""
    data = bytearray(place.read_bytes())
    data[at] ^= 1
    place.write_bytes(bytes(data))


def look_untouched(world: Commanded, place: Path) -> None:
    """The disk's own fault changes no times: the ledger remembers the file as it is now, with the digest it had."""
    stat = place.stat()
    values = (stat.st_size, stat.st_ctime_ns, stat.st_ino, place.relative_to(world.root).as_posix())
    change(world, "UPDATE file_check SET size = ?, ctime_ns = ?, inode = ? WHERE location = ?", *values)


def change(world: Commanded, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(world.folder / "var" / "ledger.db")) as connection:
        assert connection.execute(sql, values).rowcount > 0
        connection.commit()


def out(world: Commanded, name: str = "out.csv") -> Path:
    return world.folder / name


def refused(world: Commanded, *words: str, number: int = 1) -> None:
    out(world).write_text("what was there before")
    said = world.run(*READ, str(out(world)), *words)
    said.refused(7, data_file(world, number).name, "plant1", "what is read would not be what was loaded")
    assert said.json["hint"] == "./tidemark verify --repair --site plant1"
    assert out(world).read_text() == "what was there before"
    assert [p.name for p in world.folder.iterdir() if p.name.startswith("out.csv")] == ["out.csv"]


@pytest.fixture
def digested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were digested."""
    names: list[str] = []
    before = bytes_check.sha256_of

    def counting(root: Path, location: str) -> str:
        names.append(Path(location).name)
        return before(root, location)

    monkeypatch.setattr(bytes_check, "sha256_of", counting)
    return names


def test_a_bit_that_somebody_flipped_is_noticed_at_once(world: Commanded) -> None:
    assert len(world.rows()) == 6
    flip(data_file(world, 1))
    refused(world)
    refused(world)  # recorded
    assert not world.run("coverage").json["complete"]
    assert world.run(*READ, str(out(world)), "--device", "root.sg.d2").json["rows"] == 3
    assert world.run("verify", "--repair").code == 0
    assert len(world.rows()) == 6


def test_a_bit_that_rotted_is_noticed_by_asking_and_once_verify_days_are_over(world: Commanded) -> None:
    place = data_file(world, 1)
    flip(place)
    look_untouched(world, place)
    assert world.run(*READ, str(out(world))).code == 0  # proved lately: nobody looked again
    refused(world, "--verify")
    change(
        world, "UPDATE file_check SET sha256 = (SELECT sha256 FROM catalog_file c WHERE c.location = file_check.location)"
    )
    change(world, "UPDATE file_check SET checked = checked - 7.1 * 86400")
    refused(world)


def test_with_verify_days_of_0_every_read_looks(world: Commanded) -> None:
    place = data_file(world, 1)
    flip(place)
    look_untouched(world, place)
    world.receiver_keys = {"verify_days": 0}
    world.write_settings()
    refused(world)


def test_what_verify_recorded_as_damaged_is_not_read(world: Commanded, digested: list[str]) -> None:
    flip(data_file(world, 1))
    assert world.run("verify").code == 20
    digested.clear()
    refused(world)
    assert digested == []


def test_what_is_proved_is_not_digested_again(world: Commanded, digested: list[str]) -> None:
    """A load proves; so do verify and a read."""
    said = world.run(*READ, str(out(world)))
    assert (said.json["verified"], digested) == (0, [])
    assert world.run(*READ, str(out(world)), "--verify").json["verified"] == len(digested) == 2
    change(world, "DELETE FROM file_check")
    assert world.run(*READ, str(out(world)), "--device", "root.sg.d1").json["verified"] == 1
    assert world.run(*READ, str(out(world))).json["verified"] == 1
    assert world.run(*READ, str(out(world))).json["verified"] == 0
    change(world, "DELETE FROM file_check")
    assert world.run("verify").code == 0
    assert world.run(*READ, str(out(world))).json["verified"] == 0


def test_deletions_are_proved_too(world: Commanded) -> None:
    world.put(
        world.seal(3), {**sealed({"root.sg.d3": {"s": [(1, 1), (2, 2)]}}), ".mods": deletion("root.sg.d3.s", 1, 1).encode()}
    )
    assert world.sync().code == 0
    flip(data_file(world, 3, ".mods"), at=8)
    world.run(*READ, str(out(world))).refused(7, ".mods", "plant1")


def truncate(place: Path) -> None:
    os.truncate(place, place.stat().st_size - 7)


def flip_far(place: Path) -> None:
    flip(place, at=place.stat().st_size - 20)


@pytest.mark.parametrize("damage", [truncate, flip_far])
def test_a_file_that_cannot_even_be_opened_is_no_partial_read(world: Commanded, damage: Callable[[Path], None]) -> None:
    damage(data_file(world, 2))
    refused(world, number=2)


def test_a_merge_folds_nothing_damaged_and_what_it_found_is_not_read(world: Commanded) -> None:
    world.seal(3, device="root.sg.d1")
    assert world.sync().code == 0
    place = data_file(world, 1)
    flip(place)
    look_untouched(world, place)
    assert world.run("merge").code == 7
    refused(world)


def test_what_cannot_be_decoded_is_told_as_error_too(world: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a partial read says what is missing (it was empty)."""
    from tidemark.errors import UnsupportedError
    from tidemark.tsfiles.reader import TsFile

    def refuse(self: TsFile, device: str, measurement: str, *_: object) -> None:
        raise UnsupportedError("page in encoding SPRINTZ2")

    monkeypatch.setattr(TsFile, "read_column", refuse)
    said = world.run(*READ, str(out(world)))
    said.refused(23, "root.sg.d1.s was not read: page in encoding SPRINTZ2 (and 1 more)")
    assert said.json["hint"] == "./tidemark why root.sg.d1"


def test_whatever_bit_of_whatever_file_rots(world: Commanded) -> None:
    """Source, merged file and deletions: no bit is so placed that a read gives rows that were not loaded."""
    mods = deletion("root.sg.d3.s", 1, 1).encode()
    world.put(world.seal(3), {**sealed({"root.sg.d3": {"s": [(1, 1), (2, 2)]}}), ".mods": mods})
    world.seal(4, device="root.sg.d1")
    assert world.sync().code == 0
    assert world.run("merge").code == 0
    rows = world.rows()
    with closing(sqlite3.connect(world.folder / "var" / "ledger.db")) as connection:
        seen = "SELECT location, mods_location FROM catalog_file WHERE state = 'live' AND visible = 1"
        places = [world.root / place for pair in connection.execute(seen) for place in pair if place]
    assert len(places) >= 4
    assert {place.suffix for place in places} == {".tsfile", ".mods"}
    assert any("-merged-" in place.name for place in places)
    chance = random.Random(6)
    for place in places:
        sound = place.read_bytes()
        for _ in range(5):
            flip(place, chance.randrange(len(sound)))
            world.run(*READ, str(out(world))).refused(7, place.name)
            place.write_bytes(sound)
    assert world.rows() == rows


@pytest.mark.full_after(1)
@pytest.mark.parametrize("end", ["file", "file.*.mods"])
def test_what_was_found_damaged_is_told_by_status_until_it_is_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    world = Commanded(tmp_path, monkeypatch)
    path = world.seal(1)
    world.put(path, sealed({"root.sg.d1": {"s": [(t, t) for t in range(9)]}}, deletion("root.sg.d1.s", 1, 2)))
    world.seal(2)
    assert world.sync().code == 0
    assert world.run("status").json["links"][0]["damaged"] == []
    place = data_file(world, 1, end)
    flip(place, 10)
    assert world.run("verify").code == 20
    said = world.run("status")
    said.refused(23, place.name)
    assert "./tidemark verify --repair" in said.json["hint"]
    (link,) = said.json["links"]
    assert (link["state"], link["damaged"]) == ("idle", [place.relative_to(world.root).as_posix()])
    assert place.name in str(world.run("why", "plant1").json)
    assert world.run("verify", "--repair").code == 0
    for words in (("verify",), ("status",)):
        assert world.run(*words).code == 0, words
    assert world.run("status").json["links"][0]["damaged"] == []
