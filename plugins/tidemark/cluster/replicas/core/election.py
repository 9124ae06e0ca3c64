"""Who becomes master. A pure function of the group, so everybody who sees the same elects the same; nobody votes.

Source: seed 003 "Master election flow", the rules for choosing the master 1–4 and status rule 3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemark.cluster.replicas.core.quorum import has_majority
from tidemark.cluster.replicas.core.roles import Group, Member, Role


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of questions to all members found. `generation` grows when the group's members change.

    `busy`: a task of the group's own, a forward or a recovery, runs under the epoch in force.
    """

    number: int
    generation: int
    group: Group
    busy: bool = False


def find_unsettled(before: Round, now: Round) -> tuple[str, ...]:
    """Return the members for whose sake the view is not consistent; empty if an election may follow.

    Two rounds take the place of the tables that the seed's nodes compare (status rule 3). Each member that is not offline
    must have answered in this round, and nothing of it may differ from the round before. What an offline one last
    had does not count.
    """
    if now.busy or now.generation != before.generation or now.number <= before.number:
        return tuple(member.name for member in now.group.members)
    last = {member.name: member for member in before.group.members}
    return tuple(member.name for member in now.group.members if not _is_settled(last.get(member.name), member, now.number))


def _is_settled(before: Member | None, now: Member, number: int) -> bool:
    if before is None or before.role is not now.role:
        return False
    return not now.online or (now.heard == number and before.end == now.end)


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
