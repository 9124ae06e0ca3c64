"""A proof has a date: what is known of a site, until when, what is sealed there and not sent, and when that is too old."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.proof.conftest import Deployment
from tidemark.errors import UnreachableError
from tidemark.proof.as_of import AsOf, day_of, interval_seconds, is_overdue, judge_listings, stale_seconds
from tidemark.proof.coverage.cells import SiteCoverage, Stretch, mark_unknown_days
from tidemark.proof.coverage.page import render_page
from tidemark.proof.overview import status
from tidemark.proof.prove import coverage, why
from tidemark.proof.verify.verify import sealed_at, verify
from tidemark.settings.model import LinkSettings

HOUR, DAY = 3600.0, 86_400.0
LINK = LinkSettings("plant1", "plant1", "centre")


def scheduled(schedule: str, **more: Any) -> LinkSettings:
    return replace(LINK, schedule=schedule, **more)


def later(d: Deployment, seconds: float) -> None:
    before = d.app.clock
    d.app.clock = lambda: before() + seconds


def of_link(d: Deployment, **changes: Any) -> None:
    link = replace(d.app.settings.links["plant1"], **changes)
    d.app = replace(d.app, settings=replace(d.app.settings, links={"plant1": link}))


def down(d: Deployment) -> None:
    site = replace(d.app.settings.sites["plant1"], store="sftp://nobody@127.0.0.1:1/x", host_key="SHA256:" + "A" * 43)
    d.app = replace(d.app, settings=replace(d.app.settings, sites={"plant1": site}))


def seal_another(d: Deployment, mtime: float | None = None) -> str:
    """The site seals a copy of its newest file under a name that follows it."""
    last = d.files()[-1]
    created, version, *rest = last.name.split("-")
    new = last.with_name("-".join([str(int(created) + 1), str(int(version) + 1000), *rest]))
    for end in ("", ".resource"):
        new.with_name(new.name + end).write_bytes(last.with_name(last.name + end).read_bytes())
        if mtime is not None:
            os.utime(new.with_name(new.name + end), (mtime, mtime))
    return d.path(new)


# ── the arithmetic ──


@pytest.mark.parametrize(
    ("link", "interval"),
    [
        (scheduled("*/15 * * * *"), 900),
        (scheduled("@hourly"), HOUR),
        (scheduled("0 6 * * *"), DAY),
        (scheduled("0 6 * * 1"), 7 * DAY),
        (scheduled("0 12 * * *", timezone="Europe/Berlin"), DAY),
        (scheduled(""), DAY),
        (scheduled("at noon"), DAY),
    ],
)
def test_the_interval_of_a_schedule(link: LinkSettings, interval: float) -> None:
    assert interval_seconds(link, 1_700_000_000.0) == interval


def test_a_file_is_late_after_an_interval_and_fifteen_minutes() -> None:
    quarter, now = scheduled("*/15 * * * *"), 1_700_000_000.0
    assert not is_overdue(quarter, now - 1790, now) and is_overdue(quarter, now - 1810, now)
    assert not is_overdue(LINK, now - DAY - 890, now) and is_overdue(LINK, now - DAY - 910, now)


def test_how_old_a_listing_may_be() -> None:
    assert stale_seconds(None, 0.0) == stale_seconds(LINK, 0.0) == stale_seconds(scheduled("*/15 * * * *"), 0.0) == DAY
    assert stale_seconds(scheduled("0 6 * * 1"), 0.0) == 14 * DAY
    assert stale_seconds(scheduled("0 6 * * 1", coverage_stale_hours=2.0), 0.0) == 2 * HOUR


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([], AsOf(None, True)),
        ([(1000.0, None)], AsOf(1000.0, False)),
        ([(1000.0, 1005.0), (900.0, None)], AsOf(1000.0, False)),
        ([(1000.0, 600.0), (900.0, None)], AsOf(900.0, False)),  # ahead of who was told: not believed
        ([(7e9, None)], AsOf(None, True)),  # the year 2200
        ([(7e9, 7e9)], AsOf(None, True)),
        ([(1000.0 - 3 * DAY, 1000.0)], AsOf(1000.0 - 3 * DAY, True)),  # a clock that is behind makes it older, never newer
        ([(1100.0, None)], AsOf(1010.0, False)),  # a little ahead: of now
    ],
)
def test_which_time_is_believed(rows: list[tuple[float, float | None]], found: AsOf) -> None:
    assert judge_listings([{"listed": a, "known": b} for a, b in rows], LINK, 1010.0) == found


@pytest.mark.parametrize(
    ("mtime", "waiting", "selected", "sealed"),
    [
        (500.0, None, None, 500.0),
        (500.0, None, 400.0, 500.0),
        (500.0 - 3 * DAY, None, 400.0, 400.0),  # the site's clock is three days behind: it was not there at 400
        (7e9, None, 400.0, 400.0),  # the year 2200 says nothing
        (7e9, None, None, 0.0),
        (500.0, 450.0, 490.0, 450.0),  # a run met it
        (500.0, 7e9, 490.0, 1000.0),
    ],
)
def test_since_when_a_file_waits(mtime: float, waiting: float | None, selected: float | None, sealed: float) -> None:
    assert sealed_at(mtime, waiting, selected, 1000.0) == sealed


def test_days_after_the_listing_are_unknown() -> None:
    found = (Stretch("a", 1, 3, 1, 1, ()), Stretch("a", 6, 9, 2, 1, ("x: gone",)), Stretch("b", 2, 2, 1, 1, ()))
    cut = mark_unknown_days(found, 2, 7)
    assert [(s.device, s.first, s.last, s.expected, s.unknown) for s in cut] == [
        *(("a", 1, 2, 1, False), ("a", 3, 3, 1, True), ("a", 4, 5, 0, True), ("a", 6, 9, 2, True)),
        *(("b", 2, 2, 1, False), ("b", 3, 7, 0, True)),
    ]
    site = SiteCoverage("s", cut)
    assert (site.cells, site.red_cells, site.unknown_cells, site.known_cells) == (8, 4, 8, 7)
    assert mark_unknown_days(found, 9, 9)[:2] == found[:2]
    assert all(s.unknown for s in mark_unknown_days(found, None, 99)) and len(mark_unknown_days(found, None, 99)) == 3


# ── through the doors ──


@pytest.mark.full
def test_a_site_that_is_down_turns_stale_and_its_days_unknown(deploy) -> None:
    d = deploy(4)
    d.sync()
    fresh = coverage(d.app, d.receiver)
    told = fresh.as_json()
    assert fresh.is_complete and fresh.exit_code == 0 and told["unknown_cells"] == 0 and told["stale"] == []
    assert told["sites"][0]["as_of"].startswith(time.strftime("%Y-%m-%d", time.gmtime()))
    assert "unsure" not in render_page(fresh).split("class='rows'", 1)[1]
    down(d)
    later(d, 3 * DAY)
    old = coverage(d.app, d.receiver)
    told = old.as_json()
    devices = len({s.device for s in old.sites[0].stretches})
    assert (old.exit_code, told["complete"], told["unknown_cells"], told["stale"]) == (23, False, 3 * devices, ["plant1"])
    assert told["red"] == [] and told["cells"] == fresh.cells and "as of" in told["error"] and told["hint"]
    html = render_page(old)
    assert "class='unsure'" in html.split("class='rows'", 1)[1] and "stale" in html and "as of" in html
    report = status(d.app)
    assert (report.exit_code, report.links[0].state) == (23, "stale")
    assert report.as_json()["links"][0]["stale"] is True
    for subject in ("plant1", *[site.site for site in old.stale_sites]):
        assert "as of" in why(d.app, subject).cause
    checked = verify(d.app, d.receiver)
    assert checked.exit_code == 5 and [site for site, _ in checked.unreachable] == ["plant1"]


@pytest.mark.parametrize("again", [lambda d: d.sync(), lambda d: verify(d.app, d.receiver)], ids=["sync", "verify"])
def test_a_run_or_a_verify_that_finds_nothing_new_makes_it_fresh(deploy, again: Callable[[Deployment], Any]) -> None:
    d = deploy(3)
    d.sync()
    later(d, 3 * DAY)
    assert status(d.app).exit_code == 23
    again(d)
    assert status(d.app).exit_code == 0 and coverage(d.app, d.receiver).is_complete


def test_the_setting_decides_what_is_stale(deploy) -> None:
    d = deploy(3)
    of_link(d, coverage_stale_hours=2.0)
    d.sync()
    later(d, 1.9 * HOUR)
    assert status(d.app).exit_code == 0
    later(d, 0.2 * HOUR)
    assert status(d.app).exit_code == 23 and coverage(d.app, d.receiver).exit_code == 23
    of_link(d, coverage_stale_hours=72.0)
    assert coverage(d.app, d.receiver).exit_code == 0


def test_what_is_sealed_and_not_sent_is_told(deploy) -> None:
    d = deploy(3)
    of_link(d, schedule="*/15 * * * *")
    d.sync()
    listed = coverage(d.app, d.receiver).sites[0].as_of.at
    new = seal_another(d)
    later(d, 60)
    report = verify(d.app, d.receiver)
    told = report.as_json()
    assert (report.exit_code, told["unsent_files"], [one["path"] for one in told["unsent"]]) == (0, 1, [new])
    assert told["unsent"][0]["bytes"] == told["unsent_bytes"] > 0 and told["unsent"][0]["overdue"] is False
    assert coverage(d.app, d.receiver).sites[0].as_of.at == listed, "the ledger does not know what verify saw there"
    later(d, 1800)
    late = verify(d.app, d.receiver, deep=True)
    assert (late.exit_code, late.as_json()["unsent"][0]["overdue"]) == (23, True)
    assert new in late.as_json()["error"]
    d.sync()
    assert verify(d.app, d.receiver).exit_code == 0 and not verify(d.app, d.receiver).unsent


def test_a_closed_window_makes_nothing_late(deploy) -> None:
    d = deploy(3)
    d.sync()
    hour = int(d.app.clock() % DAY // HOUR)
    of_link(d, schedule="*/15 * * * *", window=f"{(hour + 4) % 24:02}:00-{(hour + 6) % 24:02}:00")
    seal_another(d)
    later(d, 2 * HOUR)
    assert verify(d.app, d.receiver).exit_code == 0
    later(d, 3 * HOUR)
    assert verify(d.app, d.receiver).exit_code == 23


@pytest.mark.parametrize("off", [-3 * DAY, 7e9], ids=["3 days behind", "the year 2200"])
def test_a_clock_of_the_site_that_is_off_makes_nothing_green(deploy, off: float) -> None:
    d = deploy(3)
    of_link(d, schedule="*/15 * * * *")
    d.sync()
    seal_another(d, min(time.time() + off, 7e9))
    assert verify(d.app, d.receiver).exit_code == 0, "it was not there when the run listed, a moment ago"
    later(d, 1860)
    assert verify(d.app, d.receiver).exit_code == 23


def test_a_listing_that_is_not_whole_makes_nothing_fresh(deploy) -> None:
    d = deploy(3)
    d.sync()
    whole = coverage(d.app, d.receiver).sites[0].as_of.at
    later(d, 3 * DAY)
    elsewhere = d.site.parent / "elsewhere"
    elsewhere.mkdir()
    (d.files()[0].parents[2] / "root.other").symlink_to(elsewhere)
    d.sync()
    verify(d.app, d.receiver)
    assert coverage(d.app, d.receiver).sites[0].as_of.at == whole
    assert status(d.app).exit_code == 23


def test_a_receiver_of_another_ledger_knows_by_the_manifests(deploy, tmp_path: Path) -> None:
    d = deploy(3)
    d.sync()
    alone = replace(d.app, settings=replace(d.app.settings, sites={}, links={}))
    assert coverage(alone, d.receiver).is_complete
    seen = coverage(alone, d.receiver).sites[0].as_of
    assert seen.at is not None and not seen.stale
    later(d, 2 * DAY)
    alone = replace(d.app, settings=replace(d.app.settings, sites={}, links={}))
    assert coverage(alone, d.receiver).exit_code == 23
    with d.app.ledger.write() as connection:  # a sender whose clock says 2200
        connection.exec_driver_sql("UPDATE landing SET listed = 7e9")
    assert coverage(alone, d.receiver).sites[0].as_of == AsOf(None, True)


def test_data_that_lies_ahead_of_the_listing_is_not_green(deploy) -> None:
    d = deploy(3)
    d.sync()
    known = coverage(d.app, d.receiver)
    last = max(s.last for s in known.sites[0].stretches)
    assert known.sites[0].unknown_cells == 0
    with d.app.ledger.write() as connection:  # as if the site had been listed before its own data's last day
        connection.exec_driver_sql(f"UPDATE link SET listed = {(last - 1) * DAY}")
        connection.exec_driver_sql("UPDATE landing SET listed = NULL")
    ahead = coverage(d.app, d.receiver).sites[0]
    assert day_of(int(ahead.as_of.at * 1000), "ms") == last - 1
    assert [s.unknown for s in ahead.stretches if s.first <= last <= s.last and s.expected] != []
    assert all(s.unknown for s in ahead.stretches if s.first >= last)


@pytest.mark.full
def test_a_link_that_never_ran_is_new_and_not_stale(deploy) -> None:
    d = deploy(3)
    report = coverage(d.app, d.receiver)
    assert (report.exit_code, report.as_json()["sites"][0]["as_of"]) == (0, None)
    assert "never ran" in report.as_json()["notes"][0]
    down(d)
    with pytest.raises(UnreachableError):
        d.sync()
    assert coverage(d.app, d.receiver).exit_code == 23, "it was to be listed, and was not"
    assert (status(d.app).links[0].state, status(d.app).exit_code) == ("failed", 23)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("away", ["the site", "a folder", "what is in it"])
def test_a_site_whose_disk_is_away_is_not_verified(deploy, away: str) -> None:
    """Nothing there can be compared, so nothing there is proved."""
    d = deploy(3)
    d.sync()
    folder = {"the site": d.site, "a folder": d.files()[0].parents[3]}.get(away, d.files()[0].parents[2])
    folder.rename(d.site.parent / "away")
    for deep in (False, True):
        report = verify(d.app, d.receiver, deep=deep)
        assert report.exit_code == 6, report
        assert "mounted" in report.as_json()["error"] or "empty" in report.as_json()["error"], report.as_json()
        assert "./tidemark doctor" in report.as_json()["hint"]
    (d.site.parent / "away").rename(folder)
    assert verify(d.app, d.receiver).exit_code == 0
