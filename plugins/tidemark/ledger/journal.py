"""Events that explain what happened, and the audit of every decision.

An **event** is one sentence on one subject: the time (the database's clock), a **kind** from the list below, the subject
(`path`: a file, a device, a series …), and the place (site, link, run, landing). It is written in the same transaction as
the state change that it reports, so the two never disagree. Events explain; they decide nothing. No step reads its next
action from them, and `housekeep` removes old ones. The *state* of a run is in `run`, `run_item`, `sent_landing` and
`landing`. Documentation: docs/formats/journal.md.

The audit table holds every decision of an operator, with the operator's name (CONTRACT §1). It is not trimmed.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sql import write_tuples

KINDS: Mapping[str, str] = {
    # a run, in its order
    "run.opened": "A sync run began.",
    "run.continued": "A run that had stopped anywhere was taken up again; detail: step, fence.",
    "run.failed": "A run ended with an error and goes on next time; detail: kind, error, hint.",
    "run.window": "The link's window closed; the run goes on in the next one.",
    "run.finished": "A run ended with everything told and cleaned up; detail: files, bytes.",
    "snapshot.full": "snapshot_bytes lets a run link no more: the rest is read in place; detail: linked, in_place, limit.",
    "guard.tripped": "Drops wait for the operator; detail: reason, drops, known.",
    "guard.approved": "The operator approved the drops of a run; detail: who.",
    "guard.cleared": "The reason to wait is gone: the files are there again.",
    # a file at the site
    "file.selected": "A new generation was chosen for sending; detail: generation, size.",
    "file.skipped": "A file was passed over; detail: reason.",
    "file.vanished": "A chosen file went away before it was linked or read; the run chose again.",
    "file.sent": "The bytes are durable at the receiver under their final name; detail: sha256, size.",
    "file.failed": "A file failed all its retries and is left to the next run; detail: error.",
    "file.distrusted": "Its bytes did not arrive as they are, all retries over: the link's quarantine; detail: id, reason.",
    "file.verified": "verify read it at the site: it is what the receiver has; its digest had been made there alone.",
    "file.acked": "The landing that carries the file is whole; detail: generation.",
    "file.dropped": "The site has the file no more and nothing covers it; told to the receiver.",
    "file.superseded": "Other sealed files of the site cover the file now; detail: covered_by.",
    "file.resend": "Marked to be sent again; detail: why.",
    "schema.sent": "Bytes of a schema log landed; detail: start, end, epoch.",
    "schema.truncated": "A schema log shrank or was rewritten and is sent again from its start; detail: position, size.",
    # a landing
    "landing.closed": "The manifest was renamed: the landing is whole; detail: sequence, files.",
    "landing.answered": "The sender read the receipt; detail: loaded, refused, quarantined.",
    "landing.withdrawn": "What it was to name went away at the receiver and is sent again; detail: lost, example.",
    "landing.made_again": "It was lost before it was loaded; its manifest was written again; detail: sequence, files.",
    "landing.found": "The receiver saw a whole landing for the first time; detail: sequence.",
    "landing.gap": "A landing waits because one before it in the sequence is missing; detail: missing.",
    "landing.rejected": "A landing's manifest cannot be accepted; detail: reason.",
    "landing.loaded": "Everything in the landing has an answer and the receipt is written.",
    "landing.foreign_receipt": "A receipt.json lay in a landing that this receiver did not write; it was not believed.",
    "landing.cleaned": "The landing's files were removed; manifest and receipt stay.",
    # a file at the receiver
    "file.loaded": "The catalog took the file; detail: generation, file_id.",
    "file.refused": "Another site owns a device of the file; detail: device, owner.",
    "file.quarantined": "The file cannot be loaded; detail: reason.",
    "file.awaited": "Deletions of a settled file wait here until the file comes again; detail: reason.",
    "file.replayed": "A refused or quarantined file was taken after all; detail: why.",
    "file.marked": "The site dropped the file; the catalog keeps and marks it.",
    "file.swapped": "A superseded file left the catalog in one transaction with what covers it.",
    "file.removed": "A dropped file left the catalog (deletes = apply, or by approval).",
    "drop.pending": "A drop or supersession waits; detail: reason.",
    "device.claimed": "A site sent a device first and owns it; path is the device.",
    "device.transferred": "The operator gave a device to another site; path is the device, detail: from, to.",
    "schema.clash": "Two sources give a series different types; path is the series, detail: types.",
    # the catalog later
    "merge.published": "A merged file stands for its sources; detail: file_id, in, out, overwritten, deleted.",
    "merge.undone": "A merged file was withdrawn and its sources are read again; detail: file_id, why.",
    "merge.settled": "A merged file stands alone after settle_days; its sources were retired; detail: file_id, sources.",
    "merge.waits": "A change at the site is not read yet, since a settled file holds it back; detail: reason.",
    "merge.replaced": "A settled file left the catalog: its sources came again.",
    "file.reclaimed": "A retired file's bytes were removed after the grace; detail: file_id.",
    # the IoTDB that a receiver's files are LOADed into as well
    "iotdb.given": "The server has the file, or what readers see of it; detail: server, file_id.",
    "iotdb.held": "The server was not given the file; detail: reason.",
    "iotdb.gone": "The server forgot what only this file brought, which left the catalog; detail: server, file_id.",
    "iotdb.counted": "A database was counted at the server; detail: server, partitions, points, compared, wrong.",
    # the nodes that hold a receiver's data
    "cluster.swapped": "A new partition table is in force; detail: epoch, change, node, slots.",
    "cluster.moved": "Everything of a change lies with its new nodes; detail: epoch, slots, bytes.",
    "cluster.left": "A node left the cluster: its data is safe elsewhere; detail: node, epoch.",
    "cluster.road": "Which way files go between nodes, told when it changes; path: receiver; detail: source, node, road.",
    "cluster.source_failed": "A node could not give a file, another was asked; detail: node, error.",
    # proof and care
    "verify.difference": "verify, or a read, found a difference; detail: what, expected, found.",
    "verify.repaired": "verify --repair marked a difference for sending or deriving again; detail: what.",
    "ledger.rebuilt": "This ledger was made anew from manifests, receipts and files; detail: counts.",
}


def record_event(
    connection: Connection,
    kind: str,
    *,
    site_id: str | None = None,
    link: str | None = None,
    run_id: str | None = None,
    landing: str | None = None,
    path: str | None = None,
    **detail: Any,
) -> None:
    """Write one event into the caller's transaction. ValueError if `kind` is not in KINDS."""
    row = {"site_id": site_id, "link": link, "run_id": run_id, "landing": landing, "path": path, **detail}
    record_many(connection, kind, [row])


def record_many(connection: Connection, kind: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write many events of one kind; each row has any of site_id, link, run_id, landing, path, and detail keys."""
    if kind not in KINDS:
        raise ValueError(f"no such kind of event: {kind}; the words stand in tidemark.ledger.journal.KINDS")
    values = [(*map(row.get, _PLACES), _encode_detail(row)) for row in rows]
    write_tuples(connection, _INSERT, (*_PLACES, "detail"), values, at=database_time(connection), kind=kind)


def trim_events(connection: Connection, before: float) -> int:
    """Delete events older than `before`; return how many."""
    return connection.execute(sa.text("DELETE FROM event WHERE at < :before"), {"before": before}).rowcount


_PLACES = ("site_id", "link", "run_id", "landing", "path")
_INSERT = (
    "INSERT INTO event (at, site_id, link, run_id, landing, path, kind, detail)"
    " VALUES (:at, :site_id, :link, :run_id, :landing, :path, :kind, :detail)"
)
_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True)


def _encode_detail(row: Mapping[str, Any]) -> str:
    return _JSON.encode({k: v for k, v in row.items() if k not in _PLACES})


def record_decision(connection: Connection, action: str, subject: str, **detail: Any) -> None:
    """Write one decision into the caller's transaction, so that it is recorded exactly if its effect is."""
    connection.execute(
        sa.text("INSERT INTO audit (at, who, action, subject, detail) VALUES (:at, :who, :action, :subject, :detail)"),
        {
            "at": database_time(connection),
            "who": user_at_host(),
            "action": action,
            "subject": subject,
            "detail": json.dumps(detail, ensure_ascii=False, sort_keys=True),
        },
    )


def was_decided(connection: Connection, action: str, subject: str) -> bool:
    """Return whether this decision is in the audit."""
    sql = "SELECT COUNT(*) FROM audit WHERE action = :action AND subject = :subject"
    return bool(connection.execute(sa.text(sql), {"action": action, "subject": subject}).scalar_one())


def user_at_host() -> str:
    """Return user@host of this command; the user's number if the system has no name for it (containers)."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
