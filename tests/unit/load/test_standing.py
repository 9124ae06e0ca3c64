"""When a settled merged file may be replaced: every fate of its sources, alone and together."""

from __future__ import annotations

from itertools import product

import pytest

from tidemark.load.standing import Fate, Root, judge, outranked


def root(path: str, fate: Fate, *, changed: bool = False, trouble: str = "", covers: tuple[str, ...] = ()) -> Root:
    return Root(path, 1, fate, changed, covers, trouble)


def late(fate: Fate) -> Root:
    """A source whose content readers do not see as the site has it."""
    return root(f"late-{fate}", fate, changed=fate is not Fate.LEFT, covers=("c",) if fate is Fate.COVERED else ())


QUIET = [Fate.HERE, Fate.COVERING, Fate.KEPT, Fate.ASKED]
ANSWERED = [Fate.AGAIN, Fate.COVERED, Fate.LEFT]


@pytest.mark.parametrize("fates", [(a, b) for a, b in product(QUIET, QUIET)], ids=str)
def test_nothing_changed_nothing_happens(fates: tuple[Fate, Fate]) -> None:
    assert judge([root("a", fates[0]), root("b", fates[1])]).action == "stand"


@pytest.mark.parametrize("fates", list(product(ANSWERED, repeat=3)), ids=str)
def test_it_goes_when_every_source_is_answered_for(fates: tuple[Fate, ...]) -> None:
    assert judge([root(str(n), fate) for n, fate in enumerate(fates)]).action == "go"


def test_the_same_content_sent_again_asks_for_nothing() -> None:
    assert judge([root("a", Fate.AGAIN), root("b", Fate.HERE)]).action == "stand"


@pytest.mark.parametrize("fate", [Fate.AGAIN, Fate.TOLD, Fate.COVERED, Fate.LEFT], ids=str)
def test_one_late_source_asks_for_all_that_the_site_still_has(fate: Fate) -> None:
    outcome = judge([late(fate), root("a", Fate.HERE), root("b", Fate.TOLD, changed=True), root("c2", Fate.AGAIN)])
    assert outcome.action == "wait" and not outcome.approve
    coming = {"a", "b"} | ({f"late-{fate}"} if fate is Fate.TOLD else set())
    assert {one.path for one in outcome.again} == coming
    assert outcome.late[f"late-{fate}"] and "come again" in outcome.late[f"late-{fate}"]
    assert ("c" in outcome.late) == (fate is Fate.COVERED)


@pytest.mark.parametrize("fate", [Fate.AGAIN, Fate.TOLD, Fate.COVERED, Fate.LEFT], ids=str)
def test_points_of_a_vanished_source_are_given_up_by_the_operator_alone(fate: Fate) -> None:
    outcome = judge([late(fate), root("a", Fate.HERE), root("kept", Fate.KEPT)])
    assert outcome.action == "wait" and outcome.again == ()
    assert list(outcome.approve) == ["kept"] and f"late-{fate}" in outcome.approve["kept"]
    assert "kept" in outcome.late[f"late-{fate}"]


def test_who_is_asked_already_is_not_asked_again() -> None:
    outcome = judge([late(Fate.TOLD), root("gone", Fate.ASKED)])
    assert (outcome.action, outcome.again, dict(outcome.approve)) == ("wait", (), {})


def test_a_kept_file_whose_deletions_came_is_late_itself() -> None:
    outcome = judge([root("kept", Fate.KEPT, changed=True), root("a", Fate.HERE)])
    assert outcome.action == "wait" and list(outcome.approve) == ["kept"] and "kept" in outcome.late


def test_a_source_in_quarantine_is_not_asked_for_but_named() -> None:
    outcome = judge([root("a", Fate.TOLD, changed=True, trouble="in quarantine as 3: torn"), root("b", Fate.HERE)])
    assert [one.path for one in outcome.again] == ["b"]
    assert "in quarantine as 3" in outcome.late["a"]


def test_a_source_that_waits_for_its_cover_holds_the_rest() -> None:
    outcome = judge([root("a", Fate.AGAIN, changed=True), root("b", Fate.COVERING)])
    assert outcome.action == "wait" and outcome.again == () and "covers b" in outcome.late["a"]


def test_a_file_that_is_outranked_wrongly_asks_for_all() -> None:
    outcome = judge([root("a", Fate.HERE), root("b", Fate.HERE)], ["between"])
    assert outcome.action == "wait" and [one.path for one in outcome.again] == ["a", "b"]
    assert list(outcome.late) == ["between"]


@pytest.mark.parametrize(("version", "wrongly"), [(1, False), (2, False), (3, True), (4, False), (5, False)])
def test_only_ranks_between_its_sources_are_outranked_wrongly(version: int, wrongly: bool) -> None:
    def rank(n: int) -> tuple[int, int, int, int, int]:
        return (0, n, 0, 0, 0)

    assert outranked(rank(2), rank(4), rank(version)) is wrongly
