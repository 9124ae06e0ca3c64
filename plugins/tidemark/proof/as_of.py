"""The time up to which a site's files are known, and whether that is recent enough; days of times in a site's unit.

A listing proves what a site had when it began, and nothing later. Its time is that of the machine that listed. A time in the
reader's future proves nothing: a clock was wrong, by an unknown amount. Source: docs/decisions/0022-a-proof-has-a-date.md.

Days are UTC, counted from 1970-01-01, rounded down. `day_text` formats a day for a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy.engine import Connection

from tidemark.ledger.sender.links import get_link
from tidemark.ledger.sql import Row, run_report
from tidemark.settings.model import LinkSettings
from tidemark.tsfiles.times import PER_SECOND

AHEAD_SECONDS = 300.0
"""Clocks of two machines may differ by so much; a time further ahead is not believed."""
LATE_SECONDS = 900.0
"""A run that its schedule starts may take so long until what was sealed has come."""
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class AsOf:
    """`at`: start of the site's last whole listing, seconds since 1970; None: none can be believed. `stale`: it is too
    old."""

    at: float | None
    stale: bool

    @property
    def last_day(self) -> int | None:
        """The last day (UTC, days since 1970) of which anything is known."""
        return None if self.at is None else day_of(int(self.at * 1000), "ms")

    @property
    def text(self) -> str:
        """Up to which moment the site is known, or that no moment is."""
        if self.at is None:
            return "no listing has shown the whole site yet"
        told = f"as of {format_moment(self.at)}"
        return f"{told}, which is stale: nothing is known of it since" if self.stale else told


NEVER = AsOf(None, False)
"""Of a site that nobody was to list yet."""


def format_iso(moment: float | None) -> str | None:
    """Format seconds since 1970 as ISO 8601 in UTC."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_moment(at: float) -> str:
    """Format seconds since 1970 for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def as_of(connection: Connection, receiver: str, site_id: str, link: LinkSettings | None, clock: float) -> AsOf:
    """Judge a site at a receiver, by this ledger's link and by its loaded manifests. `clock`: now.

    A link that never ran had nothing to list yet, so nothing is too old.
    """
    rows = run_report(connection, "site_listings", receiver=receiver, site=site_id, link=link.name if link else "")
    if not rows and link is not None and not run_report(connection, "loaded_landings", receiver=receiver, site=site_id):
        known = get_link(connection, link.name)
        if known is None or not known.last_run:
            return NEVER
    return judge_listings(rows, link, clock)


def judge_listings(rows: Sequence[Row], link: LinkSettings | None, clock: float) -> AsOf:
    """Judge rows of `listed` (start of a listing by its machine's clock) and `known` (when this ledger got it). Pure."""
    believed = [r["listed"] for r in rows if r["listed"] <= min(r["known"] or clock, clock) + AHEAD_SECONDS]
    at = min(max(believed), clock) if believed else None
    return AsOf(at, at is None or _is_too_old(link, clock - at, clock))


def _is_too_old(link: LinkSettings | None, age: float, clock: float) -> bool:
    if age <= DAY_SECONDS and (link is None or not link.coverage_stale_hours):
        return False  # skips the schedule, which is slow to parse
    return age > stale_seconds(link, clock)


def stale_seconds(link: LinkSettings | None, clock: float) -> float:
    """Return how old a site's last whole listing may be: the link's setting, else two schedule intervals, at least a day."""
    if link is not None and link.coverage_stale_hours:
        return link.coverage_stale_hours * 3600
    if link is None or not link.schedule:
        return DAY_SECONDS
    return max(DAY_SECONDS, 2 * interval_seconds(link, clock))


def interval_seconds(link: LinkSettings, at: float) -> float:
    """Return the interval of the link's schedule around `at`; a day where it is run by hand."""
    if not link.schedule:
        return DAY_SECONDS
    from croniter import croniter

    try:
        ticks = croniter(link.schedule, datetime.fromtimestamp(at, ZoneInfo(link.timezone)))
        after = ticks.get_next(float)
        return float(after - ticks.get_prev(float))
    except (ValueError, KeyError, OSError, OverflowError):  # invalid, also for Airflow: `doctor` reports it
        return DAY_SECONDS


def is_overdue(link: LinkSettings, sealed: float, clock: float) -> bool:
    """Whether a file sealed then should have been sent by now: after one schedule interval and LATE_SECONDS."""
    return clock - sealed > interval_seconds(link, sealed) + LATE_SECONDS


_FIRST = date.min.toordinal() - date(1970, 1, 1).toordinal()
_LAST = date.max.toordinal() - date(1970, 1, 1).toordinal()


def day_of(time: int, unit: str) -> int:
    """Return days since 1970-01-01 UTC, rounded down. `unit` is ms, us or ns."""
    return time // (86_400 * PER_SECOND[unit])


def day_text(day: int) -> str:
    """Format as YYYY-MM-DD; days outside the years 1 to 9999 as their number."""
    if _FIRST <= day <= _LAST:
        return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
    return f"day {day}"
