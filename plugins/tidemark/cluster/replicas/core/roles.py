"""A data group as values: positions in its log, and members with their roles. Pure.

Source: seed 003 "Version", "Role", "Basic working principle of the data replication module".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """The role of a member. OFFLINE is only ever what others say of it (seed 003 "Role")."""

    MASTER = "master"  # has the newest data and takes operations; a group has one at most
    SLAVE = "slave"  # in step with the master; readers may ask it
    UNSYNCED = "unsynced"  # lacks something, or may lack it; nobody reads it
    OFFLINE = "offline"  # cannot be reached


class Arbitrator(enum.StrEnum):
    """The extra vote of a group with an even number of members (seed 003 "The Split Brain problem")."""

    NONE = "none"
    OFFLINE = "offline"
    ONLINE = "online"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a group's log. The epoch counts first: versions of two masters are not comparable without it.

    Versions begin at 1 and have no gap (seed 003 "Version"). Each promotion begins an epoch.
    """

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The last record of a log. Logs that end alike are alike: each record's CRC covers the CRC of the one before it."""

    position: Position
    crc: int


ORIGIN = LogEnd(Position(0, 0), 0)
"""The end of a log without a record."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. `end` means nothing while it is offline."""

    name: str
    role: Role
    end: LogEnd = ORIGIN

    @property
    def online(self) -> bool:
        return self.role is not Role.OFFLINE


@dataclass(frozen=True, slots=True)
class Group:
    """A data group as one round saw it. `members` in list order: earlier ones win ties.

    `quorum`: acknowledgements that commit an operation, 1 to the number of members. `committed`: the last position that is
    known to be committed; it may be older than the truth, never newer.
    """

    members: tuple[Member, ...]
    quorum: int = 1
    arbitrator: Arbitrator = Arbitrator.NONE
    committed: Position = ORIGIN.position

    @property
    def online(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.online)

    @property
    def even(self) -> bool:
        return len(self.members) % 2 == 0

    @property
    def arbitrated(self) -> bool:
        """Whether the arbitrator's vote counts now: it answers, and the number of members is even."""
        return self.even and self.arbitrator is Arbitrator.ONLINE

    def has_all_committed(self, member: Member) -> bool:
        return member.end.position >= self.committed


def find_master(group: Group) -> Member | None:
    """Return the group's master. None if it has none, or, which must not be, two."""
    masters = [member for member in group.members if member.role is Role.MASTER]
    return masters[0] if len(masters) == 1 else None
