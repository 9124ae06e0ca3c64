"""A partition table comes into force once an epoch, whoever swaps at once; nothing routed by an old one commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import sqlalchemy as sa

from tidemark.errors import CorruptionError, RetryableError, StaleEpochError, TidemarkError
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow, TableRow
from tidemark.ledger.database import Ledger


def a_table(epoch: int, paper: bytes = b"paper", change: str = "change") -> TableRow:
    return TableRow("centre", epoch, paper, change, 100.0 + epoch)


def swap(ledger: Ledger, row: TableRow) -> None:
    with ledger.write() as connection:
        cluster_rows.swap_table(connection, row)


def in_force(ledger: Ledger) -> TableRow | None:
    with ledger.read() as connection:
        return cluster_rows.current_table(connection, "centre")


def at_once(*acts: Callable[[], object]) -> list[TidemarkError | None]:
    """Run each in a thread of its own, all at one moment; what each raised."""
    start = threading.Barrier(len(acts))
    raised: list[TidemarkError | None] = [None] * len(acts)

    def run(number: int, act: Callable[[], object]) -> None:
        start.wait()
        try:
            act()
        except TidemarkError as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def test_before_the_first_table_there_is_none(ledger: Ledger) -> None:
    assert in_force(ledger) is None
    with ledger.read() as connection:
        assert cluster_rows.current_epoch(connection, "centre") == 0
        assert cluster_rows.cluster_identity(connection, "centre") == ""


def test_the_newest_table_is_in_force_for_its_receiver_alone(ledger: Ledger) -> None:
    swap(ledger, a_table(1, b"\x00one\xff", "first"))
    swap(ledger, a_table(2, b"two", "second"))

    assert in_force(ledger) == a_table(2, b"two", "second")
    with ledger.read() as connection:
        assert cluster_rows.current_epoch(connection, "centre") == 2
        assert cluster_rows.cluster_identity(connection, "centre") == "first"
        assert cluster_rows.current_table(connection, "another") is None
        assert cluster_rows.current_epoch(connection, "another") == 0


@pytest.mark.full_after(1)
@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_only_the_next_epoch_comes_into_force(ledger: Ledger, epoch: int) -> None:
    swap(ledger, a_table(1))
    swap(ledger, a_table(2, b"two"))

    with pytest.raises(StaleEpochError, match="2 is in force"):
        swap(ledger, a_table(epoch, b"mine"))

    assert in_force(ledger) == a_table(2, b"two")


def test_of_two_administrators_at_once_one_wins(ledger: Ledger) -> None:
    swap(ledger, a_table(1))

    for epoch in range(2, 8):
        papers = (f"one {epoch}".encode(), f"other {epoch}".encode())
        raised = at_once(*(partial(swap, ledger, a_table(epoch, paper)) for paper in papers))

        losers = [error for error in raised if error is not None]
        assert [type(error) for error in losers] == [StaleEpochError]
        assert f"{epoch} is in force" in losers[0].message and f"table {epoch - 1} " in losers[0].message
        assert in_force(ledger) == a_table(epoch, papers[raised.index(None)])


def test_who_routed_by_an_older_table_may_not_commit(ledger: Ledger) -> None:
    swap(ledger, a_table(1))
    swap(ledger, a_table(2))

    with ledger.write() as connection:
        cluster_rows.require_epoch(connection, "centre", 2)
    with pytest.raises(StaleEpochError, match="routed by partition table 1"), ledger.write() as connection:
        cluster_rows.require_epoch(connection, "centre", 1)


@pytest.mark.full_after(1)
def test_a_swap_waits_for_a_commit_that_was_routed_by_the_table_before(ledger: Ledger) -> None:
    """Else the commit would come after the swap: routed by the old table, accepted by an old group."""
    swap(ledger, a_table(1))
    checked, order = threading.Event(), []

    def commit() -> None:
        with ledger.write() as connection:
            cluster_rows.require_epoch(connection, "centre", 1)
            checked.set()
            swapped.join(0.3)  # it would be through in that time, were it let
            order.append("commit" if cluster_rows.current_epoch(connection, "centre") == 1 else "commit after the swap")

    def swap_now() -> None:
        checked.wait()
        swap(ledger, a_table(2))
        order.append("swap")

    swapped = threading.Thread(target=swap_now)
    swapped.start()
    commit()
    swapped.join(60)

    assert order == ["commit", "swap"]


@pytest.mark.full_after(1)
def test_a_commit_waits_for_the_swap_and_is_refused(ledger: Ledger) -> None:
    swap(ledger, a_table(1))
    begun, raised = threading.Event(), []

    def commit() -> None:
        begun.wait()
        try:
            with ledger.write() as connection:
                cluster_rows.require_epoch(connection, "centre", 1)
        except StaleEpochError as stale:
            raised.append(stale)

    committing = threading.Thread(target=commit)
    committing.start()
    with ledger.write() as connection:
        cluster_rows.swap_table(connection, a_table(2))
        begun.set()
        committing.join(0.3)
        assert committing.is_alive()  # it does not go by the table that is about to be replaced
    committing.join(60)

    assert len(raised) == 1


def test_commits_by_the_table_in_force_do_not_wait_for_each_other(ledger: Ledger) -> None:
    if ledger.is_sqlite:
        pytest.skip("SQLite writes one after the other")
    swap(ledger, a_table(1))
    with ledger.write() as one, ledger.write() as other:
        cluster_rows.require_epoch(one, "centre", 1)
        cluster_rows.require_epoch(other, "centre", 1)


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "damage",
    ["paper = 'AAAA'", "paper = '%%%'", "paper = ''", "sha256 = ''", "paper = 'schön'"],
)
def test_a_table_that_rotted_is_told_and_not_used(ledger: Ledger, damage: str) -> None:
    swap(ledger, a_table(1))
    with ledger.write() as connection:
        connection.execute(sa.text(f"UPDATE cluster_table SET {damage} WHERE epoch = 1"))

    with pytest.raises(CorruptionError, match="partition table of centre at epoch 1") as caught:
        in_force(ledger)
    assert "cluster check" in caught.value.hint


NODE = NodeRow("centre", "n1", 7, "sftp://a@b:22/srv", "SHA256:x", "/key", "joining", 0, 1.0)


def test_nodes_by_name_and_state(ledger: Ledger) -> None:
    other = NodeRow("centre", "n0", 9, "file:///n0", state="serving")
    with ledger.write() as connection:
        cluster_rows.put_node(connection, NODE)
        cluster_rows.put_node(connection, NODE)
        cluster_rows.put_node(connection, other)
        cluster_rows.put_node(connection, NodeRow("another", "n1", 1, "file:///x"))

        assert cluster_rows.nodes_of_receiver(connection, "centre") == [other, NODE]
        assert cluster_rows.nodes_of_receiver(connection, "centre", ["joining"]) == [NODE]

        cluster_rows.forget_node(connection, "centre", "n0")
        cluster_rows.forget_node(connection, "centre", "n0")
        assert cluster_rows.nodes_of_receiver(connection, "centre") == [NODE]


def test_what_lies_in_a_nodes_folder_never_goes_back(ledger: Ledger) -> None:
    with ledger.write() as connection:
        cluster_rows.put_node(connection, NODE)
        for epoch in (3, 2, 3, 1):
            cluster_rows.note_node(connection, "centre", "n1", epoch)
        assert cluster_rows.nodes_of_receiver(connection, "centre")[0].epoch == 3


def test_a_state_told_again_keeps_the_time_it_came(ledger: Ledger) -> None:
    with ledger.write() as connection:
        cluster_rows.put_node(connection, NODE)
        for at in (5.0, 6.0):
            cluster_rows.set_node_state(connection, "centre", "n1", "serving", at)
        row = cluster_rows.nodes_of_receiver(connection, "centre")[0]
        assert (row.state, row.at) == ("serving", 5.0)


def a_change(name: str, kind: str = "add", node: str = "n4", receiver: str = "centre", begun: float = 1.0) -> ChangeRow:
    return ChangeRow(name, receiver, kind, node, 1, "eve", begun)


def test_one_change_is_open_at_a_time(ledger: Ledger) -> None:
    with ledger.write() as connection:
        cluster_rows.put_change(connection, a_change("a"))
        cluster_rows.put_change(connection, a_change("a", begun=9.0))  # told again
        cluster_rows.put_change(connection, a_change("x", receiver="another"))
        assert cluster_rows.open_change(connection, "centre") == a_change("a")

    with pytest.raises(RetryableError, match="add n4, asked for by eve, is planned"), ledger.write() as connection:
        cluster_rows.put_change(connection, a_change("b", "remove", "n1"))

    with ledger.write() as connection:
        cluster_rows.set_change_state(connection, "a", "rolled_back", 2.0)
        cluster_rows.put_change(connection, a_change("b", "remove", "n1", begun=3.0))
        assert [row.change_id for row in cluster_rows.newest_changes(connection, "centre")] == ["b", "a"]
        assert cluster_rows.open_change(connection, "centre") == a_change("b", "remove", "n1", begun=3.0)


def test_of_two_changes_planned_at_once_one_is_let_in(ledger: Ledger) -> None:
    def plan(name: str) -> None:
        with ledger.write() as connection:
            cluster_rows.put_change(connection, a_change(name))

    raised = at_once(lambda: plan("a"), lambda: plan("b"), lambda: plan("c"))

    assert sorted(type(error).__name__ for error in raised) == ["NoneType", "RetryableError", "RetryableError"]
    with ledger.read() as connection:
        assert len(cluster_rows.newest_changes(connection, "centre")) == 1


def test_a_change_goes_forward_only(ledger: Ledger) -> None:
    with ledger.write() as connection:
        cluster_rows.put_change(connection, a_change("a"))
        for state in ("planned", "swapped", "swapped", "migrating"):
            cluster_rows.set_change_state(connection, "a", state)
        cluster_rows.set_change_state(connection, "a", "done", 5.0)
        cluster_rows.set_change_state(connection, "a", "done", 6.0)
        assert cluster_rows.newest_changes(connection, "centre")[0].ended == 5.0
        assert cluster_rows.open_change(connection, "centre") is None

        for state in ("migrating", "rolled_back", "planned"):
            with pytest.raises(StaleEpochError, match="is done"):
                cluster_rows.set_change_state(connection, "a", state)
        assert cluster_rows.newest_changes(connection, "centre")[0].state == "done"


def test_a_change_in_force_cannot_be_rolled_back(ledger: Ledger) -> None:
    with ledger.write() as connection:
        cluster_rows.put_change(connection, a_change("a"))
        cluster_rows.set_change_state(connection, "a", "swapped")
        with pytest.raises(StaleEpochError, match="is swapped: it cannot become rolled_back"):
            cluster_rows.set_change_state(connection, "a", "rolled_back", 2.0)
        with pytest.raises(StaleEpochError, match="not known"):
            cluster_rows.set_change_state(connection, "none", "swapped")
