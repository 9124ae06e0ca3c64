"""A data group's versioned operations and how far each member has come (`group_operation`, `group_member`).

An operation is proposed before any byte goes to a member, committed once a quorum has it, in the transaction in which
readers see it. A late member catches up from here: everything committed above what it has applied.
Every function works in the caller's transaction. Source: seed 001 "Data group"; docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import StaleEpochError
from tidemark.ledger import sql as ledger_sql
from tidemark.ledger.sql import write_rows

_CHUNK = 400  # values in one IN list


@dataclass(frozen=True)
class OperationRow:
    """One operation of a group. `version` 0 until it is in the ledger."""

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
    """Give each the next version of its group, in order; returns them with their versions. The caller checks the epoch.

    Who proposes to the same group at once waits for this transaction's end, so versions have no gaps and no doubles.
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
    """0 for a group without operations."""
    sql = "SELECT COALESCE(MAX(version), 0) FROM group_operation WHERE receiver = :r AND header = :h"
    return int(connection.execute(sa.text(sql), {"r": receiver, "h": header}).scalar_one())


def operations_above(
    connection: Connection, receiver: str, header: str, above: int = 0, states: Iterable[str] = ()
) -> list[OperationRow]:
    """Of a group, above a version, in order; of these states, or of all."""
    sql = f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND header = :h AND version > :v ORDER BY version"
    found = [OperationRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver, "h": header, "v": above})]
    wanted = frozenset(states)
    return [row for row in found if not wanted or row.state in wanted]


def proposed_operations(connection: Connection, receiver: str) -> list[OperationRow]:
    """Everything that waits for its commit, by group and version."""
    sql = f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND state = 'proposed' ORDER BY header, version"
    return [OperationRow(*row) for row in connection.execute(sa.text(sql), {"r": receiver})]


def withdrawn_puts(connection: Connection, receiver: str) -> set[str]:
    """Locations of files that were on their way to nodes and will not be committed: bytes of them may lie there."""
    sql = "SELECT DISTINCT subject FROM group_operation WHERE receiver = :r AND kind = 'put' AND state = 'withdrawn'"
    return {row[0] for row in connection.execute(sa.text(sql), {"r": receiver})}


def committed_versions(connection: Connection, receiver: str) -> dict[str, int]:
    """Header → the newest version that is committed."""
    sql = "SELECT header, MAX(version) FROM group_operation WHERE receiver = :r AND state = 'committed' GROUP BY header"
    return {row[0]: int(row[1]) for row in connection.execute(sa.text(sql), {"r": receiver})}


def last_of_database(connection: Connection, receiver: str, header: str, database: str) -> OperationRow | None:
    """The newest committed creation or dropping of a database in a group."""
    sql = (
        f"SELECT {_COLUMNS} FROM group_operation WHERE receiver = :r AND header = :h AND subject = :d"
        " AND kind IN ('create_database', 'drop_database') AND state = 'committed' ORDER BY version DESC LIMIT 1"
    )
    row = connection.execute(sa.text(sql), {"r": receiver, "h": header, "d": database}).first()
    return None if row is None else OperationRow(*row)


def set_operation_state(connection: Connection, rows: Iterable[OperationRow], state: str, at: float) -> None:
    """From proposed to `committed` or `withdrawn`; told again, it changes nothing.

    StaleEpochError where one is to be committed that was withdrawn meanwhile, or is not there: roll back and route again.
    To withdraw one that was committed changes nothing.
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
    query = sa.text(
        "SELECT version FROM group_operation WHERE receiver = :r AND header = :h AND state = 'committed'"
        " AND version IN :many"
    ).bindparams(sa.bindparam("many", expanding=True))
    for receiver, header in sorted({(r, h) for r, h, _ in wanted}):
        versions = sorted(version for r, h, version in wanted if (r, h) == (receiver, header))
        for start in range(0, len(versions), _CHUNK):
            many = versions[start : start + _CHUNK]
            found = {int(row[0]) for row in connection.execute(query, {"r": receiver, "h": header, "many": many})}
            if len(found) < len(many):
                lost = min(set(many) - found)
                raise StaleEpochError(
                    f"operation {lost} of the group of {header} was withdrawn before it could be committed",
                    hint="run it again: it routes by the new table",
                    subject=header,
                )


def applied_versions(connection: Connection, receiver: str) -> dict[tuple[str, str], int]:
    """(header, node) → the version up to which the member has everything."""
    sql = "SELECT header, node, applied FROM group_member WHERE receiver = :r"
    return {(row[0], row[1]): int(row[2]) for row in connection.execute(sa.text(sql), {"r": receiver})}


def put_applied(connection: Connection, receiver: str, header: str, node: str, version: int, at: float) -> None:
    """Never goes back."""
    sql = (
        "INSERT INTO group_member (receiver, header, node, applied, at) VALUES (:r, :h, :n, :v, :at)"
        " ON CONFLICT (receiver, header, node) DO UPDATE SET applied = excluded.applied, at = excluded.at"
        " WHERE group_member.applied < excluded.applied"
    )
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "n": node, "v": version, "at": at})


def forget_member(connection: Connection, receiver: str, header: str, node: str) -> None:
    """It is no member of that group any more."""
    sql = "DELETE FROM group_member WHERE receiver = :r AND header = :h AND node = :n"
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "n": node})


def forget_operations(connection: Connection, receiver: str, header: str, upto: int) -> None:
    """Every member has them and they are at their end. The newest stays, so that versions go on, and the newest of each
    database, which tells what was told of its schema."""
    sql = (
        "DELETE FROM group_operation WHERE receiver = :r AND header = :h AND version <= :v AND state <> 'proposed'"
        " AND version < (SELECT MAX(version) FROM group_operation WHERE receiver = :r AND header = :h)"
        " AND (kind IN ('put', 'remove') OR state = 'withdrawn' OR EXISTS (SELECT 1 FROM group_operation later"
        " WHERE later.receiver = :r AND later.header = :h AND later.subject = group_operation.subject"
        " AND later.kind LIKE '%_database' AND later.state = 'committed' AND later.version > group_operation.version))"
    )
    connection.execute(sa.text(sql), {"r": receiver, "h": header, "v": upto})
