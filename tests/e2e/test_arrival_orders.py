"""Twenty ways in which the files of a real server can arrive: in any order, in any runs, with merges in between.

Each way ends with what the server itself answered: the same content whatever came first.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.expected import SITES, RealSite
from tests.landing_maker import Sender, companions, move_aside, tsfiles_below

pytestmark = pytest.mark.full
BOTH = pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
Files = dict[str, dict[str, bytes]]


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def in_runs(site: RealSite, chance: random.Random) -> list[Files]:
    """The files of a folder in random order, cut anywhere into 1 to 12 runs."""
    files = [(path, companions(site.root, path)) for path in tsfiles_below(site.root, site.data)]
    chance.shuffle(files)
    cuts = sorted(chance.sample(range(1, len(files)), chance.randrange(12)))
    return [dict(files[a:b]) for a, b in zip([0, *cuts], [*cuts, len(files)], strict=True)]


def land(sender: Sender, runs: list[Files], chance: random.Random, aside: Path) -> list[tuple[Path, Path]]:
    """A landing a run, in the order in which the receiver comes to see them: (where it shall be, where it waits)."""
    landings = [sender.land(run) for run in runs]
    waiting = [(place, move_aside(place, aside)) for place in landings]
    chance.shuffle(waiting)
    return waiting


@BOTH
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 20))])
def test_any_order_any_runs_and_merges_in_between_give_one_content(site: RealSite, seed: int, centre: Centre) -> None:
    chance = random.Random(seed)
    runs = in_runs(site, chance)
    merges = 0
    for place, waits in land(centre.sender(data=site.data), runs, chance, centre.folder / "away"):
        waits.rename(place)
        if chance.random() < 0.7:  # else the next load finds several landings
            assert centre.load().quarantined == 0
        if chance.random() < 0.5:
            merges += centre.merge().groups
    assert centre.load().waiting == 0
    assert centre.rows() == site.rows()
    assert merges + centre.merge().groups > 0
    assert centre.rows() == site.rows()
    assert centre.sql("SELECT DISTINCT state FROM landing") == [("loaded",)]
