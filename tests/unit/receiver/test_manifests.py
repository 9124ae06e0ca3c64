"""Manifests come from elsewhere: each rule they must keep, broken once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.landing_maker import SITE_A, Sender
from tests.small_files import sealed, source
from tidemark.errors import CorruptionError
from tidemark.formats.landing import Manifest, Part, decode_manifest
from tidemark.receiver.load.landings import Folder, check_sound, landing_folders, read_found_manifest


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    place = Sender(tmp_path_factory.mktemp("centre")).land({source(1): sealed({"root.sg.d1": {"s": [(1, 1)]}})})
    return decode_manifest((place / "manifest.json").read_bytes())


def folder_of(manifest: Manifest) -> Folder:
    return Folder(SITE_A, manifest.landing, answered=False, bulky=True)


def test_a_sound_manifest_passes(sound: Manifest) -> None:
    assert check_sound(sound, folder_of(sound)) is sound


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"site_id": "another"}, "site another"),
        ({"sequence": 0}, "count from 1"),
        ({"time_unit": "s"}, "one of ms, us, ns"),
        ({"deletes": "maybe"}, "keep or apply"),
        ({"partition_interval_ms": 0}, "at least 1"),
    ],
)
def test_what_it_says_of_itself(sound: Manifest, change: dict[str, object], word: str) -> None:
    with pytest.raises(CorruptionError, match=word):
        check_sound(replace(sound, **change), folder_of(sound))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"generation": 0}, "count from 1"),
        ({"tsfile": None, "mods": None}, "neither a TsFile nor mods"),
        ({"sha256": "0" * 64}, "told in two ways"),
        ({"mods": Part("elsewhere.mods", 1, "")}, "no companion"),
        ({"path": "manifest.json"}, "may not be"),
    ],
)
def test_what_it_says_of_a_file(sound: Manifest, change: dict[str, object], word: str) -> None:
    lying = replace(sound, files=(replace(sound.files[0], **change),))  # type: ignore[arg-type]
    with pytest.raises(CorruptionError, match=word):
        check_sound(lying, folder_of(sound))


def test_only_whole_landings_are_found(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    whole = sender.land({source(1): sealed({"root.sg.d1": {"s": [(1, 1)]}})})
    (whole.parent / "20260101T000000-ffffff-1" / "data").mkdir(parents=True)
    (tmp_path / "landing" / "linked").symlink_to(whole.parent)
    (tmp_path / "landing" / "a file").write_text("")
    assert [(f.landing, f.answered, f.bulky) for f in landing_folders(tmp_path)] == [(whole.name, False, True)]
    assert list(landing_folders(tmp_path, "another site")) == []
    assert list(landing_folders(tmp_path / "nothing here")) == []
    paper = read_found_manifest(tmp_path, Folder(SITE_A, "20260101T000000-ffffff-1", answered=False, bulky=True))
    assert paper.manifest is None and "went away" in paper.trouble
