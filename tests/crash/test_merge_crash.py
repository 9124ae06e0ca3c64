"""A merge that dies before or after any of its effects changes nothing for readers, and the next one ends the work."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.centre import Centre, InlineEngine
from tests.crash.dying_centre import dying
from tests.crash.explorer import Effects, explore, explore_double
from tests.small_files import deletion, sealed, source
from tidemark.engines.task import Outcome
from tidemark.tsfiles.points.codes import DataType

WEEK = 604_800_000


def build_catalog(centre: Centre) -> None:
    """Two groups to merge (one over two partitions, with deletions), one that stays apart, one file by itself."""
    site = centre.sender()
    site.land(
        {
            source(1): sealed({"root.sg.d1": {"s": [(1, 10), (2, 20), (WEEK + 1, 30)]}}, deletion("root.sg.d1.s", 2, 2)),
            source(2, unsequence=True): sealed({"root.sg.d1": {"s": [(1, 11), (5, 50)]}}),
            source(3): sealed({"root.sg.d2": {"s": [(1, 1), (3, 3)], "t": [(2, 2)]}}),
            source(4): sealed({"root.sg.d2": {"s": [(2, 2), (3, 4)]}}),
            source(5): sealed({"root.sg.d3": {"s": [(1, 1), (9, 9)]}}),
            source(6): sealed({"root.sg.d3": {"s": [(5, 5)]}}, data_type=DataType.INT32),
            source(7): sealed({"root.sg.d4": {"s": [(1, 1)]}}),
        }
    )
    assert centre.load().troubles == ()


class CrashingEngine(InlineEngine):
    """Runs tasks here; each one is an effect: its staged files are there or not."""

    def __init__(self, effects: Effects) -> None:
        self.effects = effects

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        for index, task in enumerate(tasks):
            (outcome,) = self.effects.around(f"task {index}", lambda task=task: list(InlineEngine().run(kind, [task])))
            yield Outcome(index, outcome.value, outcome.error)


class MergeWorld:
    """A catalog with overlapping files; a life is a merge. Readers are asked after every death, too."""

    def __init__(self, folder: Path, template: Path) -> None:
        shutil.copytree(template, folder)
        self.centre = Centre(folder)
        self.expected = self.centre.rows()

    def live(self, effects: Effects) -> None:
        centre = self.centre
        with dying(centre, effects):
            result = centre.merge(engine=CrashingEngine(effects))
            assert result.exit_code == 0

    def lose_power(self) -> None:
        self.centre.reopen()
        assert self.centre.rows() == self.expected
        self.centre.app.ledger.close()

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == self.expected
        visible = centre.sql("SELECT role, count(*) FROM catalog_file WHERE visible = 1 GROUP BY role ORDER BY role")
        assert visible == [("merged", 3), ("source", 3)]
        assert centre.sql("SELECT DISTINCT state FROM catalog_file") == [("live",)]
        accounts = centre.sql("SELECT sum(points_in), sum(points_out), sum(overwritten), sum(deleted) FROM merge_account")
        assert accounts == [(5 + 5, 7, 2, 1)]
        assert centre.sql("SELECT subject, reason LIKE '%INT64 in % INT32 in %' FROM merge_kept") == [("root.sg.d3.s", 1)]
        named = [name.removeprefix("data/") for (name,) in centre.sql("SELECT location FROM catalog_file")]
        mods = [name.removeprefix("data/") for (name,) in centre.sql("SELECT mods_location FROM catalog_file") if name]
        assert centre.files("data") == sorted([*named, *mods])
        assert centre.files("staging") == []

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], MergeWorld]:
    """Fresh worlds with the same catalog."""
    template = tmp_path / "template"
    template.mkdir()
    centre = Centre(template)
    build_catalog(centre)
    centre.app.ledger.close()
    counter = iter(range(1_000_000))
    return lambda: MergeWorld(tmp_path / str(next(counter)), template)


def test_a_merge_may_die_at_any_effect(worlds: Callable[[], MergeWorld], when: str) -> None:
    explored = explore(worlds, when=when)
    assert explored.all_died and explored.points > 15


def test_recovery_may_die_too(worlds: Callable[[], MergeWorld]) -> None:
    assert explore_double(worlds, pairs=20).crashes > 20


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_recovery_may_die_at_any_pair_of_effects(worlds: Callable[[], MergeWorld]) -> None:
    explore_double(worlds, pairs=2000)
