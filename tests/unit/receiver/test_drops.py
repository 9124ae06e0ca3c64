"""When a vanished file may leave the catalog."""

from __future__ import annotations

import pytest

from tidemark.receiver.load.removal.rules import (
    PathState,
    Presence,
    Vanished,
    covering_closure,
    judge_dropped,
    judge_superseded,
)

LOADED, SETTLED, ABSENT = (PathState(p) for p in (Presence.LOADED, Presence.SETTLED, Presence.ABSENT))


def superseded(*covered_by: str) -> Vanished:
    return Vanished("a", 1, "superseded", covered_by)


def test_it_leaves_when_all_that_covers_it_is_there() -> None:
    assert judge_superseded(superseded("b", "c"), {"a": LOADED, "b": LOADED, "c": SETTLED}).action == "leave"


@pytest.mark.parametrize("trouble", ["in quarantine as 3: torn", "refused, since device d belongs to another site"])
def test_it_waits_and_says_for_what(trouble: str) -> None:
    states = {"a": LOADED, "b": LOADED, "c": PathState(Presence.ABSENT, trouble=trouble)}
    verdict = judge_superseded(superseded("b", "c"), states)
    assert verdict.action == "wait" and "c" in verdict.reason and trouble in verdict.reason


def test_a_covering_file_that_was_superseded_itself_counts_by_what_covers_it() -> None:
    states = {"a": LOADED, "b": PathState(Presence.ABSENT, covered_by=("c",)), "c": ABSENT}
    assert judge_superseded(superseded("b"), states).action == "wait"
    assert judge_superseded(superseded("b"), {**states, "c": LOADED}).action == "leave"


def test_circles_end() -> None:
    around = PathState(Presence.ABSENT, covered_by=("a", "b"))
    assert judge_superseded(superseded("b"), {"a": LOADED, "b": around}).action == "leave"
    assert covering_closure([superseded("b")], {"b": ("a", "b"), "a": ("b",)}) == {"a", "b"}


def test_a_covering_file_that_was_dropped_before_it_came_asks_the_operator() -> None:
    gone = PathState(Presence.ABSENT, dropped=True)
    verdict = judge_superseded(superseded("b"), {"a": LOADED, "b": gone})
    assert verdict.action == "ask" and "b" in verdict.reason


def test_settled_points_leave_with_their_merged_file() -> None:
    assert judge_superseded(superseded("b"), {"a": SETTLED, "b": LOADED}).action == "leave_settled"


@pytest.mark.parametrize(
    ("state", "deletes", "action"),
    [
        (LOADED, "keep", "mark"),
        (LOADED, "apply", "leave"),
        (ABSENT, "apply", "leave"),
        (SETTLED, "keep", "mark"),
        (SETTLED, "apply", "ask"),
    ],
)
def test_a_dropped_file_does_what_its_link_says(state: PathState, deletes: str, action: str) -> None:
    assert judge_dropped(Vanished("a", 1, "dropped", ()), state, deletes).action == action
