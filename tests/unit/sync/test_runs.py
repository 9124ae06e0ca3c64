"""Whole runs of a link: what travels, what is told, what waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import CrashingLedger, Effects
from tests.crash.sync_world import LINK, RECEIVER, SITE_ID, SMALL_PARTS, SyncWorld
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    LeaseHeldError,
    NotFoundError,
    PermanentError,
    RetryableError,
    TidemarkError,
    WindowOverError,
)
from tidemark.flows import sync_link
from tidemark.flows.app import App
from tidemark.flows.plan_link import plan, read_plan
from tidemark.flows.sync_link import Options
from tidemark.flows.sync_opening import new_run_id
from tidemark.ledger import link_rows, run_rows
from tidemark.ledger.leases import this_process
from tidemark.stores.landing import Answer, Receipt, encode
from tidemark.stores.memory import MemoryStore
from tidemark.stores.protocol import Listing

DISJOINT = {n: {"root.sg.d1": (n * 10, n * 10 + 9)} for n in range(1, 30)}


@contextmanager
def opened(world: SyncWorld) -> Iterator[App]:
    app = world.app(Effects())
    yield app
    app.ledger.close()


def seal(world: SyncWorld, *numbers: int) -> list[str]:
    return [world.edge.seal(path_of(n), extent=DISJOINT[n]) for n in numbers]


def guard(world: SyncWorld) -> str | None:
    with opened(world) as app, app.ledger.read() as connection:
        link = link_rows.get_link(connection, "plant1")
    assert link is not None
    return link.guard


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


def test_send_all_again(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    assert world.sync(Options(send_all_again=True, no_load=True)).files == 2
    world.check()


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


# what is told of vanished files


def test_compaction_is_told_with_what_covers(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    target = world.edge.compact([path_of(1), path_of(2)], path_of(1, inner=1))
    result = world.sync()
    assert (result.superseded, result.dropped) == (2, 0)
    assert {v.path: v.covered_by for v in world.manifests()[-1].superseded} == {
        path_of(1): (target,),
        path_of(2): (target,),
    }
    world.check()


def test_a_compaction_whose_sources_go_one_by_one_between_runs_supersedes_them_all(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    target = world.edge.seal(path_of(1, inner=1), extent={"root.sg.d1": (10, 29)})
    world.sync()
    world.edge.drop(path_of(1))
    assert (world.sync().superseded, world.manifests()[-1].superseded[0].covered_by) == (1, (target,))
    world.edge.drop(path_of(2))
    result = world.sync()
    assert (result.superseded, result.dropped) == (1, 0)
    world.check()


def test_a_drop_is_told_and_may_come_back(world: SyncWorld) -> None:
    seal(world, 1, 2, 3)
    world.sync()
    world.edge.drop(path_of(3))
    assert world.sync().dropped == 1
    seal(world, 3)
    assert world.sync().files == 1
    world.check()


def test_a_file_never_sent_that_goes_is_forgotten(world: SyncWorld) -> None:
    world.link = replace(LINK, exclude=("**",))
    seal(world, 1, 2)
    world.sync()
    world.edge.drop(path_of(2))
    result = world.sync()
    assert (result.state, result.dropped) == ("landed", 0)
    assert world.manifests()[-1].removed == (path_of(2),)


def test_a_superseded_file_waits_until_its_cover_has_landed(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.sync()
    target = world.edge.compact([path_of(1), path_of(2)], path_of(1, inner=1))
    result = world.sync(Options(only_paths=(path_of(1), path_of(2)), no_load=True))
    assert (result.superseded, result.pending) == (0, 2)
    assert set(world.told()) == {path_of(1), path_of(2)}
    world.sync()
    assert set(world.told()) == {target}
    world.check()


# the guard


def test_an_empty_site_drops_nothing_whatever_deletes_says(world: SyncWorld) -> None:
    paths = seal(world, 1, 2)
    world.sync()
    kept = {p: (world.edge.contents[p], world.edge.extents[p]) for p in paths}
    for path in paths:
        world.edge.drop(path)
    result = world.sync()
    assert (result.exit_code, result.dropped, result.pending) == (22, 0, 2)
    assert "looks empty" in result.guard and f"approve {result.run}" in result.hint
    assert set(world.told()) == set(paths)
    for path in paths:  # mounted again
        world.edge.seal(path, path, kept[path][1])
    assert world.sync().exit_code == 0 and guard(world) is None


def test_a_site_without_any_of_its_folders_is_no_quiet_site(disk_world: SyncWorld) -> None:
    world = disk_world
    with pytest.raises(NotFoundError, match="none of its data folders is there") as caught:
        world.sync()
    assert "./tidemark doctor" in caught.value.hint
    seal(world, 1)
    assert world.sync().files == 1


def test_a_missing_folder_holds_drops_and_lets_transfers_go(disk_world: SyncWorld) -> None:
    world = disk_world
    seal(world, 1)
    world.edge.seal(path_of(2, unsequence=True))
    world.sync()
    (world.folder / "site/data/unsequence").rename(world.folder / "unmounted")
    seal(world, 3)
    result = world.sync()
    assert (result.exit_code, result.files, result.dropped) == (22, 1, 0)
    (world.folder / "unmounted").rename(world.folder / "site/data/unsequence")
    assert world.sync().exit_code == 0
    world.check()


def test_too_many_drops_wait_for_approval(world: SyncWorld) -> None:
    world.link = replace(LINK, deletes="apply", delete_limit_files=2)
    seal(world, *range(1, 8))
    world.sync()
    for number in (1, 2, 3):
        world.edge.drop(path_of(number))
    held = world.sync()
    assert (held.exit_code, held.dropped, held.pending) == (22, 0, 3)
    with opened(world) as app, app.ledger.write() as connection:
        link_rows.set_link(connection, "plant1", approved_run=held.run)
    world.edge.drop(path_of(4))  # within the limits by itself
    after = world.sync()
    assert (after.exit_code, after.dropped) == (0, 4)
    assert guard(world) is None
    world.check()


def test_approval_does_not_stretch_to_later_drops(world: SyncWorld) -> None:
    world.link = replace(LINK, deletes="apply", delete_limit_files=2)
    seal(world, *range(1, 12))
    world.sync()
    for number in (1, 2, 3):
        world.edge.drop(path_of(number))
    held = world.sync()
    with opened(world) as app, app.ledger.write() as connection:
        link_rows.set_link(connection, "plant1", approved_run=held.run)
    for number in (4, 5, 6):
        world.edge.drop(path_of(number))
    after = world.sync()
    assert (after.exit_code, after.dropped, after.pending) == (22, 3, 3)
    assert guard(world) is not None


# what goes wrong


class Flaky(MemoryStore):
    """A receiver on which some files cannot be written, or that is full."""

    def __init__(self, *broken: str, error: type[TidemarkError] = PermanentError) -> None:
        super().__init__("centre")
        self.broken = broken
        self.error = error

    def write_part(self, path, offset, pieces, sync=False):  # type: ignore[no-untyped-def]
        if any(name in path for name in self.broken):
            raise self.error(f"cannot write {path}", subject=path)
        return super().write_part(path, offset, pieces, sync)


def test_a_file_that_fails_is_left_out_and_goes_next_time(world: SyncWorld) -> None:
    seal(world, 1, 2)
    name = path_of(1).rpartition("/")[2]
    world.centre = Flaky(name)
    result = world.sync()
    assert (result.exit_code, result.files, [p for p, _ in result.left_out]) == (23, 1, [path_of(1)])
    assert [p for p, _ in world.manifests()[0].left_out] == [path_of(1)]
    world.centre.broken = ()  # type: ignore[attr-defined]
    assert world.sync().files == 1
    world.check()


def test_a_full_disk_ends_the_run_and_the_next_goes_on(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.centre = Flaky(path_of(2).rpartition("/")[2], error=DiskFullError)
    with pytest.raises(DiskFullError):
        world.sync()
    world.centre.broken = ()  # type: ignore[attr-defined]
    assert world.sync().files == 2
    world.check()


def test_no_room_is_known_before_the_first_byte(world: SyncWorld) -> None:
    seal(world, 1)
    world.centre.free = 1_000  # type: ignore[attr-defined]
    with pytest.raises(DiskFullError, match="bytes free"):
        world.sync()
    assert not world.centre.list_files(["landing"]).entries
    world.centre.free = None  # type: ignore[attr-defined]
    world.live(Effects())
    world.check()


class Compacting(MemoryStore):
    """A site whose compaction runs between our looks: `moments` are called one after the other, a listing each."""

    moments: Sequence[Callable[[], None]] = ()

    def list_files(self, folders: Sequence[str]) -> Listing:
        found = super().list_files(folders)
        if self.moments:
            first, *self.moments = self.moments
            first()
        return found


def void(_done: object) -> None:
    """For lambdas that only act."""


def compacting(world: SyncWorld, *moments: Callable[[], None]) -> SyncWorld:
    world.site.__class__ = type("Site", (Compacting, world.site.__class__), {})
    world.site.moments = moments  # type: ignore[attr-defined]
    return world


def test_a_compaction_after_the_listing_makes_the_selection_start_over(world: SyncWorld) -> None:
    seal(world, 1, 2)
    target = path_of(1, inner=1)
    compacting(world, lambda: void(world.edge.compact([path_of(1), path_of(2)], target)))
    result = world.sync()
    assert (result.exit_code, set(world.told())) == (0, {target})
    world.check()


def test_a_compaction_during_the_listing_is_not_taken_for_a_drop(world: SyncWorld) -> None:
    """The listing passed the folder before the new file came, and after the old ones went."""
    seal(world, 1, 2)
    world.sync()
    extents = {p: world.edge.extents[p] for p in (path_of(1), path_of(2))}
    for path in extents:
        world.edge.drop(path)
    compacting(world, lambda: void(world.edge.seal(path_of(1, inner=1), extent={"root.sg.d1": (10, 29)})))
    result = world.sync()
    assert (result.superseded, result.dropped) == (2, 0)
    world.check()


def test_a_site_that_never_stands_still_sends_what_it_can(world: SyncWorld) -> None:
    seal(world, 9)
    numbers = iter(range(1, 9))

    def churn() -> None:
        number = next(numbers, None)
        if number:
            world.edge.seal(path_of(9), f"content {number}")

    compacting(world, *[churn] * 8)
    for _ in range(6):
        world.sync()
    world.check()


def test_two_runs_at_once(world: SyncWorld) -> None:
    seal(world, 1)
    with opened(world) as app:
        other = replace(app, identity=this_process())
        run = sync_link.open_run(other, "plant1", "dag/1")
        with other.ledger.write() as connection:  # the other process is inside a step
            connection.exec_driver_sql("UPDATE lease SET pid = ?, process_start = ?", _mine())
        with pytest.raises(LeaseHeldError, match=run):
            world.sync()


def _mine() -> tuple[int, str]:
    me = this_process()
    return me.pid, me.process_start


def snapshot_runs(world: SyncWorld) -> set[str]:
    return {entry.path.split("/")[3] for entry in world.site.list_files(["data/.tidemark/plant1"]).entries}


def test_two_tidemarks_over_one_site_leave_each_others_links_alone(world: SyncWorld, tmp_path: Path) -> None:
    """Same site, same name of the link, ledgers and receivers of their own; one is killed while its files are linked."""
    seal(world, 1, 2)
    second = replace(world, folder=tmp_path, centre=MemoryStore("centre"), results=[])
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        sync_link.recover(app, run)
        sync_link.select_files(app, run)
    assert snapshot_runs(world) == {run}
    assert second.sync().files == 2
    assert snapshot_runs(world) == {run}
    assert world.sync().files == 2
    second.check()
    world.check()


@pytest.mark.parametrize(("days", "there"), [(29, True), (31, False)])
def test_links_that_nobody_knows_go_after_a_month(world: SyncWorld, days: int, there: bool) -> None:
    seal(world, 1)
    stray = new_run_id(world.edge.clock - days * 86_400)
    world.site.link([(path_of(1), f"data/.tidemark/plant1/{stray}/0/x.tsfile")])
    world.site.link([(path_of(1), "data/.tidemark/plant1/by-hand/0/x.tsfile")])
    world.sync()
    assert snapshot_runs(world) == {"by-hand", *([stray] if there else [])}


def test_a_stale_process_records_nothing(world: SyncWorld) -> None:
    """Suspended in the middle, replaced, woken up: its next record is refused."""
    seal(world, 1, 2)
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        sync_link.recover(app, run)
        with app.ledger.read() as connection:
            fence = connection.exec_driver_sql("SELECT fence FROM lease").scalar_one()
        stolen = Effects()

        class Replaced(CrashingLedger):
            """The lease goes to somebody else just before the step's second record."""

            def write(self):  # type: ignore[no-untyped-def]
                if stolen.count == 2:
                    with CrashingLedger(self.url, Effects()).write() as connection:
                        connection.exec_driver_sql("UPDATE lease SET fence = fence + 1, holder = 'another'")
                stolen.point("write")
                return super().write()

        slow = replace(app, ledger=Replaced(app.ledger.url, Effects()))
        with pytest.raises(TidemarkError, match="another"):
            sync_link.select_files(slow, run)
        with app.ledger.read() as connection:
            assert list(run_rows.items(connection, run)) == [] and fence >= 1


def test_a_closed_window_stops_a_run_before_it_begins(world: SyncWorld) -> None:
    seal(world, 1)
    world.link = replace(LINK, window="00:00-00:01")
    with pytest.raises(WindowOverError):
        world.sync()
    assert not world.centre.list_files(["landing"]).entries


def test_a_receiver_that_does_not_load_is_not_buried(world: SyncWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.sync_world.RECEIVER", replace(RECEIVER, max_unloaded_landings=1))
    for number in (1, 2):
        seal(world, number)
        world.sync()
    seal(world, 3)
    with pytest.raises(RetryableError, match="has not loaded 2 landings"):
        world.sync()
    answer(world, world.manifests()[0].landing)
    assert world.sync().files == 1  # the run goes on


# the receiver's answers


def answer(world: SyncWorld, landing: str, *answers: Answer) -> None:
    import hashlib

    folder = f"landing/{SITE_ID}/{landing}"
    digest = hashlib.sha256(world.centre.read(f"{folder}/manifest.json")).hexdigest()
    sequence = next(m.sequence for m in world.manifests() if m.landing == landing)
    world.centre.publish(f"{folder}/receipt.json", encode(Receipt(landing, sequence, digest, 1.0, answers)))


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
    world.centre.publish(f"{folder}/receipt.json", encode(Receipt(folder.rpartition("/")[2], 1, "0" * 64, 1.0)))
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
    monkeypatch.setattr("tidemark.sync.parts.PartLimits.batch_files", 1)
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
        first, second = plan(app, "plant1"), plan(app, "plant1")
    assert first == second and first.state == "ready"
    assert {p for p, _ in first.send} == {path_of(1, inner=1), path_of(5, unsequence=True)}
    assert {p for p, _ in first.superseded} == {path_of(1), path_of(2)}
    result = world.sync()
    assert (result.files, result.bytes) == (2, sum(size for _, size in first.send))
    with opened(world) as app:
        assert plan(app, "plant1").state == "nothing"


def test_a_plan_file_is_run_exactly(world: SyncWorld) -> None:
    seal(world, 1)
    with opened(world) as app:
        paper = json.dumps(plan(app, "plant1").as_json()).encode()
    seal(world, 2)  # came later: not in the plan
    assert world.sync(Options(plan=read_plan(paper), no_load=True)).files == 1
    assert set(world.told()) == {path_of(1)}
    world.sync()
    world.check()


@pytest.mark.parametrize("change", ["content", "gone", "sent"])
def test_a_plan_file_that_does_not_fit_any_more_is_refused(world: SyncWorld, change: str) -> None:
    seal(world, 1, 2)
    with opened(world) as app:
        paper = json.dumps(plan(app, "plant1").as_json()).encode()
    if change == "content":
        world.edge.seal(path_of(1), "longer content than before it was")
    elif change == "gone":
        world.edge.drop(path_of(1))
    else:
        world.sync()
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
