"""Housekeeping: what stands alone, what is reclaimed, what is trimmed; readers never notice."""

from __future__ import annotations

import pytest

from tests.unit.proof.conftest import Deployment
from tidemark.errors import LeaseHeldError
from tidemark.formats.records import decode_settlement
from tidemark.ledger.leases import Identity, Leases
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.proof.prove import coverage, why
from tidemark.proof.verify.verify import verify
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.read import Query, read


def _read(d: Deployment) -> bytes:
    out = d.app.settings.root / "read.csv"
    read(d.app, d.receiver, Query(tall=True), out)
    return out.read_bytes()


def _later(d: Deployment, days: float) -> None:
    before = d.app.clock
    d.app.clock = lambda: before() + days * DAY


def _sources(d: Deployment) -> list[str]:
    return sorted(p.name for p in d.centre.glob("data/**/*.tsfile") if "-merged-" not in p.name)


def test_nothing_is_done_before_its_time(deploy) -> None:
    d = deploy(None)
    d.sync()
    merge(d.app, d.receiver, engine="pool")
    result = housekeep(d.app, d.receiver)
    assert (result.settled, result.reclaimed, result.events) == (0, 0, 0)


@pytest.mark.full
def test_after_settle_days_merged_files_stand_alone_and_their_sources_go(deploy) -> None:
    d = deploy(None)
    d.sync()
    merge(d.app, d.receiver, engine="pool")
    before, sources = _read(d), _sources(d)
    _later(d, 15)
    result = housekeep(d.app, d.receiver)
    assert result.settled > 0
    assert result.sources > 0
    assert result.reclaimed == 0  # the grace: somebody may be reading
    assert _sources(d) == sources
    _later(d, 2)
    result = housekeep(d.app, d.receiver)
    assert result.reclaimed > 0
    assert result.bytes > 0
    assert len(_sources(d)) == len(sources) - result.reclaimed
    assert _read(d) == before
    assert not coverage(d.app, d.receiver).is_lacking  # stale: the site was listed 17 days ago
    assert verify(d.app, d.receiver, deep=True).differences == ()
    again = housekeep(d.app, d.receiver)
    assert (again.settled, again.reclaimed) == (0, 0)


def test_a_paper_says_what_a_settled_file_stands_for(deploy) -> None:
    d = deploy(None)
    d.sync()
    merge(d.app, d.receiver, engine="pool")
    _later(d, 15)
    settled = housekeep(d.app, d.receiver).settled
    papers = [decode_settlement(p.read_bytes()) for p in d.centre.glob("settled/*.json")]
    assert len(papers) == settled
    for paper in papers:
        assert (d.centre / paper.location).exists()
        assert paper.points_in == paper.points + paper.overwritten + paper.deleted
        assert paper.sources
        one = why(d.app, paper.sources[0].path)
        assert (one.state, one.final) == ("settled", True)


def test_replaced_generations_are_reclaimed_after_the_grace(deploy) -> None:
    d = deploy(3)
    d.sync()
    before, names = _read(d), _sources(d)
    d.sync(send_all_again=True)
    _later(d, 2)
    assert housekeep(d.app, d.receiver).reclaimed == 3
    assert _sources(d) == names  # the same content under the same names: still needed
    assert _read(d) == before


def test_events_and_items_of_long_ago_are_trimmed(deploy) -> None:
    d = deploy(3)
    d.sync()
    assert "file.loaded" in "".join(why(d.app, d.path(d.files()[0])).evidence)
    _later(d, 91)
    result = housekeep(d.app, d.receiver)
    assert result.events > 0
    assert result.items > 0
    told = why(d.app, d.path(d.files()[0]))
    assert told.state == "in the catalog"
    assert "file.loaded" not in "".join(told.evidence)


def test_it_does_not_run_beside_a_load(deploy) -> None:
    d = deploy(3)
    d.sync()
    Leases(d.app.ledger, Identity("elsewhere", "x", 1, "1")).acquire_lease("load:centre", "load-1")
    with pytest.raises(LeaseHeldError, match="load-1"):
        housekeep(d.app, d.receiver)


def test_what_a_load_left_in_a_landing_is_removed(deploy) -> None:
    d = deploy(3)
    d.sync()
    landing = next(d.centre.glob("landing/*/*"))
    stray = landing / d.path(d.files()[0])
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"left by a load that died while it cleaned")
    assert housekeep(d.app, d.receiver).landings == 1
    assert sorted(p.name for p in landing.iterdir()) == ["manifest.json", "receipt.json"]


def test_temp_files_of_records_that_a_killed_writer_left_go_after_an_hour(deploy) -> None:
    """`.tmp` beside records, the mark and schema logs; a file that only looks so, and a fresh one, stay."""
    d = deploy(None)
    d.sync()
    answer = next(d.centre.glob("answered/*/*.receipt.json"))
    left = [
        answer.with_name(f"{answer.name}.0a1b2c3d.tmp"),
        d.centre / "ledger_mark.json.0a1b2c3d.tmp",
        d.centre / "decided" / "000-12345678.json.00000000.tmp",
        d.centre / "settled" / "m.tsfile.json.ffffffff.tmp",
        d.centre / "schema" / "site" / "mlog.bin.0.89abcdef.tmp",
    ]
    others = [answer.with_name("mine.tmp"), d.centre / "other.json.0a1b2c3d.tmp"]
    for place in (*left, *others):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"{")
    housekeep(d.app, d.receiver)
    assert all(place.exists() for place in (*left, *others)), "somebody may be writing them"
    _later(d, 2 / 24)
    housekeep(d.app, d.receiver)
    assert [place for place in left if place.exists()] == []
    assert all(place.exists() for place in (*others, answer))
