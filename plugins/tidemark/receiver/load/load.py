"""Load landings into the catalog: find, check, own, place, record in one transaction per landing, answer, clean.

Works only for a receiver whose folder this process sees. Everything is idempotent: after a crash the next load finds the
same landings unanswered and continues. It reads manifests only, never the sender's ledger: the sender's Tidemark may be
another machine. Source: DESIGN §3, §5; CONTRACT §1 `load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.engine import Connection

from tidemark.app import App, catch_up_mark
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.replicas.promote import require_newest
from tidemark.engines.choose import EngineChoice
from tidemark.errors import CorruptionError, LeaseLostError, PartialError, RetryableError, TaskLimitError, TidemarkError
from tidemark.formats.answered import kept_manifest, landing_sign, list_altered, read_landed, same_answer
from tidemark.formats.landing import Manifest, Receipt, Resend, encode_document
from tidemark.formats.layout import RECEIPT, TAKEN
from tidemark.ledger.journal import record_event, record_many
from tidemark.ledger.leases import assert_held
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import LandingRow
from tidemark.progress import Progress, ignore_progress
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.load import schema
from tidemark.receiver.load.admit import Admission, Origin
from tidemark.receiver.load.examine import (
    CheckedFile,
    ask_survivors,
    called_as_landed,
    copy_landing,
    decide_files,
    examine_all,
    is_ours,
    remove_copies,
    site_of,
    sweep_taken,
)
from tidemark.receiver.load.landings import (
    Arrival,
    Folder,
    FoundManifest,
    catch_up_answers,
    clean_landing,
    find_site_conflict,
    in_batches,
    keep_manifest,
    keep_receipt,
    landing_folders,
    odd_landings,
    order_arrivals,
    read_found_manifest,
    sweep_waiting,
    unnamed_files,
)
from tidemark.receiver.load.place import place_files
from tidemark.receiver.load.record import drops_of_manifest, make_landing_row, record_landing, site_of_manifest
from tidemark.receiver.load.result import LoadResult, Tally, Trouble
from tidemark.receiver.load.retry import replay_refused
from tidemark.receiver.proved_files import note_proved
from tidemark.receiver.session import HeldReceiver, hold_receiver
from tidemark.settings.model import ReceiverSettings
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
_CATCH_UP = 1 << 30  # bytes that a load copies to a late node; housekeeping copies the rest
_BATCH_FILES = 512  # files checked in one batch: starting processes costs more than checking a file


@dataclass(frozen=True)
class Work(HeldReceiver):
    """A load of one receiver."""

    rows: Mapping[tuple[str, str], LandingRow]  # (site, landing) → its row when the load began, of unfinished ones
    finished: Mapping[tuple[str, str], int]  # (site, landing) → its sign when nothing was left to do in it
    done: dict[tuple[str, str], int] = field(default_factory=dict)  # the same for those that this load finished
    placed: list[CatalogFile] = field(default_factory=list)  # files that this load checked and placed
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Landing:
    """A landing that may load now. `row` is written at each of its steps."""

    found: FoundManifest
    manifest: Manifest
    origin: Origin
    row: LandingRow


def load(
    app: App, receiver: ReceiverSettings, site: str = "", engine: EngineChoice = "auto", progress: Progress = ignore_progress
) -> LoadResult:
    """Load every landing of `receiver` (of one `site`, by name or UUID) that can be loaded.

    `engine`: what the caller wants. The result reports faulty landings and files; the rest goes on. Raises UsageError for a
    remote receiver, LeaseHeldError while another load runs, PermanentError for a ledger that is older than the receiver. An
    error of this machine (disk full, no permission, ledger unreachable) stops its site and is raised after the other sites.
    """
    site_id = site_of(app, site)
    with hold_receiver(app, receiver, "load", engine=engine, progress=progress) as session:
        root, store = session.root, session.store
        catch_up_answers(app, receiver, root, store, session.lease)
        with app.ledger.read() as connection:
            rows = landing_rows.read_landings(connection, receiver.name, open_only=True)
            finished = landing_rows.finished_landings(connection, receiver.name)
        work = Work(**vars(session), rows=rows, finished=finished)
        if next(landing_folders(root, site_id, finished), None) is not None:
            require_newest(session.cluster)  # a load without work asks no node
        catch_up_mark(app, receiver, store)
        failed_files = sweep_waiting(app.ledger, store, receiver.name, session.lease)
        failed_files += _sweep_copies(work)
        catch_up(session.cluster, store, most=_CATCH_UP)
        failed_files += replay_refused(session).failed
        for path, why in dict(failed_files).items():
            work.tally.troubles.append(Trouble("refused", "", path, why, PartialError.kind))
        for odd, why in odd_landings(root, site_id):
            work.tally.troubles.append(Trouble("landing", odd, odd, why, PartialError.kind))
        failed = _load_sites(work, landing_folders(root, site_id, finished))
        _note_finished(work)
        catch_up(session.cluster, store, most=0)  # also the schema of the new landings
    if failed:
        raise failed[0]
    return work.tally.make_result(receiver.name)


def _sweep_copies(work: Work) -> list[tuple[str, str]]:
    """Remove copies of an interrupted load. Each landing removes its own ones before it makes them, so a failure is only
    reported."""
    try:
        sweep_taken(work.store)
    except Exception as error:
        return [(TAKEN, f"copies that an interrupted load left cannot be removed: {message_of(require_theirs(error))}")]
    return []


def _load_sites(work: Work, found: Iterable[Folder]) -> list[TidemarkError]:
    """Load site by site. An error stops only its site. Errors of this machine are returned, others go into the tally."""
    folders: dict[str, list[Folder]] = {}
    for folder in found:
        folders.setdefault(folder.site_id, []).append(folder)
    failed: list[TidemarkError] = []
    for site_id, of_site in folders.items():
        try:
            _load_site(work, site_id, of_site)
        except LeaseLostError:
            raise
        except TidemarkError as error:
            failed.append(error)
        except Exception as surprise:
            try:
                told = message_of(require_theirs(surprise))
                work.tally.troubles.append(Trouble("site", "", f"landing/{site_id}", told, PartialError.kind))
            except TidemarkError as ours:
                failed.append(ours)
    return failed


def _load_site(work: Work, site_id: str, folders: Sequence[Folder]) -> None:
    with work.app.ledger.read() as connection:
        last_sequence, last_landing = landing_rows.last_loaded(connection, work.receiver.name, site_id)
        sites = landing_rows.read_sites(connection)
    own = next((site for site in work.app.settings.sites.values() if site.id == site_id), None)
    records: dict[str, FoundManifest] = {}
    for folder in folders:
        row = work.rows.get((site_id, folder.landing))
        if (site_id, folder.landing) in work.finished or (row is not None and row.state == "loaded"):
            _finish_loaded(work, folder)
            continue
        try:
            record = read_found_manifest(work.root, folder)
            trouble = record.trouble or find_site_conflict(record, sites, own)
        except Exception as error:
            _give_up(work, FoundManifest(folder, "", None), error)
            continue
        if trouble:
            _reject_landing(work, record, trouble)
        else:
            records[folder.landing] = record
    arrivals = [Arrival(m.landing, m.sequence, m.previous) for m in (p.manifest for p in records.values()) if m]
    ready: list[FoundManifest] = []
    for verdict in order_arrivals(arrivals, last_sequence, last_landing):
        record = records[verdict.arrival.landing]
        if record.folder.answered and verdict.state == "next":
            _name_foreign_receipt(work, record.folder, _NOT_OURS)
        if verdict.state == "next":
            ready.append(record)
        elif verdict.state == "waiting":
            _defer_landing(work, record, verdict.reason)
        else:
            _reject_landing(work, record, verdict.reason)
    taken = 0
    for batch in in_batches(ready, _BATCH_FILES):
        took = _load_batch(work, batch)
        taken += took
        if took < len(batch):
            for record in ready[taken + 1 :]:
                _defer_landing(
                    work, record, f"it comes after landing {ready[taken].folder.landing}, which could not be loaded"
                )
            return


def _load_batch(work: Work, records: Sequence[FoundManifest]) -> int:
    """Check the files of consecutive landings together, then load landing by landing. Return how many were loaded; if fewer
    than given, the next landing failed by itself and is reported."""
    try:
        landings = [_begin_landing(work, record) for record in records]
        files = [(one.origin, file) for one in landings for file in one.manifest.files]
        checked = called_as_landed(work.root, examine_all(work.app, files, work.root, work.engine, work.progress))
    except Exception as error:
        if len(records) == 1:
            _give_up(work, records[0], error)
            return 0
        require_theirs(error)
        return _one_by_one(work, records)  # to find the faulty one
    for number, one in enumerate(landings):
        try:
            _load_landing(work, one, [c for c in checked if c.origin is one.origin])
        except Exception as error:
            _give_up(work, one.found, error)
            return number
    return len(records)


def _one_by_one(work: Work, records: Sequence[FoundManifest]) -> int:
    return next((number for number, record in enumerate(records) if not _load_batch(work, [record])), len(records))


def _answer_landing(work: Work, record: FoundManifest) -> None:
    """Call `_finish_landing` for a landing recorded just now. A failure is reported only, for the landing is loaded."""
    try:
        _finish_landing(work, record.folder, record)
    except Exception as error:
        _note_unanswered(work, record.folder, error)


def _finish_loaded(work: Work, folder: Folder) -> None:
    """Do what is left to do for a loaded landing. A failure is reported only."""
    try:
        _finish_landing(work, folder, None)
    except Exception as error:
        _note_unanswered(work, folder, error)


def _note_unanswered(work: Work, folder: Folder, error: Exception) -> None:
    reason = f"it is loaded, and its folder cannot be looked after: {message_of(require_theirs(error))}"
    work.tally.troubles.append(Trouble("landing", folder.landing, folder.path, reason, PartialError.kind))


def _begin_landing(work: Work, record: FoundManifest) -> Landing:
    """Record the landing as loading, and its site. Copy its files where others may write to them."""
    manifest, receiver = record.manifest, work.receiver
    assert manifest is not None
    row = make_landing_row(receiver.name, record, "loading", work.app.clock())
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        landing_rows.put_site(connection, site_of_manifest(manifest), row.found)
        landing_rows.put_landing(connection, row)
        if (row.site_id, row.landing) not in work.rows:
            record_event(connection, "landing.found", site_id=row.site_id, landing=row.landing, sequence=row.sequence)
    origin = Origin.from_manifest(manifest, receiver.name, receiver.partition_interval_ms)
    if not is_ours(work.app, origin, record, work.root):
        logs = (log.part.path for log in manifest.schema)
        origin = copy_landing(work.store, work.root, origin, manifest.files, logs)
    return Landing(record, manifest, origin, row)


def _load_landing(work: Work, one: Landing, checked: Sequence[CheckedFile]) -> None:
    """Place a landing's files, record everything in one transaction, answer."""
    app, at = work.app, work.app.clock()
    admission = decide_files(app, one.origin, checked, at)
    keep_manifest(work.root, work.store, one.found.folder, one.found.sha256)
    place_files(work.store, admission.placements)
    logs = schema.append_logs(app.ledger, work.store, work.root, one.origin, one.manifest)
    strays = unnamed_files(work.root, one.found.folder, one.manifest)
    # CRASH WINDOW: bytes in place, nothing recorded: readers see none of it; the next load checks and places it again.
    _record_landing(work, one, admission, logs, strays)
    # CRASH WINDOW: recorded but not answered: the next load writes the receipt from the record.
    _answer_landing(work, one.found)
    remove_copies(work.store, one.origin)
    work.placed.extend(load.row for load in admission.loads)


_UNNAMED = "it lies in the landing but its manifest does not name it"


def _record_landing(
    work: Work, one: Landing, admission: Admission, logs: Sequence[schema.KeptLog], strays: Sequence[str]
) -> None:
    """Run the one transaction that makes the landing visible to readers."""
    origin, manifest, at = one.origin, one.manifest, work.app.clock()
    found = ask_survivors(work, origin, drops_of_manifest(manifest, at), admission.loads)

    def record_rows(connection: Connection) -> tuple[Receipt, Sequence[str]]:
        assert_held(connection, work.lease)
        recorded = record_landing(connection, origin, manifest, admission, logs, at, found)
        answers = recorded.answers
        again = tuple(Resend(a.path, a.generation, a.reason) for a in recorded.again)
        sha256, pending, claimed = one.found.sha256, recorded.pending, recorded.claimed
        receipt = Receipt(manifest.landing, manifest.sequence, sha256, at, answers, pending, again, claimed)
        done = replace(one.row, state="loaded", loaded=at, receipt=encode_document(receipt).decode())
        landing_rows.put_landing(connection, done)
        place = {"site_id": origin.site_id, "landing": origin.landing}
        record_many(connection, "file.skipped", [{**place, "path": path, "reason": _UNNAMED} for path in strays])
        record_many(connection, "landing.loaded", [{**place, "answers": len(answers)}])
        return receipt, recorded.clashes

    files = [load.row for load in admission.loads]
    seen = make_visible(work.app, work.receiver, work.cluster, work.store, files, record_rows, bool(logs))
    log.debug("landing %s of site %s is loaded: %d files", manifest.landing, manifest.site_name, len(manifest.files))
    work.tally.count_landing(
        origin.site_id, *seen, [hold.file.path for hold in admission.holds if hold.kind == TaskLimitError.kind]
    )


def _finish_landing(work: Work, folder: Folder, record: FoundManifest | None) -> None:
    """Answer a recorded landing and remove its files. Do only what is still missing. `record`: its manifest, if just read.

    A folder that arrives again under the id of a loaded landing is answered the same way if its manifest is the same.
    """
    key = (folder.site_id, folder.landing)
    with work.app.ledger.read() as connection:
        manifest_sha256, receipt = landing_rows.receipt_of(connection, work.receiver.name, *key)
    fresh = record is not None
    if fresh:
        keep_receipt(work.store, *key, receipt)
        # CRASH WINDOW: kept, no receipt for the sender: the next load writes it.
    record = record or read_found_manifest(work.root, folder)
    if record.trouble and not record.sha256:
        raise CorruptionError(record.trouble, subject=folder.path)
    if record.sha256 != manifest_sha256 or record.manifest is None:
        reason = f"landing {folder.landing} was loaded with another manifest; {_PUT_BACK.format(kept_manifest(*key))}"
        work.tally.count_rejected(Trouble("landing", folder.landing, folder.path, reason, CorruptionError.kind))
        return
    told = read_landed(work.root, f"{folder.path}/{RECEIPT}")
    if told != receipt.encode():
        if folder.answered and not fresh and (told is None or not same_answer(told, receipt.encode())):
            _name_foreign_receipt(work, folder, _CHANGED)
        work.store.publish(f"{folder.path}/{RECEIPT}", receipt.encode())
    # CRASH WINDOW: answered, data files still there: the next load removes them.
    if folder.bulky:
        clean_landing(work.store, folder, record.manifest)
    sign = landing_sign(work.root, *key)
    if not list_altered(work.root, *key, manifest_sha256):  # nobody wrote there in the meantime
        work.done[key] = sign


_PUT_BACK = "remove this folder if it is a stray copy, else copy {} back over its manifest.json"
_NOT_OURS = "a receipt.json lies in it that this receiver did not write: it is no answer, and is not believed"
_CHANGED = "its receipt.json was not the answer that this receiver gave: it was written again"


def _note_finished(work: Work) -> None:
    """Record the folders that need not be opened again, and the files that need no digest before they are read. After a
    crash before this, the next load repeats that work."""
    if work.placed:
        note_proved(work.app, work.receiver.name, work.root, work.placed)
    if work.done:
        with work.app.ledger.write() as connection:
            assert_held(connection, work.lease)
            landing_rows.note_finished(connection, work.receiver.name, work.done)


def _give_up(work: Work, record: FoundManifest, error: Exception) -> None:
    """Reject a landing after its own failure; its bytes stay where they are. Raises faults of this machine."""
    error = require_theirs(error)
    reason = message_of(error) if isinstance(error, TidemarkError) else f"it cannot be loaded: {message_of(error)}"
    kind = CorruptionError.kind if isinstance(error, CorruptionError) else PartialError.kind
    _reject_landing(work, FoundManifest(record.folder, record.sha256, None), reason, kind)


def _reject_landing(work: Work, record: FoundManifest, reason: str, kind: int = CorruptionError.kind) -> None:
    """Report a landing that cannot be accepted; its bytes stay where they are."""
    folder = record.folder
    work.tally.count_rejected(Trouble("landing", folder.landing, folder.path, reason, kind))
    before = work.rows.get((folder.site_id, folder.landing))
    if before is None or (before.state, before.reason) != ("rejected", reason):
        _put_row(work, record, "rejected", "landing.rejected", reason=reason)


def _defer_landing(work: Work, record: FoundManifest, reason: str) -> None:
    """Report a landing that waits for an earlier one."""
    folder = record.folder
    work.tally.count_waiting(Trouble("landing", folder.landing, folder.path, reason, RetryableError.kind))
    before = work.rows.get((folder.site_id, folder.landing))
    if before is None or (before.state, before.reason) != ("waiting", reason):
        _put_row(work, record, "waiting", "landing.gap", reason=reason)


def _name_foreign_receipt(work: Work, folder: Folder, reason: str) -> None:
    """Report a receipt that somebody else wrote; it has no other effect."""
    work.tally.troubles.append(Trouble("receipt", folder.landing, f"{folder.path}/{RECEIPT}", reason, PartialError.kind))
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        record_event(connection, "landing.foreign_receipt", site_id=folder.site_id, landing=folder.landing, reason=reason)


def _put_row(work: Work, record: FoundManifest, state: str, event: str, *, reason: str) -> None:
    row = make_landing_row(work.receiver.name, record, state, work.app.clock(), reason)
    with work.app.ledger.write() as connection:
        assert_held(connection, work.lease)
        landing_rows.put_landing(connection, row)
        record_event(connection, event, site_id=row.site_id, landing=row.landing, sequence=row.sequence, reason=reason)
