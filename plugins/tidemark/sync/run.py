"""Sync a link: open or continue its run, take its lease, walk the seven steps, load where the receiver is here.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

The command line calls `run_sync`. An orchestrator calls `end_unfinished`, `open_run` and then one function a step,
in any number of processes: the run holds the link's lease, parked between two steps. Every step is done again
without harm, and those of a finished run change nothing. An unfinished run is brought to its end first, with what
was planned when it began; then a fresh pass is made.

About loading, where the receiver is a folder on this machine: before a run the window is open and a receiver with
too many unanswered landings (`max_unloaded_landings`) is loaded (`keep_up`); files of the open part are checked
while the run ends (`load_soon`); what landed is loaded beside the last step, and the receiver's answers are taken in
(`loaded_beside`). Elsewhere the receiver's own Tidemark loads. Another load of the same receiver is waited for at
most 120 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tidemark.app import App
from tidemark.errors import LeaseHeldError
from tidemark.formats.layout import landing_folder
from tidemark.ledger.leases import Leases
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import MODS, SEND, SENT
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import LinkSettings, ReceiverSettings
from tidemark.settings.window import require_window
from tidemark.sync.result import SyncResult, result_of, sum_results, with_kept_out, with_receiver
from tidemark.sync.send import receipts
from tidemark.sync.send import transfer_files as send_transfer_files
from tidemark.sync.send.manifest import landed_file
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
    """One whole run in this process; an unfinished run is brought to its end first, then a fresh pass is made.

    Raises LeaseHeldError while another process works on the link, WindowOverError outside its window, and whatever
    ends a run early; the next call goes on where it ended. Held drops and files left out are told in the result.
    `copies` that lie at the receiver need not be sent.
    """
    settings = app.link_settings(link)
    keep_up(app, settings, options)
    results: list[SyncResult] = []
    while True:
        lease, continued = open_lease(app, settings, None, options)
        ending = run_up_to_cleanup(app, lease, progress, limits, copies, partial(load_soon, app, settings, options))
        if not continued:
            break
        results.append(ending())
    if options.no_load:
        return with_kept_out(app, settings, sum_results([*results, ending()]))
    files = run_of(app, lease.holder).files
    loaded = loaded_beside(app, settings, lambda: sum_results([*results, ending()]), files, progress)
    return with_kept_out(app, settings, with_receiver(app, settings, loaded))


def end_unfinished(app: App, link: str, progress: Progress = ignore_progress) -> SyncResult | None:
    """Bring the link's unfinished run to its end in this process, so that the next one is planned from what the site has
    now: a run goes on with what was planned when it began. None where there is none. Raises what `run_sync` raises."""
    settings = app.link_settings(link)
    require_same_ends(app, settings)
    with app.ledger.read() as connection:
        unfinished = run_rows.unfinished_run(connection, link)
    if unfinished is None:
        return None
    lease = Leases(app.ledger, app.identity).acquire_lease(f"link:{link}", unfinished)
    return whole_run(app, lease, progress)


def open_run(app: App, link: str, external: str | None = None, options: Options = Options()) -> str:  # noqa: B008
    """The run that an orchestrator's run id stands for; else the link's unfinished run; else a new one. Its id.

    Raises LeaseHeldError while another process works on the link.
    """
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
    """Settle what a dead run left, take in the receiver's answers."""
    return one_step(app, run_id, "recover")


def select_files(app: App, run_id: str) -> Counts:
    """Decide and pin what is sent: {action: items}."""
    return one_step(app, run_id, "select_files")


def sync_schema(app: App, run_id: str) -> Counts:
    """Send what the schema logs gained: {"files", "bytes"}."""
    return one_step(app, run_id, "sync_schema")


def transfer_deletes(app: App, run_id: str) -> Counts:
    """Decide which vanished files are told: {"dropped", "superseded", "held"}."""
    return one_step(app, run_id, "transfer_deletes")


def transfer_files(app: App, run_id: str, batch: int | None = None, progress: Progress = ignore_progress) -> Counts:
    """Send the files of one batch of `file_batches`, or all that is left: {"files", "bytes"} sent by this call."""

    def act(work: Work) -> Counts:
        return send_transfer_files.transfer_files(work, batch)

    return one_step(app, run_id, "transfer_files", act, progress)


def file_batches(app: App, run_id: str) -> list[dict[str, int | str]]:
    """The run's files in few batches for mapped tasks: {"batch", "label", "files", "bytes"} each, ids and counts only."""
    run = run_of(app, run_id)
    site = app.site_settings(app.link_settings(run.link).site)
    with app.ledger.read() as connection:
        cut = send_transfer_files.task_batches(connection, run_id, site.data)
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
    return one_step(app, run_id, "finish")


def cleanup(app: App, run_id: str) -> Counts:
    """Take away what is not needed and end the run: {"pending"}."""
    return one_step(app, run_id, "cleanup")


def run_result(app: App, run_id: str) -> SyncResult:
    """What a run did, from the ledger; its `exit_code` says whether somebody has to act."""
    result = result_of(app.ledger, run_id)
    return with_receiver(app, app.link_settings(result.link), result)


BESIDE_FILES = 100_000  # of a run with more of them one transaction may take as long as others wait for SQLite
LOAD_PATIENCE = 120.0  # seconds to wait for another load of the same receiver


def keep_up(app: App, link: LinkSettings, options: Options) -> None:
    """Before a run: the window is open, and a receiver that is here has loaded what it can."""
    require_window(link, app.clock())
    receiver = app.receiver_settings(link.receiver)
    if options.no_load or app.receiver_root(receiver) is None:
        return
    if _count_unanswered(app, link) > receiver.max_unloaded_landings:
        _load_site(app, link, ignore_progress)


def _count_unanswered(app: App, link: LinkSettings) -> int:
    with app.ledger.read() as connection:
        return len(run_rows.sent_landings(connection, link.name, state="landed"))


def load_soon(app: App, link: LinkSettings, options: Options, run_id: str) -> None:
    """The run's files are sent: where they are loaded here, those of its open part are checked while the run is ended."""
    root = app.receiver_root(app.receiver_settings(link.receiver))
    if options.no_load or root is None:
        return
    with app.ledger.read() as connection:
        sent = [item for item in run_rows.read_items(connection, run_id, SENT) if item.action in (SEND, MODS)]
    if not sent:
        return
    from tidemark.receiver.load.examine import examine_soon

    site = app.site_settings(link.site)
    folder = landing_folder(site.id, f"{run_id}-{sent[0].part}")
    examine_soon(app, root, folder, map(landed_file, sent), site.data)


def loaded_beside(
    app: App, link: LinkSettings, ending: Callable[[], SyncResult], files: int, progress: Progress
) -> SyncResult:
    """Load what landed, where the receiver is a folder here, while the run is ended, and take in the receiver's answers.

    `ending` does the last step of a run of so many `files`: it waits for the disk of the site, where links are removed, a
    load for processors.
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
    """Load this link's site; None where another load of the receiver does not end within LOAD_PATIENCE."""
    from tidemark.receiver.load.load import load

    give_up = time.monotonic() + LOAD_PATIENCE
    receiver = app.receiver_settings(link.receiver)
    while True:
        try:
            loaded = load(app, receiver, site=app.site_settings(link.site).id, progress=progress)
            return _with_iotdb(app, receiver, loaded, progress)
        except LeaseHeldError:
            if time.monotonic() > give_up:
                return None
            time.sleep(0.5)


def _with_iotdb(app: App, receiver: ReceiverSettings, loaded: LoadResult, progress: Progress) -> LoadResult:
    """Also into the receiver's IoTDB; one that another process gives to right now gets this by its next load."""
    if not receiver.iotdb:
        return loaded
    from tidemark.receiver.iotdb.load import with_iotdb

    try:
        return with_iotdb(app, receiver, loaded, progress)
    except LeaseHeldError:
        return loaded


def _read_answers(app: App, link: LinkSettings, run_id: str) -> None:
    """Read the receipts now, not at the start of the next run; somebody else at work on the link reads them himself."""
    leases = Leases(app.ledger, app.identity)
    try:
        lease = leases.acquire_lease(f"link:{link.name}", run_id)
    except LeaseHeldError:
        return
    with hold_lease(app, lease), stores_of(app, link) as (source, target):
        receiver = app.receiver_settings(link.receiver)
        site = app.site_settings(link.site)
        receipts.read_receipts(Work(app.ledger, link, site, source, target, receiver, run_id, lease, app.clock))
