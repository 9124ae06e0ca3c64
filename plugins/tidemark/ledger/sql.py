"""SQL that several modules share: one statement for many rows, locks by name, named report queries.

`write_rows`, `write_tuples` and `read_tuples` prepare a statement once for many rows. SQLAlchemy's `executemany` does so
again for each row, which takes longer than the database when a first sync writes five rows a file. `in_chunks` asks for
many values of one column: a statement may have some hundred only.

`hold_locks` and `share_lock` are locks by name that a transaction holds to its end, for rows that may not exist yet. On
PostgreSQL they are advisory locks; the key is a digest of the name. SQLite needs none: its write transactions run one after
the other (`Ledger.write`). Several locks must be acquired in one call, which orders them by name.

`run_report` runs a named query (`sql/queries/<name>.sql`). The queries are plain files so that an auditor can read and run
them by hand; each begins with its purpose and its parameters. `FileCheck` is a data file whose digest was computed, with the
signs (size, inode, time of the last change in ns) that identify an untouched file.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.migrations import FOLDER

_STREAM = 2_000  # rows fetched at a time
_CHUNK = 400  # values in one IN list
_STATEMENTS = 500  # that are kept as they were parsed: it takes longer than SQLite takes for a row


def write_rows(connection: Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute `sql`, which names its values `:name`, once for each of `rows`: mappings with all these names. Without rows
    nothing is done. Raises the driver's errors, as SQLAlchemy's."""
    if rows:
        names = _names_in(sql)
        take = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        write_tuples(connection, sql, names, map(take, rows))


def write_tuples(
    connection: Connection, sql: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]], **same: Any
) -> None:
    """Do `write_rows` for tuples of the values in `names`; the values in `same` are equal for all rows."""
    all_names, constant = (*names, *same), tuple(same.values())
    whole = [row + constant for row in rows] if constant else list(rows)
    if not whole:
        return
    statement, order = _prepare(sql, connection.dialect)
    if order is None:  # this driver uses names
        connection.exec_driver_sql(statement, [dict(zip(all_names, row, strict=True)) for row in whole])
        return
    places = [all_names.index(name) for name in order]
    if len(places) == 1:
        connection.exec_driver_sql(statement, [(row[places[0]],) for row in whole])
    else:
        connection.exec_driver_sql(statement, list(map(itemgetter(*places), whole)))


@functools.lru_cache(_STATEMENTS)
def _names_in(sql: str) -> tuple[str, ...]:
    return tuple(sa.text(sql).compile().params)


@functools.lru_cache(_STATEMENTS)
def _prepare(sql: str, dialect: sa.Dialect) -> tuple[str, Sequence[str] | None]:
    """Return the statement as the driver wants it, and the names of its values in their order; None if it wants names."""
    compiled = sa.text(sql).compile(dialect=dialect)
    return str(compiled), compiled.positiontup if isinstance(compiled, sa.sql.compiler.SQLCompiler) else None


@functools.lru_cache(_STATEMENTS)
def _with_many(sql: str) -> sa.TextClause:
    return sa.text(sql).bindparams(sa.bindparam("many", expanding=True))


def read_tuples(connection: Connection, sql: str, values: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """Yield the rows of a query in batches; of SQLite the driver's own tuples, twice as fast as SQLAlchemy's rows."""
    if connection.dialect.name == "sqlite":
        cursor = connection.execute(sa.text(sql), values).cursor
        while rows := cursor.fetchmany(_STREAM):
            yield from rows
        return
    result = connection.execute(sa.text(sql), values, execution_options={"yield_per": _STREAM})
    for some in result.partitions(_STREAM):
        yield from some


def in_chunks(connection: Connection, sql: str, many: Iterable[Any], **same: Any) -> Iterator[sa.Row[*tuple[Any, ...]]]:
    """Yield the rows of a query that has `IN :many`: each value of `many` once, ascending, some of them at a time.

    `same`: the query's other values. Its own order holds among at most 400 of `many`."""
    query = _with_many(sql)
    wanted = sorted(set(many))
    for start in range(0, len(wanted), _CHUNK):
        yield from connection.execute(query, {**same, "many": wanted[start : start + _CHUNK]})


def hold_locks(connection: Connection, *names: str) -> None:
    """Acquire locks; waits for transactions that hold or share one of them."""
    _acquire_locks(connection, "pg_advisory_xact_lock", names)


def share_lock(connection: Connection, name: str) -> None:
    """Share a lock; waits for the transaction that holds it. Others may share it too."""
    _acquire_locks(connection, "pg_advisory_xact_lock_shared", (name,))


def _acquire_locks(connection: Connection, function: str, names: tuple[str, ...]) -> None:
    if connection.dialect.name == "sqlite":
        return
    for name in sorted(set(names)):
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.text(f"SELECT {function}(:key)"), {"key": key})


Row = Mapping[str, Any]


def run_report(connection: Connection, name: str, **parameters: object) -> Sequence[Row]:
    """Return the rows of a named query, as mappings by column. FileNotFoundError for a name without a file."""
    found = connection.execute(_load_query(name), parameters).mappings()
    return [dict(row) for row in found]


@functools.cache
def _load_query(name: str) -> sa.TextClause:
    return sa.text("\n".join(line for line in _read_lines(name) if not line.startswith("--")))


def _read_lines(name: str) -> list[str]:
    return (FOLDER / "queries" / f"{name}.sql").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True)
class FileCheck:
    """A data file whose digest was computed. It is valid while size, inode and time (ns) of the last change are the same.

    At a node the time is that of the last change of its content, and "" is the digest of a file that is not there.
    """

    location: str
    size: int
    ctime_ns: int
    inode: int
    sha256: str


def file_checks(connection: Connection, receiver: str, since: float = 0.0) -> dict[str, FileCheck]:
    """Return digests computed at `since` (seconds since 1970) or later, by location."""
    sql = "SELECT location, size, ctime_ns, inode, sha256 FROM file_check WHERE receiver = :receiver AND checked >= :since"
    found = connection.execute(sa.text(sql), {"receiver": receiver, "since": since})
    return {row.location: FileCheck(**row._mapping) for row in found}


def put_file_checks(connection: Connection, receiver: str, checks: Iterable[FileCheck], at: float) -> None:
    """Record computed digests, with the signs that identify an untouched file."""
    values = [{**asdict(check), "receiver": receiver, "checked": at} for check in checks]
    write_rows(
        connection,
        "INSERT INTO file_check (receiver, location, size, ctime_ns, inode, sha256, checked)"
        " VALUES (:receiver, :location, :size, :ctime_ns, :inode, :sha256, :checked)"
        " ON CONFLICT (receiver, location) DO UPDATE SET size = excluded.size, ctime_ns = excluded.ctime_ns,"
        " inode = excluded.inode, sha256 = excluded.sha256, checked = excluded.checked",
        values,
    )


def forget_file_checks(connection: Connection, receiver: str, locations: Iterable[str]) -> None:
    """Forget the digests of locations that were written or removed."""
    values = [{"receiver": receiver, "location": location} for location in locations]
    write_rows(connection, "DELETE FROM file_check WHERE receiver = :receiver AND location = :location", values)


def checks_at_node(receiver: str, node: str) -> str:
    """Return the name under which digests of files at a data node are recorded. No receiver has such a name."""
    return f"{receiver}/{node}"


def trim_file_checks(connection: Connection, receiver: str) -> None:
    """Forget digests of files that no reader opens any more, at the receiver and at its nodes."""
    connection.execute(
        sa.text(
            "DELETE FROM file_check WHERE (receiver = :receiver OR substr(receiver, 1, :length) = :nodes)"
            " AND location NOT IN (SELECT location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live' UNION SELECT mods_location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live')"
        ),
        {"receiver": receiver, "nodes": checks_at_node(receiver, ""), "length": len(receiver) + 1},
    )
