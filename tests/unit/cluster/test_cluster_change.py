"""Adding, removing and rebalancing nodes through the doors: what is where in the end, what is refused, what is undone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.memory_store import MemoryStore
from tests.moving_world import RECEIVER, MovingWorld, put
from tidemark.cluster.health.repair import repair_cluster
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster, plan_change, roll_back
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.replicas.forward import commit_forwarded, forward_files
from tidemark.errors import (
    DiskFullError,
    LeaseHeldError,
    NoQuorumError,
    NotFoundError,
    PermanentError,
    RetryableError,
    StaleEpochError,
    UnreachableError,
    UsageError,
)
from tidemark.ledger.leases import Leases, this_process
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.settings.model import ClusterSettings

ADD = Wanted("add", "n4")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    yield MovingWorld(tmp_path)


@pytest.fixture
def three(world: MovingWorld) -> MovingWorld:
    """Three nodes, files of two databases over some partitions, one over three of them, one with mods."""
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    for partition in range(4):
        world.put("root.sg", partition)
    world.put("root.other", 1, mods="deletion")
    world.put("root.sg", 4, 6)
    return world


def asked(world: MovingWorld, wanted: Wanted, wait: bool = True) -> str:
    with world.app() as app:
        return change_nodes(app, world.receiver, wanted, wait=wait).state


def test_what_the_receiver_had_comes_to_its_first_nodes(world: MovingWorld) -> None:
    for partition in range(6):
        world.put("root.sg", partition, mods="deletion" if partition == 2 else "")
    with world.app(nodes=world.names) as app:
        result = init_cluster(app, world.receiver)
    assert (result.epoch, result.state) == (1, "done") and result.moved_slots > 1 and result.moved_bytes > 0
    world.settled()
    with world.app(nodes=world.names) as app:
        assert init_cluster(app, world.receiver) == result
    with world.app(nodes=(*world.names, "n9")) as app, pytest.raises(UsageError, match="has its nodes already, and n9"):
        init_cluster(app, world.receiver)


@pytest.mark.full
def test_a_node_joins_and_one_leaves_and_comes_back(three: MovingWorld) -> None:
    with three.app() as app:
        planned = plan_change(app, three.receiver, ADD)
        assert plan_change(app, three.receiver, ADD).as_json() == planned.as_json()
        result = change_nodes(app, three.receiver, ADD)
    assert (result.epoch, result.state, result.moved_slots) == (2, "done", planned.slots)
    assert result.moved_bytes >= planned.bytes  # mods have no size in the catalog
    three.settled()
    assert asked(three, Wanted("remove", "n1")) == "done"
    three.settled()
    assert asked(three, Wanted("add", "n1")) == "done"
    assert asked(three, Wanted("rebalance")) == "done"
    three.settled()
    assert three.epoch == 4, "nothing was uneven"


def test_a_plan_says_what_comes_to_whom(three: MovingWorld) -> None:
    with three.app() as app:
        report = plan_change(app, three.receiver, ADD).as_json()
    assert report["epoch"] == 2 and report["slots"] == sum(move["slots"] for move in report["moves"])
    assert report["bytes"] == sum(move["bytes"] for move in report["moves"]) == sum(n["bytes"] for n in report["nodes"])
    assert {"n4"} <= {node["node"] for node in report["nodes"]} and report["seconds"] > 0
    assert all(set(move) == {"slots", "ranges", "from", "to", "bytes"} for move in report["moves"])
    three.settled()


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted("add", "n1", "file:///elsewhere"), "in the settings"),
        (Wanted("add", "n9"), "nothing says where"),
        (Wanted("add", "n4", "file:///elsewhere"), "in the settings"),
        (Wanted("add", "n9", "sftp://host/folder"), "needs its server's key"),
        (Wanted("remove", "n9"), "no node of the cluster"),
        (Wanted("grow", "n4"), "no change of the nodes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(three: MovingWorld, wanted: Wanted, words: str) -> None:
    with three.app() as app:
        with pytest.raises(UsageError, match=words):
            change_nodes(app, three.receiver, wanted)
        with pytest.raises(UsageError, match=words):
            plan_change(app, three.receiver, wanted)
    assert three.sql("SELECT kind FROM cluster_change") == [("init",)]
    three.settled()


@pytest.mark.full
def test_no_node_leaves_where_all_are_needed(three: MovingWorld) -> None:
    assert asked(three, Wanted("remove", "n3")) == "done"
    with pytest.raises(UsageError, match="none of them can leave"):
        asked(three, Wanted("remove", "n2"))


def test_a_receiver_without_nodes_says_so(world: MovingWorld) -> None:
    with pytest.raises(NotFoundError, match="no nodes yet"):
        asked(world, ADD)
    world.cluster = replace(world.cluster, replicas=4)
    with world.app(nodes=world.names) as app, pytest.raises(UsageError, match="as many nodes"):
        init_cluster(app, world.receiver)
    assert world.sql("SELECT * FROM cluster_change") == []


def test_a_joining_node_that_is_away_or_anothers_changes_nothing(three: MovingWorld) -> None:
    three.away = {"n4"}
    with pytest.raises(UnreachableError, match="n4") as told:
        asked(three, ADD)
    assert "the same command again" in told.value.hint
    three.away = set()
    NodeFolder(three.stores["n4"], "other").claim_folder("another cluster")
    with pytest.raises(PermanentError, match="of cluster another cluster"):
        asked(three, ADD)
    assert three.sql("SELECT node FROM cluster_node ORDER BY node") == [("n1",), ("n2",), ("n3",)]
    assert three.sql("SELECT kind FROM cluster_change") == [("init",)]


def test_a_node_without_room_changes_nothing(three: MovingWorld) -> None:
    three.stores["n4"].free = 10
    with pytest.raises(DiskFullError, match="node n4 has room for 10 bytes"):
        asked(three, ADD)
    assert three.sql("SELECT kind FROM cluster_change") == [("init",)]
    three.settled()


@pytest.mark.full
def test_one_change_at_a_time(three: MovingWorld) -> None:
    assert asked(three, ADD, wait=False) == "swapped"
    with pytest.raises(RetryableError, match=r"add n4.*is swapped"):
        asked(three, Wanted("add", "n5"))
    with pytest.raises(RetryableError, match="n4 is being filled"):
        asked(three, Wanted("remove", "n4"))
    three.audit()
    assert asked(three, ADD) == "done"
    three.settled()


def test_two_administrators_at_once_one_wins(three: MovingWorld) -> None:
    with three.app() as app, Leases(app.ledger, this_process()).hold_lease(f"cluster:{RECEIVER}", "add-by-the-other"):
        for attempt in (
            lambda: asked(three, ADD),
            lambda: migrate_slots(app, three.receiver),
            lambda: roll_back(app, three.receiver),
            lambda: repair_cluster(app, three.receiver),
        ):
            with pytest.raises(LeaseHeldError, match="add-by-the-other"):
                attempt()
    three.settled()


def test_the_second_administrator_hears_which_change_goes_on(three: MovingWorld) -> None:
    assert asked(three, ADD, wait=False) == "swapped"
    with three.app() as app, Leases(app.ledger, this_process()).hold_lease(f"cluster:{RECEIVER}", "migrate-1"):
        with pytest.raises(LeaseHeldError, match=r"“add n4” of .*, is swapped: .*migrate-1") as told:
            asked(three, Wanted("remove", "n1"))
    assert "./tidemark cluster show" in told.value.hint


def quorum_of_two(world: MovingWorld) -> None:
    world.cluster = replace(world.cluster, quorum=2)


@pytest.mark.full
def test_without_a_quorum_nothing_is_swapped_and_it_is_rolled_back(three: MovingWorld) -> None:
    quorum_of_two(three)
    three.away = {"n2"}
    for _ in range(2):
        with pytest.raises(NoQuorumError, match="n2"):
            asked(three, ADD)
    assert three.sql("SELECT kind, state FROM cluster_change ORDER BY begun") == [("init", "done"), ("add", "planned")]
    three.audit()
    with three.app() as app:
        assert roll_back(app, three.receiver).state == "rolled_back"
    three.away = set()
    three.settled()
    assert not three.stores["n4"].list_files([""]).entries
    with three.app() as app:
        assert roll_back(app, three.receiver).state == "rolled_back", "said again"
    assert asked(three, Wanted("add", "n5")) == "done", "another change may have the epoch"
    three.settled()
    with three.app() as app, pytest.raises(NotFoundError):
        roll_back(app, three.receiver)


def test_a_node_that_left_and_comes_back_in_vain_has_left_again(three: MovingWorld) -> None:
    """Its files wait for their grace still: its folder stays its own until they are gone."""
    three.cluster = replace(three.cluster, grace_hours=1)
    assert asked(three, Wanted("remove", "n1")) == "done"
    had = [entry.path for entry in three.stores["n1"].list_files(["data"]).entries]
    assert had
    quorum_of_two(three)
    three.away = {"n2"}
    with pytest.raises(NoQuorumError, match="n2"):
        asked(three, Wanted("add", "n1"))
    three.away = set()
    with three.app() as app:
        assert roll_back(app, three.receiver).state == "rolled_back"
        assert migrate_slots(app, three.receiver).left == 0
    assert three.sql("SELECT state FROM cluster_node WHERE node = 'n1'") == [("left",)]
    assert [entry.path for entry in three.stores["n1"].list_files(["data"]).entries] == had

    three.cluster = replace(three.cluster, grace_hours=0)
    with three.app() as app:
        migrate_slots(app, three.receiver)
    assert not three.stores["n1"].list_files([""]).entries
    three.settled()


def test_a_node_that_never_comes_back_may_be_removed_with_one_less_for_a_quorum(three: MovingWorld) -> None:
    quorum_of_two(three)
    three.away = {"n2"}
    with pytest.raises(NoQuorumError) as told:
        asked(three, Wanted("remove", "n2"))
    assert "n2 is lost for good: [cluster] quorum = 1 in the settings until it has left" in told.value.hint
    three.cluster = replace(three.cluster, quorum=1)
    assert asked(three, Wanted("remove", "n2")) == "done"
    three.audit()


def test_a_change_of_a_node_that_the_settings_do_not_have_goes_on_by_its_name(three: MovingWorld) -> None:
    quorum_of_two(three)
    known, url = three.names, "file:///n9"
    three.stores[url] = MemoryStore("n9")
    three.away = {"n2"}
    with three.app(nodes=known) as app, pytest.raises(NoQuorumError):
        change_nodes(app, three.receiver, Wanted("add", "n9", url))
    three.away = set()
    with three.app(nodes=known) as app:
        assert change_nodes(app, three.receiver, Wanted("add", "n9")).state == "done"
        assert change_nodes(app, three.receiver, Wanted("add", "n9")).state == "done", "said again"
        assert change_nodes(app, three.receiver, Wanted("add", "n9", url)).state == "done"
        with pytest.raises(UsageError, match="n9 is a node of the cluster already, at file:///n9"):
            change_nodes(app, three.receiver, Wanted("add", "n9", "file:///n10"))


def test_without_a_quorum_it_goes_on_once_the_node_is_back(three: MovingWorld) -> None:
    quorum_of_two(three)
    three.away = {"n2"}
    with pytest.raises(NoQuorumError):
        asked(three, ADD)
    three.away = set()
    assert asked(three, ADD) == "done"
    three.settled()


def test_what_is_in_force_is_not_rolled_back(three: MovingWorld) -> None:
    asked(three, ADD, wait=False)
    with three.app() as app, pytest.raises(UsageError, match="is swapped: its table is in force, it cannot be rolled back"):
        roll_back(app, three.receiver)


@pytest.mark.full
def test_a_node_that_was_away_hears_of_the_table_later(three: MovingWorld) -> None:
    three.away = {"n2"}
    assert asked(three, ADD, wait=False) == "swapped"
    assert three.sql("SELECT epoch FROM cluster_node WHERE node = 'n2'") == [(1,)]
    three.away = set()
    assert asked(three, ADD) == "done"
    three.settled()


def test_a_node_that_was_away_all_the_time_hears_of_the_table_when_it_is_back(three: MovingWorld) -> None:
    three.away = {"n2"}
    assert asked(three, Wanted("rebalance")) == "done", "nothing moves"
    three.away = set()
    with three.app() as app:
        migrate_slots(app, three.receiver)
    three.settled()


def test_a_dead_node_is_removed_and_its_slots_come_from_the_others(three: MovingWorld) -> None:
    three.away = {"n2"}
    assert asked(three, Wanted("remove", "n2")) == "done"
    three.audit()
    left = three.sql("SELECT count(*) FROM node_copy WHERE node = 'n2'")
    assert left[0][0] > 0, "they are removed when it is back, should it come back soon"
    with three.app() as app, app.ledger.write() as connection:
        connection.execute(sa.text("UPDATE cluster_node SET at = at - 8 * 86400 WHERE node = 'n2'"))
    with three.app() as app:
        migrate_slots(app, three.receiver)
    three.stores["n2"] = MemoryStore("n2")  # it never comes back
    three.settled()


def test_a_node_that_has_left_has_left(three: MovingWorld) -> None:
    asked(three, Wanted("remove", "n2"))
    before = three.sql("SELECT * FROM cluster_change")
    assert asked(three, Wanted("remove", "n2")) == "done"
    assert three.sql("SELECT * FROM cluster_change") == before
    three.settled()


def test_a_node_that_was_dead_when_it_left_is_cleaned_when_it_is_back(three: MovingWorld) -> None:
    three.away = {"n2"}
    assert asked(three, Wanted("remove", "n2")) == "done"
    three.away = set()
    with three.app() as app:
        migrate_slots(app, three.receiver)
    three.settled()


def test_a_request_is_answered_again_and_not_done_again(three: MovingWorld) -> None:
    wanted = Wanted("add", "n4", request="run-7")
    with three.app() as app:
        first = change_nodes(app, three.receiver, wanted)
        assert change_nodes(app, three.receiver, wanted) == first
    three.settled()


@pytest.mark.full
def test_who_routed_by_the_table_before_commits_nothing(three: MovingWorld) -> None:
    with three.app() as app:
        cluster = Cluster.open(app, three.receiver)
        assert cluster is not None
        with app.receiver_store(three.receiver) as store:
            file = replace(three.put("root.sg", 9), location="data/late.tsfile", partition_from=2, partition_to=2)
            store.publish(file.location, store.read(three.put("root.sg", 9).location))
            late = forward_files(cluster, [file], store)
            asked(three, ADD)
            with pytest.raises(StaleEpochError), app.ledger.write() as connection:
                catalog_rows.add_file(connection, file, [])
                commit_forwarded(connection, cluster, late)
    assert ("data/late.tsfile",) not in three.sql("SELECT location FROM catalog_file")


@pytest.mark.full
def test_loading_goes_on_while_slots_move(three: MovingWorld) -> None:
    asked(three, ADD, wait=False)
    with three.app() as app:
        for partition in range(20, 26):
            put(app, three.receiver, "root.new", partition, partition, "", "")
    three.audit()
    assert asked(three, ADD) == "done"
    three.settled()


def test_a_cluster_of_one_node_grows(tmp_path: Path) -> None:
    world = MovingWorld(
        tmp_path, ("n1",), ("n2",), ClusterSettings(replicas=1, quorum=1, slots=4, grace_hours=0, cache_bytes=0)
    )
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    for partition in range(4):
        world.put("root.sg", partition)
    assert asked(world, Wanted("add", "n2")) == "done"
    world.settled()
    with world.app() as app:
        assert migrate_slots(app, world.receiver).state == ""


def test_who_missed_a_file_gets_it_though_its_slot_goes_to_another_group_of_the_same_nodes(tmp_path: Path) -> None:
    by_bytes = ClusterSettings(replicas=2, quorum=1, slots=6, grace_hours=0, cache_bytes=0, balance="bytes")
    world = MovingWorld(tmp_path, ("n1", "n2"), (), by_bytes)
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    with world.app() as app:
        table = world.open(app).table
    slots = {table.route_data("root.b", partition).slot: partition for partition in range(40)}
    mine = [partition for slot, partition in sorted(slots.items()) if table.owners[slot] == table.owners[0]]
    world.away = {"n2"}
    for partition in mine:  # all of it in slots of one header: some of them go to the other one
        world.put("root.b", partition, content=f"{partition}" * 1000)
    with world.app() as app, pytest.raises(RetryableError, match="n2"):
        change_nodes(app, world.receiver, Wanted("rebalance"))
    world.audit()
    world.away = set()
    assert asked(world, Wanted("rebalance")) == "done"
    handed = [slot for (slot,) in world.sql("SELECT slot FROM cluster_move WHERE epoch = 2")]
    for slot, location in world.sql("SELECT slot, location FROM node_copy WHERE node = 'n1'"):
        assert slot not in handed or world.digest("n2", str(location))
    assert handed
