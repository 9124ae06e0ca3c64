"""May these drops be told? A site that lost its disk must not empty the centre (DESIGN §3 "Vanished files").

Pure. A source that looks empty, or lacks a folder it was asked for, drops nothing whatever the link's `deletes` says;
with `deletes = "apply"` more drops than the link's limits wait as well. What the operator approved goes. Transfers are
never held back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SHARE_FROM = 20  # known files from which delete_limit_share counts (CONTRACT §2)


@dataclass(frozen=True)
class View:
    """What one listing showed. `known`: files the ledger counts as present; `listed`: TsFiles found, open ones too.

    `missing`: data folders that do not exist; `bare`: data folders in which there is nothing at all. Both arouse
    suspicion only where drops lie below them: an unsequence folder may be empty or not made yet.
    """

    known: int
    listed: int
    missing: Sequence[str] = ()
    bare: Sequence[str] = ()


@dataclass(frozen=True)
class Limits:
    """How many vanished files pass without a person's word."""

    apply: bool  # deletes = "apply"
    files: int
    share: float


@dataclass(frozen=True)
class Verdict:
    """`reason` is empty where nothing is held."""

    told: tuple[str, ...]
    held: tuple[str, ...] = ()
    reason: str = ""


def judge(drops: Sequence[str], view: View, limits: Limits, approved: Collection[str] = ()) -> Verdict:
    """Divide the dropped paths into those told now and those that wait for `approve`."""
    asking = [path for path in drops if path not in approved]
    reason = _reason(asking, view, limits) if asking else ""
    if not reason:
        return Verdict(tuple(drops))
    return Verdict(tuple(p for p in drops if p in approved), tuple(asking), reason)


def _reason(drops: Sequence[str], view: View, limits: Limits) -> str:
    if missing := _holding(drops, view.missing):
        return f"the site's folder is missing or not mounted: {', '.join(missing)}"
    if not view.listed:
        return f"the site looks empty, the ledger knows {view.known} files"
    if bare := _holding(drops, view.bare):
        return f"the site's folder looks empty or not mounted: {', '.join(bare)}"
    if limits.apply and len(drops) > limits.files:
        return f"{len(drops)} files are gone, more than delete_limit_files = {limits.files}"
    if limits.apply and view.known >= SHARE_FROM and len(drops) > limits.share * view.known:
        return f"{len(drops)} of {view.known} files are gone, more than delete_limit_share = {limits.share}"
    return ""


def _holding(drops: Sequence[str], folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if any(drop.startswith(folder.rstrip("/") + "/") for drop in drops)]
