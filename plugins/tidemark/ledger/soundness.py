"""Check whether an SQLite ledger is damaged, after an error that nothing in the code explains.

A flipped bit in a page may look like a missing table, a number that is text, or JSON that ends early, and so like a fault of
ours. Three checks find it: SQLite's own, the schema against the migrations, and every JSON column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tidemark.errors import CorruptionError, TidemarkError
from tidemark.ledger.database import Ledger, damaged_error
from tidemark.ledger.migrations import SERIAL, column_comments, known_migrations, split_statements

_SCHEMA = (
    "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND name <> 'tidemark_schema'"
)


@contextmanager
def explain_surprises(ledger: Ledger) -> Iterator[None]:
    """Turn a foreign error in the block into the ledger's damage, if the ledger is damaged."""
    try:
        yield
    except TidemarkError:
        raise
    except Exception as surprise:
        if damage := damage_of(ledger):
            raise damage from surprise
        raise


def damage_of(ledger: Ledger) -> CorruptionError | None:
    """Return the error of a damaged ledger file; None if it is sound, or no SQLite file."""
    place = ledger.engine.url.database
    if not ledger.is_sqlite or not place or not Path(place).exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=5)) as connection:
            connection.text_factory = bytes  # values may be damaged text
            trouble = next(_find_troubles(connection), "")
    except sqlite3.OperationalError:  # it cannot be asked now
        return None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as broken:
        trouble = str(broken)
    return damaged_error(ledger.url, trouble) if trouble else None


def _find_troubles(connection: sqlite3.Connection) -> Iterator[str]:
    yield from (
        told.decode(errors="replace") for (told,) in connection.execute("PRAGMA integrity_check(1)") if told != b"ok"
    )
    found, meant = dict(connection.execute(_SCHEMA)), _expected_schema()
    yield from (
        f"its schema has another {name.decode()} than its migrations made"
        for name in meant
        if found.get(name) != meant[name]
    )
    for migration in known_migrations():
        for table, column, comment in column_comments(migration.sql):
            if "JSON" in comment or column == "receipt":
                broken = f"SELECT rowid FROM {table} WHERE {column} <> '' AND NOT json_valid({column}) LIMIT 1"
                rows = connection.execute(broken)
                yield from (f"{column} of row {row} of {table} is no JSON" for (row,) in rows)


def _expected_schema() -> dict[bytes, bytes]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = bytes
        for migration in known_migrations():
            for statement in split_statements(migration.sql):
                connection.execute(statement.replace("{serial}", SERIAL["sqlite"]))
        return dict(connection.execute(_SCHEMA))
