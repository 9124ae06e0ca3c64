"""An operator gives up a held file and a kept one that rotted, or releases a held one, and dies before or after any effect:
the command said again, and the next load, end it. What is given up is on the receiver's disk before the ledger has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.centre import Centre, d1, rows
from tests.crash.dying_centre import dying
from tests.crash.explorer import Effects, explore
from tests.small_files import source
from tidemark.formats.records import GIVE_UP, decode_decision
from tidemark.operations.decisions import quarantine_drop, quarantine_release

KEPT, LIVE, HELD, MADE = source(1), source(2), source(3), source(2, inner=1)


def build(centre: Centre) -> None:
    """A file that the site dropped, whose bytes rotted here since; one that it has; one that cannot be read."""
    sender = centre.sender(deletes="keep")
    sender.land({KEPT: d1((1, 10)), LIVE: d1((2, 20)), HELD: {"": b"no TsFile"}})
    sender.land({}, dropped=(sender.drop(KEPT),), removed=(KEPT,))
    centre.load()
    ((location,),) = centre.sql("SELECT location FROM catalog_file WHERE path = :p AND marked = 'dropped'", p=KEPT)
    (centre.root / location).write_bytes(b"rotten")


class GiveUpWorld:
    """A life is both commands and a load."""

    def __init__(self, folder: Path, template: Path) -> None:
        shutil.copytree(template, folder)
        self.centre = Centre(folder)

    def live(self, effects: Effects) -> None:
        centre = self.centre
        ((file_id,),) = centre.sql("SELECT file_id FROM catalog_file WHERE path = :p", p=KEPT)
        ((held,),) = centre.sql("SELECT quarantine_id FROM quarantine WHERE path = :p", p=HELD)
        with dying(centre, effects):
            for one in (f"k{file_id}", str(held)):
                quarantine_drop(centre.app, centre.receiver, one)
            centre.load()

    def lose_power(self) -> None:
        """What the ledger says is given up is written at the receiver: a rebuilt ledger knows it."""
        self.centre.reopen()
        gone = (
            "SELECT path FROM pending_drop WHERE reason LIKE 'given up%' "
            "UNION SELECT path FROM quarantine WHERE state = 'dropped'"
        )
        assert {path for (path,) in self.centre.sql(gone)} <= self.written()

    def written(self) -> set[str]:
        papers = [
            decode_decision((self.centre.root / "decided" / name).read_bytes()) for name in self.centre.files("decided")
        ]
        return {paper.subject for paper in papers if paper.action == GIVE_UP}

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == rows((2, 20))
        assert centre.sql("SELECT path FROM catalog_file WHERE state = 'live'") == [(LIVE,)]
        assert centre.sql("SELECT state FROM quarantine") == [("dropped",)] and centre.files("quarantine") == []
        assert self.written() == {KEPT, HELD}

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)


def build_healed(centre: Centre) -> None:
    """A held file whose bytes are good by now, which covers one that the site compacted."""
    sender = centre.sender()
    sender.land({LIVE: d1((1, 10))})
    sender.land({MADE: d1((1, 10), (2, 20))}, superseded=(sender.drop(LIVE, MADE),), removed=(LIVE,))
    (landed,) = centre.root.rglob(MADE.rpartition("/")[2])
    whole = landed.read_bytes()
    landed.write_bytes(whole[:-1])
    centre.load()
    (place,) = (centre.root / "quarantine").rglob(landed.name)
    place.write_bytes(whole)


class ReleaseWorld(GiveUpWorld):
    """A life is the release and a load."""

    def live(self, effects: Effects) -> None:
        centre = self.centre
        ((held,),) = centre.sql("SELECT quarantine_id FROM quarantine")
        with dying(centre, effects):
            quarantine_release(centre.app, centre.receiver, str(held), centre.engine)
            centre.load()

    def lose_power(self) -> None:
        self.centre.reopen()
        assert set(self.centre.rows()) >= set(rows((1, 10)))

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert centre.rows() == rows((1, 10), (2, 20))
        assert centre.sql("SELECT path FROM catalog_file WHERE state = 'live'") == [(MADE,)]
        assert centre.sql("SELECT state FROM quarantine") == [("released",)] and centre.files("quarantine") == []


Worlds = Callable[[Callable[[Centre], None], type[GiveUpWorld]], Callable[[], GiveUpWorld]]


@pytest.fixture
def worlds(tmp_path: Path) -> Worlds:
    def make(build: Callable[[Centre], None], world: type[GiveUpWorld]) -> Callable[[], GiveUpWorld]:
        template = tmp_path / "template"
        template.mkdir()
        made = Centre(template)
        build(made)
        made.app.ledger.close()
        counter = iter(range(1_000_000))
        return lambda: world(tmp_path / str(next(counter)), template)

    return make


def test_giving_up_may_die_at_any_effect(worlds: Worlds, when: str) -> None:
    explored = explore(worlds(build, GiveUpWorld), when=when)
    assert explored.all_died and explored.points > 5


def test_a_release_may_die_at_any_effect(worlds: Worlds, when: str) -> None:
    explored = explore(worlds(build_healed, ReleaseWorld), when=when)
    assert explored.all_died and explored.points > 3
