"""What a rebuild found, and what it could not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemark.errors import PartialError

NOT_ON_PAPER = (
    "events, and runs but for what their manifests tell",
    "approvals at a link that no run had told yet: its guard trips again and asks again",
    "when a file was first seen, and why files are skipped: the next listing says the latter",
    "merges that had not settled: their sources are read, and the next merge derives them again",
)


@dataclass(frozen=True)
class Lost:
    """A file of the catalog whose bytes are gone. `next`: what brings it back, '' where nothing here does."""

    receiver: str
    site: str
    path: str
    next: str = ""


@dataclass
class Findings:
    """What the parts of a rebuild found on their way."""

    lost: list[Lost] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # papers that cannot be used, a sentence each
    derived: int = 0  # merged files that are derived again
    unknown: list[str] = field(default_factory=list)  # data files that no paper names; they stay where they are
    continued: list[str] = field(default_factory=list)  # runs that the next sync goes on with
    removed: list[str] = field(default_factory=list)  # landings without a manifest, removed


@dataclass(frozen=True)
class RebuildResult:
    """`counts`: rows of the new ledger by what they are; `old`: a copy of the ledger that was replaced, '' without."""

    counts: Mapping[str, int]
    findings: Findings
    old: str = ""

    @property
    def exit_code(self) -> int:
        return PartialError.kind if self.findings.lost or self.findings.troubles else 0

    @property
    def _told(self) -> dict[str, str]:
        """`error` and `hint` of a rebuild that is not whole."""
        lost = [f"{one.path} of {one.site} is lost" for one in self.findings.lost]
        left = [*lost, *self.findings.troubles]
        if not left:
            return {}
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        following = next((one.next for one in self.findings.lost if one.next), "./tidemark verify --deep")
        return {"error": f"the rest was done; {left[0]}{more}", "hint": following}

    def as_json(self) -> dict[str, Any]:
        found = self.findings
        return {
            "ok": self.exit_code == 0,
            **self._told,
            **self.counts,
            "derived_again": found.derived,
            "lost": [asdict(lost) for lost in found.lost],
            "troubles": found.troubles,
            "unknown_files": found.unknown,
            "continued_runs": found.continued,
            "removed_landings": found.removed,
            "not_on_paper": list(NOT_ON_PAPER),
            "old_ledger": self.old,
            "next": "./tidemark verify --deep",
        }
