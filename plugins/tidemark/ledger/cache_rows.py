"""When files of a receiver's cache were last asked for (`cache_use`): the longest unused goes first.

Every function works in the caller's transaction. Source: sql/0008_cluster.sql, docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.many_rows import write_rows

_CHUNK = 400  # values in one IN list


def uses(connection: Connection, receiver: str, locations: Collection[str] | None = None) -> dict[str, float]:
    """Location → when it was last asked for, seconds since 1970; of these, or of all."""
    sql = "SELECT location, used FROM cache_use WHERE receiver = :r"
    if locations is None:
        return {row[0]: float(row[1]) for row in connection.execute(sa.text(sql), {"r": receiver})}
    query = sa.text(f"{sql} AND location IN :many").bindparams(sa.bindparam("many", expanding=True))
    wanted = sorted(set(locations))
    found: dict[str, float] = {}
    for start in range(0, len(wanted), _CHUNK):
        values = {"r": receiver, "many": wanted[start : start + _CHUNK]}
        found |= {row[0]: float(row[1]) for row in connection.execute(query, values)}
    return found


def put_uses(connection: Connection, receiver: str, locations: Iterable[str], at: float) -> None:
    """They were asked for. Never goes back."""
    values = [{"r": receiver, "l": location, "at": at} for location in sorted(set(locations))]
    sql = (
        "INSERT INTO cache_use (receiver, location, used) VALUES (:r, :l, :at) ON CONFLICT (receiver, location)"
        " DO UPDATE SET used = excluded.used WHERE cache_use.used < excluded.used"
    )
    write_rows(connection, sql, values)


def forget_uses(connection: Connection, receiver: str, locations: Iterable[str]) -> None:
    """The cache does not have them any more."""
    values = [{"r": receiver, "l": location} for location in locations]
    write_rows(connection, "DELETE FROM cache_use WHERE receiver = :r AND location = :l", values)
