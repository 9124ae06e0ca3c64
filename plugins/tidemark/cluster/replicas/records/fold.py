"""The catalog that logs tell: of one group by its records, of a cluster by all its groups. Pure.

    groups = {header: fold_group(records, slots_of_file) for header, records in …}
    catalog = join_groups(groups, slots_of_file)

A commit counts if its records are whole in all of its groups and nothing takes it back. Only the last commit of a log can be
in doubt: whoever commits next settles it first. A group tells of the slots that it has by the newest partition table.
Source: seed 004; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord
from tidemark.cluster.replicas.records.operation import Facts, FileEntry, FileKey, Operation, Part, Width, read_part
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import SiteRow
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.ledger.receiver.schemas import SeriesRow

SlotsOf = Callable[[CatalogFile], Iterable[int]]
"""The slots of a file: of its database and partitions."""


@dataclass
class Told:
    """What logs tell: live files, what readers need beside them, the series that sites declared, the databases."""

    files: dict[FileKey, FileEntry] = field(default_factory=dict)
    sites: dict[str, SiteRow] = field(default_factory=dict)
    widths: dict[tuple[str, str, str], Width] = field(default_factory=dict)
    owners: dict[str, OwnerRow] = field(default_factory=dict)
    series: dict[tuple[str, str], SeriesRow] = field(default_factory=dict)
    databases: set[str] = field(default_factory=set)


@dataclass
class GroupTold(Told):
    """What one log tells. `slots`: slot → epoch of the partition table by which the group has it; `had`: the same of those
    that it lost.

    `made_by`: file → the commit by which it stands so. `commits`: all that count. `last`: the records of a commit that
    nobody settled yet; `join_groups` judges it.
    """

    slots: dict[int, int] = field(default_factory=dict)
    had: dict[int, int] = field(default_factory=dict)
    made_by: dict[FileKey, str] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)
    last: list[Part] = field(default_factory=list)

    @property
    def last_whole(self) -> str:
        """The last commit if all its records are here; else ""."""
        return self.last[0].commit if self.last and len(self.last) == self.last[0].of else ""


def fold_group(records: Iterable[StoredRecord], slots_of_file: SlotsOf) -> GroupTold:
    """Return what the records of a log tell, from its first one on. CorruptionError for a body that is no operation's."""
    told = GroupTold()
    for stored in records:
        part = read_part(stored)
        if part is None:
            continue
        if part.takes_back:
            told.last = [one for one in told.last if one.commit != part.commit]
            continue
        if told.last and told.last[0].commit != part.commit:
            _settle(told, slots_of_file)
        told.last.append(part)
    return told


def join_groups(groups: Mapping[str, GroupTold], slots_of_file: SlotsOf) -> Told:
    """Return the catalog that all logs of a cluster tell together. Their last commits are settled in `groups`.

    A last commit of which another group lacks records is left out: it was never acknowledged.
    """
    whole = {header: told.commits | {told.last_whole} for header, told in groups.items()}
    for told in groups.values():
        if told.last_whole and all(told.last_whole in whole.get(h, ()) for h in told.last[0].groups if h in groups):
            _settle(told, slots_of_file)
    newest = find_newest_epochs(groups.values())
    joined = Told()
    for _, told in sorted(groups.items()):
        mine = {slot for slot, epoch in told.slots.items() if newest[slot] == epoch}
        joined.files |= {key: entry for key, entry in told.files.items() if not mine.isdisjoint(slots_of_file(entry.file))}
        joined.series |= told.series
        joined.databases |= told.databases
        _add_facts(joined, told.sites.values(), told.widths.values(), told.owners.values())
    joined.databases |= {entry.file.database for entry in joined.files.values()}
    return joined


def snapshot_of(told: GroupTold, table: int, commits: Iterable[str]) -> list[Operation]:
    """Return the operations after which a log tells what `told` tells, whatever is before them.

    `table`: epoch of the partition table by which the group has all of its slots. `commits`: the last ones of other groups'
    logs; they count, also once the log gives up its records of them.
    """
    facts = Facts(
        tuple(row for _, row in sorted(told.sites.items())),
        tuple(width for _, width in sorted(told.widths.items())),
        tuple(row for _, row in sorted(told.owners.items())),
    )
    whole = Operation(
        RecordKind.GAIN_SLOT,
        tuple(entry for _, entry in sorted(told.files.items())),
        facts=facts,
        series=tuple(row for _, row in sorted(told.series.items())),
        slots=tuple(sorted(told.slots)),
        table=table,
        commits=tuple(sorted(commits)),
    )
    return [whole, *(Operation(RecordKind.CREATE_DATABASE, database=name) for name in sorted(told.databases))]


def find_newest_epochs(groups: Iterable[GroupTold]) -> dict[int, int]:
    """Return slot → the newest epoch of a partition table by which one of these groups has it, or had it: a group that tells
    of it by an older one had left the cluster meanwhile."""
    newest: dict[int, int] = {}
    for told in groups:
        for known in (told.slots, told.had):
            newest |= {slot: max(epoch, newest.get(slot, 0)) for slot, epoch in known.items()}
    return newest


def _settle(told: GroupTold, slots_of_file: SlotsOf) -> None:
    """Do what the last commit says."""
    for part in told.last:
        told.commits.add(part.commit)
        _do_part(told, part, slots_of_file)
    told.last = []


def _do_part(told: GroupTold, part: Part, slots_of_file: SlotsOf) -> None:
    one = part.operation
    told.commits.update(one.commits)
    slots = frozenset(one.slots)
    if one.kind is RecordKind.LOSE_SLOT:
        told.had |= {slot: told.slots.pop(slot) for slot in slots & told.slots.keys()}
        _keep_files_of(told, frozenset(told.slots), slots_of_file)
    elif slots:
        _keep_files_of(told, frozenset(told.slots) - slots, slots_of_file)
        told.slots |= dict.fromkeys(slots, one.table)
    for key in one.gone:
        told.files.pop(key, None)
    for entry in one.files:
        known = told.files.get(entry.key)
        more = part.more and known is not None
        told.made_by[entry.key] = part.commit
        told.files[entry.key] = replace(entry, devices=known.devices + entry.devices) if more and known else entry
    for row in one.series:
        told.series[row.site_id, row.series] = row
    if one.kind is RecordKind.DROP_DATABASE:
        told.databases.discard(one.database)
        told.series = {key: row for key, row in told.series.items() if row.database_name != one.database}
    elif one.database:
        told.databases.add(one.database)
    _add_facts(told, one.facts.sites, one.facts.widths, one.facts.owners)


def _keep_files_of(told: GroupTold, slots: frozenset[int], slots_of_file: SlotsOf) -> None:
    told.files = {key: entry for key, entry in told.files.items() if not slots.isdisjoint(slots_of_file(entry.file))}


def _add_facts(told: Told, sites: Iterable[SiteRow], widths: Iterable[Width], owners: Iterable[OwnerRow]) -> None:
    told.sites |= {row.site_id: row for row in sites}
    for width in widths:
        key = width[:3]
        told.widths[key] = max(width, told.widths.get(key, width), key=lambda one: one.tags)
    for owner in owners:  # a transfer stands in all logs, a claim in those of its files
        told.owners[owner.device] = max(told.owners.get(owner.device, owner), owner, key=lambda one: one.since)
