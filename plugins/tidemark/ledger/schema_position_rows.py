"""How far each schema log of a link was sent.

Every function works in the caller's transaction. Tables: sql/0001_link_side.sql.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import now
from tidemark.ledger.many_rows import write_rows


class SchemaPosition(NamedTuple):
    """How far a schema log was sent: `position` bytes of its `epoch`, whose digest is `prefix_sha256`."""

    path: str
    position: int
    mtime: int
    prefix_sha256: str
    epoch: int


def schema_positions(connection: Connection, link: str) -> Mapping[str, SchemaPosition]:
    """{path of the log: how far it was sent}."""
    sql = "SELECT path, position, mtime, prefix_sha256, epoch FROM schema_position WHERE link = :link"
    return {row[0]: SchemaPosition(*row) for row in connection.execute(sa.text(sql), {"link": link})}


def put_schema_positions(connection: Connection, link: str, positions: Iterable[SchemaPosition]) -> None:
    """The logs were sent so far; only forward within an epoch."""
    at = now(connection)
    rows = [{"link": link, "at": at, **p._asdict()} for p in positions]
    write_rows(
        connection,
        "INSERT INTO schema_position (link, path, position, mtime, prefix_sha256, epoch, updated)"
        " VALUES (:link, :path, :position, :mtime, :prefix_sha256, :epoch, :at) ON CONFLICT (link, path) DO UPDATE"
        " SET position = excluded.position, mtime = excluded.mtime, prefix_sha256 = excluded.prefix_sha256,"
        " epoch = excluded.epoch, updated = excluded.updated",
        rows,
    )


def forget_schema_prefix(connection: Connection, link: str, path: str) -> None:
    """The receiver lacks bytes of this log: it is sent again from its start, under the next epoch."""
    sql = "UPDATE schema_position SET prefix_sha256 = '', mtime = -1 WHERE link = :link AND path = :path"
    connection.execute(sa.text(sql), {"link": link, "path": path})
