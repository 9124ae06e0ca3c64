"""When a settled merged file may be replaced: every fate of its sources, alone and together."""

from __future__ import annotations

from itertools import product

import pytest

from tidemark.receiver.load.removal.settled import Root, SourceFate, is_outranked, judge_settled_set


def root(path: str, fate: SourceFate, *, changed: bool = False, trouble: str = "", covers: tuple[str, ...] = ()) -> Root:
    return Root(path, 1, fate, changed, covers, trouble)


def late(fate: SourceFate) -> Root:
    """A source whose content readers do not see as the site has it."""
    return root(
        f"late-{fate}", fate, changed=fate is not SourceFate.LEFT, covers=("c",) if fate is SourceFate.COVERED else ()
    )


QUIET = [SourceFate.HERE, SourceFate.COVERING, SourceFate.KEPT, SourceFate.ASKED]
ANSWERED = [SourceFate.AGAIN, SourceFate.COVERED, SourceFate.LEFT]


GONE = [SourceFate.KEPT, SourceFate.ASKED]


@pytest.mark.parametrize("fates", [(a, b) for a, b in product(QUIET, QUIET) if not {a, b} <= {*GONE}], ids=str)
def test_nothing_changed_nothing_happens(fates: tuple[SourceFate, SourceFate]) -> None:
    assert judge_settled_set([root("a", fates[0]), root("b", fates[1])]).action == "stand"


@pytest.mark.parametrize("fates", list(product(ANSWERED, repeat=3)), ids=str)
def test_it_goes_when_every_source_is_answered_for(fates: tuple[SourceFate, ...]) -> None:
    assert judge_settled_set([root(str(n), fate) for n, fate in enumerate(fates)]).action == "go"


@pytest.mark.parametrize("fates", list(product(GONE, [*GONE, *ANSWERED])), ids=str)
def test_it_ranks_below_live_files_once_its_site_has_nothing_of_it_but_live_files(fates: tuple[SourceFate, ...]) -> None:
    assert judge_settled_set([root(str(n), fate, changed=True) for n, fate in enumerate(fates)]).action == "below"


def test_the_same_content_sent_again_asks_for_nothing() -> None:
    assert judge_settled_set([root("a", SourceFate.AGAIN), root("b", SourceFate.HERE)]).action == "stand"


@pytest.mark.parametrize("fate", [SourceFate.AGAIN, SourceFate.TOLD, SourceFate.COVERED, SourceFate.LEFT], ids=str)
def test_one_late_source_asks_for_all_that_the_site_still_has(fate: SourceFate) -> None:
    outcome = judge_settled_set(
        [late(fate), root("a", SourceFate.HERE), root("b", SourceFate.TOLD, changed=True), root("c2", SourceFate.AGAIN)]
    )
    assert outcome.action == "wait"
    coming = {"a", "b"} | ({f"late-{fate}"} if fate is SourceFate.TOLD else set())
    assert {one.path for one in outcome.again} == coming
    assert outcome.late[f"late-{fate}"] and "come again" in outcome.late[f"late-{fate}"]
    assert ("c" in outcome.late) == (fate is SourceFate.COVERED)


@pytest.mark.parametrize("gone", GONE, ids=str)
@pytest.mark.parametrize("fate", [SourceFate.AGAIN, SourceFate.TOLD, SourceFate.COVERED, SourceFate.LEFT], ids=str)
def test_a_vanished_source_keeps_nobody_waiting(fate: SourceFate, gone: SourceFate) -> None:
    outcome = judge_settled_set([late(fate), root("a", SourceFate.HERE), root("gone", gone)])
    assert outcome.action == "wait"
    assert {one.path for one in outcome.again} == {"a"} | ({f"late-{fate}"} if fate is SourceFate.TOLD else set())


def test_a_kept_file_whose_deletions_came_asks_for_the_others() -> None:
    outcome = judge_settled_set([root("kept", SourceFate.KEPT, changed=True), root("a", SourceFate.HERE)])
    assert outcome.action == "wait" and [one.path for one in outcome.again] == ["a"] and "kept" in outcome.late


def test_a_source_in_quarantine_is_not_asked_for_but_named() -> None:
    outcome = judge_settled_set(
        [root("a", SourceFate.TOLD, changed=True, trouble="in quarantine as 3: torn"), root("b", SourceFate.HERE)]
    )
    assert [one.path for one in outcome.again] == ["b"]
    assert "in quarantine as 3" in outcome.late["a"]


def test_a_source_that_waits_for_its_cover_holds_the_rest() -> None:
    outcome = judge_settled_set([root("a", SourceFate.AGAIN, changed=True), root("b", SourceFate.COVERING)])
    assert outcome.action == "wait" and outcome.again == () and "covers b" in outcome.late["a"]


def test_a_file_that_is_outranked_wrongly_asks_for_all() -> None:
    outcome = judge_settled_set([root("a", SourceFate.HERE), root("b", SourceFate.HERE)], ["between"])
    assert outcome.action == "wait" and [one.path for one in outcome.again] == ["a", "b"]
    assert list(outcome.late) == ["between"]


@pytest.mark.parametrize(("version", "wrongly"), [(1, False), (2, False), (3, True), (4, False), (5, False)])
def test_only_ranks_between_its_sources_are_outranked_wrongly(version: int, wrongly: bool) -> None:
    def rank(n: int) -> tuple[int, int, int, int, int]:
        return (0, n, 0, 0, 0)

    assert is_outranked(rank(2), rank(4), rank(version)) is wrongly
