"""A group's operations are numbered without gaps, end one way, and members only come further."""

from __future__ import annotations

import threading

import pytest

from tidemark.errors import StaleEpochError
from tidemark.ledger.cluster import operations as group_rows
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.database import Ledger


def put(subject: str, header: str = "n1", epoch: int = 1, receiver: str = "centre") -> OperationRow:
    return OperationRow(receiver, header, epoch, 7, "put", subject, "ab" * 32, 10, at=1.0)


def propose(ledger: Ledger, *rows: OperationRow) -> list[OperationRow]:
    with ledger.write() as connection:
        return group_rows.propose_operations(connection, rows)


def all_of(ledger: Ledger, header: str = "n1", above: int = 0, *states: str) -> list[OperationRow]:
    with ledger.read() as connection:
        return group_rows.operations_above(connection, "centre", header, above, states)


def test_each_group_counts_for_itself(ledger: Ledger) -> None:
    first = propose(ledger, put("a"), put("b", "n2"), put("c"))
    second = propose(ledger, put("d"), put("e", receiver="another"))

    assert [(row.subject, row.version) for row in (*first, *second)] == [("a", 1), ("b", 1), ("c", 2), ("d", 3), ("e", 1)]
    assert all_of(ledger) == [first[0], first[2], second[0]]
    assert all_of(ledger, "n1", 2) == [second[0]]
    assert all_of(ledger, "n3") == []
    assert propose(ledger) == []
    with ledger.read() as connection:
        assert group_rows.last_version(connection, "centre", "n1") == 3
        assert group_rows.last_version(connection, "centre", "n3") == 0


def test_a_proposal_that_was_rolled_back_leaves_no_gap(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError), ledger.write() as connection:
        group_rows.propose_operations(connection, [put("a"), put("b")])
        raise RuntimeError("killed")

    assert [row.version for row in propose(ledger, put("c"))] == [1]


def test_two_who_propose_at_once_leave_neither_gap_nor_double(ledger: Ledger) -> None:
    start, versions = threading.Barrier(2), {"n1": list[int](), "n2": list[int]()}

    def work(headers: tuple[str, str]) -> None:
        start.wait()
        for number in range(15):  # the two name the groups the other way round: neither may wait for the other for ever
            for row in propose(ledger, *(put(f"{headers} {number}", header) for header in headers)):
                versions[row.header].append(row.version)

    threads = [threading.Thread(target=work, args=(headers,)) for headers in (("n1", "n2"), ("n2", "n1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    for header in ("n1", "n2"):
        assert sorted(versions[header]) == list(range(1, 31))
        assert [row.version for row in all_of(ledger, header)] == list(range(1, 31))


def test_an_operation_ends_one_way_and_told_again_stays(ledger: Ledger) -> None:
    a, b, c = propose(ledger, put("a"), put("b"), put("c"))
    with ledger.write() as connection:
        for at in (5.0, 6.0):
            group_rows.set_operation_state(connection, [a], "committed", at)
        group_rows.set_operation_state(connection, [a, b], "withdrawn", 7.0)

    assert [(row.subject, row.state, row.at) for row in all_of(ledger)] == [
        ("a", "committed", 5.0),
        ("b", "withdrawn", 7.0),
        ("c", "proposed", 1.0),
    ]
    assert all_of(ledger, "n1", 0, "committed", "proposed") == [all_of(ledger)[0], c]


def test_what_was_withdrawn_is_never_committed_silently(ledger: Ledger) -> None:
    a, b = propose(ledger, put("a"), put("b"))
    with ledger.write() as connection:
        group_rows.set_operation_state(connection, [b], "withdrawn", 2.0)

    with pytest.raises(StaleEpochError, match="operation 2 of the group of n1"), ledger.write() as connection:
        group_rows.set_operation_state(connection, [a, b], "committed", 3.0)
    assert [row.state for row in all_of(ledger)] == ["proposed", "withdrawn"]  # the whole transaction went back


@pytest.mark.full_after(1)
def test_many_operations_are_committed_at_once(ledger: Ledger) -> None:
    rows = propose(ledger, *(put(f"{number}") for number in range(900)))
    with ledger.write() as connection:
        group_rows.set_operation_state(connection, rows, "committed", 2.0)
        group_rows.set_operation_state(connection, [], "committed", 2.0)
    assert len(all_of(ledger, "n1", 0, "committed")) == 900


def test_a_member_only_comes_further(ledger: Ledger) -> None:
    with ledger.write() as connection:
        for version, at in ((3, 1.0), (2, 2.0), (3, 3.0), (5, 4.0), (1, 5.0)):
            group_rows.put_applied(connection, "centre", "n1", "n2", version, at)
        group_rows.put_applied(connection, "centre", "n2", "n2", 1, 6.0)
        group_rows.put_applied(connection, "another", "n1", "n2", 9, 6.0)
        assert group_rows.applied_versions(connection, "centre") == {("n1", "n2"): 5, ("n2", "n2"): 1}

        for _ in range(2):
            group_rows.forget_member(connection, "centre", "n1", "n2")
        assert group_rows.applied_versions(connection, "centre") == {("n2", "n2"): 1}


def test_operations_are_forgotten_up_to_what_all_have_but_versions_go_on(ledger: Ledger) -> None:
    a, _, c, d = propose(ledger, put("a"), put("b"), put("c"), put("d"))
    with ledger.write() as connection:
        group_rows.set_operation_state(connection, [a, c, d], "committed", 2.0)
        for _ in range(2):
            group_rows.forget_operations(connection, "centre", "n1", 9)

    assert [row.subject for row in all_of(ledger)] == ["b", "d"]  # b is not at its end, d is the newest
    assert [row.version for row in propose(ledger, put("e"))] == [5]
