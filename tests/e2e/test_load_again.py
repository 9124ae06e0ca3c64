"""Loading costs what is new: landings that are done are papers, which a load passes over until somebody touches them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre
from tests.landing_maker import SITE_A
from tests.small_files import sealed, source
from tidemark.receiver.load.landings import landing_folders


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that were opened."""
    names: list[str] = []
    scandir = os.scandir

    def noting(place: str | os.PathLike[str]) -> object:
        names.extend([place.name] if isinstance(place, Path) else [])
        return scandir(place)

    monkeypatch.setattr(os, "scandir", noting)
    return names


def land(centre: Centre, *numbers: int) -> list[Path]:
    sender = centre.sender()
    return [sender.land({source(n): sealed({f"root.sg.d{n}": {"s": [(n, n)]}})}) for n in numbers]


def test_a_finished_landing_is_not_opened_again(centre: Centre, opened: list[str]) -> None:
    folders = {place.name for place in land(centre, 1, 2, 3)}
    assert centre.load().landings == 3
    opened.clear()
    assert centre.load().landings == 0
    assert not folders & {*opened}
    everything = {folder.landing for folder in landing_folders(centre.root)}
    assert everything == folders, "who rebuilds a ledger finds them all"


def test_a_receipt_that_was_removed_is_written_again(centre: Centre) -> None:
    (place,) = land(centre, 1)
    centre.load()
    text = (place / "receipt.json").read_bytes()
    for _ in range(2):
        (place / "receipt.json").unlink()
        centre.load()
        assert (place / "receipt.json").read_bytes() == text


def test_a_landing_that_comes_a_second_time_is_cleaned_a_second_time(centre: Centre, tmp_path: Path) -> None:
    (place,) = land(centre, 1)
    shutil.copytree(place, tmp_path / "disk")
    centre.load()
    shutil.copytree(tmp_path / "disk", place, dirs_exist_ok=True)
    assert list(place.rglob("*.tsfile"))
    assert centre.load().loaded == 0
    assert sorted(p.name for p in place.iterdir()) == ["manifest.json", "receipt.json"]


def test_another_manifest_under_a_finished_landing_is_named_each_time(centre: Centre) -> None:
    (place,) = land(centre, 1)
    centre.load()
    manifest = place / "manifest.json"
    other = manifest.read_text().replace("plant1", "plant9")
    manifest.unlink()
    manifest.write_text(other)
    (place / "more").write_text("")
    for _ in range(2):
        (trouble,) = centre.load().troubles
        assert "was loaded with another manifest" in trouble.reason
    assert centre.sql("SELECT state FROM landing WHERE site_id = :site", site=SITE_A) == [("loaded",)]


def test_what_lies_in_a_landing_and_nobody_named_stays_and_costs_nothing(centre: Centre, opened: list[str]) -> None:
    (place,) = land(centre, 1)
    (place / "unnamed.txt").write_text("who sent me?")
    centre.load()
    opened.clear()
    centre.load()
    assert place.name not in opened
    assert (place / "unnamed.txt").exists()


class _DiedError(BaseException):
    pass


def dying(call: Callable[..., None], left: Iterator[int]) -> Callable[..., None]:
    """`call`, as long as there is something left; only calls beside a folder's handle, as removals in trees make them."""

    def dies(*arguments: Any, **beside: Any) -> None:
        if beside and next(left, None) is None:
            raise _DiedError
        call(*arguments, **beside)

    return dies


def test_a_cleaning_that_died_anywhere_is_finished_by_the_next_load(centre: Centre, tmp_path: Path) -> None:
    sender = centre.sender()
    files = {source(n, database=f"root.sg{n}"): sealed({f"root.sg{n}.d": {"s": [(n, n)]}}) for n in (1, 2)}
    place = sender.land(files, schema=[("schema/mlog.txt", 1, 0, b"0,root.sg.d1.s,0,0,1,,,-1\n")])
    shutil.copytree(place, tmp_path / "disk")
    centre.load()
    for calls in range(100):
        shutil.copytree(tmp_path / "disk", place, dirs_exist_ok=True)
        with pytest.MonkeyPatch.context() as patched:
            left = iter(range(calls))
            for name in ("unlink", "rmdir", "rename"):
                patched.setattr(os, name, dying(getattr(os, name), left))
            try:
                centre.load()
                died = False
            except _DiedError:
                died = True
        if not died:
            break
        assert centre.load().troubles == ()
        assert sorted(p.name for p in place.iterdir()) == ["manifest.json", "receipt.json"], calls
    assert calls > 10
