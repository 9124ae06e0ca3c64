"""The vectors of a group's roles: V01 to V40 from tests/data/tdengine_vectors.json, V41 to V51 and Q1 to Q14 by hand.

Those by hand follow seed 003; where TDengine's code differs from the seed, or the seed is unsafe, the test says which it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.cluster.replicas.core import quorum
from tidemark.cluster.replicas.core.election import Restart, elect_master, force_master
from tidemark.cluster.replicas.core.epochs import Promotion, Vote, judge_promotion
from tidemark.cluster.replicas.core.quorum import Outcome, judge_forward
from tidemark.cluster.replicas.core.roles import (
    ORIGIN,
    Arbitrator,
    Group,
    LogEnd,
    Member,
    Position,
    Role,
    find_master,
)
from tidemark.cluster.replicas.core.status import Action, Evaluation, Kind, Wait, evaluate

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data/tdengine_vectors.json").read_text(encoding="utf-8")
)
LETTERS = {"M": Role.MASTER, "S": Role.SLAVE, "U": Role.UNSYNCED, "O": Role.OFFLINE}
TOLD = re.compile(r"(?P<kind>[a-z -]+?)(?: (?P<member>[A-Z]))?(?:<-(?P<source>[A-Z])| \(peer (?P<peer>[A-Z]) has \d+\))?")


def group(text: str, **facts: Any) -> Group:
    """A group from words like "A:M10 B:S9 C:O"; "A:U1/15" is in epoch 1, otherwise all are in epoch 1 as well."""
    members = []
    for word in text.split():
        name, state = word.split(":")
        epoch, _, version = state[1:].rpartition("/")
        end = LogEnd(Position(int(epoch or 1), int(version)), 0) if version else ORIGIN
        members.append(Member(name, LETTERS[state[0]], end))
    return Group(tuple(members), **facts)


def roles(found: Evaluation) -> str:
    letters = {role: letter for letter, role in LETTERS.items()}
    return " ".join(f"{m.name}:{letters[m.role]}" for m in found.group.members)


def told(action: str) -> Action:
    if action.startswith("wait "):
        return Action(Kind.WAIT, wait=Wait(action.removeprefix("wait ")))
    found = TOLD.fullmatch(action)
    assert found, action
    return Action(Kind(found["kind"]), found["member"] or "", found["source"] or found["peer"] or "")


def from_json(replicas: list[dict[str, Any]], arbitrator: str = "none") -> Group:
    members = (Member(r["id"], Role(r["role"]), LogEnd(Position(1, r["version"] or 0), 0)) for r in replicas)
    return Group(tuple(members), arbitrator=Arbitrator(arbitrator))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["id"]))
def test_vectors(vector: dict[str, Any]) -> None:
    expected = vector["expected"]
    found = evaluate(from_json(vector["replicas"], vector["arbitrator"]), consistent=vector["consistent"])
    assert found.master == expected["master"]
    assert found.group.members == from_json(expected["replicas"]).members
    # The vectors do not name who is ahead of a master that was just elected.
    plain = [replace(a, other="") if a.kind is Kind.STEP_DOWN_NEXT else a for a in found.actions]
    assert plain == [told(action) for action in expected["actions"]]


def test_v41_a_master_that_stops_is_replaced_without_copying() -> None:
    found = evaluate(group("A:O B:S5 C:S5"), consistent=True)
    assert (found.master, found.actions) == ("B", (Action(Kind.ELECT, "B"),))


@pytest.mark.parametrize(
    ("back", "after", "kinds"),
    [
        ("A:U5 B:M5 C:S5", "A:S B:M C:S", [Kind.SLAVE]),
        ("A:U3 B:M5 C:S5", "A:U B:M C:S", [Kind.RECOVER]),
        ("A:U8 B:M5 C:S5", "A:U B:U C:S", [Kind.STEP_DOWN, Kind.RESET_LINKS]),
    ],
)
def test_v42_the_old_master_returns_in_the_same_epoch(back: str, after: str, kinds: list[Kind]) -> None:
    found = evaluate(group(back), consistent=True)
    assert (roles(found), [action.kind for action in found.actions]) == (after, kinds)


def test_v42_the_one_ahead_is_then_elected_and_both_others_are_caught_up() -> None:
    found = evaluate(group("A:U8 B:U5 C:S5"), consistent=True)
    assert found.master == "A"
    assert [(a.kind, a.member) for a in found.actions[1:]] == [(Kind.RECOVER, "B"), (Kind.LAGGING, "C")]


def test_v43_a_majority_without_a_slave_waits_or_elects_by_intersection() -> None:
    """The seed waits until A is back. By choice a group elects as soon as each quorum has a member among those online."""
    flapped = group("A:O B:U10 C:U9", quorum=2)
    assert evaluate(flapped, consistent=True).actions == (Action(Kind.WAIT, wait=Wait.NO_CANDIDATE),)
    assert evaluate(flapped, consistent=True, restart=Restart.INTERSECT).master == "B"
    asynchronous = replace(flapped, quorum=1)
    assert evaluate(asynchronous, consistent=True, restart=Restart.INTERSECT).master is None


def test_v44_an_arbitrator_that_is_back_counts_in_the_next_round() -> None:
    """In the original B stays unsynced for hours, since nothing evaluates it again."""
    lost = evaluate(group("A:O B:S5", arbitrator=Arbitrator.OFFLINE), consistent=True)
    assert roles(lost) == "A:O B:U"
    back = replace(lost.group, arbitrator=Arbitrator.ONLINE, quorum=2)
    assert evaluate(back, consistent=True, restart=Restart.INTERSECT).master == "B"


def test_v45_the_arbitrator_grants_an_epoch_to_one_of_two_that_do_not_see_each_other() -> None:
    """The original's counts for both, and both become master. Here it is the ledger, which gives an epoch once."""
    alone = [Vote("B", LogEnd(Position(1, 5), 0))]
    halves = group("A:O B:S5", quorum=2)
    assert judge_promotion(halves, "B", alone, granted=False) is Promotion.WAIT
    assert judge_promotion(halves, "B", alone, granted=True) is Promotion.WRITE_BARRIER


@pytest.mark.parametrize("half", ["A:M5 B:O", "A:M5 B:S5 C:O D:O"], ids=["v46", "v47"])
def test_an_incumbent_at_exactly_half_goes(half: str) -> None:
    """TDengine's late code keeps it, and the other half elects with the arbitrator's vote: two masters. The seed decides."""
    assert evaluate(group(half), consistent=True).master is None


def test_v48_acknowledged_operations_beat_unacknowledged_ones_of_an_older_epoch() -> None:
    """In the original A wins with version 15, and what B and C acknowledged is lost."""
    found = evaluate(group("A:U1/15 B:M2/12 C:S2/12"), consistent=True)
    assert (found.master, found.actions) == ("B", (Action(Kind.RECOVER, "A", "B"),))
    restarted = evaluate(group("A:U1/15 B:U2/12 C:U2/12"), consistent=True)
    assert restarted.master == "B" and Action(Kind.RECOVER, "A", "B") in restarted.actions


def test_v49_equal_versions_with_different_records_are_not_in_step() -> None:
    """In the original A becomes a slave without copying anything, and differs for ever."""
    found = evaluate(group("A:U1/15 B:M2/15 C:S2/15"), consistent=True)
    assert found.actions == (Action(Kind.RECOVER, "A", "B"),)
    master, other = LogEnd(Position(1, 15), 1), LogEnd(Position(1, 15), 2)
    for role, first in ((Role.UNSYNCED, []), (Role.SLAVE, [Kind.UNSYNC]), (Role.MASTER, [Kind.DEMOTE])):
        seen = Group((Member("A", Role.MASTER, master), Member("B", role, other)))
        found = evaluate(seen, consistent=True)
        assert roles(found) == "A:M B:U" and [a.kind for a in found.actions] == [*first, Kind.RECOVER]


def test_v50_a_restarted_group_serves_once_all_are_back() -> None:
    assert evaluate(group("A:U5 B:O C:O"), consistent=True).master is None
    assert evaluate(group("A:U5 B:U6 C:O"), consistent=True).master is None
    assert evaluate(group("A:U5 B:U6 C:U7"), consistent=True).master == "C"


def test_v51_an_arbitrator_beside_an_odd_group_does_not_count() -> None:
    """TDengine's code counts it and keeps the master. The seed decides."""
    assert roles(evaluate(group("A:M5 B:O C:O", arbitrator=Arbitrator.ONLINE), consistent=True)) == "A:U B:O C:O"


@pytest.mark.parametrize("seen", ["A:S10 B:O C:S9", "A:U10 B:U9 C:U8", "A:M10 B:S10 C:S9"])
def test_nobody_is_master_who_lacks_what_is_committed(seen: str) -> None:
    found = evaluate(group(seen, committed=Position(1, 11)), consistent=True)
    assert found.master is None


def test_one_replica_without_what_is_committed_serves_nobody() -> None:
    found = evaluate(group("A:M3", committed=Position(1, 4)), consistent=True)
    assert (roles(found), found.master) == ("A:U", None)
    assert found.actions == (Action(Kind.UNSYNC, "A"), Action(Kind.WAIT, wait=Wait.NO_CANDIDATE))


def test_a_slave_that_lacks_a_committed_operation_is_unsynced_at_once() -> None:
    found = evaluate(group("A:M10 B:S9 C:S10", committed=Position(1, 10)), consistent=True)
    assert roles(found) == "A:M B:U C:S"
    assert found.actions == (Action(Kind.UNSYNC, "B"), Action(Kind.RECOVER, "B", "A"))


def test_two_masters_and_the_second_is_ahead_both_go() -> None:
    found = evaluate(group("A:M9 B:M10 C:S9"), consistent=True)
    assert roles(found) == "A:U B:U C:S"
    assert [a.kind for a in found.actions] == [Kind.STEP_DOWN, Kind.DEMOTE, Kind.RESET_LINKS]


def test_a_master_of_a_newer_epoch_is_the_master() -> None:
    assert evaluate(group("A:M1/9 B:M2/7 C:S2/7"), consistent=True).master == "B"


def test_what_an_operator_forces_says_what_it_risks() -> None:
    forced = force_master(group("A:O B:U7 C:U9", committed=Position(1, 10)))
    assert forced and (forced.master.name, forced.absent, forced.loses_committed) == ("C", ("A",), True)
    assert force_master(group("A:O B:O")) is None


def test_two_masters_are_none() -> None:
    assert find_master(group("A:M9 B:M9")) is None


def forward(text: str, needed: int, answers: dict[str, bool], *, expired: bool = False) -> Outcome:
    return judge_forward(group(text, quorum=needed), "A", answers, expired=expired)


def test_q1_a_quorum_of_one_waits_for_the_master_alone() -> None:
    assert forward("A:M B:S C:S", 1, {"A": True}) is Outcome.COMMITTED


def test_q2_the_first_of_two_slaves_is_enough_for_a_quorum_of_two() -> None:
    assert forward("A:M B:S C:S", 2, {"A": True}) is Outcome.PENDING
    assert forward("A:M B:S C:S", 2, {"A": True, "B": True}) is Outcome.COMMITTED


def test_q3_a_silent_member_of_a_full_quorum_leaves_it_unknown() -> None:
    """The seed calls it failed. Some members have it, so nobody knows yet."""
    assert forward("A:M B:S C:S", 3, {"A": True, "B": True}) is Outcome.PENDING
    assert forward("A:M B:S C:S", 3, {"A": True, "B": True}, expired=True) is Outcome.UNKNOWN


@pytest.mark.parametrize(("text", "needed"), [("A:M B:S C:S", 2), ("A:M B:S C:S D:S E:S", 2)], ids=["q4", "q5"])
def test_all_silent(text: str, needed: int) -> None:
    assert forward(text, needed, {"A": True}) is Outcome.PENDING
    assert forward(text, needed, {"A": True}, expired=True) is Outcome.UNKNOWN


def test_as_many_refusals_as_make_the_quorum_impossible_end_it_at_once() -> None:
    assert forward("A:M B:S C:S", 2, {"A": True, "B": False}) is Outcome.PENDING
    assert forward("A:M B:S C:S", 2, {"A": True, "B": False, "C": False}) is Outcome.UNKNOWN
    assert forward("A:M B:S C:S", 2, {"A": False, "B": True, "C": True}) is Outcome.UNKNOWN


def test_q6_who_has_the_operation_wins_and_the_others_get_it() -> None:
    found = evaluate(group("A:U11 B:U11 C:U10"), consistent=True)
    assert found.master == "A" and Action(Kind.RECOVER, "C", "A") in found.actions


def test_q7_an_operation_of_a_dead_master_alone_vanishes() -> None:
    master = elect_master(group("A:O11 B:S10 C:S10"))
    assert master and master.end.position.version == 10


def test_q8_a_quorum_never_weakens_in_silence() -> None:
    """TDengine's code reports success with one copy when no slave can be reached. The seed decides."""
    even = group("A:M5 B:O", quorum=2, arbitrator=Arbitrator.ONLINE)
    assert judge_forward(even, "A", {"A": True}, expired=True) is Outcome.UNKNOWN
    assert not quorum.has_barrier_quorum(1, even, granted=True)


def test_q10_a_member_in_its_cache_phase_acknowledges_as_others() -> None:
    assert forward("A:M B:U C:O", 2, {"A": True, "B": True}) is Outcome.COMMITTED
