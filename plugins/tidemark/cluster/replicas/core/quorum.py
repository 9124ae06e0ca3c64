"""The arithmetic of votes and acknowledgements, and what it says about an operation. Pure.

Source: seed 003 "Quorum", "Data forwarding flow", "The problem of a write that succeeds on a minority of virtual nodes".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from tidemark.cluster.replicas.core.roles import Group


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


class Outcome(enum.StrEnum):
    """What became of an operation. The seed's "failed" is UNKNOWN here: some members may have it."""

    PENDING = "pending"
    COMMITTED = "committed"
    UNKNOWN = "unknown"


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
