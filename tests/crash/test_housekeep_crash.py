"""Housekeeping that dies before or after any of its effects: readers never notice, and the next round ends the work."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, explore, explore_double, identity
from tests.crash.test_merge_crash import build_catalog
from tests.small_files import source
from tidemark.app import App
from tidemark.formats.records import decode_settlement
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.stores.open import open_store

ROUNDS = (15, 17)  # days after the merge: settle; then the grace of what was settled is over


class HousekeepWorld:
    """A merged catalog; a life is a round of housekeeping on each of two days."""

    def __init__(self, folder: Path, template: Path) -> None:
        shutil.copytree(template, folder)
        self.centre = Centre(folder)
        self.expected = self.centre.rows()

    def live(self, effects: Effects) -> None:
        centre = self.centre
        ledger = CrashingLedger(centre.app.ledger.url, effects)
        try:
            for days in ROUNDS:
                app = App(
                    settings=centre.app.settings,
                    ledger=ledger,
                    identity=identity(),
                    clock=lambda days=days: time.time() + days * DAY,  # type: ignore[misc]
                    opener=lambda address: CrashingStore(open_store(address), effects, "receiver"),
                )
                housekeep(app, centre.receiver)
        finally:
            ledger.close()

    def lose_power(self) -> None:
        self.centre.reopen()
        assert self.centre.rows() == self.expected
        self.centre.app.ledger.close()

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == self.expected
        named = [name for row in centre.sql(BYTES) for name in row if name]
        assert centre.files("data") == sorted({name.removeprefix("data/") for name in named})
        papers = [decode_settlement((centre.root / "settled" / name).read_bytes()) for name in centre.files("settled")]
        assert sorted(paper.location for paper in papers) == sorted(name for (name,) in centre.sql(STANDING))
        assert centre.sql("SELECT count(*) FROM catalog_file WHERE state = 'reclaimed'") == [(4,)]
        assert centre.sql("SELECT count(*) FROM catalog_file WHERE state = 'retired'") == [(0,)]
        assert not [name for name in centre.files("landing") if not name.endswith(".json")]

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)


BYTES = "SELECT location, mods_location FROM catalog_file WHERE state = 'live'"
STANDING = "SELECT location FROM catalog_file WHERE state = 'live' AND role = 'merged'"


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], HousekeepWorld]:
    """Fresh worlds with the same merged catalog, and a landing that a load left half cleaned."""
    template = tmp_path / "template"
    template.mkdir()
    centre = Centre(template)
    build_catalog(centre)
    centre.merge()
    (landing,) = (template / "centre" / "landing").glob("*/*")
    for name in (source(1), source(2, unsequence=True)):
        place = landing / name
        place.parent.mkdir(parents=True)
        place.write_bytes(b"loaded already")
    centre.app.ledger.close()
    counter = iter(range(1_000_000))
    return lambda: HousekeepWorld(tmp_path / str(next(counter)), template)


def test_housekeeping_may_die_at_any_effect(worlds: Callable[[], HousekeepWorld], when: str) -> None:
    explored = explore(worlds, when=when)
    assert explored.all_died and explored.points > 10


def test_recovery_may_die_too(worlds: Callable[[], HousekeepWorld]) -> None:
    assert explore_double(worlds, pairs=8).crashes > 8


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_recovery_may_die_at_any_pair_of_effects(worlds: Callable[[], HousekeepWorld]) -> None:
    explore_double(worlds)
