"""Rows of `line_place`: who sends under a receiver's cap. Every function works in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.leases import expired
from tidemark.ledger.many_rows import write_rows
from tidemark.ledger.processes import Identity

TTL_SECONDS = 20.0
"""A row that nobody renewed for so long is nobody's."""
_COLUMNS = ("place", "receiver", "holder", "host", "boot_id", "pid", "process_start", "wish", "rate", "expires")


@dataclass(frozen=True)
class PlaceRow:
    """`wish`, `rate`: bytes a second. `expires`: by the lease clock."""

    place: str
    receiver: str
    holder: str
    identity: Identity
    wish: float
    rate: float
    expires: float


def places(connection: Connection, receiver: str) -> list[PlaceRow]:
    """All that stand there, of the dead too."""
    found = connection.execute(
        sa.text(f"SELECT {', '.join(_COLUMNS)} FROM line_place WHERE receiver = :receiver ORDER BY holder, place"),
        {"receiver": receiver},
    )
    return [
        PlaceRow(r.place, r.receiver, r.holder, Identity(r.host, r.boot_id, int(r.pid), r.process_start), *r[7:])
        for r in found
    ]


def working(
    rows: Sequence[PlaceRow], clock: float, host: str, alive: Callable[[Identity], bool]
) -> tuple[list[PlaceRow], list[PlaceRow]]:
    """Those of processes at work, and the others: expired, or of a process of this `host` that is known dead."""
    there = [
        row
        for row in rows
        if not expired(row.expires, clock, TTL_SECONDS) and (row.identity.host != host or alive(row.identity))
    ]
    return there, [row for row in rows if row not in there]


def put(connection: Connection, row: PlaceRow) -> None:
    who = row.identity
    values = (row.place, row.receiver, row.holder, who.host, who.boot_id, who.pid, who.process_start)
    connection.execute(
        sa.text(
            f"INSERT INTO line_place ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"
            " ON CONFLICT (place) DO UPDATE SET wish = excluded.wish, rate = excluded.rate, expires = excluded.expires"
        ),
        dict(zip(_COLUMNS, (*values, row.wish, row.rate, row.expires), strict=True)),
    )


def forget(connection: Connection, rows: Sequence[PlaceRow]) -> None:
    """They take nothing any more."""
    write_rows(connection, "DELETE FROM line_place WHERE place = :place", [{"place": row.place} for row in rows])
