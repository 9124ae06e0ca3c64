"""The link's quarantine: files whose bytes do not arrive unchanged, and the operator's decisions on them.

A disk that flips bits, at either end, would otherwise cost the same tries in every run. Such a file is left out of the
link's runs until its content changes or the operator releases it (`decide_held`). The record names the block that
differed. The link's next run sends a released file. A dropped file is not sent while its content stays the same.
A decision is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError, TidemarkError
from tidemark.ledger import journal
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.holds import HELD, Held
from tidemark.settings.model import ReceiverSettings
from tidemark.sync.select.diff import Change, Changes
from tidemark.sync.session import Work

QUARANTINED = "in quarantine as "
"""How the reason of a file begins that the link keeps back."""


def hold_corrupt(connection: Connection, work: Work, errors: Mapping[str, TidemarkError]) -> Mapping[str, str]:
    """Put the files with a CorruptionError into quarantine. Returns {path: reason with the quarantine ID}."""
    paths = [path for path, error in errors.items() if isinstance(error, CorruptionError)]
    told = {}
    for item in run_rows.items_at(connection, work.run_id, paths):
        reason = errors[item.path].message
        row = Held(0, work.link.name, item.path, item.size, item.mtime, item.mods_size, work.run_id, 0.0, reason)
        name = hold_rows.quarantine_file(connection, row)
        told[item.path] = f"{QUARANTINED}{name}: {reason}"
        journal.record_event(
            connection, "file.distrusted", link=work.link.name, run_id=work.run_id, path=item.path, id=name, reason=reason
        )
    return told


def kept_back(connection: Connection, link: str, found: Changes) -> Changes:
    """Return the changes without files in quarantine whose content is unchanged; these are added to `skipped`."""
    held = {one.path: one for one in hold_rows.held_or_dropped(connection, link)}
    if not held:
        return found
    back = [c for c in found.changed if c.file.entry.path in held and _is_same_content(c, held[c.file.entry.path])]
    paths = {c.file.entry.path for c in back}
    reasons = ((path, f"{QUARANTINED}{held[path].name}: {held[path].reason}") for path in sorted(paths))
    changed = tuple(c for c in found.changed if c.file.entry.path not in paths)
    return replace(found, changed=changed, skipped=(*found.skipped, *reasons))


def _is_same_content(change: Change, held: Held) -> bool:
    file = change.file
    return (file.entry.size, file.entry.mtime, file.mods.size if file.mods else 0) == (held.size, held.mtime, held.mods_size)


def is_quarantine_id(held_id: str) -> bool:
    """Whether an ID of `quarantine list` belongs to a link: `s` and a number."""
    return held_id[:1] == "s" and held_id[1:].isdecimal() and len(held_id) < 20


def list_held(app: App, connection: Connection, receiver: ReceiverSettings) -> list[dict[str, Any]]:
    """List the quarantined files of the links to this receiver, as `quarantine list` shows them."""
    return [_held_as_json(app, row) for row in hold_rows.held_files(connection) if _goes_to(app, row, receiver)]


def decide_held(app: App, receiver: ReceiverSettings, held_id: str, state: str) -> dict[str, Any]:
    """Record the operator's decision on a quarantined file: `released` or `dropped` (see above). The same decision again
    changes nothing. Raises NotFoundError if no link to this receiver holds the file, or if the other decision was made."""
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
            hold_rows.decide_held(connection, row.quarantine_id, state)
            verb = "quarantine release" if state == "released" else "quarantine drop"
            journal.record_decision(connection, verb, row.path, id=row.name, link=row.link, reason=row.reason)
    told = {"id": row.name, "path": row.path, "outcome": state}
    return told | ({"next": f"./tidemark sync {row.link}"} if state == "released" else {})


def _goes_to(app: App, row: Held, receiver: ReceiverSettings) -> bool:
    link = app.settings.links.get(row.link)
    return link is not None and link.receiver == receiver.name


def _held_as_json(app: App, row: Held) -> dict[str, Any]:
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
