"""What each node holds: put when it is proved, going before it goes, forgotten after; told again it is the same."""

from __future__ import annotations

import threading

import pytest

from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.database import Ledger


def a_copy(node: str, location: str, slot: int = 3, size: int = 10, receiver: str = "centre") -> CopyRow:
    return CopyRow(receiver, node, location, slot, "ab" * 32, size, at=1.0)


@pytest.mark.full_after(1)
def test_copies_of_a_file_and_at_a_node(ledger: Ledger) -> None:
    rows = [a_copy("n2", "data/a"), a_copy("n1", "data/a"), a_copy("n1", "data/c", 5), a_copy("n1", "data/b", 4)]
    with ledger.write() as connection:
        for _ in range(2):
            copy_rows.put_copies(connection, rows)
        copy_rows.put_copies(connection, [a_copy("n1", "data/a", receiver="another")])
        copy_rows.put_copies(connection, [])

        assert copy_rows.copies_of(connection, "centre", ["data/a", "data/none"]) == {"data/a": [rows[1], rows[0]]}
        assert copy_rows.copies_of(connection, "centre", []) == {}
        assert copy_rows.copies_at(connection, "centre", "n1") == [rows[1], rows[3], rows[2]]
        assert copy_rows.copies_at(connection, "centre", "n1", [5, 3, 5]) == [rows[1], rows[2]]
        assert copy_rows.copies_at(connection, "centre", "n1", []) == []
        assert copy_rows.copies_at(connection, "centre", "n9") == []


def test_a_copy_goes_and_may_come_back(ledger: Ledger) -> None:
    with ledger.write() as connection:
        copy_rows.put_copies(connection, [a_copy("n1", "data/a"), a_copy("n2", "data/a")])
        for _ in range(2):
            copy_rows.mark_to_remove(connection, "centre", "n1", ["data/a", "data/none"], 2.0)
        found = copy_rows.copies_of(connection, "centre", ["data/a"])["data/a"]
        assert [(row.node, row.state, row.at) for row in found] == [("n1", "going", 2.0), ("n2", "held", 1.0)]

        copy_rows.put_copies(connection, [a_copy("n1", "data/a")])
        assert copy_rows.copies_at(connection, "centre", "n1") == [a_copy("n1", "data/a")]

        for _ in range(2):
            copy_rows.forget_copies(connection, "centre", "n1", ["data/a"])
        assert copy_rows.copies_at(connection, "centre", "n1") == []
        assert copy_rows.copies_at(connection, "centre", "n2") == [a_copy("n2", "data/a")]


def test_the_grace_of_a_copy_runs_from_the_first_time_it_was_told_to_go(ledger: Ledger) -> None:
    with ledger.write() as connection:
        copy_rows.put_copies(connection, [a_copy("n1", "data/a")])
        for at in (2.0, 9.0):
            copy_rows.mark_to_remove(connection, "centre", "n1", ["data/a"], at)
        assert copy_rows.copies_at(connection, "centre", "n1")[0].at == 2.0


@pytest.mark.full_after(1)
def test_who_writes_the_same_rows_the_other_way_round_waits_and_gets_through(ledger: Ledger) -> None:
    """PostgreSQL would end one of two that wait for each other."""
    rows = [a_copy("n1", f"data/{number}") for number in range(200)]
    start, raised = threading.Barrier(2), list[Exception]()

    def work(mine: list[CopyRow]) -> None:
        start.wait()
        try:
            for _ in range(5):
                with ledger.write() as connection:
                    copy_rows.put_copies(connection, mine)
                    copy_rows.mark_to_remove(connection, "centre", "n1", [row.location for row in mine], 2.0)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in (rows, rows[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert raised == []


def test_bytes_count_a_file_once_a_slot_and_every_copy_at_its_node(ledger: Ledger) -> None:
    with ledger.write() as connection:
        rows = [a_copy("n1", "data/a", 3, 10), a_copy("n2", "data/a", 3, 10), a_copy("n1", "data/b", 3, 5)]
        copy_rows.put_copies(connection, [*rows, a_copy("n2", "data/c", 4, 7), a_copy("n3", "data/d", 4, 100)])
        copy_rows.mark_to_remove(connection, "centre", "n3", ["data/d"], 2.0)

        assert copy_rows.bytes_by_slot(connection, "centre") == {3: 15, 4: 7}
        assert copy_rows.bytes_by_node(connection, "centre") == {"n1": 15, "n2": 17}
        assert copy_rows.bytes_by_slot(connection, "another") == {}


def test_many_files_are_asked_for_at_once(ledger: Ledger) -> None:
    rows = [a_copy("n1", f"data/{number:04}", number) for number in range(1000)]
    with ledger.write() as connection:
        copy_rows.put_copies(connection, rows)
        assert len(copy_rows.copies_of(connection, "centre", [row.location for row in rows])) == 1000
        assert copy_rows.copies_at(connection, "centre", "n1", range(1000)) == rows
