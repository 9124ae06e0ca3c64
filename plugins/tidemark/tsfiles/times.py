"""Times as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from tidemark.errors import UsageError

PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units of time that a site may have (TsFiles do not say theirs)."""

_FINER = re.compile(r"(.*\d[.,]\d{6})(\d{1,30})(\D.*|)", re.ASCII)  # Python passes over what is finer than a microsecond


def parse_time_bound(text: str, unit: str) -> int | None:
    """Parse a bound into `unit` (ms, us, ns) since 1970. An integer stays as it is; ISO 8601 without a zone is UTC.

    One between two times of the unit becomes the later one: it divides times into those before and those from it on.
    Returns None for the empty text. Raises UsageError for any other text.
    """
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    finer = _FINER.fullmatch(text)
    whole, digits = (finer[1] + finer[3], finer[2]) if finer else (text, "")
    try:
        at = datetime.fromisoformat(whole)
    except ValueError:
        raise UsageError(
            f"{text!r} is neither an integer nor an ISO 8601 time such as 2026-01-31T12:00:00Z",
            subject=text,
        ) from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    scale: int = 10 ** len(digits)
    parts = micros * scale + int(digits or 0)
    return -(-parts * PER_SECOND[unit] // (1_000_000 * scale))


def format_interval(spans: Iterable[tuple[int, int, str]]) -> tuple[str, str]:
    """Return the first and the last time of the spans (first, last, unit), in UTC and whole milliseconds around them.

    numpy knows every year that a TsFile can hold; Python's own times end with the year 9999.
    """
    import numpy as np

    parts = [(first, last, PER_SECOND[unit] // 1_000) for first, last, unit in spans]
    first = min(first // per for first, _, per in parts)
    last = max(-(-last // per) for _, last, per in parts)
    return f"{np.datetime64(first, 'ms')}Z", f"{np.datetime64(last, 'ms')}Z"
