"""The shape of an answer to `why` (CONTRACT §1); and files that are gone at their site and kept.

Of kept files: how they are counted, listed and said. `kept_files` is one query, everything else here is pure. The
first 1,000 kept files are listed, all are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemark.ledger.sql import Row


@dataclass(frozen=True)
class Explanation:
    """`state` in a few words; `cause`: why it is so; `evidence`: what the ledger says, one fact a line; `next`: the command
    or deed that changes it, '' where none is needed; `if_you_wait`: what happens without it. `final`: nothing is open."""

    subject: str
    kind: str  # file | run | landing | link | site | device
    state: str
    cause: str
    evidence: tuple[str, ...] = ()
    next: str = ""
    if_you_wait: str = ""
    final: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "kind": self.kind,
            "state": self.state,
            "cause": self.cause,
            "evidence": list(self.evidence),
            "next": self.next,
            "if_you_wait": self.if_you_wait,
            "final": self.final,
        }


def when(moment: float | None) -> str:
    """Seconds since 1970 for a person."""
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def told(events: Iterable[Row]) -> tuple[str, ...]:
    """Events as lines, newest first."""
    return tuple(f"{when(e['at'])} {e['kind']}{_detail(e)}" for e in events)


def listed(names: Sequence[str], most: int = 3) -> str:
    """A few names in words."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _detail(event: Row) -> str:
    detail = {k: v for k, v in json.loads(event["detail"]).items() if v not in (None, "", [])}
    place = [f"{name} {event[name]}" for name in ("run_id", "landing") if event.get(name)]
    facts = [f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}" for k, v in detail.items()]
    text = ", ".join([*place, *facts])
    return f" ({text})" if text else ""
