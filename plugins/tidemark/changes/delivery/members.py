"""Which member of a task holds which shard. Pure; what acts on it is `stream`.

A member has a lease of its own, `task:NAME/member-N`, and one for each shard that it holds, `task:NAME/N`. All that members
know of each other stands in these rows. Each decides by itself who should hold what, and does its own part: gives what is
too much, takes what is free. Where they saw different things, the leases decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.ledger.leases import LeaseRow

_NAME = re.compile(r"task:(?P<task>[^/]+)/(?:member-(?P<member>\d+)|(?P<shard>\d+))")


def lease_prefix(task: str) -> str:
    return f"task:{task}/"


def shard_lease(task: str, shard: int) -> str:
    return f"task:{task}/{shard}"


def member_lease(task: str, number: int) -> str:
    return f"task:{task}/member-{number}"


def name_holder(member: str, generation: int) -> str:
    """The holder of a shard's lease: a member, and by which division of the rows it reads."""
    return f"{member}@{generation}"


@dataclass(frozen=True)
class Seen:
    """What a member sees of its task: members that live, in the order of their leases, and who holds which shard.

    `held`: shard → member, of leases that nobody else would get. `is_former`: some are held by another division of the rows.
    """

    me: str
    shards: int
    members: Sequence[str]
    held: Mapping[int, str]
    is_former: bool = False


@dataclass(frozen=True)
class Choice:
    """The shards that a member gives away, once it is done with what it has of them, and those that it takes."""

    give: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def read_seen(me: str, shards: int, generation: int, rows: Iterable[LeaseRow]) -> Seen:
    """What the busy leases of a task say."""
    members: dict[int, str] = {}
    held: dict[int, str] = {}
    is_former = False
    for row in rows:
        found = _NAME.fullmatch(row.name)
        if found is None:
            continue
        name, _, number = row.holder.rpartition("@")
        if found["member"]:
            members[int(found["member"])] = row.holder
        else:
            held[int(found["shard"])] = name
            is_former |= number != str(generation)
    return Seen(me, shards, [members[number] for number in sorted(members)], held, is_former)


def choose_shards(seen: Seen) -> Choice:
    """What a member gives and takes, so that in the end each has its even share and as few as can be move.

    Members that hold most get the shards that do not divide evenly. As long as rows of the former division are out, nobody
    takes any: else a row could be overtaken by one that came before it.
    """
    if seen.me not in seen.members:
        return Choice()
    mine = sorted(shard for shard, member in seen.held.items() if member == seen.me)
    counts = Counter(seen.held.values())
    order = sorted(seen.members, key=lambda member: (-counts[member], seen.members.index(member)))
    low, more = divmod(seen.shards, len(seen.members))
    quota = {member: low + (place < more) for place, member in enumerate(order)}
    give = tuple(mine[quota[seen.me] :])
    if seen.is_former or give:
        return Choice(give)
    free = [shard for shard in range(seen.shards) if shard not in seen.held]
    begin = 0
    for member in seen.members:
        count = max(0, quota[member] - counts[member])
        if member == seen.me:
            return Choice(take=tuple(free[begin : begin + count]))
        begin += count
    return Choice()
