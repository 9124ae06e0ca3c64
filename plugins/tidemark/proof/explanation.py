"""The shape of an answer to `why` (CONTRACT §1); and files that vanished at their site and are kept.

Kept files (`ledger.receiver.settled.kept_files`) are described here: all are counted, the first 1,000 are listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.ledger.receiver.settled import KeptFile
from tidemark.ledger.sql import Row, run_report
from tidemark.progress import format_count


@dataclass(frozen=True)
class Explanation:
    """`state` in a few words. `cause`: the reason. `evidence`: what the ledger says, one fact per line. `next`: the command
    or action that changes it, '' where none is needed. `if_you_wait`: what happens without it. `final`: nothing is open."""

    subject: str
    kind: str  # file | run | landing | link | site | device | node | slot | group
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


def format_time(moment: float | None) -> str:
    """Format seconds since 1970 for a person."""
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_events(events: Iterable[Row]) -> tuple[str, ...]:
    """Return events as lines, newest first."""
    return tuple(f"{format_time(e['at'])} {e['kind']}{_format_detail(e)}" for e in events)


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join a few names: `a, b, c and 4 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _format_detail(event: Row) -> str:
    detail = {k: v for k, v in json.loads(event["detail"]).items() if v not in (None, "", [])}
    place = [f"{name} {event[name]}" for name in ("run_id", "landing") if event.get(name)]
    facts = [f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}" for k, v in detail.items()]
    text = ", ".join([*place, *facts])
    return f" ({text})" if text else ""


SHOWN = 1_000
"""Listed one by one; the count is of all."""
MIXED = "in a settled merged file with files that the site has: nobody can tell their rows apart, and they count as live"
"""Of kept files that are mixed (`ledger.receiver.settled.KeptFile`)."""


def kept_json(kept: Sequence[KeptFile]) -> dict[str, Any]:
    """`kept_files`: how many. `kept_mixed`: those of them whose rows count as live. `kept`: the first of all."""
    return {
        "kept_files": len(kept),
        "kept_mixed": sum(one.mixed for one in kept),
        "kept": [{"path": one.path, "points": one.points, "mixed": one.mixed} for one in kept[:SHOWN]],
    }


def kept_json_of_sites(of_sites: Iterable[tuple[str, Sequence[KeptFile]]]) -> dict[str, Any]:
    """`kept_json` of (site, its kept files), summed up; each file with its site."""
    found = [(site, kept_json(kept)) for site, kept in of_sites]
    return {
        "kept_files": sum(one["kept_files"] for _, one in found),
        "kept_mixed": sum(one["kept_mixed"] for _, one in found),
        "kept": [{"site": site, **file} for site, one in found for file in one["kept"]],
    }


def kept_note(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """Return one line for a person on files that only fill, and one on mixed ones; () without such files."""
    notes = []
    for mixed, what in ((False, "for times at which the site has nothing else"), (True, MIXED)):
        if paths := [one.path for one in kept if one.mixed == mixed]:
            files = format_count(len(paths), "file is", "files are")
            notes.append(f"{files} gone at the site and kept, {what}: {join_names(paths)}")
    return tuple(notes)


def given_up_note(connection: Connection, receiver: str, site_id: str) -> tuple[str, ...]:
    """Return one line on damaged kept files that the operator gave up; () without such files."""
    paths = [row["path"] for row in run_report(connection, "given_up", receiver=receiver, site=site_id)]
    if not paths:
        return ()
    files = format_count(len(paths), "file that was", "files that were")
    return (f"{files} gone at the site and kept rotted here, and the operator gave up their points: {join_names(paths)}",)
