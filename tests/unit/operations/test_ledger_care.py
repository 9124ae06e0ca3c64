"""The ledger's own care: copies while it is in use, migrations, and what a rebuild refuses, survives and reports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.centre import run_inline
from tests.rebuild_world import World
from tests.small_files import sealed, source
from tidemark.errors import DiskAwayError, LeaseHeldError, PermanentError, SchemaTooNewError
from tidemark.ledger.backup import used_tables
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Leases
from tidemark.ledger.migrations import known_migrations
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.operations.rebuild import rebuild as ledger_care
from tidemark.operations.rebuild.result import Lost
from tidemark.progress import Tick
from tidemark.proof.prove import coverage
from tidemark.proof.verify.verify import verify
from tidemark.receiver.merge import merge as merge_catalog


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two landings of one site, loaded."""
    run_inline(monkeypatch)
    made = World(tmp_path, real=False)
    for version in (1, 2):
        made.add("plant1", source(version), sealed({f"root.sg.d{version}": {"s": [(version, version)]}}))
        made.sync()
    yield made
    made.app.ledger.close()


def restore(world: World, copy: Path, whose_ever: bool = False) -> None:
    """The runbook's way: the copy in place of the ledger."""
    world.lose_ledger()
    shutil.copy(copy, world.folder / "var/ledger.db")
    world.reopen(whose_ever)


class TestBackup:
    @pytest.mark.full
    def test_it_is_named_by_the_time_and_works_as_a_ledger(self, world: World) -> None:
        found = ledger_care.backup_ledger(world.app)
        assert Path(found.path).parent == world.folder / "var/backup"
        facts = world.facts()
        restore(world, Path(found.path))
        assert world.facts() == facts
        world.check_proofs()

    def test_one_that_is_as_new_as_the_receiver_goes_on(self, world: World) -> None:
        found = ledger_care.backup_ledger(world.app)
        world.sync()  # told nothing
        restore(world, Path(found.path))
        world.add("plant1", source(3), sealed({"root.sg.d3": {"s": [(3, 3)]}}))
        assert world.sync().loaded == 1

    @pytest.mark.full
    @pytest.mark.full
    def test_beside_an_older_copy_of_the_receiver_only_proofs_tell_what_is_missing(self, world: World) -> None:
        copy = world.folder / "copy"
        shutil.copytree(world.centre, copy)
        world.add("plant1", source(3), sealed({"root.sg.d3": {"s": [(3, 3)]}}))
        world.sync()
        shutil.rmtree(world.centre)
        copy.rename(world.centre)
        world.reopen()
        assert world.sync().files == 0, "the ledger has it"
        assert not coverage(world.app, world.receiver).is_complete
        assert verify(world.app, world.receiver).differences

    def test_one_that_is_older_stops_sync_and_load_until_a_rebuild(self, world: World) -> None:
        found = ledger_care.backup_ledger(world.app)
        world.add("plant1", source(3), sealed({"root.sg.d3": {"s": [(3, 3)]}}))
        world.sync()
        rows = world.rows()
        papers = sorted((world.centre / "landing").rglob("*.json"))
        with pytest.raises(PermanentError, match="the ledger is older than receiver centre"):
            restore(world, Path(found.path))
        world.reopen(whose_ever=True)
        with pytest.raises(PermanentError, match=r"sequence 3.*older than the receiver") as stopped:
            world.sync()
        assert "ledger rebuild --replace" in stopped.value.hint
        with pytest.raises(PermanentError, match="was answered, and the ledger does not know of it") as stopped:
            world.load()
        assert "ledger rebuild --replace" in stopped.value.hint
        assert sorted((world.centre / "landing").rglob("*.json")) == papers
        assert world.rebuild(replace=True).exit_code == 0
        assert world.rows() == rows
        world.check_proofs()


class TestReceiversDisk:
    """The receiver's folder is empty, and the ledger knows what was loaded into it."""

    @pytest.mark.parametrize("is_there", [True, False], ids=["empty", "gone"])
    def test_one_that_is_not_mounted_takes_nothing(self, world: World, is_there: bool) -> None:
        before, away = world.rows(), world.folder / "away"
        world.add("plant1", source(3), sealed({"root.sg.d3": {"s": [(3, 3)]}}))
        world.centre.rename(away)
        if is_there:
            world.centre.mkdir()
        world.reopen()
        for act in (world.sync, world.load, lambda: housekeep(world.app, world.receiver)):
            with pytest.raises(DiskAwayError, match="is its disk mounted") as stopped:
                act()
            assert "verify --repair" in stopped.value.hint
        assert not [path for path in world.centre.rglob("*") if path.is_file()]
        shutil.rmtree(world.centre, ignore_errors=True)
        away.rename(world.centre)
        assert world.sync().loaded == 1
        assert len(world.rows()) == len(before) + 1
        world.check_proofs()

    def test_a_lost_one_is_filled_again_once_somebody_says_so(self, world: World) -> None:
        before = world.rows()
        shutil.rmtree(world.centre)
        world.reopen()
        with pytest.raises(DiskAwayError):
            world.sync()
        assert verify(world.app, world.receiver, repair=True).differences
        world.sync()
        assert world.rows() == before
        world.check_proofs()


class TestUpgrade:
    def test_a_new_database_gets_every_step_and_then_none(self, world: World) -> None:
        world.lose_ledger()
        newest = len(known_migrations())
        assert ledger_care.upgrade_ledger(world.settings).as_json() == {
            "ok": True,
            "found": 0,
            "schema": newest,
            "applied": list(range(1, newest + 1)),
        }
        assert ledger_care.upgrade_ledger(world.settings).applied == ()

    def test_a_newer_database_is_refused_and_left_alone(self, world: World) -> None:
        with world.app.ledger.write() as connection:
            connection.execute(sa.text("INSERT INTO tidemark_schema VALUES (9999, '9999_later.sql', '', 0)"))
        for door in (ledger_care.upgrade_ledger, ledger_care.rebuild_ledger):
            with pytest.raises(SchemaTooNewError, match="schema 9999") as refused:
                door(world.settings)
            assert refused.value.hint == "upgrade Tidemark here"
        assert len(world.sql("SELECT * FROM landing")) == 2


class TestRebuild:
    def test_a_ledger_with_rows_is_kept_unless_it_is_to_be_replaced(self, world: World) -> None:
        facts = world.facts()
        with pytest.raises(PermanentError, match="has rows already") as refused:
            world.rebuild()
        assert "--replace" in refused.value.hint
        result = world.rebuild(replace=True)
        assert world.facts() == facts
        copy = Ledger(f"sqlite:///{result.old}")
        with copy.read() as connection:
            assert connection.execute(sa.text("SELECT COUNT(*) FROM run")).scalar_one() == 2
        copy.close()

    def test_nobody_may_be_at_work(self, world: World) -> None:
        lease = Leases(world.app.ledger, world.app.identity).acquire_lease("link:plant1", "a run")
        with pytest.raises(LeaseHeldError, match="link:plant1 is held by a run"):
            world.rebuild(replace=True)
        Leases(world.app.ledger, world.app.identity).release(lease)
        assert world.rebuild(replace=True).exit_code == 0

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("phase", ["link", "rebuild centre", "write"])
    def test_one_that_died_left_nothing_and_is_run_again(self, world: World, phase: str) -> None:
        facts = world.facts()
        world.lose_ledger()

        def die(tick: Tick) -> None:
            if tick.phase == phase:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            world.rebuild(progress=die)
        world.reopen(whose_ever=True)
        assert used_tables(world.app.ledger) == []
        (world.folder / "var/rebuild/ledger.db").write_bytes(b"what one that was killed leaves")
        assert world.rebuild().exit_code == 0
        assert world.facts() == facts
        assert not list((world.folder / "var/rebuild").glob("ledger.db*"))

    def test_a_sync_or_load_in_between_changes_nothing(self, world: World) -> None:
        """Somebody who does not ask whose ledger it is starts them with the empty one."""
        world.lose_ledger()
        with pytest.raises(PermanentError, match="knows nothing of what lies at receiver centre"):
            world.reopen()
        world.reopen(whose_ever=True)
        with pytest.raises(PermanentError, match="new to this ledger"):
            world.sync()
        with pytest.raises(PermanentError, match="does not know of it"):
            world.load()
        assert world.rebuild().exit_code == 0
        world.check_proofs()

    def test_nothing_at_all_is_an_empty_ledger(self, tmp_path: Path) -> None:
        world = World(tmp_path, real=False)
        result = world.rebuild()
        assert (result.exit_code, result.counts["landings"], result.counts["links"]) == (0, 0, 0)
        world.add("plant1", source(1), sealed({"root.sg.d1": {"s": [(1, 1)]}}))
        assert world.sync().files == 1


class TestWhatIsMissing:
    def test_lost_bytes_are_named_and_sent_again(self, world: World) -> None:
        rows = world.rows()
        (lost,) = _data(world, 2)
        lost.unlink()
        world.lose_ledger()
        result = world.rebuild()
        assert result.exit_code == 23
        site = world.settings.sites["plant1"].id
        assert result.findings.lost == [Lost("centre", site, source(2), "./tidemark sync plant1")]
        assert len(world.rows()) == 1
        assert world.sync().loaded == 1
        assert world.rows() == rows
        world.check_proofs()

    def test_a_data_file_that_cannot_be_read_counts_as_lost(self, world: World) -> None:
        rows = world.rows()
        (damaged,) = _data(world, 1)
        damaged.write_bytes(bytes(damaged.stat().st_size))
        world.lose_ledger()
        result = world.rebuild()
        assert [one.path for one in result.findings.lost] == [source(1)]
        assert "cannot be read" in result.findings.troubles[0]
        assert world.sync().loaded == 1
        assert world.rows() == rows

    def test_beside_what_is_lost_no_merged_file_is_given_up(self, world: World) -> None:
        world.add("plant1", source(3), sealed({"root.sg.d1": {"s": [(1, 9), (2, 9)]}}))
        world.sync()
        assert merge_catalog.merge(world.app, world.receiver).files_out == 1
        (merged,) = (world.centre / "data").rglob("*-merged-*")
        (lost,) = _data(world, 1)
        lost.unlink()
        world.lose_ledger()
        result = world.rebuild()
        assert [one.path for one in result.findings.lost] == [source(1)]
        assert result.findings.unknown == [merged.relative_to(world.centre).as_posix()]
        world.clock += 10 * DAY
        housekeep(world.app, world.receiver)
        assert merged.exists()
        assert world.sync().loaded == 1

    @pytest.mark.parametrize("bytes_more", [0, 1 << 40])
    def test_a_damaged_manifest_is_named_and_the_sequence_goes_on(self, world: World, bytes_more: int) -> None:
        newest = max((world.centre / "landing").rglob("manifest.json"))
        for paper in (newest, *(world.centre / "answered").rglob(f"{newest.parent.name}.manifest.json")):
            paper.write_bytes(b'{"format": 1, "landing": ')
        os.truncate(newest, newest.stat().st_size + bytes_more)
        rows = world.rows()
        world.lose_ledger()
        result = world.rebuild()
        assert result.exit_code == 23
        assert any("not known" in trouble for trouble in result.findings.troubles)
        assert any("-2-0-0.tsfile" in path for path in result.findings.unknown)
        assert world.sync().loaded == 1  # what the manifest told is told again
        assert world.rows() == rows
        assert world.sql("SELECT sequence FROM landing ORDER BY sequence") == [(1,), (2,), (3,)]

    def test_a_damaged_receipt_counts_as_answered(self, world: World) -> None:
        rows = world.rows()
        for receipt in (world.centre / "answered").rglob("*.receipt.json"):
            receipt.write_bytes(b"torn")
        world.lose_ledger()
        result = world.rebuild()
        assert result.exit_code == 23 and "receipt.json cannot be read" in result.findings.troubles[0]
        assert world.rows() == rows

    def test_papers_of_the_landings_are_not_needed(self, world: World) -> None:
        """What the receiver kept says it all; who lost the landings' own is told by nobody, for nothing is lost."""
        rows, facts = world.rows(), world.sql("SELECT device, site_id, since, landing FROM owner ORDER BY device")
        shutil.rmtree(world.centre / "landing")
        world.lose_ledger()
        assert world.rebuild().findings.troubles == []
        assert world.rows() == rows
        assert world.sql("SELECT device, site_id, since, landing FROM owner ORDER BY device") == facts

    def test_a_landing_that_is_gone_altogether_is_named(self, world: World) -> None:
        oldest = min((world.centre / "landing").rglob("manifest.json"))
        shutil.rmtree(oldest.parent)
        for paper in (world.centre / "answered").rglob(f"{oldest.parent.name}.*"):
            paper.unlink()
        world.lose_ledger()
        result = world.rebuild()
        assert any("landing 1 of site" in trouble for trouble in result.findings.troubles)
        assert world.sync().loaded == 1
        assert len(world.rows()) == 2


def _data(world: World, version: int) -> list[Path]:
    return [p for p in (world.centre / "data").rglob("*.tsfile") if p.name.endswith(f"-{version}-0-0.tsfile")]
