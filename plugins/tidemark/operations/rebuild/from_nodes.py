"""The catalog of a cluster from its nodes alone: what the logs of its groups tell, up to the last committed operation.

    with open_from_nodes(settings, receiver) as app:      # the ledger's database is away
        read(app, receiver, …); show_replicas(app, receiver)

`app` has a ledger of its own with what the nodes tell, which is gone at the end; nothing is written to a node. A record
counts if a quorum of its group has it. Where members that do not answer may have more, nobody knows whether it was
acknowledged: then nothing is read, rather than something older. Source: seed 003 "Quorum"; docs/decisions/0024.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import cluster_settings
from tidemark.cluster.nodes.stores import node_row
from tidemark.cluster.replicas.cache import places_of
from tidemark.cluster.replicas.core.quorum import find_committed
from tidemark.cluster.replicas.core.record import StoredRecord
from tidemark.cluster.replicas.core.roles import Position
from tidemark.cluster.replicas.deliver import members_of_header
from tidemark.cluster.replicas.log import Tail
from tidemark.cluster.replicas.records.fold import GroupTold, Told, find_newest_epochs, fold_group, join_groups
from tidemark.cluster.replicas.records.operation import FileKey, commit_of, is_take_back, key_of
from tidemark.cluster.slots.routing import home_slot, slots_of_file, wanted_copies
from tidemark.cluster.slots.table import PartitionTable
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, RetryableError, TidemarkError, UnreachableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import group_logs
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import this_process
from tidemark.ledger.migrations import migrate_ledger
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.catalog import CatalogFile, FileWithDevices
from tidemark.ledger.receiver.merges import Account, put_merge
from tidemark.ledger.sender.links import raise_generations
from tidemark.operations.rebuild.cluster import SurvivingNodes, open_survivors
from tidemark.operations.rebuild.result import Findings
from tidemark.receiver.load.schema import write_unknown
from tidemark.settings.model import ReceiverSettings, Settings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

_HINT = "bring the nodes back that do not answer: ./tidemark replica show --from-nodes names them; or wait for the ledger"
_NOTHING = Position(0, 0)
_AT_ONCE = 5000  # files written in one statement


@dataclass(frozen=True)
class GroupHeard:
    """A group's members as they answered. `committed`: the last record that a quorum has; `sure`: no later one can be at
    a quorum. `holders`: who has all up to it. `silent`: why others tell nothing."""

    header: str
    members: tuple[str, ...]
    tails: Mapping[str, Tail]
    silent: Mapping[str, TidemarkError]
    committed: Position = _NOTHING
    holders: tuple[str, ...] = ()
    sure: bool = True


@dataclass(frozen=True)
class Heard:
    """What the nodes tell. `folds`: header → what its log tells, of groups that have one."""

    nodes: SurvivingNodes
    table: PartitionTable
    groups: tuple[GroupHeard, ...]
    folds: Mapping[str, GroupTold]

    def require_all(self) -> Told:
        """Return the catalog that the logs tell. NoQuorumError for a group of which nobody knows what was committed last,
        RetryableError for slots that moved and that no log tells of yet."""
        for group in self.groups:
            if not group.sure:
                raise _doubt_error(group)
        told = join_groups(dict(self.folds), partial(slots_of_file, self.table))
        newest = find_newest_epochs(self.folds.values())
        for slot, owner in enumerate(self.table.owners):
            mine = self.folds[owner].slots if owner in self.folds else {}
            if slot not in mine or mine[slot] != newest[slot]:
                raise RetryableError(
                    f"the log of group {owner} does not tell of slot {slot}, which table {self.table.epoch} gives it",
                    hint="with the ledger, housekeeping records it; until then the nodes alone tell no catalog",
                    subject=owner,
                )
        return told


@contextmanager
def open_from_nodes(
    settings: Settings,
    receiver: ReceiverSettings,
    *,
    whole: bool = True,
    opener: Callable[[StoreAddress], Store] = open_store,
) -> Iterator[App]:
    """Open an app whose ledger has what the nodes tell. `whole`: raise as `Heard.require_all`; else it may lack files.

    NotFoundError if no node has a partition table. The settings' ledger is not touched.
    """
    if settings.cluster is not None:  # nothing is left in the receiver's cache: no ledger would know of it
        settings = replace(settings, cluster=replace(settings.cluster, cache_bytes=1))
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        try:
            migrate_ledger(ledger)
            app = App(settings=settings, ledger=ledger, identity=this_process(), opener=opener)
            away: dict[str, TidemarkError] = {}
            with open_survivors(app, receiver, Findings(), away) as nodes:
                heard = hear_nodes(app, receiver, nodes, away)
                told = heard.require_all() if whole else Told()
                write_told(app, receiver, told)
                _write_cluster(app, receiver, heard, told)
            yield app
        finally:
            ledger.close()


def hear_nodes(
    app: App, receiver: ReceiverSettings, nodes: SurvivingNodes | None, away: Mapping[str, TidemarkError]
) -> Heard:
    """Read the newest partition table and the logs of its groups. `away`: nodes that do not answer.

    NotFoundError if no node has a table, NoQuorumError if not more than half of the table's nodes answer: a newer one may
    be in force.
    """
    table = nodes.table if nodes is not None else None
    if nodes is None or table is None:
        why = "".join(f"; {name}: {error.message}" for name, error in away.items())
        raise NotFoundError(f"no node of {receiver.name} that answers has a partition table{why}", hint=_HINT)
    here = [name for name in table.ring.names if name in nodes.rows]
    if 2 * len(here) <= len(table.ring.names):
        told = "; ".join(f"{name}: {error.message}" for name, error in away.items())
        raise NoQuorumError(
            f"{len(here)} of the {len(table.ring.names)} nodes of {receiver.name} answer: {told}", hint=_HINT
        )
    settings = cluster_settings(app, receiver)
    quorum = min(settings.quorum if settings is not None else 1, table.replicas)
    groups = tuple(_hear_group(nodes, table, header, quorum, away=away) for header in sorted(set(table.owners)))
    folds = {group.header: _fold_log(nodes, table, group) for group in groups if group.holders}
    return Heard(nodes, table, groups, folds)


def _fold_log(nodes: SurvivingNodes, table: PartitionTable, group: GroupHeard) -> GroupTold:
    """Return what the group's log tells, from the first holder whose log is whole. Else the last one's error."""
    for left, name in reversed(list(enumerate(reversed(group.holders)))):
        try:
            records = takewhile(partial(_is_committed, group), nodes.open_log(name, group.header).read_kept())
            return fold_group(records, partial(slots_of_file, table))
        except (CorruptionError, NotFoundError, UnreachableError):
            if not left:
                raise
    raise AssertionError("unreachable")


def _hear_group(
    nodes: SurvivingNodes, table: PartitionTable, header: str, quorum: int, *, away: Mapping[str, TidemarkError]
) -> GroupHeard:
    members = members_of_header(table, header)
    tails: dict[str, Tail] = {}
    silent: dict[str, TidemarkError] = {}
    for name in members:
        try:
            if name not in nodes.rows:
                raise away.get(name) or NotFoundError(f"the folder of node {name} is not claimed, or not in the settings")
            tails[name] = nodes.open_log(name, header).read_tail()
        except TidemarkError as error:
            silent[name] = error
    # An empty log proves nothing: its member may have had records, lost its disk and voted anew. One that is filled neither.
    voted = {name: tail for name, tail in tails.items() if tail.end.position.version and not tail.filling}
    while voted:
        longest = max(voted, key=lambda name: voted[name].end.position)
        try:
            held = {n: t.end.position.version for n, t in voted.items() if _is_part(nodes, header, longest, voted, n)}
            version, sure = find_committed(list(held.values()), len(members) - len(held), min(quorum, len(members)))
            position = next((t.end.position for n, t in voted.items() if held.get(n) == version), _NOTHING)
        except CorruptionError as damaged:  # its end was read, what is before it cannot be
            silent[longest] = damaged
            del voted[longest]
            continue
        holders = tuple(name for name in held if held[name] >= version)
        return GroupHeard(header, members, tails, silent, position, holders, sure)
    return GroupHeard(header, members, tails, silent, sure=not silent)


def _is_part(nodes: SurvivingNodes, header: str, longest: str, tails: Mapping[str, Tail], name: str) -> bool:
    """Tell whether a member's log is how the longest one begins."""
    end = tails[name].end
    if end == tails[longest].end or not end.position.version:
        return True
    try:
        there = next(nodes.open_log(longest, header).read(end.position.version), None)
    except NotFoundError:  # it ends before what is still kept: it proves nothing
        return False
    return there is not None and there.head.end == end  # a log that parted may have more records, of an older epoch


def _is_committed(group: GroupHeard, stored: StoredRecord) -> bool:
    return stored.head.position.version <= group.committed.version


def _doubt_error(group: GroupHeard) -> NoQuorumError:
    why = "; ".join(f"{name}: {error.message}" for name, error in group.silent.items())
    empty = [name for name, tail in group.tails.items() if tail.fence is None]
    filling = [name for name, tail in group.tails.items() if tail.filling]
    told = [why, f"without a log: {', '.join(empty)}" if empty else ""]
    told.append(f"emptied, and not yet filled again: {', '.join(filling)}" if filling else "")
    why = "; ".join(filter(None, told))
    return NoQuorumError(
        f"nobody knows what group {group.header} ({', '.join(group.members)}) committed last: a quorum has version"
        f" {group.committed.version}, and members that tell nothing may have more: {why or 'their logs differ'}",
        hint=_HINT,
        subject=group.header,
    )


def write_told(app: App, receiver: ReceiverSettings, told: Told) -> None:
    """Write what logs tell into the app's ledger, which has no catalog of this receiver."""
    with app.ledger.write() as connection:
        for site in told.sites.values():
            landing_rows.put_site(connection, site, app.clock())
        entries = iter(told.files.values())
        while some := list(islice(entries, _AT_ONCE)):
            files = [FileWithDevices(replace(entry.file, receiver=receiver.name), entry.devices) for entry in some]
            catalog_rows.add_files(connection, files)
        for width in told.widths.values():
            catalog_rows.widen_tables(connection, receiver.name, width.site_id, {(width.database, width.table): width.tags})
        refusal_rows.put_owners(connection, receiver.name, told.owners.values())
        schema_rows.put_series(connection, [replace(row, receiver=receiver.name) for row in told.series.values()])


def _copies_of(heard: Heard, receiver: str, told: Told, at: float) -> Iterator[CopyRow]:
    """Yield the files of the catalog that lie at nodes; who reads one compares its digest."""
    wanted = {
        location: (home_slot(heard.table, entry.file), digest)
        for entry in told.files.values()
        for location, digest in places_of(entry.file)
    }
    for name, sizes in heard.nodes.sizes.items():
        for location in sizes.keys() & wanted.keys():
            yield CopyRow(receiver, name, location, *wanted[location], sizes[location], "held", at)


def _write_cluster(app: App, receiver: ReceiverSettings, heard: Heard, told: Told) -> None:
    table_bytes = heard.nodes.table_bytes
    assert table_bytes is not None
    with app.ledger.write() as connection:
        at, identity = app.clock(), heard.nodes.identity
        table_rows.restore_table(
            connection, table_rows.TableRow(receiver.name, heard.table.epoch, table_bytes, identity, at)
        )
        for name in heard.table.ring.names:
            if name in app.settings.nodes:
                row = node_row(app, receiver, name)
                table_rows.put_node(connection, replace(row, state="serving", epoch=heard.table.epoch, at=at))
        copy_rows.put_copies(connection, _copies_of(heard, receiver.name, told, at) if told.files else ())
        for group in heard.groups:
            if row_of := _group_row(receiver.name, group):
                group_logs.swap_group_log(connection, group_logs.GroupLogRow(receiver.name, group.header), row_of, at)


def _group_row(receiver: str, group: GroupHeard) -> group_logs.GroupLogRow | None:
    fences = [tail.fence for tail in group.tails.values() if tail.fence is not None]
    if not fences:
        return None
    newest = max(fences, key=lambda fence: fence.epoch)
    active = newest.master in group.holders
    settled = (group.committed.epoch, group.committed.version)
    return group_logs.GroupLogRow(
        receiver, group.header, newest.epoch, newest.master, active, settled, in_step=group.holders
    )


def note_doubts(app: App, receiver: ReceiverSettings, nodes: SurvivingNodes) -> None:
    """Note of each group, after `write_cluster`, what its log has that the catalog has not: a commit that died. The group's
    next commit takes it back. Without it a reader of the logs alone would count it some day."""
    try:
        heard = hear_nodes(app, receiver, nodes, {})
        heard.require_all()
    except (RetryableError, NotFoundError, NoQuorumError, CorruptionError):
        return
    with app.ledger.write() as connection:
        rows = group_logs.read_group_logs(connection, receiver.name)
        for group in heard.groups:
            row = rows.get(group.header)
            if row is not None and group.holders and (doubt := _find_doubt(heard, group)) is not None:
                settled, commit = doubt
                known = replace(row, settled=settled, operation=commit, in_step=group.holders)
                group_logs.swap_group_log(connection, row, known, app.clock())


def _find_doubt(heard: Heard, group: GroupHeard) -> tuple[tuple[int, int], str] | None:
    """Return the commit at the end of the group's longest log that does not count, and the position before it."""
    longest = max(group.tails, key=lambda name: group.tails[name].end.position)
    counted = heard.folds[group.header].commits
    before, commit = (0, 0), ""
    position = before
    for stored in heard.nodes.open_log(longest, group.header).read_kept():
        mine = commit_of(stored)
        if mine and is_take_back(stored):
            commit = ""
        elif mine and mine not in counted and mine != commit:
            before, commit = position, mine
        position = (stored.head.position.epoch, stored.head.position.version)
    return (before, commit) if commit else None


def _is_moving(app: App, receiver: ReceiverSettings, nodes: SurvivingNodes) -> bool:
    """Tell whether slots are still on their way, by what lies at the nodes: the table's word dates from its swap."""
    table = nodes.table
    if table is None or not table.moving:
        return False
    with app.ledger.read() as connection:
        wanted = wanted_copies(table, catalog_rows.live_files(connection, receiver.name))
    return any(wanted.get(name, set()) - nodes.sizes.get(name, {}).keys() for name in table.ring.names)


def restore_catalog(app: App, receiver: ReceiverSettings, store: Store, nodes: SurvivingNodes) -> None:
    """Give the catalog that was rebuilt from the receiver's documents the facts that the logs of the groups tell: what was
    merged, deleted, kept or ranked since. Differences in bytes are not judged: a file whose bytes are gone stays gone.

    Without logs, or while slots move that no log tells of, the documents alone count. What nobody knows is added to the
    findings.
    """
    try:
        heard = hear_nodes(app, receiver, nodes, {})
        if not heard.folds:
            return
        told = heard.require_all()
    except (RetryableError, NotFoundError, NoQuorumError, CorruptionError) as unknown:
        if _is_moving(app, receiver, nodes):  # a node that joins has no log yet
            return
        nodes.findings.troubles.append(f"the logs of the nodes are not used: {unknown.message}")
        return
    here = dict(zip(told.files, store.stat_many([key.location for key in told.files]), strict=True))
    with app.ledger.write() as connection:
        ids = [row.file_id for row in rebuild_rows.catalog_places(connection, receiver.name)]
        known: dict[FileKey, CatalogFile] = {}
        for row in sorted(catalog_rows.files_by_id(connection, ids), key=lambda one: one.state == "live"):
            known[key_of(row)] = row  # of several the live one
        gone = [row.file_id for key, row in known.items() if row.state == "live" and key not in told.files]
        catalog_rows.retire_files(connection, gone, app.clock())
        restored = {}
        for key, entry in told.files.items():
            one = FileWithDevices(replace(entry.file, receiver=receiver.name), entry.devices)
            if here[key] is None:
                continue
            if key not in known:
                restored[key] = catalog_rows.add_files(connection, [one])[0]
                continue
            restored[key] = known[key].file_id
            if known[key].state != "live":
                nodes.findings.derived -= entry.merge is not None
            catalog_rows.put_file(connection, known[key].file_id, one)
        made_from = {key: row.file_id for key, row in known.items()} | restored
        for key, file_id in restored.items():
            if (merge := told.files[key].merge) is not None:
                sources = {made_from[source] for source in merge.sources if source in made_from}
                account = Account(merge.points_in, merge.points_out, merge.overwritten, merge.deleted)
                put_merge(connection, file_id, sources, account, merge.batch, at=merge.at, settled=merge.settled)
        write_unknown(connection, receiver.name, [replace(row, receiver=receiver.name) for row in told.series.values()])
        _write_newer_facts(connection, receiver.name, told, app.clock())
        _raise_generations(connection, app, receiver, [key for key in restored if key not in known])


def _raise_generations(connection: Connection, app: App, receiver: ReceiverSettings, keys: Iterable[FileKey]) -> None:
    """Let links go on behind the generations of files that no document tells of. Their landings were lost with these, so
    they come again; another content by the same number would not be loaded."""
    of_site: dict[str, dict[str, int]] = {}
    for key in keys:
        if key.path:
            newest = of_site.setdefault(key.site_id, {})
            newest[key.path] = max(key.generation, newest.get(key.path, 0))
    for link in app.settings.links.values() if of_site else ():
        if link.receiver == receiver.name:
            raise_generations(connection, link.name, of_site.get(app.site_settings(link.site).id, {}))


def _write_newer_facts(connection: Connection, receiver: str, told: Told, at: float) -> None:
    """Write what readers need beside the files, as far as the receiver's documents tell less: its folder may be older."""
    sites = landing_rows.read_sites(connection)
    for site in told.sites.values():
        if site.site_id not in sites:
            landing_rows.put_site(connection, site, at)
    for width in told.widths.values():
        catalog_rows.widen_tables(connection, receiver, width.site_id, {(width.database, width.table): width.tags})
    owners = refusal_rows.owners_of(connection, receiver, told.owners)
    newer = [row for row in told.owners.values() if row.device not in owners or owners[row.device].since < row.since]
    refusal_rows.put_owners(connection, receiver, newer)
