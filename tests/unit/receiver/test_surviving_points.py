"""Evidence by points: whether a vanished file lives on in files that a compaction made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_files import column_of, deletion, file_of, tsfile
from tidemark.receiver.load.removal.rules import Survival
from tidemark.receiver.load.removal.surviving_points import HeldFile, SurvivalTask, find_surviving_points
from tidemark.tsfiles.points.codes import DataType

D1 = ("root", "sg", "d1")


def asked(folder: Path, gone: dict[int, object], *made: dict[int, object], mods: tuple[str, ...] = ()) -> Survival:
    """`mods`: of the vanished file and of those made, in their order."""
    held = []
    for place, points in enumerate((gone, *made)):
        name = f"{place}.tsfile"
        (folder / name).write_bytes(file_of({D1: {"s": column_of(DataType.DOUBLE, points)}})[""])
        text = mods[place] if place < len(mods) else ""
        if text:
            (folder / f"{name}.mods").write_text(text)
        held.append(HeldFile(name, f"{name}.mods" if text else ""))
    return find_surviving_points(SurvivalTask(str(folder), "root.sg", held[0], tuple(held[1:]))).survival


NAN = float("nan")
SERIES = "root.sg.d1.s"


@pytest.mark.parametrize(
    ("gone", "made", "mods", "expected"),
    [
        pytest.param({1: 1.0, 2: 2.0}, [{2: 2.0, 3: 3.0}], (), Survival.LIVES, id="one point is proof"),
        pytest.param({1: 1.0, 2: 2.0}, [{1: 9.0, 2: 9.0}], (), Survival.LIVES, id="overwritten throughout"),
        pytest.param({1: 1.0, 2: 2.0}, [{1: 9.0}, {2: 9.0}], (), Survival.LIVES, id="overwritten by two together"),
        pytest.param({1: 1.0, 2: 2.0}, [{1: 9.0}], (), Survival.GONE, id="overwritten in part, nothing lives on"),
        pytest.param({1: 1.0}, [{0: 1.0, 2: 1.0}], (), Survival.GONE, id="extents that touch are no points"),
        pytest.param({1: 1.0}, [], (), Survival.GONE, id="nothing was made"),
        pytest.param({1: NAN}, [{1: NAN}], (), Survival.LIVES, id="NaN is a value"),
        pytest.param({1: 1.0}, [{1: 9.0}], (deletion(SERIES, 0, 9),), Survival.EMPTY, id="all of it was deleted"),
        pytest.param({1: 1.0, 2: 2.0}, [{2: 2.0}], ("", deletion(SERIES, 0, 9)), Survival.GONE, id="deleted there"),
    ],
)
def test_what_the_points_say(
    tmp_path: Path, gone: dict[int, object], made: list[dict[int, object]], mods: tuple[str, ...], expected: Survival
) -> None:
    assert asked(tmp_path, gone, *made, mods=mods) is expected


def test_rows_that_are_deleted_at_an_edge_do_not_count(tmp_path: Path) -> None:
    edge = deletion(SERIES, 0, 1)
    assert asked(tmp_path, {1: 1.0, 5: 5.0}, {5: 5.0}, mods=(edge,)) is Survival.LIVES


def test_another_device_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tsfile({"root.sg.d1": {"s": [(1, 1)]}}))
    (tmp_path / "b").write_bytes(tsfile({"root.sg.d2": {"s": [(1, 1)]}}))
    task = SurvivalTask(str(tmp_path), "root.sg", HeldFile("a"), (HeldFile("b"),))
    assert find_surviving_points(task).survival is Survival.GONE
