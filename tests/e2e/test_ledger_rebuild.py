"""The ledger is lost, and made anew from what lies at the receiver: nothing is sent, loaded or read otherwise."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.centre import run_inline
from tests.rebuild_world import PLANT1, World
from tests.services.command_forks import Forked, start_command
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.small_files import deletion, sealed, source
from tidemark.errors import PermanentError
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.operations.rebuild.rebuild import backup_ledger
from tidemark.operations.rebuild.result import RebuildResult
from tidemark.receiver.merge.merge import merge


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked in this process; one test uses the real children."""
    run_inline(monkeypatch)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.real("postgresql"), pytest.mark.full])])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """With its ledger on either database."""
    facts = {"url": request.getfixturevalue("postgres_ledger_url")} if request.param == "postgresql" else {}
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


@pytest.mark.full
def test_real_folders_in_many_landings(world: World) -> None:
    """Two servers' folders, one site's files refused for its devices, landings in between; the sequence goes on."""
    back = world.hide("plant1", lambda number: number % 3 == 0)
    world.sync("plant1")
    old = world.hide("plant2", lambda _: True)
    own = "data/data/sequence/root.own/0/2818/1795252019249-1-0-0.tsfile"
    world.add("plant2", own, sealed({"root.own.d": {"s": [(1, 1)]}}))
    world.sync("plant2")
    old()
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
def test_a_merge_of_what_stood_alone_already(tmp_path: Path) -> None:
    """The first merged file is gone with its paper; the second one's paper names all that was beneath it."""
    world = World(tmp_path, real=False, settle_days=0)
    for version in (1, 2, 3):
        world.add("plant1", source(version), sealed({"root.sg.d1": {"s": [(version, version), (version + 1, 10)]}}))
        world.sync()
        if version > 1:
            assert merge(world.app, world.receiver).groups == 1
            world.clock += 2 * DAY
            assert housekeep(world.app, world.receiver).settled == 1
            world.clock += 2 * DAY
            assert housekeep(world.app, world.receiver).reclaimed == 2
    assert len(list((world.centre / "settled").iterdir())) == 1
    alone = world.sql(ALONE)
    same_after_loss(world, but=("schema_series",))
    assert world.sql(ALONE) == alone
    world.check_proofs()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("lost_when", ["it waits", "it came"])
def test_a_settled_file_that_is_to_be_replaced(tmp_path: Path, lost_when: str) -> None:
    """Deletions of one of its sources: the receipt asks for all of them, and still does after the loss."""
    world = World(tmp_path, real=False, settle_days=0)
    for version in (1, 2):
        world.add("plant1", source(version), sealed({"root.sg.d1": {"s": [(version, version), (version + 1, 10)]}}))
    world.sync()
    merge(world.app, world.receiver)
    for _ in range(2):
        world.clock += 2 * DAY
        housekeep(world.app, world.receiver)
    world.add("plant1", source(2), {".mods": deletion("root.sg.d1.s", 3, 3).encode()})
    world.sync()
    waits = world.sql(WAITS)
    assert len(waits) == 1 and len(world.rows()) == 3
    if lost_when == "it waits":
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        assert world.sql(WAITS) == waits
        assert len(world.rows()) == 3
    world.sync()
    assert [(row[2], row[4]) for row in world.rows()] == [(1, "1"), (2, "2")]
    assert world.sql(WAITS) == []
    if lost_when == "it came":
        world.lose_ledger()
        assert world.rebuild().exit_code == 0
        assert len(world.rows()) == 2
    world.check_proofs()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("since", ["before the merge", "before it settled"])
def test_a_backup_from_before_files_settled_is_noticed(tmp_path: Path, since: str) -> None:
    """No landing came since, but sources are gone that the backup would read."""
    world = World(tmp_path, real=False, settle_days=0)
    for version in (1, 2):
        world.add("plant1", source(version), sealed({"root.sg.d1": {"s": [(version, version), (version + 1, 10)]}}))
    world.sync()
    if since == "before it settled":
        merge(world.app, world.receiver)
    copy = Path(backup_ledger(world.app).path)
    merge(world.app, world.receiver)
    for _ in range(2):
        world.clock += 2 * DAY
        housekeep(world.app, world.receiver)
    rows = world.rows()
    world.lose_ledger()
    shutil.copy(copy, tmp_path / "var/ledger.db")
    with pytest.raises(PermanentError, match="the ledger is older than receiver centre") as stopped:
        world.reopen()
    assert "ledger rebuild --replace" in stopped.value.hint
    assert world.rebuild(replace=True).exit_code == 0
    assert world.rows() == rows
    world.check_proofs()


WAITS = "SELECT a.waits FROM merge_account a JOIN catalog_file f ON f.file_id = a.merged_id WHERE a.waits IS NOT NULL"


def toml(world: World) -> str:
    sites = world.settings.sites
    told = [f'[ledger]\nurl = "{world.url}"\n\n[receivers.centre]\nstore = "{world.receiver.store}"\n']
    for name, site in sites.items():
        told.append(f'[sites.{name}]\nid = "{site.id}"\nstore = "{site.store}"\ndata = {json.dumps(site.data)}')
        told.append(f'schema = "{site.schema}"\n\n[links.{name}]\nsite = "{name}"\nreceiver = "centre"\n')
    return "\n".join(told)


def command(world: World, *words: str) -> Forked:
    return start_command(["--config", str(world.folder / "tidemark.toml"), *words, "--json"], os.environ)


@pytest.mark.full
def test_what_cannot_be_listed_is_not_taken_for_lost(small: World) -> None:
    small.sync("plant1")
    rows = small.rows()
    small.lose_ledger()
    closed = next(folder for folder in (small.centre / "data").iterdir())
    try:
        with as_anybody():
            closed.chmod(0)
            with pytest.raises(PermanentError, match=f"data/{closed.name} in .*cannot be listed: Permission denied"):
                small.rebuild()
    except PartMissing as missing:
        pytest.skip(str(missing))
    finally:
        closed.chmod(0o755)
    small.lose_ledger()
    assert small.rebuild().exit_code == 0
    assert small.rows() == rows


@pytest.mark.full
def test_by_the_command_killed_again_and_again(tmp_path: Path) -> None:
    """Real processes, real signals, files described in real children: the ledger is empty until it is whole."""
    world = World(tmp_path)
    (tmp_path / "tidemark.toml").write_text(toml(world))
    world.sync("plant1")
    rows, facts = world.rows(), world.facts()
    world.lose_ledger()
    for seconds in (0.3, 0.7, 1.2):
        process = command(world, "ledger", "rebuild")
        time.sleep(seconds)
        process.kill()
        process.communicate()
        world.reopen(whose_ever=True)
        if world.facts() == facts:
            break  # this one was done before its end came
        assert world.sql("SELECT COUNT(*) FROM landing") == world.sql("SELECT COUNT(*) FROM file") == [(0,)]
        world.app.ledger.close()
    else:
        process = command(world, "ledger", "rebuild")
        told = json.loads(process.communicate()[0].splitlines()[-1])
        assert (process.returncode, told["ok"], told["lost"], told["troubles"]) == (0, True, [], [])
        assert told["files"] == told["catalog"] == len(world.tsfiles("plant1"))
    world.reopen()
    assert world.facts() == facts
    assert world.rows() == rows
    again = command(world, "ledger", "rebuild")
    told = json.loads(again.communicate()[0].splitlines()[-1])
    assert (again.returncode, told["ok"], told["troubles"]) == (0, True, [])
    world.reopen()
    assert world.facts() == facts


SERIES = "SELECT series, database_name, type, aligned, state, clash FROM schema_series ORDER BY site_id, series"
ALONE = (
    "SELECT f.location, f.sha256, f.points, f.visible, f.state, a.points_in, a.points_out, a.overwritten, a.deleted, a.at,"
    " a.settled FROM merge_account a JOIN catalog_file f ON f.file_id = a.merged_id WHERE a.settled IS NOT NULL"
    " AND f.state = 'live' ORDER BY f.location"
)
