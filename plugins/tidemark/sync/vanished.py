"""Why a file is gone: superseded by what a compaction made of it, or dropped (DESIGN §3 "Vanished files").

Pure. A vanished file is superseded when live files of the same database, region and partition with higher compaction
counts carry its own identity (creation time and version), or together cover every device and interval of its extent.

A file that merely *covers* counts only while it is fresh: not acknowledged yet, or made from a file that vanished at
the same time or within LATELY before (IoTDB removes a compaction's sources one after the other, and a listing may fall
between). Otherwise a file that TTL or a user removed would pass for compacted because some old merged file spans
its times, and the centre would let go of points that exist nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.tsfiles.names import SourceName
from tidemark.tsfiles.resource import ANY_DEVICE, Extent

LATELY = 3600.0
"""Seconds within which the sources of one compaction vanish; queries at the site may hold single ones back."""


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
    leaving = {(_group(name), _identity(name)) for name in (*(g.name for g in gone if g.name), *lately)}
    return {g.path: _covers(g, g.name, beside[_group(g.name)], leaving) if g.name else () for g in gone}


def _covers(
    gone: Gone, name: SourceName, beside: Iterable[Live], leaving: set[tuple[tuple[str, str, int], tuple[int, int]]]
) -> tuple[str, ...]:
    later = [f for f in beside if f.name.name.inner > name.name.inner or f.name.name.cross > name.name.cross]
    carriers = [f for f in later if _identity(f.name) == _identity(name)]
    fresh = [f for f in later if f.fresh or (_group(f.name), _identity(f.name)) in leaving]
    touching = [f for f in fresh if _touch(f.extent, gone.extent)]
    if not carriers and not (gone.extent and all(_covered(one, touching) for one in gone.extent)):
        return ()
    return tuple(sorted({f.name.path for f in (*carriers, *touching)}))


def _covered(wanted: tuple[str, int, int], files: Sequence[Live]) -> bool:
    """Whether the files together reach from before `wanted` to after it, for its device."""
    device, start, end = wanted
    spans = [(a, b) for f in files for d, a, b in f.extent if ANY_DEVICE in (d, device) or d == device]
    return bool(spans) and min(a for a, _ in spans) <= start and max(b for _, b in spans) >= end


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


def _identity(name: SourceName) -> tuple[int, int]:
    return name.name.created, name.name.version
