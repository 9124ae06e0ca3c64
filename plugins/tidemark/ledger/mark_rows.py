"""Which receiver's folder belongs to this ledger, and how many changes of the receiver the ledger holds."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection


@dataclass(frozen=True)
class Mark:
    """`mark`: UUID of the pair of ledger and folder. `changes`: how many changes of the receiver are recorded."""

    mark: str
    changes: int


def mark_of(connection: Connection, receiver: str) -> Mark | None:
    """None where nothing was ever recorded under it."""
    sql = sa.text("SELECT mark, changes FROM ledger_mark WHERE receiver = :receiver")
    row = connection.execute(sql, {"receiver": receiver}).first()
    return None if row is None else Mark(row[0], int(row[1]))


def count_change(connection: Connection, receiver: str) -> None:
    """Part of the transaction that makes the change."""
    sql = (
        "INSERT INTO ledger_mark (receiver, mark, changes) VALUES (:receiver, :mark, 1)"
        " ON CONFLICT (receiver) DO UPDATE SET changes = ledger_mark.changes + 1"
    )
    connection.execute(sa.text(sql), {"receiver": receiver, "mark": str(uuid.uuid4())})


def put_mark(connection: Connection, receiver: str, mark: Mark) -> None:
    """Of a ledger that is made anew for a folder that has a mark."""
    sql = (
        "INSERT INTO ledger_mark (receiver, mark, changes) VALUES (:receiver, :mark, :changes)"
        " ON CONFLICT (receiver) DO UPDATE SET mark = excluded.mark, changes = excluded.changes"
    )
    connection.execute(sa.text(sql), {"receiver": receiver, "mark": mark.mark, "changes": mark.changes})


def knows(connection: Connection, receiver: str) -> bool:
    """Whether the ledger ever recorded a landing or a file of the receiver."""
    tables = ("catalog_file", "landing")
    sql = (f"SELECT 1 FROM {table} WHERE receiver = :receiver LIMIT 1" for table in tables)
    return any(connection.execute(sa.text(one), {"receiver": receiver}).first() for one in sql)
