"""A scan of a receiver's folder is refused, wherever below it or in a copy of it one begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.centre import Centre, d1
from tests.small_files import deletion, source
from tidemark.errors import UsageError
from tidemark.tsfiles.spark.dataset import find_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A receiver with a file that has deletions, and one that was merged."""
    centre = Centre(tmp_path)
    centre.sender().land({source(1): d1((1, 10), (2, 20)), source(2): d1((2, 22), mods=deletion("root.sg.d1.s", 1, 1))})
    centre.load()
    centre.merge()
    assert len(centre.files("data")) == 4
    return centre.root


def test_the_root_and_everything_below_it(root: Path) -> None:
    places = [root, *(p for p in (root / "data").rglob("*") if p.suffix != ".mods"), root / "data" / "*" / "*" / "*.tsfile"]
    assert len(places) >= 7
    for place in places:
        with pytest.raises(UsageError, match="they alone give wrong rows") as refused:
            find_files([str(place)])
        assert "./tidemark read" in refused.value.hint


def test_without_a_mark_in_a_copy_and_from_above(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "data", tmp_path / "copy")
    (tmp_path / "link").symlink_to(root / "data")
    (root / "ledger_mark.json").unlink()
    for place in (root, root.parent, root / "data", tmp_path / "copy", tmp_path / "link"):
        with pytest.raises(UsageError, match="data file of a receiver"):
            find_files([str(place)])


def test_what_waits_in_a_landing_is_no_data_set_either(root: Path) -> None:
    place = root / "landing" / "site" / "run-1" / "1-1-0-0.tsfile"
    place.parent.mkdir(parents=True)
    shutil.copy(next((root / "data").rglob("*.tsfile")), place)
    with pytest.raises(UsageError, match="it lies in the receiver's folder"):
        find_files([str(place)])


def test_by_spark(root: Path) -> None:
    source_of = pytest.importorskip("tidemark.tsfiles.spark.source")
    with pytest.raises(UsageError, match=r"wrong rows \(hint: spark.read.format\(\"tidemark\"\)"):
        source_of.TsFileSource({"path": str(root / "data")}).schema()


def test_what_a_link_of_another_name_leads_to(root: Path, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "1-1-0-0.tsfile").symlink_to(next((root / "data").rglob("*.tsfile")))
    for place in (aside, aside / "1-1-0-0.tsfile", aside / "*.tsfile"):
        with pytest.raises(UsageError, match="they alone give wrong rows"):
            find_files([str(place)])
