"""Decide whether a generation that the site has is in the catalog, and if not, why. Pure.

*Present* (CONTRACT §1): readers read it, or they read a merged file whose lineage reaches it and whose account agrees (in =
out + overwritten + deleted), and the file that readers read is what the ledger recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Held:
    """A catalog row with the columns that proof needs."""

    file_id: int
    path: str  # '' for merged
    generation: int
    size: int
    state: str  # live | retired | reclaimed
    visible: bool
    location: str


@dataclass(frozen=True, slots=True)
class Expected:
    """A file that the site has, by its inventory. `extent`: (device, first, last) from its .resource, in the site's unit."""

    path: str
    size: int
    generation: int  # newest that a manifest carried, 0 while none did
    extent: tuple[tuple[str, int, int], ...]
    landing: str  # last manifest that names it


@dataclass(frozen=True)
class CatalogView:
    """What one receiver's catalog holds of one site, and what is known to be wrong.

    `merged_over`: file_id → merged files made from it. `account`: merged file_id → what is wrong with its account, '' where
    it agrees. `broken`: file_id → what is wrong with its bytes. `trouble`: path → why it is not in the catalog. `late`: path
    → why a settled file hides its newest content; its older content is read.
    """

    held: Mapping[int, Held] = field(default_factory=dict)
    by_path: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    merged_over: Mapping[int, Sequence[int]] = field(default_factory=dict)
    account: Mapping[int, str] = field(default_factory=dict)
    broken: Mapping[int, str] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)

    def with_troubles(self, trouble: Mapping[str, str]) -> CatalogView:
        """Return the same view with other troubles."""
        return replace(self, trouble=trouble)


def why_absent(expected: Expected, view: CatalogView) -> str:
    """Return '' when the live generation is present, else the reason."""
    if expected.generation == 0:
        return view.trouble.get(expected.path, "the site lists it, but no landing has carried it yet")
    rows = [h for h in view.by_path.get(expected.path, ()) if h.generation == expected.generation]
    if not rows:
        fallback = f"generation {expected.generation} landed with {expected.landing} and is not in the catalog"
        return view.trouble.get(expected.path, fallback)
    row = max(rows, key=lambda h: h.file_id)
    if row.size != expected.size:
        return view.trouble.get(expected.path, f"it changed at the site ({row.size} → {expected.size} bytes), not sent yet")
    return why_unread(row, view)


def why_unread(row: Held, view: CatalogView, seen: frozenset[int] = frozenset()) -> str:
    """Return '' when readers read the content of `row`, directly or through every merged file made from it.

    A merge divides its sources' points among its outputs, so all of them must exist and agree.
    """
    if row.state == "live" and row.visible:
        return view.broken.get(row.file_id, "")
    above = [view.held[m] for m in view.merged_over.get(row.file_id, ()) if m in view.held and m not in seen]
    standing = [m for m in above if m.state == "live"]
    if not standing:
        return f"no file that readers see stands for it (it is {row.state})"
    for merged in standing:
        fallback = f"merged file {merged.file_id} has no account"
        why = view.account.get(merged.file_id, fallback) or why_unread(merged, view, seen | {row.file_id})
        if why:
            return why
    return ""


def account_trouble(merged_id: int, points_in: int, points_out: int, overwritten: int, deleted: int) -> str:
    """Return '' when a merge's account agrees, else the reason."""
    if points_in == points_out + overwritten + deleted:
        return ""
    return (
        f"the account of merged file {merged_id} does not agree: {points_in} in, but {points_out} out + {overwritten} "
        f"overwritten + {deleted} deleted"
    )
