"""Write decisions into the ledger: catalog, owners, refusals, quarantine, and all that one landing changes.

Works in the caller's transaction, for a load and for the rebuild of a ledger (`record_landing`). The bytes of everything
recorded here are in their places already (`place.place_files`). Readers see all of a landing or nothing of it. New files
withdraw the merged files that they make wrong (`ledger.receiver.merges.unmerge_files`) in the same transaction. Source:
DESIGN §3 "Running and recovering are one path", "Sources and merges".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from tidemark.formats.landing import Answer, LandedFile, Manifest, decode_entry, encode_entry
from tidemark.ledger.journal import record_many
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    landings as landing_rows,
)
from tidemark.ledger.receiver import (
    merges as merge_rows,
)
from tidemark.ledger.receiver import (
    refusals as refusal_rows,
)
from tidemark.ledger.receiver.catalog import FileWithDevices
from tidemark.ledger.receiver.landings import DropRow, InventoryChange, LandingRow, SiteRow
from tidemark.ledger.receiver.refusals import OwnerRow, QuarantineRow, RefusalRow
from tidemark.ledger.receiver.settled import note_gone
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import (
    Admission,
    Hold,
    LedgerFacts,
    Load,
    Origin,
    Owner,
    Refusal,
    Refused,
    Waiting,
    refusal_reason,
)
from tidemark.receiver.load.landings import FoundManifest
from tidemark.receiver.load.removal.replaced import recheck_settled
from tidemark.receiver.load.removal.settled import Requested
from tidemark.receiver.load.removal.survival import NOTHING_FOUND, Found
from tidemark.receiver.load.removal.vanished import apply_vanished, keep_below_live, lift_listed, still_waiting


@dataclass(frozen=True)
class SiteNames:
    """Names for messages: site id → the site's name."""

    names: Mapping[str, str]

    def name_of(self, site_id: str) -> str:
        return self.names.get(site_id, site_id)


def known_before(connection: Connection, origin: Origin, files: Iterable[LandedFile], devices: Iterable[str]) -> LedgerFacts:
    """Return what `admit_files` must know of these paths and devices."""
    paths = [file.path for file in files]
    rows = catalog_rows.sources_of_paths(
        connection, origin.receiver, origin.site_id, paths, ("live", "retired", "reclaimed")
    )
    newest = {row.path: row for row in rows}  # ordered by generation: the last of a path is its newest
    alone = [file.path for file in files if file.tsfile is None]
    bases = [newest[path].file_id for path in alone if path in newest]
    settled = catalog_rows.merged_over(connection, bases)
    return LedgerFacts(
        newest=newest,
        devices=catalog_rows.devices_of_files(connection, bases),
        owners={
            row.device: Owner(row.site_id, row.since)
            for row in refusal_rows.owners_of(connection, origin.receiver, devices).values()
        },
        waiting=_find_waiting(connection, origin, alone) if alone else {},
        settled=frozenset(source for sources in settled.values() for source in sources),
    )


def write_admission(
    connection: Connection, origin: Origin, admission: Admission, names: SiteNames, at: float
) -> tuple[Answer, ...]:
    """Record every outcome. Return the answers for the receipt, in path order. `at` in seconds since 1970."""
    new_ids = _record_loads(connection, origin, admission.loads, at)
    replaced = [load.replaces for load in admission.loads if load.replaces is not None]
    catalog_rows.retire_files(connection, replaced, at)
    merge_rows.unmerge_files(connection, origin.receiver, [*new_ids, *replaced], at)
    _widen_tables(connection, origin, admission.loads)
    answers = [Answer(file.path, file.generation, "loaded") for file in admission.known]
    answers += [Answer(load.file.path, load.file.generation, "loaded") for load in admission.loads]
    answers += [_record_refusal(connection, origin, refusal, names, at) for refusal in admission.refusals]
    answers += [_record_hold(connection, origin, hold, at) for hold in admission.holds]
    _record_events(connection, origin, admission, answers)
    return tuple(sorted(answers, key=lambda a: a.path))


def _record_loads(connection: Connection, origin: Origin, loads: Sequence[Load], at: float) -> list[int]:
    """Record loaded files. Return their new file_ids, in the same order."""
    file_ids = catalog_rows.add_files(connection, [FileWithDevices(load.row, load.devices) for load in loads])
    owners = [OwnerRow(device, origin.site_id, at, origin.landing) for load in loads for device in load.claims]
    refusal_rows.put_owners(connection, origin.receiver, owners)
    taken = [(load.file.path, load.file.generation) for load in loads]
    refusal_rows.supersede_refusals(connection, origin.receiver, origin.site_id, taken)
    refusal_rows.supersede_quarantine(connection, origin.receiver, origin.site_id, taken)
    return file_ids


def _record_refusal(connection: Connection, origin: Origin, refusal: Refusal, names: SiteNames, at: float) -> Answer:
    file, refused = refusal.file, refusal.refused
    refusal_rows.supersede_refusals(connection, origin.receiver, origin.site_id, [(file.path, file.generation)])
    refusal_rows.add_refusal(
        connection,
        RefusalRow(
            receiver=origin.receiver,
            site_id=origin.site_id,
            path=file.path,
            generation=file.generation,
            landing=origin.landing,
            device=refused.device,
            owner_site=refused.owner.site_id,
            owner_since=refused.owner.since,
            location=refusal.location,
            entry=encode_entry(file, origin.data),
            at=at,
        ),
    )
    reason = refusal_reason(refused, names.name_of(origin.site_id), names.name_of(refused.owner.site_id), origin.receiver)
    return Answer(file.path, file.generation, "refused", reason, refused.device, refused.owner.site_id)


def _record_hold(connection: Connection, origin: Origin, hold: Hold, at: float) -> Answer:
    file = hold.file
    if hold.joins is not None or hold.awaits:  # joins the older TsFile, or replaces shorter deletions
        older = [(file.path, file.generation)]
        refusal_rows.supersede_quarantine(connection, origin.receiver, origin.site_id, older)
    refusal_rows.add_quarantine(
        connection,
        QuarantineRow(
            receiver=origin.receiver,
            site_id=origin.site_id,
            path=file.path,
            generation=file.generation,
            landing=origin.landing,
            reason=hold.reason,
            error_kind=hold.kind,
            location=hold.location,
            entry=encode_entry(file, origin.data),
            at=at,
            state="awaiting" if hold.awaits else "held",
        ),
    )
    outcome = "awaited" if hold.awaits else "quarantined"
    return Answer(file.path, file.generation, outcome, hold.reason, resend=hold.resend)


def _widen_tables(connection: Connection, origin: Origin, loads: Iterable[Load]) -> None:
    widths: dict[tuple[str, str], int] = {}
    for load in loads:
        for table, tags in (load.facts.tables if load.facts else {}).items():
            key = (load.row.database, table)
            widths[key] = max(tags, widths.get(key, 0))
    catalog_rows.widen_tables(connection, origin.receiver, origin.site_id, widths)


def _find_waiting(connection: Connection, origin: Origin, paths: Iterable[str]) -> dict[str, Waiting]:
    """Return path → the newest refused or held TsFile of it, which grown mods of this path may join."""
    wanted = set(paths)
    found: dict[str, Waiting] = {}
    for held in refusal_rows.read_quarantine(connection, origin.receiver):
        if held.site_id == origin.site_id and held.path in wanted and held.location:
            found[held.path] = Waiting(held.location, decode_entry(held.entry)[0], None)
    for row in refusal_rows.read_refusals(connection, origin.receiver, site_id=origin.site_id):
        if row.path in wanted and row.location:
            refused = Refused(row.device, Owner(row.owner_site, row.owner_since))
            found[row.path] = Waiting(row.location, decode_entry(row.entry)[0], refused)
    return found


def _record_events(connection: Connection, origin: Origin, admission: Admission, answers: Iterable[Answer]) -> None:
    """Record one event per file, and one per newly owned device."""
    place = {"site_id": origin.site_id, "landing": origin.landing}
    loaded = [{**place, "path": o.file.path, "generation": o.file.generation} for o in admission.loads]
    claimed = [{**place, "path": device} for load in admission.loads for device in load.claims]
    told = [(a, {**place, "path": a.path, "generation": a.generation, "reason": a.reason}) for a in answers]
    record_many(connection, "file.loaded", loaded)
    record_many(connection, "device.claimed", claimed)
    record_many(connection, "file.refused", [event for a, event in told if a.outcome == "refused"])
    record_many(connection, "file.awaited", [event for a, event in told if a.outcome == "awaited"])
    record_many(connection, "file.quarantined", [event for a, event in told if a.outcome == "quarantined"])


@dataclass(frozen=True)
class Recorded:
    """`answers`, `pending` (path, reason) and `again` (files to resend) go into the receipt. `clashes`: series that got two
    types, one sentence each. `claimed`: devices that the site owns from now on."""

    answers: tuple[Answer, ...]
    pending: tuple[tuple[str, str], ...]
    again: tuple[Requested, ...]
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
    """Record catalog, owners, troubles, schema, inventory and vanished files of one landing. `at` in seconds since 1970.
    `found`: results of `removal.survival`, by path."""
    names = SiteNames({s.site_id: s.name for s in landing_rows.read_sites(connection).values()})
    answers = write_admission(connection, origin, admission, names, at)
    clashes = schema.write_schema(connection, origin, logs, admission.loads)
    landing_rows.take_inventory(connection, origin.receiver, origin.site_id, _inventory_change(manifest))
    note_gone(connection, origin.receiver, origin.site_id, manifest.removed)
    held = {v.path: v.generation for v in manifest.held}
    gone = {v.path for v in (*manifest.superseded, *manifest.dropped)} | held.keys()
    back = {entry.path for entry in manifest.added} - gone
    lift_listed(connection, origin, back, at)
    keep_below_live(connection, origin, held, at)
    vanished = apply_vanished(connection, origin, drops_of_manifest(manifest, at), manifest.deletes, at, found)
    paths = vanished | held.keys() | back | {file.path for file in manifest.files}
    late = recheck_settled(connection, origin.receiver, origin.site_id, paths, at)
    pending = {**dict(still_waiting(connection, origin)), **late.waits}
    claimed = tuple(sorted({device for load in admission.loads for device in load.claims}))
    return Recorded(answers + schema.schema_answers(logs), tuple(pending.items()), late.again, clashes, claimed)


def make_landing_row(
    receiver: str, record: FoundManifest, state: str, found: float, reason: str | None = None
) -> LandingRow:
    """Build the ledger's row of a landing. `found` in seconds since 1970."""
    manifest, folder = record.manifest, record.folder
    return LandingRow(
        receiver=receiver,
        landing=folder.landing,
        site_id=folder.site_id,
        sequence=manifest.sequence if manifest else 0,
        previous=manifest.previous if manifest else None,
        run_id=manifest.run_id if manifest else "",
        part=manifest.part if manifest else 0,
        state=state,
        reason=reason,
        manifest_sha256=record.sha256,
        files=len(manifest.files) if manifest else 0,
        bytes=sum(p.size for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p) if manifest else 0,
        found=found,
        listed=manifest.listed if manifest else None,
    )


def _inventory_change(manifest: Manifest) -> InventoryChange:
    return InventoryChange(
        landing=manifest.landing,
        added=tuple((e.path, e.size, e.mtime, e.extent, bool(e.reason)) for e in manifest.named_added),
        carried=tuple((f.path, f.tsfile.size if f.tsfile else 0, f.mtime, f.generation) for f in manifest.files),
        removed=manifest.removed,
    )


def site_of_manifest(manifest: Manifest) -> SiteRow:
    """Return the row of the site that made the manifest."""
    return SiteRow(manifest.site_id, manifest.site_name, manifest.time_unit, manifest.partition_interval_ms, manifest.prefix)


def drops_of_manifest(manifest: Manifest, at: float) -> Iterator[DropRow]:
    """Yield the vanished files that a manifest reports, as pending rows."""
    for kind, vanished in (("superseded", manifest.superseded), ("dropped", manifest.dropped)):
        for v in vanished:
            yield DropRow(v.path, v.generation, kind, v.covered_by, manifest.landing, at)
