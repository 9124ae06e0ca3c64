"""Is a generation that the site has in the catalog? If not, why not. Pure.

*Present* (CONTRACT §1): readers read it, or they read a merged file whose lineage reaches it and whose account agrees
(in = out + overwritten + deleted), and the file that readers read is what the ledger recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Held:
    """A row of the catalog as proof needs it."""

    file_id: int
    path: str  # '' for merged
    generation: int
    size: int
    state: str  # live | retired | reclaimed
    visible: bool
    location: str


@dataclass(frozen=True, slots=True)
class Expected:
    """A file the site has, by its inventory. `extent`: (device, first, last) from its .resource, the site's unit."""

    path: str
    size: int
    generation: int  # newest that a manifest carried, 0 while none did
    extent: tuple[tuple[str, int, int], ...]
    landing: str  # manifest that last spoke of it


@dataclass(frozen=True)
class CatalogView:
    """What one receiver's catalog holds of one site, and what is known to be wrong.

    `merged_over`: file_id → merged files made from it. `account`: merged file_id → what its account says is wrong, ''
    where it agrees. `broken`: file_id → what is wrong with its bytes. `trouble`: path → why it is not in the catalog.
    `late`: path → why its newest content is not read, though what it was before is: a settled file holds it back.
    """

    held: Mapping[int, Held] = field(default_factory=dict)
    by_path: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    merged_over: Mapping[int, Sequence[int]] = field(default_factory=dict)
    account: Mapping[int, str] = field(default_factory=dict)
    broken: Mapping[int, str] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)

    def with_troubles(self, trouble: Mapping[str, str]) -> CatalogView:
        """The same with other troubles."""
        return replace(self, trouble=trouble)


def why_absent(expected: Expected, view: CatalogView) -> str:
    """'' when the live generation is present, else the reason in words."""
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
    """'' when readers read the content of `row`, itself or through every merged file that was made from it.

    A merge divides its sources' points among its outputs, so all of them must be there and agree.
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
    """'' when a merge's account agrees."""
    if points_in == points_out + overwritten + deleted:
        return ""
    return (
        f"the account of merged file {merged_id} does not agree: {points_in} in, but {points_out} out + {overwritten} "
        f"overwritten + {deleted} deleted"
    )
