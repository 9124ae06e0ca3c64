"""How often in a row each data node did not answer the watch (table `node_watch`). Times are the database's.

Written in the caller's transaction, who holds the lease of the watch. Source: seed 003 "Role", docs/decisions/0024,
sql/0020_node_watch.sql.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sql import write_rows

PAUSE_SECONDS = 2 * 3600  # between two rounds: nobody looked, so a node was not seen to be away meanwhile


@dataclass(frozen=True)
class WatchRow:
    """`misses`: rounds in a row without an answer; `since`: the first of them behind the last pause; `earlier`: `misses` a
    round before. `why`: it said nothing, or without misses: which of its groups are ahead of this ledger."""

    node: str
    misses: int = 0
    earlier: int = 0
    since: float = 0.0
    why: str = ""
    at: float = 0.0

    @property
    def ahead(self) -> str:
        """The groups at this node that are ahead of the ledger, "" for none."""
        return "" if self.misses else self.why


def read_watch(connection: Connection, receiver: str) -> dict[str, WatchRow]:
    """Return node → row, of nodes that were asked."""
    sql = "SELECT node, misses, earlier, since, why, at FROM node_watch WHERE receiver = :r ORDER BY node"
    return {
        node: WatchRow(node, int(misses), int(earlier), float(since), why, float(at))
        for node, misses, earlier, since, why, at in connection.execute(sa.text(sql), {"r": receiver})
    }


def read_ahead(connection: Connection, receiver: str) -> tuple[str, ...]:
    """Return the groups that the last round found ahead of this ledger."""
    rows = read_watch(connection, receiver).values()
    return tuple(sorted({group for row in rows if row.ahead for group in row.ahead.split(", ")}))


def note_round(
    connection: Connection, receiver: str, answers: Mapping[str, str], ahead: Mapping[str, str] = MappingProxyType({})
) -> dict[str, WatchRow]:
    """Note one round; return its nodes' rows. `answers`: node → why it said nothing, "" if it did. Others are forgotten.
    `ahead`: node → which of its groups are ahead of this ledger."""
    known, at = read_watch(connection, receiver), database_time(connection)
    rows = {}
    for node, why in answers.items():
        last = known.get(node, WatchRow(node))
        misses = last.misses + 1 if why else 0
        since = last.since if last.since and at - last.at < PAUSE_SECONDS else at
        rows[node] = WatchRow(node, misses, last.misses, since if why else 0.0, why or ahead.get(node, ""), at)
    connection.execute(sa.text("DELETE FROM node_watch WHERE receiver = :r"), {"r": receiver})
    sql = (
        "INSERT INTO node_watch (receiver, node, misses, earlier, since, why, at)"
        " VALUES (:r, :node, :misses, :earlier, :since, :why, :at)"
    )
    write_rows(connection, sql, [{"r": receiver, **vars(row)} for row in rows.values()])
    return rows
