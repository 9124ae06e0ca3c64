"""The state processing flow: from a group as one round saw it to its new roles and to what is to be done. Pure.

Source: seed 003 "Master election flow", status rules 1–5.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.cluster.replicas.core.election import Restart, elect_master
from tidemark.cluster.replicas.core.quorum import has_majority
from tidemark.cluster.replicas.core.roles import Group, Member, Role


class Kind(enum.StrEnum):
    """The kinds of actions, in the words of the vectors (tests/data/tdengine_vectors.json)."""

    ELECT = "elect"  # begin its promotion
    SLAVE = "slave"  # in step without copying anything
    RECOVER = "recover"  # from `other`
    UNSYNC = "unsync"
    STEP_DOWN = "stepdown"  # the master, since `other` is ahead of it, or since it lacks what is committed
    STEP_DOWN_NEXT = "next-round stepdown"  # `other` is ahead of who was just elected
    RESET_LINKS = "reset-links"  # what was seen counts no more: elect after two new rounds
    DEMOTE = "demote"  # a second master
    LAGGING = "lagging-slave"  # behind the master, but with all that is known to be committed: it is caught up
    WAIT = "wait"


class Wait(enum.StrEnum):
    """What a group without a master waits for."""

    OFFLINE = "offline"  # its only member
    NO_MAJORITY = "no-majority"
    NO_CANDIDATE = "no-candidate"  # a majority is there, but nobody who surely has everything
    INCONSISTENT = "inconsistent"  # for a round that is like the one before


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done with a member. `other`: the source of a recovery, or who is ahead."""

    kind: Kind
    member: str = ""
    other: str = ""
    wait: Wait | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The group with its new roles, its master if it has one, and what is to be done, in order.

    A member that was just elected has the role MASTER here. Nobody may act by that before its promotion is decided
    (`epochs.judge_promotion`).
    """

    group: Group
    master: str | None
    actions: tuple[Action, ...]


def evaluate(group: Group, *, consistent: bool, restart: Restart = Restart.ALL) -> Evaluation:
    """Apply the status rules once. `consistent`: what was seen of the members is of one moment, since nothing changed while
    they were asked (status rule 3)."""
    if len(group.members) == 1:
        return _evaluate_single(group)
    if not has_majority(len(group.online), len(group.members), group.arbitrated):
        return _unsync_all(group, Wait.NO_MAJORITY)  # half of the members or fewer are online
    masters = [member for member in group.online if member.role is Role.MASTER]
    if masters:
        incumbent = max(masters, key=lambda member: member.end.position.epoch)  # the first of the newest epoch
        return _follow_incumbent(group, incumbent)
    if not consistent:
        return _wait(group, Wait.INCONSISTENT)
    elected = elect_master(group, restart)
    if elected is None:
        return _wait(group, Wait.NO_CANDIDATE)
    actions = [Action(Kind.ELECT, elected.name)]
    if ahead := _find_ahead(group, elected):
        actions.append(Action(Kind.STEP_DOWN_NEXT, elected.name, ahead.name))
    return _follow(group, elected, actions)


def _evaluate_single(group: Group) -> Evaluation:
    """One replica is always the master (the rules for choosing the master, 1)."""
    only = group.members[0]
    if not only.online:
        return _wait(group, Wait.OFFLINE)
    if not group.has_all_committed(only):
        return _unsync_all(group, Wait.NO_CANDIDATE)
    actions = () if only.role is Role.MASTER else (Action(Kind.ELECT, only.name),)
    return Evaluation(_with_roles(group, [(only, Role.MASTER)]), only.name, actions)


def _unsync_all(group: Group, why: Wait) -> Evaluation:
    """Nobody may go on, a master neither (status rule 1)."""
    falling = [member for member in group.online if member.role is not Role.UNSYNCED]
    found = _wait(_with_roles(group, [(member, Role.UNSYNCED) for member in falling]), why)
    return replace(found, actions=(*(Action(Kind.UNSYNC, member.name) for member in falling), *found.actions))


def _follow_incumbent(group: Group, incumbent: Member) -> Evaluation:
    """Keep the master, unless somebody is ahead of it or it lacks what is committed: then it is elected anew."""
    ahead = _find_ahead(group, incumbent)
    if ahead is None and group.has_all_committed(incumbent):
        return _follow(group, incumbent, [])
    masters = [member for member in group.online if member.role is Role.MASTER]
    actions = [Action(Kind.STEP_DOWN, incumbent.name, ahead.name if ahead else "")]
    actions += [Action(Kind.DEMOTE, member.name) for member in masters if member is not incumbent]
    actions.append(Action(Kind.RESET_LINKS))
    return Evaluation(_with_roles(group, [(member, Role.UNSYNCED) for member in masters]), None, tuple(actions))


def _follow(group: Group, master: Member, actions: list[Action]) -> Evaluation:
    """Give the others their roles behind this master (status rule 2)."""
    roles = [(master, Role.MASTER)]
    for member in group.online:
        if member is not master:
            role, found = _role_behind(group, master, member)
            roles.append((member, role))
            actions += found
    return Evaluation(_with_roles(group, roles), master.name, tuple(actions))


def _role_behind(group: Group, master: Member, member: Member) -> tuple[Role, list[Action]]:
    """Return the member's role and what is to be done. Equal positions with different records are not in step."""
    recover = Action(Kind.RECOVER, member.name, master.name)
    behind = member.end.position < master.end.position
    diverged = member.end.position == master.end.position and member.end.crc != master.end.crc
    in_step = not behind and not diverged
    if member.role is Role.SLAVE:
        if diverged or not group.has_all_committed(member):
            return Role.UNSYNCED, [Action(Kind.UNSYNC, member.name), recover]
        return Role.SLAVE, [Action(Kind.LAGGING, member.name)] if behind else []
    demoted = [Action(Kind.DEMOTE, member.name)] if member.role is Role.MASTER else []
    if in_step:
        return Role.SLAVE, [*demoted, Action(Kind.SLAVE, member.name)]
    return Role.UNSYNCED, [*demoted, recover]


def _find_ahead(group: Group, master: Member) -> Member | None:
    """Return the member with the highest position above the master's."""
    best = max(group.online, key=lambda member: member.end.position)
    return best if best.end.position > master.end.position else None


def _wait(group: Group, why: Wait) -> Evaluation:
    return Evaluation(group, None, (Action(Kind.WAIT, wait=why),))


def _with_roles(group: Group, roles: Iterable[tuple[Member, Role]]) -> Group:
    new = {member.name: role for member, role in roles}
    return replace(group, members=tuple(replace(m, role=new.get(m.name, m.role)) for m in group.members))
