"""The copies at each node, and the last use of files in the receiver's cache.

`node_copy`: a row is added after the bytes are proved at the node, and deleted after they are removed. `cache_use`: the
longest unused file is evicted first. Every function works in the caller's transaction and writes rows in one order, so that
two writers do not deadlock. Source: sql/0008_cluster.sql, docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import in_chunks, write_rows


@dataclass(frozen=True)
class CopyRow:
    """A file at a node. `location`: as in the catalog, the same at every node; `sha256`: proved on arrival."""

    receiver: str
    node: str
    location: str
    slot: int
    sha256: str
    size: int  # bytes
    state: str = "held"  # held | going
    at: float = 0.0


_SELECT = "SELECT receiver, node, location, slot, sha256, size, state, at FROM node_copy WHERE receiver = :r"


def put_copies(connection: Connection, rows: Iterable[CopyRow]) -> None:
    """Record copies that are proved at nodes. One that was going is held again."""
    values = [asdict(row) for row in sorted(rows, key=lambda row: (row.node, row.location))]
    sql = (
        "INSERT INTO node_copy (receiver, node, location, slot, sha256, size, state, at) VALUES"
        " (:receiver, :node, :location, :slot, :sha256, :size, :state, :at) ON CONFLICT (receiver, node, location)"
        " DO UPDATE SET slot = excluded.slot, sha256 = excluded.sha256, size = excluded.size, state = excluded.state,"
        " at = excluded.at"
    )
    write_rows(connection, sql, values)


def copies_of(connection: Connection, receiver: str, locations: Iterable[str]) -> dict[str, list[CopyRow]]:
    """Return location → its copies (held or going), by node."""
    found: dict[str, list[CopyRow]] = {}
    for row in in_chunks(connection, f"{_SELECT} AND location IN :many ORDER BY node", locations, r=receiver):
        found.setdefault(row[2], []).append(CopyRow(*row))
    return found


def copies_at(connection: Connection, receiver: str, node: str, slots: Iterable[int] | None = None) -> list[CopyRow]:
    """Return a node's copies by location, of these slots or of all."""
    if slots is None:
        query = sa.text(f"{_SELECT} AND node = :n ORDER BY location")
        return [CopyRow(*row) for row in connection.execute(query, {"r": receiver, "n": node})]
    found = in_chunks(connection, f"{_SELECT} AND node = :n AND slot IN :many", slots, r=receiver, n=node)
    return sorted((CopyRow(*row) for row in found), key=lambda row: row.location)


def held_somewhere(connection: Connection, receiver: str) -> frozenset[str]:
    """Return locations of which some node holds a copy; none without a cluster."""
    sql = "SELECT DISTINCT location FROM node_copy WHERE receiver = :r AND state = 'held'"
    return frozenset(row[0] for row in connection.execute(sa.text(sql), {"r": receiver}))


def copies_to_remove(connection: Connection, receiver: str) -> list[CopyRow]:
    """Return every copy that is to be removed, by node and location."""
    query = sa.text(f"{_SELECT} AND state = 'going' ORDER BY node, location")
    return [CopyRow(*row) for row in connection.execute(query, {"r": receiver})]


def mark_to_remove(connection: Connection, receiver: str, node: str, locations: Iterable[str], at: float) -> None:
    """Mark copies as `going` before their bytes are removed: they no more count. The grace runs from the first `at`."""
    values = [{"r": receiver, "n": node, "l": location, "at": at} for location in sorted(locations)]
    sql = (
        "UPDATE node_copy SET state = 'going', at = :at WHERE receiver = :r AND node = :n AND location = :l"
        " AND state = 'held'"
    )
    write_rows(connection, sql, values)


def begin_grace_anew(connection: Connection, receiver: str, at: float) -> None:
    """Set the time of copies given up later than `at` to `at`: their grace restarts."""
    sql = "UPDATE node_copy SET at = :at WHERE receiver = :r AND state = 'going' AND at > :at"
    connection.execute(sa.text(sql), {"r": receiver, "at": at})


def forget_copies(connection: Connection, receiver: str, node: str, locations: Iterable[str]) -> None:
    """Delete the rows of copies whose bytes are removed."""
    values = [{"r": receiver, "n": node, "l": location} for location in sorted(locations)]
    write_rows(connection, "DELETE FROM node_copy WHERE receiver = :r AND node = :n AND location = :l", values)


def bytes_by_slot(connection: Connection, receiver: str) -> dict[int, int]:
    """Return slot → bytes of one copy of everything in it."""
    sql = (
        "SELECT slot, SUM(size) FROM (SELECT DISTINCT location, slot, size FROM node_copy WHERE receiver = :r"
        " AND state = 'held') held GROUP BY slot"
    )
    return {int(slot): int(size) for slot, size in connection.execute(sa.text(sql), {"r": receiver})}


def bytes_by_node(connection: Connection, receiver: str) -> dict[str, int]:
    """Return node → bytes it holds."""
    sql = "SELECT node, SUM(size) FROM node_copy WHERE receiver = :r AND state = 'held' GROUP BY node"
    return {node: int(size) for node, size in connection.execute(sa.text(sql), {"r": receiver})}


def last_uses(connection: Connection, receiver: str, locations: Collection[str] | None = None) -> dict[str, float]:
    """Return location → last use, seconds since 1970; of these, or of all."""
    sql = "SELECT location, used FROM cache_use WHERE receiver = :r"
    if locations is None:
        return {row[0]: float(row[1]) for row in connection.execute(sa.text(sql), {"r": receiver})}
    found = in_chunks(connection, f"{sql} AND location IN :many", locations, r=receiver)
    return {row[0]: float(row[1]) for row in found}


def put_uses(connection: Connection, receiver: str, locations: Iterable[str], at: float) -> None:
    """Record uses at `at`. A later use stays."""
    values = [{"r": receiver, "l": location, "at": at} for location in sorted(set(locations))]
    sql = (
        "INSERT INTO cache_use (receiver, location, used) VALUES (:r, :l, :at) ON CONFLICT (receiver, location)"
        " DO UPDATE SET used = excluded.used WHERE cache_use.used < excluded.used"
    )
    write_rows(connection, sql, values)


def forget_uses(connection: Connection, receiver: str, locations: Iterable[str]) -> None:
    """Delete the uses of files that are not in the cache any more."""
    values = [{"r": receiver, "l": location} for location in locations]
    write_rows(connection, "DELETE FROM cache_use WHERE receiver = :r AND location = :l", values)
