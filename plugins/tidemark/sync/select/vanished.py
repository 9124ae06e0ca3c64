"""Vanished files: which files may hold their points (a hint), and whether they may be reported (the guard). Pure.

A compaction replaces files of one database, region and time partition by others. Names cannot show whether a vanished
file was among its sources: an old file may span the same times. The receiver can: it holds the bytes of both, and its
verdict does not use this hint (docs/decisions/0005). The hint (`find_covers`) decides which word a plan and a manifest
use, *superseded* or *dropped*, and which files a person should check. It exempts a file from the limits only if the
covering file is new in the same run.

A site that lost its disk must not empty the centre (DESIGN §3 "Vanished files"). `judge_vanished` asks three questions, in
this order. Files that the operator approved pass all of them. Transfers are never held back.

1. Was the file listed? Below a data folder that is missing, or that contains no folder, nothing is seen. Files from
   there are not reported, whatever other files seem to hold their points, and whatever the link's `deletes` says.
2. Does the site seem lost otherwise: no TsFile at all, or, with `deletes = "apply"`, none in one data folder? Then
   only files that new files of the same run explain are reported: a compaction may have emptied that folder. With
   `keep`, a report deletes no points. A server whose last late points were deleted empties its unsequence folder, too.
3. With `deletes = "apply"`: have more files vanished than the link's limits allow, not counting those that new files
   explain? A file that the receiver has already explains nothing, unless it is the vanished one itself, moved: it may have
   spanned these times for years.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.tsfiles.companions.resource import ANY_DEVICE, Extent
from tidemark.tsfiles.names import SourceName, may_hold


class Gone(NamedTuple):
    """A vanished file. `name` is None if its path cannot be parsed. An empty extent is unknown and overlaps nothing."""

    path: str
    name: SourceName | None
    extent: Extent


class Live(NamedTuple):
    """A sealed file that the site has."""

    name: SourceName
    extent: Extent


def find_covers(gone: Sequence[Gone], live: Sequence[Live]) -> Mapping[str, tuple[str, ...]]:
    """Map every vanished path to the sorted paths of live files that may hold its points; empty means a drop.

    Such a file has the same database, region and partition. Its name says that a compaction may have made it. For at least
    one device its time range overlaps that of the vanished file.
    """
    beside: dict[tuple[str, str, int], list[Live]] = defaultdict(list)
    for file in live:
        beside[_group_of_name(file.name)].append(file)
    return {g.path: _covering_paths(g, g.name, beside[_group_of_name(g.name)]) if g.name else () for g in gone}


def _covering_paths(gone: Gone, name: SourceName, beside: Sequence[Live]) -> tuple[str, ...]:
    return tuple(sorted(f.name.path for f in beside if may_hold(f.name, name) and _extents_meet(f.extent, gone.extent)))


def _extents_meet(one: Extent, other: Extent) -> bool:
    wanted = {device: (start, end) for device, start, end in other}
    whole = wanted.get(ANY_DEVICE)
    for device, start, end in one:
        spans = wanted.values() if device == ANY_DEVICE else [s for s in (wanted.get(device), whole) if s]
        if any(start <= b and end >= a for a, b in spans):
            return True
    return False


def _group_of_name(name: SourceName) -> tuple[str, str, int]:
    return name.database, name.region, name.partition


SHARE_FROM = 20  # known files from which delete_limit_share counts (CONTRACT §2)


@dataclass(frozen=True)
class View:
    """What one listing showed. `known`: files the ledger counts as present. `listed`: TsFiles found, open ones too.

    `missing`: data folders that do not exist. `bare`: data folders without any file. `hollow`: those of them that contain
    no folder either, like an unmounted disk. They count only if vanished files lay below them: an unsequence folder may be
    empty or not made yet.
    """

    known: int
    listed: int
    missing: Sequence[str] = ()
    bare: Sequence[str] = ()
    hollow: Sequence[str] = ()


@dataclass(frozen=True)
class Limits:
    """How many vanished files pass without an approval."""

    apply: bool  # deletes = "apply"
    files: int
    share: float


@dataclass(frozen=True)
class Verdict:
    """The guard's answer: paths to report and paths to hold. `reason` is empty if nothing is held. `away`: the held files
    may still exist, on a disk that was not seen."""

    told: tuple[str, ...]
    held: tuple[str, ...] = ()
    reason: str = ""
    away: bool = False


def judge_vanished(
    gone: Sequence[str], view: View, limits: Limits, approved: Collection[str] = (), explained: Collection[str] = ()
) -> Verdict:
    """Divide the vanished paths into those reported now and those that wait for `approve`. `explained`: paths whose points
    may be in a file that is new in this run."""
    unseen = (*view.missing, *view.hollow)
    asking = [p for p in gone if p not in approved and (p not in explained or not view.listed or _is_below(p, unseen))]
    lost = _looks_lost(asking, view, limits)
    reason = lost or _too_many(asking, view, limits)
    if not reason:
        return Verdict(tuple(gone))
    held = frozenset(asking)
    return Verdict(tuple(p for p in gone if p not in held), tuple(asking), reason, bool(lost))


def _looks_lost(gone: Sequence[str], view: View, limits: Limits) -> str:
    if missing := _folders_holding(gone, view.missing):
        return f"the site's folder is missing or not mounted: {', '.join(missing)}"
    if hollow := _folders_holding(gone, view.hollow):
        return f"the site's folder looks empty or not mounted: {', '.join(hollow)}"
    if gone and not view.listed:
        return f"the site looks empty, the ledger knows {view.known} files"
    if limits.apply and (bare := _folders_holding(gone, view.bare)):
        return f"the site's folder has no TsFile any more: {', '.join(bare)}"
    return ""


def _too_many(gone: Sequence[str], view: View, limits: Limits) -> str:
    if limits.apply and len(gone) > limits.files:
        return f"{len(gone)} files are gone, more than delete_limit_files = {limits.files}"
    if limits.apply and view.known >= SHARE_FROM and len(gone) > limits.share * view.known:
        return f"{len(gone)} of {view.known} files are gone, more than delete_limit_share = {limits.share}"
    return ""


def _folders_holding(gone: Sequence[str], folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if any(_is_below(path, [folder]) for path in gone)]


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return path.startswith(tuple(folder.rstrip("/") + "/" for folder in folders))
