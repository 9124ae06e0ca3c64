"""Housekeeping at a receiver: settle old merged files, reclaim unread files, trim events.

The order is safe throughout: the ledger retires a file, so that nobody reads it, after the grace its bytes are removed, then
the ledger marks it as reclaimed. Everything is idempotent; the next housekeeping continues one that died. It holds the
receiver's load lease: a load could place a file under a name that is being reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App, catch_up_mark
from tidemark.cluster.health.housekeeping import keep_nodes
from tidemark.cluster.replicas.catch_up import remove_everywhere
from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.replicas.promote import require_newest
from tidemark.formats.answered import FOLDER as ANSWERED_FOLDER
from tidemark.formats.layout import SCHEMA_FOLDER
from tidemark.formats.records import (
    DECIDED_FOLDER,
    SETTLED_FOLDER,
    SettledSource,
    Settlement,
    encode_settlement,
    settled_place,
)
from tidemark.ledger import journal
from tidemark.ledger.journal import trim_events
from tidemark.ledger.leases import assert_held
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver.catalog import mark_reclaimed
from tidemark.ledger.sender.runs import trim_runs
from tidemark.ledger.sql import run_report, trim_file_checks
from tidemark.receiver.faults import require_theirs
from tidemark.receiver.load.landings import clean_landing, landing_folders, read_found_manifest, sweep_waiting
from tidemark.receiver.session import HeldReceiver, hold_receiver
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import remove_half_written
from tidemark.tsfiles.names import MARK_FILE

DAY = 86_400.0
GRACE_DAYS = 1.0  # how long a reader may read a file that was retired meanwhile
EVENT_DAYS = 90.0  # events explain; earlier history is in the audit table, the catalog and the receipts
_RECORDS = (ANSWERED_FOLDER, DECIDED_FOLDER, SETTLED_FOLDER, SCHEMA_FOLDER)
_HALF_WRITTEN_SECONDS = 3600.0


@dataclass(frozen=True)
class HousekeepResult:
    """Result of a round. `settled`: merged files that now stand alone; `sources`: files that they replace; `reclaimed`:
    files whose bytes were removed, `bytes` of them; `landings`: cleaned; `events`, `items`: rows trimmed; `evicted`: files
    evicted from the cache because nodes hold them; `nodes_late`: node → why it is late."""

    settled: int = 0
    sources: int = 0
    reclaimed: int = 0
    bytes: int = 0
    landings: int = 0
    events: int = 0
    items: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    nodes_late: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"ok": True, **asdict(self)}


def housekeep(app: App, receiver: ReceiverSettings) -> HousekeepResult:
    """Run one round. UsageError for a remote receiver, LeaseHeldError while a load runs,
    PermanentError if the ledger is older than the nodes."""
    with hold_receiver(app, receiver, "housekeep") as work:
        store, lease, cluster = work.store, work.lease, work.cluster
        catch_up_mark(app, receiver, store)
        require_newest(cluster)  # before the first of what follows removes or writes anything
        settled, sources = _settle_merges(work)
        reclaimed, size = _reclaim_files(work)
        kept = keep_nodes(cluster, store)
        sweep_waiting(app.ledger, store, receiver.name, lease)
        landings = _clean_landings(work)
        _remove_half_written(work)
        old = app.clock() - EVENT_DAYS * DAY
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            trimmed, items = trim_events(connection, old), trim_runs(connection, old)
            trim_file_checks(connection, receiver.name)
    return HousekeepResult(settled, sources, reclaimed, size, landings, trimmed, items, *kept)


def _settle_merges(work: HeldReceiver) -> tuple[int, int]:
    at = work.app.clock()
    with work.app.ledger.read() as connection:
        due = merge_rows.settle_due(connection, work.receiver.name, at - work.receiver.settle_days * DAY)
    for merged_id in due:
        with work.app.ledger.read() as connection:
            settlement = _settlement_of(run_report(connection, "settled_facts", file_id=merged_id)[0], at)
            made_from = run_report(connection, "settled_sources", file_id=merged_id)
        settlement = Settlement(**{**vars(settlement), "sources": tuple(SettledSource(**r) for r in made_from)})
        work.store.publish(settled_place(settlement.location), encode_settlement(settlement))
        # CRASH WINDOW: a record of a file that does not stand alone yet: the next round writes and settles it again.
    if not due:
        return 0, 0

    def record_rows(connection: Connection) -> tuple[int, int]:
        assert_held(connection, work.lease)
        still = set(merge_rows.settle_due(connection, work.receiver.name, at - work.receiver.settle_days * DAY))
        if set(due) <= still:  # the next round settles a merge made meanwhile
            return len(due), len(merge_rows.mark_settled(connection, due, at))
        return 0, 0

    return make_visible(work.app, work.receiver, work.cluster, work.store, (), record_rows)


def _settlement_of(row: Any, at: float) -> Settlement:
    ranks = ("rank_unsequence", "rank_version", "rank_inner", "rank_cross", "rank_created")
    unsequence, version, inner, cross, created = (int(row[name]) for name in ranks)
    return Settlement(
        site_id=row["site_id"],
        database=row["database_name"],
        model=row["model"],
        partition_from=int(row["partition_from"]),
        partition_to=int(row["partition_to"]),
        location=row["location"],
        sha256=row["sha256"],
        size=int(row["size"]),
        points=int(row["points_out"]),
        rank=(unsequence, version, inner, cross, created),
        batch=row["batch"],
        points_in=int(row["points_in"]),
        overwritten=int(row["overwritten"]),
        deleted=int(row["deleted"]),
        merged=row["merged_at"],
        settled=at,
        sources=(),
    )


def _reclaim_files(work: HeldReceiver) -> tuple[int, int]:
    """Remove the bytes of files that were retired before the grace; return (files, bytes)."""
    place = {"receiver": work.receiver.name, "before": work.app.clock() - GRACE_DAYS * DAY}
    with work.app.ledger.read() as connection:
        rows = run_report(connection, "reclaimable", **place)
        used = {p for r in run_report(connection, "places_in_use", **place) for p in (r["location"], r["mods_location"])}
    if not rows:
        return 0, 0
    places = {p for r in rows for p in (r["location"], r["mods_location"]) if p} - used
    records = {settled_place(r["location"]) for r in rows if not r["path"] and r["location"] in places}
    remove_everywhere(work.cluster, places)
    work.store.remove(sorted(places | records))
    # CRASH WINDOW: bytes removed, rows still retired and unread: the next round removes nothing and records it.
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        mark_reclaimed(connection, [int(r["file_id"]) for r in rows])
        told = [{"site_id": r["site_id"], "path": r["path"] or r["location"], "file_id": int(r["file_id"])} for r in rows]
        journal.record_many(connection, "file.reclaimed", told)
    return len(rows), sum(int(r["size"]) for r in rows if r["location"] in places)


def _clean_landings(work: HeldReceiver) -> int:
    """Clean answered landings that a dead load left with their files."""
    with work.app.ledger.read() as connection:
        recorded = {
            (r["site_id"], r["landing"]): r["manifest_sha256"]
            for r in run_report(connection, "loaded_everywhere", receiver=work.receiver.name)
        }
    cleaned = 0
    for folder in landing_folders(work.root):
        if not (folder.answered and folder.bulky) or (folder.site_id, folder.landing) not in recorded:
            continue
        try:
            record = read_found_manifest(work.root, folder)
            if record.manifest is None or record.sha256 != recorded[(folder.site_id, folder.landing)]:
                continue
            clean_landing(work.store, folder, record.manifest)
        except Exception as error:
            require_theirs(error)
            continue  # the next load tries it again, and reports it
        cleaned += 1
        with work.app.ledger.write() as connection:
            assert_held(connection, work.lease)
            journal.record_event(connection, "landing.cleaned", site_id=folder.site_id, landing=folder.landing)
    return cleaned


def _remove_half_written(work: HeldReceiver) -> None:
    """Remove the temp files of records that a killed writer left.

    Those of the last hour stay: `adopt` and `ledger rebuild` write records too, and do not hold the receiver's lease.
    """
    beside_mark = [name for name in work.store.list_folder("") if name.startswith(f"{MARK_FILE}.")]
    remove_half_written(work.store, _RECORDS, beside_mark, work.app.clock() - _HALF_WRITTEN_SECONDS)
