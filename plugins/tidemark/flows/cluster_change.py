"""Change who the nodes are: plan it, phase 1 (everybody takes the new table, then it is swapped), roll it back before that.

Phase 2 is `cluster_migrate`. Source: seed 001 "Two-phase method"; docs/decisions/0015.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """The change asked for. `kind`: add | remove | rebalance. `url`, `host_key`, `key` (a private key file): of a node that
    joins, as in `[nodes.NAME]`; empty where the settings have the node. `request`: the caller's id of this very request, ""
    for none: asked again under it after it was done, it is answered, not done again."""

    kind: str
    node: str = ""
    url: str = ""
    host_key: str = ""
    key: str = ""
    request: str = ""


@dataclass(frozen=True)
class ChangeResult:
    """`moved_slots`, `moved_bytes`: come to their new groups so far. `state`: swapped | migrating | done | rolled_back."""

    epoch: int
    moved_slots: int
    moved_bytes: int
    state: str

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self)}
