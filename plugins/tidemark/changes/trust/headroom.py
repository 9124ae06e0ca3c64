"""How many hours are left until a server purges what a store does not have yet. Pure.

A server removes a log by its age (since it was closed), or once all logs together are above a limit. MariaDB does it when
a log is begun, so a log may live longer than is told here, and never shorter: unless somebody purges by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.capture.identity import number_of
from tidemark.changes.trust.answers import Answers, Gtids, StoreEnd, find_rest

RED_SHARE = 0.5
"""Below this share of the purge time somebody has to be told."""
_HOUR = 3600.0


@dataclass(frozen=True)
class Headroom:
    """`hours` until what comes next is purged; `purge_hours`: how long the server keeps a log. None: it keeps all."""

    hours: float | None
    purge_hours: float | None

    @property
    def is_red(self) -> bool:
        return self.hours is not None and self.purge_hours is not None and self.hours < RED_SHARE * self.purge_hours


def has_other_logs(answers: Answers, end: StoreEnd) -> bool:
    """Whether a server that lacks what follows has no log behind the store's end: no gap leads to logs that are others."""
    rest = find_rest([name for name, _ in answers.facts.logs], end.position.file)
    return bool(rest) and number_of(rest[0]) <= number_of(end.position.file)


def has_rest(answers: Answers, end: StoreEnd) -> bool:
    """Whether a server's logs hold everything that the store does not: from its last log on, or by GTID. Of another log
    under that name GTIDs tell it, if there are some."""
    before = find_before(answers)
    is_proved_by_name = not answers.is_other_log or end.gtids is None or before is None
    if is_proved_by_name and end.position.file in find_rest([name for name, _ in answers.facts.logs], end.position.file):
        return True
    if isinstance(end.gtids, MysqlGtidSet) and isinstance(before, MysqlGtidSet):
        return bool(end.gtids.intervals) and end.gtids >= before
    return isinstance(end.gtids, MariaGtidPosition) and isinstance(before, MariaGtidPosition) and end.gtids >= before


def find_before(answers: Answers) -> Gtids | None:
    """The transactions before the oldest log that a store can go on with. What somebody removed behind a MySQL's back
    it does not count as purged; a restored one was told what is, and its logs do not tell."""
    before = answers.oldest.gtids if answers.oldest is not None else None
    if answers.facts.is_maria:
        return before
    return answers.facts.purged | before if isinstance(before, MysqlGtidSet) else answers.facts.purged


def measure_headroom(answers: Answers, end: StoreEnd | None) -> Headroom:
    """The headroom of a store that ends there; None: of one that has everything up to now."""
    facts = answers.facts
    now, names = facts.time, [name for name, _ in facts.logs]
    if end is not None and not has_rest(answers, end):
        return Headroom(0.0, facts.expire_seconds / _HOUR or None)
    index = names.index(end.position.file) if end is not None and end.position.file in names else len(names) - 1
    closed = answers.following.time if answers.following is not None and answers.following.time else now
    told: list[tuple[float, float]] = []
    if facts.expire_seconds:
        told.append(((facts.expire_seconds - max(0.0, now - closed)) / _HOUR, facts.expire_seconds / _HOUR))
    total = sum(size for _, size in facts.logs)
    if facts.space_limit and total and answers.oldest is not None and now > answers.oldest.time > 0:
        an_hour = total / (now - answers.oldest.time) * _HOUR
        needed = sum(size for _, size in facts.logs[index:])
        told.append(((facts.space_limit - needed) / an_hour, facts.space_limit / an_hour))
    if not told:
        return Headroom(None, None)
    hours, purge_hours = min(told)
    return Headroom(round(max(0.0, hours), 2), round(purge_hours, 2))
