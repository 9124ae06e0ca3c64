"""A site changes what has settled at the centre: through the real sync, with every report that speaks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.centre import run_inline
from tests.landing_maker import SITE_A
from tests.small_files import deletion, sealed, source
from tidemark.app import App
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import migrate_ledger
from tidemark.operations.decisions import approve_run
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.proof.overview import status
from tidemark.proof.prove import coverage, why
from tidemark.proof.verify.verify import verify
from tidemark.receiver.merge import merge as merge_catalog
from tidemark.receiver.read import Query, read
from tidemark.settings.model import LedgerSettings, LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.sync.run import SyncResult, run_sync

ONE, TWO, LATER = source(1), source(2), source(1, unsequence=True)


@dataclass
class Edge:
    """A site with two files that overlap, settled and reclaimed at the centre, maybe twice."""

    app: App
    folder: Path
    days: float = 0.0

    @property
    def receiver(self) -> ReceiverSettings:
        return self.app.settings.receivers["centre"]

    def put(self, path: str, points: dict[int, int], mods: str = "") -> None:
        for end, data in sealed({"root.sg.d1": {"s": sorted(points.items())}}, mods).items():
            place = self.folder / "site" / (path + end)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def remove(self, path: str) -> None:
        for place in (self.folder / "site" / path).parent.glob(path.rpartition("/")[2] + "*"):
            place.unlink()

    def sync(self) -> SyncResult:
        return run_sync(self.app, "plant1")

    def settle(self) -> None:
        merge_catalog.merge(self.app, self.receiver)
        for days in (15, 2, 2):
            self.days += days
            housekeep(self.app, self.receiver)
        assert not [p for p in self.folder.glob("centre/data/**/*.tsfile") if "-merged-" not in p.name]

    def rows(self) -> dict[int, str]:
        out = self.folder / "read.parquet"
        read(self.app, self.receiver, Query(tall=True), out)
        return {row["time"]: row["value"] for row in pq.read_table(out).to_pylist()}

    def state(self) -> str:
        return status(self.app).links[0].state

    def deep(self) -> list[tuple[str, str]]:
        return [(d.what, d.path) for d in verify(self.app, self.receiver, deep=True).differences]

    def in_order(self, kept: str = "") -> None:
        """Nothing is open, in any report, but that a file is `kept`."""
        assert self.sync().exit_code == 0
        assert coverage(self.app, self.receiver).is_complete
        assert self.deep() == ([("kept points", kept)] if kept else [])
        assert verify(self.app, self.receiver, deep=True, live_only=True).differences == ()
        assert self.state() == "idle"


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Edge]]:
    run_inline(monkeypatch)
    opened: list[Ledger] = []

    def make(deletes: str = "keep", twice: bool = False) -> Edge:
        settings = Settings(
            path=tmp_path / "tidemark.toml",
            ledger=LedgerSettings(f"sqlite:///{tmp_path / 'ledger.db'}"),
            receivers={"centre": ReceiverSettings("centre", f"file://{tmp_path / 'centre'}")},
            sites={"plant1": SiteSettings("plant1", SITE_A, f"file://{tmp_path / 'site'}")},
            links={"plant1": LinkSettings("plant1", "plant1", "centre", deletes=deletes)},
        )
        ledger = Ledger(settings.ledger.url)
        opened.append(ledger)
        migrate_ledger(ledger)
        made = Edge(App(settings, ledger, this_process()), tmp_path)
        before = made.app.clock
        made.app.clock = lambda: before() + made.days * DAY
        (tmp_path / "centre").mkdir()
        made.put(ONE, {1: 11, 2: 12, 3: 13})
        made.put(TWO, {3: 23, 4: 24})
        made.sync()
        made.settle()
        if twice:
            made.put(LATER, {4: 34})
            made.sync()
            made.settle()
        made.in_order()
        return made

    yield make
    for ledger in opened:
        ledger.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_a_deletion_takes_effect_with_the_second_sync_and_is_named_until_then(
    edge: Callable[..., Edge], twice: bool
) -> None:
    site = edge(twice=twice)
    before = site.rows()
    mods = site.folder / "site" / (ONE + ".mods")
    mods.write_text(deletion("root.sg.d1.s", 1, 1))
    first = site.sync()
    assert (first.exit_code, first.quarantined) == (0, 0)
    assert [path for path, _ in first.waits] == [ONE] and first.pending == 1
    assert site.rows() == before
    report = coverage(site.app, site.receiver)
    assert not report.is_complete and "come again" in report.as_json()["red"][0]["why"]
    assert site.state() == "pending"
    told = why(site.app, ONE)
    assert (told.state, told.final, told.next) == ("waiting for settled files", False, "./tidemark sync plant1")
    assert ("missing", ONE) in site.deep()
    merge_catalog.merge(site.app, site.receiver)
    assert site.rows() == before
    site.sync()
    assert site.rows() == {time: value for time, value in before.items() if time != 1}
    site.in_order()
    site.settle()
    site.in_order()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_a_compaction_of_one_source_is_read_with_the_second_sync(edge: Callable[..., Edge], twice: bool) -> None:
    site = edge(twice=twice)
    made = source(1, inner=1)
    site.remove(ONE)
    site.put(made, {2: 18, 3: 13})
    assert site.sync().exit_code == 0
    assert why(site.app, made).state == "waiting for settled files"
    assert not coverage(site.app, site.receiver).is_complete and ("missing", made) in site.deep()
    assert site.state() == "pending"
    site.sync()
    assert site.rows() == {2: "18", 3: "23", 4: "34" if twice else "24"}
    site.in_order()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_a_drop_waits_as_a_guard_does_and_leaves_once_approved(edge: Callable[..., Edge], twice: bool) -> None:
    site = edge("apply", twice)
    before = site.rows()
    site.remove(TWO)
    for _ in range(2):  # it waits for as long as nobody decides
        result = site.sync()
        assert result.exit_code == 22 and result.hint.startswith("./tidemark approve ")
        assert site.state() == "guard"
        assert why(site.app, TWO).state == "waiting for approval"
    assert site.rows() == before
    approve_run(site.app, result.hint.split()[-1])
    told = why(site.app, TWO)
    assert told.state == "waiting for settled files" and "its drop" in told.cause
    assert site.sync().exit_code == 0
    assert site.rows() == {1: "11", 2: "12", 3: "13"} | ({4: "34"} if twice else {})
    assert why(site.app, TWO).state == "removed"
    site.in_order()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_points_that_only_the_centre_has_fill_and_never_win(edge: Callable[..., Edge], twice: bool) -> None:
    """The site drops the upper file, which the link keeps: the lower one comes again, and what both became ranks below."""
    site = edge(twice=twice)
    site.remove(TWO)
    assert site.sync().exit_code == 0
    assert why(site.app, TWO).state == "kept after a drop"
    assert site.state() == "pending" and "come again" in why(site.app, ONE).cause
    assert site.sync().exit_code == 0
    assert site.rows() == {1: "11", 2: "12", 3: "13", 4: "34" if twice else "24"}
    assert site.state() == "idle"
    site.put(ONE, {1: 91, 2: 12, 3: 13, 5: 95})
    assert site.sync().exit_code == 0
    assert site.rows() == {1: "91", 2: "12", 3: "13", 4: "34" if twice else "24", 5: "95"}
    site.in_order(kept="" if twice else TWO)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("twice", [False, True])
def test_a_settled_file_that_rots_is_replaced_by_its_sources(edge: Callable[..., Edge], twice: bool) -> None:
    site = edge(twice=twice)
    before = site.rows()
    [merged] = site.folder.glob("centre/data/**/*-merged-*.tsfile")
    data = bytearray(merged.read_bytes())
    data[len(data) // 2] ^= 1
    merged.write_bytes(data)
    report = verify(site.app, site.receiver, repair=True)
    assert [d.what for d in report.differences] == ["damaged"] and "sends it again" in report.differences[0].repaired
    site.sync()
    assert site.rows() == before
    site.in_order()
