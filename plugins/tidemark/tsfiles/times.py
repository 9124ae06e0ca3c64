"""Bounds in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.errors import UsageError

PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units of time that a site may have (TsFiles do not say theirs)."""


def parse_time_bound(text: str, unit: str) -> int | None:
    """A time bound in `unit` (ms, us, ns) since 1970: an integer as it is, ISO 8601 taken as UTC where it has no zone.

    None for the empty text; UsageError for what is neither.
    """
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither an integer nor an ISO 8601 time such as 2026-01-31T12:00:00Z",
            hint="./tidemark read --help",
            subject=text,
        ) from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return micros * PER_SECOND[unit] // 1_000_000
