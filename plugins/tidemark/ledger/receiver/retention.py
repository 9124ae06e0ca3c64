"""What housekeeping changes: reclaimed files, old events, items of runs long finished."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import write_rows


def mark_reclaimed(connection: Connection, file_ids: Iterable[int]) -> None:
    """Their bytes are gone. What is live again meanwhile stays live."""
    rows = [{"f": file_id} for file_id in file_ids]
    sql = "UPDATE catalog_file SET state = 'reclaimed' WHERE file_id = :f AND state = 'retired'"
    write_rows(connection, sql, rows)


def trim_events(connection: Connection, before: float) -> int:
    """Remove events older than `before`; returns how many."""
    return connection.execute(sa.text("DELETE FROM event WHERE at < :before"), {"before": before}).rowcount


def trim_runs(connection: Connection, before: float) -> int:
    """Remove the items of runs that finished before `before` and on which no approval waits; returns how many."""
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
    """Forget digests of files that are in no reader's way any more."""
    connection.execute(
        sa.text(
            "DELETE FROM file_check WHERE receiver = :receiver AND location NOT IN (SELECT location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live' UNION SELECT mods_location FROM catalog_file"
            " WHERE receiver = :receiver AND state = 'live')"
        ),
        {"receiver": receiver},
    )
