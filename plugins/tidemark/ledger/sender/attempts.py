"""The newest try of an orchestrator's task of a link: `status` shows it between two tries, when no process holds a lease.

A try is recorded before its step begins and when it ends. A killed worker leaves it `working`, and its identity shows that
it is dead. Nothing is decided by it. Table: sql/0011_link_attempt.sql.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.processes import Identity

WORKING, DONE, RETRYING, FAILED = "working", "done", "retrying", "failed"


@dataclass(frozen=True)
class Try:
    """A try of a task. `next_try`: seconds since 1970, None if none follows."""

    task: str
    state: str
    try_number: int
    tries: int
    next_try: float | None = None
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class AttemptRow:
    """A recorded try. `noted`: when, seconds since 1970; `worker`: the process that recorded it."""

    attempt: Try
    worker: Identity
    noted: float


_TRY = tuple(f.name for f in fields(Try))
_WORKER = tuple(f.name for f in fields(Identity))


def put_attempt(connection: Connection, link: str, attempt: Try, worker: Identity) -> None:
    """Replace the newest try of the link."""
    values = {"link": link, **asdict(attempt), **asdict(worker), "noted": database_time(connection)}
    connection.execute(
        sa.text(
            f"INSERT INTO link_attempt ({', '.join(values)}) VALUES ({', '.join(':' + name for name in values)})"
            f" ON CONFLICT (link) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in values if n != 'link')}"
        ),
        values,
    )


def forget_attempt(connection: Connection, link: str) -> None:
    """Delete the link's try: a command continues its run instead of an orchestrator's task."""
    connection.execute(sa.text("DELETE FROM link_attempt WHERE link = :link"), {"link": link})


def newest_attempts(connection: Connection) -> dict[str, AttemptRow]:
    """Return {link: its newest try}."""
    found = {}
    for row in connection.execute(sa.text("SELECT * FROM link_attempt")).mappings():
        attempt = Try(**{name: row[name] for name in _TRY})
        found[row["link"]] = AttemptRow(attempt, Identity(**{name: row[name] for name in _WORKER}), row["noted"])
    return found
