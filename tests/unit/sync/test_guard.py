"""A site that lost its disk must not empty the centre."""

from __future__ import annotations

import pytest

from tidemark.sync.select.vanished import Limits, View, judge_vanished

KEEP, APPLY = Limits(False, 100, 0.2), Limits(True, 100, 0.2)
DROPS = ["data/sequence/a", "data/sequence/b"]


def test_a_few_drops_are_told() -> None:
    assert judge_vanished(DROPS, View(known=50, listed=48), APPLY).told == tuple(DROPS)


@pytest.mark.parametrize("limits", [KEEP, APPLY])
@pytest.mark.parametrize(
    ("view", "word"),
    [
        (View(known=2, listed=0), "looks empty"),
        (View(known=50, listed=48, missing=("data/sequence",)), "missing"),
        (
            View(known=50, listed=48, bare=("data/sequence",), hollow=("data/sequence",)),
            "looks empty or not mounted: data/sequence",
        ),
    ],
)
def test_a_source_that_looks_lost_drops_nothing(limits: Limits, view: View, word: str) -> None:
    verdict = judge_vanished(DROPS, view, limits)
    assert (verdict.told, verdict.held) == ((), tuple(DROPS))
    assert word in verdict.reason


def test_a_folder_without_files_holds_back_what_would_be_removed() -> None:
    """Its last files may have been deleted whole, and it may be an empty mount point further down."""
    view = View(known=50, listed=48, bare=("data/sequence",))
    assert judge_vanished(DROPS, view, KEEP).told == tuple(DROPS)
    verdict = judge_vanished(DROPS, view, APPLY, explained=DROPS[:1])
    assert (verdict.told, verdict.held) == ((DROPS[0],), (DROPS[1],)) and "no TsFile any more" in verdict.reason


def test_a_folder_that_never_held_anything_is_no_reason() -> None:
    view = View(known=50, listed=48, missing=("data/unsequence",), bare=("disk2/sequence",))
    assert judge_vanished(DROPS, view, APPLY).reason == ""


@pytest.mark.parametrize(
    ("drops", "known", "held"),
    [(100, 10_000, False), (101, 10_000, True), (4, 20, False), (5, 20, True), (10, 19, False), (19, 19, False)],
)
def test_limits_of_apply(drops: int, known: int, held: bool) -> None:
    paths = [f"data/sequence/{n}" for n in range(drops)]
    assert bool(judge_vanished(paths, View(known, known - drops + 1), APPLY).held) is held
    assert not judge_vanished(paths, View(known, known - drops + 1), KEEP).held


def test_what_was_approved_goes_and_the_rest_is_judged_anew() -> None:
    assert judge_vanished(DROPS, View(known=2, listed=0), APPLY, approved=DROPS).told == tuple(DROPS)
    verdict = judge_vanished(DROPS, View(known=2, listed=0), APPLY, approved=DROPS[:1])
    assert (verdict.told, verdict.held) == ((DROPS[0],), (DROPS[1],))


def test_what_new_files_explain_has_no_limit() -> None:
    paths = [f"data/sequence/{n}" for n in range(500)]
    verdict = judge_vanished(paths, View(600, 101), APPLY, explained=paths)
    assert (verdict.told, verdict.reason) == (tuple(paths), "")
    verdict = judge_vanished(paths, View(600, 101), APPLY, explained=paths[:300])
    assert (verdict.told, verdict.held) == (tuple(paths[:300]), tuple(paths[300:]))
    assert verdict.reason == "200 files are gone, more than delete_limit_files = 100" and not verdict.away


@pytest.mark.parametrize("limits", [KEEP, APPLY])
@pytest.mark.parametrize(
    "view",
    [
        View(known=2, listed=0),
        View(known=50, listed=48, missing=("data/sequence",)),
        View(known=50, listed=48, bare=("data/sequence",), hollow=("data/sequence",)),
    ],
)
def test_no_file_explains_what_nobody_looked_for(limits: Limits, view: View) -> None:
    verdict = judge_vanished(DROPS, view, limits, explained=DROPS)
    assert (verdict.told, verdict.held, verdict.away) == ((), tuple(DROPS), True)


def test_a_compaction_may_empty_a_folder() -> None:
    view = View(known=50, listed=48, bare=("data/sequence",))
    assert judge_vanished(DROPS, view, APPLY, explained=DROPS).told == tuple(DROPS)
    assert judge_vanished(DROPS, view, APPLY, explained=DROPS[:1]).held == (DROPS[1],)


def test_no_drops_no_reason() -> None:
    assert judge_vanished([], View(known=0, listed=0, missing=("data/sequence",)), APPLY).reason == ""
