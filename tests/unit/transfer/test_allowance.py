"""How many connections a server lets us have."""

from __future__ import annotations

from tidemark.transfer.stream.connections import Allowance


def test_as_many_as_the_link_may_have_until_one_is_refused() -> None:
    allowance = Allowance(16)
    assert allowance.allowed_at(0.0) == 16
    allowance.note_admission(3, again=1.0)
    assert allowance.allowed_at(0.0) == 16


def test_after_a_refusal_there_are_as_many_as_there_are_and_one_more_is_tried_after_a_pause() -> None:
    allowance = Allowance(16)
    allowance.note_refusal(there=2, again=10.0)
    assert (allowance.allowed_at(9.9), allowance.allowed_at(10.0), allowance.failures) == (2, 3, 1)
    allowance.note_refusal(there=2, again=14.0)
    assert (allowance.allowed_at(13.9), allowance.allowed_at(14.0), allowance.failures) == (2, 3, 2)


def test_one_that_was_let_in_is_followed_by_the_next_until_all_are_there() -> None:
    allowance = Allowance(4)
    allowance.note_refusal(there=2, again=1.0)
    allowance.note_admission(3, again=2.0)
    assert (allowance.allowed_at(1.9), allowance.allowed_at(2.0), allowance.failures) == (3, 4, 0)
    allowance.note_admission(4, again=3.0)
    assert allowance.allowed_at(2.0) == 4


def test_one_connection_is_always_allowed() -> None:
    allowance = Allowance(2)
    allowance.note_refusal(there=0, again=5.0)
    assert allowance.allowed_at(0.0) == 1
