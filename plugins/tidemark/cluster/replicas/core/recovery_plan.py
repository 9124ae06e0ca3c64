"""The recovery of a member: which phase comes next, and which recoveries may begin. Pure.

Files first, then the log, then what arrived meanwhile. Source: seed 003 "Data recovery flow"; seed 004.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position

MOST_AT_ONCE = 2
"""Nodes that are recovered at a time: others are read for them, and also serve (tsMaxSyncNum of the later TDengine)."""


class Phase(enum.StrEnum):
    """The phases of a recovery (seed 003: INIT, START, FILE, CACHE of the sync module; wal and done are named here)."""

    INIT = "init"
    START = "start"  # the source's files and log are kept from retention
    FILE = "file"
    WAL = "wal"
    CACHE = "cache"  # new operations are forwarded to the member as well, into its inbox
    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery as it is recorded. A task that is killed is run again and goes on from here.

    `epoch`: that of the source, the master. `index_digest`: its file index when the copy began. `target`: the
    position that the member must reach; only in CACHE.
    """

    epoch: int
    phase: Phase = Phase.INIT
    index_digest: str = ""
    target: Position | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at both ends found. `epoch`: the newest that the ledger gave, if the source wrote its barrier; else None.

    `lacking`: files still to copy. `waiting`: operations in the inbox. `in_flight`: an operation of the
    group has no outcome.
    """

    epoch: int | None
    source: LogEnd
    member: LogEnd
    pinned: bool = True
    index_digest: str = ""
    lacking: int = 0
    sealed: Position = ORIGIN.position  # the end of the source's last sealed segment
    waiting: int = 0
    in_flight: bool = False


def advance(recovery: Recovery, sight: Sight) -> Recovery:
    """Return the recovery after this look: at most one phase further. The same object if there is more to do in its phase.

    In CACHE the target is read by a later look than the one that entered it. So whatever was not forwarded to the member
    is at or below the target, and nothing falls between log and inbox (seed 003 "Data recovery flow", LastWal and
    SYNC_CACHE).
    """
    if recovery.phase in (Phase.DONE, Phase.ABORTED):
        return recovery
    if sight.epoch != recovery.epoch:
        return replace(recovery, phase=Phase.ABORTED)  # not master any more
    match recovery.phase:
        case Phase.INIT:
            return replace(recovery, phase=Phase.START) if sight.pinned else recovery
        case Phase.START:
            return replace(recovery, phase=Phase.FILE, index_digest=sight.index_digest)
        case Phase.FILE:
            if sight.index_digest != recovery.index_digest or not sight.pinned:
                return Recovery(recovery.epoch, restarts=recovery.restarts + 1)
            return recovery if sight.lacking else replace(recovery, phase=Phase.WAL)
        case Phase.WAL:
            return replace(recovery, phase=Phase.CACHE) if sight.member.position >= sight.sealed else recovery
    return _finish(recovery, sight)


def _finish(recovery: Recovery, sight: Sight) -> Recovery:
    """Make the member a slave once it has everything. The end of a file that is read is never taken for the end of
    the log.
    """
    if recovery.target is None:
        return replace(recovery, target=sight.source.position)
    if sight.member.position == sight.source.position and sight.member.crc != sight.source.crc:
        return replace(recovery, phase=Phase.ABORTED)  # diverged: plan the log anew
    caught_up = sight.member.position >= recovery.target and sight.member == sight.source
    return replace(recovery, phase=Phase.DONE) if caught_up and not sight.waiting and not sight.in_flight else recovery


def count_backoff_s(restarts: int, *, first_s: float = 60, longest_s: float = 3600) -> float:
    """Return the seconds before a recovery whose source changed begins again: twice as long each time."""
    return 0 if restarts == 0 else min(first_s * 2.0 ** min(restarts - 1, 30), longest_s)


def choose_starts(waiting: Sequence[tuple[str, str]], running: Iterable[tuple[str, str]], limit: int) -> tuple[int, ...]:
    """Choose which waiting recoveries begin, by place. Each is (node that recovers, node of the source).

    No node has more than `limit` at once, as either end (tsMaxSyncNum of seed 003 "Network connections"). Who waits
    longer goes first.
    """
    busy = Counter(node for pair in running for node in pair)
    chosen = []
    for place, pair in enumerate(waiting):
        if all(busy[node] < limit for node in pair):
            busy.update(pair)
            chosen.append(place)
    return tuple(chosen)
