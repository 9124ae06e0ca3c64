"""A node that replaces another one stays away too, before it has all: the next change takes the place of the one that waits
for it, and the cluster ends whole. Files come all the while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import d1
from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tests.small_files import source
from tests.unit.cluster.test_replace import spare_nodes, stay_away
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.membership.change import Wanted, change_nodes, plan_change, roll_back
from tidemark.cluster.membership.replace import Replaced, replace_away
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.replicas.commit import record_slots
from tidemark.errors import NoQuorumError, RetryableError, UnreachableError
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import ChangeRow
from tidemark.operations.replicas import verify_replicas
from tidemark.proof.cluster.show import status_of

WEEK = 604_800_000


class WideCentre(LoadedCentre):
    """Its files are of many partitions, so all groups have some."""

    landed = 0

    def come(self, files: int = 8) -> None:
        """So many files come, and are loaded."""
        for _ in range(files):
            self.landed += 1
            self.site.land({source(self.landed): d1((self.landed * WEEK, self.landed))})
        assert self.load().exit_code == 0

    def replace(self, wait: bool = True) -> Replaced:
        return replace_away(self.app, self.receiver, wait=wait)

    def changes(self) -> list[tuple[str, str, str]]:
        return [tuple(row) for row in self.sql("SELECT kind, node, state FROM cluster_change ORDER BY begun, from_epoch")]

    def is_whole(self, *ring: str) -> None:
        """These are the nodes; each file and each log is where it belongs, proved at the nodes themselves."""
        watch_groups(self.app, self.receiver)
        with self.cluster() as cluster:
            assert set(cluster.table.ring.names) == set(ring) and not cluster.table.moving
            record_slots(cluster)
        assert check_cluster(self.app, self.receiver).problems == ()
        assert verify_replicas(self.app, self.receiver).exit_code == 0
        assert len(self.rows()) == self.landed
        logs_tell_the_catalog(self)
        everything_is_held(self)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., WideCentre]:
    """So many nodes with files, each group at three; of those in the settings some are free."""

    def build(nodes: int = 3, spares: tuple[str, ...] = ("n4", "n5")) -> WideCentre:
        made = WideCentre(tmp_path)
        made.come()
        with made.cluster() as cluster:
            record_slots(cluster)
        assert made.app.settings.cluster is not None
        made.app.settings = replace(made.app.settings, cluster=replace(made.app.settings.cluster, grace_hours=0))
        if nodes == 4:
            spare_nodes(made, "n4")
            change_nodes(made.app, made.receiver, Wanted("add", "n4"))
        spare_nodes(made, *spares)
        hourly = replace(made.app.settings.cluster, replace_hours=1)
        made.app.settings = replace(made.app.settings, cluster=hourly)
        return made

    return build


@pytest.mark.parametrize("gone", ["n1", "n2", "n3"])
def test_a_node_that_missed_files_is_replaced_by_one_change(make: Callable[..., WideCentre], gone: str) -> None:
    """Nobody waits for what it lacks: it is a member of no group of the new table."""
    centre = make()
    stay_away(centre, gone, 0.1)
    centre.come()
    stay_away(centre, gone, 1)
    assert centre.replace() == Replaced(gone, f"replace {gone} by n4", "done")
    assert watch_groups(centre.app, centre.receiver).due == {} and centre.replace() == Replaced()
    centre.is_whole("n4", *({"n1", "n2", "n3"} - {gone}))


def die_half_filled(centre: WideCentre, gone: str) -> None:
    """`n4` takes the place of `gone`, and dies for good while it is filled. Files come before and after."""
    stay_away(centre, gone, 1)
    centre.come()
    assert centre.replace(wait=False) == Replaced(gone, f"replace {gone} by n4", "swapped")
    centre.come()
    centre.away = {gone, "n4"}
    with pytest.raises(UnreachableError, match="slots still move: node n4"):
        centre.replace()
    centre.come()


def both_stay_away(centre: WideCentre, gone: str, hours: float) -> None:
    stay_away(centre, "n4", 0)
    centre.away = {gone, "n4"}
    for _ in range(3):
        watch_groups(centre.app, centre.receiver)
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql(f"UPDATE node_watch SET since = since - {hours * 3600} WHERE misses > 0")
    watch_groups(centre.app, centre.receiver)


@pytest.mark.parametrize("gone", ["n1", "n2", "n3"])
def test_another_node_takes_the_place_of_one_that_died_before_it_had_all(make: Callable[..., WideCentre], gone: str) -> None:
    centre = make()
    die_half_filled(centre, gone)
    with pytest.raises(UnreachableError):
        centre.replace()  # not for so long yet: it may come back, and the change goes on
    both_stay_away(centre, gone, 1)
    assert centre.replace(wait=False) == Replaced("n4", "replace n4 by n5", "swapped")
    centre.come()
    assert centre.replace() == Replaced("n4", "replace n4 by n5", "done")
    assert centre.changes() == [("replace", "n4", "superseded"), ("replace", "n5", "done")]
    assert sorted(centre.sql("SELECT node FROM cluster_node WHERE state = 'left'")) == sorted([(gone,), ("n4",)])
    centre.is_whole("n5", *({"n1", "n2", "n3"} - {gone}))
    assert centre.replace() == Replaced()


def test_without_another_node_the_change_waits_says_so_and_goes_on_when_it_is_back(make: Callable[..., WideCentre]) -> None:
    centre = make(spares=("n4",))
    die_half_filled(centre, "n2")
    both_stay_away(centre, "n2", 1)
    told = centre.replace()
    assert (told.node, told.exit_code) == ("n4", 5) and told.why.endswith("no other node")
    centre.away = {"n2"}
    watch_groups(centre.app, centre.receiver)
    assert centre.replace() == Replaced("n2", "replace n2 by n4", "done")
    centre.is_whole("n1", "n3", "n4")


def test_a_node_that_was_written_into_the_settings_meanwhile_takes_the_place(make: Callable[..., WideCentre]) -> None:
    centre = make(spares=("n4",))
    die_half_filled(centre, "n2")
    both_stay_away(centre, "n2", 1)
    assert centre.replace().why
    spare_nodes(centre, "n4", "n5")
    assert centre.replace() == Replaced("n4", "replace n4 by n5", "done")
    centre.is_whole("n1", "n3", "n5")


def test_what_had_come_to_the_dead_node_comes_to_the_next_one_once(make: Callable[..., WideCentre]) -> None:
    """Slots that all had acknowledged before belong to the next change too: their old members may lose them only then."""
    centre = make()
    stay_away(centre, "n2", 1)
    assert centre.replace(wait=False).state == "swapped"
    with centre.cluster() as cluster:
        some = sorted(cluster.table.moving)[::2]
    migrate_slots(centre.app, centre.receiver, slots=some)
    centre.away = {"n2", "n4"}
    both_stay_away(centre, "n2", 1)
    assert centre.replace() == Replaced("n4", "replace n4 by n5", "done")
    centre.is_whole("n1", "n3", "n5")


def test_a_node_that_dies_while_another_one_leaves_is_replaced_in_the_same_way(make: Callable[..., WideCentre]) -> None:
    """Of four nodes one leaves. Another one, that gets slots by that, dies before it has them."""
    centre = make(nodes=4, spares=("n4", "n5"))
    stay_away(centre, "n2", 1)
    assert centre.replace(wait=False) == Replaced("n2", "remove n2", "swapped")
    centre.come()
    centre.away = {"n2", "n4"}
    with pytest.raises(UnreachableError, match="node n4"):
        centre.replace()
    both_stay_away(centre, "n2", 1)
    assert centre.replace() == Replaced("n4", "replace n4 by n5", "done")
    assert [state for *_, state in centre.changes()[1:]] == ["superseded", "done"]
    centre.is_whole("n1", "n3", "n5")


def test_a_change_that_an_operator_began_is_superseded_too(make: Callable[..., WideCentre]) -> None:
    centre = make(spares=("n4", "n5"))
    change_nodes(centre.app, centre.receiver, Wanted("add", "n4"), wait=False)
    centre.come()
    centre.away = {"n2"}
    centre.come()
    stay_away(centre, "n2", 1)
    assert centre.replace() == Replaced("n2", "remove n2", "done"), "there are more nodes than replicas"
    assert centre.changes() == [("add", "n4", "superseded"), ("remove", "n2", "done")]
    centre.is_whole("n1", "n3", "n4")


def test_the_first_table_of_a_cluster_is_waited_for(make: Callable[..., WideCentre]) -> None:
    centre = make()
    stay_away(centre, "n2", 1)
    with centre.app.ledger.write() as connection:
        first = ChangeRow("init-1", centre.name, "init", "", 0, "somebody", 1.0, "migrating")
        table_rows.put_change(connection, first)
    told = centre.replace()
    assert told.exit_code == 5 and "“init” of somebody" in told.why


def plan_the_next_and_stop(centre: WideCentre) -> None:
    """The next change is recorded, and too few nodes take its table."""
    die_half_filled(centre, "n2")
    both_stay_away(centre, "n2", 1)
    centre.away = {"n1", "n2", "n4"}
    with pytest.raises(NoQuorumError):
        centre.replace()
    assert centre.changes() == [("replace", "n4", "superseded"), ("replace", "n5", "planned")]
    centre.away = {"n2", "n4"}


def test_a_next_change_that_died_before_its_table_is_gone_on_with(make: Callable[..., WideCentre]) -> None:
    centre = make()
    plan_the_next_and_stop(centre)
    assert centre.replace() == Replaced("n4", "replace n4 by n5", "done")
    centre.is_whole("n1", "n3", "n5")


def test_a_next_change_that_is_rolled_back_lets_the_first_one_go_on(make: Callable[..., WideCentre]) -> None:
    centre = make()
    plan_the_next_and_stop(centre)
    roll_back(centre.app, centre.receiver)
    assert centre.changes() == [("replace", "n4", "migrating"), ("replace", "n5", "rolled_back")]
    centre.away = {"n2"}
    watch_groups(centre.app, centre.receiver)
    assert centre.replace() == Replaced("n2", "replace n2 by n4", "done")
    centre.is_whole("n1", "n3", "n4")


def test_where_the_next_node_dies_too_before_the_table_another_one_is_asked(make: Callable[..., WideCentre]) -> None:
    centre = make(spares=("n4", "n5", "n6"))
    plan_the_next_and_stop(centre)
    centre.away = {"n2", "n4", "n5"}
    assert centre.replace() == Replaced("n4", "replace n4 by n6", "done")
    assert [state for *_, state in centre.changes()] == ["superseded", "rolled_back", "done"]
    centre.is_whole("n1", "n3", "n6")


def test_an_open_change_is_shown_with_the_command_that_ends_it_also_where_nobody_is_replaced_any_more(
    make: Callable[..., WideCentre],
) -> None:
    centre = make()
    stay_away(centre, "n2", 1)
    assert centre.replace(wait=False).state == "swapped"
    with centre.app.ledger.read() as connection:
        status = status_of(connection, centre.name)
    assert status is not None and (status.change, status.next) == ("replace n2 by n4", "./tidemark replica replace")
    assert centre.app.settings.cluster is not None
    never = replace(centre.app.settings.cluster, replace_hours=0)
    centre.app.settings = replace(centre.app.settings, cluster=never)
    assert centre.replace() == Replaced("n2", "replace n2 by n4", "done")
    assert centre.replace() == Replaced()
    centre.is_whole("n1", "n3", "n4")


def test_by_hand_no_change_takes_the_place_of_an_open_one(make: Callable[..., WideCentre]) -> None:
    centre = make()
    die_half_filled(centre, "n2")
    with pytest.raises(RetryableError, match="replace n2 by n4"):
        change_nodes(centre.app, centre.receiver, Wanted("remove", "n4"))
    with pytest.raises(RetryableError, match="still move"):
        plan_change(centre.app, centre.receiver, Wanted("remove", "n4"))
