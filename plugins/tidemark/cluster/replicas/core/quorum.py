"""The arithmetic of votes and acknowledgements, and what it says about an operation. Pure.

Source: seed 003 "Quorum", "Data forwarding flow", "The problem of a write that succeeds on a minority of virtual nodes".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.cluster.replicas.core.roles import Group, Role, find_master


def has_majority(present: int, size: int, arbitrated: bool) -> bool:
    """Tell whether `present` of `size` members are more than half; an arbitrator's vote makes both one more.

    Exactly half is no majority, whoever was master (seed 003 "Master election flow", status rule 1).
    """
    return 2 * (present + arbitrated) > size + arbitrated


def has_fence_quorum(fenced: int, group: Group, granted: bool) -> bool:
    """Tell whether an epoch that `fenced` members have voted for can be the only one in which something is committed.

    Each quorum of an older epoch then meets a fenced member, so it commits nothing any more, and what it has committed is
    seen. With a quorum of 1 this would need all members; such a group is asynchronous and a majority does.
    """
    size = len(group.members)
    meets_every_quorum = group.quorum == 1 or fenced > size - group.quorum
    return meets_every_quorum and has_majority(fenced, size, granted and group.even)


def has_barrier_quorum(holders: int, group: Group, granted: bool) -> bool:
    """Tell whether the barrier record lies at enough members for its master to become active."""
    return holders >= group.quorum and has_majority(holders, len(group.members), granted and group.even)


class Refusal(enum.StrEnum):
    """Why an operation gets no version now. The caller loses nothing by asking again."""

    NO_MASTER = "no master"
    NOT_ACTIVE = "the master is not active yet"
    STALE_VIEW = "members were not asked lately"
    TOO_FEW_MEMBERS = "fewer members in step than the quorum"
    UNRESOLVED = "the outcome of an earlier operation is unknown"
    QUEUE_FULL = "too many operations wait"


@dataclass(frozen=True, slots=True)
class Queue:
    """The operations of a group that have a version and no outcome. `unknown`: one of them ended in doubt."""

    waiting: int = 0
    limit: int = 200
    unknown: bool = False


def judge_admission(group: Group, queue: Queue, *, active: bool, fresh: bool) -> Refusal | None:
    """Say why a new operation is refused; None if it is admitted.

    It is asked before a version is given: a quorum never weakens in silence, as it does in the original when no
    slave can be reached. `active`: the master's barrier is at its quorum. `fresh`: the last round is recent.
    """
    if find_master(group) is None:
        return Refusal.NO_MASTER
    if not active:
        return Refusal.NOT_ACTIVE
    if not fresh:
        return Refusal.STALE_VIEW
    if sum(member.role in (Role.MASTER, Role.SLAVE) for member in group.members) < group.quorum:
        return Refusal.TOO_FEW_MEMBERS
    if queue.unknown:
        return Refusal.UNRESOLVED  # a pipeline stops at its first failure: no n failed, n + 1 succeeded
    return Refusal.QUEUE_FULL if queue.waiting >= queue.limit else None


class Outcome(enum.StrEnum):
    """What became of an operation. The seed's "failed" is UNKNOWN here: some members may have it."""

    PENDING = "pending"
    COMMITTED = "committed"
    UNKNOWN = "unknown"
    ABORTED = "aborted"  # no active master will ever have it


Answers = Mapping[str, bool]
"""Member → whether it acknowledged: the record is in its log, flushed. Members that said nothing are not in it."""


def judge_forward(group: Group, master: str, answers: Answers, *, expired: bool) -> Outcome:
    """Return the outcome of a forward so far (seed 003 "Data forwarding flow" 6–10).

    The master's own log counts as one acknowledgement, and must be among them. `expired`: the time for answers is over.
    """
    acknowledged = sum(answers.values())
    refused = len(answers) - acknowledged
    if answers.get(master) and acknowledged >= group.quorum:
        return Outcome.COMMITTED
    hopeless = answers.get(master) is False or refused > len(group.members) - group.quorum
    return Outcome.UNKNOWN if expired or hopeless else Outcome.PENDING


def find_committed(held: Sequence[int], unheard: int, quorum: int) -> tuple[int, bool]:
    """Return the last version that a quorum is seen to have, and whether no later one can be at a quorum.

    For readers without a ledger. `held`: how far each member that answers has the longest log. `unheard`: members that prove
    nothing: away, emptied, or with another log. Each of them may have all.
    """
    ranked = sorted(held, reverse=True)
    seen = ranked[quorum - 1] if len(ranked) >= quorum else 0
    return seen, unheard < quorum and len(ranked) >= quorum - unheard and ranked[quorum - unheard - 1] == seen


def find_left_behind(group: Group, answers: Answers) -> tuple[str, ...]:
    """Return the slaves that did not acknowledge a committed operation: they are unsynced from that moment on."""
    return tuple(m.name for m in group.members if m.role is Role.SLAVE and not answers.get(m.name))
