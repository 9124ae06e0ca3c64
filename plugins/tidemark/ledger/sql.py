"""SQL that several modules share: one statement for many rows, locks by name, named report queries.

`write_rows`, `write_tuples` and `read_tuples` make a statement once for many rows: what SQLAlchemy does anew for
each row of an `executemany` is done once, and not at all for each row that is read. A first sync writes five rows a
file; building SQLAlchemy's parameters took longer than the database did.

`hold_locks` and `share_lock` are locks by name that a transaction holds to its end, where a row to lock may not be there
yet. On PostgreSQL they are advisory locks, whose key is a digest of the name. SQLite needs none: its write transactions
come one after the other (`Ledger.write`). Who takes several takes them in one call, which locks them in the order of
their names.

`run_report` runs a named query (`sql/queries/<name>.sql`). The queries are plain files so that an auditor can read them
and run them by hand; each begins with what it answers and the parameters it takes. `FileCheck` is a data file whose
digest was computed, with the signs (size, inode, time of the last change in ns) by which an untouched file is known
again.
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

_STREAM = 2_000  # rows fetched at once


def write_rows(connection: Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute `sql`, which names its values `:name`, once for each of `rows`: mappings that have all these names. Nothing
    is done for no rows. Raises what the driver raises, as SQLAlchemy's errors."""
    if rows:
        names = tuple(sa.text(sql).compile().params)
        take = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        write_tuples(connection, sql, names, map(take, rows))


def write_tuples(
    connection: Connection, sql: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]], **same: Any
) -> None:
    """The same for rows that are tuples of the values that `names` names, and the values that are the `same` in all."""
    all_names, constant = (*names, *same), tuple(same.values())
    whole = [row + constant for row in rows] if constant else list(rows)
    if not whole:
        return
    compiled = sa.text(sql).compile(dialect=connection.dialect)
    order = compiled.positiontup if isinstance(compiled, sa.sql.compiler.SQLCompiler) else None
    if order is None:  # the driver takes names itself
        connection.exec_driver_sql(str(compiled), [dict(zip(all_names, row, strict=True)) for row in whole])
        return
    places = [all_names.index(name) for name in order]
    if len(places) == 1:
        connection.exec_driver_sql(str(compiled), [(row[places[0]],) for row in whole])
    else:
        connection.exec_driver_sql(str(compiled), list(map(itemgetter(*places), whole)))


def read_tuples(connection: Connection, sql: str, values: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The rows of a query, some at a time: of SQLite the driver's own tuples, SQLAlchemy's rows take twice the time."""
    if connection.dialect.name == "sqlite":
        cursor = connection.execute(sa.text(sql), values).cursor
        while rows := cursor.fetchmany(_STREAM):
            yield from rows
        return
    result = connection.execute(sa.text(sql), values, execution_options={"yield_per": _STREAM})
    for some in result.partitions(_STREAM):
        yield from some


def hold_locks(connection: Connection, *names: str) -> None:
    """Waits for whoever holds one of them, or shares it."""
    _acquire_locks(connection, "pg_advisory_xact_lock", names)


def share_lock(connection: Connection, name: str) -> None:
    """Waits for whoever holds it; others may share it meanwhile."""
    _acquire_locks(connection, "pg_advisory_xact_lock_shared", (name,))


def _acquire_locks(connection: Connection, function: str, names: tuple[str, ...]) -> None:
    if connection.dialect.name == "sqlite":
        return
    for name in sorted(set(names)):
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.text(f"SELECT {function}(:key)"), {"key": key})


Row = Mapping[str, Any]


def run_report(connection: Connection, name: str, **parameters: object) -> Sequence[Row]:
    """The rows of a named query, as mappings by column. FileNotFoundError for a name that has no file."""
    found = connection.execute(_load_query(name), parameters).mappings()
    return [dict(row) for row in found]


@functools.cache
def _load_query(name: str) -> sa.TextClause:
    return sa.text("\n".join(line for line in _read_lines(name) if not line.startswith("--")))


def _read_lines(name: str) -> list[str]:
    return (FOLDER / "queries" / f"{name}.sql").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True)
class FileCheck:
    """A data file whose digest was computed. The same size, inode and time (ns) of its last change: it still holds."""

    location: str
    size: int
    ctime_ns: int
    inode: int
    sha256: str


def file_checks(connection: Connection, receiver: str, since: float = 0.0) -> dict[str, FileCheck]:
    """What is remembered of digests that were computed at `since` (seconds since 1970) or later, by location."""
    sql = "SELECT location, size, ctime_ns, inode, sha256 FROM file_check WHERE receiver = :receiver AND checked >= :since"
    found = connection.execute(sa.text(sql), {"receiver": receiver, "since": since})
    return {row.location: FileCheck(**row._mapping) for row in found}


def put_file_checks(connection: Connection, receiver: str, checks: Iterable[FileCheck], at: float) -> None:
    """Digests that were computed, with the signs by which an untouched file is known again."""
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
    """These locations were written or removed: their digests say nothing any more."""
    values = [{"receiver": receiver, "location": location} for location in locations]
    write_rows(connection, "DELETE FROM file_check WHERE receiver = :receiver AND location = :location", values)
