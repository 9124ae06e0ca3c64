"""Why a file is gone: superseded by what a compaction made of it, or dropped (DESIGN §3 "Vanished files").

Pure. A vanished file is superseded when live files of the same database, region and partition with higher compaction
counts carry its own identity (creation time and version), or together cover every device and interval of its extent.

A file that merely *covers* counts only while it is fresh: not acknowledged yet, or made from a file that vanished at
the same time or within LATELY before (IoTDB removes a compaction's sources one after the other, and a listing may fall
between). Otherwise a file that TTL or a user removed would pass for compacted because some old merged file spans
its times, and the centre would let go of points that exist nowhere else. For the same reason it must be of a kind that
can hold the vanished file's points: a sequence file is compacted into sequence files only; an unsequence one into an
unsequence file, or by a cross compaction, which raises the cross count of the sequence files it makes. A sequence file
whose inner count alone rose has no point of any unsequence file, whatever times it spans.

*Together*: each device's interval lies in the union of the covering spans; times that follow each other touch. A `.resource`
tells first and last time of a device, not where between them it has points, so a gap between spans may be a place where
the vanished file had none, or the only place where its points were. Between two files of a cross compaction a gap is
usual (they are cut where the sequence files were, which an unsequence file spans) and is accepted where the interval's
ends, which are points, lie in spans. Anywhere else the file is a drop: kept and marked, or held to the limits; points
that are kept too long can be let go later, points that left cannot be brought back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.tsfiles.names import SourceName
from tidemark.tsfiles.resource import ANY_DEVICE, Extent

LATELY = 3600.0
"""Seconds within which the sources of one compaction vanish; queries at the site may hold single ones back."""


_Origin = tuple[tuple[str, str, int], tuple[int, int]]  # group and identity of a file that a compaction rewrites


class Gone(NamedTuple):
    """A vanished file. `name` is None where its path cannot be taken apart; an empty extent is unknown."""

    path: str
    name: SourceName | None
    extent: Extent


class Live(NamedTuple):
    """A sealed file of the listing that may cover others. `fresh`: not acknowledged yet."""

    name: SourceName
    extent: Extent
    fresh: bool


def covers(gone: Sequence[Gone], live: Sequence[Live], lately: Iterable[SourceName] = ()) -> Mapping[str, tuple[str, ...]]:
    """For every vanished path the paths that cover it, sorted; empty for a drop. `lately`: files that vanished before."""
    beside: dict[tuple[str, str, int], list[Live]] = defaultdict(list)
    for file in live:
        beside[_group(file.name)].append(file)
    leaving: dict[_Origin, int] = {}
    for name in (*(g.name for g in gone if g.name), *lately):
        origin = (_group(name), _identity(name))
        leaving[origin] = max(name.name.cross, leaving.get(origin, 0))
    return {g.path: _covers(g, g.name, beside[_group(g.name)], leaving) if g.name else () for g in gone}


def _covers(gone: Gone, name: SourceName, beside: Iterable[Live], leaving: Mapping[_Origin, int]) -> tuple[str, ...]:
    later = [f for f in beside if f.name.name.inner > name.name.inner or f.name.name.cross > name.name.cross]
    carriers = [f for f in later if _identity(f.name) == _identity(name)]
    fresh = [f for f in later if (f.fresh or _origin(f) in leaving) and _may_hold(f, name, leaving)]
    touching = [f for f in fresh if _touch(f.extent, gone.extent)]
    crossed = [f for f in touching if _crossed(f, leaving)]
    if not carriers and not (gone.extent and all(_covered(one, touching, crossed) for one in gone.extent)):
        return ()
    return tuple(sorted({f.name.path for f in (*carriers, *touching)}))


def _may_hold(file: Live, name: SourceName, leaving: Mapping[_Origin, int]) -> bool:
    """Whether a compaction can have put points of the vanished file there."""
    if name.unsequence and not file.name.unsequence:
        return _crossed(file, leaving)
    return name.unsequence == file.name.unsequence


def _crossed(file: Live, leaving: Mapping[_Origin, int]) -> bool:
    """Whether a cross compaction made it: the cross count is above that of the file it was made from, if that is known."""
    return not file.name.unsequence and file.name.name.cross > leaving.get(_origin(file), 0)


def _covered(wanted: tuple[str, int, int], files: Sequence[Live], crossed: Sequence[Live]) -> bool:
    """Whether the spans of the wanted device hold its interval whole, or, of files of a cross compaction, both its ends."""
    device, start, end = wanted
    reached = start - 1
    for first, last in sorted(_spans(device, files)):
        if first <= reached + 1:
            reached = max(reached, last)
    if reached >= end:
        return True
    ends = _spans(device, crossed)
    return all(any(first <= time <= last for first, last in ends) for time in (start, end))


def _spans(device: str, files: Iterable[Live]) -> list[tuple[int, int]]:
    return [(first, last) for f in files for d, first, last in f.extent if ANY_DEVICE in (d, device) or d == device]


def _touch(one: Extent, other: Extent) -> bool:
    wanted = {device: (start, end) for device, start, end in other}
    whole = wanted.get(ANY_DEVICE)
    for device, start, end in one:
        spans = wanted.values() if device == ANY_DEVICE else [s for s in (wanted.get(device), whole) if s]
        if any(start <= b and end >= a for a, b in spans):
            return True
    return False


def _group(name: SourceName) -> tuple[str, str, int]:
    return name.database, name.region, name.partition


def _origin(file: Live) -> _Origin:
    return _group(file.name), _identity(file.name)


def _identity(name: SourceName) -> tuple[int, int]:
    return name.name.created, name.name.version
