"""Sync a link: open or continue its run, take its lease, walk the seven steps, load where the receiver is here.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

The command line calls `run_sync`; an orchestrator calls `open_run` and then one function a step, in any number of
processes: the run holds the link's lease, parked between two steps. Every step is done again without harm, and those of
a finished run change nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidemark.errors import (
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    PlanOutOfDateError,
    TidemarkError,
    WindowOverError,
)
from tidemark.flows.app import App, Progress, Tick, silent
from tidemark.flows.sync_opening import open_lease, read_options, require_same_ends
from tidemark.flows.sync_result import SyncResult, result_of, total, with_receiver
from tidemark.ledger import events, run_rows
from tidemark.ledger.leases import Lease, Leases
from tidemark.ledger.run_rows import RunRow
from tidemark.settings import LinkSettings
from tidemark.stores.protocol import Store
from tidemark.sync import cleanup as cleaning
from tidemark.sync import closing, deletes, receipts, schema, selection, sending
from tidemark.sync.parts import PartLimits
from tidemark.sync.seeding import Copies
from tidemark.sync.window import require_window
from tidemark.sync.work import Options, Plan, Work

if TYPE_CHECKING:
    from tidemark.flows.load_result import LoadResult

__all__ = ["Options", "Plan", "SyncResult", "open_run", "run_result", "run_sync"]

log = logging.getLogger(__name__)
Counts = Mapping[str, int]
STEPS = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup")
LOAD_PATIENCE = 120.0  # seconds to wait for another load of the same receiver
_ACTS: Mapping[str, Callable[[Work], Counts]] = {
    "recover": cleaning.recover,
    "sync_schema": schema.sync_schema,
    "transfer_deletes": deletes.transfer_deletes,
    "transfer_files": sending.transfer_files,
    "finish": closing.finish,
    "cleanup": cleaning.cleanup,
}


def run_sync(
    app: App,
    link: str,
    options: Options = Options(),  # noqa: B008 - frozen
    progress: Progress = silent,
    limits: PartLimits = PartLimits(),  # noqa: B008 - frozen
    copies: Copies = Copies(),  # noqa: B008 - frozen
) -> SyncResult:
    """One whole run in this process; an unfinished run is brought to its end first, then a fresh pass is made.

    Raises LeaseHeldError while another process works on the link, WindowOverError outside its window, and whatever
    ends a run early; the next call goes on where it ended. Held drops and files left out are told in the result.
    `copies` that lie at the receiver need not be sent.
    """
    settings = app.link(link)
    _keep_up(app, settings, options)
    results = []
    continued = True
    while continued:
        lease, continued = open_lease(app, settings, None, options)
        with _holding(app, lease), _stores(app, settings) as stores:
            for step in STEPS:
                _step(Stage(app, lease, stores, progress, limits, copies), step)
        results.append(result_of(app.ledger, lease.holder))
    result = total(results)
    return result if options.no_load else with_receiver(app, settings, _loaded(app, settings, result, progress))


def open_run(app: App, link: str, external: str | None = None, options: Options = Options()) -> str:  # noqa: B008
    """The run that an orchestrator's run id stands for; else the link's unfinished run; else a new one. Its id.

    Raises LeaseHeldError while another process works on the link.
    """
    settings = app.link(link)
    if external is not None:
        with app.ledger.read() as connection:
            known = run_rows.run_of(connection, external)
        if known is not None:
            return known
    lease, _ = open_lease(app, settings, external, options)
    Leases(app.ledger, app.identity).park(lease)
    return lease.holder


def recover(app: App, run_id: str) -> Counts:
    """Settle what a dead run left, take in the receiver's answers."""
    return _task(app, run_id, "recover")


def select_files(app: App, run_id: str) -> Counts:
    """Decide and pin what is sent: {action: items}."""
    return _task(app, run_id, "select_files")


def sync_schema(app: App, run_id: str) -> Counts:
    """Send what the schema logs gained: {"files", "bytes"}."""
    return _task(app, run_id, "sync_schema")


def transfer_deletes(app: App, run_id: str) -> Counts:
    """Decide which vanished files are told: {"dropped", "superseded", "held"}."""
    return _task(app, run_id, "transfer_deletes")


def transfer_files(app: App, run_id: str, batch: int | None = None, progress: Progress = silent) -> Counts:
    """Send the files of one batch of `file_batches`, or all that is left: {"files", "bytes"} sent by this call."""

    def act(work: Work) -> Counts:
        return sending.transfer_files(work, batch)

    return _task(app, run_id, "transfer_files", act, progress)


def file_batches(app: App, run_id: str) -> list[dict[str, int | str]]:
    """The run's files in few batches for mapped tasks: {"batch", "label", "files", "bytes"} each, ids and counts only."""
    run = _run(app, run_id)
    site = app.site(app.link(run.link).site)
    with app.ledger.read() as connection:
        cut = sending.task_batches(connection, run_id, site.data)
    return [
        {
            "batch": number,
            "label": f"{number + 1} of {len(cut)}: {len(files)} files, {sum(f.size for f in files) / 1e6:,.1f} MB",
            "files": len(files),
            "bytes": sum(f.size for f in files),
        }
        for number, files in enumerate(cut)
    ]


def finish(app: App, run_id: str) -> Counts:
    """Close the last part: {"landings"} of this run."""
    return _task(app, run_id, "finish")


def cleanup(app: App, run_id: str) -> Counts:
    """Take away what is not needed and end the run: {"pending"}."""
    return _task(app, run_id, "cleanup")


def run_result(app: App, run_id: str) -> SyncResult:
    """What a run did, from the ledger; its `exit_code` says whether somebody has to act."""
    result = result_of(app.ledger, run_id)
    return with_receiver(app, app.link(result.link), result)


@dataclass(frozen=True)
class Stage:
    """What the steps of a run share while one process works on it."""

    app: App
    lease: Lease
    stores: tuple[Store, Store]  # the site's and the receiver's
    progress: Progress
    limits: PartLimits = field(default_factory=PartLimits)
    copies: Copies = field(default_factory=Copies)


def _task(
    app: App, run_id: str, step: str, act: Callable[[Work], Counts] | None = None, progress: Progress = silent
) -> Counts:
    """One step in a process of its own."""
    run = _run(app, run_id)
    if run.state == "finished":
        return {"finished": 1}
    require_same_ends(app, app.link(run.link))
    leases = Leases(app.ledger, app.identity)
    lease = leases.take(f"link:{run.link}", run_id)
    try:
        with leases.keep_alive(lease), _stores(app, app.link(run.link)) as stores:
            counts = _step(Stage(app, lease, stores, progress), step, act)
    except BaseException:
        leases.park(lease)
        raise
    leases.release(lease) if step == STEPS[-1] else leases.park(lease)
    return counts


def _step(stage: Stage, step: str, act: Callable[[Work], Counts] | None = None) -> Counts:
    app, lease = stage.app, stage.lease
    run = _run(app, lease.holder)
    if run.state == "finished":
        return {"finished": 1}
    link = app.link(run.link)
    work = Work(
        ledger=app.ledger,
        link=link,
        site=app.site(link.site),
        source=stage.stores[0],
        target=stage.stores[1],
        receiver=app.receiver(link.receiver),
        run_id=run.run_id,
        lease=lease,
        clock=app.clock,
        again=run.step in STEPS and STEPS.index(run.step) >= STEPS.index(step),
        limits=stage.limits,
        copies=stage.copies,
        beat=lambda *amounts: stage.progress(Tick(step, *amounts)),
    )
    stage.progress(Tick(step))
    try:
        _begin(work, run, step)
        if act is not None:
            return act(work)
        return selection.select_files(work, read_options(run.options)) if step == "select_files" else _ACTS[step](work)
    except TidemarkError as error:
        _record_failure(work, error)
        raise


def _begin(work: Work, run: RunRow, step: str) -> None:
    """The step forward, never back: a cleared task of an earlier step only finds its work done."""
    with work.recording() as connection:
        forward = step if not work.again else run.step
        run_rows.set_run(connection, run.run_id, state="running", step=forward, fence=work.lease.fence)


def _record_failure(work: Work, error: TidemarkError) -> None:
    """Why the run stopped, for `status` and `why`. What the ledger cannot take now is told by the error itself."""
    if isinstance(error, LeaseLostError):
        return  # the newer holder writes the run's story
    kind = "run.window" if isinstance(error, WindowOverError) else "run.failed"
    try:
        with work.recording() as connection:
            over = isinstance(error, PlanOutOfDateError)  # going on with that plan would fail for ever
            state = "finished" if over else "failed"
            run_rows.set_run(
                connection, work.run_id, state=state, error_kind=error.kind, error=error.message, hint=error.hint
            )
            events.record(connection, kind, link=work.link.name, run_id=work.run_id, error=error.message, hint=error.hint)
    except TidemarkError as second:
        log.warning("the ledger did not take the run's error: %s", second)


def _keep_up(app: App, link: LinkSettings, options: Options) -> None:
    """Before a run: the window is open, and a receiver that is here has loaded what it can."""
    require_window(link, app.clock())
    receiver = app.receiver(link.receiver)
    if options.no_load or app.receiver_root(receiver) is None:
        return
    if _unanswered(app, link) > receiver.max_unloaded_landings:
        _load(app, link, silent)


def _unanswered(app: App, link: LinkSettings) -> int:
    with app.ledger.read() as connection:
        return len(run_rows.landings(connection, link.name, state="landed"))


def _loaded(app: App, link: LinkSettings, result: SyncResult, progress: Progress) -> SyncResult:
    """Load what landed, where the receiver is a folder here, and take in its answers."""
    if app.receiver_root(app.receiver(link.receiver)) is None or not _unanswered(app, link):
        return result
    loaded = _load(app, link, progress)
    if loaded is None:
        return replace(result, waiting_for_load=True)
    _take_answers(app, link, result.run)
    done = not _unanswered(app, link)
    return replace(
        result,
        state="loaded" if done else result.state,
        loaded=loaded.loaded,
        refused=loaded.refused,
        quarantined=loaded.quarantined,
        troubles=loaded.troubles,
        clashes=loaded.clashes,
    )


def _load(app: App, link: LinkSettings, progress: Progress) -> LoadResult | None:
    """Load this link's site; None where another load of the receiver does not end within LOAD_PATIENCE."""
    from tidemark.flows.load_landings import load

    give_up = time.monotonic() + LOAD_PATIENCE
    while True:
        try:
            return load(app, app.receiver(link.receiver), site=app.site(link.site).id, progress=progress)
        except LeaseHeldError:
            if time.monotonic() > give_up:
                return None
            time.sleep(0.5)


def _take_answers(app: App, link: LinkSettings, run_id: str) -> None:
    """Read the receipts now, not at the start of the next run; somebody else at work on the link reads them himself."""
    leases = Leases(app.ledger, app.identity)
    try:
        lease = leases.take(f"link:{link.name}", run_id)
    except LeaseHeldError:
        return
    with _holding(app, lease), _stores(app, link) as (source, target):
        receiver = app.receiver(link.receiver)
        site = app.site(link.site)
        receipts.read_receipts(Work(app.ledger, link, site, source, target, receiver, run_id, lease, app.clock))


@contextmanager
def _holding(app: App, lease: Lease) -> Iterator[None]:
    leases = Leases(app.ledger, app.identity)
    try:
        with leases.keep_alive(lease):
            yield
    finally:
        leases.release(lease)


@contextmanager
def _stores(app: App, link: LinkSettings) -> Iterator[tuple[Store, Store]]:
    with app.site_store(app.site(link.site)) as source, app.receiver_store(app.receiver(link.receiver)) as target:
        yield source, target


def _run(app: App, run_id: str) -> RunRow:
    with app.ledger.read() as connection:
        run = run_rows.get_run(connection, run_id)
    if run is None:
        raise NotFoundError(f"no run {run_id} in this ledger", hint="./tidemark status", subject=run_id)
    return run
