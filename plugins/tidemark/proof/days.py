"""Days (UTC) of times in a site's unit, and what a person writes for a time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from tidemark.errors import UsageError

UNITS_PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = date.min.toordinal() - date(1970, 1, 1).toordinal()
_LAST = date.max.toordinal() - date(1970, 1, 1).toordinal()


def day_of(time: int, unit: str) -> int:
    """Days since 1970-01-01 UTC, rounded down; `unit` is ms, us or ns."""
    return time // (86_400 * UNITS_PER_SECOND[unit])


def day_text(day: int) -> str:
    """YYYY-MM-DD; days beyond the calendar's years 1 to 9999 by their number."""
    if _FIRST <= day <= _LAST:
        return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    return f"day {day}"


def parse_time(text: str, unit: str) -> int:
    """A time a person wrote: an integer in the site's unit, or ISO 8601 (UTC where it names no zone).

    Raises UsageError that shows what is understood.
    """
    stripped = text.strip()
    if stripped.lstrip("+-").isdigit():
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise UsageError(
            f"not a time: {text!r}", hint="write 2026-01-31, 2026-01-31T12:00:00+08:00, or an integer in the site's unit"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * UNITS_PER_SECOND[unit] // 1_000_000
