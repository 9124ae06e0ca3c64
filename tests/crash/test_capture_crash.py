"""A capture dies at every effect on its store, and the next one goes on: every transaction once, XA rows at their commit."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.binlog_maker import DATA
from tests.change_worlds import DyingDisk, Power
from tests.crash.explorer import Effects, explore, explore_double
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.capture.run import Job, capture, open_log_files
from tidemark.changes.capture.transactions import Rules
from tidemark.changes.delivery.export import Exported, Query, make_lines
from tidemark.changes.delivery.points import parse_point
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader
from tidemark.changes.store.write import Limits

SMALL = Limits(block_bytes=4_000, block_seconds=1e9, group_seconds=0)
TINY = replace(SMALL, block_bytes=150)  # less than one of the XA transactions takes, which waits in a file for its end
PARKED = ("after publish parked/", "after rename parked/", "after remove parked/")
LOGS = ("mysql-bin.000011", "mysql-bin.000012", "mysql-bin.000013")
END = "mysql-bin.000013:982"  # behind the XA commit and the XA rollback


class CaptureWorld:
    def __init__(self, root: Path, logs: Iterable[Path], limits: Limits = SMALL, choice: Random | None = None) -> None:
        self.root, self.logs, self.limits, self.choice = root, logs, limits, choice
        self.fence = 0
        self.power = Power()

    def live(self, effects: Effects) -> None:
        self.fence += 1
        disk = DyingDisk(self.root, effects, self.power)
        capture(
            Job(disk, self.fence, Rules(lambda *_: True), open_log_files(self.logs), parse_point(END), limits=self.limits)
        )

    def lose_power(self) -> None:
        if self.choice:
            self.power.lose(self.root, self.choice)
        lines = read_lines(self.root)
        assert lines == WHOLE[: len(lines)]

    def check(self) -> None:
        assert read_lines(self.root) == WHOLE
        assert [line["k"] for line in WHOLE].count("xa_commit") == 1
        assert not list((self.root / "parked").iterdir())

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


WHOLE: list[dict[str, Any]] = []


def read_lines(root: Path) -> list[dict[str, Any]]:
    disk = Disk(root)
    reader = Reader(disk)
    query = Query(reader.first, reader.view.end.seq + 1, lambda *_: True)
    return list(make_lines(reader, read_origin(disk), query, Exported()))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    places = [folder / name for name in LOGS]
    for place in places:
        place.write_bytes(lzma.decompress((DATA / "workload" / f"{place.name}.xz").read_bytes()))
    capture(Job(Disk(folder / "s"), 1, Rules(lambda *_: True), open_log_files(places), parse_point(END)))
    WHOLE[:] = read_lines(folder / "s")
    return places


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("limits", "effects"),
    [(SMALL, PARKED), (TINY, (*PARKED, "after append parked/gathered.block", "after rename parked/gathered.block"))],
    ids=["small", "tiny"],
)
def test_a_killed_capture(tmp_path: Path, logs: list[Path], limits: Limits, effects: tuple[str, ...]) -> None:
    explored = explore(lambda: CaptureWorld(tmp_path / "s", logs, limits))
    assert explored.all_died
    for effect in ("after publish source.json", *effects):
        assert any(name.startswith(effect) for name in explored.names), effect


@pytest.mark.full
@pytest.mark.parametrize("limits", [SMALL, TINY], ids=["small", "tiny"])
def test_two_deaths_and_the_power_goes(tmp_path: Path, logs: list[Path], limits: Limits) -> None:
    explore_double(lambda: CaptureWorld(tmp_path / "s", logs, limits, Random(3)), 100)
