"""Count at the server what was given: every database whose fence was raised since it was counted last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemark.app import App
from tidemark.errors import DIFFERENCES_FOUND
from tidemark.flows.load_result import Trouble
from tidemark.ledger.journal import record
from tidemark.ledger.leases import Lease, check_in
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.iotdb import PartitionRow, Target
from tidemark.load.iotdb_count import Counted, Extents, count
from tidemark.load.iotdb_mend import Mender
from tidemark.load.iotdb_words import Span
from tidemark.load.view import SeenDevice


def count_open(
    app: App,
    target: Target,
    lease: Lease,
    mender_of: Callable[[Sequence[CatalogFile]], Mender],
    troubles: list[Trouble],
) -> int:
    """Count every partition that is open, or differed last time; the points counted. `mender_of`: for what lies around
    these files."""
    with app.ledger.read() as connection:
        rows = iotdb_rows.partitions(connection, target, ("open", "differs"))
    points = 0
    databases: dict[str, list[PartitionRow]] = {}
    for row in rows:
        databases.setdefault(row.database, []).append(row)
    for database, some in databases.items():
        counted = _count(app, target, database, some, mender_of)
        points += counted.points
        _record(app, target, lease, database, some, counted)
        troubles += [
            Trouble("iotdb", "", name, f"{database}: {why}", DIFFERENCES_FOUND) for name, why in counted.wrong.items()
        ]
    return points


def _count(
    app: App,
    target: Target,
    database: str,
    rows: Sequence[PartitionRow],
    mender_of: Callable[[Sequence[CatalogFile]], Mender],
) -> Counted:
    """The devices with files in these partitions, over the time of those files."""
    with app.ledger.read() as connection:
        given = iotdb_rows.partition_files(connection, target, database, [row.partition for row in rows])
        files = catalog_rows.files_by_id(connection, given)
        of_given = catalog_rows.devices_of_files(connection, given)
    mender = mender_of(files)
    with app.ledger.read() as connection:
        ids = {layer.file.file_id for seen in mender.seen.values() for layer in seen.layers}
        devices = catalog_rows.devices_of_files(connection, ids)
    extents = Extents({file_id: {d.device: d for d in found} for file_id, found in devices.items()})
    concerned: list[CatalogDevice] = [d for found in of_given.values() for d in found]
    names = {d.device for d in concerned}
    if not names:
        return Counted(0, 0, {})
    span = Span(min(d.start for d in concerned), max(d.end for d in concerned))
    seen: list[SeenDevice] = [mender.seen[name] for name in sorted(names & mender.seen.keys())]
    if any(one.layers[-1].file.model == "table" for one in seen):  # a table is counted whole
        seen = [one for one in mender.seen.values() if one.layers[-1].file.database == database]
    return count(mender, database, seen, extents, span)


def _record(app: App, target: Target, lease: Lease, database: str, rows: Sequence[PartitionRow], counted: Counted) -> None:
    reason = "; ".join(f"{name}: {why}" for name, why in sorted(counted.wrong.items()))[:2000] or None
    state = "differs" if reason else "equal"
    # CRASH WINDOW: counted, not written down: the next load counts again.
    with app.ledger.write() as connection:
        check_in(connection, lease)
        done = [replace(row, state=state, reason=reason) for row in rows]
        iotdb_rows.conclude(connection, target, done, app.clock())
        record(
            connection,
            "iotdb.counted",
            path=database,
            server=target.server,
            partitions=len(rows),
            points=counted.points,
            compared=counted.compared,
            wrong=len(counted.wrong),
        )
