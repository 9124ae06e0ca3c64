"""What the operator's approval does to vanished files that waited for it at the receiver.

A dropped file whose points settled into a merged file cannot be taken out alone: the merged file goes once every one of
its sources is dropped and approved; until then its points stay, and the ledger says so. Source: DESIGN §3 "Sources and
merges" ("a later drop waits for the operator").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.ledger import catalog_rows, landing_rows, merge_rows
from tidemark.ledger.events import record_many
from tidemark.ledger.landing_rows import DropRow

_STAYS = "approved; its points stay in a merged file with those of files that the site still has"


def leave_approved(
    connection: Connection, receiver: str, site_id: str, approved: Iterable[DropRow], at: float
) -> list[DropRow]:
    """Take approved files out of the catalog as far as they can be; returns their rows as recorded."""
    drops = list(approved)
    paths = {d.path: d.generation for d in drops}
    rows = catalog_rows.sources_of_paths(connection, receiver, site_id, paths, ("live", "retired", "reclaimed"))
    rows = [row for row in rows if row.generation <= paths[row.path]]
    leaving = [row.file_id for row in rows if row.state == "live"]
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge(connection, receiver, leaving, at)
    staying = _merged_leave(connection, receiver, site_id, [r.file_id for r in rows if r.state != "live"], paths, at)
    done = [replace(d, state="done", reason=_STAYS if d.path in staying else None) for d in drops]
    landing_rows.put_drops(connection, receiver, site_id, done)
    gone = [d for d in done if d.path not in staying]
    record_many(connection, "file.removed", [{"site_id": site_id, "path": d.path, "approved": True} for d in gone])
    return done


def _merged_leave(
    connection: Connection, receiver: str, site_id: str, gone: Sequence[int], approved: Iterable[str], at: float
) -> set[str]:
    """Retire merged files that hold nothing but approved drops; the approved paths whose points stay."""
    told = {d.path for d in landing_rows.drops(connection, receiver, site_id, states=("done",)) if d.kind == "dropped"}
    told |= set(approved)
    staying: set[str] = set()
    for merged_id, source_ids in catalog_rows.merged_over(connection, gone).items():
        sources = {row.path for row in catalog_rows.files_by_id(connection, source_ids)}
        if sources <= told:
            catalog_rows.retire_files(connection, [merged_id], at)
        else:
            staying |= sources & set(approved)
    return staying
