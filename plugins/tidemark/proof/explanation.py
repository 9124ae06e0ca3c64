"""The shape of an answer to `why` (CONTRACT §1); and files that are gone at their site and kept.

Of kept files: how they are counted, listed and said. `kept_files` is one query, everything else here is pure. The
first 1,000 kept files are listed, all are counted.
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


def format_time(moment: float | None) -> str:
    """Seconds since 1970 for a person."""
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_events(events: Iterable[Row]) -> tuple[str, ...]:
    """Events as lines, newest first."""
    return tuple(f"{format_time(e['at'])} {e['kind']}{_format_detail(e)}" for e in events)


def join_names(names: Sequence[str], most: int = 3) -> str:
    """A few names in words."""
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
    """`points`: those that it holds, before its deletions; how many of them readers see, `verify --deep` tells."""

    path: str
    points: int


def kept_files(connection: Connection, receiver: str) -> Mapping[str, tuple[KeptFile, ...]]:
    """Site → the files that it has no more and a receiver keeps, by path."""
    found: dict[str, list[KeptFile]] = defaultdict(list)
    for row in run_report(connection, "kept_files", receiver=receiver):
        found[row["site_id"]].append(KeptFile(row["path"], int(row["points"])))
    return {site_id: tuple(files) for site_id, files in found.items()}


def kept_json(kept: Sequence[KeptFile]) -> dict[str, Any]:
    """`kept_files`: how many; `kept`: the first of them."""
    return {"kept_files": len(kept), "kept": [{"path": one.path, "points": one.points} for one in kept[:SHOWN]]}


def kept_note(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """One line for a person, none without such files."""
    if not kept:
        return ()
    files = f"{len(kept):,} files are" if len(kept) > 1 else "1 file is"
    names = join_names([one.path for one in kept])
    return (f"{files} gone at the site and kept, and only fill times at which it has nothing: {names}",)


def given_up_note(connection: Connection, receiver: str, site_id: str) -> tuple[str, ...]:
    """One line on kept files whose bytes rotted here and that the operator gave up, none without such files."""
    paths = [row["path"] for row in run_report(connection, "given_up", receiver=receiver, site=site_id)]
    if not paths:
        return ()
    files = f"{len(paths):,} files that were" if len(paths) > 1 else "1 file that was"
    return (f"{files} gone at the site and kept rotted here, and the operator gave up their points: {join_names(paths)}",)
