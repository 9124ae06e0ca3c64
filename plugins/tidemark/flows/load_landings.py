"""Load landings into the catalog: find, check, own, place, record in one transaction a landing, answer, clean.

Only for a receiver whose folder this process sees. Everything is idempotent: a load that died anywhere is continued by
the next one, which finds the same landings unanswered. Nothing of the link's side is asked, only manifests: the sender's
Tidemark may be another machine. Source: DESIGN §3, §5; CONTRACT §1 `load`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemark.errors import (
    CorruptionError,
    NotFoundError,
    OwnershipError,
    RetryableError,
    UsageError,
    worst_exit_code,
)
from tidemark.flows.app import App, Progress, Tick, silent
from tidemark.flows.engines import Engine, choose_engine
from tidemark.ledger import landing_rows
from tidemark.ledger.events import record
from tidemark.ledger.landing_rows import DropRow, InventoryChange, LandingRow, SiteRow
from tidemark.ledger.leases import Lease, Leases, check_in
from tidemark.load import schema
from tidemark.load.admit import Admission, Origin, admit
from tidemark.load.check import Examined, ExamineTask
from tidemark.load.commit import SiteNames, known_before, write_admission
from tidemark.load.manifests import Folder, Paper, landing_folders, read_paper
from tidemark.load.place import put
from tidemark.load.sequence import Arrival, judge
from tidemark.load.tidy import clean_landing, sweep_waiting, unnamed_files
from tidemark.load.vanish import replace_settled, take_vanished
from tidemark.settings import ReceiverSettings
from tidemark.stores.landing import RECEIPT, Answer, LandedFile, Manifest, Receipt, encode
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path

_BYTES_A_POINT = 8  # a rough guess, only to choose an engine


@dataclass(frozen=True)
class Trouble:
    """Something that did not load. `what`: landing | refused | quarantined | schema; `kind`: its exit code."""

    what: str
    landing: str
    path: str
    reason: str
    kind: int


@dataclass(frozen=True)
class LoadResult:
    """`landings`: answered by this load; `loaded`, `quarantined`, `refused`: their files; `waiting`: landings behind a gap.

    `pending`: (path, reason) of vanished files that wait; `clashes`: series that two sources give different types.
    """

    receiver: str
    landings: int = 0
    loaded: int = 0
    quarantined: int = 0
    refused: int = 0
    waiting: int = 0
    rejected: int = 0
    troubles: tuple[Trouble, ...] = ()
    pending: tuple[tuple[str, str], ...] = ()
    clashes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return worst_exit_code({trouble.kind for trouble in self.troubles})

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            "receiver": self.receiver,
            "landings": self.landings,
            "loaded": self.loaded,
            "quarantined": self.quarantined,
            "refused": self.refused,
            "waiting": self.waiting,
            "rejected": self.rejected,
            "troubles": [vars(trouble) for trouble in self.troubles],
            "pending": [{"path": path, "reason": reason} for path, reason in self.pending],
            "clashes": list(self.clashes),
        }


@dataclass
class _Tally:
    """What a load has done so far."""

    landings: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    rejected: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    pending: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by site
    clashes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    app: App
    receiver: ReceiverSettings
    root: Path
    store: Store
    lease: Lease
    engine: str
    progress: Progress
    tally: _Tally


def load(
    app: App, receiver: ReceiverSettings, site: str = "", engine: str = "auto", progress: Progress = silent
) -> LoadResult:
    """Load every landing of `receiver` (of one `site`, by name or UUID) that can be loaded.

    `engine`: auto | pool | spark. Raises UsageError for a remote receiver, LeaseHeldError while another load runs.
    """
    root = local_root(app, receiver)
    site_id = site_of(app, site)
    leases = Leases(app.ledger, app.identity)
    with (
        leases.hold(f"load:{receiver.name}", f"load-{uuid.uuid4().hex[:12]}") as lease,
        app.receiver_store(receiver) as store,
    ):
        work = _Work(app, receiver, root, store, lease, engine, progress, _Tally())
        sweep_waiting(app.ledger, store, receiver.name, lease)
        folders: dict[str, list[Folder]] = {}
        for folder in landing_folders(root, site_id):
            folders.setdefault(folder.site_id, []).append(folder)
        for found in folders.values():
            _load_site(work, found)
    return _result(receiver.name, work.tally)


def local_root(app: App, receiver: ReceiverSettings) -> Path:
    root = app.receiver_root(receiver)
    if root is None:
        raise UsageError(
            f"receiver {receiver.name} is remote ({receiver.store}): only a Tidemark on that machine loads it",
            hint="run ./tidemark load there; a sync ends with the landing",
            subject=receiver.name,
        )
    return root


def site_of(app: App, site: str) -> str | None:
    """The UUID of a site given by name (settings, then the ledger) or by UUID; None for no site."""
    if not site:
        return None
    if site in app.settings.sites:
        return app.settings.sites[site].id
    with app.ledger.read() as connection:
        known = landing_rows.sites(connection)
    for row in known.values():
        if site in (row.site_id, row.name):
            return row.site_id
    names = ", ".join(sorted({*app.settings.sites, *(r.name for r in known.values())})) or "none"
    raise NotFoundError(f"no site named {site!r}; known are: {names}", subject=site)


def _load_site(work: _Work, folders: Sequence[Folder]) -> None:
    site_id = folders[0].site_id
    with work.app.ledger.read() as connection:
        rows = landing_rows.landings(connection, work.receiver.name)
        last_sequence, last_landing = landing_rows.last_loaded(connection, work.receiver.name, site_id)
        site = landing_rows.sites(connection).get(site_id)
    papers: dict[str, Paper] = {}
    for folder in folders:
        row = rows.get(folder.landing)
        if row is not None and row.state == "loaded" and row.site_id == site_id:
            _finish(work, folder, row)
            continue
        paper = read_paper(work.root, folder)
        trouble = paper.trouble or (_unlike(paper.manifest, site) if paper.manifest else "")
        if trouble or (row is not None and row.site_id != site_id):
            _reject(
                work, paper, row, trouble or f"landing {folder.landing} came from site {row.site_id if row else ''} already"
            )
        else:
            papers[folder.landing] = paper
    arrivals = [Arrival(m.landing, m.sequence, m.previous) for m in (p.manifest for p in papers.values()) if m]
    for verdict in judge(arrivals, last_sequence, last_landing):
        paper = papers[verdict.arrival.landing]
        row = rows.get(verdict.arrival.landing)
        if verdict.state == "rejected":
            _reject(work, paper, row, verdict.reason)
        elif verdict.state == "waiting":
            _wait(work, paper, row, verdict.reason)
        else:
            _load_landing(work, paper)


def _unlike(manifest: Manifest, site: SiteRow | None) -> str:
    """What a site may not change: its times would be read wrongly."""
    if site is not None and site.time_unit != manifest.time_unit:
        return f"the site's time unit was {site.time_unit} and is {manifest.time_unit} now; set time_unit back at the sender"
    return ""


def _load_landing(work: _Work, paper: Paper) -> None:
    manifest = paper.manifest
    assert manifest is not None
    app, receiver = work.app, work.receiver
    at = app.clock()
    row = _row(work, paper, "loading", None)
    with app.ledger.write() as connection:
        check_in(connection, work.lease)
        site = SiteRow(manifest.site_id, manifest.site_name, manifest.time_unit, manifest.partition_interval_ms)
        landing_rows.put_site(connection, site, at)
        if manifest.landing not in landing_rows.landings(connection, receiver.name, manifest.site_id):
            record(connection, "landing.found", site_id=site.site_id, landing=row.landing, sequence=row.sequence)
        landing_rows.put_landing(connection, row)
        names = SiteNames({s.site_id: s.name for s in landing_rows.sites(connection).values()})
    origin = Origin(
        receiver=receiver.name,
        site_id=manifest.site_id,
        time_unit=manifest.time_unit,
        site_interval_ms=manifest.partition_interval_ms,
        catalog_interval_ms=receiver.partition_interval_ms,
        data=manifest.data,
        landing=manifest.landing,
        folder=paper.folder.path,
    )
    examined = examine_all(app, origin, manifest.files, work.root, work.engine, work.progress)
    admission = decide(app, origin, examined, at)
    put(work.store, admission.placements)
    logs = schema.append_logs(work.app.ledger, work.store, work.root, origin, manifest)
    # CRASH WINDOW: bytes in place, nothing recorded: readers see none of it; the next load checks and places it again.
    with app.ledger.write() as connection:
        check_in(connection, work.lease)
        answers = write_admission(connection, origin, admission, names, at)
        clashes = schema.write_schema(connection, origin, logs, admission.loads)
        landing_rows.take_inventory(connection, receiver.name, manifest.site_id, _inventory(manifest))
        replace_settled(connection, origin, [load.file.path for load in admission.loads], at)
        pending = take_vanished(connection, origin, _drops(manifest, at), manifest.deletes, at)
        answers += schema.answers(logs)
        receipt = Receipt(manifest.landing, manifest.sequence, paper.sha256, at, answers, pending)
        done = replace(row, state="loaded", loaded=at, receipt=encode(receipt).decode())
        landing_rows.put_landing(connection, done)
        record(connection, "landing.loaded", site_id=origin.site_id, landing=row.landing, answers=len(answers))
        for path in unnamed_files(work.root, paper.folder, manifest):
            record(connection, "file.skipped", site_id=origin.site_id, landing=row.landing, path=path, reason=_UNNAMED)
    _count(work.tally, manifest, answers, pending, clashes)
    # CRASH WINDOW: recorded but not answered: the next load writes the receipt from the record.
    _finish(work, paper.folder, done)


_UNNAMED = "it lies in the landing but its manifest does not name it"


def _finish(work: _Work, folder: Folder, row: LandingRow) -> None:
    """Answer a recorded landing and remove what it carried; does only what is still missing.

    A folder that came again under the id of a loaded landing is answered the same way when its manifest is the same.
    """
    if folder.answered and not folder.bulky:
        return
    paper = read_paper(work.root, folder)
    if paper.sha256 != row.manifest_sha256 or paper.manifest is None:
        reason = f"landing {row.landing} was loaded with another manifest; remove this folder if it is a stray copy"
        work.tally.rejected += 1
        work.tally.troubles.append(Trouble("landing", row.landing, folder.path, reason, CorruptionError.kind))
        return
    if not folder.answered:
        work.store.publish(f"{folder.path}/{RECEIPT}", (row.receipt or "").encode())
    # CRASH WINDOW: answered, bulky files still there: the next load removes them.
    clean_landing(work.store, folder, paper.manifest)


def examine_all(
    app: App, origin: Origin, files: Sequence[LandedFile], root: Path, engine: str, progress: Progress
) -> list[tuple[LandedFile, Examined]]:
    """Check every file in the engine's processes; in manifest order."""
    tasks = []
    for file in files:
        name = parse_source_path(file.path, origin.data)
        tasks.append(ExamineTask(str(root / origin.folder), file, name.database if name else ""))
    size = sum(file.tsfile.size for file in files if file.tsfile)
    results: dict[int, Examined] = {}
    for outcome in _engine(app, engine, size).run("load_check", tasks) if tasks else ():
        file = files[outcome.index]
        if outcome.error is None:
            results[outcome.index] = outcome.value
        elif isinstance(outcome.error, CorruptionError):  # it crashed its child, or hit a limit
            results[outcome.index] = Examined(
                file.path, file.generation, trouble=outcome.error.message, kind=outcome.error.kind
            )
        else:
            raise outcome.error
        progress(Tick("check", done=len(results), total=len(tasks)))
    return [(file, results[index]) for index, file in enumerate(files)]


def decide(app: App, origin: Origin, examined: Sequence[tuple[LandedFile, Examined]], at: float) -> Admission:
    devices = {d.device for _, e in examined if e.facts for d in e.facts.devices}
    with app.ledger.read() as connection:
        known = known_before(connection, origin, [file for file, _ in examined], devices)
    return admit(origin, examined, known, at)


def _engine(app: App, engine: str, size: int) -> Engine:
    return choose_engine(app.settings.spark, engine, size // _BYTES_A_POINT)


def _row(work: _Work, paper: Paper, state: str, reason: str | None) -> LandingRow:
    manifest, folder = paper.manifest, paper.folder
    return LandingRow(
        receiver=work.receiver.name,
        landing=folder.landing,
        site_id=folder.site_id,
        sequence=manifest.sequence if manifest else 0,
        previous=manifest.previous if manifest else None,
        run_id=manifest.run_id if manifest else "",
        part=manifest.part if manifest else 0,
        state=state,
        reason=reason,
        manifest_sha256=paper.sha256,
        files=len(manifest.files) if manifest else 0,
        bytes=sum(p.size for f in manifest.files for p in (f.tsfile, f.resource, f.mods) if p) if manifest else 0,
        found=work.app.clock(),
    )


def _reject(work: _Work, paper: Paper, row: LandingRow | None, reason: str) -> None:
    """Name a landing that cannot be accepted; its bytes stay where they are."""
    folder = paper.folder
    work.tally.rejected += 1
    work.tally.troubles.append(Trouble("landing", folder.landing, folder.path, reason, CorruptionError.kind))
    if row is not None and (row.site_id != folder.site_id or (row.state, row.reason) == ("rejected", reason)):
        return
    _put_row(work, _row(work, paper, "rejected", reason), "landing.rejected", reason)


def _wait(work: _Work, paper: Paper, row: LandingRow | None, reason: str) -> None:
    work.tally.waiting += 1
    folder = paper.folder
    work.tally.troubles.append(Trouble("landing", folder.landing, folder.path, reason, RetryableError.kind))
    if row is None or (row.state, row.reason) != ("waiting", reason):
        _put_row(work, _row(work, paper, "waiting", reason), "landing.gap", reason)


def _put_row(work: _Work, row: LandingRow, event: str, reason: str) -> None:
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        landing_rows.put_landing(connection, row)
        record(connection, event, site_id=row.site_id, landing=row.landing, sequence=row.sequence, reason=reason)


def _inventory(manifest: Manifest) -> InventoryChange:
    return InventoryChange(
        landing=manifest.landing,
        added=tuple((e.path, e.size, e.mtime, e.extent) for e in manifest.added),
        carried=tuple((f.path, f.tsfile.size if f.tsfile else 0, f.mtime, f.generation) for f in manifest.files),
        removed=manifest.removed,
    )


def _drops(manifest: Manifest, at: float) -> Iterable[DropRow]:
    for kind, vanished in (("superseded", manifest.superseded), ("dropped", manifest.dropped)):
        for v in vanished:
            yield DropRow(v.path, v.generation, kind, v.covered_by, manifest.landing, at)


def _count(
    tally: _Tally,
    manifest: Manifest,
    answers: Iterable[Answer],
    pending: tuple[tuple[str, str], ...],
    clashes: Iterable[str],
) -> None:
    kinds = {"refused": OwnershipError.kind, "quarantined": CorruptionError.kind}
    tally.landings += 1
    for answer in answers:
        tally.outcomes[answer.outcome] = tally.outcomes.get(answer.outcome, 0) + 1
        if answer.outcome in kinds:
            tally.troubles.append(
                Trouble(answer.outcome, manifest.landing, answer.path, answer.reason, kinds[answer.outcome])
            )
    tally.pending[manifest.site_id] = pending
    tally.clashes.extend(clashes)


def _result(receiver: str, tally: _Tally) -> LoadResult:
    return LoadResult(
        receiver=receiver,
        landings=tally.landings,
        loaded=tally.outcomes.get("loaded", 0),
        quarantined=tally.outcomes.get("quarantined", 0),
        refused=tally.outcomes.get("refused", 0),
        waiting=tally.waiting,
        rejected=tally.rejected,
        troubles=tuple(tally.troubles),
        pending=tuple(p for found in tally.pending.values() for p in found),
        clashes=tuple(tally.clashes),
    )
