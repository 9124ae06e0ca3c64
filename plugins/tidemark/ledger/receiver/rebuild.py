"""Rows for rebuilding a ledger, and for detecting a ledger that is too old.

A rebuild sets fences above all earlier ones. `Mark` identifies the ledger of a receiver's folder (`ledger_mark`): the UUID
of the ledger and the number of changes of the receiver in it. `count_change` raises it in the transaction that changes the
receiver; `app` compares it with the receiver's file.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import write_rows

REBUILT = "ledger.rebuilt"  # the event at the end of a rebuild


def as_rebuilt(connection: Connection) -> bool:
    """Return whether nothing was recorded since a rebuild made this ledger."""
    sql = "SELECT kind FROM event ORDER BY event_id DESC LIMIT 1"
    return connection.execute(sa.text(sql)).scalar() == REBUILT


class Place(NamedTuple):
    """A row of the catalog and the place of its bytes."""

    file_id: int
    site_id: str
    role: str
    path: str
    state: str
    location: str
    mods_location: str


def catalog_places(connection: Connection, receiver: str) -> list[Place]:
    """Return every file of the receiver's catalog, also retired ones, by its id."""
    sql = f"SELECT {', '.join(Place._fields)} FROM catalog_file WHERE receiver = :receiver ORDER BY file_id"
    return [Place(*row) for row in connection.execute(sa.text(sql), {"receiver": receiver})]


def mark_gone(connection: Connection, file_ids: Iterable[int], at: float) -> None:
    """Mark files whose bytes are missing as reclaimed: nobody reads them."""
    rows = [{"f": file_id, "at": at} for file_id in file_ids]
    sql = "UPDATE catalog_file SET state = 'reclaimed', visible = 0, retired = COALESCE(retired, :at) WHERE file_id = :f"
    write_rows(connection, sql, rows)


def source_paths(connection: Connection, merged_ids: Iterable[int]) -> list[tuple[str, str]]:
    """Return (site, path) of the sources of merged files."""
    sql = (
        "SELECT f.site_id, f.path FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id"
        " WHERE l.merged_id = :merged AND f.path <> ''"
    )
    return [(row[0], row[1]) for merged in merged_ids for row in connection.execute(sa.text(sql), {"merged": merged})]


def request_resend(connection: Connection, link: str, path: str, reason: str) -> bool:
    """Let a file that was acknowledged be sent again; return whether there is one."""
    sql = "UPDATE file SET state = 'waiting', reason = :reason WHERE link = :link AND path = :path AND state = 'acked'"
    return bool(connection.execute(sa.text(sql), {"link": link, "path": path, "reason": reason}).rowcount)


def catalog_partitions(connection: Connection, receiver: str) -> list[tuple[str, int]]:
    """Return (database, partition) in which a file of the catalog begins."""
    sql = "SELECT DISTINCT database_name, partition_from FROM catalog_file WHERE receiver = :receiver ORDER BY 1, 2"
    return [(str(row[0]), int(row[1])) for row in connection.execute(sa.text(sql), {"receiver": receiver})]


def put_fences(connection: Connection, names: Iterable[str], fence: int) -> None:
    """Insert free leases whose next fence is above `fence`."""
    rows = [{"name": name, "fence": fence} for name in names]
    sql = (
        "INSERT INTO lease (name, fence, holder, host, boot_id, pid, process_start, taken, expires)"
        " VALUES (:name, :fence, '', '', '', 0, '', 0, 0) ON CONFLICT (name) DO NOTHING"
    )
    write_rows(connection, sql, rows)


def put_audit(connection: Connection, at: float, who: str, action: str, subject: str, detail: Mapping[str, Any]) -> None:
    """Write an earlier decision, with its own time and name."""
    sql = "INSERT INTO audit (at, who, action, subject, detail) VALUES (:at, :who, :action, :subject, :detail)"
    text = json.dumps(detail, ensure_ascii=False, sort_keys=True)
    values = {"at": at, "who": who, "action": action, "subject": subject, "detail": text}
    connection.execute(sa.text(sql), values)


def count_rows(connection: Connection) -> dict[str, int]:
    """Count the rows of a rebuilt ledger."""
    queries = {
        "sites": "SELECT COUNT(*) FROM site",
        "links": "SELECT COUNT(*) FROM link",
        "landings": "SELECT COUNT(*) FROM landing",
        "files": "SELECT COUNT(*) FROM file WHERE state <> 'gone'",
        "catalog": "SELECT COUNT(*) FROM catalog_file WHERE state = 'live'",
        "settled": "SELECT COUNT(*) FROM merge_account WHERE settled IS NOT NULL",
        "owners": "SELECT COUNT(*) FROM owner",
        "series": "SELECT COUNT(*) FROM schema_series WHERE state = 'live'",
        "quarantined": "SELECT COUNT(*) FROM quarantine WHERE state = 'held'",
        "refused": "SELECT COUNT(*) FROM refusal WHERE state = 'refused'",
    }
    return {name: int(connection.execute(sa.text(sql)).scalar_one()) for name, sql in queries.items()}


@dataclass(frozen=True)
class Mark:
    """The mark of a receiver's folder. `mark`: UUID of ledger and folder; `changes`: number of the receiver's changes."""

    mark: str
    changes: int


def mark_of(connection: Connection, receiver: str) -> Mark | None:
    """Return the mark; None if no change of the receiver was recorded."""
    sql = sa.text("SELECT mark, changes FROM ledger_mark WHERE receiver = :receiver")
    row = connection.execute(sql, {"receiver": receiver}).first()
    return None if row is None else Mark(row[0], int(row[1]))


def count_change(connection: Connection, receiver: str) -> None:
    """Count a change, in the transaction that makes it."""
    sql = (
        "INSERT INTO ledger_mark (receiver, mark, changes) VALUES (:receiver, :mark, 1)"
        " ON CONFLICT (receiver) DO UPDATE SET changes = ledger_mark.changes + 1"
    )
    connection.execute(sa.text(sql), {"receiver": receiver, "mark": str(uuid.uuid4())})


def put_mark(connection: Connection, receiver: str, mark: Mark) -> None:
    """Set the mark of a rebuilt ledger to that of its folder."""
    sql = (
        "INSERT INTO ledger_mark (receiver, mark, changes) VALUES (:receiver, :mark, :changes)"
        " ON CONFLICT (receiver) DO UPDATE SET mark = excluded.mark, changes = excluded.changes"
    )
    connection.execute(sa.text(sql), {"receiver": receiver, "mark": mark.mark, "changes": mark.changes})


def knows_receiver(connection: Connection, receiver: str) -> bool:
    """Return whether the ledger ever recorded a landing or a file of the receiver."""
    tables = ("catalog_file", "landing")
    sql = (f"SELECT 1 FROM {table} WHERE receiver = :receiver LIMIT 1" for table in tables)
    return any(connection.execute(sa.text(one), {"receiver": receiver}).first() for one in sql)
