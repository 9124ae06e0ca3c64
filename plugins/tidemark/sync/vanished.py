"""In which files a vanished one may live on, by names and extents: a hint, never a proof.

A compaction takes files of one database, region and time partition and makes others of them. Names cannot tell whether a
file that is gone was among them: an old file that spans the same times looks the same. The receiver can tell. It holds the
bytes of both, and its verdict does not ask for this hint (docs/decisions/0005). The hint says which
word a plan and a manifest use, *superseded* or *dropped*, and where a person should look. It frees a file from the guard's
limits only where the file that it points to is new in the same run (`guard`).

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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


def covers(gone: Sequence[Gone], live: Sequence[Live]) -> Mapping[str, tuple[str, ...]]:
    """For every vanished path the live ones in which it may live on, sorted; none for a drop.

    Such a file lies in the same database, region and partition, its name says that a compaction may have made it, and for
    one device at least the times from its first to its last point meet those of the vanished file.
    """
    beside: dict[tuple[str, str, int], list[Live]] = defaultdict(list)
    for file in live:
        beside[_group(file.name)].append(file)
    return {g.path: _covers(g, g.name, beside[_group(g.name)]) if g.name else () for g in gone}


def _covers(gone: Gone, name: SourceName, beside: Sequence[Live]) -> tuple[str, ...]:
    return tuple(sorted(f.name.path for f in beside if may_hold(f.name, name) and _touch(f.extent, gone.extent)))


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
