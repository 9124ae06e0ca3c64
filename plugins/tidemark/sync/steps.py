"""Run the seven steps of a run, each in a process of its own or all in this process.

`select`, `send` and `schema` implement the steps. This module gives them the run's row, its lease and its two stores, and
records the error that ends a step for `status` and `why`. A step that is called again finds its work done. The recorded
step of a run only moves forward.

`note_progress` writes a run's progress to the ledger, so that `status` shows it from any process, and how long this process
has worked on it, for the rate in `runs`. A thread writes both every 2 s while there is a new tick, and the time once more at
the end. The work never waits for it, but for that last time. An error of writing is ignored: the run then seems faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from tidemark.app import App, require_disk
from tidemark.errors import LeaseLostError, NotFoundError, PlanOutOfDateError, TidemarkError, WindowOverError
from tidemark.ledger import journal
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import RunRow, put_progress
from tidemark.progress import Pace, Progress, Tick, ignore_progress
from tidemark.settings.model import LinkSettings
from tidemark.stores.protocol import Store
from tidemark.sync import schema
from tidemark.sync.result import SyncResult, result_of
from tidemark.sync.select import select_files
from tidemark.sync.send import cleanup, finish, transfer_files
from tidemark.sync.session import KnownCopies, PartLimits, Work
from tidemark.sync.start import read_options, require_same_ends
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
Counts = Mapping[str, int]
STEPS = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup")
_ACTS: Mapping[str, Callable[[Work], Counts]] = {
    "recover": cleanup.recover,
    "sync_schema": schema.sync_schema,
    "transfer_deletes": select_files.transfer_deletes,
    "transfer_files": transfer_files.transfer_files,
    "finish": finish.finish,
    "cleanup": cleanup.cleanup,
}


@dataclass(frozen=True)
class Stage:
    """The state that the steps of a run share in one process."""

    app: App
    lease: Lease
    stores: tuple[Store, Store]  # the site's and the receiver's
    progress: Progress
    limits: PartLimits = field(default_factory=PartLimits)
    copies: KnownCopies = field(default_factory=KnownCopies)


def whole_run(app: App, lease: Lease, progress: Progress = ignore_progress) -> SyncResult:
    """Run the seven steps of the lease's run in this process. Steps that are done already do nothing."""
    return run_up_to_cleanup(app, lease, progress)()


def run_up_to_cleanup(
    app: App,
    lease: Lease,
    progress: Progress = ignore_progress,
    limits: PartLimits = PartLimits(),  # noqa: B008 - frozen
    copies: KnownCopies = KnownCopies(),  # noqa: B008 - frozen
) -> Callable[[], SyncResult]:
    """Run all steps but the last, so that everything has landed. Returns a function for the last step. The caller must call
    it, in any thread; until then the lease is held."""
    link = app.link_settings(run_of(app, lease.holder).link)
    with ExitStack() as held:
        held.enter_context(hold_lease(app, lease))
        beat = held.enter_context(note_progress(app.ledger, link.name, lease.holder, progress))
        stores = held.enter_context(_stores_of_run(app, lease, link))
        stage = Stage(app, lease, stores, beat, limits, copies)
        for step in STEPS[:-1]:
            _run_step(stage, step)
        ending = partial(_end_run, stage, held.pop_all())
    return ending


def _end_run(stage: Stage, held: ExitStack) -> SyncResult:
    with held:
        _run_step(stage, STEPS[-1])
    return result_of(stage.app.ledger, stage.lease.holder)


def one_step(
    app: App, run_id: str, step: str, act: Callable[[Work], Counts] | None = None, progress: Progress = ignore_progress
) -> Counts:
    """Run one step under the run's lease, and park the lease afterwards (release it after the last step). Raises
    LeaseHeldError and any error that ends the run early."""
    run = run_of(app, run_id)
    if run.state == "finished":
        return {"finished": 1}
    require_same_ends(app, app.link_settings(run.link))
    leases = Leases(app.ledger, app.identity)
    lease = leases.acquire_lease(f"link:{run.link}", run_id)
    try:
        with (
            leases.keep_alive(lease),
            note_progress(app.ledger, run.link, run_id, progress) as beat,
            _stores_of_run(app, lease, app.link_settings(run.link)) as stores,
        ):
            counts = _run_step(Stage(app, lease, stores, beat), step, act)
    except BaseException:
        leases.park(lease)
        raise
    leases.release(lease) if step == STEPS[-1] else leases.park(lease)
    return counts


def _run_step(stage: Stage, step: str, act: Callable[[Work], Counts] | None = None) -> Counts:
    app, lease = stage.app, stage.lease
    run = run_of(app, lease.holder)
    if run.state == "finished":
        return {"finished": 1}
    link = app.link_settings(run.link)
    work = Work(
        ledger=app.ledger,
        link=link,
        site=app.site_settings(link.site),
        source=stage.stores[0],
        target=stage.stores[1],
        receiver=app.receiver_settings(link.receiver),
        run_id=run.run_id,
        lease=lease,
        clock=app.clock,
        again=run.step in STEPS and STEPS.index(run.step) >= STEPS.index(step),
        limits=stage.limits,
        copies=stage.copies,
        beat=lambda *amounts: stage.progress(Tick(step, *amounts)),
        identity=app.identity,
        beside=app.links_beside(link),
    )
    stage.progress(Tick(step))
    try:
        _begin_step(work, run, step)
        if act is None:
            act = (
                partial(select_files.select_files, options=read_options(run.options))
                if step == "select_files"
                else _ACTS[step]
            )
        counts = act(work)
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing to do"
        log.debug("link %s, run %s, %s: %s", run.link, run.run_id, step, told)
        return counts
    except TidemarkError as error:
        _record_failure(app, lease, link.name, error)
        raise


def _begin_step(work: Work, run: RunRow, step: str) -> None:
    """Record the step, forward only: a repeated earlier step does not move the run back."""
    with work.write_under_lease() as connection:
        forward = step if not work.again else run.step
        run_rows.set_run(connection, run.run_id, state="running", step=forward, fence=work.lease.fence)


def _record_failure(app: App, lease: Lease, link: str, error: TidemarkError) -> None:
    """Record why the run stopped, for `status` and `why`. If the ledger cannot be written, the error itself is raised on."""
    if isinstance(error, LeaseLostError):
        return  # the new holder of the lease records the run's end
    kind = "run.window" if isinstance(error, WindowOverError) else "run.failed"
    try:
        with app.ledger.write() as connection:
            assert_held(connection, lease)
            over = isinstance(error, PlanOutOfDateError)  # a rerun with that plan would always fail
            state = "finished" if over else "failed"
            run_rows.set_run(
                connection, lease.holder, state=state, error_kind=error.kind, error=error.message, hint=error.hint
            )
            journal.record_event(connection, kind, link=link, run_id=lease.holder, error=error.message, hint=error.hint)
    except TidemarkError as second:
        log.warning("the ledger did not take the run's error: %s", second)


@contextmanager
def hold_lease(app: App, lease: Lease) -> Iterator[None]:
    """Keep the lease alive inside the block and release it afterwards."""
    leases = Leases(app.ledger, app.identity)
    try:
        with leases.keep_alive(lease):
            yield
    finally:
        leases.release(lease)


@contextmanager
def stores_of(app: App, link: LinkSettings) -> Iterator[tuple[Store, Store]]:
    """Open the site's store and the receiver's for the block. DiskAwayError as of `require_disk`."""
    require_disk(app, app.receiver_settings(link.receiver))
    with (
        app.site_store(app.site_settings(link.site)) as source,
        app.receiver_store(app.receiver_settings(link.receiver)) as target,
    ):
        yield source, target


@contextmanager
def _stores_of_run(app: App, lease: Lease, link: LinkSettings) -> Iterator[tuple[Store, Store]]:
    """Open the stores as `stores_of`, and record an error of opening as the reason why the run stopped."""
    with ExitStack() as opened:
        try:
            stores = opened.enter_context(stores_of(app, link))
        except TidemarkError as error:
            _record_failure(app, lease, link.name, error)
            raise
        yield stores


def run_of(app: App, run_id: str) -> RunRow:
    """Return the run's row. Raises NotFoundError."""
    with app.ledger.read() as connection:
        run = run_rows.get_run(connection, run_id)
    if run is None:
        raise NotFoundError(f"no run {run_id} in this ledger", hint="./tidemark status", subject=run_id)
    return run


NOTE_SECONDS = 2.0


@contextmanager
def note_progress(ledger: Ledger, link: str, run_id: str, progress: Progress) -> Iterator[Progress]:
    """Yield a Progress that passes every tick to `progress` and writes the newest to the ledger every 2 s. The seconds of
    the block are added to the run's time worked.

    Not guaranteed: a process that is killed does not note what it worked since its newest note.
    """
    newest: list[Tick] = []
    over = threading.Event()

    def beat(tick: Tick) -> None:
        newest[:] = [tick]
        progress(tick)

    def note() -> None:
        pace = Pace()
        written: Tick | None = None
        counted = time.monotonic()
        ending = False
        while not ending:
            ending = over.wait(NOTE_SECONDS)
            tick = newest[0] if newest else None
            if not ending and (tick is None or tick == written):
                continue
            now = time.monotonic()
            try:
                with ledger.write() as connection:
                    if tick is not None and not ending:
                        put_progress(connection, link, run_id, pace.figures_at(tick, now))
                    run_rows.add_to_run(connection, run_id, worked=now - counted)
                written, counted = tick, now
            except TidemarkError as trouble:
                log.debug("the progress of %s is not noted: %s", run_id, trouble)

    thread = threading.Thread(target=note, name=f"progress of {link}", daemon=True)
    thread.start()
    try:
        yield beat
    finally:
        over.set()
        thread.join()
