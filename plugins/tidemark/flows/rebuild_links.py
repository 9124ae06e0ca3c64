"""The link's side of a rebuilt ledger: read a link's manifests and receipts at its receiver, near or far."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError
from tidemark.flows.rebuild_result import Findings
from tidemark.formats.landing import Manifest, Receipt, decode_manifest, decode_receipt
from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder, schema_location
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import SchemaPosition, Seen
from tidemark.progress import Progress, Tick
from tidemark.settings.model import LinkSettings, SiteSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.protocol import Store
from tidemark.sync.recall import Log, Recalled, RunStory, interrupted, recall

_PAPERS = 200  # read in one go
_BLOCK = 4 << 20


@dataclass(frozen=True)
class _Read:
    """What a first look at a site's landings found: the link's in sequence, those without a manifest, the newest of all
    by number and name: where its manifest is damaged its receipt tells the number."""

    landings: Sequence[str]
    open: Sequence[str]
    newest: tuple[int, str | None]


def rebuild_link(app: App, link: LinkSettings, findings: Findings, progress: Progress) -> None:
    """Write the link's rows into the app's (empty) ledger. Interrupted landings at the receiver are removed, but the one
    of the run that the next sync continues."""
    site = app.site(link.site)
    with app.receiver_store(app.receiver(link.receiver)) as store:
        read = _first_look(store, site.id, link.name, findings)
        recalled = recall(_papers(store, site.id, read.landings, findings, progress))
        if not (recalled.landings or read.newest[0] or read.open):
            return
        positions = [_position(store, site.id, path, log) for path, log in sorted(recalled.logs.items())]
        adopted = _adopted(app, site, recalled)
        with app.ledger.write() as connection:
            link_rows.put_site(connection, site.id, site.name, site.time_unit, site.partition_interval_ms)
            _write_files(connection, link.name, recalled, adopted)
            link_rows.put_schema_positions(connection, link.name, positions)
            _write_runs(connection, link, site.id, recalled, read.newest)
        _settle_open(app, store, link, site.id, recalled, read.open, findings)


def _first_look(store: Store, site_id: str, link: str, findings: Findings) -> _Read:
    names = store.list_folder(f"landing/{site_id}")
    mine: list[tuple[int, str]] = []
    empty: list[str] = []
    newest: tuple[int, str | None] = (0, None)
    for name, data, answer in _read_pairs(store, site_id, names):
        try:
            receipt = decode_receipt(answer) if answer is not None else None
        except CorruptionError:
            receipt = None  # the receiver's half of the rebuild, or the next run's first step, names it
        if data is None:
            empty += [name] if receipt is None else []
            continue
        try:
            manifest = decode_manifest(data)
        except CorruptionError as broken:
            newest = max(newest, (receipt.sequence, name)) if receipt else newest
            findings.troubles.append(f"landing {name} of link {link}: {broken.message}; what it told is not known")
            continue
        if manifest.link == link:
            mine.append((manifest.sequence, name))
            newest = max(newest, (manifest.sequence, name))
    return _Read([name for _, name in sorted(mine)], empty, newest)


def _read_pairs(store: Store, site_id: str, names: Sequence[str]) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    """(landing, manifest, receipt) of each landing."""
    for start in range(0, len(names), _PAPERS):
        some = names[start : start + _PAPERS]
        manifests = store.read_many([f"{landing_folder(site_id, name)}/{MANIFEST}" for name in some])
        told = [data for _, data in manifests]
        answers = [data for _, data in store.read_many([f"{landing_folder(site_id, name)}/{RECEIPT}" for name in some])]
        yield from zip(some, told, answers, strict=True)


def _papers(
    store: Store, site_id: str, landings: Sequence[str], findings: Findings, progress: Progress
) -> Iterator[tuple[Manifest, str, tuple[Receipt, str] | None, str]]:
    sequence = 0
    for number, (name, data, answer) in enumerate(_read_pairs(store, site_id, landings), 1):
        progress(Tick("link", number, len(landings)))
        if data is None:
            raise CorruptionError(f"manifest.json of landing {name} went away while it was read", hint="run it again")
        manifest, sha256 = decode_manifest(data), hashlib.sha256(data).hexdigest()
        if manifest.sequence <= sequence:
            findings.troubles.append(
                f"landing {name}: sequence {manifest.sequence} was given twice; this one is passed over"
            )
            continue
        sequence = manifest.sequence
        yield manifest, sha256, _receipt(answer, sha256), landing_folder(site_id, name)


def _receipt(data: bytes | None, manifest_sha256: str) -> tuple[Receipt, str] | None:
    """The answer to exactly this manifest; any other is left to the next run, which names it."""
    if data is None:
        return None
    try:
        receipt = decode_receipt(data)
    except CorruptionError:
        return None
    return (receipt, data.decode()) if receipt.manifest_sha256 == manifest_sha256 else None


def _position(store: Store, site_id: str, path: str, log: Log) -> SchemaPosition:
    """The log's position with the digest of what the receiver has of it: kept bytes, then pieces that are not loaded yet.

    Where a byte is missing the digest stays empty: the next run sends the log from its start under the next epoch.
    """
    kept = store.stat(schema_location(site_id, path, log.epoch))
    digest = hashlib.sha256()
    at = min(kept.size if kept else 0, log.position)
    if kept:
        for data in store.chunks(kept.path, 0, at, _BLOCK):
            digest.update(data)
    for piece in sorted(log.pieces):
        if piece.start <= at < piece.start + piece.size and store.stat(piece.path) is not None:
            for data in store.chunks(piece.path, at - piece.start, piece.start + piece.size - at, _BLOCK):
                digest.update(data)
            at = piece.start + piece.size
    return SchemaPosition(path, log.position, -1, digest.hexdigest() if at == log.position else "", log.epoch)


def _adopted(app: App, site: SiteSettings, recalled: Recalled) -> list[tuple[Seen, int]]:
    """Adopted files with the size of their mods, which no manifest carries: as they are at the site today."""
    if not recalled.adopted:
        return []
    with app.site_store(site) as source:
        sealed = classify_files(source, source.list_files(site.data).entries, site.data).sealed
    mods = {file.entry.path: file.mods.size for file in sealed if file.mods}
    return [(seen, mods.get(path, 0)) for path, seen in recalled.adopted.items()]


def _write_files(connection: Connection, link: str, recalled: Recalled, adopted: Sequence[tuple[Seen, int]]) -> None:
    link_rows.ack_files(connection, link, recalled.acked.values())
    link_rows.adopt_files(connection, link, adopted)
    link_rows.add_files(connection, link, recalled.waiting.values())
    for path, reason in recalled.reasons().items():
        link_rows.note_reason(connection, link, [path], reason)
    link_rows.mark_gone(connection, link, recalled.gone & recalled.acked.keys())
    link_rows.mark_held(connection, link, recalled.held & recalled.acked.keys())
    link_rows.put_extents(connection, link, recalled.extents)
    weak = [hold_rows.Sent(path, generation, False, True) for path, generation in recalled.unverified.items()]
    hold_rows.note_sent(connection, link, weak)


def _write_runs(
    connection: Connection, link: LinkSettings, site_id: str, recalled: Recalled, newest: tuple[int, str | None]
) -> None:
    link_rows.add_link(connection, link.name, site_id, link.receiver)
    for run in recalled.runs.values():
        _write_run(connection, link.name, run)
    for landing in recalled.answered():
        run_rows.add_landing(connection, landing)
        run_rows.set_landing(
            connection, landing.landing, landed=landing.created, state=landing.state, receipt=landing.receipt
        )
    last = recalled.landings[-1] if recalled.landings else None
    link_rows.set_link(
        connection,
        link.name,
        next_sequence=newest[0] + 1,
        last_landing=newest[1],
        last_run=last.run_id if last else None,
        last_success=last.created if last else None,
        listed=recalled.listed,
        selected=recalled.listed,
    )


def _write_run(connection: Connection, link: str, run: RunStory) -> None:
    run_rows.add_run(connection, run.run_id, link, 0, {})
    run_rows.set_run(
        connection,
        run.run_id,
        state="finished",
        step="done",
        started=run.started,
        ended=run.at,
        files=run.files,
        bytes=run.bytes,
        sent_bytes=run.bytes,
        dropped=run.dropped,
        schema_bytes=run.schema_bytes,
        error=None if run.ended else "the ledger was lost before its last part landed; the next run sends the rest",
    )


def _settle_open(
    app: App, store: Store, link: LinkSettings, site_id: str, recalled: Recalled, folders: Sequence[str], findings: Findings
) -> None:
    """Landings without a manifest: of a run that died with the ledger. One run is gone on with, the rest is removed."""
    of_site = (one for one in app.settings.links.values() if app.site(one.site).id == site_id)
    beside = ", ".join(one.name for one in of_site if one.receiver == link.receiver)
    if beside != link.name:
        told = "has no manifest, and any of these links may have begun it: remove it"
        findings.troubles += [f"landing {folder} of site {site_id} {told} ({beside})" for folder in folders]
        return
    run, doomed = interrupted(recalled.runs, folders)
    for folder in doomed:
        store.remove_tree(landing_folder(site_id, folder))
    findings.removed += doomed
    if run is not None:
        with app.ledger.write() as connection:
            run_rows.add_run(connection, run, link.name, 0, {})
            run_rows.set_run(connection, run, state="failed", error="the ledger was lost while it ran")
        findings.continued.append(run)
