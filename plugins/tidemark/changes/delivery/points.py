"""POINTs as users write them: `earliest`, `latest`, `now`, ISO 8601, a GTID or set, `FILE:POS`, `seq:N`. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.store.read import Found, Reader, Target, at_first_outside, at_gtid, at_position, at_seq, at_time
from tidemark.errors import UsageError

_SEQ = re.compile(r"seq:(\d{1,18})")
_FILE = re.compile(r"(.+\.(\d+)):(\d{1,19})")
_MARIA = re.compile(r"\d+-\d+-\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
"""A day, though MariaDB may name a transaction so: as a GTID of a domain that is nowhere it would mean the store's end."""
_MYSQL = re.compile(r"[0-9a-fA-F-]{32,36}(?::[a-z_][a-z0-9_]*)?:(\d+)")
ALLOWED = "earliest, latest, now, a time in ISO 8601, a GTID or a set of them, FILE:POS, seq:N"


def parse_point(text: str, change_id: int = 1) -> Target:
    """What a POINT looks for: the first transaction at or after it. Raises UsageError."""
    if found := _SEQ.fullmatch(text):
        return at_seq(int(found[1]))
    if text == "earliest":
        return at_seq(0)
    if text == "now":
        return Target(lambda _state: False)
    if _MARIA.fullmatch(text) and not (_DATE.fullmatch(text) and _parse_time(text) is not None):
        return at_gtid(text, _maria_contains)
    if _MYSQL.fullmatch(text):
        gtid = str(MysqlGtidSet.parse(text))
        return at_gtid(gtid, lambda gtids, other: MysqlGtidSet.parse(gtids) >= MysqlGtidSet.parse(other))
    if found := _FILE.fullmatch(text):
        return at_position((change_id, int(found[2]), int(found[3]), 0))
    if (time := _parse_time(text)) is not None:
        return at_time(time)
    return _parse_set(text)


def _maria_contains(gtids: str, gtid: str) -> bool:
    domain, _, number = map(int, gtid.split("-"))
    return MariaGtidPosition.parse(gtids).contains(domain, number)


def _parse_time(text: str) -> int | None:
    """Microseconds since 1970. A time without a zone is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return int(found.timestamp()) * 1_000_000 + found.microsecond


def _parse_set(text: str) -> Target:
    try:
        if ":" in text:
            known = MysqlGtidSet.parse(text)
            return at_first_outside(
                lambda gtids: not known >= MysqlGtidSet.parse(gtids), lambda gtid: known >= MysqlGtidSet.parse(gtid)
            )
        position = MariaGtidPosition.parse(text)
        return at_first_outside(
            lambda gtids: not position >= MariaGtidPosition.parse(gtids), lambda gtid: _maria_contains(text, gtid)
        )
    except UsageError:
        raise UsageError(f"{text!r} is no point of a change store: {ALLOWED}", hint=f"write {ALLOWED}") from None


def find_point(reader: Reader, text: str) -> Found | None:
    """The first transaction of the store at or after a POINT, None where the store ends before it. FILE:POS is one of the
    logs that the store is from now."""
    if text == "latest":
        return reader.find(at_seq(reader.view.end.seq)) if reader.view.end.seq else None
    if text == "earliest":
        return reader.find(at_seq(reader.first))
    target = parse_point(text, max(1, reader.view.end.info.change_id))
    try:
        return reader.find(target)
    except UsageError:  # of the store's GTIDs, which are of the other kind of server
        known = reader.view.gtids[:200]
        raise UsageError(f"{text!r} is no GTID as the store has them: {known}", hint=f"write {ALLOWED}") from None


def number_of_point(reader: Reader, text: str) -> int:
    """The number of that transaction; one more than the last where there is none."""
    found = find_point(reader, text)
    return found.seq if found else reader.view.end.seq + 1
