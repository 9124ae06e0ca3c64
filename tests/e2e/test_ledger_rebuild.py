"""The ledger is lost, and made anew from what lies at the receiver: nothing is sent, loaded or read otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.centre import InlineEngine
from tests.rebuild_world import PLANT1, World
from tests.small_files import sealed
from tidemark.flows import admitting, merge_catalog, rebuild_receiver
from tidemark.flows.housekeep import DAY, housekeep
from tidemark.flows.merge_catalog import merge
from tidemark.flows.rebuild_result import RebuildResult


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked in this process; one test uses the real children."""
    monkeypatch.setattr(admitting, "choose_engine", lambda *_: InlineEngine())
    monkeypatch.setattr(merge_catalog, "choose_engine", lambda *_: InlineEngine())
    monkeypatch.setattr(rebuild_receiver, "_engine", InlineEngine)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real("postgresql"))])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With its ledger on either database."""
    facts = {"url": request.getfixturevalue("postgres_url")} if request.param == "postgresql" else {}
    made = World(tmp_path, **facts)
    yield made
    made.app.ledger.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """On SQLite, settling at once."""
    made = World(tmp_path, settle_days=0, deletes="apply")
    yield made
    made.app.ledger.close()


def same_after_loss(world: World, but: Collection[str] = ()) -> RebuildResult:
    """Lose the ledger, rebuild it, compare all that it says (`but` for these tables) and all that readers see."""
    rows, facts, covered = world.rows(), world.facts(), world.coverage()
    world.lose_ledger()
    result = world.rebuild()
    assert (result.findings.troubles, result.findings.lost, result.findings.unknown) == ([], [], [])
    assert result.exit_code == 0
    found = world.facts()
    for table in facts.keys() - but:
        assert found[table] == facts[table], table
    assert world.rows() == rows
    assert world.coverage() == covered
    return result


def test_real_folders_in_many_landings(world: World) -> None:
    """Two servers' folders, one site's files refused for its devices, landings in between; the sequence goes on."""
    back = world.hide("plant1", lambda number: number % 3 == 0)
    world.sync("plant1")
    world.sync("plant2")
    back()
    world.sync("plant1")
    assert world.sql("SELECT COUNT(*) FROM refusal WHERE state = 'refused'") != [(0,)]
    same_after_loss(world)
    world.check_proofs()
    new = "data/datanode/data/sequence/root.new/1/2900/1795252019249-901-0-0.tsfile"
    world.add("plant1", new, sealed({"root.new.d": {"s": [(5, 5)]}}))
    assert world.sync("plant1").loaded == 1
    assert world.sql("SELECT sequence FROM landing WHERE site_id = :site ORDER BY sequence", site=PLANT1) == [
        (1,),
        (2,),
        (3,),
    ]


def test_merged_files_that_had_not_settled_are_derived_again(world: World) -> None:
    world.sync("plant1")
    merged = merge(world.app, world.receiver)
    assert merged.groups > 0
    rows = world.rows()
    world.lose_ledger()
    result = world.rebuild()
    assert (result.findings.derived, result.exit_code, result.findings.unknown) == (merged.files_out, 0, [])
    assert world.rows() == rows
    world.check_proofs()
    assert merge(world.app, world.receiver).files_out == merged.files_out
    assert world.rows() == rows
    world.clock += 2 * DAY
    assert housekeep(world.app, world.receiver).reclaimed == merged.files_out
    assert world.rows() == rows
    world.check_proofs()


def test_merged_files_that_stand_alone_stand_alone_again(small: World) -> None:
    """Their sources' bytes are gone: only the merged files and their papers tell. A later merge builds on them."""
    back = small.hide("plant1", lambda number: number % 3 == 0)
    small.sync("plant1")
    for more in (back, lambda: None):
        merge(small.app, small.receiver)
        small.clock += 2 * DAY
        assert housekeep(small.app, small.receiver).settled > 0
        small.clock += 2 * DAY
        assert housekeep(small.app, small.receiver).reclaimed > 0
        alone = small.sql(ALONE)
        assert alone
        series = small.sql(SERIES)
        same_after_loss(small, but=("schema_series",))
        assert small.sql(SERIES) == series  # which file declared it first nobody knows when that file is gone
        assert small.sql(ALONE) == alone
        small.check_proofs()
        more()
        small.sync("plant1")


SERIES = "SELECT series, database_name, type, aligned, state, clash FROM schema_series ORDER BY site_id, series"
ALONE = (
    "SELECT f.location, f.sha256, f.points, f.visible, f.state, a.points_in, a.points_out, a.overwritten, a.deleted, a.at,"
    " a.settled FROM merge_account a JOIN catalog_file f ON f.file_id = a.merged_id WHERE a.settled IS NOT NULL"
    " AND f.state = 'live' ORDER BY f.location"
)
