"""How far the recovery of each member of a group is (table `group_recovery`), and which of them are at work now.

A recovery is at work while the lease `recover:RECEIVER:NODE` is held with the fence of its row. So a process that died is
at work no longer than its lease. What a recovery at work may still read is not removed: `is_source_pinned`. Times are the
database's. Source: seed 003 "Data recovery flow"; sql/0023_group_recovery.sql.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.leases import Leases
from tidemark.ledger.sql import write_rows

NOT_READ = (0, -1)
"""The target before a look has read it."""


@dataclass(frozen=True)
class RecoveryRow:
    """One recovery. `target`: epoch and version that the member must reach, or `NOT_READ`. `files`: it lacked when
    copying began. `again`: not before this time by itself. `fence`: of the lease of who wrote it."""

    receiver: str
    header: str
    node: str
    epoch: int
    phase: str
    source_index: str = ""
    target: tuple[int, int] = NOT_READ
    restarts: int = 0
    files: int = 0
    again: float = 0.0
    fence: int = 0
    begun: float = 0.0
    at: float = 0.0
    why: str = ""


def recovery_lease(receiver: str, node: str) -> str:
    """Return the name of the lease under which a node gets what it lacks."""
    return f"recover:{receiver}:{node}"


def read_recoveries(connection: Connection, receiver: str, node: str = "") -> dict[tuple[str, str], RecoveryRow]:
    """Return (header, node) → row, of all nodes or of one."""
    sql = (
        "SELECT header, node, epoch, phase, source_index, target_epoch, target_version, restarts, files, again, fence,"
        " begun, at, why FROM group_recovery WHERE receiver = :r AND (node = :n OR :n = '') ORDER BY header, node"
    )
    return {
        (header, name): RecoveryRow(
            receiver,
            header,
            name,
            int(epoch),
            phase,
            index,
            (int(target_epoch), int(version)),
            int(restarts),
            int(files),
            float(again),
            int(fence),
            float(begun),
            float(at),
            why,
        )
        for header, name, epoch, phase, index, target_epoch, version, restarts, files, again, fence, begun, at, why in (
            connection.execute(sa.text(sql), {"r": receiver, "n": node})
        )
    }


def put_recoveries(connection: Connection, rows: Collection[RecoveryRow]) -> None:
    """Insert or replace rows."""
    sql = (
        "INSERT INTO group_recovery (receiver, header, node, epoch, phase, source_index, target_epoch, target_version,"
        " restarts, files, again, fence, begun, at, why)"
        " VALUES (:receiver, :header, :node, :epoch, :phase, :source_index, :target_epoch, :target_version,"
        " :restarts, :files, :again, :fence, :begun, :at, :why)"
        " ON CONFLICT (receiver, header, node) DO UPDATE SET epoch = excluded.epoch, phase = excluded.phase,"
        " source_index = excluded.source_index, target_epoch = excluded.target_epoch,"
        " target_version = excluded.target_version, restarts = excluded.restarts, files = excluded.files,"
        " again = excluded.again, fence = excluded.fence, begun = excluded.begun, at = excluded.at, why = excluded.why"
    )
    values = [{**vars(row), "target_epoch": row.target[0], "target_version": row.target[1]} for row in rows]
    write_rows(connection, sql, [{key: value for key, value in one.items() if key != "target"} for one in values])


def end_recoveries(connection: Connection, receiver: str, node: str, headers: Collection[str]) -> None:
    """Delete the rows of a node in these groups."""
    sql = "DELETE FROM group_recovery WHERE receiver = :r AND header = :h AND node = :n"
    for header in sorted(headers):
        connection.execute(sa.text(sql), {"r": receiver, "h": header, "n": node})


def find_at_work(
    connection: Connection, leases: Leases, receiver: str, rows: Mapping[tuple[str, str], RecoveryRow]
) -> set[tuple[str, str]]:
    """Return which of these recoveries a live process is at."""
    if not rows:
        return set()
    held = {row.name: row.fence for row in leases.list_named(connection, recovery_lease(receiver, ""))}
    return {key for key, row in rows.items() if held.get(recovery_lease(receiver, row.node)) == row.fence}


def is_source_pinned(connection: Connection, leases: Leases, receiver: str) -> bool:
    """Tell whether a recovery is at work: what it may still read stays until it ends or its process dies."""
    return bool(find_at_work(connection, leases, receiver, read_recoveries(connection, receiver)))
