"""Coverage: device × day, what is there and why not. Pure parts."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest

from tidemark.errors import UsageError
from tidemark.proof.as_of import day_of, day_text
from tidemark.proof.coverage.cells import (
    RED_SHOWN,
    CatalogView,
    Claim,
    Coverage,
    Expected,
    Held,
    SiteCoverage,
    account_trouble,
    build_stretches,
    claim_days,
    list_unplaced,
    why_absent,
)
from tidemark.proof.coverage.page import axis_of, build_bars, render_page
from tidemark.tsfiles.times import parse_time_bound

DAY_MS = 86_400_000


def _held(file_id: int, path: str = "a", **changes: object) -> Held:
    values = {"generation": 1, "size": 10, "state": "live", "visible": True, "location": f"data/{file_id}"} | changes
    return Held(file_id, path, **values)  # type: ignore[arg-type]


def _view(*held: Held, merged_over: dict[int, list[int]] | None = None, **more: object) -> CatalogView:
    by_path: dict[str, list[Held]] = {}
    for row in held:
        by_path.setdefault(row.path, []).append(row)
    return CatalogView({h.file_id: h for h in held}, by_path, merged_over or {}, **more)  # type: ignore[arg-type]


FILE = Expected("a", 10, 1, (("root.d", 0, 1),), "landing-1")


def test_a_file_that_readers_read_is_present() -> None:
    assert why_absent(FILE, _view(_held(1))) == ""


def test_a_listed_file_that_never_came_says_so() -> None:
    never = Expected("a", 10, 0, FILE.extent, "landing-1")
    assert "no landing has carried it" in why_absent(never, _view())
    assert why_absent(never, _view(trouble={"a": "in quarantine: torn"})) == "in quarantine: torn"


def test_an_absent_file_without_device_and_day_is_a_gap() -> None:
    blank = Expected("a", 10, 1, (), "landing-1")
    assert list(list_unplaced([blank], _view(_held(1)))) == []
    assert list(list_unplaced([blank, FILE], _view(trouble={"a": "in quarantine: torn"}))) == ["a: in quarantine: torn"]


def test_an_older_generation_in_the_catalog_is_not_the_live_one() -> None:
    assert "generation 2" in why_absent(Expected("a", 10, 2, FILE.extent, "landing-1"), _view(_held(1)))
    assert "changed at the site (10 → 12 bytes)" in why_absent(Expected("a", 12, 1, FILE.extent, "l"), _view(_held(1)))


def test_a_merged_source_is_present_through_all_of_its_merged_files() -> None:
    source, one, two = _held(1, visible=False), _held(2, ""), _held(3, "")
    lineage = {1: [2, 3]}
    good = _view(source, one, two, merged_over=lineage, account={2: "", 3: ""})
    assert why_absent(FILE, good) == ""
    wrong = account_trouble(3, 10, 5, 1, 1)
    assert "10 in, but 5 out + 1 overwritten + 1 deleted" in wrong
    assert why_absent(FILE, _view(source, one, two, merged_over=lineage, account={2: "", 3: wrong})) == wrong
    broken = _view(source, one, two, merged_over=lineage, account={2: "", 3: ""}, broken={3: "data/3 is missing"})
    assert why_absent(FILE, broken) == "data/3 is missing"
    assert "no account" in why_absent(FILE, _view(source, one, merged_over=lineage, account={}))


def test_a_settled_merged_file_that_was_merged_again_still_reaches_its_sources() -> None:
    source, settled, newest = _held(1, state="reclaimed", visible=False), _held(2, "", visible=False), _held(3, "")
    view = _view(source, settled, newest, merged_over={1: [2], 2: [3]}, account={2: "", 3: ""})
    assert why_absent(FILE, view) == ""
    assert account_trouble(2, 10, 7, 2, 1) == ""


def test_a_retired_file_with_nothing_above_it_is_not_present() -> None:
    assert "it is retired" in why_absent(FILE, _view(_held(1, state="retired", visible=False)))


@pytest.mark.parametrize(
    ("time_", "unit", "day"), [(0, "ms", 0), (-1, "ms", -1), (DAY_MS, "ms", 1), (DAY_MS * 1000, "us", 1), (-1, "ns", -1)]
)
def test_days_are_counted_in_utc_downwards(time_: int, unit: str, day: int) -> None:
    assert day_of(time_, unit) == day


def test_days_beyond_the_calendar_have_a_name_too() -> None:
    assert day_text(0) == "1970-01-01"
    assert day_text(-1) == "1969-12-31"
    assert day_text(10_000_000) == "day 10000000"


def test_a_person_may_write_a_time_in_several_ways() -> None:
    assert parse_time_bound("1970-01-02", "ms") == DAY_MS
    assert parse_time_bound("1970-01-02T00:00:00+00:00", "us") == DAY_MS * 1000
    assert parse_time_bound("1970-01-01T08:00:00+08:00", "ns") == 0
    assert parse_time_bound("-5", "ms") == -5
    assert parse_time_bound("1969-12-31T23:59:59.999", "ms") == -1
    assert parse_time_bound("1970-01-01T00:00:01.123456789Z", "ns") == 1_123_456_789
    assert [parse_time_bound("1970-01-01T00:00:00.0000011", unit) for unit in ("ns", "us", "ms")] == [1_100, 2, 1]
    assert [parse_time_bound("1969-12-31T23:59:59.9989995", unit) for unit in ("ns", "us", "ms")] == [-1_000_500, -1_000, -1]
    with pytest.raises(UsageError, match="'yesterday'"):
        parse_time_bound("yesterday", "ms")


def test_cells_are_counted_once_a_device_and_day() -> None:
    found = build_stretches([Claim("d", 0, 9, "a", ""), Claim("d", 5, 14, "b", "lost"), Claim("e", 3, 3, "a", "")])
    site = SiteCoverage("plant1", found)
    assert (site.cells, site.red_cells) == (16, 10)
    assert [(s.first, s.last, s.expected, s.present) for s in found if s.device == "d"] == [
        (0, 4, 1, 1),
        (5, 9, 2, 1),
        (10, 14, 1, 0),
    ]


def test_a_file_over_all_of_time_costs_no_more_than_another() -> None:
    start = time.process_time()
    found = build_stretches([Claim("d", day_of(-(2**63), "ms"), day_of(2**63 - 1, "ms"), "a", "lost")])
    coverage = Coverage((SiteCoverage("plant1", found),), "centre")
    assert coverage.cells > 2 * 10**11
    answer = coverage.as_json()
    assert len(answer["red"]) == RED_SHOWN
    assert answer["red_cells"] == coverage.cells
    assert len(render_page(coverage)) < 200_000
    assert time.process_time() - start < 1.0


def test_only_the_asked_days_are_covered() -> None:
    found = build_stretches([Claim("d", 0, 9, "a", ""), Claim("d", 20, 29, "a", "")], first=5, last=22)
    assert sum(s.days for s in found) == 8


def test_red_says_site_device_day_counts_and_why() -> None:
    expected = [FILE, Expected("b", 5, 0, (("root.d", 0, DAY_MS),), "landing-2")]
    found = build_stretches(claim_days(expected, _view(_held(1)), "ms"))
    answer = Coverage((SiteCoverage("plant1", found),), "centre").as_json()
    assert answer["cells"] == 2
    assert answer["complete"] is False
    assert answer["share"] == 0.0
    why = "b: the site lists it, but no landing has carried it yet"
    assert answer["red"] == [
        {"site": "plant1", "device": "root.d", "day": "1970-01-01", "expected": 2, "present": 1, "why": why},
        {"site": "plant1", "device": "root.d", "day": "1970-01-02", "expected": 1, "present": 0, "why": why},
    ]


def test_complete_means_every_cell_and_no_gap() -> None:
    green = build_stretches(claim_days([FILE], _view(_held(1)), "ms"))
    whole = Coverage((SiteCoverage("plant1", green),)).as_json()
    assert (whole["complete"], whole["share"], whole["red"]) == (True, 1.0, [])
    gap = Coverage((SiteCoverage("plant1", green, ("landing 2 has not come",)),)).as_json()
    assert (gap["complete"], gap["share"]) == (False, 0.5)
    assert gap["red"][0]["why"] == "landing 2 has not come"


def test_a_column_of_several_days_shows_its_worst_one() -> None:
    found = build_stretches([Claim("d", 0, 3_000, "a", ""), Claim("d", 1_000, 1_000, "b", "lost")])
    axis = axis_of(found)
    assert axis.step > 1
    shown = list(build_bars(found, axis))
    assert [(b.expected, b.present) for b in shown] == [(1, 1), (2, 1), (1, 1)]


class _Tags(HTMLParser):
    """Every opened tag closes; no reference leaves the file."""

    VOID = ("meta", "br", "path", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    name = "root.<b>&`x`"
    found = build_stretches(
        [Claim(name, 5, 6, "a", ""), Claim(name, 6, 6, "b", "torn <page>"), Claim("works.r0", 900, 901, "a", "")]
    )
    site = SiteCoverage("plant <1>", found, ("landing 3 has not come",), ("2 files & more were adopted",))
    text = render_page(Coverage((site, SiteCoverage("new", (), notes=("link new never ran",))), "centre"))
    tags = _Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.outside == []
    assert "<script" not in text
    assert "root.&lt;b&gt;&amp;`x`" in text
    assert "torn &lt;page&gt;" in text
    assert "landing 3 has not come" in text
    assert "2 files &amp; more were adopted" in text and "link new never ran" in text
    assert text.count("class='cut'") >= 2  # one in the legend, one where the days between are left out
