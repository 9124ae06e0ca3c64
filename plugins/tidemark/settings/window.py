"""The hours in which a link may transfer: its window (CONTRACT §2 `window`, `timezone`). Pure."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from tidemark.errors import UsageError, WindowOverError
from tidemark.settings.model import LinkSettings


def is_open(window: str, timezone: str, at: float) -> bool:
    """Tell whether `at` (seconds since 1970) lies in `window` ("22:00-06:00", without its end). "" is always open."""
    if not window:
        return True
    start, end = parse_window_ends(window)
    now = datetime.fromtimestamp(at, ZoneInfo(timezone)).time().replace(tzinfo=None)
    return start <= now < end if start < end else now >= start or now < end


def next_opening(window: str, timezone: str, at: float) -> float:
    """Return `at` where the window is open then, else its next beginning. Both are seconds since 1970."""
    if is_open(window, timezone, at):
        return at
    zone = ZoneInfo(timezone)
    now, start = datetime.fromtimestamp(at, zone), parse_window_ends(window)[0]
    days = (now.date() + timedelta(days=n) for n in range(3))
    return next(t for day in days if (t := datetime.combine(day, start, zone).timestamp()) >= at)


def parse_window_ends(window: str) -> tuple[time, time]:
    """Return the two ends. Raise UsageError where it is not "HH:MM-HH:MM" or both ends are the same."""
    try:
        start, end = (datetime.strptime(part.strip(), "%H:%M").time() for part in window.split("-"))
    except ValueError as broken:
        raise UsageError(f'window = "{window}" is not of the form "22:00-06:00"') from broken
    if start == end:
        raise UsageError(f'window = "{window}" is empty; leave it out for no limit')
    return start, end


def require_window(link: LinkSettings, at: float) -> None:
    """Raise WindowOverError outside the link's window."""
    if not is_open(link.window, link.timezone, at):
        by_hand = f"in the next window: ./tidemark sync {link.name}"
        raise WindowOverError(
            f"link {link.name} is outside its window {link.window} ({link.timezone})",
            hint=f"Airflow goes on by its schedule; by hand {by_hand}" if link.schedule else by_hand,
            subject=link.name,
        )
