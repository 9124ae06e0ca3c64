"""A data group's versioned operations, and the version each member has applied (`group_operation`, `group_member`).

An operation is proposed before any byte goes to a member. It is committed once a quorum has it, in the transaction that
makes it visible. A late member catches up from here: every committed operation above what it has applied. Every function
works in the caller's transaction. Source: seed 001 "Data group"; docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import StaleEpochError
from tidemark.ledger import sql as ledger_sql
from tidemark.ledger.sql import in_chunks, write_rows


@dataclass(frozen=True)
class OperationRow:
    """One operation of a group. `version` is 0 until it is in the ledger."""

    receiver: str
    header: str
    epoch: int
    slot: int
    kind: str  # put | remove | create_database | drop_database
    subject: str  # a location, or a database
    sha256: str = ""
    size: int = 0
    state: str = "proposed"  # proposed | committed | withdrawn
    at: float = 0.0
    version: int = 0


_COLUMNS = "receiver, header, epoch, slot, kind, subject, sha256, size, state, at, version"


def propose_operations(connection: Connection, rows: Sequence[OperationRow]) -> list[OperationRow]:
    """Give each the next version of its group, in order; return them with their versions. The caller checks the epoch.

    Others that propose to the same group wait for the end of this transaction, so versions have no gaps and no doubles.
    """
    ledger_sql.hold_locks(connection, *{f"group_operation {row.receiver} {row.header}" for row in rows})
    last: dict[tuple[str, str], int] = {}
    numbered = []
    for row in rows:
        key = (row.receiver, row.header)
        if key not in last:
            last[key] = last_version(connection, row.receiver, row.header)
        last[key] += 1
        numbered.append(replace(row, version=last[key]))
    sql = (
        f"INSERT INTO group_operation ({_COLUMNS}) VALUES (:receiver, :header, :epoch, :slot, :kind, :subject, :sha256,"
        " :size, :state, :at, :version)"
    )
    write_rows(connection, sql, [vars(row) for row in numbered])
    return numbered


def last_version(connection: Connection, receiver: str, header: str) -> int:
    """Return the newest version of a group; 0 without operations."""
    sql = "SELECT COALESCE(MAX(version), 0) FROM group_operation WHERE receiver = :r AND header = :h"
    return int(connection.execute(sa.text(sql), {"r": receiver, "h": header}).scalar_one())


def operations_above(
    connection: Connection, receiver: str, header: str, above: int = 0, states: Iterable[str] = ()
) -> list[OperationRow]:
    """Return a group's operations above a version, in order; in these states, or in all."""
    sql = f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND header = :h AND version > :v ORDER BY version"
    found = [OperationRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver, "h": header, "v": above})]
    wanted = frozenset(states)
    return [row for row in found if not wanted or row.state in wanted]


def proposed_operations(connection: Connection, receiver: str) -> list[OperationRow]:
    """Return all operations that wait for their commit, by group and version."""
    sql = f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND state = 'proposed' ORDER BY header, version"
    return [OperationRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver})]


def withdrawn_puts(connection: Connection, receiver: str) -> set[str]:
    """Return locations of files whose transfer to nodes was given up: some of their bytes may be there."""
    sql = "SELECT DISTINCT subject FROM group_operation WHERE receiver = :r AND kind = 'put' AND state = 'withdrawn'"
    return {row[0] for row in connection.execute(sa.text(sql), {"r": receiver})}


def committed_versions(connection: Connection, receiver: str) -> dict[str, int]:
    """Return header → the newest committed version."""
    sql = "SELECT header, MAX(version) FROM group_operation WHERE receiver = :r AND state = 'committed' GROUP BY header"
    return {row[0]: int(row[1]) for row in connection.execute(sa.text(sql), {"r": receiver})}


def last_of_database(connection: Connection, receiver: str, header: str, database: str) -> OperationRow | None:
    """Return the newest committed creation or dropping of a database in a group."""
    sql = (
        f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND header = :h AND subject = :d"
        " AND kind IN ('create_database', 'drop_database') AND state = 'committed' ORDER BY version DESC LIMIT 1"
    )
    row = connection.execute(sa.text(sql), {"r": receiver, "h": header, "d": database}).first()
    return None if row is None else OperationRow(*row)


def set_operation_state(connection: Connection, rows: Iterable[OperationRow], state: str, at: float) -> None:
    """Set proposed operations to `committed` or `withdrawn`; a second call changes nothing.

    StaleEpochError if one to be committed was withdrawn meanwhile, or does not exist: roll back and route again. Withdrawing
    a committed one changes nothing.
    """
    wanted = sorted((row.receiver, row.header, row.version) for row in rows)
    values = [{"r": r, "h": h, "v": v, "s": state, "at": at} for r, h, v in wanted]
    sql = (
        "UPDATE group_operation SET state = :s, at = :at WHERE receiver = :r AND header = :h AND version = :v"
        " AND state = 'proposed'"
    )
    write_rows(connection, sql, values)
    if state == "committed":
        _require_committed(connection, set(wanted))


def _require_committed(connection: Connection, wanted: set[tuple[str, str, int]]) -> None:
    sql = (
        "SELECT version FROM group_operation WHERE receiver = :r AND header = :h AND state = 'committed'"
        " AND version IN :many"
    )
    for receiver, header in sorted({(r, h) for r, h, _ in wanted}):
        versions = {version for r, h, version in wanted if (r, h) == (receiver, header)}
        lost = versions - {int(row[0]) for row in in_chunks(connection, sql, versions, r=receiver, h=header)}
        if lost:
            raise StaleEpochError(
                f"operation {min(lost)} of the group of {header} was withdrawn before it could be committed",
                hint="run it again: it routes by the new table",
                subject=header,
            )


def applied_versions(connection: Connection, receiver: str) -> dict[tuple[str, str], int]:
    """Return (header, node) → the version up to which the member has everything."""
    sql = "SELECT header, node, applied FROM group_member WHERE receiver = :r"
    return {(row[0], row[1]): int(row[2]) for row in connection.execute(sa.text(sql), {"r": receiver})}


def put_applied(connection: Connection, receiver: str, header: str, node: str, version: int, at: float) -> None:
    """Set a member's version. A higher one stays."""
    sql = (
        "INSERT INTO group_member (receiver, header, node, applied, at) VALUES (:r, :h, :n, :v, :at)"
        " ON CONFLICT (receiver, header, node) DO UPDATE SET applied = excluded.applied, at = excluded.at"
        " WHERE group_member.applied < excluded.applied"
    )
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "n": node, "v": version, "at": at})


def forget_member(connection: Connection, receiver: str, header: str, node: str) -> None:
    """Delete the version of a node that is no member of the group any more."""
    sql = "DELETE FROM group_member WHERE receiver = :r AND header = :h AND node = :n"
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "n": node})


def forget_operations(connection: Connection, receiver: str, header: str, upto: int) -> None:
    """Delete ended operations that every member has. The group's newest one stays, so that versions continue, and so does
    each database's newest one, which records its schema."""
    sql = (
        "DELETE FROM group_operation WHERE receiver = :r AND header = :h AND version <= :v AND state <> 'proposed'"
        " AND version < (SELECT MAX(version) FROM group_operation WHERE receiver = :r AND header = :h)"
        " AND (kind IN ('put', 'remove') OR state = 'withdrawn' OR EXISTS (SELECT 1 FROM group_operation later"
        " WHERE later.receiver = :r AND later.header = :h AND later.subject = group_operation.subject"
        " AND later.kind LIKE '%_database' AND later.state = 'committed' AND later.version > group_operation.version))"
    )
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "v": upto})
