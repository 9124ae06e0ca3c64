"""Who may append to a node's log, who becomes the only master of an epoch, and who is replaced or goes home."""

from __future__ import annotations

import pytest

from tidemark.cluster.replicas.core.continuity import Log, Record
from tidemark.cluster.replicas.core.epochs import (
    Fence,
    Promotion,
    Verdict,
    Vote,
    judge_append,
    judge_fence,
    judge_promotion,
)
from tidemark.cluster.replicas.core.placement import Kept, Replacement, Switchover, plan_replacement, plan_switchovers
from tidemark.cluster.replicas.core.quorum import has_barrier_quorum
from tidemark.cluster.replicas.core.roles import ORIGIN, Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.core.status import evaluate
from tidemark.cluster.slots.hash_ring import Node, Ring, identifier_of

FIRST = Record(Position(1, 1), 11, 0, "op 1")
SECOND = Record(Position(1, 2), 22, 11, "op 2")
BARRIER = Record(Position(2, 3), 33, 22, "barrier")
LOG = Log(ORIGIN, (FIRST, SECOND))
HELD = Fence("centre", 1, "A")
NEWER = Fence("centre", 2, "B")


@pytest.mark.parametrize(
    ("writer", "record", "verdict"),
    [
        (HELD, Record(Position(1, 3), 30, 22), Verdict.ACCEPT),
        (NEWER, BARRIER, Verdict.ACCEPT),
        (NEWER, Record(Position(1, 3), 30, 22), Verdict.ACCEPT),  # a recovery brings an older epoch's record
        (HELD, SECOND, Verdict.DUPLICATE),
        (HELD, FIRST, Verdict.DUPLICATE),
        (HELD, Record(Position(1, 4), 40, 30), Verdict.GAP),
        (HELD, Record(Position(1, 2), 99, 11), Verdict.CONFLICT),  # another record has its place
        (HELD, Record(Position(1, 3), 30, 99), Verdict.CONFLICT),  # the chain does not fit
        (HELD, BARRIER, Verdict.CONFLICT),  # an epoch that the writer does not have
        (Fence("other", 9, "A"), Record(Position(9, 3), 30, 22), Verdict.FOREIGN),
        (Fence("centre", 1, "B"), Record(Position(1, 3), 30, 22), Verdict.RIVAL),
        (Fence("centre", 0, "A"), Record(Position(0, 3), 30, 22), Verdict.STALE),
    ],
)
def test_what_a_node_answers_to_an_append(writer: Fence, record: Record, verdict: Verdict) -> None:
    assert judge_append(HELD, LOG, writer, record) is verdict


def test_q11_a_record_that_comes_twice_is_acknowledged_once_more() -> None:
    assert judge_append(HELD, LOG, HELD, SECOND) is Verdict.DUPLICATE


def test_q14_a_version_too_many_is_a_gap_and_the_member_is_recovered() -> None:
    assert judge_append(HELD, LOG, HELD, Record(Position(1, 4), 40, 30)) is Verdict.GAP


def test_a_record_below_what_a_log_keeps_is_not_said_to_be_there() -> None:
    trimmed = Log(FIRST.end, (SECOND,))
    assert judge_append(HELD, trimmed, HELD, FIRST) is Verdict.CONFLICT


def test_an_emptied_node_appends_nothing_before_it_is_recovered() -> None:
    assert judge_append(None, Log(ORIGIN), HELD, FIRST) is Verdict.UNFENCED


def test_a_worker_that_wakes_up_after_an_hour_writes_nothing() -> None:
    late = Record(Position(1, 3), 30, 22, "late")
    assert judge_append(NEWER, LOG, HELD, late) is Verdict.STALE
    assert judge_append(NEWER, Log(ORIGIN, (FIRST, SECOND, BARRIER)), HELD, late) is Verdict.STALE


def test_a_node_votes_once_an_epoch() -> None:
    assert judge_fence(HELD, HELD) is judge_fence(HELD, NEWER) is judge_fence(None, HELD) is Verdict.ACCEPT
    assert judge_fence(NEWER, HELD) is Verdict.STALE
    assert judge_fence(NEWER, Fence("centre", 2, "C")) is Verdict.RIVAL
    assert judge_fence(NEWER, Fence("other", 3, "B")) is Verdict.FOREIGN


def three(quorum: int) -> Group:
    return Group(tuple(Member(name, Role.SLAVE) for name in "ABC"), quorum)


def vote(name: str, epoch: int, version: int, crc: int = 0, *, intact: bool = True) -> Vote:
    return Vote(name, LogEnd(Position(epoch, version), crc), intact)


@pytest.mark.parametrize(
    ("votes", "decision"),
    [
        ([vote("B", 1, 9)], Promotion.WAIT),
        ([vote("A", 1, 9), vote("C", 1, 9)], Promotion.WAIT),  # the candidate itself has not voted
        ([vote("B", 1, 9), vote("C", 1, 8)], Promotion.WRITE_BARRIER),
        ([vote("B", 1, 9), vote("C", 1, 12)], Promotion.GIVE_UP),  # V11: a barrier now would beat version 12
        ([vote("B", 2, 9), vote("C", 1, 12)], Promotion.WRITE_BARRIER),
        ([vote("B", 1, 9), vote("C", 1, 9, crc=7)], Promotion.GIVE_UP),
        ([vote("B", 1, 9), vote("C", 0, 0, intact=False)], Promotion.WAIT),  # C may have had version 10
        ([vote("A", 0, 0, intact=False), vote("B", 1, 9), vote("C", 0, 0, intact=False)], Promotion.WRITE_BARRIER),  # V37
    ],
)
def test_what_a_candidate_does_by_the_oaths_it_has(votes: list[Vote], decision: Promotion) -> None:
    assert judge_promotion(three(2), "B", votes) is decision


def test_a_small_quorum_needs_more_oaths_than_a_majority() -> None:
    """An operation of quorum 2 may lie at two of five. Three votes may all be others'."""
    five = Group(tuple(Member(name, Role.SLAVE) for name in "ABCDE"), 2)
    votes = [vote(name, 1, 9) for name in "BCDE"]
    assert judge_promotion(five, "B", votes[:3]) is Promotion.WAIT
    assert judge_promotion(five, "B", votes) is Promotion.WRITE_BARRIER


def test_a_master_is_active_once_its_barrier_is_at_the_quorum_and_a_majority() -> None:
    assert [has_barrier_quorum(holders, three(1), granted=False) for holders in (1, 2)] == [False, True]
    assert [has_barrier_quorum(holders, three(3), granted=False) for holders in (2, 3)] == [False, True]


def seen(text: str, quorum: int = 2) -> Group:
    letters = {"M": Role.MASTER, "S": Role.SLAVE, "U": Role.UNSYNCED, "O": Role.OFFLINE}
    return Group(tuple(Member(word[0], letters[word[2]]) for word in text.split()), quorum)


DAY = 86400.0


@pytest.mark.parametrize(
    ("group", "away", "spares", "found"),
    [
        ("A:M B:S C:O", {"C": DAY}, {"D": 2, "E": 1}, Replacement("C", "E", ("A", "B", "E"))),
        ("A:O B:S C:M", {"A": DAY}, {"D": 1, "B": 0}, Replacement("A", "D", ("D", "B", "C"))),
        ("A:M B:S C:S D:O E:O", {"D": DAY, "E": 2 * DAY}, {"F": 1}, Replacement("E", "F", ("A", "B", "C", "D", "F"))),
        ("A:M B:S C:O", {"C": DAY - 1}, {"D": 1}, Kept.NOBODY_AWAY),
        ("A:M B:S C:U", {"C": DAY}, {"D": 1}, Kept.NOBODY_AWAY),
        ("A:S B:S C:O", {"C": DAY}, {"D": 1}, Kept.NO_MASTER),
        ("A:M B:U C:O", {"C": DAY}, {"D": 1}, Kept.BELOW_QUORUM),
        ("A:M B:S C:O", {"C": DAY}, {"A": 1}, Kept.NO_SPARE),
    ],
)
def test_a_member_that_stays_away_is_replaced_where_nothing_is_risked(
    group: str, away: dict[str, float], spares: dict[str, float], found: Replacement | Kept
) -> None:
    assert plan_replacement(seen(group), away, spares, after_s=DAY) == found


def test_a_master_goes_home_once_the_first_of_its_list_is_in_step() -> None:
    behind = Group((Member("A", Role.SLAVE), Member("B", Role.MASTER, LogEnd(Position(1, 3), 0))))
    groups = {"g1": seen("A:S B:M C:S"), "g2": seen("A:M B:S C:S"), "g3": seen("A:U B:M C:S"), "g4": behind}
    assert plan_switchovers(groups) == (Switchover("g1", "B", "A"),)


def test_groups_of_a_ring_elect_one_master_at_each_node() -> None:
    """The seed's example: the lists [1, 2, 3], [2, 3, 1], [3, 1, 2] spread masters evenly."""
    ring = Ring([Node(identifier_of(name), name) for name in ("n1", "n2", "n3", "n4", "n5")])
    groups = [ring.group_of_header(name, 3) for name in ring.names]
    masters = [evaluate(Group(tuple(Member(n, Role.UNSYNCED) for n in names)), consistent=True).master for names in groups]
    assert masters == list(ring.names)
