"""verify: deletions that a site wrote anew."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from tests.small_files import deletion, sealed, source
from tests.unit.proof.conftest import Deployment
from tidemark.proof.verify.verify import verify
from tidemark.receiver.read import Query, read

SERIES = "root.sg.d1.x"
FIRST, OTHER = deletion(SERIES, 0, 1), deletion(SERIES, 4, 5)


@pytest.fixture
def d(deploy) -> Deployment:
    """A site with one file of the times 0 to 9, of which 0 and 1 are deleted."""
    made: Deployment = deploy(0)
    assert len(FIRST) == len(OTHER)
    for end, data in sealed({"root.sg.d1": {"x": [(t, t) for t in range(10)]}}, mods=FIRST).items():
        place = _file(made, end)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    made.sync()
    made.load()
    return made


def _file(d: Deployment, end: str = "") -> Path:
    return d.site / "data/datanode" / (source(1) + end)


def _times(d: Deployment) -> list[int]:
    out = d.app.settings.root / "read.csv"
    read(d.app, d.receiver, Query(tall=True), out)
    with out.open(newline="") as rows:
        return [int(row["time"]) for row in csv.DictReader(rows)]


def _write_anew(d: Deployment, at: float) -> None:
    mods = _file(d, ".mods")
    mods.write_text(OTHER)
    os.utime(mods, (at, at))


def test_the_next_sync_sees_them_by_their_time(d: Deployment) -> None:
    assert _times(d) == [2, 3, 4, 5, 6, 7, 8, 9]
    _write_anew(d, at=_file(d, ".mods").stat().st_mtime + 5)
    report = verify(d.app, d.receiver)
    assert (report.differences, report.pending) == ((), 1), "a change that the next sync sends"
    d.sync()
    d.load()
    assert _times(d) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert verify(d.app, d.receiver, deep=True).differences == ()


def test_under_the_same_time_verify_finds_them_and_has_them_sent(d: Deployment) -> None:
    _write_anew(d, at=_file(d, ".mods").stat().st_mtime)
    d.sync()
    assert _times(d) == [2, 3, 4, 5, 6, 7, 8, 9], "nobody can see it by size and time"
    (found,) = verify(d.app, d.receiver).differences
    assert (found.what, found.next) == (
        "source differs",
        "restore it at the site, or send it as it is: ./tidemark verify --repair",
    )
    assert "sends it again" in verify(d.app, d.receiver, repair=True).differences[0].repaired
    d.sync()
    d.load()
    assert _times(d) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert verify(d.app, d.receiver, deep=True).differences == ()
