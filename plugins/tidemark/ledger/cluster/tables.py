"""The partition table by epochs, the nodes and the changes of both (`cluster_table`, `cluster_node`, `cluster_change`).

A new table comes into force by compare-and-swap. A plan or a commit on an epoch that is not in force gets StaleEpochError
(`require_epoch`, in the same transaction). Every function works in the caller's transaction. Source: sql/0008_cluster.sql,
docs/decisions/0015.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, RetryableError, StaleEpochError
from tidemark.ledger import sql as ledger_sql

ENDED = ("done", "rolled_back", "superseded")
"""States in which a change has ended."""


@dataclass(frozen=True)
class TableRow:
    """A partition table as bytes, checked against its digest. `at` in seconds since 1970."""

    receiver: str
    epoch: int
    table_bytes: bytes
    change_id: str
    at: float


@dataclass(frozen=True)
class NodeRow:
    """A row of `cluster_node`; the columns are described there."""

    receiver: str
    node: str
    identifier: int
    store: str
    host_key: str = ""
    key_file: str = ""
    state: str = "joining"  # joining | serving | leaving | left
    epoch: int = 0
    at: float = 0.0


@dataclass(frozen=True)
class ChangeRow:
    """A row of `cluster_change`; the columns are described there."""

    change_id: str
    receiver: str
    kind: str  # init | add | remove | rebalance | replace
    node: str
    from_epoch: int
    actor: str
    begun: float
    state: str = "planned"  # planned | swapped | migrating | done | rolled_back | superseded
    ended: float | None = None
    gone: str = ""  # who leaves by a `replace`

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED

    @property
    def is_in_force(self) -> bool:
        """Whether its table is in force and its slots may still move."""
        return self.is_open and self.state != "planned"

    def __str__(self) -> str:
        return f"replace {self.gone} by {self.node}" if self.gone else f"{self.kind} {self.node}".rstrip()


def current_table(connection: Connection, receiver: str) -> TableRow | None:
    """Return the table in force; None before `cluster init`. CorruptionError if its row does not match its digest."""
    sql = "SELECT epoch, paper, sha256, change_id, at FROM cluster_table WHERE receiver = :r ORDER BY epoch DESC LIMIT 1"
    row = connection.execute(sa.text(sql), {"r": receiver}).one_or_none()
    if row is None:
        return None
    record = _decode_paper(row[1])
    if hashlib.sha256(record).hexdigest() != row[2]:
        raise CorruptionError(
            f"the partition table of {receiver} at epoch {row[0]} does not match its digest in the ledger",
            hint="./tidemark cluster check names a node that has it whole; ./tidemark ledger backup holds older ledgers",
            subject=receiver,
        )
    return TableRow(receiver, int(row[0]), record, row[3], float(row[4]))


def tables_between(connection: Connection, receiver: str, after: int, before: int) -> list[bytes]:
    """Return the tables that were in force after one epoch and before another, oldest first. A rebuilt ledger lacks them."""
    sql = "SELECT paper FROM cluster_table WHERE receiver = :r AND epoch > :a AND epoch < :b ORDER BY epoch"
    rows = connection.execute(sa.text(sql), {"r": receiver, "a": after, "b": before})
    return [_decode_paper(row[0]) for row in rows]


def _decode_paper(paper: str) -> bytes:
    try:
        return base64.b64decode(paper, validate=True)
    except ValueError:
        return b""


def current_epoch(connection: Connection, receiver: str) -> int:
    """Return the epoch in force; 0 if the receiver has no nodes."""
    sql = "SELECT COALESCE(MAX(epoch), 0) FROM cluster_table WHERE receiver = :r"
    return int(connection.execute(sa.text(sql), {"r": receiver}).scalar_one())


def cluster_identity(connection: Connection, receiver: str) -> str:
    """Return the id that nodes' folders are claimed for: the change with the oldest table. "" before `cluster init`."""
    sql = "SELECT change_id FROM cluster_table WHERE receiver = :r ORDER BY epoch LIMIT 1"
    return connection.execute(sa.text(sql), {"r": receiver}).scalar_one_or_none() or ""


def require_epoch(connection: Connection, receiver: str, epoch: int) -> None:
    """Raise StaleEpochError unless this epoch is in force: the caller must route again.

    It stays in force until the transaction ends: a swap waits for it. So use only a short `Ledger.write()`.
    """
    ledger_sql.share_lock(connection, _epoch_lock(receiver))
    _require_epoch(connection, receiver, epoch)


def _epoch_lock(receiver: str) -> str:
    return f"cluster_table {receiver}"


def _require_epoch(connection: Connection, receiver: str, epoch: int) -> None:
    now = current_epoch(connection, receiver)
    if now != epoch:
        raise StaleEpochError(
            f"routed by partition table {epoch} of {receiver}, and {now} is in force",
            hint="run it again: it routes by the new table",
            subject=receiver,
        )


def swap_table(connection: Connection, row: TableRow) -> None:
    """Put the next table in force. StaleEpochError if the previous one is not in force (any more).

    Waits for transactions that called `require_epoch`; later callers of it wait for this one.
    """
    ledger_sql.hold_locks(connection, _epoch_lock(row.receiver))  # no commit by the previous table is running
    _require_epoch(connection, row.receiver, row.epoch - 1)
    _insert_table(connection, row)


def _insert_table(connection: Connection, row: TableRow) -> None:
    values = {
        "receiver": row.receiver,
        "epoch": row.epoch,
        "paper": base64.b64encode(row.table_bytes).decode(),
        "sha256": hashlib.sha256(row.table_bytes).hexdigest(),
        "change": row.change_id,
        "at": row.at,
    }
    sql = (
        "INSERT INTO cluster_table (receiver, epoch, paper, sha256, change_id, at)"
        " VALUES (:receiver, :epoch, :paper, :sha256, :change, :at)"
    )
    connection.execute(sa.text(sql), values)


def restore_table(connection: Connection, row: TableRow) -> None:
    """Insert a table that nodes kept into a ledger without one. StaleEpochError if it has one."""
    ledger_sql.hold_locks(connection, _epoch_lock(row.receiver))
    _require_epoch(connection, row.receiver, 0)
    _insert_table(connection, row)


def nodes_of_receiver(connection: Connection, receiver: str, states: Iterable[str] = ()) -> list[NodeRow]:
    """Return the nodes by name, in these `states`, or all."""
    wanted = frozenset(states)
    sql = (
        "SELECT receiver, node, identifier, store, host_key, key_file, state, epoch, at FROM cluster_node"
        " WHERE receiver = :r ORDER BY node"
    )
    found = [NodeRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver})]
    return [row for row in found if not wanted or row.state in wanted]


def put_node(connection: Connection, row: NodeRow) -> None:
    """Insert or replace a node."""
    sql = (
        "INSERT INTO cluster_node (receiver, node, identifier, store, host_key, key_file, state, epoch, at) VALUES"
        " (:receiver, :node, :identifier, :store, :host_key, :key_file, :state, :epoch, :at)"
        " ON CONFLICT (receiver, node) DO UPDATE SET identifier = excluded.identifier, store = excluded.store,"
        " host_key = excluded.host_key, key_file = excluded.key_file, state = excluded.state, epoch = excluded.epoch,"
        " at = excluded.at"
    )
    connection.execute(sa.text(sql), asdict(row))


def note_node(connection: Connection, receiver: str, node: str, epoch: int) -> None:
    """Record that the table of this epoch is in the node's folder for sure. A higher recorded epoch stays."""
    sql = "UPDATE cluster_node SET epoch = :e WHERE receiver = :r AND node = :n AND epoch < :e"
    connection.execute(sa.text(sql), {"r": receiver, "n": node, "e": epoch})


def set_node_state(connection: Connection, receiver: str, node: str, state: str, at: float) -> None:
    sql = "UPDATE cluster_node SET state = :s, at = :at WHERE receiver = :r AND node = :n AND state <> :s"
    connection.execute(sa.text(sql), {"r": receiver, "n": node, "s": state, "at": at})


def forget_node(connection: Connection, receiver: str, node: str) -> None:
    """Delete a node that never served (a change rolled back), or that left."""
    connection.execute(sa.text("DELETE FROM cluster_node WHERE receiver = :r AND node = :n"), {"r": receiver, "n": node})


_CHANGE = "change_id, receiver, kind, node, from_epoch, actor, begun, state, ended, gone"


def put_change(connection: Connection, row: ChangeRow) -> None:
    """Insert a change; an existing one keeps its row. RetryableError while another one is open."""
    sql = (
        f"INSERT INTO cluster_change ({_CHANGE}) VALUES (:change_id, :receiver, :kind, :node, :from_epoch, :actor, :begun,"
        " :state, :ended, :gone) ON CONFLICT DO NOTHING"  # the index cluster_change_open allows one
    )
    if connection.execute(sa.text(sql), asdict(row)).rowcount == 1:
        return
    other = open_change(connection, row.receiver)
    if other is not None and other.change_id != row.change_id:
        raise RetryableError(
            f"the nodes of {row.receiver} change already: {other}" + f", asked for by {other.actor}, is {other.state}",
            hint="./tidemark cluster show tells how far it is; the same command again continues it",
            subject=other.node or row.receiver,
        )


_FORWARD = ("planned", "swapped", "migrating", "done")
_ASIDE = {"rolled_back": ("planned",), "superseded": ("swapped", "migrating")}


def set_change_state(connection: Connection, change_id: str, state: str, ended: float | None = None) -> None:
    """Set the state forward, to `rolled_back` while it is planned, or to `superseded` while its table is in force. Setting
    the same state succeeds.

    StaleEpochError for any other: somebody else continued meanwhile. Nothing is changed then.
    """
    before = _ASIDE[state] if state in _ASIDE else _FORWARD[: _FORWARD.index(state)]
    query = sa.text("UPDATE cluster_change SET state = :s, ended = :e WHERE change_id = :c AND state IN :before").bindparams(
        sa.bindparam("before", expanding=True)
    )
    values = {"c": change_id, "s": state, "e": ended}
    if before and connection.execute(query, {**values, "before": before}).rowcount == 1:
        return
    sql = "SELECT state FROM cluster_change WHERE change_id = :c"
    now = connection.execute(sa.text(sql), {"c": change_id}).scalar_one_or_none()
    if now != state:
        raise StaleEpochError(
            f"change {change_id} of the nodes is {now or 'not known'}: it cannot become {state}",
            hint="./tidemark cluster show",
            subject=change_id,
        )


def reopen_change(connection: Connection, receiver: str, from_epoch: int) -> None:
    """Let the change that was superseded go on: it made the table of this epoch, and what superseded it never came."""
    sql = (
        "UPDATE cluster_change SET state = 'migrating', ended = NULL"
        " WHERE receiver = :r AND from_epoch = :e AND state = 'superseded'"
    )
    connection.execute(sa.text(sql), {"r": receiver, "e": from_epoch - 1})


def newest_changes(connection: Connection, receiver: str, limit: int = 10_000) -> list[ChangeRow]:
    """Return changes, the newest first."""
    sql = f"SELECT {_CHANGE} FROM cluster_change WHERE receiver = :r ORDER BY begun DESC, change_id LIMIT :l"
    return [ChangeRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver, "l": limit})]


def open_change(connection: Connection, receiver: str) -> ChangeRow | None:
    """Return the change that has not ended: there is at most one."""
    sql = f"SELECT {_CHANGE} FROM cluster_change WHERE receiver = :r AND state NOT IN ('done', 'rolled_back', 'superseded')"
    row = connection.execute(sa.text(sql), {"r": receiver}).first()
    return None if row is None else ChangeRow(*row)
