"""Data folders of real IoTDB servers, merged: readers get the same points before, between and after, in any order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.expected import SITES, RealSite
from tests.landing_maker import companions, tsfiles_below
from tidemark.receiver.merge.merge import merge

BOTH = pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def all_files(site: RealSite) -> dict[str, dict[str, bytes]]:
    return {path: companions(site.root, path) for path in tsfiles_below(site.root, site.data)}


def check_accounts(centre: Centre) -> None:
    """Every account agrees, and over the sources it stands for, every point is in it."""
    accounts = centre.sql("SELECT points_in, points_out, overwritten, deleted FROM merge_account")
    assert all(points_in == out + over + gone for points_in, out, over, gone in accounts)
    hidden = centre.sql("SELECT COALESCE(sum(points), 0) FROM catalog_file WHERE state = 'live' AND visible = 0")
    counted = centre.sql(
        "SELECT COALESCE(sum(a.points_in), 0) FROM merge_account a JOIN catalog_file m ON m.file_id = a.merged_id "
        "WHERE m.visible = 1"
    )
    assert counted == hidden


@pytest.mark.full_after(1)
@BOTH
def test_merging_changes_no_point(site: RealSite, centre: Centre) -> None:
    """Merged in child processes, as a user's merge is."""
    centre.sender(data=site.data).land(all_files(site))
    centre.load()
    result = merge(centre.app, centre.receiver)
    assert result.groups > 0 and result.failed == () and result.kept == () and result.moved == 0
    assert centre.rows() == site.rows()
    check_accounts(centre)
    assert centre.files("staging") == []
    again = merge(centre.app, centre.receiver)
    assert (again.groups, again.files_in) == (0, 0)


@pytest.mark.full_after(1)
@BOTH
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
def test_merges_between_loads_change_nothing_in_the_end(
    site: RealSite,
    seed: int,
    centre: Centre,
) -> None:
    """Random landings, mods of their own among them, with a merge after each: late files withdraw what they must."""
    chance = random.Random(seed)
    waiting: list[tuple[str, dict[str, bytes]]] = list(all_files(site).items())
    sender = centre.sender(data=site.data)
    while waiting:
        chance.shuffle(waiting)
        landing, waiting = dict(waiting[:8]), waiting[8:]
        for path, parts in list(landing.items()):
            late = {end: parts[end] for end in parts if "mods" in end and "" in parts and chance.random() < 0.5}
            if late:  # these mods grow only after their TsFile was loaded
                landing[path] = {end: data for end, data in parts.items() if end not in late}
                waiting.append((path, late))
        sender.land(landing)
        assert centre.load().troubles == ()
        before = centre.rows()
        assert centre.merge().exit_code == 0
        assert centre.rows() == before
        check_accounts(centre)
    assert centre.rows() == site.rows()
