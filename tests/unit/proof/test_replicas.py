"""`replica show`: the roles of each group's members, why they are what they are, and what the group waits for."""

from __future__ import annotations

import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre
from tidemark.cluster.health.operator import recover_members, resync_member
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas.commit import append_change, hold_groups, record_slots
from tidemark.cluster.replicas.core.roles import Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.replicas.records.change import Change, read_entries
from tidemark.ledger.backup import back_up
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.operations.replicas import verify_replicas
from tidemark.proof.cluster.page import render_page
from tidemark.proof.cluster.replicas import GroupReplicasView, describe_election, show_replicas
from tidemark.proof.cluster.show import show_cluster
from tidemark.settings.model import NodeSettings

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    made = LoadedCentre(tmp_path)
    made.land(1)
    made.load()
    return made


def group(centre: LoadedCentre) -> GroupReplicasView:
    """The one group that has files."""
    (found,) = (group for group in show_replicas(centre.app, centre.receiver).groups if group.group == centre.header)
    return found


def roles(view: GroupReplicasView) -> list[Role]:
    return [member.role for member in view.members]


def test_a_group_in_step_has_a_master_and_slaves_at_one_version(centre: LoadedCentre) -> None:
    view = group(centre)
    assert sorted(roles(view)) == [Role.MASTER, Role.SLAVE, Role.SLAVE]
    assert {(member.epoch, member.version) for member in view.members} == {(1, 3)} == {(view.epoch, view.version)}
    assert view.waits == ""


def test_the_clusters_page_draws_each_group_with_roles_and_versions(centre: LoadedCentre) -> None:
    late = next(member.node for member in group(centre).members if member.role is Role.SLAVE)
    centre.away = {late}
    shown = group(centre)
    page = render_page(show_cluster(centre.app, centre.receiver), [shown])
    for member in shown.members:
        version = "" if member.node == late else "<br>version 3, epoch 1"
        assert f"<div class='{member.role.value}'><b>{member.node}: {member.role.value}</b>{version}" in page
    assert f"<b>{late}: offline</b><br>" in page and "nobody answers" in page


def test_who_was_away_is_offline_then_unsynced_then_a_slave(centre: LoadedCentre) -> None:
    late = next(member.node for member in group(centre).members if member.role is Role.SLAVE)

    def seen() -> tuple[Role, str]:
        return next((member.role, member.why) for member in group(centre).members if member.node == late)

    centre.away = {late}
    centre.land(2)
    centre.load()
    assert seen()[0] is Role.OFFLINE and "nobody answers" in seen()[1]
    centre.away = set()
    assert seen() == (Role.UNSYNCED, "it lacks the versions 4 to 4; it gets them with the next record or catch-up")
    centre.land(3)
    centre.load()
    assert seen() == (Role.SLAVE, "")


def test_a_group_without_its_master_says_what_it_waits_for(centre: LoadedCentre) -> None:
    master = next(member.node for member in group(centre).members if member.role is Role.MASTER)
    shutil.rmtree(centre.node(master) / ".tidemark" / "log")
    view = group(centre)
    assert sorted(roles(view)) == [Role.SLAVE, Role.SLAVE, Role.UNSYNCED]
    assert view.waits.startswith("it has no master: ")
    named = view.waits.removeprefix("it has no master: ").partition(" is to become it")[0]
    watch_groups(centre.app, centre.receiver)
    assert [member.node for member in group(centre).members if member.role is Role.MASTER] == [named]


def test_a_group_that_cannot_have_a_master_says_whom_it_misses(centre: LoadedCentre) -> None:
    view = group(centre)
    header, master = centre.header, next(member.node for member in view.members if member.role is Role.MASTER)
    other = next(member.node for member in view.members if member.node != master)
    centre.away = {master, other}
    names = ", ".join(member.node for member in view.members if member.node in centre.away)
    (seen,) = (one for one in show_replicas(centre.app, centre.receiver).groups if one.group == header)
    few = "it has no master: 1 of its 3 members answer, too few to make one"
    assert seen.waits == f"{few}: bring {names} back, or ./tidemark replica force --help"


def test_whom_an_election_waits_for() -> None:
    end, behind = LogEnd(Position(1, 9), 7), LogEnd(Position(1, 8), 6)
    late = (Member("n1", Role.OFFLINE), Member("n2", Role.UNSYNCED, behind), Member("n3", Role.UNSYNCED, behind))
    told = describe_election(Group(late, 2, committed=end.position), consistent=True)
    assert told.startswith("nobody who answers has for sure all that was committed: bring n1 back, or ")
    whole = Group(tuple(Member(name, Role.SLAVE, end) for name in ("n1", "n2", "n3")), 2, committed=end.position)
    assert describe_election(whole, consistent=True).startswith("n1 is to become it")
    assert describe_election(whole, consistent=False) == "a commit goes on; ask again"


def test_a_commit_that_died_and_an_older_ledger_are_told(centre: LoadedCentre) -> None:
    with centre.app.ledger.read() as connection:
        entries = read_entries(connection, catalog_rows.live_files(connection, centre.name))
    with centre.cluster() as cluster, hold_groups(cluster) as lease:
        append_change(cluster, lease, Change(tuple(entries)))
    assert group(centre).waits.startswith("a commit is at work")
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE group_log SET operation = ''")
    assert group(centre).waits == OLDER.format(centre.header)


def read_whole(centre: LoadedCentre) -> dict[str, bool]:
    """Node → whether the ledger knows when its log of the group was read whole."""
    return {member.node: member.log_read is not None for member in group(centre).members}


def test_when_each_log_was_last_read_whole_is_told(centre: LoadedCentre) -> None:
    centre.app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})
    with centre.cluster() as cluster:
        record_slots(cluster)
    assert read_whole(centre) == dict.fromkeys(NODES, False)
    verify_replicas(centre.app, centre.receiver, cached=True)
    watch_groups(centre.app, centre.receiver)
    assert read_whole(centre) == dict.fromkeys(NODES, False), "these read the ends of logs, or of one member"
    before = time.time()
    verify_replicas(centre.app, centre.receiver)
    shown = {member.node: member.as_json()["log_read"] for member in group(centre).members}
    first = {node: datetime.fromisoformat(at).timestamp() for node, at in shown.items()}
    assert all(int(before) <= at <= time.time() for at in first.values()) and len(first) == 3

    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE log_reading SET at = 1000")
    centre.away = {"n3"}
    verify_replicas(centre.app, centre.receiver)
    read = {member.node: member.log_read for member in group(centre).members}
    assert read["n3"] == 1000 and min(read["n1"] or 0, read["n2"] or 0) >= before, "who was away was not read"


@pytest.mark.parametrize("how", ["damaged", "emptied", "resynced", "behind"])
def test_a_log_that_came_anew_was_not_read_yet(centre: LoadedCentre, how: str) -> None:
    app, receiver = centre.app, centre.receiver
    app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})
    with centre.cluster() as cluster:
        record_slots(cluster)
    verify_replicas(app, receiver)
    late = next(member.node for member in group(centre).members if member.role is Role.SLAVE)
    log = centre.node(late) / folder_of(centre.header)
    if how == "damaged":
        first, *_ = sorted(log.iterdir())
        data = first.read_bytes()
        first.write_bytes(data[:MARK_BYTES] + bytes([data[MARK_BYTES] ^ 1]) + data[MARK_BYTES + 1 :])
        assert verify_replicas(app, receiver).exit_code == 20
        assert read_whole(centre) == dict.fromkeys(NODES, True), "it was sound then: it tells since when it may be damaged"
        assert recover_members(app, receiver, late).exit_code == 0
    elif how == "emptied":
        shutil.rmtree(log)
        assert not read_whole(centre)[late]
        watch_groups(app, receiver)
    elif how == "resynced":
        assert resync_member(app, receiver, late, centre.header).exit_code == 0
    else:
        centre.away = {late}
        centre.land(2)
        centre.load()
        centre.away = set()
        assert recover_members(app, receiver).exit_code == 0
    assert set(roles(group(centre))) == {Role.MASTER, Role.SLAVE}
    assert read_whole(centre) == {**dict.fromkeys(NODES, True), late: how == "behind"}
    assert recover_members(app, receiver, f"group:{centre.header}").exit_code == 0
    assert read_whole(centre) == dict.fromkeys(NODES, True), "who is named to recover is read whole"


OLDER = "the nodes are ahead of the ledger in group {}, so it is older than they are: ./tidemark ledger rebuild --replace"


def keep(centre: LoadedCentre, copies: Path) -> None:
    back_up(centre.app.ledger, copies / "copy.db")
    shutil.copytree(centre.root, copies / "receiver")


def restore(centre: LoadedCentre, copies: Path) -> None:
    """The machine of the centre comes from a copy, so its receiver is as old as its ledger. The nodes are other machines."""
    centre.app.ledger.close()
    shutil.rmtree(centre.root)
    shutil.copytree(copies / "receiver", centre.root)
    place = centre.folder / "var" / "ledger.db"
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (place.parent / name).unlink(missing_ok=True)
    shutil.copyfile(copies / "copy.db", place)
    centre.reopen()


@pytest.mark.parametrize("after", ["a load", "a load and another master"])
def test_a_ledger_that_came_from_an_older_copy_says_so_before_anything_is_written(
    centre: LoadedCentre, tmp_path: Path, after: str
) -> None:
    keep(centre, tmp_path)
    centre.land(2)
    centre.load()
    if after != "a load":
        centre.away = {next(member.node for member in group(centre).members if member.role is Role.MASTER)}
        centre.land(3)
        centre.load()
        centre.away = set()
    restore(centre, tmp_path)
    assert group(centre).waits == OLDER.format(centre.header)
    watched = watch_groups(centre.app, centre.receiver)
    assert watched.exit_code == 6 and group(centre).waits == OLDER.format(centre.header)


def test_a_ledger_that_came_from_a_copy_that_is_not_older_names_the_command_that_makes_a_master(
    centre: LoadedCentre, tmp_path: Path
) -> None:
    keep(centre, tmp_path)
    restore(centre, tmp_path)
    view = group(centre)
    assert roles(view) == [Role.SLAVE] * 3 and "./tidemark replica watch" in view.waits
    assert watch_groups(centre.app, centre.receiver).exit_code == 0
    assert sorted(roles(group(centre))) == [Role.MASTER, Role.SLAVE, Role.SLAVE] and group(centre).waits == ""
