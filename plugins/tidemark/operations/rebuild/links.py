"""Rebuild the link's side of a ledger from its manifests and receipts at its receiver, local or remote.

A manifest carries all that `file`, `file_extent`, `sent_landing` and `schema_position` need, but inodes, which never count
alone, and the digest of a schema log's first bytes, which the receiver's copy gives. `replay_manifests` computes from the
manifests in sequence what a link had sent and what was acknowledged; it is pure. Interrupted landings at the receiver are
removed, but not the one of the run that the next sync continues.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.formats.answered import FOLDER as ANSWERED
from tidemark.formats.answered import kept_receipt, landing_of_receipt
from tidemark.formats.landing import LandedFile, Manifest, Part, Receipt, decode_manifest, decode_receipt, read_documents
from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder, schema_location
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import Acked, Extent, SchemaPosition, Seen
from tidemark.ledger.sender.runs import SentLanding
from tidemark.operations.rebuild.gaps import Told, find_lost
from tidemark.operations.rebuild.result import Findings
from tidemark.progress import Progress, Tick
from tidemark.settings.model import LinkSettings, SiteSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.protocol import Store
from tidemark.sync.select.choose import ADOPTED

_READ_AT_ONCE = 200  # manifests or receipts read at once
_BLOCK = 4 << 20


@dataclass(frozen=True)
class _Read:
    """A site's landings: those of the link in sequence, those without a manifest, those that are lost, and the newest by
    number and name. If its manifest is damaged, the number comes from its receipt."""

    landings: Sequence[str]
    open: Sequence[str]
    lost: Sequence[SentLanding]
    newest: tuple[int, str | None]


def rebuild_link(app: App, link: LinkSettings, findings: Findings, progress: Progress) -> None:
    """Write the link's rows into the app's (empty) ledger. Interrupted landings at the receiver are removed, except that of
    the run that the next sync continues."""
    site = app.site_settings(link.site)
    beside = _list_links_beside(app, link, site.id)
    with app.receiver_store(app.receiver_settings(link.receiver)) as store:
        read = _list_landings(store, site.id, link.name, app.clock(), findings, alone=not beside)
        recalled = replay_manifests(_read_landings(store, site.id, read.landings, findings, progress))
        if not (recalled.landings or read.newest[0] or read.open):
            return
        for lost in read.lost:
            recalled.runs.setdefault(lost.run_id, RunFacts(lost.run_id, lost.created, lost.created))
        positions = [_rebuild_position(store, site.id, path, log) for path, log in sorted(recalled.logs.items())]
        adopted = _read_adopted(app, site, recalled)
        with app.ledger.write() as connection:
            prefix = site.prefix if recalled.prefix is None else recalled.prefix  # one that was changed is refused by a sync
            link_rows.put_site(connection, site.id, site.name, site.time_unit, site.partition_interval_ms, prefix=prefix)
            _write_files(connection, link.name, recalled, adopted)
            link_rows.put_schema_positions(connection, link.name, positions)
            _write_runs(connection, link, site.id, recalled, read)
        if beside:
            told = "has no manifest, and any of these links may have begun it: remove it"
            links = ", ".join([link.name, *beside])
            findings.troubles += [f"landing {folder} of site {site.id} {told} ({links})" for folder in read.open]
        else:
            _resolve_open(app, store, link, site.id, recalled, read.open, findings)


def _list_links_beside(app: App, link: LinkSettings, site_id: str) -> list[str]:
    """Return the other links of the site to the same receiver."""
    of_site = (one for one in app.settings.links.values() if app.site_settings(one.site).id == site_id)
    return [one.name for one in of_site if one.receiver == link.receiver and one.name != link.name]


def _list_landings(store: Store, site_id: str, link: str, at: float, findings: Findings, alone: bool) -> _Read:
    """`alone`: the site has no other link to this receiver, so that a damaged manifest is one of this link."""
    names = store.list_folder(f"landing/{site_id}")
    told: list[Told] = []
    mine: list[tuple[int, str]] = []
    empty: list[str] = []
    damaged: list[str] = []
    for name, data, answer in _read_pairs(store, site_id, names):
        try:
            receipt = decode_receipt(answer) if answer is not None else None
        except CorruptionError:
            receipt = None  # the receiver's rebuild, or the next run's first step, reports it
        if data is None and receipt is not None:
            told.append(Told(receipt.sequence, name, None, True))
            continue
        if data is None and MANIFEST not in store.list_folder(landing_folder(site_id, name)):
            empty.append(name)
            continue
        try:
            if data is None:
                raise CorruptionError("manifest.json is no regular file")
            manifest = decode_manifest(data)
        except CorruptionError as broken:
            told += [Told(receipt.sequence, name, None, True)] if receipt else []
            damaged.append(name)
            findings.troubles.append(f"landing {name} of link {link}: {broken.message}; what it told is not known")
            continue
        if manifest.link == link:
            mine.append((manifest.sequence, name))
            told.append(Told(manifest.sequence, name, manifest.previous, receipt is not None))
    lost = find_lost(link, told, damaged if alone else (), at)
    if lost:
        told += _read_kept(store, site_id)
        lost = find_lost(link, told, damaged if alone else (), at)
    findings.troubles += [
        f"landing {one.landing} of link {link} (sequence {one.sequence}) is lost, and was not loaded: put it back and"
        f" rebuild again; or ./tidemark verify --repair, then ./tidemark sync {link} sends its files again"
        for one in lost
    ]
    numbers = [*((one.sequence, one.landing) for one in told), *((one.sequence, one.landing) for one in lost)]
    return _Read([name for _, name in sorted(mine)], empty, lost, max(numbers, default=(0, None)))


def _read_kept(store: Store, site_id: str) -> list[Told]:
    """Return the landings of the site that the receiver answered, by its own copies; none where this user may not read."""
    told: list[Told] = []
    with suppress(PermissionDeniedError):
        names = [name for name in map(landing_of_receipt, store.list_folder(f"{ANSWERED}/{site_id}")) if name]
        for start in range(0, len(names), _READ_AT_ONCE):
            some = names[start : start + _READ_AT_ONCE]
            for name, data in zip(some, read_documents(store, [kept_receipt(site_id, one) for one in some]), strict=True):
                with suppress(CorruptionError):
                    told += [Told(decode_receipt(data).sequence, name, None, True)] if data is not None else []
    return told


def _read_pairs(store: Store, site_id: str, names: Sequence[str]) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    """Yield (landing, manifest, receipt) of each landing."""
    for start in range(0, len(names), _READ_AT_ONCE):
        some = names[start : start + _READ_AT_ONCE]
        told, answers = (
            read_documents(store, [f"{landing_folder(site_id, name)}/{record}" for name in some])
            for record in (MANIFEST, RECEIPT)
        )
        yield from zip(some, told, answers, strict=True)


def _read_landings(
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
        yield manifest, sha256, _decode_answer(answer, sha256), landing_folder(site_id, name)


def _decode_answer(data: bytes | None, manifest_sha256: str) -> tuple[Receipt, str] | None:
    """Return the answer to exactly this manifest; any other is left to the next run, which reports it."""
    if data is None:
        return None
    try:
        receipt = decode_receipt(data)
    except CorruptionError:
        return None
    return (receipt, data.decode()) if receipt.manifest_sha256 == manifest_sha256 else None


def _rebuild_position(store: Store, site_id: str, path: str, log: Log) -> SchemaPosition:
    """Return the log's position with the digest of the receiver's bytes: kept bytes, then pieces not loaded yet.

    If a byte is missing the digest stays empty: the next run sends the log from its start under the next epoch.
    """
    kept = store.stat(schema_location(site_id, path, log.epoch))
    digest = hashlib.sha256()
    at = min(kept.size if kept else 0, log.position)
    if kept:
        for data in store.read_chunks(kept.path, 0, at, _BLOCK):
            digest.update(data)
    for piece in sorted(log.pieces):
        if piece.start <= at < piece.start + piece.size and store.stat(piece.path) is not None:
            for data in store.read_chunks(piece.path, at - piece.start, piece.start + piece.size - at, _BLOCK):
                digest.update(data)
            at = piece.start + piece.size
    return SchemaPosition(path, log.position, -1, digest.hexdigest() if at == log.position else "", log.epoch)


def _read_adopted(app: App, site: SiteSettings, recalled: LinkState) -> list[tuple[Seen, int]]:
    """Return adopted files with the present size of their mods at the site, which no manifest carries."""
    if not recalled.adopted:
        return []
    with app.site_store(site) as source:
        sealed = classify_files(source, source.list_files(site.data).entries, site.data).sealed
    mods = {file.entry.path: file.mods.size for file in sealed if file.mods}
    return [(seen, mods.get(path, 0)) for path, seen in recalled.adopted.items()]


def _write_files(connection: Connection, link: str, recalled: LinkState, adopted: Sequence[tuple[Seen, int]]) -> None:
    link_rows.ack_files(connection, link, recalled.acked.values())
    link_rows.adopt_files(connection, link, adopted)
    link_rows.add_files(connection, link, recalled.waiting.values())
    for path, reason in recalled.list_reasons().items():
        link_rows.note_reason(connection, link, [path], reason)
    link_rows.mark_gone(connection, link, recalled.gone & recalled.acked.keys())
    link_rows.mark_held(connection, link, recalled.held & recalled.acked.keys())
    link_rows.put_extents(connection, link, recalled.extents)
    weak = [hold_rows.Sent(path, generation, False, True) for path, generation in recalled.unverified.items()]
    hold_rows.note_sent(connection, link, weak)


def _write_runs(connection: Connection, link: LinkSettings, site_id: str, recalled: LinkState, read: _Read) -> None:
    link_rows.add_link(connection, link.name, site_id, link.receiver)
    for run in recalled.runs.values():
        _write_run(connection, link.name, run)
    for landing in recalled.list_answered():
        run_rows.add_landing(connection, landing)
        run_rows.set_landing(
            connection, landing.landing, landed=landing.created, state=landing.state, receipt=landing.receipt
        )
    for lost in read.lost:
        run_rows.add_landing(connection, lost)
    last = recalled.landings[-1] if recalled.landings else None
    link_rows.set_link(
        connection,
        link.name,
        next_sequence=read.newest[0] + 1,
        last_landing=read.newest[1],
        last_run=last.run_id if last else None,
        last_success=last.created if last else None,
        listed=recalled.listed,
        selected=recalled.listed,
    )


def _write_run(connection: Connection, link: str, run: RunFacts) -> None:
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


def _resolve_open(
    app: App, store: Store, link: LinkSettings, site_id: str, recalled: LinkState, folders: Sequence[str], findings: Findings
) -> None:
    """Resolve landings without a manifest, of a run that died with the ledger: one run is continued, the rest removed."""
    run, doomed = find_interrupted(recalled.runs, folders)
    for folder in doomed:
        store.remove_tree(landing_folder(site_id, folder))
    findings.removed += doomed
    if run is not None:
        with app.ledger.write() as connection:
            run_rows.add_run(connection, run, link.name, 0, {})
            run_rows.set_run(connection, run, state="failed", error="the ledger was lost while it ran")
        findings.continued.append(run)


class Piece(NamedTuple):
    """Bytes of a schema log as they landed: `path` is relative to the receiver's root."""

    start: int
    size: int
    path: str


@dataclass
class Log:
    """A schema log's newest epoch: `position` bytes landed, in `pieces`."""

    epoch: int
    position: int = 0
    pieces: list[Piece] = field(default_factory=list)


@dataclass
class RunFacts:
    """A run as its manifests show it. `ended`: its last part is here."""

    run_id: str
    started: float
    at: float
    ended: bool = False
    files: int = 0
    bytes: int = 0
    dropped: int = 0
    schema_bytes: int = 0


@dataclass
class LinkState:
    """A link's state after the manifests added so far."""

    acked: dict[str, Acked] = field(default_factory=dict)
    waiting: dict[str, Seen] = field(default_factory=dict)  # reported, not acknowledged (again)
    adopted: dict[str, Seen] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)  # reported as vanished, the drop waits; acknowledged all the same
    extents: dict[str, Extent] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)  # acknowledged path → its generation
    runs: dict[str, RunFacts] = field(default_factory=dict)
    landings: list[SentLanding] = field(default_factory=list)
    receipts: dict[str, tuple[Receipt, str]] = field(default_factory=dict)  # by landing
    listed: float | None = None  # the begin of the newest whole listing in a manifest
    prefix: str | None = None  # the site's, of the newest manifest; None: there is none

    def add_manifest(self, manifest: Manifest, sha256: str, receipt: tuple[Receipt, str] | None, folder: str) -> None:
        """Add the next manifest of the sequence; `receipt`: decoded and as text, `folder`: the landing's."""
        self.listed = manifest.listed or self.listed
        self.prefix = manifest.prefix
        for entry in manifest.added:
            self._note_listed(Seen(entry.path, entry.size, entry.mtime, 0, entry.reason or None), entry.extent)
        for file in manifest.files:
            self._ack_file(file, manifest.landing)
        for vanished in (*manifest.superseded, *manifest.dropped):
            self._forget_path(vanished.path)
        self.held |= {vanished.path for vanished in manifest.held}
        for path in manifest.removed:
            if path not in self.acked:  # of acknowledged files only the drop itself counts; it may wait for a cover
                self._forget_path(path)
        for log in manifest.schema:
            self._extend_log(log.path, log.epoch, log.start, log.part, folder)
        size = sum(part.size for file in manifest.files for part in _list_parts(file))
        self._extend_run(manifest, size)
        self.landings.append(_sent_landing_of(manifest, sha256, size))
        if receipt is not None:
            self.receipts[manifest.landing] = receipt

    def list_answered(self) -> Iterable[SentLanding]:
        """Yield the landings with their known answers, after all manifests were added."""
        for landing in self.landings:
            receipt = self.receipts.get(landing.landing)
            known = receipt is not None and not self._may_ask_resend(receipt[0])
            yield replace(landing, state="answered", receipt=receipt[1]) if receipt and known else landing

    def _note_listed(self, seen: Seen, extent: Extent) -> None:
        self.extents[seen.path] = extent
        self.gone.discard(seen.path)
        if seen.path in self.held:  # unchanged, or its new content is in this manifest or in the next
            self.held.discard(seen.path)
        elif seen.reason == ADOPTED:
            self.adopted[seen.path] = seen
        else:
            self.waiting[seen.path] = seen

    def _ack_file(self, file: LandedFile, landing: str) -> None:
        before = self.acked.get(file.path)
        size = file.tsfile.size if file.tsfile else before.size if before else 0
        mods_size, mods_sha256 = (file.mods.size, file.mods.sha256) if file.mods else (0, "")
        if file.verified != "source" or (file.tsfile is None and file.path in self.unverified):
            self.unverified[file.path] = file.generation
        else:
            self.unverified.pop(file.path, None)
        self.acked[file.path] = Acked(
            file.path, size, file.mtime, 0, mods_size, file.generation, file.sha256, mods_sha256, landing
        )
        self._clear_open(file.path)

    def _clear_open(self, path: str) -> None:
        self.waiting.pop(path, None)
        self.adopted.pop(path, None)
        self.gone.discard(path)

    def _forget_path(self, path: str) -> None:
        self._clear_open(path)
        self.unverified.pop(path, None)
        self.held.discard(path)
        self.gone.add(path)

    def _extend_log(self, path: str, epoch: int, start: int, part: Part, folder: str) -> None:
        log = self.logs.get(path)
        if log is None or epoch > log.epoch:
            log = self.logs[path] = Log(epoch)
        if epoch == log.epoch:
            log.position = max(log.position, start + part.size)
            log.pieces.append(Piece(start, part.size, f"{folder}/{part.path}"))

    def _extend_run(self, manifest: Manifest, size: int) -> None:
        run = self.runs.setdefault(manifest.run_id, RunFacts(manifest.run_id, manifest.created, manifest.created))
        run.at = max(run.at, manifest.created)
        run.ended |= manifest.last
        run.files += len(manifest.files)
        run.bytes += size
        run.dropped += len(manifest.dropped)
        run.schema_bytes += sum(log.part.size for log in manifest.schema)

    def list_reasons(self) -> Mapping[str, str]:
        """Return {path: why it is not in the centre} of acknowledged files that were refused or wait there."""
        answers = (answer for receipt, _ in self.receipts.values() for answer in receipt.answers)
        told = (a for a in answers if a.outcome in ("refused", "awaited") and self._is_current(a.path, a.generation))
        return {answer.path: f"{answer.outcome}: {answer.reason}" for answer in told}

    def _may_ask_resend(self, receipt: Receipt) -> bool:
        """Return whether the receipt may ask for files again: then the next run's first step reads it as usual."""
        asked = any(self._is_current(one.path, one.generation) and one.path not in self.gone for one in receipt.resend)
        return asked or any(
            answer.outcome == "schema"
            or (answer.outcome == "quarantined" and self._is_current(answer.path, answer.generation))
            for answer in receipt.answers
        )

    def _is_current(self, path: str, generation: int) -> bool:
        return path in self.acked and self.acked[path].generation == generation


def replay_manifests(records: Iterable[tuple[Manifest, str, tuple[Receipt, str] | None, str]]) -> LinkState:
    """Replay all of a link's manifests, in sequence, each with its digest, its receipt and its folder."""
    recalled = LinkState()
    for manifest, sha256, receipt, folder in records:
        recalled.add_manifest(manifest, sha256, receipt, folder)
    return recalled


def find_interrupted(runs: Mapping[str, RunFacts], unfinished: Iterable[str]) -> tuple[str | None, list[str]]:
    """Return (the run to continue, landing folders to remove) of landings without a manifest.

    Only the newest run is continued, and only if none of its parts landed: its sent bytes count then, and its selection and
    inventory are made anew. The bytes of any other are sent again by the next run.
    """
    folders = sorted(unfinished)
    run_of = {folder: folder.rpartition("-")[0] for folder in folders}
    fresh = sorted(run for run in set(run_of.values()) if run not in runs and run > max(runs, default=""))
    kept = fresh[-1] if fresh else None
    return kept, [folder for folder in folders if run_of[folder] != kept or not folder.endswith("-1")]


def _list_parts(file: LandedFile) -> list[Part]:
    return [part for part in (file.tsfile, file.resource, file.mods) if part is not None]


def _sent_landing_of(manifest: Manifest, sha256: str, size: int) -> SentLanding:
    return SentLanding(
        landing=manifest.landing,
        run_id=manifest.run_id,
        link=manifest.link,
        part=manifest.part,
        sequence=manifest.sequence,
        previous=manifest.previous,
        state="landed",
        last=manifest.last,
        created=manifest.created,
        manifest_sha256=sha256,
        files=len(manifest.files),
        bytes=size,
    )
