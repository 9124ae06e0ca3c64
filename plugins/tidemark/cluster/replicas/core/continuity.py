"""A log is a chain of records: what continues it. Pure. Source: seed 003 "WAL", "Data recovery flow"; seed 004."""

from __future__ import annotations

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
