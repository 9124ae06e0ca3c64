"""What a run has sent goes away at the receiver before its landing is whole: a folder that is cleared, a disk unmounted."""

from __future__ import annotations

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import Died, Effects, explore
from tests.crash.sync_world import SyncWorld
from tests.unit.sync.link_runs import opened, seal
from tidemark.errors import RetryableError
from tidemark.formats.layout import MANIFEST, landed_path
from tidemark.sync import run as sync_link
from tidemark.sync.schema import Piece, schema_path

LOG = "system/schema/mlog.bin"
SENDING = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files")


class UpToTheManifest(Effects):
    """The life ends when a landing has its number, before its manifest."""

    def point(self, name: str) -> None:
        self.dead = self.dead or name.endswith(MANIFEST)
        super().point(name)


def all_sent(world: SyncWorld) -> str:
    """A run whose files and schema lie at the receiver, without a manifest. The folder of its landing."""
    seal(world, 1, 2, 3)
    world.edge.delete_points(path_of(2))
    world.edge.append_schema(LOG, b"create root.sg.d1")
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        for step in SENDING:
            getattr(sync_link, step)(app, run)
    return f"{world.landings}/{run}-1"


def finish(world: SyncWorld, landing: str) -> None:
    with opened(world) as app:
        sync_link.finish(app, landing.rpartition("/")[2].removesuffix("-1"))


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "lost",
    [
        landed_path(path_of(1)),
        landed_path(path_of(1) + ".resource"),
        landed_path(path_of(2) + ".mods"),
        schema_path(Piece(LOG, 1, 0, 0, 0)),
        "",
    ],
)
def test_what_is_gone_again_is_sent_again_and_no_manifest_names_it(world: SyncWorld, lost: str) -> None:
    landing = all_sent(world)
    if lost:
        world.centre.remove([f"{landing}/{lost}"])
    else:
        world.centre.remove_tree(landing)

    with pytest.raises(RetryableError, match="not at receiver centre any more") as said:
        finish(world, landing)

    assert "./tidemark sync plant1" in said.value.hint
    assert not world.manifests()
    assert world.sync().files == 3
    world.check()


def test_a_file_of_another_size_is_sent_again(world: SyncWorld) -> None:
    landing = all_sent(world)
    world.centre.remove([f"{landing}/{landed_path(path_of(3))}"])
    world.centre.publish(f"{landing}/{landed_path(path_of(3))}", b"half")
    with pytest.raises(RetryableError):
        finish(world, landing)
    world.sync()
    world.check()


def test_files_that_a_compaction_took_meanwhile_are_sent_again_from_their_links(world: SyncWorld) -> None:
    landing = all_sent(world)
    world.centre.remove_tree(landing)
    world.edge.compact([path_of(1), path_of(2)], path_of(1, inner=1))
    with pytest.raises(RetryableError):
        finish(world, landing)
    world.sync()
    assert not [reason for result in world.results for _, reason in result.left_out]
    world.check()


def test_a_vanished_file_is_still_told_with_the_landing_that_is_made_in_its_place(world: SyncWorld) -> None:
    seal(world, 9)
    world.sync()
    world.edge.drop(path_of(9))
    landing = all_sent(world)
    world.centre.remove_tree(landing)
    with pytest.raises(RetryableError):
        finish(world, landing)
    world.sync()
    assert [gone.path for manifest in world.manifests() for gone in manifest.dropped] == [path_of(9)]
    world.check()


def test_a_landing_that_was_numbered_before_its_files_went_is_withdrawn_and_made_in_the_same_run(world: SyncWorld) -> None:
    landing = all_sent(world)
    with pytest.raises(Died):
        world.sync(effects=UpToTheManifest())
    world.lose_power()
    world.centre.remove_tree(landing)

    assert world.sync().files == 3
    world.check()


@pytest.mark.full
def test_a_withdrawal_may_die_at_any_effect(world: SyncWorld) -> None:
    """A run died before its manifest, and what it had sent was cleared: every next life withdraws the landing, or finds it
    withdrawn, and sends all again."""
    seal(world, 1, 2, 3)
    world.edge.delete_points(path_of(2))
    world.edge.append_schema(LOG, b"create root.sg.d1")
    with pytest.raises(Died):
        world.sync(effects=UpToTheManifest())
    world.lose_power()
    world.centre.remove_tree(world.landings)
    explored = explore(world.clone)
    assert explored.all_died and explored.points > 20
