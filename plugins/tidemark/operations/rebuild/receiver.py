"""Rebuild the receiver's side of a ledger: replay its documents in order of time, with the present files.

    list the files → read the documents → for each moment: describe its files (in child processes), record it → find
    missing files and files without a record

Answers are not decided again (`operations.rebuild.answers`). Everything else (owners, superseded and dropped files, schema,
an operator's decisions, refused files that were loaded later) is recorded as by a load (`receiver.load.record`,
`receiver.load.retry`). Landings without an answer are left to the next load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.engines.choose import choose_pool
from tidemark.errors import CorruptionError, TaskLimitError
from tidemark.formats.landing import Answer, Manifest, Receipt, decode_entry, encode_document
from tidemark.formats.layout import FOLDERS
from tidemark.formats.records import ADOPTED, APPROVE, DISMISS, GIVE_UP, TRANSFER, Decision, Settlement
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.landings import DropRow
from tidemark.ledger.receiver.merges import Account, MergedFile
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.operations.rebuild.answers import Answered, StoredFiles, limit_claims, rebuild_admission
from tidemark.operations.rebuild.history import LandingRecord, Moment, ReceiverHistory, read_history
from tidemark.operations.rebuild.result import Findings, Lost, Remains, conclude_rebuild
from tidemark.progress import Progress, Tick
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import Load, Origin
from tidemark.receiver.load.check import KeptTask
from tidemark.receiver.load.examine import find_survivors
from tidemark.receiver.load.landings import FoundManifest
from tidemark.receiver.load.record import (
    drops_of_manifest,
    known_before,
    make_landing_row,
    record_landing,
    site_of_manifest,
)
from tidemark.receiver.load.removal.replaced import give_up_kept, leave_approved
from tidemark.receiver.load.removal.rules import Survival
from tidemark.receiver.load.removal.survival import Found, due_drops, list_questions
from tidemark.receiver.load.retry import may_try, origin_of_waiting, record_retried
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.listing import all_files
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path
from tidemark.tsfiles.statistics import FileFacts
from tidemark.untrusted_files import UntrustedFile

_BATCH_FILES = 512  # files described at once: starting processes costs more than a file
_ANY = ("live", "retired", "reclaimed")


@dataclass(frozen=True)
class _Work:
    app: App
    receiver: ReceiverSettings
    root: Path
    store: Store
    traces: StoredFiles
    books: ReceiverHistory
    findings: Findings
    damaged: set[str] = field(default_factory=set)  # data files that cannot be read
    refused: dict[str, FileFacts] = field(default_factory=dict)  # data files of refused files: they were loaded later

    def has_bytes(self, row: CatalogFile) -> bool:
        return row.location in self.traces and row.location not in self.damaged


@dataclass(frozen=True)
class _Landed:
    """An answered landing with the facts of each file. `kept`: its answer is the receiver's own copy."""

    found: FoundManifest
    manifest: Manifest
    receipt: Receipt
    text: str
    files: tuple[Answered, ...]
    kept: bool


def rebuild_receiver(app: App, receiver: ReceiverSettings, root: Path, findings: Findings, progress: Progress) -> None:
    """Write the receiver's rows into the app's (empty) ledger. Nothing changes at the receiver, except that unreadable data
    files are moved below `quarantine/damaged/`: the same content, when it comes again, gets their name."""
    with app.receiver_store(receiver) as store:
        traces = StoredFiles({entry.path: entry.size for entry in all_files(store, FOLDERS)})
        books = read_history(root, store, traces)
        findings.troubles += books.troubles
        work = _Work(app, receiver, root, store, traces, books, findings)
        done = 0
        for moments in _batch_moments(books):
            landings = {m.what: _read_landing(work, m.what, m.at) for m in moments if isinstance(m.what, LandingRecord)}
            facts = _describe_files(work, moments, [one for one in landings.values() if one])
            for moment in moments:
                _replay_moment(work, moment, landings, facts)
                done += 1
                progress(Tick(f"rebuild {receiver.name}", done, len(books.moments)))
        _load_transferred(work, app.clock(), whoever=True)
        for place in sorted(work.damaged):
            store.rename(place, f"quarantine/damaged/{place}")
        # CRASH WINDOW: moved and not recorded: the repeated rebuild finds it missing, with the same result.
        conclude_rebuild(app, receiver, Remains(traces, books, frozenset(work.damaged)), findings)


def _batch_moments(books: ReceiverHistory) -> Iterator[list[Moment]]:
    batch: list[Moment] = []
    files = 0
    for moment in books.moments:
        batch.append(moment)
        files += books.count_files(moment)
        if files >= _BATCH_FILES:
            yield batch
            batch, files = [], 0
    yield batch


def _read_landing(work: _Work, heard: LandingRecord, at: float) -> _Landed | None:
    """Read a landing's documents and find its files; None if its manifest cannot be read."""
    record, receipt, text = work.books.read_records(heard)
    if record.manifest is None:
        return None
    manifest = record.manifest
    if receipt is None:
        answers = tuple(Answer(file.path, file.generation, "loaded") for file in manifest.files)
        receipt = Receipt(manifest.landing, manifest.sequence, record.sha256, at, answers)
        text = encode_document(receipt).decode()
    told = {(answer.path, answer.generation): answer for answer in receipt.answers}
    files = []
    for file in manifest.files:
        name = parse_source_path(file.path, manifest.data)
        location = work.traces.data_file(manifest.site_id, file, name) if name and file.tsfile else ""
        answer = told.get((file.path, file.generation), Answer(file.path, file.generation, "loaded"))
        files.append(Answered(file, answer, location))
    return _Landed(record, manifest, receipt, text, tuple(files), work.books.is_kept(heard))


def _describe_files(work: _Work, moments: Sequence[Moment], landings: Sequence[_Landed]) -> dict[str, FileFacts]:
    """Describe the data files of these moments: location → facts. An unreadable one counts as missing."""
    wanted: dict[str, tuple[str, str]] = {}  # location → database and prefix
    for landed in landings:
        for one in landed.files:
            name = parse_source_path(one.file.path, landed.manifest.data)
            if one.location and name:
                wanted[one.location] = name.database, landed.manifest.prefix
    for moment in moments:
        if isinstance(moment.what, tuple):
            wanted |= {p.location: (p.database, "") for p in moment.what if work.traces.sizes.get(p.location) == p.size}
    places = sorted(wanted)
    tasks = [KeptTask(UntrustedFile(str(work.root), place), *wanted[place]) for place in places]
    facts: dict[str, FileFacts] = {}
    for outcome in choose_pool("pool").run("describe_kept", tasks) if tasks else ():
        place = places[outcome.index]
        if outcome.error is None:
            facts[place] = outcome.value
        elif isinstance(outcome.error, CorruptionError | TaskLimitError):
            work.damaged.add(place)
            aside = f"it lies in quarantine/damaged/{place} now"
            work.findings.troubles.append(f"{place} cannot be read: {outcome.error.message}; {aside}")
        else:
            raise outcome.error
    return facts


def _replay_moment(
    work: _Work, moment: Moment, landings: Mapping[LandingRecord, _Landed | None], facts: Mapping[str, FileFacts]
) -> None:
    what = moment.what
    if isinstance(what, LandingRecord):
        landed = landings[what]
        if landed is None:
            _remember_unreadable(work, what, moment.at)
        else:
            known = tuple(
                replace(one, location=one.location if one.location in facts else "", facts=facts.get(one.location))
                for one in landed.files
            )
            _replay_landing(work, replace(landed, files=known), moment.at)
        return
    with work.app.ledger.write() as connection:
        if isinstance(what, tuple):
            _replay_settled(work, connection, what, facts)
        else:
            _replay_decision(connection, work.receiver.name, what)
    if isinstance(what, Decision):
        _load_transferred(work, moment.at)


def _replay_landing(work: _Work, landed: _Landed, at: float) -> None:
    manifest, receiver = landed.manifest, work.receiver
    origin = Origin.from_manifest(manifest, receiver.name, receiver.partition_interval_ms)
    logs = schema.recall_logs(work.app.ledger, work.store, origin, manifest)
    extents = {entry.path: entry.extent for entry in manifest.named_added}
    paths = [file.path for file in manifest.files if file.path not in extents]
    devices = {d.device for one in landed.files if one.facts for d in one.facts.devices}
    devices |= {answer.device for answer in landed.receipt.answers if answer.device}
    with work.app.ledger.write() as connection:
        landing_rows.put_site(connection, site_of_manifest(manifest), manifest.created)
        extents |= landing_rows.extents_of(connection, receiver.name, manifest.site_id, paths)
        devices |= {device for extent in extents.values() for device, _, _ in extent}
        known = known_before(connection, origin, manifest.files, devices)
        admission = rebuild_admission(origin, landed.files, known, extents, work.traces, at)
        claimed = landed.receipt.claimed if landed.kept else None
        # Without the receiver's own word a landing gives no device that has an owner: it may be false.
        admission = limit_claims(admission, devices - known.owners.keys() if claimed is None else ())
        found = _find_survivors(work, connection, origin, list(drops_of_manifest(manifest, at)), admission.loads)
        record_landing(connection, origin, manifest, admission, logs, at, found)
        owners = [OwnerRow(device, manifest.site_id, at, manifest.landing) for device in claimed or ()]
        refusal_rows.put_owners(connection, receiver.name, owners)
        row = make_landing_row(receiver.name, landed.found, "loaded", manifest.created)
        landing_rows.put_landing(connection, replace(row, loaded=at, receipt=landed.text))
    work.refused.update((one.location, one.facts) for one in landed.files if one.answer.outcome == "refused" and one.facts)


def _find_survivors(
    work: _Work, connection: Connection, origin: Origin, told: Sequence[DropRow], loads: Sequence[Load]
) -> dict[str, Found]:
    """Return path → what became of a vanished file's points. Without its bytes nothing can be compared: then what its site
    told counts, except that a source of a settled merged file was kept."""
    drops = due_drops(connection, origin, told, [load.file.path for load in loads])
    asked = list_questions(connection, origin, told, loads)
    here = [replace(one, made=tuple(filter(work.has_bytes, one.made))) for one in asked if work.has_bytes(one.gone)]
    found = find_survivors(work.root, here)
    for row in (one.gone for one in asked if one.gone.path not in found):
        settled = (origin.site_id, row.path, row.generation) in work.books.settled_sources
        left = drops[row.path].kind == "superseded" and not settled
        found[row.path] = Found(Survival.LIVES if left else Survival.GONE, drops[row.path].covered_by, _BY_ITS_SITE)
    return found


_BY_ITS_SITE = "its bytes were gone when the ledger was rebuilt: what its site told counts"


def _remember_unreadable(work: _Work, heard: LandingRecord, at: float) -> None:
    """Record a landing with a damaged manifest; the sequence continues after it."""
    record, receipt, text = work.books.read_records(heard)
    work.findings.troubles.append(
        f"landing {heard.landing} of site {heard.site_id}: {record.trouble}; what it told is not known"
    )
    row = make_landing_row(work.receiver.name, record, "loaded", at, record.trouble)
    row = replace(row, sequence=heard.sequence, run_id=heard.landing.rpartition("-")[0], loaded=at, receipt=text)
    with work.app.ledger.write() as connection:
        landing_rows.put_landing(connection, replace(row, manifest_sha256=receipt.manifest_sha256) if receipt else row)


def _replay_decision(connection: Connection, receiver: str, record: Decision) -> None:
    """Apply a decision as far as it still has an effect, and write its row in the audit table."""
    detail = record.detail
    if record.action == TRANSFER:
        before = refusal_rows.owners_of(connection, receiver, [record.subject]).get(record.subject)
        landing = before.landing if before else ""
        refusal_rows.put_owners(connection, receiver, [OwnerRow(record.subject, detail["to"], record.at, landing)])
    elif record.action == ADOPTED:
        taken = refusal_rows.owners_of(connection, receiver, detail["owners"])
        rows = [OwnerRow(d, site, record.at, "adopted") for d, site in sorted(detail["owners"].items()) if d not in taken]
        refusal_rows.put_owners(connection, receiver, rows)
    elif record.action == APPROVE:
        for site_id, drops in detail["drops"].items():
            named = {(path, generation) for path, generation in drops}
            waiting = landing_rows.read_drops(connection, receiver, site_id, states=("waiting",))
            due = [drop for drop in waiting if (drop.path, drop.generation) in named]
            leave_approved(connection, receiver, site_id, due, record.at)
    elif record.action == DISMISS:
        for row in refusal_rows.read_refusals(connection, receiver, site_id=record.subject):
            if (row.path, row.generation) in detail["files"]:
                refusal_rows.end_refusal(connection, row.refusal_id, "dismissed")
    elif record.action == GIVE_UP:
        for held in refusal_rows.held_of_path(connection, receiver, detail["site"], record.subject):
            if held.generation == detail["generation"]:
                refusal_rows.end_quarantine(connection, held.quarantine_id, "dropped")
        gone = landing_rows.drops_of_paths(connection, receiver, detail["site"], [record.subject]).get(record.subject)
        if gone is not None and gone.generation >= detail["generation"]:
            give_up_kept(connection, receiver, gone, "its bytes had rotted", record.at, detail["site"])
    rebuild_rows.put_audit(connection, record.at, record.who, record.action, record.subject, detail)


def _replay_settled(
    work: _Work, connection: Connection, records: Sequence[Settlement], facts: Mapping[str, FileFacts]
) -> None:
    """Settle merged files of one group of sources again. Sources with points in no readable file are lost. Sources that stay
    live without their bytes are left out."""
    first, receiver = records[0], work.receiver.name
    sources = _find_sources(connection, receiver, first)
    there = [record for record in records if record.location in facts]
    work.findings.troubles += [
        f"merged file {record.location}, the only copy of its sources' points, is not here as its record says"
        for record in records
        if record.location not in facts
    ]
    if not there:
        return
    live = [row for row in sources if row.state == "live"]
    merged = [_make_merged_file(receiver, record, facts[record.location]) for record in there]
    ids = merge_rows.publish_merged(connection, receiver, live, merged, first.batch, first.merged) if live else None
    if ids is None:
        work.findings.troubles.append(
            f"merged file {first.location}: its sources are not what its record says; it is not read"
        )
        return
    merge_rows.mark_settled(connection, ids, first.settled)
    _claim_devices(connection, receiver, first, {d.device for record in there for d in facts[record.location].devices})
    for record, one in zip(there, merged, strict=True):
        schema.write_observed(connection, one.file, facts[record.location])
    tables = {(record.database, table): tags for record in there for table, tags in facts[record.location].tables.items()}
    catalog_rows.widen_tables(connection, receiver, first.site_id, tables)
    if len(there) < len(records):
        gone = [row for row in sources if row.path and row.location not in work.traces]
        work.findings.lost += [Lost(receiver, row.site_id, row.path) for row in gone]


def _claim_devices(connection: Connection, receiver: str, record: Settlement, devices: Collection[str]) -> None:
    """Give devices without an owner, of a merged file whose sources are missing, to its site."""
    taken = refusal_rows.owners_of(connection, receiver, devices)
    rows = [OwnerRow(d, record.site_id, record.merged, "") for d in sorted(devices) if d not in taken]
    refusal_rows.put_owners(connection, receiver, rows)


def _find_sources(connection: Connection, receiver: str, record: Settlement) -> list[CatalogFile]:
    """Return the source rows of a merged file; one that is itself a settled merged file is found by its location."""
    wanted = {(source.path, source.generation) for source in record.sources if source.path}
    rows = catalog_rows.sources_of_paths(connection, receiver, record.site_id, [path for path, _ in wanted], _ANY)
    places = {source.location for source in record.sources if not source.path}
    alone = (
        [row.file_id for row in rebuild_rows.catalog_places(connection, receiver) if row.location in places]
        if places
        else []
    )
    return [*(row for row in rows if (row.path, row.generation) in wanted), *catalog_rows.files_by_id(connection, alone)]


def _make_merged_file(receiver: str, record: Settlement, facts: FileFacts) -> MergedFile:
    file = CatalogFile(
        receiver=receiver,
        site_id=record.site_id,
        role="merged",
        path="",
        generation=0,
        database=record.database,
        model=record.model,
        format=facts.version,
        partition_from=record.partition_from,
        partition_to=record.partition_to,
        location=record.location,
        sha256=record.sha256,
        size=record.size,
        mods_location="",
        mods_sha256="",
        points=record.points,
        rank=record.rank,
        created=record.merged,
        marked="dropped" if record.rank[0] < 0 else None,
    )
    devices = tuple(CatalogDevice(d.device, d.start, d.end, d.points) for d in facts.devices)
    return MergedFile(file, devices, Account(record.points_in, record.points, record.overwritten, record.deleted))


def _load_transferred(work: _Work, at: float, whoever: bool = False) -> None:
    """Load refused files whose bytes are among the data files and of which no device is another site's now, or all with
    `whoever`, for transfers without a record. Only answers that the receiver kept count. `at` in seconds since 1970."""
    receiver, traces = work.receiver, work.traces
    with work.app.ledger.write() as connection:
        waiting = refusal_rows.read_refusals(connection, receiver.name)
        for row in waiting:
            if row.location in traces or (row.site_id, row.landing) not in work.books.kept:
                continue
            file, data = decode_entry(row.entry)
            name = parse_source_path(file.path, data)
            place = traces.data_file(row.site_id, file, name) if name else ""
            if place not in work.refused:
                continue
            facts = work.refused[place]
            devices = {row.device, *(device.device for device in facts.devices)}
            owners = refusal_rows.owners_of(connection, receiver.name, devices)
            if not whoever and not all(may_try(owners.get(device), row.site_id) for device in devices):
                continue
            origin = origin_of_waiting(connection, receiver, row)
            known = known_before(connection, origin, [file], {device.device for device in facts.devices})
            loaded = Answered(file, Answer(file.path, file.generation, "loaded"), place, facts)
            record_retried(connection, origin, rebuild_admission(origin, [loaded], known, {}, traces, at), at)
            refusal_rows.end_refusal(connection, row.refusal_id, "replayed")
