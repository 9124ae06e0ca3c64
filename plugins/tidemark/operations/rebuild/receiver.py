"""Rebuild the receiver's side of a ledger: replay its documents in order of time, with the present files.

    list the files → read the documents → for each moment: describe its files (in child processes), record it → find
    missing files and files without a record

Answers are not decided again (`operations.rebuild.answers`). Everything else (owners, superseded and dropped files, schema)
is recorded as by a load (`receiver.load.record`). Landings without an answer are left to the next load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.app import App
from tidemark.engines.choose import Engine, PoolEngine
from tidemark.errors import CorruptionError, TaskLimitError
from tidemark.formats.landing import Answer, Manifest, Receipt, encode_document
from tidemark.formats.layout import FOLDERS
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.landings import LandingRow, SiteRow
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.operations.rebuild.answers import Answered, StoredFiles, limit_claims, rebuild_admission, without_claims
from tidemark.operations.rebuild.decisions import LateLoads, replay_decision, replay_settled
from tidemark.operations.rebuild.history import LandingRecord, Moment, ReceiverHistory, read_history
from tidemark.operations.rebuild.result import Findings, Lost, Remains, conclude_rebuild
from tidemark.progress import Progress, Tick
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import Origin
from tidemark.receiver.load.check import KeptTask
from tidemark.receiver.load.examine import find_survivors
from tidemark.receiver.load.record import drops_of_manifest, known_before, record_landing
from tidemark.receiver.load.removal.survival import list_questions
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.listing import all_files
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path
from tidemark.tsfiles.statistics import FileFacts
from tidemark.untrusted_files import UntrustedFile

_BATCH_FILES = 512  # files described at once: starting processes costs more than a file


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
    late: LateLoads = field(default_factory=LateLoads)


@dataclass(frozen=True)
class _Landed:
    """An answered landing with the facts of each file. `kept`: its answer is the receiver's own copy."""

    manifest: Manifest
    sha256: str
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
        with app.ledger.write() as connection:
            work.late.load_transferred(connection, receiver, traces, app.clock(), whoever=True)
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
    paper, receipt, text = work.books.read_records(heard)
    if paper.manifest is None:
        return None
    manifest = paper.manifest
    if receipt is None:
        answers = tuple(Answer(file.path, file.generation, "loaded") for file in manifest.files)
        receipt = Receipt(manifest.landing, manifest.sequence, paper.sha256, at, answers)
        text = encode_document(receipt).decode()
    told = {(answer.path, answer.generation): answer for answer in receipt.answers}
    files = []
    for file in manifest.files:
        name = parse_source_path(file.path, manifest.data)
        location = work.traces.data_file(manifest.site_id, file, name) if name and file.tsfile else ""
        answer = told.get((file.path, file.generation), Answer(file.path, file.generation, "loaded"))
        files.append(Answered(file, answer, location))
    return _Landed(manifest, paper.sha256, receipt, text, tuple(files), work.books.is_kept(heard))


def _describe_files(work: _Work, moments: Sequence[Moment], landings: Sequence[_Landed]) -> dict[str, FileFacts]:
    """Describe the data files of these moments: location → facts. An unreadable one counts as missing."""
    wanted: dict[str, str] = {}
    for landed in landings:
        for one in landed.files:
            name = parse_source_path(one.file.path, landed.manifest.data)
            if one.location and name:
                wanted[one.location] = name.database
    for moment in moments:
        if isinstance(moment.what, tuple):
            wanted |= {p.location: p.database for p in moment.what if work.traces.sizes.get(p.location) == p.size}
    places = sorted(wanted)
    tasks = [KeptTask(UntrustedFile(str(work.root), place), wanted[place]) for place in places]
    facts: dict[str, FileFacts] = {}
    for outcome in _make_engine().run("describe_kept", tasks) if tasks else ():
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


def _make_engine() -> Engine:
    return PoolEngine()


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
            trouble, lost = replay_settled(connection, work.receiver, what, facts, work.traces)
            work.findings.troubles += trouble
            work.findings.lost += [Lost(work.receiver.name, site_id, path) for site_id, path in lost]
        else:
            replay_decision(connection, work.receiver.name, what)
            work.late.load_transferred(connection, work.receiver, work.traces, moment.at)


def _replay_landing(work: _Work, landed: _Landed, at: float) -> None:
    manifest, receiver = landed.manifest, work.receiver
    origin = Origin.from_manifest(manifest, receiver.name, receiver.partition_interval_ms)
    logs = schema.recall_logs(work.app.ledger, work.store, origin, manifest)
    extents = {entry.path: entry.extent for entry in manifest.added}
    paths = [file.path for file in manifest.files if file.path not in extents]
    devices = {d.device for one in landed.files if one.facts for d in one.facts.devices}
    devices |= {device for extent in extents.values() for device, _, _ in extent}
    devices |= {answer.device for answer in landed.receipt.answers if answer.device}
    with work.app.ledger.write() as connection:
        site = SiteRow(manifest.site_id, manifest.site_name, manifest.time_unit, manifest.partition_interval_ms)
        landing_rows.put_site(connection, site, manifest.created)
        extents |= landing_rows.extents_of(connection, receiver.name, manifest.site_id, paths)
        devices |= {device for path in paths for device, _, _ in extents.get(path, ())}
        known = known_before(connection, origin, manifest.files, devices)
        admission = rebuild_admission(origin, landed.files, known, extents, work.traces, at)
        claimed = landed.receipt.claimed if landed.kept else None
        admission = limit_claims(admission, known) if claimed is None else without_claims(admission)
        asked = list_questions(connection, origin, drops_of_manifest(manifest, at), admission.loads)
        found = find_survivors(work.app, work.root, asked)
        record_landing(connection, origin, manifest, admission, logs, at, found)
        owners = [OwnerRow(device, manifest.site_id, at, manifest.landing) for device in claimed or ()]
        refusal_rows.put_owners(connection, receiver.name, owners)
        if landed.kept:
            work.late.remember_refused(origin, landed.files, admission, work.traces)
        row = _make_landing_row(work, manifest.landing, manifest.site_id, at)
        landing_rows.put_landing(
            connection,
            replace(
                row,
                sequence=manifest.sequence,
                previous=manifest.previous,
                run_id=manifest.run_id,
                part=manifest.part,
                manifest_sha256=landed.sha256,
                files=len(manifest.files),
                bytes=sum(p.size for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p),
                found=manifest.created,
                receipt=landed.text,
                listed=manifest.listed,
            ),
        )


def _remember_unreadable(work: _Work, heard: LandingRecord, at: float) -> None:
    """Record a landing with a damaged manifest; the sequence continues after it."""
    paper, receipt, text = work.books.read_records(heard)
    work.findings.troubles.append(
        f"landing {heard.landing} of site {heard.site_id}: {paper.trouble}; what it told is not known"
    )
    row = _make_landing_row(work, heard.landing, heard.site_id, at)
    sha256 = receipt.manifest_sha256 if receipt else paper.sha256
    with work.app.ledger.write() as connection:
        row = replace(row, sequence=heard.sequence, manifest_sha256=sha256, receipt=text, reason=paper.trouble)
        landing_rows.put_landing(connection, row)


def _make_landing_row(work: _Work, landing: str, site_id: str, at: float) -> LandingRow:
    return LandingRow(
        receiver=work.receiver.name,
        landing=landing,
        site_id=site_id,
        sequence=0,
        previous=None,
        run_id=landing.rpartition("-")[0],
        part=0,
        state="loaded",
        reason=None,
        manifest_sha256="",
        files=0,
        bytes=0,
        found=at,
        loaded=at,
    )
