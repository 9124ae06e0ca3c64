"""Parse time bounds that people write."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemark.errors import UsageError

PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units of time that a site may have (TsFiles do not say theirs)."""


def parse_time_bound(text: str, unit: str) -> int | None:
    """Parse a bound into `unit` (ms, us, ns) since 1970. An integer stays as it is; ISO 8601 without a zone is UTC.

    Returns None for the empty text. Raises UsageError for any other text.
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
