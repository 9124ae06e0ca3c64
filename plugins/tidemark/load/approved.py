"""What the operator's decisions do to vanished files at the receiver: approved ones leave, a kept one is given up.

A dropped file whose points settled into a merged file cannot be taken out alone: its other sources are asked for, and the
merged file goes when they have come; until then the ledger says what is waited for. Source: DESIGN §3 "Sources and merges"
("a later drop waits for the operator"), docs/decisions/0007-settled-files-are-replaced-whole.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.ledger.journal import record_many
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver.landings import GIVEN_UP, DropRow
from tidemark.load.drops import APPROVED
from tidemark.load.replacing import Late, look_again


def leave_approved(connection: Connection, receiver: str, site_id: str, approved: Iterable[DropRow], at: float) -> Late:
    """Take approved files out of the catalog as far as they can be; returns what still waits, and what the site has to
    send for it."""
    drops = list(approved)
    paths = {d.path: d.generation for d in drops}
    rows = catalog_rows.sources_of_paths(connection, receiver, site_id, paths, ("live", "retired", "reclaimed"))
    rows = [row for row in rows if row.generation <= paths[row.path]]
    leaving = [row.file_id for row in rows if row.state == "live"]
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge(connection, receiver, leaving, at)
    approved = [replace(d, state="done", reason=APPROVED) for d in drops]
    landing_rows.put_drops(connection, receiver, site_id, approved)
    late = look_again(connection, receiver, site_id, paths, at)
    told = [replace(d, reason=f"{APPROVED}: {late.waits[d.path]}" if d.path in late.waits else None) for d in approved]
    landing_rows.put_drops(connection, receiver, site_id, told)
    gone = [d for d in drops if d.path not in late.waits]
    record_many(connection, "file.removed", [{"site_id": site_id, "path": d.path, "approved": True} for d in gone])
    return late


def give_up_kept(connection: Connection, receiver: str, gone: DropRow, why: str, at: float, site_id: str) -> None:
    """Let a kept file leave whose bytes are not those that were loaded (`why`): its site has no others. Idempotent."""
    rows = catalog_rows.sources_of_paths(connection, receiver, site_id, [gone.path])
    leaving = [row.file_id for row in rows if row.kept and row.generation <= gone.generation]
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge(connection, receiver, leaving, at)
    done = replace(gone, kind="dropped", covered_by=(), state="done", reason=f"{GIVEN_UP}: {why}")
    landing_rows.put_drops(connection, receiver, site_id, [done])
    look_again(connection, receiver, site_id, [gone.path], at)
    record_many(connection, "file.removed", [{"site_id": site_id, "path": gone.path, "why": done.reason}])
