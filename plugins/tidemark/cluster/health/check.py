"""Check that all nodes agree, every slot has one owner, every copy is there and whole, and nothing is left over.

The ledger is read before the nodes are asked and again after. Loading and moving go on meanwhile, so a difference that only
the first reading shows is not a problem. Each node computes the digests of its copies with its own tool.
A partition table that is damaged in the ledger is looked for at the nodes: each keeps the newest in its folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.health.problems import MEND, Expected, Found, Problem, Recorded, expected_of, problem_keys, problems_of
from tidemark.cluster.nodes.cluster import NodeStores, cluster_settings, require_cluster
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.cluster.replicas.catch_up import as_now
from tidemark.cluster.replicas.deliver import late_members
from tidemark.cluster.replicas.promote import require_newest
from tidemark.cluster.slots.hash_ring import schema_slot
from tidemark.cluster.slots.table import PartitionTable, decode_table
from tidemark.errors import DIFFERENCES_FOUND, CorruptionError, NotFoundError, TidemarkError
from tidemark.ledger.cluster import (
    copies as copy_rows,
)
from tidemark.ledger.cluster import (
    moves as move_rows,
)
from tidemark.ledger.cluster import (
    operations as operation_rows,
)
from tidemark.ledger.cluster import (
    tables as table_rows,
)
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import ReceiverSettings

AT_ONCE = 8  # nodes
BATCH = 256  # copies whose digests are asked for in one call


@dataclass(frozen=True)
class ClusterCheck:
    """Result of `cluster check`. `damaged`: why the ledger's table cannot be read, '' if it can."""

    receiver: str
    epoch: int
    nodes: int
    files: int
    copies: int
    bytes: int
    moving: int  # slots
    problems: tuple[Problem, ...]
    damaged: str = ""
    repaired: int = 0  # problems that a repair mended

    @property
    def exit_code(self) -> int:
        return CorruptionError.kind if self.damaged else DIFFERENCES_FOUND if self.problems else 0

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {key: value for key, value in vars(self).items() if key not in ("problems", "damaged")}
        told |= {"ok": not self.exit_code, "problems": [one.as_json() for one in self.problems]}
        if self.damaged:
            told |= {"error": self.damaged, "hint": self.problems[0].next}
        elif self.problems:
            first = min(self.problems, key=lambda one: one.kind == "left_over")  # problems that harm readers first
            said = " ".join(filter(None, (first.node and f"node {first.node}:", first.location, first.problem)))
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            told["error"] = said + more
            told["hint"] = first.next or next((one.next for one in self.problems if one.next), "")
        return told


def check_cluster(app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress) -> ClusterCheck:
    """Check everything and change nothing. NotFoundError before `cluster init`. For a damaged table in the ledger, the
    result names the nodes that have it whole. PermanentError for a ledger that is older than the nodes."""
    with node_stores(app, receiver) as stores:
        try:
            before = read_recorded(app, receiver)
        except CorruptionError as damage:
            return _report_damaged_table(app, receiver, stores, damage)
        with require_cluster(app, receiver) as cluster:
            require_newest(cluster)  # or all that was loaded since would be named as left over
        return check_nodes(app, receiver, stores, before, progress)


def node_stores(app: App, receiver: ReceiverSettings) -> NodeStores:
    """Open the stores of all nodes, without reading the table. NotFoundError before `cluster init`."""
    with app.ledger.read() as connection:
        rows = table_rows.nodes_of_receiver(connection, receiver.name)
        if table_rows.current_epoch(connection, receiver.name) == 0:
            raise NotFoundError(
                f"{receiver.name} has no partition table: its data lies at the receiver alone",
                hint="./tidemark cluster init, with [cluster] and [nodes.NAME] in the settings",
                subject=receiver.name,
            )
    return NodeStores(app, rows)


def check_nodes(
    app: App, receiver: ReceiverSettings, stores: NodeStores, before: Recorded, progress: Progress = ignore_progress
) -> ClusterCheck:
    """Check nodes whose stores are open, as `check_cluster`. A problem counts only if both readings of the
    ledger show it."""
    found = list(_inspect_nodes(app, receiver, stores, before, progress))
    after = read_recorded(app, receiver)
    still = problem_keys(problems_of(after, found))
    problems = tuple(one for one in problems_of(before, found) if problem_keys([one]) <= still)
    copies = [row for rows in before.copies.values() for row in rows.values() if row.state == "held"]
    return ClusterCheck(
        receiver=receiver.name,
        epoch=before.table.epoch,
        nodes=sum(row.state != "left" for row in before.nodes.values()),
        files=sum(file.live for file in before.files.values()),
        copies=len(copies),
        bytes=sum(row.size for row in copies),
        moving=len(after.moves),
        problems=problems,
    )


def read_recorded(app: App, receiver: ReceiverSettings) -> Recorded:
    """Read the ledger's records in one transaction. CorruptionError for a damaged table."""
    name = receiver.name
    settings = cluster_settings(app, receiver)
    with app.ledger.read() as connection:
        row = table_rows.current_table(connection, name)
        if row is None:
            raise NotFoundError(f"{name} has no partition table", hint="./tidemark cluster init", subject=name)
        moves = {move.slot: move for move in move_rows.moves_of_epoch(connection, name, row.epoch, open_only=True)}
        table = replace(decode_table(row.table_bytes), moving={slot: move.old for slot, move in moves.items()})
        acknowledged = move_rows.acknowledged_nodes(connection, name, row.epoch)
        nodes = {node.node: node for node in table_rows.nodes_of_receiver(connection, name)}
        return Recorded(
            table=table,
            table_bytes=row.table_bytes,
            change=table_rows.open_change(connection, name),
            nodes=nodes,
            files={one.location: one for one in _read_expected(connection, name, table, acknowledged)},
            copies={node: _by_location(copy_rows.copies_at(connection, name, node)) for node in nodes},
            moves=moves,
            states=move_rows.slot_states(connection, name),
            proposed=operation_rows.proposed_operations(connection, name),
            withdrawn=operation_rows.withdrawn_puts(connection, name),
            late=as_now(connection, late_members(connection, name, table)),
            databases={one: schema_slot(one, table.slots, table.hash) for one in _notified_databases(connection, name)},
            at=database_time(connection),
            grace=3600.0 * settings.grace_hours if settings is not None else 0.0,
        )


@dataclass(frozen=True)
class _CatalogRow:
    """The fields of a catalog file that route it."""

    database: str
    partition_from: int
    partition_to: int
    location: str
    mods_location: str


def _read_expected(
    connection: Connection, receiver: str, table: PartitionTable, acknowledged: Mapping[int, frozenset[str]]
) -> Iterator[Expected]:
    """Yield live files last: a location that a live and a retired row share is live."""
    sql = (
        "SELECT database_name, partition_from, partition_to, location, mods_location, sha256, mods_sha256, state"
        " FROM catalog_file WHERE receiver = :r AND state IN ('live', 'retired') ORDER BY state DESC"
    )
    for row in connection.execute(sa.text(sql), {"r": receiver}):
        file = _CatalogRow(row[0], int(row[1]), int(row[2]), row[3], row[4] or "")
        yield from expected_of(table, file, (row[5], row[6] or ""), row[7] == "live", acknowledged)


def _notified_databases(connection: Connection, receiver: str) -> frozenset[str]:
    """Return the databases with live files: nodes have their schemas."""
    named = catalog_rows.list_databases(connection, receiver)
    return catalog_rows.known_databases(connection, receiver, named)


def _by_location(rows: Sequence[CopyRow]) -> dict[str, CopyRow]:
    return {row.location: row for row in rows}


def _inspect_nodes(
    app: App, receiver: ReceiverSettings, stores: NodeStores, recorded: Recorded, progress: Progress
) -> Iterator[Found]:
    """Yield every node's answer; several are asked at once."""
    with app.ledger.read() as connection:
        identity = table_rows.cluster_identity(connection, receiver.name)
    rows = [row for row in recorded.nodes.values() if row.state != "left"]
    total = sum(copy.size for row in rows for copy in recorded.copies[row.node].values() if copy.state == "held")
    beats = _SharedProgress(progress, sum(len(recorded.copies[row.node]) for row in rows), total)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda row: inspect_node(stores, row, identity, recorded, beats), rows)


class _SharedProgress:
    """Progress of several nodes as one. Threads may overtake each other, so a tick may show slightly too little."""

    def __init__(self, progress: Progress, copies: int, total: int) -> None:
        self._progress, self._copies, self._total = progress, copies, total
        self._done = self._bytes = 0

    def add_progress(self, copies: int, count: int) -> None:
        self._done += copies
        self._bytes += count
        self._progress(Tick("check", self._done, self._copies, self._bytes, self._total))


def inspect_node(stores: NodeStores, row: NodeRow, identity: str, recorded: Recorded, beats: _SharedProgress) -> Found:
    """Ask one node for its owner, table, files and digests. Its TidemarkErrors are returned in `Found`, not raised."""
    try:
        folder = stores.open_folder(row.node)
        if row.state == "joining" and folder.read_owner() is None:
            return Found(row.node, wrong="" if recorded.change else "it joins, and no change goes on")
        folder.require_owner(identity)
        held = {loc: copy for loc, copy in recorded.copies[row.node].items() if copy.state == "held"}
        listed = tuple(folder.list_leftovers(recorded.copies[row.node]))
        kept = (one for one in folder.read_schemas() if not isinstance(one, CorruptionError))
        schemas = {one.about: hashlib.sha256(one.body).hexdigest() for one in kept}
        found = Found(row.node, digests=_compute_digests(folder, held, beats), listed=listed, schemas=schemas)
        return _with_table(folder, found)
    except TidemarkError as trouble:
        return Found(row.node, away=trouble.message)


def _with_table(folder: NodeFolder, found: Found) -> Found:
    try:
        return replace(found, table=folder.read_table())
    except CorruptionError as torn:
        return replace(found, wrong=torn.message)


def _compute_digests(folder: NodeFolder, held: Mapping[str, CopyRow], beats: _SharedProgress) -> dict[str, str | int | None]:
    found: dict[str, str | int | None] = {}
    locations = sorted(held)
    for start in range(0, len(locations), BATCH):
        batch = locations[start : start + BATCH]
        found |= folder.compute_digests({location: held[location].size for location in batch})
        beats.add_progress(len(batch), sum(held[location].size for location in batch))
    return found


def _report_damaged_table(app: App, receiver: ReceiverSettings, stores: NodeStores, damage: CorruptionError) -> ClusterCheck:
    """Report the nodes that have the table that is damaged in the ledger."""
    lost = find_lost(app, receiver, stores)
    names = ", ".join(lost.whole)
    first = Problem(
        f"{damage.message}; whole at {names}" if names else f"{damage.message}; no node has it whole",
        next=MEND if names else "./tidemark ledger backup keeps copies of the ledger: put one back",
    )
    others = (Problem(why, node, next="./tidemark doctor") for node, why in lost.others.items())
    return ClusterCheck(receiver.name, lost.epoch, lost.nodes, 0, 0, 0, 0, (first, *others), first.problem)


@dataclass(frozen=True)
class LostTable:
    """Nodes' copies of the table. `whole`: node → bytes that match the ledger's digest; if that is damaged too, those that
    most nodes share. `others`: node → why it has none."""

    epoch: int
    nodes: int
    whole: Mapping[str, bytes]
    others: Mapping[str, str]


def find_lost(app: App, receiver: ReceiverSettings, stores: NodeStores) -> LostTable:
    """Ask every node for the table of the epoch in force."""
    with app.ledger.read() as connection:
        epoch = table_rows.current_epoch(connection, receiver.name)
        sha256 = _recorded_digest(connection, receiver.name, epoch)
        nodes = [row.node for row in table_rows.nodes_of_receiver(connection, receiver.name) if row.state != "left"]
    found: dict[str, bytes] = {}
    others: dict[str, str] = {}
    for node in nodes:
        try:
            found[node] = _table_at(stores, node, epoch)
        except TidemarkError as trouble:
            others[node] = trouble.message
    right = _choose_right_table(found, sha256)
    others |= {node: f"its table {epoch} is another one" for node, record in found.items() if record != right}
    return LostTable(epoch, len(nodes), {node: record for node, record in found.items() if record == right}, others)


def _recorded_digest(connection: sa.engine.Connection, receiver: str, epoch: int) -> str:
    sql = "SELECT sha256 FROM cluster_table WHERE receiver = :r AND epoch = :e"
    return str(connection.execute(sa.text(sql), {"r": receiver, "e": epoch}).scalar_one())


def _table_at(stores: NodeStores, node: str, epoch: int) -> bytes:
    """Read a node's newest table. CorruptionError if it has none, or one of another epoch."""
    found = stores.open_folder(node).read_table()
    if found is None or found[0] != epoch:
        has = f"table {found[0]}" if found else "no table"
        raise CorruptionError(f"its folder has {has}, {epoch} is in force", subject=node)
    decode_table(found[1])
    return found[1]


def _choose_right_table(found: Mapping[str, bytes], sha256: str) -> bytes:
    """Return the bytes that match the recorded digest, or else the bytes that more than half of the nodes share, or b""."""
    records = list(found.values())
    named = [record for record in records if hashlib.sha256(record).hexdigest() == sha256]
    if named:
        return named[0]
    shared = [record for record in records if records.count(record) * 2 > len(records)]
    return shared[0] if shared else b""
