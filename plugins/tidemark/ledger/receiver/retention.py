"""Rows that housekeeping changes: reclaimed files, old events, items of runs long finished."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import write_rows


def mark_reclaimed(connection: Connection, file_ids: Iterable[int]) -> None:
    """Mark files as reclaimed once their bytes are removed. A file that is live again stays live."""
    rows = [{"f": file_id} for file_id in file_ids]
    sql = "UPDATE catalog_file SET state = 'reclaimed' WHERE file_id = :f AND state = 'retired'"
    write_rows(connection, sql, rows)


def trim_events(connection: Connection, before: float) -> int:
    """Delete events older than `before`; return how many."""
    return connection.execute(sa.text("DELETE FROM event WHERE at < :before"), {"before": before}).rowcount


def trim_runs(connection: Connection, before: float) -> int:
    """Delete the items of runs that finished before `before` and that no approval waits for; return how many."""
    sql = (
        "DELETE FROM {table} WHERE run_id IN (SELECT run_id FROM run WHERE state = 'finished' AND ended < :before)"
        " AND run_id NOT IN (SELECT guard_run FROM link WHERE guard_run IS NOT NULL)"
        " AND run_id NOT IN (SELECT approved_run FROM link WHERE approved_run IS NOT NULL)"
    )
    removed = 0
    for table in ("run_item", "run_schema"):
        removed += connection.execute(sa.text(sql.format(table=table)), {"before": before}).rowcount
    return removed


def trim_file_checks(connection: Connection, receiver: str) -> None:
    """Forget digests of files that no reader opens any more."""
    connection.execute(
        sa.text(
            "DELETE FROM file_check WHERE receiver = :receiver AND location NOT IN (SELECT location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live' UNION SELECT mods_location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live')"
        ),
        {"receiver": receiver},
    )
