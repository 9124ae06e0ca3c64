"""Whole runs of a link: what travels, what is told, what waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.edge import path_of
from tests.crash.sync_world import LINK, SITE_ID, SMALL_PARTS, SyncWorld
from tests.unit.sync.link_runs import DISJOINT, answer, opened, seal
from tidemark.app import App
from tidemark.errors import CorruptionError, PermanentError, RetryableError, UsageError
from tidemark.formats.landing import Answer, Receipt, encode_document
from tidemark.sync import run as sync_link
from tidemark.sync.plan import plan_sync, read_plan
from tidemark.sync.run import Options
from tidemark.sync.send import transfer_files as sending
from tidemark.tsfiles.sealed import NO_FOLDER

# what travels


def test_a_first_run_then_nothing(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.edge.delete_points(path_of(2))
    result = world.sync()
    assert (result.state, result.files, result.landings, result.exit_code) == ("landed", 2, 1, 0)
    assert result.bytes == result.sent_bytes > 0
    world.check()


def test_grown_deletions_travel_alone(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    world.edge.delete_points(path_of(1))
    result = world.sync()
    assert result.sent_bytes == len(world.edge.mods[path_of(1)])
    newest = world.manifests()[-1].files[0]
    assert (newest.generation, newest.tsfile, newest.resource) == (2, None, None)
    world.check()


def test_deletions_written_anew_at_the_same_length_travel_alone(world: SyncWorld) -> None:
    seal(world, 1)
    world.edge.delete_points(path_of(1))
    world.sync()
    world.edge.rewrite_deletions(path_of(1))
    result = world.sync()
    assert result.sent_bytes == len(world.edge.mods[path_of(1)])
    assert world.manifests()[-1].files[0].tsfile is None
    world.check()


def test_touched_deletions_are_known_by_their_digest(world: SyncWorld) -> None:
    seal(world, 1)
    world.edge.delete_points(path_of(1))
    world.sync()
    for later in (1, 2):
        world.edge.ground.put(path_of(1) + ".mods", world.edge.mods[path_of(1)], 1_900_000_000 + later)
        assert world.sync().state == "nothing"
    world.check()


def test_a_touched_file_with_deletions_written_anew_sends_them(world: SyncWorld) -> None:
    seal(world, 1)
    world.edge.delete_points(path_of(1))
    world.sync()
    world.edge.ground.put(path_of(1), world.edge.contents[path_of(1)], 1_900_000_000)
    world.edge.rewrite_deletions(path_of(1))
    assert world.sync(Options(only_paths=("nothing*",), no_load=True)).files == 0
    assert world.sync().files == 1, "a run that did not send them leaves them to be seen"
    world.check()


def test_changed_content_is_a_new_generation(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    world.edge.seal(path_of(1), "other")
    assert world.sync().files == 1
    assert world.manifests()[-1].files[0].generation == 2
    world.check()


def test_a_touched_file_is_known_by_its_digest(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    world.edge.ground.put(path_of(1), world.edge.contents[path_of(1)], 1_800_000_000)
    assert world.sync().state == "nothing"
    world.edge.delete_points(path_of(1))
    assert world.sync().files == 1  # and its deletions still travel
    world.check()


def test_excluded_files_are_inventory_and_stay_until_the_patterns_change(world: SyncWorld) -> None:
    world.link = replace(LINK, include=("root.sg.*",), exclude=("root.sg.secret",))
    world.edge.seal(path_of(1), extent={"root.sg.secret": (0, 1)})
    world.edge.seal(path_of(2), extent={"root.sg.secret": (0, 1), "root.sg.d1": (0, 1)})
    assert world.sync().files == 1  # sent whole, for one of its devices matches
    assert world.sync().state == "nothing"
    reasons = {e.path: e.reason for e in world.manifests()[0].added}
    assert reasons[path_of(2)] == "" and "excluded" in reasons[path_of(1)]
    world.link = LINK
    assert world.sync().files == 1
    world.check()


def test_an_unreadable_resource_does_not_keep_a_file_at_the_site(world: SyncWorld) -> None:
    seal(world, 1)
    world.edge.ground.put(path_of(1) + ".resource", b"\x01\x01torn", world.edge.clock)
    assert world.sync().files == 1
    with opened(world) as app, app.ledger.read() as connection:
        skipped = connection.exec_driver_sql("SELECT path, reason FROM skipped_file").all()
    assert [(p, "without its devices" in r) for p, r in skipped] == [(path_of(1) + ".resource", True)]


def test_a_data_folder_that_is_not_there_is_told(world: SyncWorld) -> None:
    """A name that is mistyped: what the server keeps in the right one is not sent."""
    seal(world, 1)
    world.site.remove_tree("data/unsequence")
    result = world.sync()
    assert (result.state, result.files, result.notes) == ("landed", 1, (f"data/unsequence: {NO_FOLDER}",))
    with opened(world) as app:
        assert plan_sync(app, "plant1").skipped == (("data/unsequence", NO_FOLDER),)
    world.site.make_folders(["data/unsequence"])
    assert world.sync().notes == ()


def test_send_all_again(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    assert world.sync(Options(send_all_again=True, no_load=True)).files == 2
    assert world.sync(Options(only_paths=(path_of(2),), send_all_again=True, no_load=True)).files == 1
    world.check()


def test_a_plan_is_neither_narrowed_nor_widened(world: SyncWorld) -> None:
    seal(world, 1, 2)
    with opened(world) as app:
        paper = read_plan(json.dumps(plan_sync(app, "plant1").as_json()).encode())
    for options in (Options(plan=paper, only_paths=(path_of(1),)), Options(plan=paper, send_all_again=True)):
        with pytest.raises(UsageError, match="--plan and --"):
            world.sync(options)
    assert world.sync(Options(plan=paper, no_load=True)).files == 2


def test_only_these_paths(world: SyncWorld) -> None:
    seal(world, 1, 2, 3)
    assert world.sync(Options(only_paths=("*/2-2-*", f"*{path_of(2)[-20:]}"), no_load=True)).files == 1
    assert world.sync().files == 2
    world.check()


def test_parts_close_on_partition_borders(make_world: Callable[..., SyncWorld]) -> None:
    world = make_world(limits=SMALL_PARTS)
    for number in range(1, 7):
        world.edge.seal(path_of(number, partition=number // 2, unsequence=bool(number % 2)), extent=DISJOINT[number])
    result = world.sync()
    papers = world.manifests()
    assert result.landings == len(papers) == 4
    assert [m.last for m in papers] == [False, False, False, True]
    for manifest in papers:
        assert len({f.path.split("/")[-2] for f in manifest.files}) == 1
    world.check()


# the receiver's answers


def states(world: SyncWorld) -> dict[str, tuple[str, str | None]]:
    with opened(world) as app, app.ledger.read() as connection:
        rows = connection.exec_driver_sql("SELECT path, state, reason FROM file").all()
    return {path: (state, reason) for path, state, reason in rows}


def test_a_quarantined_file_is_compared_with_the_site(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    held = [Answer(path_of(n), 1, "quarantined", "bad page") for n in (1, 2)]
    answer(world, world.manifests()[0].landing, *held)
    node = world.site._names[path_of(2)]  # type: ignore[attr-defined]
    node.data = node.data[:-1] + b"!"  # bit rot at the site was repaired meanwhile: same size, same time
    result = world.sync()
    assert result.files == 1
    assert world.manifests()[-1].files[0].path == path_of(2)
    assert states(world)[path_of(1)] == ("acked", "quarantined: bad page")


def test_missing_bytes_at_the_receiver_are_sent_again_whole(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    answer(world, world.manifests()[0].landing, Answer(path_of(1), 1, "quarantined", "not there", resend=True))
    assert world.sync().files == 1
    assert world.manifests()[-1].files[0].tsfile is not None
    assert world.sync().state == "nothing"


def test_a_refused_file_is_named(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    answer(world, world.manifests()[0].landing, Answer(path_of(1), 1, "refused", "root.sg.d1 is another's", "root.sg.d1"))
    assert world.sync().state == "nothing"
    assert states(world)[path_of(1)] == ("acked", "refused: root.sg.d1 is another's")


def test_a_receipt_for_another_manifest_is_not_believed(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    folder = f"landing/{SITE_ID}/{world.manifests()[0].landing}"
    world.centre.publish(f"{folder}/receipt.json", encode_document(Receipt(folder.rpartition("/")[2], 1, "0" * 64, 1.0)))
    with pytest.raises(CorruptionError, match="another manifest"):
        world.sync()


# the orchestrator's way


def steps(app: App, run: str, *names: str) -> None:
    for name in names or sync_link.STEPS:
        getattr(sync_link, name)(app, run)


def test_steps_in_processes_of_their_own(world: SyncWorld) -> None:
    seal(world, 1, 2)
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1", "dag/1")
        assert sync_link.open_run(app, "plant1", "dag/1") == run
        assert sync_link.open_run(app, "plant1", "dag/2") == run  # unfinished: another trigger continues it
        steps(app, run)
        before = world.manifests()
        steps(app, run)  # everything cleared and run again
        assert sync_link.run_result(app, run).files == 2
        assert sync_link.open_run(app, "plant1", "dag/1") == run
    assert world.manifests() == before
    world.check()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("again", sync_link.STEPS[:-1])
def test_any_step_cleared_in_the_middle(world: SyncWorld, again: str) -> None:
    seal(world, 1, 2)
    world.edge.append_schema("system/schema/mlog.bin", b"x")
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1", "dag/1")
        reached = sync_link.STEPS.index(again) + 1
        steps(app, run, *sync_link.STEPS[:reached], again, *sync_link.STEPS[reached:])
    world.check()


@pytest.mark.parametrize("early", ["finish", "cleanup"])
def test_a_run_cannot_be_ended_before_its_files_are_sent(world: SyncWorld, early: str) -> None:
    seal(world, 1)
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        for done in ((), ("recover", "select_files", "sync_schema")):
            steps(app, run, *done) if done else None
            with pytest.raises(RetryableError, match="cannot end"):
                steps(app, run, early)
        steps(app, run)
    world.check()


def test_batches_for_mapped_tasks(world: SyncWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "TASK_FILES", 1)
    for number in (1, 2, 3):
        world.edge.seal(path_of(number, partition=number))
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        steps(app, run, "recover", "select_files", "sync_schema", "transfer_deletes")
        cut = sync_link.file_batches(app, run)
        for batch in reversed(cut):
            sync_link.transfer_files(app, run, int(batch["batch"]))
            assert sync_link.file_batches(app, run) == cut
        steps(app, run, "finish", "cleanup")
    assert sum(int(b["files"]) for b in cut) == 3
    world.check()


# plans


def test_a_plan_changes_nothing_and_is_what_a_run_does(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    world.edge.compact([path_of(1), path_of(2)], path_of(1, inner=1))
    world.edge.seal(path_of(5, unsequence=True))
    with opened(world) as app:
        first, second = plan_sync(app, "plant1"), plan_sync(app, "plant1")
    assert first == second and first.state == "ready"
    assert {p for p, _ in first.send} == {path_of(1, inner=1), path_of(5, unsequence=True)}
    assert {p for p, _ in first.superseded} == {path_of(1), path_of(2)}
    (of_database,) = first.databases
    assert (of_database.files, of_database.bytes) == (2, sum(size for _, size in first.send))
    assert of_database.start and of_database.start <= of_database.end
    result = world.sync()
    assert (result.files, result.bytes) == (2, sum(size for _, size in first.send))
    with opened(world) as app:
        assert plan_sync(app, "plant1").state == "nothing"


def test_a_plan_file_is_run_exactly(world: SyncWorld) -> None:
    seal(world, 1)
    with opened(world) as app:
        paper = json.dumps(plan_sync(app, "plant1").as_json()).encode()
    seal(world, 2)  # came later: not in the plan
    assert world.sync(Options(plan=read_plan(paper), no_load=True)).files == 1
    assert set(world.told()) == {path_of(1)}
    world.sync()
    world.check()


@pytest.mark.parametrize("change", ["content", "gone"])
def test_a_plan_file_that_does_not_fit_any_more_is_refused(world: SyncWorld, change: str) -> None:
    seal(world, 1, 2)
    with opened(world) as app:
        paper = json.dumps(plan_sync(app, "plant1").as_json()).encode()
    if change == "content":
        world.edge.seal(path_of(1), "longer content than before it was")
    else:
        world.edge.drop(path_of(1))
    with pytest.raises(PermanentError, match="changed since the plan"):
        world.sync(Options(plan=read_plan(paper), no_load=True))
    world.sync()
    world.check()


def test_a_lost_ledger_is_told(world: SyncWorld) -> None:
    seal(world, 1)
    world.sync()
    for file in world.folder.glob("ledger.db*"):
        file.unlink()
    with pytest.raises(PermanentError) as told:
        world.sync()
    assert told.value.hint == "./tidemark ledger rebuild"


def test_a_second_link_to_where_a_site_lands_already_is_told(world: SyncWorld, tmp_path: Path) -> None:
    """Another Tidemark, or the same with the link renamed: its landings would begin the site's sequence again."""
    seal(world, 1)
    world.sync()
    other = replace(world, folder=tmp_path, link=replace(LINK, name="other"), results=[])
    for one in (other, replace(other, folder=world.folder)):
        with pytest.raises(PermanentError, match="by link plant1: a receiver takes a site's landings in one sequence"):
            one.sync()
    world.check()
