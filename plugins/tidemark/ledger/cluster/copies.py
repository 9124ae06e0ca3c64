"""What each node holds, and when files of the receiver's cache were last asked for.

`node_copy`: a row comes after the bytes are proved there, and goes after they are gone. `cache_use`: the longest
unused goes first. Every function works in the caller's transaction, and takes rows in one order, so that two who
write at once wait for each other one way round. Source: sql/0008_cluster.sql, docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import write_rows

T = TypeVar("T")
_CHUNK = 400  # values in one IN list


@dataclass(frozen=True)
class CopyRow:
    """A file at a node. `location`: as in the catalog, the same at every node; `sha256`: proved when it came."""

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
    """They are there, proved. One that was going is held again."""
    values = [asdict(row) for row in sorted(rows, key=lambda row: (row.node, row.location))]
    sql = (
        "INSERT INTO node_copy (receiver, node, location, slot, sha256, size, state, at) VALUES"
        " (:receiver, :node, :location, :slot, :sha256, :size, :state, :at) ON CONFLICT (receiver, node, location)"
        " DO UPDATE SET slot = excluded.slot, sha256 = excluded.sha256, size = excluded.size, state = excluded.state,"
        " at = excluded.at"
    )
    write_rows(connection, sql, values)


def copies_of(connection: Connection, receiver: str, locations: Iterable[str]) -> dict[str, list[CopyRow]]:
    """Location → its copies (held or going), by node."""
    query = sa.text(f"{_SELECT} AND location IN :many ORDER BY node").bindparams(sa.bindparam("many", expanding=True))
    found: dict[str, list[CopyRow]] = {}
    for many in _split_chunks(sorted(set(locations))):
        for row in connection.execute(query, {"r": receiver, "many": many}):
            found.setdefault(row[2], []).append(CopyRow(*row))
    return found


def copies_at(connection: Connection, receiver: str, node: str, slots: Iterable[int] | None = None) -> list[CopyRow]:
    """What a node has, by location; of these slots, or of all."""
    place = {"r": receiver, "n": node}
    if slots is None:
        query = sa.text(f"{_SELECT} AND node = :n ORDER BY location")
        return [CopyRow(*row) for row in connection.execute(query, place)]
    query = sa.text(f"{_SELECT} AND node = :n AND slot IN :many").bindparams(sa.bindparam("many", expanding=True))
    found = [
        CopyRow(*row)
        for many in _split_chunks(sorted(set(slots)))
        for row in connection.execute(query, {**place, "many": many})
    ]
    return sorted(found, key=lambda row: row.location)


def held_somewhere(connection: Connection, receiver: str) -> frozenset[str]:
    """Locations of which some node has a copy; none without a cluster."""
    sql = "SELECT DISTINCT location FROM node_copy WHERE receiver = :r AND state = 'held'"
    return frozenset(row[0] for row in connection.execute(sa.text(sql), {"r": receiver}))


def copies_to_remove(connection: Connection, receiver: str) -> list[CopyRow]:
    """Every copy that is to be removed, by node and location."""
    query = sa.text(f"{_SELECT} AND state = 'going' ORDER BY node, location")
    return [CopyRow(*row) for row in connection.execute(query, {"r": receiver})]


def mark_to_remove(connection: Connection, receiver: str, node: str, locations: Iterable[str], at: float) -> None:
    """Before their bytes are removed: nobody counts on them any more. `at`: of the first time, the grace runs from it."""
    values = [{"r": receiver, "n": node, "l": location, "at": at} for location in sorted(locations)]
    sql = (
        "UPDATE node_copy SET state = 'going', at = :at WHERE receiver = :r AND node = :n AND location = :l"
        " AND state = 'held'"
    )
    write_rows(connection, sql, values)


def begin_grace_anew(connection: Connection, receiver: str, at: float) -> None:
    """Of copies that were given up later than `at`, now."""
    sql = "UPDATE node_copy SET at = :at WHERE receiver = :r AND state = 'going' AND at > :at"
    connection.execute(sa.text(sql), {"r": receiver, "at": at})


def forget_copies(connection: Connection, receiver: str, node: str, locations: Iterable[str]) -> None:
    """Their bytes are gone."""
    values = [{"r": receiver, "n": node, "l": location} for location in sorted(locations)]
    write_rows(connection, "DELETE FROM node_copy WHERE receiver = :r AND node = :n AND location = :l", values)


def bytes_by_slot(connection: Connection, receiver: str) -> dict[int, int]:
    """Slot → bytes of one copy of everything in it."""
    sql = (
        "SELECT slot, SUM(size) FROM (SELECT DISTINCT location, slot, size FROM node_copy WHERE receiver = :r"
        " AND state = 'held') held GROUP BY slot"
    )
    return {int(slot): int(size) for slot, size in connection.execute(sa.text(sql), {"r": receiver})}


def bytes_by_node(connection: Connection, receiver: str) -> dict[str, int]:
    """Node → bytes it holds."""
    sql = "SELECT node, SUM(size) FROM node_copy WHERE receiver = :r AND state = 'held' GROUP BY node"
    return {node: int(size) for node, size in connection.execute(sa.text(sql), {"r": receiver})}


def _split_chunks(values: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), _CHUNK):
        yield list(values[start : start + _CHUNK])


def last_uses(connection: Connection, receiver: str, locations: Collection[str] | None = None) -> dict[str, float]:
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
