"""The shape of an answer to `why` (CONTRACT §1); and files that vanished at their site and are kept.

Kept files are counted, listed and described here. `kept_files` runs one query, everything else is pure. All kept files are
counted, the first 1,000 are listed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.ledger.sql import Row, run_report


@dataclass(frozen=True)
class Explanation:
    """`state` in a few words. `cause`: the reason. `evidence`: what the ledger says, one fact per line. `next`: the command
    or action that changes it, '' where none is needed. `if_you_wait`: what happens without it. `final`: nothing is open."""

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


@dataclass(frozen=True, slots=True)
class KeptFile:
    """`points`: those in the file, before its deletions. `verify --deep` says how many of them readers see."""

    path: str
    points: int


def kept_files(connection: Connection, receiver: str) -> Mapping[str, tuple[KeptFile, ...]]:
    """Return site → the files that vanished there and that a receiver keeps, by path."""
    found: dict[str, list[KeptFile]] = defaultdict(list)
    for row in run_report(connection, "kept_files", receiver=receiver):
        found[row["site_id"]].append(KeptFile(row["path"], int(row["points"])))
    return {site_id: tuple(files) for site_id, files in found.items()}


def kept_json(kept: Sequence[KeptFile]) -> dict[str, Any]:
    """`kept_files`: how many. `kept`: the first of them."""
    return {"kept_files": len(kept), "kept": [{"path": one.path, "points": one.points} for one in kept[:SHOWN]]}


def kept_note(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """Return one line for a person; () without such files."""
    if not kept:
        return ()
    files = f"{len(kept):,} files are" if len(kept) > 1 else "1 file is"
    names = join_names([one.path for one in kept])
    return (f"{files} gone at the site and kept, and only fill times at which it has nothing: {names}",)


def given_up_note(connection: Connection, receiver: str, site_id: str) -> tuple[str, ...]:
    """Return one line on damaged kept files that the operator gave up; () without such files."""
    paths = [row["path"] for row in run_report(connection, "given_up", receiver=receiver, site=site_id)]
    if not paths:
        return ()
    files = f"{len(paths):,} files that were" if len(paths) > 1 else "1 file that was"
    return (f"{files} gone at the site and kept rotted here, and the operator gave up their points: {join_names(paths)}",)
