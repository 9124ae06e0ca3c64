"""Whole runs of a link: what is told of files that vanished, and when the guard holds it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.edge import path_of
from tests.crash.sync_world import LINK, SyncWorld
from tests.unit.sync.link_runs import DISJOINT, guard, opened, seal
from tidemark.errors import NotFoundError
from tidemark.formats.landing import Manifest
from tidemark.ledger.sender import links as link_rows
from tidemark.operations.decisions import approve_run
from tidemark.sync.run import Options

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


def test_an_output_of_another_folder_that_came_a_run_earlier_covers(disk_world: SyncWorld) -> None:
    """Only `unsequence` differs; the file of a cross compaction is in `sequence`, and acknowledged."""
    world = disk_world
    late = world.edge.seal(path_of(5, unsequence=True), extent=DISJOINT[1])
    made = world.edge.seal(path_of(1, cross=1), extent=DISJOINT[1])
    world.edge.seal(path_of(6, unsequence=True))
    world.sync()
    world.edge.drop(late)
    assert world.sync().superseded == 1
    assert world.manifests()[-1].superseded[0].covered_by == (made,)


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


def test_old_compacted_files_do_not_let_a_mass_drop_pass(world: SyncWorld) -> None:
    """Somebody removes every late file: files that were compacted before span their times, and no new one does."""
    world.link = replace(LINK, deletes="apply", delete_limit_files=2)
    world.edge.seal(path_of(1, cross=1), extent={"root.sg.d1": (0, 99)})
    late = [world.edge.seal(path_of(n, unsequence=True), extent=DISJOINT[n]) for n in range(2, 8)]
    world.sync()
    for path in late[1:]:
        world.edge.drop(path)
    result = world.sync()
    assert (result.exit_code, result.superseded, result.dropped, result.pending) == (22, 0, 0, 5)
    world.edge.compact([path_of(1, cross=1), late[0]], path_of(1, cross=2))
    result = world.sync()
    assert (result.superseded, result.pending) == (7, 0), "a new file may hold them: the receiver looks at their points"


def test_a_compaction_of_more_files_than_the_limits_passes(world: SyncWorld) -> None:
    world.link = replace(LINK, deletes="apply", delete_limit_files=2)
    paths = seal(world, *range(1, 8))
    world.sync()
    world.edge.compact(paths, path_of(1, inner=1))
    result = world.sync()
    assert (result.exit_code, result.superseded, result.pending) == (0, 7, 0)
    world.check()


def test_a_folder_that_a_compaction_emptied_is_no_lost_disk(disk_world: SyncWorld) -> None:
    world = disk_world
    seal(world, 1)
    late = world.edge.seal(path_of(2, unsequence=True), extent=DISJOINT[1])
    world.sync()
    world.edge.compact([path_of(1), late], path_of(1, cross=1))
    result = world.sync()
    assert (result.exit_code, result.superseded) == (0, 2)
    world.check()


def test_a_disk_that_is_away_while_files_are_compacted_drops_nothing(disk_world: SyncWorld) -> None:
    world = disk_world
    seal(world, 1, 2)
    late = world.edge.seal(path_of(3, unsequence=True), extent=DISJOINT[1])
    world.sync()
    unsequence = world.folder / "site/data/unsequence"
    unsequence.rename(world.folder / "unmounted")
    unsequence.mkdir()  # the place of the mount
    world.edge.compact([path_of(1), path_of(2)], path_of(1, inner=1))
    result = world.sync()
    assert (result.exit_code, result.superseded, result.pending) == (22, 2, 1)
    assert "looks empty or not mounted" in result.guard
    assert late in world.told()
    unsequence.rmdir()
    (world.folder / "unmounted").rename(unsequence)
    assert world.sync().exit_code == 0
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


# drops that the limits hold are told as held


@pytest.fixture
def held(world: SyncWorld) -> SyncWorld:
    """Three files are gone, the limit is two."""
    world.link = replace(LINK, deletes="apply", delete_limit_files=2)
    seal(world, *range(1, 8))
    world.sync()
    for number in (1, 2, 3):
        world.edge.drop(path_of(number))
    assert world.sync().pending == 3
    return world


def last(world: SyncWorld) -> Manifest:
    return world.manifests()[-1]


def test_held_drops_are_told_once(held: SyncWorld) -> None:
    paths = tuple(map(path_of, (1, 2, 3)))
    assert [(v.path, v.generation) for v in last(held).held] == [(path, 1) for path in paths]
    assert (last(held).removed, last(held).dropped, last(held).inventory_count) == (paths, (), 4)
    count = len(held.manifests())
    again = held.sync()
    assert (again.exit_code, again.pending, len(held.manifests())) == (22, 3, count), "nothing new is to be told"
    held.edge.drop(path_of(4))
    assert held.sync().pending == 4
    assert ([v.path for v in last(held).held], last(held).removed) == ([path_of(4)], (path_of(4),))
    assert last(held).inventory_count == 3


def test_a_held_file_that_comes_back_is_told_as_there_and_not_sent(held: SyncWorld) -> None:
    for number in (1, 2, 3):
        held.edge.clock = 1_700_000_000 + number - 1  # as it was
        seal(held, number)
    result = held.sync()
    assert (result.exit_code, result.files) == (0, 0)
    assert [e.path for e in last(held).added] == [path_of(n) for n in (1, 2, 3)]
    assert (last(held).held, last(held).inventory_count) == ((), 7)
    assert all(entry.extent for entry in last(held).added)
    held.check()


def test_a_held_file_that_comes_back_with_deletions_or_another_content_is_sent(held: SyncWorld) -> None:
    held.edge.clock = 1_700_000_000
    seal(held, 1)
    held.edge.delete_points(path_of(1))
    held.edge.seal(path_of(2), "other", DISJOINT[2])
    result = held.sync()
    assert (result.files, result.dropped) == (2, 1), "one drop is within the limit"
    assert sorted(e.path for e in last(held).added) == [path_of(1), path_of(2)]
    held.check()


def test_an_approved_drop_leaves_after_it_was_held(held: SyncWorld) -> None:
    with opened(held) as app, app.ledger.read() as connection:
        run = link_rows.get_link(connection, "plant1").guard_run  # type: ignore[union-attr]
    with opened(held) as app:
        approve_run(app, str(run))
    result = held.sync()
    assert (result.exit_code, result.dropped, last(held).held) == (0, 3, ())
    assert last(held).inventory_count == 4
    held.check()


def test_what_nobody_looked_for_is_not_told_as_held(world: SyncWorld) -> None:
    """The disk may be mounted again: nobody knows that the files are gone."""
    paths = seal(world, 1, 2)
    world.sync()
    for path in paths:
        world.edge.drop(path)
    assert world.sync().pending == 2
    assert len(world.manifests()) == 1
