"""Locks by name that a transaction holds to its end, where a row to lock may not be there yet.

PostgreSQL's advisory locks, its key a digest of the name. SQLite needs none: its write transactions come one after the
other (`Ledger.write`). Who takes several takes them in the order of their names, in one call.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def hold(connection: Connection, *names: str) -> None:
    """Waits for whoever holds one of them, or shares it."""
    _take(connection, "pg_advisory_xact_lock", names)


def share(connection: Connection, name: str) -> None:
    """Waits for whoever holds it; others may share it meanwhile."""
    _take(connection, "pg_advisory_xact_lock_shared", (name,))


def _take(connection: Connection, function: str, names: tuple[str, ...]) -> None:
    if connection.dialect.name == "sqlite":
        return
    for name in sorted(set(names)):
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.text(f"SELECT {function}(:key)"), {"key": key})
