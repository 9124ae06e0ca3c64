"""What a sender has to come back to: files that are not verified, files that it holds."""

from __future__ import annotations

import pytest

from tidemark.ledger.database import Ledger
from tidemark.ledger.sender import holds as sender_rows
from tidemark.ledger.sender.holds import DROPPED, RELEASED, Held, Sent


def told(ledger: Ledger, *sent: Sent, link: str = "l") -> frozenset[str]:
    """The unverified of "a" to "d" after these landed."""
    with ledger.write() as connection:
        sender_rows.note_sent(connection, link, sent)
    with ledger.read() as connection:
        return sender_rows.unverified_of(connection, link, ["a", "b", "c", "d"])


def test_a_file_is_unverified_until_it_comes_with_a_digest_of_the_source(ledger: Ledger) -> None:
    assert told(ledger, Sent("a", 1, False, True), Sent("b", 1, True, True)) == {"a"}
    assert told(ledger, Sent("c", 1, False, True), link="other") == {"c"}
    assert told(ledger, Sent("a", 2, True, True)) == frozenset()
    with ledger.read() as connection:
        assert sender_rows.count_unverified(connection) == {"other": 1}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("verified", [True, False])
def test_deletions_that_came_alone_prove_nothing_of_their_file(ledger: Ledger, verified: bool) -> None:
    told(ledger, Sent("a", 1, False, True), Sent("b", 1, True, True))
    assert told(ledger, Sent("a", 2, True, False), Sent("b", 2, verified, False)) == ({"a"} if verified else {"a", "b"})


def hold(ledger: Ledger, path: str = "a", link: str = "l") -> str:
    with ledger.write() as connection:
        return sender_rows.quarantine_file(
            connection, Held(0, link, path, 10, 20, 0, "run", 0.0, "block of 5 bytes at 5 differs")
        )


def test_a_file_is_held_once_and_under_its_newest_name(ledger: Ledger) -> None:
    first, second, other = hold(ledger), hold(ledger), hold(ledger, "b")
    with ledger.read() as connection:
        assert [row.name for row in sender_rows.held_files(connection)] == [second, other]
        assert first != second and first.startswith("s")
        assert sender_rows.held_files(connection)[0].at > 0


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("state", "kept"), [(RELEASED, []), (DROPPED, ["a"])])
def test_what_the_operator_decided_is_not_asked_again(ledger: Ledger, state: str, kept: list[str]) -> None:
    number = int(hold(ledger)[1:])
    with ledger.write() as connection:
        sender_rows.decide_held(connection, number, state)
    with ledger.read() as connection:
        assert sender_rows.held_files(connection) == []
        assert [row.path for row in sender_rows.held_or_dropped(connection, "l")] == kept
        row = sender_rows.held_as(connection, number)
        assert row is not None and row.state == state


def test_a_file_that_was_sent_after_all_is_held_no_more(ledger: Ledger) -> None:
    hold(ledger)
    hold(ledger, link="other")
    with ledger.write() as connection:
        sender_rows.end_held(connection, "l", ["a", "unknown"])
    with ledger.read() as connection:
        assert [row.link for row in sender_rows.held_files(connection)] == ["other"]
