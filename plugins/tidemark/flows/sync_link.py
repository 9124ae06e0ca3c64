"""Sync a link: open or continue its run, take its lease, walk the seven steps, load where the receiver is here.

    recover → select_files → sync_schema → transfer_deletes → transfer_files → finish → cleanup

The command line calls `run_sync`; an orchestrator calls `end_unfinished`, `open_run` and then one function a step, in any
number of processes: the run holds the link's lease, parked between two steps. Every step is done again without harm, and
those of a finished run change nothing.
"""

from __future__ import annotations

from functools import partial

from tidemark.app import App
from tidemark.flows.sync_loading import keep_up, load_soon, loaded_beside
from tidemark.flows.sync_opening import open_lease, require_same_ends
from tidemark.flows.sync_result import SyncResult, result_of, total, with_receiver
from tidemark.flows.sync_standing import with_standing
from tidemark.flows.sync_steps import STEPS, Counts, one_step, run_of, run_up_to_cleanup, whole_run
from tidemark.ledger.leases import Leases
from tidemark.ledger.sender import runs as run_rows
from tidemark.progress import Progress, silent
from tidemark.sync import sending
from tidemark.sync.parts import PartLimits
from tidemark.sync.seeding import Copies
from tidemark.sync.work import Options, Plan, Work

__all__ = ["STEPS", "Options", "Plan", "SyncResult", "open_run", "run_result", "run_sync"]


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
    keep_up(app, settings, options)
    results: list[SyncResult] = []
    while True:
        lease, continued = open_lease(app, settings, None, options)
        ending = run_up_to_cleanup(app, lease, progress, limits, copies, partial(load_soon, app, settings, options))
        if not continued:
            break
        results.append(ending())
    if options.no_load:
        return with_standing(app, settings, total([*results, ending()]))
    files = run_of(app, lease.holder).files
    loaded = loaded_beside(app, settings, lambda: total([*results, ending()]), files, progress)
    return with_standing(app, settings, with_receiver(app, settings, loaded))


def end_unfinished(app: App, link: str, progress: Progress = silent) -> SyncResult | None:
    """Bring the link's unfinished run to its end in this process, so that the next one is planned from what the site has
    now: a run goes on with what was planned when it began. None where there is none. Raises what `run_sync` raises."""
    settings = app.link(link)
    require_same_ends(app, settings)
    with app.ledger.read() as connection:
        unfinished = run_rows.unfinished_run(connection, link)
    if unfinished is None:
        return None
    lease = Leases(app.ledger, app.identity).take(f"link:{link}", unfinished)
    return whole_run(app, lease, progress)


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


def transfer_files(app: App, run_id: str, batch: int | None = None, progress: Progress = silent) -> Counts:
    """Send the files of one batch of `file_batches`, or all that is left: {"files", "bytes"} sent by this call."""

    def act(work: Work) -> Counts:
        return sending.transfer_files(work, batch)

    return one_step(app, run_id, "transfer_files", act, progress)


def file_batches(app: App, run_id: str) -> list[dict[str, int | str]]:
    """The run's files in few batches for mapped tasks: {"batch", "label", "files", "bytes"} each, ids and counts only."""
    run = run_of(app, run_id)
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
    return one_step(app, run_id, "finish")


def cleanup(app: App, run_id: str) -> Counts:
    """Take away what is not needed and end the run: {"pending"}."""
    return one_step(app, run_id, "cleanup")


def run_result(app: App, run_id: str) -> SyncResult:
    """What a run did, from the ledger; its `exit_code` says whether somebody has to act."""
    result = result_of(app.ledger, run_id)
    return with_receiver(app, app.link(result.link), result)
