"""Data folders of real IoTDB servers, landed and loaded, read back equal to the servers' own answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.expected import SITES, RealSite
from tests.landing_maker import companions, move_aside, tsfiles_below
from tidemark.receiver.read import Query

BOTH = pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def all_files(site: RealSite) -> dict[str, dict[str, bytes]]:
    return {path: companions(site.root, path) for path in tsfiles_below(site.root, site.data)}


@pytest.mark.full_after(1)
@BOTH
def test_what_readers_see_is_what_the_server_answered(site: RealSite, tmp_path: Path) -> None:
    """Every point of both folders, checked in child processes as a user's load does."""
    pooled = Centre(tmp_path, engine="auto")
    files = all_files(site)
    pooled.sender(data=site.data).land(files)
    result = pooled.load()
    assert (result.landings, result.loaded, result.troubles) == (1, len(files), ())
    read, rows = pooled.read()
    assert rows == site.rows()
    assert (read.rows, read.devices, dict(read.undecodable)) == (len(rows), len({row[0] for row in rows}), {})


@pytest.mark.full_after(1)
@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_arrival_gives_the_same_content(site: RealSite, seed: int, centre: Centre) -> None:
    """The files cut into random landings, which become visible to the receiver in random order, with loads between."""
    chance = random.Random(seed)
    files = list(all_files(site).items())
    chance.shuffle(files)
    sender = centre.sender(data=site.data)
    cuts = sorted(chance.sample(range(1, len(files)), 5))
    landings = [sender.land(dict(files[a:b])) for a, b in zip([0, *cuts], [*cuts, len(files)], strict=True)]
    aside = {place: move_aside(place, centre.folder / "away") for place in landings}
    chance.shuffle(landings)
    for place in landings:
        aside[place].rename(place)
        centre.load()
    assert centre.load().landings == 0
    assert centre.rows() == site.rows()
    assert centre.sql("SELECT DISTINCT state FROM landing") == [("loaded",)]


@pytest.mark.full_after(1)
@BOTH
def test_deletions_that_come_later_count_from_then_on(site: RealSite, centre: Centre) -> None:
    """TsFiles first, their mods in a landing of their own."""
    files = all_files(site)
    sender = centre.sender(data=site.data)
    sender.land({path: {e: d for e, d in parts.items() if "mods" not in e} for path, parts in files.items()})
    centre.load()
    assert centre.rows() != site.rows()
    grown = {path: {e: d for e, d in parts.items() if "mods" in e} for path, parts in files.items()}
    sender.land({path: parts for path, parts in grown.items() if parts}, added=())
    result = centre.load()
    assert result.troubles == ()
    assert centre.rows() == site.rows()
    assert centre.sql("SELECT count(*) FROM catalog_file WHERE state = 'live'") == [(len(files),)]


@BOTH
def test_only_what_is_asked_for_is_read(site: RealSite, centre: Centre) -> None:
    centre.sender(data=site.data).land(all_files(site))
    centre.load()
    rows = site.rows()
    start, end = rows[len(rows) // 3][2], rows[len(rows) // 2][2]
    start, end = min(start, end), max(start, end)
    within = centre.rows(Query(tall=True, device="root.plant2.**", start=str(start), end=str(end)))
    assert within == [row for row in rows if row[0].startswith("root.plant2.") and start <= row[2] < end]
    assert within
