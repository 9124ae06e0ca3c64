"""What an IoTDB has of a receiver's catalog (tables `iotdb_file`, `iotdb_partition`; sql/0007_iotdb_target.sql).

Every function works in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import in_chunks, write_rows


@dataclass(frozen=True)
class Target:
    """A receiver's catalog, and the server that it is also loaded into (`host:port`)."""

    receiver: str
    server: str


@dataclass(frozen=True)
class FileRow:
    """A row of `iotdb_file`; the columns are described there."""

    file_id: int
    state: str
    how: str = ""
    reason: str | None = None
    kind: int = 0


@dataclass(frozen=True)
class PartitionRow:
    """A row of `iotdb_partition`; the columns are described there."""

    database: str
    partition: int
    fence: int
    counted: int
    state: str
    reason: str | None = None


def open_files(connection: Connection, target: Target) -> list[int]:
    """Return live source files that the server does not have for sure, by file_id."""
    sql = (
        "SELECT f.file_id FROM catalog_file f LEFT JOIN iotdb_file i ON i.file_id = f.file_id AND i.receiver = f.receiver"
        " AND i.server = :server WHERE f.receiver = :receiver AND f.role = 'source' AND f.state = 'live'"
        " AND (i.state IS NULL OR i.state <> 'given') ORDER BY f.file_id"
    )
    return [int(r[0]) for r in connection.execute(sa.text(sql), vars(target))]


def open_merged(connection: Connection, target: Target) -> list[int]:
    """Return merged files that stand alone and of which the server does not have all sources for sure: it was away for
    long, or configured only later, or their rank changed."""
    sql = (
        "SELECT m.file_id FROM catalog_file m JOIN merge_account a ON a.merged_id = m.file_id"
        " LEFT JOIN iotdb_file i ON i.file_id = m.file_id AND i.receiver = m.receiver AND i.server = :server"
        " WHERE m.receiver = :receiver AND m.role = 'merged' AND m.state = 'live' AND a.settled IS NOT NULL"
        " AND (i.state IS NULL OR i.state <> 'given') AND (SELECT count(*) FROM lineage l JOIN iotdb_file s"
        " ON s.file_id = l.source_id AND s.receiver = :receiver AND s.server = :server AND s.state = 'given'"
        " WHERE l.merged_id = m.file_id) < (SELECT CASE WHEN count(*) = 0 THEN 1 ELSE count(*) END FROM lineage l"
        " WHERE l.merged_id = m.file_id) ORDER BY m.file_id"
    )
    return [int(r[0]) for r in connection.execute(sa.text(sql), vars(target))]


def left_files(connection: Connection, target: Target) -> list[int]:
    """Return files given, or being given, to the server that left the catalog and that no merged file replaces."""
    sql = (
        "SELECT i.file_id FROM iotdb_file i JOIN catalog_file f ON f.file_id = i.file_id"
        " WHERE i.receiver = :receiver AND i.server = :server AND i.state <> 'gone' AND f.state <> 'live'"
        " AND NOT EXISTS (SELECT 1 FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id"
        " WHERE l.source_id = f.file_id AND m.state = 'live') ORDER BY i.file_id"
    )
    return [int(r[0]) for r in connection.execute(sa.text(sql), vars(target))]


def neighbour_files(connection: Connection, target: Target, databases: Iterable[str], span: tuple[int, int]) -> list[int]:
    """Return the server's files of these databases that touch catalog partitions `span` (first, last)."""
    sql = (
        "SELECT f.file_id FROM catalog_file f JOIN iotdb_file i ON i.file_id = f.file_id AND i.receiver = f.receiver"
        " AND i.server = :server WHERE f.receiver = :receiver AND i.state = 'given'"
        " AND f.database_name IN :many AND f.partition_from <= :last AND f.partition_to >= :first"
    )
    found = in_chunks(connection, sql, databases, **vars(target), first=span[0], last=span[1])
    return sorted(int(r[0]) for r in found)


def partition_files(connection: Connection, target: Target, database: str, numbers: Sequence[int]) -> list[int]:
    """Return the server's live files in these partitions of a database."""
    sql = (
        "SELECT f.file_id FROM catalog_file f JOIN iotdb_file i ON i.file_id = f.file_id AND i.receiver = f.receiver"
        " AND i.server = :server WHERE f.receiver = :receiver AND f.state = 'live'"
        " AND i.state = 'given' AND f.database_name = :database AND f.partition_from IN :many"
    )
    return [int(r[0]) for r in in_chunks(connection, sql, numbers, **vars(target), database=database)]


def file_rows(connection: Connection, target: Target, file_ids: Iterable[int]) -> dict[int, FileRow]:
    """Return the rows of these files, if they have one."""
    sql = (
        "SELECT file_id, state, how, reason, kind FROM iotdb_file WHERE receiver = :receiver AND server = :server"
        " AND file_id IN :many"
    )
    found = in_chunks(connection, sql, file_ids, **vars(target))
    return {int(r[0]): FileRow(int(r[0]), r[1], r[2], r[3], int(r[4])) for r in found}


def of_path(connection: Connection, path: str) -> list[tuple[str, FileRow]]:
    """Return (server, row) of the live file of this source path, at every server it was ever to be given to."""
    sql = (
        "SELECT i.server, i.file_id, i.state, i.how, i.reason, i.kind FROM iotdb_file i JOIN catalog_file f"
        " ON f.file_id = i.file_id WHERE f.path = :path AND f.state = 'live' ORDER BY i.server, i.file_id"
    )
    rows = connection.execute(sa.text(sql), {"path": path})
    return [(r[0], FileRow(int(r[1]), r[2], r[3], r[4], int(r[5]))) for r in rows]


def put_files(connection: Connection, target: Target, rows: Iterable[FileRow], at: float) -> None:
    """Write these rows; `at` in seconds since 1970."""
    values = [{**vars(target), **vars(row), "at": at} for row in rows]
    write_rows(
        connection,
        "INSERT INTO iotdb_file (receiver, server, file_id, state, how, reason, kind, at)"
        " VALUES (:receiver, :server, :file_id, :state, :how, :reason, :kind, :at)"
        " ON CONFLICT (receiver, server, file_id) DO UPDATE SET state = excluded.state, how = excluded.how,"
        " reason = excluded.reason, kind = excluded.kind, at = excluded.at",
        values,
    )


def compare_again(connection: Connection, receiver: str, file_ids: Iterable[int]) -> None:
    """Let every server's next load compare what readers see of these files, whose rank changed; of a merged file what its
    sources brought."""
    rows = [{"receiver": receiver, "f": file_id} for file_id in file_ids]
    sql = (
        "UPDATE iotdb_file SET state = 'giving' WHERE receiver = :receiver AND state = 'given'"
        " AND (file_id = :f OR file_id IN (SELECT source_id FROM lineage WHERE merged_id = :f))"
    )
    write_rows(connection, sql, rows)


def raise_fences(connection: Connection, target: Target, partitions: Iterable[tuple[str, int]], at: float) -> None:
    """Raise the fences of these (database, partition) before files are given to them: they must be counted."""
    values = [{**vars(target), "d": database, "p": partition, "at": at} for database, partition in sorted(set(partitions))]
    write_rows(
        connection,
        "INSERT INTO iotdb_partition (receiver, server, database_name, partition, fence, counted, state, at)"
        " VALUES (:receiver, :server, :d, :p, 1, 0, 'open', :at)"
        " ON CONFLICT (receiver, server, database_name, partition) DO UPDATE SET"
        " fence = iotdb_partition.fence + 1, state = 'open', reason = NULL, at = excluded.at",
        values,
    )


def partitions_in(connection: Connection, target: Target, states: Sequence[str]) -> list[PartitionRow]:
    """Return the partitions in one of these states, by database and partition."""
    sql = (
        "SELECT database_name, partition, fence, counted, state, reason FROM iotdb_partition"
        " WHERE receiver = :receiver AND server = :server AND state IN :many ORDER BY database_name, partition"
    )
    found = in_chunks(connection, sql, states, **vars(target))
    return [PartitionRow(r[0], int(r[1]), int(r[2]), int(r[3]), r[4], r[5]) for r in found]


def conclude_counts(connection: Connection, target: Target, counted: Iterable[PartitionRow], at: float) -> None:
    """Record counts of partitions at their fence; one whose fence was raised meanwhile must be counted again."""
    values = [
        {**vars(target), "d": r.database, "p": r.partition, "f": r.fence, "s": r.state, "r": r.reason, "at": at}
        for r in counted
    ]
    write_rows(
        connection,
        "UPDATE iotdb_partition SET counted = :f, state = :s, reason = :r, at = :at WHERE receiver = :receiver"
        " AND server = :server AND database_name = :d AND partition = :p AND fence = :f",
        values,
    )


def count_states(connection: Connection, target: Target) -> Mapping[str, int]:
    """Return state → number of files."""
    sql = "SELECT state, count(*) FROM iotdb_file WHERE receiver = :receiver AND server = :server GROUP BY state"
    return {r[0]: int(r[1]) for r in connection.execute(sa.text(sql), vars(target))}
