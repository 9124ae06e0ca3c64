"""List and give up kept files (vanished at their site) whose bytes are damaged: no copy is left to repair them from.

`quarantine list` calls them `k` and a number. Readers refuse such a file until it is whole again or given up. A settled
merged file is one of them where each of its sources vanished or came again; its set is given up as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError, PermanentError
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import settled as settled_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import GIVEN_UP, DropRow
from tidemark.ledger.sql import FileCheck, file_checks
from tidemark.receiver.load.removal.replaced import judge_roots
from tidemark.receiver.load.removal.settled import SourceFate
from tidemark.receiver.proved_files import changed_files
from tidemark.settings.model import ReceiverSettings

_COMING = (SourceFate.HERE, SourceFate.TOLD, SourceFate.COVERING)
_ELSEWHERE = (SourceFate.AGAIN, SourceFate.COVERED)  # their points are read from other files


def kept_id(file_id: int) -> str:
    return f"k{file_id}"


def is_damage_id(held_id: str) -> bool:
    """Whether an ID of `quarantine list` is that of a kept file."""
    return held_id[:1] == "k" and held_id[1:].isdecimal() and len(held_id) < 20


def list_damage(app: App, connection: Connection, receiver: ReceiverSettings, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the damaged kept files as rows of `quarantine list`. Digests files that changed since the last digest."""
    known = file_checks(connection, receiver.name)
    kept = catalog_rows.visible_files(connection, receiver.name, kept_only=True)
    rows = [row for row in kept if row.site_id in names]
    wrong = wrong_bytes(app, connection, receiver, rows, known)
    drops = {row.file_id: drops_of(connection, row) for row in rows if row.file_id in wrong}
    return [
        {
            "id": kept_id(row.file_id),
            "site": names[row.site_id],
            "path": row.path or row.location,
            "generation": row.generation,
            "landing": row.landing or "",
            "reason": f"gone at its site and kept, and damaged here: {wrong[row.file_id]}{_what_goes(row, gone)}",
            "kind": CorruptionError.kind,
            "location": row.location,
            "at": gone[0].at,
        }
        for row in rows
        if (gone := drops.get(row.file_id))
    ]


def _what_goes(row: CatalogFile, gone: Sequence[DropRow]) -> str:
    return "" if row.path else f"; it holds all that is left of {', '.join(drop.path for drop in gone)}"


def wrong_bytes(
    app: App, connection: Connection, receiver: ReceiverSettings, rows: list[CatalogFile], known: dict[str, FileCheck]
) -> dict[int, str]:
    """Return file_id → what is wrong with the bytes of a file or of its deletions."""
    root = app.receiver_root(receiver)
    if root is None:
        return {}
    changed = changed_files(root, rows, known, held_somewhere(connection, receiver.name))
    return {row.file_id: changed[row.location] for row in rows if row.location in changed}


def drops_of(connection: Connection, row: CatalogFile) -> tuple[DropRow, ...]:
    """Return the drops that its site reported, of a settled merged file those of the sources that only its set
    holds. () where one lacks: the sender's limits hold it back; or the site has the file, so it may be sent again; or the
    sources are here."""
    gone = {row.path: row.generation}
    if not row.path:
        if row.file_id not in settled_rows.settled_files(connection, row.receiver, row.site_id) and row.state == "live":
            return ()
        (stand,) = settled_rows.settled_sets(connection, [row.file_id])
        roots = judge_roots(connection, row.receiver, row.site_id, stand)
        if any(root.fate in _COMING for root in roots):
            return ()
        gone = {root.path: root.generation for root in roots if root.fate not in _ELSEWHERE}
    drops = landing_rows.drops_of_paths(connection, row.receiver, row.site_id, gone)
    found = tuple(drops[path] for path in sorted(gone) if path in drops and drops[path].generation >= gone[path])
    return found if len(found) == len(gone) else ()


def to_give_up(app: App, receiver: ReceiverSettings, held_id: str) -> tuple[CatalogFile, tuple[DropRow, ...], str]:
    """Return the file, its drops and what is wrong with it ('': given up before). NotFoundError: no kept file has this ID.
    PermanentError: nothing has to be given up."""
    with app.ledger.read() as connection:
        row = next(iter(catalog_rows.files_by_id(connection, [int(held_id[1:])])), None)
        drops = drops_of(connection, row) if row is not None else ()
        before = all((drop.reason or "").startswith(GIVEN_UP) for drop in drops)
        if row is None or not drops or row.receiver != receiver.name or not (row.kept and (row.state == "live" or before)):
            raise NotFoundError(
                f"no file that is gone at its site is kept at {receiver.name} as {held_id}",
                hint="./tidemark quarantine list",
                subject=held_id,
            )
        if before:
            return row, drops, ""
        why = wrong_bytes(app, connection, receiver, [row], {}).get(row.file_id, "")
    if not row.visible:
        raise PermanentError(
            f"{row.path}: a merged file that is read holds its points; they would be lost with it",
            hint="nothing: its bytes go by themselves once that has settled",
            subject=row.path,
        )
    if not why:
        raise PermanentError(
            f"{row.path or row.location} is what was loaded: there is nothing to give up",
            hint='deletes = "apply" in its link lets what its site drops leave the catalog',
            subject=row.path,
        )
    return row, drops, why
