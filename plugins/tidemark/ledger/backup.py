"""Copy a ledger while it is in use, and restore a ledger from a copy.

A backup is a ledger on SQLite, also of a PostgreSQL ledger. It can be read, used as `[ledger] url`, or copied into an empty
database of either kind. SQLite is copied by its own backup API, PostgreSQL row by row in one repeatable read, so each copy
is the state of one moment.

But for one thing: a copy says of no group that a commit is at work. The commit may have been acknowledged since, and a
ledger that is restored from the copy would take it back. So it finds the group's nodes ahead of it, and writes nothing.
Nor does it say that a group has its master: the first record gives an epoch, which is `_FURTHER` above any that the ledger
that was replaced gives meanwhile. So a process of that one appends nothing more.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import DiskFullError, PermanentError, limits_named
from tidemark.ledger.database import Ledger, close_to_others, make_folder
from tidemark.ledger.migrations import migrate_ledger

_ROWS = 5_000  # copied at a time
_FURTHER = 1_000_000  # epochs: more than a ledger gives while a copy of it is kept
_OWN = ("tidemark_schema", "sqlite_sequence")  # each database keeps its own
_PASSING = ("lease", "line_place", "link_attempt")  # rows of running or dead processes: they do not make a ledger used


def back_up(ledger: Ledger, target: Path) -> int:
    """Write a copy of `ledger` to the file `target`; return its bytes. The file appears whole or not at all."""
    make_folder(target.parent)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with limits_named(target):
            close_to_others(part)
            _copy_into(ledger, part)
            _publish_part(part, target)
    except sqlite3.Error as broken:  # sqlite3's own, of the copy: the ledger was read before this wrote
        _remove_part(part)
        raise DiskFullError(
            f"{target} cannot be written: {broken}", hint="free space there, then run again", subject=str(target)
        ) from broken
    except BaseException:
        _remove_part(part)
        raise
    return target.stat().st_size


def _remove_part(part: Path) -> None:
    for end in ("", "-journal", "-wal", "-shm"):
        part.with_name(part.name + end).unlink(missing_ok=True)


def _copy_into(ledger: Ledger, part: Path) -> None:
    if ledger.is_sqlite:
        with closing(ledger.engine.raw_connection()) as source, closing(sqlite3.connect(part)) as copy:
            assert source.driver_connection is not None
            source.driver_connection.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file without a WAL
    else:
        copied = Ledger(f"sqlite:///{part}")
        migrate_ledger(copied)
        copy_rows(ledger, copied)
        _single_file(copied)
    with closing(sqlite3.connect(part)) as copy, copy:
        if copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'group_log'").fetchone():  # an old ledger has none
            copy.execute(f"UPDATE group_log SET operation = '', active = 0, epoch = epoch + {_FURTHER} WHERE epoch > 0")


def copy_rows(source: Ledger, target: Ledger, replace: bool = False) -> int:
    """Copy every row into a migrated ledger in one transaction; return the number of rows.

    Rows of the target are replaced. Without `replace`, a target with rows raises PermanentError.
    """
    copied = 0
    with _one_moment(source) as reading, target.write() as writing:
        tables = _list_tables(writing)
        used = _nonempty_tables(writing, tables)
        if used and not replace:
            raise PermanentError(
                f"the ledger is not empty: {', '.join(used[:3])} have rows",
                hint="name an empty database in [ledger] url",
            )
        for name in (*used, *_PASSING):
            writing.execute(sa.delete(sa.table(name)))
        for table in tables:
            for rows in _iter_batches(reading, table):
                writing.execute(table.insert(), rows)
                copied += len(rows)
        if not target.is_sqlite:
            _set_counters(writing)
    return copied


def used_tables(ledger: Ledger) -> list[str]:
    """Return the tables of a migrated ledger that have rows, without those of leases."""
    with ledger.read() as connection:
        return _nonempty_tables(connection, _list_tables(connection))


def _nonempty_tables(connection: Connection, tables: Sequence[sa.TableClause]) -> list[str]:
    looked_at = (t for t in tables if t.name not in _PASSING)
    return [t.name for t in looked_at if connection.execute(sa.select(sa.literal(1)).select_from(t).limit(1)).first()]


def _list_tables(connection: Connection) -> Sequence[sa.TableClause]:
    """The tables with their columns' types. No table of a ledger refers to another, so any order serves."""
    found = sa.inspect(connection).get_multi_columns()
    names = {name: columns for (_, name), columns in sorted(found.items()) if name not in _OWN}
    return [sa.table(name, *(sa.column(c["name"], c["type"]) for c in columns)) for name, columns in names.items()]


def _iter_batches(connection: Connection, table: sa.TableClause) -> Iterator[list[dict[str, object]]]:
    columns: list[sa.ColumnClause[object]] = [sa.column(c.name) for c in table.columns]
    found = connection.execute(sa.select(*columns).select_from(sa.table(table.name)))
    for rows in found.mappings().partitions(_ROWS):
        yield [dict(row) for row in rows]


def _set_counters(connection: Connection) -> None:
    """Let PostgreSQL's growing keys continue after the copied ones."""
    for (_, name), columns in sa.inspect(connection).get_multi_columns().items():
        for column in (c["name"] for c in columns if c.get("identity")):
            connection.execute(
                sa.text(
                    f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'),"
                    f" COALESCE(MAX({column}), 0) + 1, false) FROM {name}"
                )
            )


@contextmanager
def _one_moment(ledger: Ledger) -> Iterator[Connection]:
    """Open a connection whose reads all see one state of the ledger (on SQLite any read transaction does)."""
    engine = ledger.engine if ledger.is_sqlite else ledger.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        yield connection


def _single_file(ledger: Ledger) -> None:
    ledger.close()
    assert ledger.engine.url.database is not None
    with closing(sqlite3.connect(ledger.engine.url.database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _publish_part(part: Path, target: Path) -> None:
    # CRASH WINDOW: a `.part` of a backup: the next backup of that name removes it.
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
