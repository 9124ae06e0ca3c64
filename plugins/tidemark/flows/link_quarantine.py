"""The operator's decisions on files that a link holds because their bytes did not arrive as they are (`sync.distrust`)."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError
from tidemark.ledger import journal
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender.holds import HELD, Held
from tidemark.settings.model import ReceiverSettings


def is_one(held_id: str) -> bool:
    """Whether an ID of `quarantine list` is a link's: `s` and a number."""
    return held_id[:1] == "s" and held_id[1:].isdecimal() and len(held_id) < 20


def listed(app: App, connection: Connection, receiver: ReceiverSettings) -> list[dict[str, Any]]:
    """What links to this receiver hold, as `quarantine list` shows it."""
    return [_json(app, row) for row in hold_rows.held(connection) if _goes_to(app, row, receiver)]


def decide(app: App, receiver: ReceiverSettings, held_id: str, state: str) -> dict[str, Any]:
    """`released`: the link's next run sends it; `dropped`: none does, as long as its content is this one.

    A decision that was made is not made again. Raises NotFoundError where no link to this receiver holds it.
    """
    with app.ledger.write() as connection:
        row = hold_rows.held_as(connection, int(held_id[1:]))
        if row is None or row.state not in (HELD, state) or not _goes_to(app, row, receiver):
            other = f": it is {row.state}" if row is not None and row.state != HELD else ""
            raise NotFoundError(
                f"no link to {receiver.name} holds anything as {held_id}{other}",
                hint="./tidemark quarantine list",
                subject=held_id,
            )
        if row.state == HELD:
            hold_rows.decide(connection, row.quarantine_id, state)
            verb = "quarantine release" if state == "released" else "quarantine drop"
            journal.record_decision(connection, verb, row.path, id=row.name, link=row.link, reason=row.reason)
    told = {"id": row.name, "path": row.path, "outcome": state}
    return told | ({"next": f"./tidemark sync {row.link}"} if state == "released" else {})


def _goes_to(app: App, row: Held, receiver: ReceiverSettings) -> bool:
    link = app.settings.links.get(row.link)
    return link is not None and link.receiver == receiver.name


def _json(app: App, row: Held) -> dict[str, Any]:
    return {
        "id": row.name,
        "site": app.settings.links[row.link].site,
        "path": row.path,
        "generation": 0,
        "landing": row.run_id,
        "reason": f"link {row.link}: {row.reason}",
        "kind": CorruptionError.kind,
        "location": "",
        "at": row.at,
    }
