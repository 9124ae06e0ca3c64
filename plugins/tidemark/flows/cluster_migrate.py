"""Phase 2 of a change: what a new group lacks comes to it, each member says so, the old one lets go. Continued from anywhere.

Source: seed 001 "Data migration"; docs/decisions/0015.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MigrateResult:
    """`slots`, `bytes`: of this call; `left`: slots that still move. `state`: of the change: migrating | done, "" where
    none was open."""

    epoch: int
    slots: int
    bytes: int
    left: int
    state: str

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self)}
