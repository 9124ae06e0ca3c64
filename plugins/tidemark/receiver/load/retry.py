"""Load files that waited: refused ones whose devices are free now, quarantined ones that the operator releases.

They are checked again, decided, placed and recorded in one transaction. Then the waiting bytes are removed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.replicas.promote import require_newest
from tidemark.formats.answered import kept_manifest, read_landed
from tidemark.formats.landing import Answer, decode_entry, decode_manifest
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import assert_held
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.refusals import OwnerRow, QuarantineRow, RefusalRow
from tidemark.progress import ignore_progress
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import Admission, Origin
from tidemark.receiver.load.examine import ask_survivors, copy_landing, decide_files, examine_all, remove_copies
from tidemark.receiver.load.landings import sweep_waiting, waiting_folder
from tidemark.receiver.load.place import place_files
from tidemark.receiver.load.record import SiteNames, write_admission
from tidemark.receiver.load.removal.replaced import recheck_settled
from tidemark.receiver.load.removal.survival import NOTHING_FOUND, Found
from tidemark.receiver.load.removal.vanished import apply_vanished
from tidemark.receiver.session import HeldReceiver
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class Replayed:
    """`loaded`: refused files that are loaded now. `failed`: (path, why) of those that could not be
    checked, or whose waiting bytes could not be removed."""

    loaded: tuple[RefusalRow, ...]
    failed: tuple[tuple[str, str], ...]


def replay_refused(session: HeldReceiver) -> Replayed:
    """Load every refused file whose refusing device now belongs to its own site or to no site.

    A file with another foreign device stays refused for that one. Every load does this, and so finishes a transfer of
    ownership. PermanentError if the ledger is older than the nodes.
    """
    with session.app.ledger.read() as connection:
        waiting = refusal_rows.read_refusals(connection, session.receiver.name)
        owners = refusal_rows.owners_of(connection, session.receiver.name, [row.device for row in waiting])
    due = [row for row in waiting if row.location and may_try(owners.get(row.device), row.site_id)]
    if due:
        require_newest(session.cluster)
    loaded: list[RefusalRow] = []
    failed: list[tuple[str, str]] = []
    for row in due:
        try:
            loaded += [row] if _replay_refusal(session, row) else []
        except Exception as error:  # any failure stops only this file
            failed.append((row.path, message_of(require_theirs(error))))
    if due:
        failed += sweep_waiting(session.app.ledger, session.store, session.receiver.name, session.lease)
    return Replayed(tuple(loaded), tuple(failed))


def recheck_waiting(session: HeldReceiver, row: QuarantineRow | RefusalRow) -> tuple[Origin, Admission]:
    """Check a copy of a waiting file again and decide on it; nothing is recorded. After placing or holding it, call
    `remove_copies`.

    A copy, because an older version may have linked the file from its landing.
    """
    file, _ = decode_entry(row.entry)
    with session.app.ledger.read() as connection:
        waits = origin_of_waiting(connection, session.receiver, row)
    origin = copy_landing(session.store, session.root, waits, [file])
    checked = examine_all(session.app, [(origin, file)], session.root, session.engine, ignore_progress)
    return origin, decide_files(session.app, origin, checked, session.app.clock())


@dataclass(frozen=True)
class Shown:
    """What waiting files show about vanished ones. `found`: by path. `deletes`: the drop setting of their site's newest
    loaded landing; "" where its kept manifest is missing, then the next landing decides."""

    found: Mapping[str, Found]
    deletes: str = ""


NOTHING_SHOWN = Shown(NOTHING_FOUND)


def ask_about_vanished(session: HeldReceiver, origin: Origin, admission: Admission) -> Shown:
    """Search vanished files' points in these files, whose bytes are in place."""
    found = ask_survivors(session, origin, (), admission.loads)
    with session.app.ledger.read() as connection:
        _, landing = landing_rows.last_loaded(connection, origin.receiver, origin.site_id)
        sha256, _ = landing_rows.receipt_of(connection, origin.receiver, origin.site_id, landing or "")
    record = read_landed(session.root, kept_manifest(origin.site_id, landing)) if landing else None
    told = record is not None and hashlib.sha256(record).hexdigest() == sha256
    return Shown(found, decode_manifest(record).deletes if told and record else "")


def record_retried(
    connection: Connection, origin: Origin, admission: Admission, at: float, shown: Shown = NOTHING_SHOWN
) -> tuple[Answer, ...]:
    """Record the decision on waiting files, and what it means for vanished ones. Their bytes are in place."""
    names = SiteNames({s.site_id: s.name for s in landing_rows.read_sites(connection).values()})
    answers = write_admission(connection, origin, admission, names, at)
    schema.write_schema(connection, origin, (), admission.loads)
    vanished = apply_vanished(connection, origin, (), shown.deletes, at, shown.found)
    paths = vanished | {load.file.path for load in admission.loads}
    recheck_settled(connection, origin.receiver, origin.site_id, paths, at)
    return answers


def _replay_refusal(session: HeldReceiver, row: RefusalRow) -> bool:
    origin, admission = recheck_waiting(session, row)
    with session.app.ledger.read() as connection:
        owners = refusal_rows.owners_of(connection, row.receiver, [r.refused.device for r in admission.refusals])
    if admission.refusals:
        remove_copies(session.store, origin)
        device = admission.refusals[0].refused.device
        with session.app.ledger.write() as connection:
            assert_held(connection, session.lease)
            refusal_rows.still_refused(connection, row.refusal_id, device, owners[device])
        return False
    place_files(session.store, admission.placements)
    remove_copies(session.store, origin)
    # CRASH WINDOW: in place, not recorded: still refused, the next load replays it.
    at, shown = session.app.clock(), ask_about_vanished(session, origin, admission)

    def record_rows(connection: Connection) -> bool:
        assert_held(connection, session.lease)
        record_retried(connection, origin, admission, at, shown)
        refusal_rows.end_refusal(connection, row.refusal_id, "superseded" if admission.holds else "replayed")
        place = {"site_id": row.site_id, "landing": row.landing, "path": row.path}
        record_event(connection, "file.replayed", **place, why=f"device {row.device} belongs to its site now")
        return not admission.holds

    return make_visible(
        session.app, session.receiver, session.cluster, session.store, [load.row for load in admission.loads], record_rows
    )


def origin_of_waiting(connection: Connection, receiver: ReceiverSettings, row: QuarantineRow | RefusalRow) -> Origin:
    """Return the origin of a refused or held file, in the folder where it waits."""
    file, data = decode_entry(row.entry)
    site = landing_rows.read_sites(connection)[row.site_id]
    return Origin(
        receiver=row.receiver,
        site_id=row.site_id,
        time_unit=site.time_unit,
        site_interval_ms=site.partition_interval_ms,
        catalog_interval_ms=receiver.partition_interval_ms,
        data=data,
        landing=row.landing,
        folder=waiting_folder(row.location, file),
        prefix=site.prefix,
    )


def may_try(owner: OwnerRow | None, site_id: str) -> bool:
    """Return whether a refused file of this site may load now. `owner`: of the device for which it was refused."""
    return owner is None or owner.site_id == site_id
