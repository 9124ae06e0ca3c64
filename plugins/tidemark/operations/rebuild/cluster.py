"""The cluster of a rebuilt ledger: files, table, copies and series, from the folders of its data nodes.

    with open_survivors(app, receiver, findings) as nodes:   # before the receiver's documents are read
        nodes.bring_back(store, progress)                    # a rebuild describes files: they must be at the receiver
        …                                                    # the receiver's documents are replayed
        write_schemas(app, receiver, nodes)
        write_cluster(app, receiver, nodes, progress)

Nothing changes at a node. A copy counts only if its bytes on the node's disk have the digest in the catalog. If a node lacks
files by the table, or has more, the change that made the table is open again. The command that requests it (`rebalance`, or
`remove` if a node was leaving) ends it and finds most of it done. Operations of groups begin anew.

`write_schemas` writes series that only data nodes still know, from schema logs and files that the receiver lost. Series from
the receiver's own files win: those at a node may be older.

Source: docs/decisions/0015.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration.plan import plan_moves
from tidemark.cluster.nodes.cluster import cluster_settings
from tidemark.cluster.nodes.formats import NodeClaim, decode_schema
from tidemark.cluster.nodes.stores import NodeStores, node_row, unreachable_error
from tidemark.cluster.replicas.core.roles import Position
from tidemark.cluster.replicas.log import GroupLog, Tail
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.slots.routing import home_slot, wanted_copies
from tidemark.cluster.slots.states import SlotState
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    PermanentError,
    SchemaTooNewError,
    TidemarkError,
    UnreachableError,
)
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import group_logs
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.tables import ChangeRow, NodeRow, TableRow
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.operations.rebuild.result import Findings
from tidemark.progress import Progress, Tick
from tidemark.receiver.load.schema import write_unknown
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.listing import all_files
from tidemark.stores.protocol import Store
from tidemark.transfer import engine
from tidemark.transfer.engine import SendItem, Sent
from tidemark.untrusted_files import MOST_MODS

_NAMED = re.compile("[0-9a-f]{12}")
_ON_THE_WAY = (".part", ".part.blocks")
_AT_ONCE = 512  # files proved in one call
_WHO = "ledger rebuild"


@dataclass(frozen=True)
class SurvivingNodes:
    """The nodes of one cluster, `identity`. `rows`: those with a claimed folder. `tables`: node → its newest whole table."""

    identity: str
    rows: Mapping[str, NodeRow]
    tables: Mapping[str, tuple[int, bytes]]
    stores: NodeStores
    findings: Findings

    def open_log(self, name: str, header: str) -> GroupLog:
        """The log of a group in a node's folder."""
        return GroupLog(self.stores.open_store(name), folder_of(header))

    @property
    def table_bytes(self) -> bytes | None:
        """The newest table of any node. One that was published and never in force is fine too: its slots are found at their
        old nodes."""
        return max(self.tables.values(), default=(0, None))[1]

    @property
    def table(self) -> PartitionTable | None:
        return decode_table(self.table_bytes) if self.table_bytes is not None else None

    @cached_property
    def sizes(self) -> Mapping[str, Mapping[str, int]]:
        """Node → location → bytes, of whole files there."""
        return {
            name: {
                at: size for at, size in self.stores.open_folder(name).list_sizes().items() if not at.endswith(_ON_THE_WAY)
            }
            for name in sorted(self.rows)
        }

    def bring_back(self, store: Store, progress: Progress) -> int:
        """Fetch files that the receiver lacks; return how many. A file that no node gives whole is added to the findings."""
        here = {entry.path for entry in all_files(store, ["data"])}
        missing = {at for sizes in self.sizes.values() for at in sizes} - here
        strange = {at for at in missing if not _NAMED.fullmatch(named_digest(at))}
        self.findings.unknown += [
            f"{at} at node {name}" for name, sizes in self.sizes.items() for at in sorted(strange & sizes.keys())
        ]
        missing -= strange
        total, why = len(missing), dict[str, str]()
        for name, sizes in self.sizes.items():
            items = []
            for at in sorted(missing & set(sizes)):
                most = MOST_MODS if ".mods" in at else store.free_bytes("data")
                if most is not None and sizes[at] > most:  # only this file fails
                    why[at] = f"node {name} has {sizes[at]} bytes, at most {most} can be taken"
                else:
                    items.append(SendItem(at, at, sizes[at]))
            for outcome in engine.send_files(self.stores.open_store(name), store, items) if items else ():
                at = outcome.item.target_path
                if isinstance(outcome, Sent) and outcome.sha256.startswith(named_digest(at)):
                    missing.discard(at)
                elif isinstance(outcome, Sent):
                    # CRASH WINDOW: wrong bytes under a right name: the repeated rebuild finds them unreadable or of another
                    # digest, as any damaged file at the receiver.
                    store.remove([at])
                    why[at] = f"node {name} has other bytes than its name says"
                elif isinstance(outcome.error, DiskFullError):
                    raise outcome.error
                else:
                    why[at] = f"node {name}: {outcome.error.message}"
                progress(Tick("fetch from nodes", total - len(missing), total))
        self.findings.troubles += [f"{at} cannot be fetched: {why[at]}" for at in sorted(missing)]
        return total - len(missing)


@contextmanager
def open_survivors(
    app: App, receiver: ReceiverSettings, findings: Findings, away: dict[str, TidemarkError] | None = None
) -> Iterator[SurvivingNodes | None]:
    """Open the nodes. None if the settings have no cluster of this receiver, or no node's folder is claimed.

    Raises UnreachableError for a node that cannot be asked (remove a lost one from the settings), PermanentError if folders
    belong to several clusters or were exchanged. `away`: gets each node that cannot be asked with why; it is left out then.
    """
    if cluster_settings(app, receiver) is None or not app.settings.nodes:
        yield None
        return
    rows = {name: node_row(app, receiver, name) for name in app.settings.nodes}
    with NodeStores(app, rows.values()) as stores:
        stores.open_all()
        identity, mine = _identify_nodes(stores, rows, away)
        yield SurvivingNodes(identity, mine, _read_tables(stores, mine, findings), stores, findings) if mine else None


def _identify_nodes(
    stores: NodeStores, rows: Mapping[str, NodeRow], away: dict[str, TidemarkError] | None
) -> tuple[str, dict[str, NodeRow]]:
    owners: dict[str, NodeClaim] = {}
    for name in sorted(rows):
        try:
            owner = _read_owner(stores, name)
        except (UnreachableError, CorruptionError) as silent:
            if away is None:
                raise
            away[name] = silent
            continue
        if owner is not None:
            owners[name] = owner
    clusters = sorted({owner.cluster for owner in owners.values()})
    if len(clusters) > 1:
        told = ", ".join(f"{name} of {owner.cluster}" for name, owner in owners.items())
        raise PermanentError(
            f"the folders of the nodes are of {len(clusters)} clusters: {told}",
            hint="leave the nodes of one cluster in the settings, then run it again",
        )
    for name, owner in owners.items():
        stores.open_folder(name).require_owner(owner.cluster)  # exchanged folders
    return (clusters[0] if clusters else ""), {name: rows[name] for name in owners}


def _read_owner(stores: NodeStores, name: str) -> NodeClaim | None:
    try:
        return stores.open_folder(name).read_owner()
    except UnreachableError as away:
        hint = f"wait for it; or take [nodes.{name}] out of the settings: what only it has is then asked of its site again"
        raise UnreachableError(unreachable_error(name, away).message, hint=hint, subject=name) from away
    except CorruptionError as torn:
        hint = (
            f"look whose disk it is; take [nodes.{name}] out of the settings, then run it again: the other nodes are asked"
        )
        raise CorruptionError(torn.message, hint=hint, subject=name) from torn


def _read_tables(stores: NodeStores, rows: Mapping[str, NodeRow], findings: Findings) -> dict[str, tuple[int, bytes]]:
    found = {}
    for name in rows:
        try:
            table = stores.open_folder(name).read_table()
            if table is not None and decode_table(table[1]).epoch == table[0]:
                found[name] = table
        except CorruptionError as torn:
            findings.troubles.append(f"node {name}: {torn.message}")
    return found


def named_digest(location: str) -> str:
    """Return the first digits of the digest in a location's name (`receiver.load.place`): of mods their own."""
    name = location.rpartition("/")[2]
    mods = name.rpartition(".mods")
    if mods[1]:
        return mods[0].rpartition(".")[2]
    parts = name.split("-", 2)
    return parts[1] if len(parts) == 3 else ""


@dataclass(frozen=True)
class _KnownFile:
    """The catalog's facts on a location."""

    sha256: str  # "": only the name has a part of it
    slot: int
    size: int  # 0: unknown


@dataclass(frozen=True)
class _ProvedCopies:
    """Proved copies, and how they differ from the table."""

    copies: tuple[CopyRow, ...]
    lacking: Mapping[str, int]  # node → files it should have
    extra: bool


def write_cluster(app: App, receiver: ReceiverSettings, nodes: SurvivingNodes, progress: Progress) -> None:
    """Write a cluster's rows after the receiver's catalog was rebuilt. Differences are added to the findings."""
    table, record = nodes.table, nodes.table_bytes
    if table is None or record is None:
        names = ", ".join(sorted(nodes.rows))
        nodes.findings.troubles.append(
            f"no node has a whole partition table ({names}): there is no cluster before one is put back"
        )
        return
    nodes.findings.troubles += [
        f"node {name} of the partition table is not among [nodes.*] of the settings: nothing is known of it"
        for name in table.ring.names
        if name not in nodes.rows
    ]
    with app.ledger.read() as connection:
        ids = [row.file_id for row in rebuild_rows.catalog_places(connection, receiver.name) if row.state != "reclaimed"]
        files = catalog_rows.files_by_id(connection, ids)
    placed = _prove_copies(nodes, table, files, app.clock(), progress)
    logs = [_read_group_log(receiver.name, nodes, header) for header in table.ring.names]
    with app.ledger.write() as connection:
        _write_rows(connection, receiver.name, nodes, (table, record), placed, app.clock())
        for log in logs:
            group_logs.swap_group_log(connection, group_logs.GroupLogRow(receiver.name, log.header), log, app.clock())
    if not table.moving:
        nodes.findings.troubles += [
            f"node {name} lacks {count} files: ./tidemark cluster check --repair" for name, count in placed.lacking.items()
        ]


def _read_group_log(receiver: str, nodes: SurvivingNodes, header: str) -> group_logs.GroupLogRow:
    """Return what a new ledger knows of a group's log: its newest epoch, its end, and who has that. The next commit promotes
    a master of a newer epoch. Logs that cannot be read are added to the findings."""
    tails: dict[str, Tail] = {}
    for name in nodes.rows:
        try:
            tails[name] = nodes.open_log(name, header).read_tail()
        except TidemarkError as broken:
            nodes.findings.troubles.append(f"node {name}: the log of group {header} is not read: {broken.message}")
    voted = {name: tail for name, tail in tails.items() if tail.fence is not None}
    epoch = max((tail.fence.epoch for tail in voted.values() if tail.fence is not None), default=0)
    end = max((tail.end.position for tail in voted.values()), default=Position(0, 0))
    in_step = tuple(name for name, tail in voted.items() if tail.end.position == end and not tail.filling)
    epoch += epoch > 0  # the lost ledger may have given one that no member heard of
    return group_logs.GroupLogRow(receiver, header, epoch, settled=(end.epoch, end.version), in_step=in_step)


def _prove_copies(
    nodes: SurvivingNodes, table: PartitionTable, files: Sequence[CatalogFile], at: float, progress: Progress
) -> _ProvedCopies:
    known = _index_locations(table, files)
    receiver = files[0].receiver if files else ""
    copies: list[CopyRow] = []
    for name, sizes in nodes.sizes.items():
        here = sorted(set(sizes) & set(known))
        for start in range(0, len(here), _AT_ONCE):
            some = {at: known[at].size for at in here[start : start + _AT_ONCE]}
            for location, digest in nodes.stores.open_folder(name).compute_digests(some).items():
                if isinstance(digest, int):
                    nodes.findings.troubles.append(f"node {name}: {location} has {digest} bytes, not those of the catalog")
                elif digest and digest == (known[location].sha256 or _match_digest(location, digest)):
                    slot = known[location].slot
                    copies.append(CopyRow(receiver, name, location, slot, digest, sizes[location], "held", at))
                else:
                    nodes.findings.troubles.append(f"node {name}: {location} has digest {digest}, not that of the catalog")
            progress(Tick(f"prove {name}", start, len(here)))
    wanted = wanted_copies(table, [file for file in files if file.state == "live"])
    live = {at for locations in wanted.values() for at in locations}
    held = {name: {row.location for row in copies if row.node == name} & live for name in (*nodes.rows, *table.ring.names)}
    lacking = {name: len(wanted[name] - held[name]) for name in table.ring.names if wanted[name] - held[name]}
    extra = any(held[name] - wanted.get(name, set()) for name in held)
    return _ProvedCopies(tuple(copies), lacking, extra)


def _index_locations(table: PartitionTable, files: Iterable[CatalogFile]) -> dict[str, _KnownFile]:
    found: dict[str, _KnownFile] = {}
    for file in files:
        slot = home_slot(table, file)
        found[file.location] = _KnownFile(file.sha256, slot, file.size)
        if file.mods_location:
            found[file.mods_location] = _KnownFile(file.mods_sha256, slot, 0)
    return found


def _match_digest(location: str, digest: str) -> str:
    """Return the digest if its first digits are in the name, else ""."""
    named = named_digest(location)
    return digest if named and digest.startswith(named) else ""


def _write_rows(
    connection: Connection,
    receiver: str,
    nodes: SurvivingNodes,
    newest: tuple[PartitionTable, bytes],
    placed: _ProvedCopies,
    at: float,
) -> None:
    table, record = newest
    moving = bool(table.moving) and (bool(placed.lacking) or placed.extra)
    leaving = [name for name in sorted(nodes.rows) if name not in table.ring]
    table_rows.restore_table(connection, TableRow(receiver, table.epoch, record, nodes.identity, at))
    for name, row in nodes.rows.items():
        state = "serving" if name in table.ring else "leaving" if moving else "left"
        epoch = nodes.tables[name][0] if name in nodes.tables else 0
        table_rows.put_node(connection, replace(row, state=state, epoch=epoch, at=at))
    copy_rows.put_copies(connection, placed.copies)
    table_rows.put_change(connection, ChangeRow(nodes.identity, receiver, "init", "", 0, _WHO, at, "done", at))
    if moving:
        kind, name = ("remove", leaving[0]) if leaving else ("rebalance", "")
        change = ChangeRow(f"rebuilt-{uuid.uuid4().hex[:12]}", receiver, kind, name, table.epoch - 1, _WHO, at, "migrating")
        table_rows.put_change(connection, change)
        _move_again(connection, receiver, table, at)
    else:
        for name in leaving:
            mine = [row.location for row in placed.copies if row.node == name]
            copy_rows.mark_to_remove(connection, receiver, name, mine, at)


def _move_again(connection: Connection, receiver: str, table: PartitionTable, at: float) -> None:
    """Move everything in the table from the start: a member that has all only acknowledges."""
    for move in plan_moves(table):
        move_rows.add_moves(
            connection, [MoveRow(receiver, move.epoch, slot, move.old, move.new, at=at) for slot in move.slots]
        )
        gained = [name for name in move.new if name not in move.old]
        states = {(name, slot): SlotState.PULLING.value for name in gained for slot in move.slots}
        states |= {(name, slot): SlotState.SENDING.value for name in move.deleting for slot in move.slots}
        move_rows.put_slot_states(connection, receiver, states, move.epoch)


def write_schemas(app: App, receiver: ReceiverSettings, nodes: SurvivingNodes) -> None:
    """Write series after the receiver's documents were replayed. Damaged schemas are added to the findings."""
    for database, kept in sorted(_read_schemas(nodes).items()):
        told = []
        for record, node in kept.items():
            try:
                told.append(decode_schema(record, receiver.name, f"node {node}"))
            except (CorruptionError, SchemaTooNewError) as odd:
                nodes.findings.troubles.append(f"the schema of {database} at node {node}: {odd.message}")
        # Rows of series stay: an older schema has fewer rows or fewer deleted series. If equal: the most frequent.
        rows = max(told, key=_rank_schema, default=[])
        if sum(_rank_schema(one) == _rank_schema(rows) for one in told) > 1:
            nodes.findings.troubles.append(f"nodes differ on the schema of {database}, none is newer: most nodes' was taken")
        with app.ledger.write() as connection:
            known = schema_rows.series_of(connection, receiver.name, [row.series for row in rows])
            keys = {(row.site_id, row.series) for row in known}
            write_unknown(connection, receiver.name, [row for row in rows if (row.site_id, row.series) not in keys])


def _rank_schema(rows: Sequence[SeriesRow]) -> tuple[int, int]:
    return len(rows), sum(row.state == "deleted" for row in rows)


def _read_schemas(nodes: SurvivingNodes) -> dict[str, dict[bytes, str]]:
    """Return database → its schemas as bytes, the most frequent first → a node that has it."""
    count: Counter[tuple[str, bytes]] = Counter()
    where: dict[bytes, str] = {}
    for name in sorted(nodes.rows):
        for kept in nodes.stores.open_folder(name).read_schemas():
            if isinstance(kept, CorruptionError):
                nodes.findings.troubles.append(f"node {name}: {kept.message}")
                continue
            count[kept.about, kept.body] += 1
            where.setdefault(kept.body, name)
    found: dict[str, dict[bytes, str]] = {}
    for (database, record), _ in count.most_common():
        found.setdefault(database, {})[record] = where[record]
    return found
