"""Decide whether a settled set may be replaced, and which files must be resent first. Pure.

A settled set is the merged files that stand alone (their sources are no longer read), together with these sources. One
source cannot leave alone: its points cannot be told from those of the others. A change of one source at the site therefore
takes effect only when every source is resent as a live file, covered by others, or dropped for good. Until then readers
see the set unchanged, and the late files are reported. Where a source vanished and its points are kept, the set stays
and ranks below all live files of its site.
Source: docs/decisions/0007-settled-files-are-replaced-whole.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.ledger.receiver.catalog import Rank


class SourceFate(enum.StrEnum):
    """What became of a source of a settled set since it settled."""

    HERE = "here"  # the site has it as it was
    AGAIN = "again"  # a newer generation of it is live
    TOLD = "told"  # the site has a newer generation, which the catalog lacks
    COVERED = "covered"  # superseded, and every file that covers it is in the catalog
    COVERING = "covering"  # superseded, and a file that covers it has not arrived
    LEFT = "left"  # dropped, and the drop takes effect
    KEPT = "kept"  # dropped, and its points stay: the link has deletes = "keep"
    ASKED = "asked"  # vanished, and the operator decides


_ANSWERED = frozenset({SourceFate.AGAIN, SourceFate.COVERED, SourceFate.LEFT})
_COMING = frozenset({SourceFate.HERE, SourceFate.TOLD})
_GONE = frozenset({SourceFate.KEPT, SourceFate.ASKED})


@dataclass(frozen=True)
class Root:
    """A source of a settled set. `generation`: the newest that the site reported. `changed`: the site's last report of it
    differs from what the set shows. `covers`: live files that cover it. `trouble`: why its newest generation is not in the
    catalog; resending it would not help then."""

    path: str
    generation: int
    fate: SourceFate
    changed: bool = False
    covers: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Requested:
    """A file that the site shall send again, whole, if `generation` is still the newest it has sent."""

    path: str
    generation: int
    reason: str


@dataclass(frozen=True)
class Outcome:
    """`action`: stand (nothing to do), go (the set leaves, readers read its sources), below (it ranks below all live files
    from now on), wait (`late` {path: why}: files whose content readers do not see yet; `again`: the files to resend)."""

    action: str
    late: Mapping[str, str] = field(default_factory=dict)
    again: tuple[Requested, ...] = ()


def judge_settled_set(roots: Iterable[Root], misplaced: Iterable[str] = ()) -> Outcome:
    """Decide what becomes of a settled set. `misplaced`: files of the site that the set outranks wrongly, because one of its
    sources ranks below them, or a vanished one above them, and sources that the site has in a set that ranks below it."""
    roots = sorted(roots, key=lambda root: root.path)
    if all(root.fate in _ANSWERED for root in roots):
        return Outcome("go")
    if all(root.fate in _ANSWERED | _GONE for root in roots):
        return Outcome("below")
    late = dict.fromkeys(misplaced, "it")
    for root in roots:
        if root.fate is SourceFate.COVERED:
            late |= dict.fromkeys(root.covers, f"what it covers of {root.path}")
            late[root.path] = "its compaction"
        elif root.fate is SourceFate.LEFT:
            late[root.path] = "its drop"
        elif root.changed:
            late[root.path] = "its deletion or change"
    if not late:
        return Outcome("stand")
    coming = [root for root in roots if root.fate in _COMING]
    why = _waiting_reason(coming, [root for root in roots if root.fate is SourceFate.COVERING])
    told = {path: f"{what} is not read yet: {why}" for path, what in sorted(late.items())}
    again = tuple(
        Requested(root.path, root.generation, f"a settled file that holds its points has to be replaced: {why}")
        for root in coming
        if not root.trouble
    )
    return Outcome("wait", told, again)


def is_outranked(low: Rank, high: Rank, between: Rank) -> bool:
    """Whether a file of rank `between` wrongly loses points to a settled set of rank `high` with a source of rank `low`."""
    return low < between < high


def _waiting_reason(coming: list[Root], covering: list[Root]) -> str:
    if troubled := next((root for root in coming if root.trouble), None):
        return f"it waits for {troubled.path}, which is {troubled.trouble}"
    if coming:
        return f"{_join_paths([root.path for root in coming])} of a settled file has to come again; the next sync sends it"
    return f"it waits for what covers {_join_paths([root.path for root in covering])}"


def _join_paths(paths: list[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return ", ".join(paths[:2]) + more
