"""All that the ledger says of one file, and the shape of a rule's answer about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemark.ledger.sql import Row
from tidemark.proof.status import LinkStatus


@dataclass(frozen=True)
class FileStory:
    """All that the ledger says of one path of one site; rows as the queries of that name give them.

    `above`: merged files that stand for the newest source row; `late`: why its newest content is not read yet, though it
    came. `names`: {site id: name}. `left_out`: how the reason begins that the link's patterns give. `remote`: receivers
    whose catalog another Tidemark keeps.
    """

    path: str
    site: str
    links: Sequence[Row] = ()
    receivers: Sequence[Row] = ()
    troubles: Sequence[Row] = ()
    sources: Sequence[Row] = ()
    above: Sequence[Row] = ()
    clashes: Sequence[Row] = ()
    kept_apart: Sequence[Row] = ()
    late: str = ""
    status: LinkStatus | None = None
    names: dict[str, str] = field(default_factory=dict)
    left_out: str = "excluded by"
    remote: frozenset[str] = frozenset()

    @property
    def link(self) -> Row | None:
        return self.links[0] if self.links else None

    @property
    def newest(self) -> Row | None:
        """The newest source row of the catalog."""
        return self.sources[0] if self.sources else None

    @property
    def carried(self) -> int:
        """The newest generation that landed, as far as this ledger knows."""
        return max([0, *(int(r["generation"] or 0) for r in (*self.links, *self.receivers))])

    def trouble(self, what: str, states: Sequence[str]) -> Row | None:
        return next((t for t in self.troubles if t["what"] == what and t["state"] in states), None)

    def named(self, site_id: str) -> str:
        return self.names.get(site_id, site_id)


@dataclass(frozen=True)
class Told:
    state: str
    cause: str
    next: str = ""
    if_you_wait: str = ""
    final: bool = False
    evidence: tuple[str, ...] = ()
