"""The newest runs, a line each: how long they took, how fast they were, how they ended. Pure.

| outcome | means |
|---|---|
| `loaded` | it ended, and the receiver has loaded all that it landed |
| `landed` | it ended, and of some of it nobody knows yet whether the receiver has loaded it |
| `nothing` | it ended, and had nothing to send or to tell |
| `failed` | an error stopped it; the link's next run continues it |

A run that has not ended has its link's state (`proof.status`): `running`, `interrupted`, `retrying`, `failed`, `window`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.ledger.sql import Row
from tidemark.proof.as_of import format_iso
from tidemark.proof.status import LinkStatus


@dataclass(frozen=True)
class Run:
    """One run. Times in seconds since 1970. `seconds`: from its start to its end, or to now; None if nobody knows when it
    stopped. A run that was continued counts the pause too. `worked`: seconds that processes worked on it, without pauses;
    None of a run that an older Tidemark opened."""

    name: str
    link: str
    outcome: str
    started: float
    ended: float | None
    seconds: float | None
    worked: float | None
    files: int
    bytes: int
    sent_bytes: int
    dropped: int
    pending: int
    error: str
    next: str
    external: str = ""  # dag id / run id of the Airflow run that opened it

    def as_json(self) -> dict[str, Any]:
        busy = self.seconds if self.worked is None else self.worked
        return {
            "name": self.name,
            "link": self.link,
            "outcome": self.outcome,
            "started": format_iso(self.started),
            "ended": format_iso(self.ended),
            "duration_seconds": None if self.seconds is None else round(self.seconds, 3),
            "worked_seconds": None if self.worked is None else round(self.worked, 3),
            "bytes_per_second": round(self.sent_bytes / busy) if busy else None,
            "files": self.files,
            "bytes": self.bytes,
            "sent_bytes": self.sent_bytes,
            "dropped": self.dropped,
            "pending": self.pending,
            "error": self.error or None,
            "next": self.next or None,
            "airflow_run": self.external or None,
        }


def list_runs(rows: Iterable[Row], links: Sequence[LinkStatus], now: float) -> list[Run]:
    """Return the runs of `newest_runs`, in its order. `links`: as they are now."""
    open_runs = {status.facts.run: status for status in links}
    return [_run_of(row, open_runs, now) for row in rows]


def _run_of(row: Row, open_runs: Mapping[str, LinkStatus], now: float) -> Run:
    outcome, error, following, until = "", row["error"] or "", row["hint"] or "", row["ended"]
    status = open_runs.get(row["run_id"])
    if row["state"] == "finished" and row["error"] is None:  # with an error: its plan was out of date, nobody continues it
        landed, answered = int(row["landings"]), int(row["answered"])
        outcome = "nothing" if not landed else "loaded" if answered == landed else "landed"
    elif status is not None:
        outcome = status.state
        error, following = ("", "") if outcome == "running" else (status.reason, status.next)
        until = now if outcome == "running" else None
    else:
        outcome = "failed"
    return Run(
        name=row["run_id"],
        link=row["link"],
        outcome=outcome,
        started=row["started"],
        ended=row["ended"],
        seconds=None if until is None else max(0.0, until - row["started"]),
        worked=row["worked"],
        files=int(row["files"]),
        bytes=int(row["bytes"]),
        sent_bytes=int(row["sent_bytes"]),
        dropped=int(row["dropped"]),
        pending=int(row["pending"]),
        error=error,
        next=following,
        external=row["external"] or "",
    )
