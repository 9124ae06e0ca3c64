"""Sets of MySQL's GTIDs and positions of MariaDB's: parse, print, union, difference, contains, count. Pure.

A set of MySQL is intervals of transaction numbers, for each server UUID and tag. A gap is a transaction that is not
there: gaps are never closed. A position of MariaDB is the last GTID of each domain, and stands for all before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from tidemark.errors import UsageError

Interval = tuple[int, int]
"""First and last number, both inside."""
_LARGEST = (1 << 63) - 2
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_NUMBERS = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_MARIA = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")


@dataclass(frozen=True, slots=True)
class MysqlGtidSet:
    """(uuid, tag) → intervals, which are sorted, apart from each other, and never empty."""

    intervals: Mapping[tuple[str, str], tuple[Interval, ...]]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str, Iterable[Interval]]]) -> Self:
        """The union of (uuid, tag, intervals in any order)."""
        gathered: dict[tuple[str, str], list[Interval]] = {}
        for uuid, tag, intervals in parts:
            gathered.setdefault((uuid, tag), []).extend(intervals)
        return cls({key: _join(found) for key, found in sorted(gathered.items()) if found})

    @classmethod
    def parse(cls, text: str) -> Self:
        """`uuid:1-5:7:tag:1,uuid:3`, as servers print and take it. A UsageError names the part that is wrong."""
        parts: list[tuple[str, str, list[Interval]]] = []
        for member in "".join(text.split()).lower().split(","):
            if not member:
                continue
            uuid, *rest = member.split(":")
            if not _UUID.fullmatch(uuid) or not rest:
                raise UsageError(f"{member!r} is no member of a GTID set")
            tag = ""
            uuid = _dashed(uuid.replace("-", ""))
            for word in rest:
                if _TAG.fullmatch(word):
                    tag = word
                else:
                    parts.append((uuid, tag, [_parse_interval(word, member)]))
        return cls.of(parts)

    def __str__(self) -> str:
        members: dict[str, str] = {}
        for (uuid, tag), intervals in sorted(self.intervals.items()):
            words = [f"{first}-{last}" if last > first else f"{first}" for first, last in intervals]
            members[uuid] = ":".join([members.get(uuid, uuid), *([tag] if tag else []), *words])
        return ",".join(members.values())

    def __or__(self, other: MysqlGtidSet) -> MysqlGtidSet:
        both = (*self.intervals.items(), *other.intervals.items())
        return MysqlGtidSet.of((uuid, tag, found) for (uuid, tag), found in both)

    def __sub__(self, other: MysqlGtidSet) -> MysqlGtidSet:
        left = {key: _subtract(found, other.intervals.get(key, ())) for key, found in self.intervals.items()}
        return MysqlGtidSet({key: found for key, found in left.items() if found})

    def __and__(self, other: MysqlGtidSet) -> MysqlGtidSet:
        return self - (self - other)

    def __ge__(self, other: MysqlGtidSet) -> bool:
        """Every transaction of `other` is here too."""
        return not (other - self).intervals

    def contains(self, uuid: str, tag: str, number: int) -> bool:
        return any(first <= number <= last for first, last in self.intervals.get((uuid, tag), ()))

    def count(self) -> int:
        """How many transactions."""
        return sum(last - first + 1 for found in self.intervals.values() for first, last in found)


def uuid_text(data: bytes) -> str:
    return _dashed(data.hex())


def _dashed(text: str) -> str:
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _parse_interval(word: str, member: str) -> Interval:
    found = _NUMBERS.fullmatch(word)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last <= _LARGEST:
        raise UsageError(f"{word!r} is no interval of transactions, in {member!r}")
    return first, last


def _join(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, with those that overlap or touch made one."""
    joined: list[Interval] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _subtract(intervals: tuple[Interval, ...], gone: tuple[Interval, ...]) -> tuple[Interval, ...]:
    left: list[Interval] = []
    index = 0
    for first, last in intervals:
        while index < len(gone) and gone[index][1] < first:
            index += 1
        at, begin = index, first
        while at < len(gone) and gone[at][0] <= last:
            if gone[at][0] > begin:
                left.append((begin, gone[at][0] - 1))
            begin = gone[at][1] + 1
            at += 1
        if begin <= last:
            left.append((begin, last))
    return tuple(left)


@dataclass(frozen=True, slots=True)
class MariaGtidPosition:
    """domain → (server id, sequence number) of its last transaction."""

    last: Mapping[int, tuple[int, int]]

    @classmethod
    def parse(cls, text: str) -> Self:
        """`0-1-231,5-2-7`: a domain once, as `gtid_slave_pos` is written. A UsageError names the part that is wrong."""
        last: dict[int, tuple[int, int]] = {}
        for member in "".join(text.split()).split(","):
            if not member:
                continue
            found = _MARIA.fullmatch(member)
            domain, server, number = map(int, found.groups()) if found else (1 << 32, 0, 0)
            if domain >> 32 or server >> 32 or number >> 64:
                raise UsageError(f"{member!r} is no GTID of MariaDB")
            if domain in last:
                raise UsageError(f"domain {domain} stands twice in {text!r}")
            last[domain] = (server, number)
        return cls(dict(sorted(last.items())))

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))

    def __or__(self, other: MariaGtidPosition) -> MariaGtidPosition:
        """What both have seen: the later transaction of each domain."""
        last = dict(self.last)
        for domain, (server, number) in other.last.items():
            if domain not in last or number > last[domain][1]:
                last[domain] = (server, number)
        return MariaGtidPosition(dict(sorted(last.items())))

    def __sub__(self, other: MariaGtidPosition) -> dict[int, Interval]:
        """domain → first and last sequence number that `other` has not seen."""
        left = {domain: (other.last.get(domain, (0, 0))[1] + 1, number) for domain, (_, number) in sorted(self.last.items())}
        return {domain: (first, last) for domain, (first, last) in left.items() if first <= last}

    def __ge__(self, other: MariaGtidPosition) -> bool:
        return not other - self

    def contains(self, domain: int, number: int) -> bool:
        return domain in self.last and number <= self.last[domain][1]

    def count(self) -> int:
        """The sum of the sequence numbers: it grows with every transaction, whichever domain commits it."""
        return sum(number for _, number in self.last.values())


def contains_gtid(gtids: MysqlGtidSet | MariaGtidPosition | None, gtid: str) -> bool:
    """Whether a set has a transaction, by its GTID as text. None and "" have and are none, nor has one kind the other's."""
    is_mysql = ":" in gtid
    if is_mysql and isinstance(gtids, MysqlGtidSet):
        return gtids >= MysqlGtidSet.parse(gtid)
    if gtid and not is_mysql and isinstance(gtids, MariaGtidPosition):
        domain, _, number = map(int, gtid.split("-"))
        return gtids.contains(domain, number)
    return False
