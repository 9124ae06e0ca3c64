"""Decide which files a merge takes together, and in which tasks. Pure: catalog rows in, tasks out.

A **group** is files of one site and database that overlap, directly or through others, in the times of a device. All their
points go into the merged files that replace them. A group is merged while readers still see one of its files, and always
from sources: earlier merged files are made anew. On several nodes a file that spans catalog partitions is a group of its
own, because each output belongs to the nodes of its slot. Source: DESIGN §3 "Sources and merges", §7; docs/cluster.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile, Rank
from tidemark.receiver.merge.task import MergeTask, TaskSource
from tidemark.untrusted_files import MOST_MODS

NONE: Mapping[int, Mapping[str, str]] = MappingProxyType({})
TASK_POINTS = 2_000_000  # a device is never split; the last task may be smaller
MOST_PARTS = 500  # partitions that one file may be cut into; each is an open file of the task
COPY_SHARE = 8  # copying a point costs about 1/8 of decoding and writing it


@dataclass(frozen=True)
class Unit:
    """A file that may be merged, with the extent of its devices."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]


@dataclass(frozen=True)
class Group:
    """Files to merge, lowest rank first."""

    units: tuple[Unit, ...]

    @property
    def rank(self) -> Rank:
        """The rank of the merged files: that of their highest source."""
        return max(unit.file.rank for unit in self.units)

    @property
    def points(self) -> int:
        return sum(unit.file.points for unit in self.units)

    @property
    def work(self) -> int:
        """Points to merge. Points of devices that are only copied count for a share."""
        return sum(_device_costs(self).values())

    @property
    def file_ids(self) -> tuple[int, ...]:
        return tuple(sorted(unit.file.file_id for unit in self.units))

    @property
    def digest(self) -> str:
        """Identifies exactly these sources: a new generation is another row with another id."""
        return hashlib.sha256(",".join(str(file_id) for file_id in self.file_ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Plan:
    """`groups` to merge. `kept`: (group, subject, reason) of groups that cannot be merged, known without reading them.
    `waiting`: (subject, reason) of groups with a settled file that must be replaced first."""

    groups: tuple[Group, ...] = ()
    kept: tuple[tuple[Group, str, str], ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()


def plan_merge(
    units: Iterable[Unit],
    tried: Collection[str] = (),
    partition: int | None = None,
    to_go: Mapping[int, Mapping[str, str]] = NONE,
    cut: bool = False,
) -> Plan:
    """Plan the merges of these files of one receiver, both visible ones and those that merged files hide.

    `tried`: digests of groups known to stay unmerged. `partition`: only groups that touch this catalog partition. `to_go`:
    settled files that wait to be replaced → {late path: why}; merging them would write outdated points. `cut`: a source that
    overlaps nothing but spans partitions is a group, too.
    """
    places: dict[tuple[str, str, bool], list[Unit]] = defaultdict(list)
    for unit in units:
        if not unit.file.kept or unit.file.marked:  # vanished files only once they are marked: others may still leave
            places[unit.file.site_id, unit.file.database, unit.file.kept].append(unit)
    groups: list[Group] = []
    kept: list[tuple[Group, str, str]] = []
    waiting: list[tuple[str, str]] = []
    for _, mine in sorted(places.items()):
        for group in overlapping_groups(mine, cut):
            if not any(unit.file.visible for unit in group.units) or group.digest in tried:
                continue
            if partition is not None and not _touches_partition(group, partition):
                continue
            held = [late for unit in group.units for late in to_go.get(unit.file.file_id, {}).items()]
            if held:
                waiting.append(min(held))
                continue
            obstacle = _find_obstacle(group)
            if obstacle:
                kept.append((group, *obstacle))
            else:
                groups.append(group)
    return Plan(tuple(groups), tuple(kept), tuple(sorted(set(waiting))))


def overlapping_groups(units: Sequence[Unit], cut: bool = False) -> list[Group]:
    """Group overlapping files of one site and database: two or more, with `cut` also one that spans partitions. Sorted by
    lowest rank."""
    leader = list(range(len(units)))

    def find(member: int) -> int:
        while leader[member] != member:
            leader[member] = leader[leader[member]]
            member = leader[member]
        return member

    extents: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, unit in enumerate(units):
        for device in unit.devices:
            extents[device.device].append((device.start, device.end, number))
    for found in extents.values():
        found.sort()
        reach, last = found[0][1], found[0][2]
        for start, end, number in found[1:]:
            if start <= reach:
                leader[find(number)] = find(last)
            if end > reach or start > reach:
                reach, last = end, number
    members: dict[int, list[Unit]] = defaultdict(list)
    for number, unit in enumerate(units):
        members[find(number)].append(unit)
    together = [found for found in members.values() if len(found) > 1 or (cut and _spans_partitions(found[0].file))]
    groups = [Group(tuple(sorted(found, key=_by_rank))) for found in together]
    return sorted(groups, key=lambda group: _by_rank(group.units[0]))


def tasks_of(
    group: Group, number: int, root: str, staging: str, interval: int, *, task_points: int = TASK_POINTS
) -> list[MergeTask]:
    """Return the group's tasks, ordered by device: each a range of devices with about `task_points` points to merge.

    Devices that are only copied (`receiver.windows`) hardly count, so a few overlapping devices do not split a group into
    many small files.

    `number`: the group's index in the batch. `staging`: folder below `root` for the outputs. `interval`: of catalog
    partitions, in the site's unit.
    """
    ranges: list[list[str]] = [[]]
    weight = 0
    for name, count in sorted(_device_costs(group).items()):
        if ranges[-1] and weight + count > task_points:
            ranges.append([])
            weight = 0
        ranges[-1].append(name)
        weight += count
    first = group.units[0].file
    holders: dict[str, list[int]] = defaultdict(list)
    for place, unit in enumerate(group.units):
        for device in unit.devices:
            holders[device.device].append(place)
    known = [
        whole
        for file in (unit.file for unit in group.units)
        for whole in ((file.location, file.sha256, file.size), (file.mods_location, file.mods_sha256, MOST_MODS))
    ]
    proofs = tuple((location, sha256, most) for location, sha256, most in known if location and sha256)
    return [
        MergeTask(
            group=number,
            number=place,
            root=root,
            staging=staging,
            database=first.database,
            interval=interval,
            sources=_task_sources(group, {holder for device in devices for holder in holders[device]}),
            devices=tuple(devices),
            prove=proofs[place :: len(ranges)],
        )
        for place, devices in enumerate(ranges)
    ]


def _device_costs(group: Group) -> dict[str, int]:
    """Return device → points to merge; only a share for a device whose files do not overlap and have no deletions."""
    found: dict[str, list[tuple[CatalogDevice, bool]]] = defaultdict(list)
    for unit in group.units:
        for device in unit.devices:
            found[device.device].append((device, bool(unit.file.mods_location)))
    costs = {}
    for name, extents in found.items():
        points = sum(device.points for device, _ in extents)
        extents.sort(key=lambda extent: extent[0].start)
        meets = any(before.end >= after.start for (before, _), (after, _) in itertools.pairwise(extents))
        costs[name] = points if meets or any(mods for _, mods in extents) else points // COPY_SHARE
    return costs


def _task_sources(group: Group, holders: Iterable[int]) -> tuple[TaskSource, ...]:
    files = [group.units[place].file for place in sorted(holders)]
    return tuple(TaskSource(file.location, file.mods_location, file.prefix) for file in files)


def _find_obstacle(group: Group) -> tuple[str, str] | None:
    """Return (subject, reason) why the group cannot be merged, as far as the catalog knows."""
    for unit in group.units:
        if unit.file.undecodable:
            series = ", ".join(unit.file.undecodable[:3])
            return unit.file.location, f"it holds series that are not decoded here: {series}"
    alone = group.units[0].file
    if len(group.units) == 1 and alone.partition_to - alone.partition_from >= MOST_PARTS:
        wide = alone.partition_to - alone.partition_from + 1
        return alone.location, f"it spans {wide:,} partitions, of more than {MOST_PARTS} a file is not cut"
    return None


def _spans_partitions(file: CatalogFile) -> bool:
    """Whether the file has to be cut. Merged files are always in one partition."""
    return file.role == "source" and file.partition_from != file.partition_to


def _touches_partition(group: Group, partition: int) -> bool:
    return any(unit.file.partition_from <= partition <= unit.file.partition_to for unit in group.units)


def _by_rank(unit: Unit) -> tuple[Rank, int]:
    return unit.file.rank, unit.file.file_id


def portions_of(groups: Sequence[Group], most: int) -> list[list[Group]]:
    """Split the groups into portions that are fetched from nodes and merged in turn: as many bytes as the cache may have
    (`most`, 0: all), at least one group."""
    portions: list[list[Group]] = []
    left = 0
    for group in groups:
        size = sum(unit.file.size for unit in group.units)
        if not portions or (most and size > left):
            portions.append([])
            left = most
        portions[-1].append(group)
        left -= size
    return portions
