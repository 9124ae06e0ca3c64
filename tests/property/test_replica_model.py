"""The model check of the replica rules: no interleaving breaks a promise, and a rule that is left out is found out.

`replica_model.py` says what a step is. The default suite goes through the first waves; the whole spaces are marked `soak`,
their sizes stand in docs/replication.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replica_model import Explored, explore
from tests.replica_states import Bounds, Rules

SPACES = {
    "two workers": Bounds(losses=0, copies=0, rebuilds=0, recoveries=1),
    "a group without a log": Bounds(losses=0, copies=0, rebuilds=0, recoveries=1, fresh=True),
    "a lost disk": Bounds(losses=1, copies=0, rebuilds=0, recoveries=0),
    "an older ledger": Bounds(losses=0, copies=1, rebuilds=0, recoveries=0),
    "a rebuilt ledger": Bounds(losses=0, copies=0, rebuilds=1, recoveries=0),
}


def found(explored: Explored) -> str:
    print(f"{explored.states} states, {explored.steps} steps", *explored.trace, sep="\n  ")
    return explored.violation


@pytest.mark.full_after(1)
@pytest.mark.parametrize("space", list(SPACES))
def test_the_first_waves_keep_every_promise(space: str) -> None:
    assert found(explore(replace(SPACES[space], states=1500))) == ""


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("space", list(SPACES))
def test_every_interleaving_keeps_every_promise(space: str) -> None:
    explored = explore(SPACES[space])
    assert found(explored) == ""
    assert explored.whole


def test_an_emptied_log_that_counted_as_an_answer_is_found_out() -> None:
    """Its member may have had the operation, lost its disk and voted anew: the others alone are no quorum against it."""
    explored = explore(Bounds(losses=1, copies=0, rebuilds=0, recoveries=0), Rules(silent=False))
    assert found(explored).endswith("alone tell an older catalog")
    assert any("loses its disk" in step for step in explored.trace)


@pytest.mark.full
def test_a_promotion_without_a_barrier_is_found_out() -> None:
    """A late record of the old epoch lies above the new master's log then: the next election goes to whoever has it."""
    bounds = Bounds(workers=3, operations=1, losses=0, copies=0, rebuilds=0, recoveries=0, underway=True)
    explored = explore(bounds, Rules(barrier=False))
    assert found(explored) == "a ledger that was never restored is called older than its nodes"
    assert any("is master at once" in step for step in explored.trace)


@pytest.mark.full
def test_a_log_that_was_emptied_and_counted_before_it_had_all_again_is_found_out() -> None:
    """It ends where a member ends that missed the operation: the two agree on something older."""
    bounds = Bounds(losses=1, copies=0, rebuilds=0, recoveries=0, underway=True)
    explored = explore(bounds, Rules(filling=False))
    assert found(explored).endswith("alone tell an older catalog")
    assert any(step.endswith("1 records") for step in explored.trace)


COPIED = Bounds(operations=1, losses=0, copies=1, rebuilds=0, recoveries=0, underway=True)
"""The ledger is copied while a commit is at work, among other moments."""


@pytest.mark.full
def test_a_copy_of_the_ledger_from_the_middle_of_a_commit_takes_nothing_back() -> None:
    explored = explore(COPIED)
    assert found(explored) == "" and explored.whole


@pytest.mark.full
def test_a_copy_that_says_what_was_at_work_is_found_out() -> None:
    explored = explore(COPIED, Rules(unmarked=False))
    assert found(explored).endswith("alone tell an older catalog")
    assert "the ledger is restored from the copy" in explored.trace
