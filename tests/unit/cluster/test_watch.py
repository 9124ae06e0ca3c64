"""A round of the watch: who is away for too long loses its groups, who fell out of step comes back, masters go home."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog, one_of_two_schedulers_acts
from tidemark.cluster.health.watch import Watched, watch_groups
from tidemark.cluster.replicas.members import folder_of
from tidemark.errors import LeaseHeldError, NotFoundError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.cluster.node_watch import note_round, read_watch
from tidemark.ledger.leases import Identity, Leases, assert_held
from tidemark.proof.explanation import Explanation
from tidemark.proof.prove import why

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    centre = LoadedCentre(tmp_path)
    centre.land(1)
    centre.load()
    return centre


def watch(centre: LoadedCentre, *, files: bool = True) -> Watched:
    return watch_groups(centre.app, centre.receiver, files=files)


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def done(watched: Watched) -> tuple[object, ...]:
    """What a round changed."""
    return (watched.masters, watched.home, watched.recovered, watched.files, watched.waiting)


NOTHING = ({}, {}, {}, {}, {})


def test_a_round_over_members_in_step_changes_nothing(centre: LoadedCentre) -> None:
    before = group(centre)
    watched = watch(centre)
    assert (done(watched), watched.exit_code, watched.nodes, watched.groups) == (NOTHING, 0, 3, 3)
    assert group(centre) == before


def test_a_master_that_missed_three_rounds_is_replaced_and_comes_back_as_slave_and_then_home(centre: LoadedCentre) -> None:
    home = group(centre).master
    centre.away = {home}
    for missed in (1, 2):
        watched = watch(centre)
        assert (done(watched), watched.offline) == (NOTHING, {})
        assert watched.waits[centre.header] == f"its master {home} missed {missed} of 3 rounds"
    watched = watch(centre)
    assert watched.offline == {home: 3} and watched.exit_code == 0
    row = group(centre)
    assert watched.masters == {centre.header: row.master} and row.master != home and row.epoch == 2
    assert done(watch(centre)) == NOTHING
    centre.land(2)
    centre.load()
    centre.away = set()
    watched = watch(centre)
    assert (watched.masters, watched.home, watched.offline) == ({}, {}, {}) and watched.files == {home: 1}
    assert set(watched.recovered[home]) >= {centre.header}
    assert group(centre).in_step == NODES
    assert watch(centre).home == {centre.header: home}, "it answered two rounds"
    assert (group(centre).master, group(centre).epoch) == (home, 3)
    assert done(watch(centre)) == NOTHING
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_a_member_that_lost_its_log_is_unsynced_and_recovered_in_the_same_round(centre: LoadedCentre) -> None:
    lost = next(node for node in NODES if node != group(centre).master)
    shutil.rmtree(centre.node(lost) / folder_of(centre.header))
    assert watch(centre).recovered == {lost: (centre.header,)}
    assert done(watch(centre)) == NOTHING
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_a_master_that_lost_its_log_is_replaced_at_once(centre: LoadedCentre) -> None:
    lost = group(centre).master
    shutil.rmtree(centre.node(lost) / folder_of(centre.header))
    watched = watch(centre)
    assert watched.masters.keys() == {centre.header} and watched.masters[centre.header] != lost
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_files_that_a_member_lacks_are_left_to_who_recovers_it(centre: LoadedCentre) -> None:
    late = next(node for node in NODES if node != group(centre).master)
    centre.away = {late}
    centre.land(2)
    centre.load()
    centre.away = set()
    watched = watch(centre, files=False)
    assert (watched.files, watched.waiting) == ({}, {late: "1 file"})
    assert watch(centre).files == {late: 1}
    everything_is_held(centre)


@pytest.mark.full
def test_a_group_without_enough_members_has_no_master_and_says_so(centre: LoadedCentre) -> None:
    centre.away = set(NODES[1:])
    for _ in range(3):
        watched = watch(centre)
    assert watched.exit_code == (30 if group(centre).master in centre.away else 0)
    centre.away = set(NODES) - {next(node for node in NODES if node != group(centre).master)}
    for _ in range(3):
        watched = watch(centre)
    told = watched.as_json()
    assert watched.exit_code == 30 and not told["ok"] and "makes one of them master" in told["error"]
    centre.away = set()
    assert watch(centre).exit_code == 0
    centre.land(2)
    assert centre.load().exit_code == 0
    logs_tell_the_catalog(centre)


def test_why_says_of_a_group_and_of_a_node_its_role_its_version_and_what_it_waits_for(centre: LoadedCentre) -> None:
    header, version = centre.header, group(centre).settled[1]

    def ask(subject: str) -> Explanation:
        return why(centre.app, subject)

    settled = ask(f"group:{header}")
    assert (settled.state, settled.final) == ("in step", True) and f"version {version} of epoch 1" in settled.evidence[0]
    assert any(f"master of group {header} at version {version}" in line for line in ask(f"node:{header}").evidence)
    late = next(node for node in NODES if node != group(centre).master)
    centre.away = {late}
    centre.land(2)
    centre.load()
    watch(centre)
    away = ask(f"group:{header}")
    assert away.state == "short" and late in away.cause and away.next == f"./tidemark replica recover group:{header}"
    assert any("missed 1 round of the watch" in line for line in away.evidence)
    assert ask(f"node:{late}").state == "away"
    assert any("had no answer 1 times" in line for line in ask(f"node:{late}").evidence)
    centre.away = set()
    assert any(f"unsynced in group {header}" in line for line in ask(f"node:{late}").evidence)
    centre.away = set(NODES) - {late}
    assert ask(f"group:{header}").state == "without master"
    with pytest.raises(NotFoundError, match=f"groups: .*{header}"):
        ask("group:n9")


@pytest.mark.full
def test_a_ledger_that_is_older_than_its_nodes_is_named(centre: LoadedCentre) -> None:
    version = group(centre).settled[1]
    centre.land(2)
    centre.load()
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE group_log SET settled_version = {version} WHERE header = '{centre.header}'")
    watched = watch(centre)
    assert watched.exit_code == 6 and "ledger rebuild" in watched.as_json()["hint"]


def test_of_two_schedulers_one_notes_a_round_and_a_late_one_notes_nothing(centre: LoadedCentre) -> None:
    leases = Leases(centre.app.ledger, Identity("elsewhere", "boot", 1, "start"), ttl=0.2)
    late = leases.acquire_lease(f"watch:{centre.name}", "watch-late")
    with pytest.raises(LeaseHeldError):
        watch(centre)
    while True:  # until its lease is over
        try:
            watch(centre)
            break
        except LeaseHeldError:
            continue
    with pytest.raises(Exception, match="lost"), centre.app.ledger.write() as connection:
        assert_held(connection, late)
        note_round(connection, centre.name, dict.fromkeys(NODES, "asleep"))
    with centre.app.ledger.read() as connection:
        assert [row.misses for row in read_watch(connection, centre.name).values()] == [0, 0, 0]


@pytest.mark.full
def test_of_two_schedulers_that_act_at_the_same_moment_one_gives_a_master(centre: LoadedCentre) -> None:
    one_of_two_schedulers_acts(centre)
