"""A log is a chain of records: what continues it, what breaks it, and where two logs part. Pure.

Only the last record of a log may be torn. Anything else that does not fit makes the member unsynced; nobody searches
for the next sound record. Source: seed 003 "WAL", "Data recovery flow"; seed 004.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.cluster.replicas.core.roles import LogEnd, Position


@dataclass(frozen=True, slots=True)
class Record:
    """The head of a record. `operation`: the id of the operation; a retry has the same."""

    position: Position
    crc: int
    previous_crc: int
    operation: str = ""

    @property
    def end(self) -> LogEnd:
        return LogEnd(self.position, self.crc)


def is_continued(end: LogEnd, record: Record) -> bool:
    """Tell whether the record may stand behind `end`: next version, epoch not older, and chained to it."""
    return (
        record.position.version == end.position.version + 1
        and record.position.epoch >= end.position.epoch
        and record.previous_crc == end.crc
    )


class LogState(enum.StrEnum):
    """SOUND to the end; TORN: the last record is unreadable, the rest is sound; BROKEN: not a log any more."""

    SOUND = "sound"
    TORN = "torn"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Log:
    """The records that a member keeps. `base`: the end of what was there before them."""

    base: LogEnd
    records: tuple[Record, ...] = ()

    @property
    def end(self) -> LogEnd:
        return self.records[-1].end if self.records else self.base

    def end_at(self, version: int) -> LogEnd:
        """Return what the log ended with when it had `version`, which must lie between its base and its end."""
        at = version - self.base.position.version
        return self.base if at == 0 else self.records[at - 1].end


def check_log(base: LogEnd, found: Sequence[Record | None]) -> tuple[LogState, Log]:
    """Judge what was read of a log, None for a record that is unreadable; return its sound beginning with it.

    A torn last record counts as absent: its acknowledgement is taken back, as the member's version went backwards.
    """
    sound: list[Record] = []
    end = base
    for record in found:
        if record is None or not is_continued(end, record):
            break
        sound.append(record)
        end = record.end
    left = found[len(sound) :]
    state = LogState.SOUND if not left else LogState.TORN if len(left) == 1 and left[0] is None else LogState.BROKEN
    return state, Log(base, tuple(sound))


def find_fork(mine: Log, other: Log) -> LogEnd | None:
    """Return the last end that both logs had. None if what they still keep has none in common.

    Equal ends mean equal beginnings, so the versions that both keep are halved until the last equal one is found.
    """
    lowest = max(mine.base.position.version, other.base.position.version)
    highest = min(mine.end.position.version, other.end.position.version)
    shared = range(lowest, highest + 1)
    equal = bisect_left(shared, True, key=lambda version: mine.end_at(version) != other.end_at(version))
    return mine.end_at(shared[equal - 1]) if equal else None
