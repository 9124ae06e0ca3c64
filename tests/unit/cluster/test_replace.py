"""A node that stays away leaves the cluster, and others take its places; nothing is done where that would cost a quorum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tidemark.cluster.health.watch import find_due, watch_groups
from tidemark.cluster.membership.change import Wanted, roll_back
from tidemark.cluster.membership.replace import Replaced, choose_changes, replace_away
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.core.placement import Kept
from tidemark.cluster.replicas.core.roles import Group, LogEnd, Member, Position, Role
from tidemark.errors import NoQuorumError, RetryableError, UnreachableError
from tidemark.ledger.cluster.node_watch import WatchRow
from tidemark.proof.cluster.replicas import show_replicas
from tidemark.proof.explanation import Explanation
from tidemark.proof.prove import why
from tidemark.settings.model import ClusterSettings, NodeSettings
from tidemark.stores.local import LocalStore

HOUR = 3600.0
END = LogEnd(Position(1, 5), 1)


def group_of(**roles: Role) -> Group:
    return Group(tuple(Member(name, role, END) for name, role in roles.items()), 2, committed=END.position)


def by(node: str, gone: str = "n2") -> Wanted:
    return Wanted("replace", node, gone=gone)


HOURLY = ClusterSettings(replicas=3, replace_hours=1)
AWAY = group_of(n1=Role.MASTER, n2=Role.OFFLINE, n3=Role.SLAVE)


@pytest.mark.parametrize(
    ("groups", "ring", "spares", "expected"),
    [
        ({"n1": AWAY}, ("n1", "n2", "n3"), ("n5", "n4"), (by("n4"), by("n5"))),
        ({"n1": AWAY}, ("n1", "n2", "n3", "n4"), (), (Wanted("remove", "n2"),)),
        ({"n1": AWAY}, ("n1", "n2", "n3", "n4"), ("n5",), (Wanted("remove", "n2"),)),
        ({"n1": AWAY}, ("n1", "n2", "n3"), (), f"group n1: {Kept.NO_SPARE.value}"),
        (
            {"n1": AWAY, "n2": group_of(n2=Role.OFFLINE, n3=Role.SLAVE, n1=Role.SLAVE)},
            ("n1", "n2", "n3", "n4"),
            (),
            f"group n2: {Kept.NO_MASTER.value}",
        ),
        (
            {"n1": group_of(n1=Role.MASTER, n2=Role.OFFLINE, n3=Role.UNSYNCED)},
            ("n1", "n2", "n3"),
            ("n4",),
            f"group n1: {Kept.BELOW_QUORUM.value}",
        ),
        ({"n3": group_of(n3=Role.UNSYNCED, n4=Role.SLAVE)}, ("n1", "n2", "n3", "n4"), (), (Wanted("remove", "n2"),)),
    ],
)
def test_which_change_comes_next(
    groups: dict[str, Group], ring: tuple[str, ...], spares: tuple[str, ...], expected: tuple[Wanted, ...] | str
) -> None:
    asked = choose_changes(groups, "n2", ring, spares, {"n2": 2 * HOUR}, silent={"n2"}, settings=HOURLY)
    assert asked == expected


def test_no_node_leaves_while_another_one_is_away_to_which_its_slots_would_go() -> None:
    ring = ("n1", "n2", "n3", "n4")
    told = choose_changes({"n1": AWAY}, "n2", ring, (), {"n2": 2 * HOUR}, silent={"n2", "n4"}, settings=HOURLY)
    assert told == "node n4 does not answer either, and what n2 had may belong there"


def test_who_is_due() -> None:
    seen = {name: WatchRow(name, misses, since=1.0, at=1.0 + hours * HOUR) for name, misses, hours in SEEN}
    settings = ClusterSettings(misses=3, replace_hours=1)
    assert find_due(seen, ("n1", "n2", "n3", "n4"), settings) == {"n2": 3 * HOUR, "n1": HOUR}
    assert find_due(seen, ("n1", "n2"), replace(settings, replace_hours=4)) == {}
    assert find_due(seen, ("n1", "n2"), replace(settings, replace_hours=0)) == {}


SEEN = (("n1", 3, 1), ("n2", 9, 3), ("n3", 2, 3), ("n4", 0, 0), ("n9", 9, 9))  # node, missed rounds, hours


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    """Three nodes, each with a log, and a fourth one in the settings."""
    made = LoadedCentre(tmp_path)
    made.land(1)
    made.load()
    with made.cluster() as cluster:
        record_slots(cluster)
    assert made.app.settings.cluster is not None
    nodes = {name: NodeSettings(name, f"file://{made.node(name)}") for name in ("n1", "n2", "n3", "n4")}
    cluster = replace(made.app.settings.cluster, replace_hours=1, grace_hours=0)
    made.app.settings = replace(made.app.settings, cluster=cluster, nodes=nodes)
    return made


def stay_away(centre: LoadedCentre, node: str, hours: float) -> None:
    """The watch misses a node for so long."""
    centre.away = {node}
    for _ in range(3):
        watch_groups(centre.app, centre.receiver)
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE node_watch SET since = since - {hours * HOUR} WHERE misses > 0")
    watch_groups(centre.app, centre.receiver)


def pause(centre: LoadedCentre, hours: float) -> None:
    """Nothing runs for so long."""
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE node_watch SET since = since - {hours * HOUR}, at = at - {hours * HOUR}")


@pytest.mark.full
def test_a_node_that_stays_away_is_replaced_by_one_of_the_settings(centre: LoadedCentre) -> None:
    gone = centre.header  # a master
    stay_away(centre, gone, 0.5)
    assert replace_away(centre.app, centre.receiver) == Replaced()
    stay_away(centre, gone, 1)
    assert replace_away(centre.app, centre.receiver, wait=False) == Replaced(gone, f"replace {gone} by n4", "swapped")
    centre.land(2)
    assert centre.load().exit_code == 0  # while slots move
    assert replace_away(centre.app, centre.receiver) == Replaced(gone, f"replace {gone} by n4", "done")
    watch_groups(centre.app, centre.receiver)
    assert replace_away(centre.app, centre.receiver) == Replaced()
    with centre.cluster() as cluster:
        assert gone not in cluster.table.ring and len(cluster.table.ring) == 3
        record_slots(cluster)
    assert len(centre.rows()) == 2
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_nobody_is_replaced_where_a_group_would_lose_its_quorum_or_a_change_is_open(centre: LoadedCentre) -> None:
    gone, other = "n2", "n3"
    centre.away = {other}
    centre.land(2)
    centre.load()
    stay_away(centre, gone, 1)
    with centre.app.ledger.write() as connection:  # it fell out of step, and has nothing to show yet
        connection.exec_driver_sql(f"""UPDATE group_log SET in_step = '["n1", "{gone}"]'""")
    assert replace_away(centre.app, centre.receiver).why.endswith(Kept.BELOW_QUORUM.value)
    assert centre.sql("SELECT COUNT(*) FROM cluster_change") == [(0,)]


def spare_nodes(centre: LoadedCentre, *names: str) -> None:
    nodes = {name: NodeSettings(name, f"file://{centre.node(name)}") for name in ("n1", "n2", "n3", *names)}
    centre.app.settings = replace(centre.app.settings, nodes=nodes)


def test_the_first_node_that_can_join_takes_the_place(centre: LoadedCentre) -> None:
    spare_nodes(centre, "n4", "n5", "n6")
    gone = centre.header
    stay_away(centre, gone, 1)
    centre.away = {gone, "n4"}
    NodeFolder(LocalStore(str(centre.node("n5"))), "n5").claim_folder("another cluster")
    assert replace_away(centre.app, centre.receiver, wait=False) == Replaced(gone, f"replace {gone} by n6", "swapped")
    assert centre.sql("SELECT kind, node, gone, state FROM cluster_change") == [("replace", "n6", gone, "swapped")]


def test_where_no_node_can_join_each_is_named_with_its_reason_and_nothing_is_recorded(centre: LoadedCentre) -> None:
    spare_nodes(centre, "n4", "n5")
    gone = centre.header
    stay_away(centre, gone, 1)
    centre.away = {gone, "n4", "n5"}
    with pytest.raises(RetryableError, match=rf"^{gone} stays away, and no node can take its places: n4: .*; n5: "):
        replace_away(centre.app, centre.receiver)
    assert centre.sql("SELECT COUNT(*) FROM cluster_change") == [(0,)]


def test_a_round_of_the_watch_names_who_is_due_and_replaces_nobody(centre: LoadedCentre) -> None:
    gone = centre.header
    stay_away(centre, gone, 0.5)
    assert watch_groups(centre.app, centre.receiver).due == {}
    stay_away(centre, gone, 2)
    assert watch_groups(centre.app, centre.receiver).due == {gone: 2}
    assert centre.sql("SELECT COUNT(*) FROM cluster_change") == [(0,)]


def test_hours_in_which_nobody_looked_do_not_count(centre: LoadedCentre) -> None:
    gone = centre.header
    stay_away(centre, gone, 0.5)
    pause(centre, 1.5)
    assert watch_groups(centre.app, centre.receiver).due == {gone: 2}, "a timer may run each hour"
    pause(centre, 48)
    assert "the watch looked 48 h ago" in replace_away(centre.app, centre.receiver).why, "it may be back since"
    watched = watch_groups(centre.app, centre.receiver)
    assert (watched.due, watched.offline[gone]) == ({}, 6)
    assert replace_away(centre.app, centre.receiver) == Replaced()
    stay_away(centre, gone, 1)
    assert watch_groups(centre.app, centre.receiver).due == {gone: 1}


def plan_only(centre: LoadedCentre, gone: str) -> None:
    """A run that ends behind the record of its change: too few nodes take the table."""
    centre.away = set(centre.app.settings.nodes) - {"n4", "n5"}
    with pytest.raises(NoQuorumError):
        replace_away(centre.app, centre.receiver)
    centre.away = {gone}
    roll_back(centre.app, centre.receiver)


def test_a_change_that_was_rolled_back_is_not_made_again_and_no_node_leaves_for_it(centre: LoadedCentre) -> None:
    gone = centre.header
    stay_away(centre, gone, 1)
    plan_only(centre, gone)
    assert replace_away(centre.app, centre.receiver) == Replaced(
        gone,
        why=f"replace {gone} by n4 was rolled back: ./tidemark cluster add or remove, by hand, or write"
        " another [nodes.NAME]",
    )
    assert centre.sql("SELECT kind, node, state FROM cluster_change") == [("replace", "n4", "rolled_back")]
    spare_nodes(centre, "n4", "n5")
    assert replace_away(centre.app, centre.receiver) == Replaced(gone, f"replace {gone} by n5", "done"), "another one may"


def plan_and_die(centre: LoadedCentre, gone: str) -> None:
    """A run that ends behind the record of its change, whose node then dies."""
    centre.away = set(centre.app.settings.nodes) - {"n4", "n5"}
    with pytest.raises(NoQuorumError):
        replace_away(centre.app, centre.receiver)
    assert centre.sql("SELECT node, state FROM cluster_change") == [("n4", "planned")]
    centre.away = {gone, "n4"}


def test_a_join_whose_node_dies_is_given_up_and_another_node_takes_the_place(centre: LoadedCentre) -> None:
    spare_nodes(centre, "n4", "n5")
    gone = centre.header
    stay_away(centre, gone, 1)
    plan_and_die(centre, gone)
    assert replace_away(centre.app, centre.receiver, wait=False) == Replaced(gone, f"replace {gone} by n5", "swapped")
    told = centre.sql("SELECT node, state FROM cluster_change ORDER BY node")
    assert told == [("n4", "rolled_back"), ("n5", "swapped")]
    assert ("cluster.given_up",) in centre.sql("SELECT action FROM audit")


def test_the_only_node_that_can_join_is_asked_again_when_it_is_back(centre: LoadedCentre) -> None:
    gone = centre.header
    stay_away(centre, gone, 1)
    plan_and_die(centre, gone)
    with pytest.raises(UnreachableError):
        replace_away(centre.app, centre.receiver)
    assert centre.sql("SELECT node, state FROM cluster_change") == [("n4", "rolled_back")], "others may change the nodes"
    centre.away = {gone}
    assert replace_away(centre.app, centre.receiver, wait=False) == Replaced(gone, f"replace {gone} by n4", "swapped")


@pytest.fixture
def pair(tmp_path: Path) -> Callable[[int], LoadedCentre]:
    """Groups of two, of three nodes, with this quorum; a fourth node is in the settings."""

    def make(quorum: int) -> LoadedCentre:
        made = LoadedCentre(tmp_path, replicas=2, quorum=quorum)
        made.land(1)
        made.load()
        with made.cluster() as cluster:
            record_slots(cluster)
        set_quorum(made, quorum)
        spare_nodes(made, "n4")
        return made

    return make


def set_quorum(centre: LoadedCentre, quorum: int) -> None:
    assert centre.app.settings.cluster is not None
    cluster = replace(centre.app.settings.cluster, replace_hours=1, quorum=quorum)
    centre.app.settings = replace(centre.app.settings, cluster=cluster)


def test_a_group_of_two_that_can_do_with_one_member_gets_another(pair: Callable[[int], LoadedCentre]) -> None:
    centre = pair(1)
    gone = centre.header
    stay_away(centre, gone, 1)
    assert replace_away(centre.app, centre.receiver) == Replaced(gone, f"remove {gone}", "done")
    left = {"n1", "n2", "n3"} - {gone}
    centre.away |= {min(left)}
    watch_groups(centre.app, centre.receiver)
    assert replace_away(centre.app, centre.receiver) == Replaced(), "not while another node is away"
    centre.away = {gone, "n4"}
    watch_groups(centre.app, centre.receiver)
    assert replace_away(centre.app, centre.receiver).why.startswith("it left, and no node can join for it: n4: ")
    centre.away = {gone}
    assert replace_away(centre.app, centre.receiver) == Replaced(gone, "add n4", "done")
    watch_groups(centre.app, centre.receiver)
    assert replace_away(centre.app, centre.receiver) == Replaced()
    with centre.cluster() as cluster:
        assert set(cluster.table.ring.names) == {*left, "n4"}
    assert len(centre.rows()) == 1


def test_where_the_quorum_is_all_members_the_sentence_says_what_replaces_one(pair: Callable[[int], LoadedCentre]) -> None:
    centre = pair(2)
    gone = centre.header
    stay_away(centre, gone, 1)
    told = (
        f"with a quorum of all 2 replicas nobody replaces {gone} by itself: bring it back, or set [cluster] quorum = 1"
        " until ./tidemark replica replace has done it"
    )
    assert replace_away(centre.app, centre.receiver).why.endswith(told)
    groups = {group.group: group.waits for group in show_replicas(centre.app, centre.receiver).groups}
    assert groups[gone].endswith(told) and [header for header, waits in groups.items() if told not in waits]
    explained = why(centre.app, f"node:{gone}")
    assert isinstance(explained, Explanation) and explained.if_you_wait.endswith(told)
    set_quorum(centre, 1)
    watch_groups(centre.app, centre.receiver)
    assert replace_away(centre.app, centre.receiver) == Replaced(gone, f"remove {gone}", "done")
    assert len(centre.rows()) == 1
