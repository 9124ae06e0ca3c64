"""What an operator decides about a group: it is done once, it is recorded, and nothing is deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tidemark.cluster.health.operator import (
    find_risk,
    find_unsynced,
    force_group,
    recover_members,
    resync_member,
    switch_over,
)
from tidemark.cluster.health.repair import repair_cluster
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.members import MemberLogs, folder_of
from tidemark.errors import NoQuorumError, NotFoundError, RetryableError, UsageError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.operations.housekeeping import housekeep
from tidemark.proof.cluster.replicas import show_replicas

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    centre = LoadedCentre(tmp_path)
    centre.land(1)
    centre.load()
    return centre


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def roles(centre: LoadedCentre) -> dict[str, str]:
    (shown,) = (one for one in show_replicas(centre.app, centre.receiver).groups if one.group == centre.header)
    return {member.node: member.role.value for member in shown.members}


def slaves(centre: LoadedCentre) -> list[str]:
    return [node for node in NODES if node != group(centre).master]


def audited(centre: LoadedCentre, action: str) -> int:
    return len(centre.sql(f"SELECT 1 FROM audit WHERE action = '{action}'"))


@pytest.mark.parametrize("lost", ["log", "folder"])
@pytest.mark.parametrize("named", ["node", "group"])
def test_a_member_whose_log_is_gone_or_from_an_older_copy_comes_back_when_it_is_named(
    centre: LoadedCentre, lost: str, named: str
) -> None:
    """The ledger has it in step, and `replica show` says that it is not."""
    late, copy = slaves(centre)[0], centre.folder / "copy"
    shutil.copytree(centre.node(late), copy)
    centre.land(2)
    centre.load()
    shutil.rmtree(centre.node(late) / (folder_of(centre.header) if lost == "log" else ""))
    if lost == "folder":
        shutil.copytree(copy, centre.node(late))
    assert roles(centre)[late] == "unsynced"
    what = late if named == "node" else f"group:{centre.header}"
    found = recover_members(centre.app, centre.receiver, what)
    assert found.exit_code == 0 and {one.node for one in found.done} == {late}
    assert {header for one in found.done for header in one.groups} == {centre.header}
    assert roles(centre)[late] == "slave"
    assert recover_members(centre.app, centre.receiver, what).done == ()
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_the_master_is_switched_over_once(centre: LoadedCentre) -> None:
    to = slaves(centre)[-1]
    first = switch_over(centre.app, centre.receiver, centre.header, to)
    again = switch_over(centre.app, centre.receiver, centre.header, to)
    assert [len(first.done), len(again.done), audited(centre, "replica.switchover")] == [1, 0, 1]
    assert (group(centre).master, group(centre).epoch, roles(centre)[to]) == (to, 2, "master")
    centre.land(2)
    assert centre.load().exit_code == 0
    logs_tell_the_catalog(centre)


def test_a_switchover_that_dies_is_recorded_if_its_epoch_is_given(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = slaves(centre)[-1]

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name, epoch in (("_give_epoch", 1), ("_activate", 2)):
        monkeypatch.setattr(f"tidemark.cluster.replicas.promote.{name}", die)
        with pytest.raises(KeyboardInterrupt):
            switch_over(centre.app, centre.receiver, centre.header, to)
        monkeypatch.undo()
        assert (group(centre).epoch, audited(centre, "replica.switchover")) == (epoch, epoch - 1)
    switch_over(centre.app, centre.receiver, centre.header, to)
    assert group(centre).master == to


@pytest.mark.full_after(1)
@pytest.mark.parametrize("how", ["copy", "lost", "unclaimed"])
def test_a_member_whose_copies_a_repair_forgot_is_unsynced_until_it_has_them(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    node = slaves(centre)[0]
    (location,) = centre.at(node)
    if how != "copy":
        shutil.rmtree(centre.node(node))
    else:
        (centre.node(node) / location).unlink()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    effect = "nodes.folder.NodeFolder.claim_folder" if how == "unclaimed" else "health.repair.deliver_all"
    monkeypatch.setattr(f"tidemark.cluster.{effect}", die)
    with pytest.raises(KeyboardInterrupt):
        repair_cluster(centre.app, centre.receiver, lost="" if how == "copy" else node)
    monkeypatch.undo()
    if how == "unclaimed":  # nobody takes the folder for the node's before that is said again
        assert roles(centre)[node] == "offline"
        assert repair_cluster(centre.app, centre.receiver, lost=node).problems == ()
        watch_groups(centre.app, centre.receiver)
        return everything_is_held(centre)
    assert roles(centre)[node] == "unsynced"
    assert watch_groups(centre.app, centre.receiver).files == {node: 1}
    assert roles(centre)[node] == "slave" and centre.at(node) == [location]
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


def damage(centre: LoadedCentre, *nodes: str) -> None:
    """A byte of the first record rots at these nodes, in a file that is closed."""
    with centre.cluster() as cluster:
        MemberLogs(cluster, centre.header).seal()
    for node in nodes:
        first, *_ = sorted((centre.node(node) / folder_of(centre.header)).iterdir())
        data = bytearray(first.read_bytes())
        data[MARK_BYTES] ^= 1
        first.write_bytes(data)


@pytest.mark.parametrize("way", ["group", "nodes"])
def test_damaged_logs_of_two_members_come_one_after_another_from_the_third(centre: LoadedCentre, way: str) -> None:
    damaged = [group(centre).master, slaves(centre)[0]]
    damage(centre, *damaged)
    named = [f"group:{centre.header}"] if way == "group" else damaged[::-1]
    done = [one for what in named for one in recover_members(centre.app, centre.receiver, what).done]
    assert sorted((one.node, one.groups) for one in done) == sorted((node, (centre.header,)) for node in damaged)
    assert group(centre).in_step == NODES
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_a_damaged_log_is_left_as_it_is_where_no_member_has_a_whole_one(centre: LoadedCentre) -> None:
    damage(centre, *NODES)
    before = group(centre)
    told = recover_members(centre.app, centre.receiver, group(centre).master)
    assert told.exit_code == 7 and "no member in step" in told.as_json()["error"]
    assert group(centre) == before and not list((centre.folder / "nodes").rglob("*.parted-*"))


@pytest.mark.full
def test_who_is_not_in_step_or_no_member_does_not_become_master(centre: LoadedCentre) -> None:
    late = slaves(centre)[0]
    centre.away = {late}
    centre.land(2)
    centre.load()
    before = group(centre)
    with pytest.raises(RetryableError, match=f"{late} is not in step") as refused:
        switch_over(centre.app, centre.receiver, centre.header, late)
    assert f"replica recover {late}" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="n9 is no member"):
        switch_over(centre.app, centre.receiver, centre.header, "n9")
    with pytest.raises(NotFoundError, match="no group n9"):
        switch_over(centre.app, centre.receiver, "n9", late)
    assert group(centre) == before


@pytest.mark.full
@pytest.mark.parametrize("what", ["", "node", "group"])
def test_members_that_were_away_are_recovered(centre: LoadedCentre, what: str) -> None:
    late = slaves(centre)[0]
    centre.away = {late}
    centre.land(2, 3)
    centre.load()
    asked = {"": "", "node": late, "group": f"group:{centre.header}"}[what]
    assert find_unsynced(centre.app, centre.receiver) == [late]
    still = recover_members(centre.app, centre.receiver, asked)
    assert still.exit_code == 5 and still.left[0][0] == late
    centre.away = set()
    done = recover_members(centre.app, centre.receiver, asked)
    assert (done.exit_code, [(one.node, one.files) for one in done.done]) == (0, [(late, 2)])
    assert recover_members(centre.app, centre.receiver, asked).done == ()
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


@pytest.mark.parametrize("which", ["master", "slave"])
def test_a_member_is_taken_anew_and_what_it_had_lies_aside(centre: LoadedCentre, which: str) -> None:
    node = group(centre).master if which == "master" else slaves(centre)[0]
    (location,) = centre.at(node)
    had = (centre.node(node) / location).read_bytes()
    (centre.node(node) / location).write_bytes(bytes(len(had)))
    log = centre.node(node) / folder_of(centre.header)
    records = {path.read_bytes() for path in log.iterdir()}
    resynced = resync_member(centre.app, centre.receiver, node, centre.header)
    assert [(one.did, one.files) for one in resynced.done] == [("resynced", 1)] and resynced.exit_code == 0
    assert (centre.node(node) / location).read_bytes() == had
    (aside,) = centre.node(node).glob(".tidemark/quarantine/*/data/**/*.tsfile")
    assert aside.read_bytes() == bytes(len(had))
    assert (
        records
        <= {path.read_bytes() for path in log.parent.glob(f"{log.name}.parted-*/*")}
        | {path.read_bytes() for path in log.iterdir()}
        or which == "master"
    )
    assert sorted(roles(centre).values()) == ["master", "slave", "slave"] and audited(centre, "replica.resync") == 1
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_a_node_is_taken_anew_in_all_its_groups_and_who_is_needed_stays(centre: LoadedCentre) -> None:
    node = slaves(centre)[0]
    with centre.cluster() as cluster:
        record_slots(cluster)  # each group has a log
        groups = sorted(cluster.table.groups_by_header())
    resynced = resync_member(centre.app, centre.receiver, node)
    assert [one.groups for one in resynced.done] == [(group,) for group in groups] and resynced.exit_code == 0
    assert len(list(centre.node(node).glob(".tidemark/log/of-*.parted-*"))) == len(groups) == 3
    everything_is_held(centre)
    logs_tell_the_catalog(centre)
    centre.away = {slaves(centre)[1]}
    centre.land(2)
    centre.load()
    left = resync_member(centre.app, centre.receiver, node)
    assert centre.header not in [group for one in left.done for group in one.groups]
    assert left.exit_code == NoQuorumError.kind and centre.at(node)


@pytest.mark.full
def test_a_member_that_the_others_need_is_not_taken_anew(centre: LoadedCentre) -> None:
    node = slaves(centre)[0]
    centre.away = {slaves(centre)[1]}
    centre.land(2)
    centre.load()
    with pytest.raises(NoQuorumError, match=f"everything without node {node}"):
        resync_member(centre.app, centre.receiver, node, centre.header)
    assert centre.at(node) and centre.rows()


@pytest.mark.full
def test_between_two_steps_of_a_resync_the_member_is_unsynced(centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch) -> None:
    node = slaves(centre)[0]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidemark.cluster.nodes.folder.NodeFolder.set_aside", die)
    with pytest.raises(KeyboardInterrupt):
        resync_member(centre.app, centre.receiver, node, centre.header)
    monkeypatch.undo()
    assert roles(centre)[node] == "unsynced"
    recover_members(centre.app, centre.receiver)
    assert roles(centre)[node] == "slave"
    everything_is_held(centre)


def test_a_master_is_forced_where_too_few_members_are_left(centre: LoadedCentre) -> None:
    kept = slaves(centre)[0]
    lost = set(NODES) - {kept}
    centre.away = lost
    centre.land(2)
    with pytest.raises(NoQuorumError):
        centre.load()
    risk = find_risk(centre.app, centre.receiver, centre.header).describe()
    assert kept in risk and all(node in risk for node in lost)
    assert [one.node for one in force_group(centre.app, centre.receiver, centre.header).done] == [kept]
    assert force_group(centre.app, centre.receiver, centre.header).done == ()
    assert (group(centre).master, group(centre).in_step, audited(centre, "replica.force")) == (kept, (kept,), 1)
    with pytest.raises(NoQuorumError):
        centre.load()
    centre.away = set()
    assert centre.load().exit_code == 0
    recover_members(centre.app, centre.receiver)
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_a_forced_master_that_lacks_acknowledged_records_is_told_again_what_the_ledger_has(centre: LoadedCentre) -> None:
    kept = slaves(centre)[0]
    centre.away = {kept}
    centre.land(2)
    centre.load()
    version = group(centre).settled[1]
    centre.away = set(NODES) - {kept}
    assert f"to {version} were acknowledged" in find_risk(centre.app, centre.receiver, centre.header, kept).describe()
    assert force_group(centre.app, centre.receiver, centre.header, kept).done
    centre.away = set()
    housekeep(centre.app, centre.receiver)
    recover_members(centre.app, centre.receiver)
    assert len(centre.rows()) == 2
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_a_group_that_can_get_a_master_is_not_forced(centre: LoadedCentre) -> None:
    before = group(centre)
    assert force_group(centre.app, centre.receiver, centre.header, slaves(centre)[0]).done == ()
    assert group(centre) == before and audited(centre, "replica.force") == 0


@pytest.mark.full
def test_a_wiped_member_comes_back_by_its_files_and_then_its_log(centre: LoadedCentre) -> None:
    node = slaves(centre)[0]
    shutil.rmtree(centre.node(node) / "data")
    shutil.rmtree(centre.node(node) / folder_of(centre.header))
    assert [one.files for one in resync_member(centre.app, centre.receiver, node, centre.header).done] == [1]
    everything_is_held(centre)
    logs_tell_the_catalog(centre)
