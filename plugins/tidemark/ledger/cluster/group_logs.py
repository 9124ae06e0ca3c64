"""What the ledger knows of each data group's log at its members (tables `group_log`, `group_cover`, `log_reading`).

A row is changed by compare-and-swap of epoch and operation, in the caller's transaction: an epoch is given once, and who
lost the group to another commits nothing. Source: docs/decisions/0024, sql/0017_group_log.sql,
sql/0018_group_cover.sql, sql/0026_log_reading.sql, sql/0029_group_cover_anew.sql.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import StaleEpochError
from tidemark.ledger.database import database_time
from tidemark.ledger.sql import write_rows


@dataclass(frozen=True)
class GroupLogRow:
    """One group's log. Epoch 0: none was given yet. `settled`: epoch and version of the last record with an outcome here."""

    receiver: str
    header: str
    epoch: int = 0
    master: str = ""
    active: bool = False
    settled: tuple[int, int] = (0, 0)
    operation: str = ""
    in_step: tuple[str, ...] = ()


def read_group_logs(connection: Connection, receiver: str) -> dict[str, GroupLogRow]:
    """Return header → row."""
    sql = (
        "SELECT header, epoch, master, active, settled_epoch, settled_version, operation, in_step FROM group_log"
        " WHERE receiver = :r ORDER BY header"
    )
    return {
        header: GroupLogRow(
            receiver, header, int(epoch), master, bool(active), (int(e), int(v)), operation, tuple(json.loads(in_step))
        )
        for header, epoch, master, active, e, v, operation, in_step in connection.execute(sa.text(sql), {"r": receiver})
    }


def swap_group_log(connection: Connection, before: GroupLogRow, after: GroupLogRow, at: float) -> None:
    """Write `after` in the place of `before`. StaleEpochError if another epoch or operation stands there by now."""
    values = {
        "r": after.receiver,
        "h": after.header,
        "epoch": after.epoch,
        "master": after.master,
        "active": int(after.active),
        "se": after.settled[0],
        "sv": after.settled[1],
        "operation": after.operation,
        "in_step": json.dumps(sorted(after.in_step)),
        "at": at,
        "before": before.epoch,
        "doing": before.operation,
    }
    sql = (
        "INSERT INTO group_log VALUES (:r, :h, :epoch, :master, :active, :se, :sv, :operation, :in_step, :at)"
        " ON CONFLICT (receiver, header) DO UPDATE SET epoch = excluded.epoch, master = excluded.master,"
        " active = excluded.active, settled_epoch = excluded.settled_epoch, settled_version = excluded.settled_version,"
        " operation = excluded.operation, in_step = excluded.in_step, at = excluded.at"
        " WHERE group_log.epoch = :before AND group_log.operation = :doing"
    )
    if connection.execute(sa.text(sql), values).rowcount != 1:
        raise StaleEpochError(
            f"the log of the group of {after.header} was taken over by another process",
            hint="run it again",
            subject=after.header,
        )


@dataclass(frozen=True)
class CoverRow:
    """The slots that a group's log tells the catalog of, by the partition table of `table_epoch`. `snapshot`: all that it
    told up to this version stands behind it again, since `snapshot_at` by the database's clock; 0 for none."""

    receiver: str
    header: str
    table_epoch: int = 0
    slots: frozenset[int] = frozenset()
    snapshot: int = 0
    snapshot_at: float = 0.0


def read_covers(connection: Connection, receiver: str) -> dict[str, CoverRow]:
    """Return header → row."""
    sql = "SELECT header, table_epoch, slots, snapshot, snapshot_at FROM group_cover WHERE receiver = :r ORDER BY header"
    return {
        header: CoverRow(receiver, header, int(epoch), _slots_of(json.loads(ranges)), int(snapshot), float(at))
        for header, epoch, ranges, snapshot, at in connection.execute(sa.text(sql), {"r": receiver})
    }


def put_cover(connection: Connection, row: CoverRow) -> None:
    """Insert or replace a row."""
    ranges: list[list[int]] = []
    for slot in sorted(row.slots):
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1][1] = slot
        else:
            ranges.append([slot, slot])
    sql = (
        "INSERT INTO group_cover (receiver, header, table_epoch, slots, snapshot, snapshot_at)"
        " VALUES (:r, :h, :e, :s, :v, :at)"
        " ON CONFLICT (receiver, header) DO UPDATE SET table_epoch = excluded.table_epoch, slots = excluded.slots,"
        " snapshot = excluded.snapshot, snapshot_at = excluded.snapshot_at"
    )
    values = {"r": row.receiver, "h": row.header, "e": row.table_epoch, "s": json.dumps(ranges)}
    values |= {"v": row.snapshot, "at": row.snapshot_at}
    connection.execute(sa.text(sql), values)


def forget_cover(connection: Connection, receiver: str, header: str) -> None:
    """Delete the row: the group's log began anew and tells nothing."""
    connection.execute(sa.text("DELETE FROM group_cover WHERE receiver = :r AND header = :h"), {"r": receiver, "h": header})


def read_log_readings(connection: Connection, receiver: str) -> dict[tuple[str, str], float]:
    """Return (header, node) → when that member's log was last read whole and was sound, by the database's clock."""
    sql = "SELECT header, node, at FROM log_reading WHERE receiver = :r ORDER BY header, node"
    return {(header, node): float(at) for header, node, at in connection.execute(sa.text(sql), {"r": receiver})}


def note_log_readings(connection: Connection, receiver: str, members: Collection[tuple[str, str]]) -> None:
    """Note that the logs of these members, (header, node), were read whole just now, and were sound."""
    sql = (
        "INSERT INTO log_reading (receiver, header, node, at) VALUES (:r, :h, :n, :at)"
        " ON CONFLICT (receiver, header, node) DO UPDATE SET at = excluded.at"
    )
    at = database_time(connection)
    write_rows(connection, sql, [{"r": receiver, "h": header, "n": node, "at": at} for header, node in sorted(members)])


def forget_log_readings(connection: Connection, receiver: str, members: Collection[tuple[str, str]]) -> None:
    """Forget when these were read: their logs came anew, and nobody has read them whole."""
    sql = "DELETE FROM log_reading WHERE receiver = :r AND header = :h AND node = :n"
    write_rows(connection, sql, [{"r": receiver, "h": header, "n": node} for header, node in sorted(members)])


def _slots_of(ranges: list[list[int]]) -> frozenset[int]:
    return frozenset(slot for first, last in ranges for slot in range(first, last + 1))
