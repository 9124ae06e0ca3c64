"""The rows of a cluster in a rebuilt ledger: table, nodes, copies by digest, series that nodes know.

A copy counts only if its bytes on the node's disk have the digest in the catalog. If a node lacks files by the table, or has
more, the change that made the table is open again. The command that requests it (`rebalance`, or `remove` if a node was
leaving) ends it and finds most of it done. Operations of groups begin anew.

`write_schemas` writes series that only data nodes still know, from schema logs and files that the receiver lost. Series from
the receiver's own files win: those at a node may be older.

Source: docs/decisions/0015.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.migration.plan import plan_moves
from tidemark.cluster.nodes.schema_format import decode_schema
from tidemark.cluster.slots.routing import home_slot, wanted_copies
from tidemark.cluster.slots.states import SlotState
from tidemark.cluster.slots.table import PartitionTable
from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.tables import ChangeRow, TableRow
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.operations.rebuild.nodes import SurvivingNodes, named_digest
from tidemark.progress import Progress, Tick
from tidemark.receiver.load.schema import write_unknown
from tidemark.settings.model import ReceiverSettings

_AT_ONCE = 512  # files proved in one call
_WHO = "ledger rebuild"


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
    table, paper = nodes.table, nodes.table_bytes
    if table is None or paper is None:
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
    with app.ledger.write() as connection:
        _write_rows(connection, receiver.name, nodes, (table, paper), placed, app.clock())
    if not table.moving:
        nodes.findings.troubles += [
            f"node {name} lacks {count} files: ./tidemark cluster check --repair" for name, count in placed.lacking.items()
        ]


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
    table, paper = newest
    moving = bool(table.moving) and (bool(placed.lacking) or placed.extra)
    leaving = [name for name in sorted(nodes.rows) if name not in table.ring]
    table_rows.restore_table(connection, TableRow(receiver, table.epoch, paper, nodes.identity, at))
    for name, row in nodes.rows.items():
        state = "serving" if name in table.ring else "leaving" if moving else "left"
        epoch = nodes.papers[name][0] if name in nodes.papers else 0
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
        for paper, node in kept.items():
            try:
                told.append(decode_schema(paper, receiver.name, f"node {node}"))
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
    for (database, paper), _ in count.most_common():
        found.setdefault(database, {})[paper] = where[paper]
    return found
