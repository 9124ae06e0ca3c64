"""Two Tidemarks over one site: the centre pulls, a second one at the site, with its own ledger and settings, pushes
elsewhere. Neither hinders the other, even at the same moment, even when one is killed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.killed_world import SYNC, Killer
from tests.expected import SITES
from tests.services.deployed import Deployed
from tests.services.filling_site import FillingSite
from tests.services.sshd import Sshd

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SITE = SITES["0.12.0"]


@pytest.fixture
def two(tmp_path: Path, sshd: Sshd) -> tuple[Deployed, Deployed]:
    """(at the centre, at the site): the same link name, the same site id, different receivers."""
    root = sshd.new_folder("site")
    at_centre = Deployed(tmp_path / "at_centre", SITE, root, tmp_path / "centre", site_through=sshd)
    at_site = Deployed(tmp_path / "at_site", SITE, root, sshd.new_folder("elsewhere"), receiver_through=sshd)
    return at_centre.write(), at_site.write()


def beside(pushing: Deployed, folder: Path) -> Deployed:
    """The Tidemark that loads what `pushing` sends."""
    return replace(pushing, folder=folder, site_root=Path("/nowhere"), receiver_through=None, here=True).write()


def test_both_at_the_same_moment(two: tuple[Deployed, Deployed], tmp_path: Path) -> None:
    """Portion by portion, both at once; one of them is killed now and then while the other works."""
    at_centre, at_site = two
    filling = FillingSite(SITE, at_site.site_root, random.Random(7), count=3)
    killer = Killer(random.Random(8))
    while filling.reveal():
        other = at_centre.start(*SYNC)
        killer.strike(at_site, SYNC)
        out, err = other.communicate()
        assert other.returncode == 0, (out, err)
        killer.strike(at_site, SYNC)
    assert at_centre.run(*SYNC)["state"] == "nothing"
    at_site.run(*SYNC)
    loading = beside(at_site, tmp_path / "elsewhere")
    loading.run("load")
    for deployed in (at_centre, loading):
        assert deployed.read() == SITE.rows()
        assert deployed.run("coverage")["complete"] is True
    assert at_centre.run("verify", "--deep")["differences"] == []
    assert at_site.run("verify")["differences"] == []  # its receiver is remote
    assert not [p for p in at_site.site_root.rglob(".tidemark/*/*/**/*") if p.is_file()]


def test_one_link_has_one_run_at_a_time(two: tuple[Deployed, Deployed]) -> None:
    """Two processes of one Tidemark: one works, the other exits 5 and names the holder; nothing is sent twice."""
    at_centre, _ = two
    FillingSite.whole(SITE, at_centre.site_root)
    processes = [at_centre.start(*SYNC) for _ in range(3)]
    ended = [(process, *process.communicate()) for process in processes]
    codes = sorted(process.returncode for process, _, _ in ended)
    assert codes[0] == 0 and set(codes) <= {0, 5}, ended
    for process, out, _ in ended:
        assert process.returncode == 0 or b"is held by" in out, out
    assert at_centre.run(*SYNC)["state"] == "nothing"
    assert at_centre.read() == SITE.rows()


def test_the_same_site_twice_to_one_receiver_is_told(two: tuple[Deployed, Deployed], tmp_path: Path) -> None:
    """That cannot be: a receiver counts a site's landings in one sequence. It is told, and nothing is harmed."""
    _, at_site = two
    FillingSite.whole(SITE, at_site.site_root)
    at_site.run(*SYNC)
    second = replace(at_site, folder=tmp_path / "second").write()
    assert "plant1" in second.run(*SYNC, expect=(6,))["error"]
    second.config.write_text(second.config.read_text().replace("[links.plant1]", "[links.other]"))
    assert "one sequence" in second.run("sync", "other", expect=(6,))["error"]
    beside(at_site, tmp_path / "elsewhere").run("load")
    assert at_site.run(*SYNC)["state"] == "nothing"
    assert beside(at_site, tmp_path / "elsewhere").read() == SITE.rows()


def test_a_second_ledger_at_a_receiver_is_told(two: tuple[Deployed, Deployed], tmp_path: Path) -> None:
    """A receiver on this machine has one."""
    at_centre, _ = two
    FillingSite.whole(SITE, at_centre.site_root)
    at_centre.run(*SYNC)
    second = replace(at_centre, folder=tmp_path / "second").write()
    for words in (SYNC, ("load",), ("status",)):
        assert "knows nothing of what lies at receiver centre" in second.run(*words, expect=(6,))["error"]
    assert at_centre.run(*SYNC)["state"] == "nothing"
    assert at_centre.read() == SITE.rows()
