"""Files that are gone at their site and kept: what `read` tells of their rows, and how it leaves them out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import sealed

D = "root.sg.d"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A site that has the times 1 to 3 of a device, and had 1 to 5 in an older file that it dropped."""
    world = Commanded(tmp_path, monkeypatch)
    older = world.seal(1, points=5, device=D)
    world.seal(2, points=3, device=D)
    world.seal(3)
    assert world.sync().code == 0
    drop(world, older)
    assert world.sync().code == 0
    return world


def drop(world: Commanded, path: str) -> None:
    for end in world.sealed.pop(path):
        (world.site / (path + end)).unlink()


def read(world: Commanded, *words: str) -> tuple[dict[str, object], list[list[str]]]:
    out = world.folder / "out.csv"
    said = world.run("read", "--out", str(out), *words)
    assert said.code == 0, said
    with out.open(newline="") as rows:
        return said.json, list(csv.reader(rows))[1:]


def times(rows: list[list[str]], device: str = D) -> list[int]:
    return [int(time) for name, _, time, _, _ in rows if name == device]


class TestRead:
    def test_it_counts_rows_that_only_such_files_hold(self, world: Commanded) -> None:
        found, rows = read(world, "--tall")
        assert (found["rows"], found["kept_rows"], times(rows)) == (8, 2, [1, 2, 3, 4, 5])
        assert [row[4] for row in rows if row[0] == D] == ["201", "202", "203", "104", "105"]

    def test_it_leaves_them_out_when_asked(self, world: Commanded) -> None:
        found, rows = read(world, "--tall", "--live-only")
        assert (found["rows"], found["kept_rows"], times(rows)) == (6, 0, [1, 2, 3])

    def test_a_wide_row_counts_once(self, world: Commanded) -> None:
        parts = sealed({D: {"u": [(t, t) for t in (5, 6)], "v": [(t, t) for t in (5, 6)]}})
        path = f"data/sequence/root.sg/0/0/{1_600_000_000_009}-9-0-0.tsfile"
        world.put(path, parts)
        assert world.sync().code == 0
        drop(world, path)
        assert world.sync().code == 0
        found, _ = read(world)
        assert (found["rows"], found["kept_rows"]) == (9, 3), "times 4, 5 and 6, of which 5 has three such values"
        assert read(world, "--live-only")[0]["rows"] == 6

    def test_bounds_hold_for_the_count_too(self, world: Commanded) -> None:
        assert read(world, "--tall", "--from", "5")[0]["kept_rows"] == 1
        assert read(world, "--tall", "--to", "4")[0]["kept_rows"] == 0
