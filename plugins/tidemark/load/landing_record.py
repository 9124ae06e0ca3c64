"""What one landing changes in the ledger, in the caller's transaction: the same for a load and for a rebuilt ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from tidemark.formats.landing import Answer, Manifest
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.landings import DropRow, InventoryChange
from tidemark.load import schema
from tidemark.load.admit import Admission, Origin
from tidemark.load.commit import SiteNames, write_admission
from tidemark.load.replacing import look_again
from tidemark.load.standing import Again
from tidemark.load.survival import NOTHING_FOUND, Found
from tidemark.load.vanish import keep_below_live, lift_listed, still_waiting, take_vanished


@dataclass(frozen=True)
class Recorded:
    """`answers`, `pending` (path, reason) and what the site is asked for `again` go into the receipt; `clashes`: series that
    got two types, a sentence each; `claimed`: devices that became the site's."""

    answers: tuple[Answer, ...]
    pending: tuple[tuple[str, str], ...]
    again: tuple[Again, ...]
    clashes: tuple[str, ...]
    claimed: tuple[str, ...]


def record_landing(
    connection: Connection,
    origin: Origin,
    manifest: Manifest,
    admission: Admission,
    logs: Sequence[schema.KeptLog],
    at: float,
    found: Mapping[str, Found] = NOTHING_FOUND,
) -> Recorded:
    """Catalog, owners, troubles, schema, inventory and vanished files of one landing. `at` in seconds since 1970; `found`:
    what `survival` asked about was found to be, by path."""
    names = SiteNames({s.site_id: s.name for s in landing_rows.sites(connection).values()})
    answers = write_admission(connection, origin, admission, names, at)
    clashes = schema.write_schema(connection, origin, logs, admission.loads)
    landing_rows.take_inventory(connection, origin.receiver, origin.site_id, _inventory(manifest))
    gone = {v.path: v.generation for v in (*manifest.superseded, *manifest.dropped, *manifest.held)}
    lift_listed(connection, origin, [entry.path for entry in manifest.added if entry.path not in gone], at)
    keep_below_live(connection, origin, {v.path: v.generation for v in manifest.held}, at)
    vanished = take_vanished(connection, origin, drops_told(manifest, at), manifest.deletes, at, found)
    paths = vanished | {file.path for file in manifest.files}
    late = look_again(connection, origin.receiver, origin.site_id, paths, at)
    pending = {**dict(still_waiting(connection, origin)), **late.waits}
    claimed = tuple(sorted({device for load in admission.loads for device in load.claims}))
    return Recorded(answers + schema.answers(logs), tuple(pending.items()), late.again, clashes, claimed)


def _inventory(manifest: Manifest) -> InventoryChange:
    return InventoryChange(
        landing=manifest.landing,
        added=tuple((e.path, e.size, e.mtime, e.extent, bool(e.reason)) for e in manifest.added),
        carried=tuple((f.path, f.tsfile.size if f.tsfile else 0, f.mtime, f.generation) for f in manifest.files),
        removed=manifest.removed,
    )


def drops_told(manifest: Manifest, at: float) -> Iterator[DropRow]:
    """The vanished files that a manifest tells, as rows that wait."""
    for kind, vanished in (("superseded", manifest.superseded), ("dropped", manifest.dropped)):
        for v in vanished:
            yield DropRow(v.path, v.generation, kind, v.covered_by, manifest.landing, at)
