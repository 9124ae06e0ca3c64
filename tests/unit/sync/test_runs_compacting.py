"""Whole runs of a link while a compaction is at work at its site, or was cut short by a kill of the server."""

from __future__ import annotations

import pytest

from tests.crash.edge import path_of
from tests.crash.sync_world import SyncWorld
from tests.unit.sync.link_runs import DISJOINT, opened, seal
from tidemark.ledger.sender import links as link_rows
from tidemark.sync.notes import LASTING_SECONDS, make_notes
from tidemark.sync.plan import plan_sync
from tidemark.tsfiles.sealed import COMPACTING, UNTOLD, WAITS

OUTPUT = path_of(1, inner=1)
LOG = OUTPUT.replace(".tsfile", ".inner.inner-compaction.log")
WHOLE = {"root.sg.d1": (10, 29)}


def put(world: SyncWorld, path: str) -> None:
    world.edge.ground.put(path, b"x", 1_700_000_000)


def test_while_a_compaction_is_at_work_its_partition_waits(world: SyncWorld) -> None:
    """The server was killed between the removals of its sources: the output is whole, one source is gone."""
    seal(world, 1, 2)
    world.sync()
    put(world, LOG)
    world.edge.seal(OUTPUT, extent=WHOLE)
    world.edge.drop(path_of(1))
    fresh, elsewhere = seal(world, 3)[0], world.edge.seal(path_of(4, inner=1, partition=1))
    result = world.sync()
    assert (result.exit_code, result.files, result.superseded, result.dropped) == (0, 2, 0, 0)
    assert set(world.told()) == {path_of(1), path_of(2), fresh, elsewhere}
    assert set(world.inventory()) == set(world.told())
    assert world.sync().state == "nothing"
    world.edge.ground.remove(LOG)
    world.edge.drop(path_of(2))
    result = world.sync()
    assert (result.files, result.superseded) == (1, 2)
    world.check()


def test_outputs_that_the_server_takes_back_were_never_sent(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    put(world, LOG)
    world.edge.seal(OUTPUT, extent=WHOLE)
    world.sync()
    world.edge.drop(OUTPUT)
    world.edge.ground.remove(LOG)
    assert world.sync().state == "nothing"
    assert len(world.manifests()) == 1
    world.check()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("why", [".settle", ".broken", ".resource.temp"])
def test_nothing_leaves_beside_an_output_that_is_passed_over(world: SyncWorld, why: str) -> None:
    seal(world, 1, 2)
    world.sync()
    world.edge.seal(OUTPUT, extent=WHOLE)
    put(world, OUTPUT + why)
    world.edge.drop(path_of(1))
    world.edge.drop(path_of(2))
    assert world.sync().state == "nothing"
    assert set(world.inventory()) == {path_of(1), path_of(2)}
    world.edge.ground.remove(OUTPUT + why)
    result = world.sync()
    assert (result.files, result.superseded, result.dropped) == (1, 2, 0)
    world.check()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("end", [".inner", ".cross", ".target", ".settle", ".tsfile.merge"])
def test_an_unfinished_output_says_as_much_as_a_log(world: SyncWorld, end: str) -> None:
    seal(world, 1, 2)
    world.sync()
    put(world, path_of(1, cross=1).removesuffix(".tsfile") + end)
    world.edge.seal(OUTPUT, extent=WHOLE)
    world.edge.drop(path_of(1))
    assert world.sync().state == "nothing"


def test_a_log_in_sequence_holds_for_unsequence_too(world: SyncWorld) -> None:
    """A file moves to `sequence` by an insertion compaction: its name there says nothing but that its version is known."""
    seal(world, 1)
    late = world.edge.seal(path_of(5, unsequence=True), extent=DISJOINT[5])
    world.sync()
    moved = path_of(1).replace(f"{1_600_000_000_001}-1", f"{1_600_000_000_002}-5")
    put(world, f"{moved}.insertion-compaction.log")
    world.edge.seal(moved, late, DISJOINT[5])
    assert world.sync().state == "nothing"
    world.edge.drop(late)
    assert world.sync().state == "nothing"
    world.edge.ground.remove(f"{moved}.insertion-compaction.log")
    assert (world.sync().superseded, world.manifests()[-1].superseded[0].covered_by) == (1, (moved,))


def test_deletions_and_what_the_receiver_asks_for_go_all_the_while(world: SyncWorld) -> None:
    world.edge.seal(OUTPUT, extent=WHOLE)
    seal(world, 3)
    world.sync()
    put(world, LOG)
    world.edge.delete_points(OUTPUT)
    assert world.sync().files == 1
    with opened(world) as app, app.ledger.write() as connection:
        link_rows.mark_resend(connection, "plant1", [OUTPUT], "damaged there")
    assert world.sync().files == 1
    assert world.manifests()[-1].files[0].generation == 3


def test_plan_and_notes_say_what_waits_and_why(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    put(world, LOG)
    world.edge.seal(OUTPUT, extent=WHOLE)
    world.edge.drop(path_of(1))
    expected = {LOG: COMPACTING, OUTPUT: WAITS, path_of(1): UNTOLD}
    with opened(world) as app:
        report = plan_sync(app, "plant1")
    assert (report.state, dict(report.skipped)) == ("nothing", expected)
    assert world.sync().notes == ()
    with opened(world) as app, app.ledger.read() as connection:
        skipped = link_rows.skipped_files(connection, "plant1")
    assert {path: one.reason for path, one in skipped.items()} == expected
    told = make_notes(skipped, "plant1", max(one.since for one in skipped.values()) + LASTING_SECONDS)
    assert len(told) == 3 and all("for more than a day" in note and "compaction" in note for note in told)
