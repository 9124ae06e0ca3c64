"""What a merge did: its result, for people and scripts, and the counts while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidemark.errors import CorruptionError, PermanentError, RetryableError, worst_exit_code

_MERGE = "./tidemark merge"
_HINTS = {
    CorruptionError.kind: "./tidemark verify --repair",
    PermanentError.kind: f"free space there, or mend what it names; then {_MERGE}",
}


@dataclass(frozen=True)
class MergeResult:
    """`rows`: points in the merged files. `kept`: (subject, reason) of overlapping files, and of such that span partitions
    of a cluster, that stay as they came.

    `failed`: (subject, error, exit code) of groups that a later merge tries again; `moved`: groups that changed again and
    again while they were merged. What is kept, failed or moved is read as well as before.
    """

    groups: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    seconds: float = 0.0
    kept: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str, int], ...] = ()
    moved: int = 0

    @property
    def exit_code(self) -> int:
        kinds = {kind for _, _, kind in self.failed} | ({RetryableError.kind} if self.moved else set())
        return worst_exit_code(kinds)

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            **self._trouble(),
            "groups": self.groups,
            "files_in": self.files_in,
            "files_out": self.files_out,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "kept": [{"subject": subject, "reason": reason} for subject, reason in self.kept],
            "failed": [{"subject": subject, "error": error, "kind": kind} for subject, error, kind in self.failed],
            "moved": self.moved,
        }

    def _trouble(self) -> dict[str, str]:
        """What went wrong, and what to run next; nothing where nothing did."""
        if self.failed:
            (subject, error, kind), *others = self.failed
            more = f" (and {len(others)} more)" if others else ""
            return {"error": (error if subject in error else f"{subject}: {error}") + more, "hint": _HINTS.get(kind, _MERGE)}
        if self.moved:
            error = f"{self.moved} groups changed again and again while they were merged"
            return {"error": error, "hint": "./tidemark merge"}
        return {}


@dataclass
class Tally:
    """The counts of a merge that goes on."""

    groups: int = 0
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    failed: list[tuple[str, str, int]] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)  # digests of groups that failed in this run
    moved: int = 0
    fetched: dict[str, float] = field(default_factory=dict)  # locations that came from nodes for it: when it asked last
    waiting: tuple[tuple[str, str], ...] = ()
