"""Where files lie at a receiver, and how they get there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.explorer import CrashingStore, Effects
from tidemark.errors import PermanentError, SourceVanishedError
from tidemark.formats.layout import catalog_partition, data_location, folder_name, mods_location
from tidemark.receiver.load.place import Placement, place_files
from tidemark.stores.local import LocalStore

WEEK = 604_800_000


@pytest.mark.parametrize(
    ("start", "unit", "partition"),
    [
        (0, "ms", 0),
        (-1, "ms", -1),
        (-WEEK, "ms", -1),
        (-WEEK - 1, "ms", -2),
        (WEEK * 1000, "us", 1),
        (WEEK * 10**6 - 1, "ns", 0),
    ],
)
def test_catalog_partitions_round_down(start: int, unit: str, partition: int) -> None:
    assert catalog_partition(start, WEEK, unit) == partition


@pytest.mark.parametrize(
    ("database", "folder"),
    [("root.sg", "root.sg"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("电", "%E7%94%B5"), ("100%", "100%25")],
)
def test_a_database_is_a_folder_that_leads_nowhere_else(database: str, folder: str) -> None:
    assert folder_name(database) == folder


def test_long_databases_stay_apart() -> None:
    one, two = folder_name("电" * 64 + "1"), folder_name("电" * 64 + "2")
    assert one != two and len(one) < 255


def test_content_is_in_the_names() -> None:
    place = data_location("root.sg", 3, "0f8e1c52-7d1b", "ab" * 32, "data/sequence/root.sg/0/3/1-2-0-0.tsfile")
    assert place == "data/root.sg/3/0f8e1c52-abababababab-1-2-0-0.tsfile"
    assert mods_location(place, "cd" * 32, "x.tsfile.mods2") == place + ".cdcdcdcdcdcd.mods2"


class NoLinks(CrashingStore):
    """A disk without hard links."""

    def link(self, pairs: object) -> list[str]:
        raise PermanentError("no links here")


@pytest.mark.parametrize("links", [True, False])
def test_placing_twice_is_placing_once(tmp_path: Path, links: bool) -> None:
    store = LocalStore(str(tmp_path)) if links else NoLinks(LocalStore(str(tmp_path)), Effects(), "disk")
    (tmp_path / "in").write_bytes(b"content")
    placements = [Placement("in", "data/x/out"), Placement("in", "data/y/out"), Placement("gone", "data/z", optional=True)]
    for _ in range(2):
        place_files(store, placements)
        assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == [
            "data/x/out",
            "data/y/out",
            "in",
        ]
    assert (tmp_path / "data/x/out").read_bytes() == b"content"
    assert ((tmp_path / "data/x/out").stat().st_ino == (tmp_path / "in").stat().st_ino) is links
    (tmp_path / "in").unlink()
    place_files(store, placements[:2])  # what is in place needs its source no more


def test_a_half_file_under_the_name_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"content")
    (tmp_path / "out").write_bytes(b"cont")
    place_files(LocalStore(str(tmp_path)), [Placement("in", "out")])
    assert (tmp_path / "out").read_bytes() == b"content"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_rotted_in_place_is_replaced_by_the_checked_one(tmp_path: Path, links: bool) -> None:
    store = LocalStore(str(tmp_path)) if links else NoLinks(LocalStore(str(tmp_path)), Effects(), "disk")
    (tmp_path / "in").write_bytes(b"content")
    (tmp_path / "out").write_bytes(b"cont\x00nt")
    place_files(store, [Placement("in", "out")])
    assert (tmp_path / "out").read_bytes() == b"content"


def test_a_source_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceVanishedError, match="in is gone"):
        place_files(LocalStore(str(tmp_path)), [Placement("in", "out")])
