"""Sync a link: open or continue its run, acquire its lease, run the seven steps, load if the receiver is local.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

The command line calls `run_sync`. An orchestrator calls `end_unfinished`, `open_run` and then one function a step, in any
number of processes: the run holds the link's lease, parked between two steps. Every step may be repeated without harm,
and steps of a finished run change nothing. An unfinished run is ended first, with its recorded selection; then a new run is
made.

If the receiver is a folder on this machine, this module also loads. Before a run, `keep_up` loads a receiver with too many
unanswered landings (`max_unloaded_landings`). During the last step, `loaded_beside` loads the landings and reads the
receiver's answers. It waits at most 120 s for another load of the same receiver. Other receivers are loaded by their own
Tidemark.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.app import App
from tidemark.errors import LeaseHeldError
from tidemark.ledger.leases import Leases
from tidemark.ledger.sender import runs as run_rows
from tidemark.progress import Progress, format_count, format_size, ignore_progress
from tidemark.settings.model import LinkSettings, ReceiverSettings
from tidemark.settings.window import require_window
from tidemark.sync.result import SyncResult, result_of, sum_results, with_kept_out, with_receiver
from tidemark.sync.send import receipts
from tidemark.sync.send import transfer_files as send_transfer_files
from tidemark.sync.session import KnownCopies, Options, PartLimits, Plan, Work
from tidemark.sync.start import open_lease, require_same_ends
from tidemark.sync.steps import STEPS, Counts, hold_lease, one_step, run_of, run_up_to_cleanup, stores_of, whole_run

if TYPE_CHECKING:
    from tidemark.receiver.load.result import LoadResult


__all__ = ["STEPS", "Options", "Plan", "SyncResult", "open_run", "run_result", "run_sync"]


def run_sync(
    app: App,
    link: str,
    options: Options = Options(),  # noqa: B008 - frozen
    progress: Progress = ignore_progress,
    limits: PartLimits = PartLimits(),  # noqa: B008 - frozen
    copies: KnownCopies = KnownCopies(),  # noqa: B008 - frozen
) -> SyncResult:
    """Run one whole sync in this process. An unfinished run is ended first; then a new run is made.

    Raises LeaseHeldError while another process works on the link, WindowOverError outside its window, and any error that
    ends a run early; the next call resumes there. Held drops and files left out are in the result. `copies` are at the
    receiver already and need not be sent.
    """
    began = time.monotonic()
    settings = app.link_settings(link)
    keep_up(app, settings, options)
    results: list[SyncResult] = []
    sent_before = 0
    while True:
        lease, continued = open_lease(app, settings, None, options)
        sent_before += run_of(app, lease.holder).sent_bytes
        ending = run_up_to_cleanup(app, lease, progress, limits, copies)
        if not continued:
            break
        results.append(ending())
    if options.no_load:
        result = sum_results([*results, ending()])
    else:
        files = run_of(app, lease.holder).files
        loaded = loaded_beside(app, settings, lambda: sum_results([*results, ending()]), files, progress)
        result = with_receiver(app, settings, loaded)
    seconds = time.monotonic() - began
    rate = round((result.sent_bytes - sent_before) / seconds)  # without what an earlier process sent
    return replace(with_kept_out(app, settings, result), duration_seconds=round(seconds, 3), bytes_per_second=rate)


def end_unfinished(app: App, link: str, progress: Progress = ignore_progress) -> SyncResult | None:
    """End the link's unfinished run in this process, so that the next run is planned from the site's present files. Returns
    None if there is none. Raises as `run_sync`."""
    settings = app.link_settings(link)
    require_same_ends(app, settings)
    with app.ledger.read() as connection:
        unfinished = run_rows.unfinished_run(connection, link)
    if unfinished is None:
        return None
    lease = Leases(app.ledger, app.identity).acquire_lease(f"link:{link}", unfinished)
    return whole_run(app, lease, progress)


def open_run(app: App, link: str, external: str | None = None, options: Options = Options()) -> str:  # noqa: B008
    """Return the id of the run with the orchestrator's run id `external`; else of the link's unfinished run; else of a new
    run. Raises LeaseHeldError while another process works on the link."""
    settings = app.link_settings(link)
    if external is not None:
        with app.ledger.read() as connection:
            known = run_rows.run_of(connection, external)
        if known is not None:
            return known
    lease, _ = open_lease(app, settings, external, options)
    Leases(app.ledger, app.identity).park(lease)
    return lease.holder


def recover(app: App, run_id: str) -> Counts:
    """Settle what a dead run left, and read the receiver's answers."""
    return one_step(app, run_id, "recover")


def select_files(app: App, run_id: str) -> Counts:
    """Decide and pin what is sent. Returns {action: items}."""
    return one_step(app, run_id, "select_files")


def sync_schema(app: App, run_id: str) -> Counts:
    """Send what the schema logs gained. Returns {"files", "bytes"}."""
    return one_step(app, run_id, "sync_schema")


def transfer_deletes(app: App, run_id: str) -> Counts:
    """Release approved drops. Returns the counts of vanished files: {"dropped", "superseded", "held"}."""
    return one_step(app, run_id, "transfer_deletes")


def transfer_files(app: App, run_id: str, batch: int | None = None, progress: Progress = ignore_progress) -> Counts:
    """Send the files of one batch of `file_batches`, or all that are left. Returns {"files", "bytes"} of this call."""

    def act(work: Work) -> Counts:
        return send_transfer_files.transfer_files(work, batch)

    return one_step(app, run_id, "transfer_files", act, progress)


def file_batches(app: App, run_id: str) -> list[dict[str, int | str]]:
    """Return the run's files as few batches for mapped tasks: {"batch", "label", "files", "bytes"} each, without paths."""
    run = run_of(app, run_id)
    site = app.site_settings(app.link_settings(run.link).site)
    with app.ledger.read() as connection:
        cut = send_transfer_files.task_batches(connection, run_id, site.data)
    return [
        {
            "batch": number,
            "label": f"{number + 1} of {len(cut)}: {format_count(len(files), 'file')}, {format_size(size)}",
            "files": len(files),
            "bytes": size,
        }
        for number, files in enumerate(cut)
        for size in [sum(f.size for f in files)]
    ]


def finish(app: App, run_id: str) -> Counts:
    """Close the last part. Returns {"landings"} of this run."""
    return one_step(app, run_id, "finish")


def cleanup(app: App, run_id: str) -> Counts:
    """Remove the snapshot and leftovers, and end the run. Returns {"pending"}."""
    return one_step(app, run_id, "cleanup")


def run_result(app: App, run_id: str) -> SyncResult:
    """Return what a run did, from the ledger. Its `exit_code` says whether a person has to act."""
    result = result_of(app.ledger, run_id)
    return with_receiver(app, app.link_settings(result.link), result)


BESIDE_FILES = 100_000  # with more files, one transaction of the run may take as long as others wait for SQLite
LOAD_PATIENCE = 120.0  # seconds to wait for another load of the same receiver


def keep_up(app: App, link: LinkSettings, options: Options) -> None:
    """Require an open window, and load a local receiver that has too many unanswered landings. Called before a run."""
    require_window(link, app.clock())
    receiver = app.receiver_settings(link.receiver)
    if options.no_load or app.receiver_root(receiver) is None:
        return
    if _count_unanswered(app, link) > receiver.max_unloaded_landings:
        _load_site(app, link, ignore_progress)


def _count_unanswered(app: App, link: LinkSettings) -> int:
    with app.ledger.read() as connection:
        return len(run_rows.sent_landings(connection, link.name, state="landed"))


def loaded_beside(
    app: App, link: LinkSettings, ending: Callable[[], SyncResult], files: int, progress: Progress
) -> SyncResult:
    """Load what landed if the receiver is local, while the run ends, and read the receiver's answers.

    `ending` does the last step of a run of `files` files. It waits for the site's disk, where links are removed, while a
    load waits for processors.
    """
    if app.receiver_root(app.receiver_settings(link.receiver)) is None:
        return ending()
    with ThreadPoolExecutor(1, thread_name_prefix="ending") as beside:
        ended = beside.submit(ending)
        if files > BESIDE_FILES:
            ended.result()
        if not _count_unanswered(app, link):
            return ended.result()
        loaded = _load_site(app, link, progress)
        result = ended.result()
    if loaded is None:
        return replace(result, waiting_for_load=True)
    _read_answers(app, link, result.run)
    done = not _count_unanswered(app, link)
    return replace(
        result,
        state="loaded" if done else result.state,
        loaded=loaded.loaded,
        refused=loaded.refused,
        quarantined=loaded.quarantined,
        troubles=loaded.troubles,
        clashes=loaded.clashes,
    )


def _load_site(app: App, link: LinkSettings, progress: Progress) -> LoadResult | None:
    """Load this link's site. Returns None if another process's load of the receiver does not end within LOAD_PATIENCE."""
    from tidemark.receiver.load.load import load

    receiver = app.receiver_settings(link.receiver)
    with app.loading:
        give_up = time.monotonic() + LOAD_PATIENCE
        while True:
            try:
                loaded = load(app, receiver, site=app.site_settings(link.site).id, progress=progress)
                return _with_iotdb(app, receiver, loaded, progress)
            except LeaseHeldError:
                if time.monotonic() > give_up:
                    return None
                time.sleep(0.5)


def _with_iotdb(app: App, receiver: ReceiverSettings, loaded: LoadResult, progress: Progress) -> LoadResult:
    """Also load into the receiver's IoTDB. If another process loads it right now, its next load includes this."""
    if not receiver.iotdb:
        return loaded
    from tidemark.receiver.iotdb.load import with_iotdb

    try:
        return with_iotdb(app, receiver, loaded, progress)
    except LeaseHeldError:
        return loaded


def _read_answers(app: App, link: LinkSettings, run_id: str) -> None:
    """Read the receipts now, not at the start of the next run. Another process that works on the link reads them itself."""
    leases = Leases(app.ledger, app.identity)
    try:
        lease = leases.acquire_lease(f"link:{link.name}", run_id)
    except LeaseHeldError:
        return
    with hold_lease(app, lease), stores_of(app, link) as (source, target):
        receiver = app.receiver_settings(link.receiver)
        site = app.site_settings(link.site)
        receipts.read_receipts(Work(app.ledger, link, site, source, target, receiver, run_id, lease, app.clock))
