"""List and give up kept files (vanished at their site) whose bytes are damaged: no copy is left to repair them from.

`quarantine list` calls them `k` and a number. Readers refuse such a file until it is whole again or given up.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError, PermanentError
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import GIVEN_UP, DropRow
from tidemark.ledger.sql import FileCheck, file_checks
from tidemark.receiver.proved_files import changed_files
from tidemark.settings.model import ReceiverSettings


def kept_id(file_id: int) -> str:
    return f"k{file_id}"


def is_one(held_id: str) -> bool:
    """Whether an ID of `quarantine list` is that of a kept file."""
    return held_id[:1] == "k" and held_id[1:].isdecimal() and len(held_id) < 20


def listed(app: App, connection: Connection, receiver: ReceiverSettings, names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the damaged kept files as rows of `quarantine list`. Digests files that changed since the last digest."""
    known = file_checks(connection, receiver.name)
    rows = [row for site in names for row in catalog_rows.kept_sources(connection, receiver.name, site) if row.visible]
    wrong = wrong_bytes(app, connection, receiver, rows, known)
    drops = {row.file_id: drop_of(connection, row) for row in rows if row.file_id in wrong}
    return [
        {
            "id": kept_id(row.file_id),
            "site": names[row.site_id],
            "path": row.path,
            "generation": row.generation,
            "landing": row.landing or "",
            "reason": f"gone at its site and kept, and damaged here: {wrong[row.file_id]}",
            "kind": CorruptionError.kind,
            "location": row.location,
            "at": drop.at,
        }
        for row in rows
        if (drop := drops.get(row.file_id))
    ]


def wrong_bytes(
    app: App, connection: Connection, receiver: ReceiverSettings, rows: list[CatalogFile], known: dict[str, FileCheck]
) -> dict[int, str]:
    """Return file_id → what is wrong with the bytes of a file or of its deletions."""
    root = app.receiver_root(receiver)
    if root is None:
        return {}
    changed = changed_files(root, rows, known, held_somewhere(connection, receiver.name))
    return {row.file_id: changed[row.location] for row in rows if row.location in changed}


def drop_of(connection: Connection, row: CatalogFile) -> DropRow | None:
    """Return the drop that its site reported. None where the sender's limits hold it back: the file may be sent again."""
    drop = landing_rows.drops_of_paths(connection, row.receiver, row.site_id, [row.path]).get(row.path)
    return drop if drop is not None and drop.generation >= row.generation else None


def to_give_up(app: App, receiver: ReceiverSettings, held_id: str) -> tuple[CatalogFile, DropRow, str]:
    """Return the file, its drop and what is wrong with it ('': given up before). NotFoundError: no kept file has this ID.
    PermanentError: nothing has to be given up."""
    with app.ledger.read() as connection:
        row = next(iter(catalog_rows.files_by_id(connection, [int(held_id[1:])])), None)
        drop = drop_of(connection, row) if row is not None and row.path else None
        before = drop is not None and (drop.reason or "").startswith(GIVEN_UP)
        if (
            row is None
            or drop is None
            or row.receiver != receiver.name
            or not (row.kept and (row.state == "live" or before))
        ):
            raise NotFoundError(
                f"no file that is gone at its site is kept at {receiver.name} as {held_id}",
                hint="./tidemark quarantine list",
                subject=held_id,
            )
        if before:
            return row, drop, ""
        why = wrong_bytes(app, connection, receiver, [row], {}).get(row.file_id, "")
    if not row.visible:
        raise PermanentError(
            f"{row.path}: a merged file that is read holds its points; they would be lost with it",
            hint="nothing: its bytes go by themselves once that has settled",
            subject=row.path,
        )
    if not why:
        raise PermanentError(
            f"{row.path} is what was loaded: there is nothing to give up",
            hint='deletes = "apply" in its link lets what its site drops leave the catalog',
            subject=row.path,
        )
    return row, drop, why
