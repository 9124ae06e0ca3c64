"""Where members and masters belong: a member that stays away is replaced; masters go home to the first of their list. Pure.

Source: seed 003 "The problem of even Master distribution", "Data replication of Meta Data" (characteristic 2).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.cluster.replicas.core.quorum import has_majority
from tidemark.cluster.replicas.core.roles import Group, Role, find_master


class Kept(enum.StrEnum):
    """Why no member is replaced."""

    NOBODY_AWAY = "nobody is away for so long"
    NO_MASTER = "the group has no master"
    BELOW_QUORUM = "fewer members in step than the quorum"
    NO_SPARE = "no other node"


@dataclass(frozen=True, slots=True)
class Replacement:
    """`new` takes the place of `gone` in the list, and the group's generation grows by one.

    It begins unsynced and without a fence: its votes are not intact before it is recovered.
    """

    gone: str
    new: str
    members: tuple[str, ...]


def plan_replacement(
    group: Group, away_s: Mapping[str, float], spares: Mapping[str, float], *, after_s: float
) -> Replacement | Kept:
    """Replace the member that is offline for the longest, if that is at least `after_s`. One at a time.

    `away_s`: member → seconds offline, by the database's clock. `spares`: node → load; the least loaded is taken. Without a
    master nobody is replaced: the member that is away may be the only one that has everything.
    """
    gone = [m.name for m in group.members if m.role is Role.OFFLINE and away_s.get(m.name, 0) >= after_s]
    if not gone:
        return Kept.NOBODY_AWAY
    if find_master(group) is None:
        return Kept.NO_MASTER
    in_step = sum(m.role in (Role.MASTER, Role.SLAVE) and group.has_all_committed(m) for m in group.members)
    if in_step < group.quorum or not has_majority(in_step, len(group.members), group.arbitrated):
        return Kept.BELOW_QUORUM
    names = [member.name for member in group.members]
    free = sorted(spares.keys() - set(names), key=lambda node: (spares[node], node))
    if not free:
        return Kept.NO_SPARE
    longest = max(gone, key=lambda name: away_s[name])
    return Replacement(longest, free[0], tuple(free[0] if name == longest else name for name in names))


def describe_unreplaced(gone: str, quorum: int, size: int) -> str:
    """Say in one sentence why nobody replaces `gone` by itself, and what does; "" if a group of `size` can do without it."""
    if quorum < size:
        return ""
    if size == 1:
        return f"with one replica nobody replaces {gone}: bring it back, or its files are those of the sites"
    return (
        f"with a quorum of all {size} replicas nobody replaces {gone} by itself: bring it back, or set [cluster] quorum ="
        f" {size - 1} until ./tidemark replica replace has done it"
    )


@dataclass(frozen=True, slots=True)
class Switchover:
    """A planned change of the master."""

    group: str
    old: str
    new: str


def plan_switchovers(groups: Mapping[str, Group]) -> tuple[Switchover, ...]:
    """Return the masters that go home: the first member of the list is a slave in step with the master.

    Lists come from the ring, so each node is the first of one group and masters at home are spread evenly.
    """
    found = []
    for name, group in groups.items():
        master, first = find_master(group), group.members[0]
        if master is not None and first.role is Role.SLAVE and first.end == master.end:
            found.append(Switchover(name, master.name, first.name))
    return tuple(found)
