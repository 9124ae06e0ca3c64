"""A member's folder is put back from an older copy: it has no vote and is unsynced until its log and its files came."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tests.small_files import source
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.nodes.folder import LOGS
from tidemark.errors import NoQuorumError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.proof.cluster.replicas import ReplicaView, show_replicas

NODES = ("n1", "n2", "n3")


class PutBack:
    """`older` and `holder` acknowledged the newest record, `missed` did not; then `older`'s folder was put back."""

    def __init__(self, centre: LoadedCentre, *, master: bool) -> None:
        self.centre = centre
        slaves = [node for node in NODES if node != self.group.master]
        self.older, self.holder = (self.group.master, slaves[0]) if master else (slaves[0], self.group.master)
        self.missed = slaves[1]
        copy = centre.folder / "copy"
        shutil.copytree(centre.node(self.older), copy)
        centre.away = {self.missed}
        centre.land(2)
        assert centre.load().exit_code == 0
        centre.away = set()
        shutil.rmtree(centre.node(self.older))
        shutil.copytree(copy, centre.node(self.older))
        assert set(self.group.in_step) == {self.older, self.holder}

    @property
    def group(self) -> GroupLogRow:
        with self.centre.app.ledger.read() as connection:
            return read_group_logs(connection, self.centre.name)[self.centre.header]

    def show(self, node: str) -> ReplicaView:
        (shown,) = (
            one for one in show_replicas(self.centre.app, self.centre.receiver).groups if one.group == self.centre.header
        )
        return next(member for member in shown.members if member.node == node)

    def all_are_equal(self) -> None:
        assert self.group.in_step == NODES
        assert self.centre.at(self.older) == self.centre.at(self.holder)
        assert check_cluster(self.centre.app, self.centre.receiver).problems == ()
        assert self.centre.rows() == rows((1, 10), (2, 20))
        logs_tell_the_catalog(self.centre)
        everything_is_held(self.centre)


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    centre = LoadedCentre(tmp_path)
    centre.land(1)
    centre.load()
    return centre


@pytest.mark.parametrize("master", [False, True])
def test_a_member_that_was_put_back_is_unsynced_and_comes_back_with_its_files(centre: LoadedCentre, master: bool) -> None:
    world = PutBack(centre, master=master)
    shown = world.show(world.older)
    assert shown.role.value == "unsynced" and "its log was put back" in shown.why and "no vote" in shown.why
    watched = watch_groups(centre.app, centre.receiver)
    assert watched.exit_code == 0 and watched.files.keys() == {world.older, world.missed}
    world.all_are_equal()
    assert world.show(world.older).role.value in ("slave", "master")
    assert watch_groups(centre.app, centre.receiver).files == {}


def test_the_next_record_brings_its_log_and_its_files_do_not_count_before_they_came(centre: LoadedCentre) -> None:
    world = PutBack(centre, master=False)
    centre.away = {world.missed}
    centre.land(3)
    assert centre.load().exit_code == 0
    centre.away = set()
    shown = world.show(world.older)
    assert world.older in world.group.in_step and shown.role.value == "unsynced" and "it lacks" in shown.why
    watch_groups(centre.app, centre.receiver)
    assert world.show(world.older).role.value == "slave"
    assert centre.at(world.older) == centre.at(world.holder) and len(centre.at(world.older)) == 3
    everything_is_held(centre)


@pytest.mark.parametrize("away", ["holder", "missed"])
def test_who_was_put_back_makes_nobody_master(centre: LoadedCentre, away: str) -> None:
    """With one of the others away nobody knows that what is left is all: that is told, and nothing older is shown."""
    world = PutBack(centre, master=away == "missed")
    centre.away = {getattr(world, away)}
    settled = world.group.settled
    for _ in range(3):
        watched = watch_groups(centre.app, centre.receiver)
        assert centre.header not in watched.masters and centre.header in watched.waits and watched.recovered == {}
    assert watched.exit_code == 30
    centre.land(3)
    with pytest.raises(NoQuorumError):
        centre.load()
    assert world.group.settled == settled
    centre.away = set()
    assert watch_groups(centre.app, centre.receiver).exit_code == 0
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((1, 10), (2, 20), (3, 30))
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


@pytest.mark.parametrize("back", ["watch", "load", "merge"])
@pytest.mark.parametrize("with_log", [True, False])
def test_a_member_that_was_away_and_put_back_meanwhile_gets_what_its_folder_lacks(
    centre: LoadedCentre, back: str, with_log: bool
) -> None:
    """It fell out of step while it was away. So its log shows that it missed records, and not that it had some before."""
    late, copy = next(node for node in NODES if node != centre.header), centre.folder / "copy"
    shutil.copytree(centre.node(late), copy)
    centre.land(2)
    centre.load()
    centre.away = {late}
    centre.site.land({source(3, unsequence=True): d1((2, 21), (3, 30))})
    centre.load()
    shutil.rmtree(centre.node(late))
    shutil.copytree(copy, centre.node(late))
    if not with_log:
        shutil.rmtree(centre.node(late) / LOGS)
    centre.away = set()
    if back == "load":
        centre.load()
    elif back == "merge":
        assert centre.merge().files_out
    watch_groups(centre.app, centre.receiver)
    (shown,) = (one for one in show_replicas(centre.app, centre.receiver).groups if one.group == centre.header)
    assert {member.role.value for member in shown.members} == {"master", "slave"}
    assert watch_groups(centre.app, centre.receiver).files == {}
    assert centre.rows() == rows((1, 10), (2, 21), (3, 30))
    assert check_cluster(centre.app, centre.receiver).problems == ()
