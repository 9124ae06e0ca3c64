"""Who becomes master. A pure function of the group, so everybody who sees the same elects the same; nobody votes.

Source: seed 003 "Master election flow", the rules for choosing the master 1–4.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemark.cluster.replicas.core.quorum import has_majority
from tidemark.cluster.replicas.core.roles import Group, Member, Role


class Restart(enum.StrEnum):
    """Who must be back when no slave is left, as after a restart of all.

    ALL: every member, since one that is away may have the newest operation (seed 003 "Master election flow", last
    paragraph). INTERSECT: so many that each quorum has one among them.
    """

    ALL = "all"
    INTERSECT = "intersect"


def elect_master(group: Group, restart: Restart = Restart.ALL) -> Member | None:
    """Return the member that becomes master of a group that has none; None if nobody may. The view must be consistent.

    Highest position first, then list order. With several slaves the seed lets list order decide alone; the highest
    position is right, as the first would step down at once. Nobody becomes master who lacks an operation that is
    known to be committed.
    """
    candidates = [member for member in _find_candidates(group, restart) if group.has_all_committed(member)]
    return max(candidates, key=lambda member: member.end.position, default=None)  # max() keeps the first of equals


def _find_candidates(group: Group, restart: Restart) -> tuple[Member, ...]:
    size, online = len(group.members), group.online
    if len(online) == size:
        return online
    if not has_majority(len(online), size, group.arbitrated):
        return ()
    if restart is Restart.INTERSECT and len(online) > size - group.quorum:
        return online
    return tuple(member for member in online if member.role in (Role.SLAVE, Role.MASTER))


@dataclass(frozen=True, slots=True)
class Forced:
    """A master that an operator takes against the rules. `absent`: members that may have what is lost with it."""

    master: Member
    absent: tuple[str, ...]
    loses_committed: bool


def force_master(group: Group) -> Forced | None:
    """Return the best master that is online, and what taking it risks; None if nobody is online."""
    best = max(group.online, key=lambda member: member.end.position, default=None)
    if best is None:
        return None
    absent = tuple(member.name for member in group.members if not member.online)
    return Forced(best, absent, not group.has_all_committed(best))
