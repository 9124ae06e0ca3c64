"""Vanished files: in which files one may live on (a hint), and may they be told (the guard). Pure.

A compaction takes files of one database, region and time partition and makes others of them. Names cannot tell
whether a file that is gone was among them: an old file that spans the same times cannot be told from it. The
receiver can tell: it holds the bytes of both, and its verdict does not ask for this hint (docs/decisions/0005). The
hint (`find_covers`) says which word a plan and a manifest use, *superseded* or *dropped*, and which files a person should
check. It frees a file from the limits only where the file that it points to is new in the same run.

A site that lost its disk must not empty the centre (DESIGN §3 "Vanished files"). `judge_vanished` asks three questions, in
this order. What the operator approved passes all of them, and transfers are never held back.

1. Was it listed? Below a data folder that is missing, or has not even a folder in it, nothing is seen. What was
   there is not told, whatever other files seem to hold it, and whatever the link's `deletes` says.
2. Does the site seem lost otherwise: no TsFile at all, or, with `deletes = "apply"`, none in one data folder? Then
   nothing is told but what new files of this very run explain: a compaction may have emptied that folder. With
   `keep` it costs no point to tell the rest, and a server whose last late points were deleted empties its unsequence
   folder, too.
3. With `deletes = "apply"`: are more files gone than the link's limits, those left out that new files explain? A
   file that the receiver has already explains nothing here: it may have spanned these times for years.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.tsfiles.companions.resource import ANY_DEVICE, Extent
from tidemark.tsfiles.names import SourceName, may_hold


class Gone(NamedTuple):
    """A vanished file. `name` is None where its path cannot be taken apart; an empty extent is unknown, and touches none."""

    path: str
    name: SourceName | None
    extent: Extent


class Live(NamedTuple):
    """A sealed file that the site has."""

    name: SourceName
    extent: Extent


def find_covers(gone: Sequence[Gone], live: Sequence[Live]) -> Mapping[str, tuple[str, ...]]:
    """For every vanished path the live ones in which it may live on, sorted; none for a drop.

    Such a file lies in the same database, region and partition, its name says that a compaction may have made it, and for
    one device at least the times from its first to its last point meet those of the vanished file.
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
    """What one listing showed. `known`: files the ledger counts as present; `listed`: TsFiles found, open ones too.

    `missing`: data folders that do not exist; `bare`: data folders without any file; `hollow`: those of them in which there
    is no folder either, as where a disk is not mounted. They arouse suspicion only where vanished files lay below them: an
    unsequence folder may be empty or not made yet.
    """

    known: int
    listed: int
    missing: Sequence[str] = ()
    bare: Sequence[str] = ()
    hollow: Sequence[str] = ()


@dataclass(frozen=True)
class Limits:
    """How many vanished files pass without a person's word."""

    apply: bool  # deletes = "apply"
    files: int
    share: float


@dataclass(frozen=True)
class Verdict:
    """`reason` is empty where nothing is held. `away`: what is held may be there still, on a disk that nobody saw."""

    told: tuple[str, ...]
    held: tuple[str, ...] = ()
    reason: str = ""
    away: bool = False


def judge_vanished(
    gone: Sequence[str], view: View, limits: Limits, approved: Collection[str] = (), explained: Collection[str] = ()
) -> Verdict:
    """Divide the vanished paths into those told now and those that wait for `approve`. `explained`: a file that is new in
    this run may hold its points."""
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
