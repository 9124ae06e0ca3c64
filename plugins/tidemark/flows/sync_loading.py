"""What a sync does about loading: keep up before a run, load what landed after it, take in the receiver's answers.

Only where the receiver is a folder on this machine; elsewhere the receiver's own Tidemark loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.app import App
from tidemark.errors import LeaseHeldError
from tidemark.flows.sync_result import SyncResult
from tidemark.flows.sync_steps import holding, stores_of
from tidemark.formats.layout import landing_folder
from tidemark.ledger.leases import Leases
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import MODS, SEND, SENT
from tidemark.progress import Progress, silent
from tidemark.settings.model import LinkSettings, ReceiverSettings
from tidemark.settings.window import require_window
from tidemark.sync import receipts
from tidemark.sync.manifest import landed_file
from tidemark.sync.work import Options, Work

if TYPE_CHECKING:
    from tidemark.receiver.load.result import LoadResult


BESIDE_FILES = 100_000  # of a run with more of them one transaction may take as long as others wait for SQLite
LOAD_PATIENCE = 120.0  # seconds to wait for another load of the same receiver


def keep_up(app: App, link: LinkSettings, options: Options) -> None:
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


def load_soon(app: App, link: LinkSettings, options: Options, run_id: str) -> None:
    """The run's files are sent: where they are loaded here, those of its open part are checked while the run is ended."""
    root = app.receiver_root(app.receiver(link.receiver))
    if options.no_load or root is None:
        return
    with app.ledger.read() as connection:
        sent = [item for item in run_rows.items(connection, run_id, SENT) if item.action in (SEND, MODS)]
    if not sent:
        return
    from tidemark.receiver.load.examine import examine_soon

    site = app.site(link.site)
    folder = landing_folder(site.id, f"{run_id}-{sent[0].part}")
    examine_soon(app, root, folder, map(landed_file, sent), site.data)


def loaded_beside(
    app: App, link: LinkSettings, ending: Callable[[], SyncResult], files: int, progress: Progress
) -> SyncResult:
    """Load what landed, where the receiver is a folder here, while the run is ended, and take in the receiver's answers.

    `ending` does the last step of a run of so many `files`: it waits for the disk of the site, where links are removed, a
    load for processors.
    """
    if app.receiver_root(app.receiver(link.receiver)) is None:
        return ending()
    with ThreadPoolExecutor(1, thread_name_prefix="ending") as beside:
        ended = beside.submit(ending)
        if files > BESIDE_FILES:
            ended.result()
        if not _unanswered(app, link):
            return ended.result()
        loaded = _load(app, link, progress)
        result = ended.result()
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
    from tidemark.receiver.load.load import load

    give_up = time.monotonic() + LOAD_PATIENCE
    receiver = app.receiver(link.receiver)
    while True:
        try:
            loaded = load(app, receiver, site=app.site(link.site).id, progress=progress)
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


def _take_answers(app: App, link: LinkSettings, run_id: str) -> None:
    """Read the receipts now, not at the start of the next run; somebody else at work on the link reads them himself."""
    leases = Leases(app.ledger, app.identity)
    try:
        lease = leases.take(f"link:{link.name}", run_id)
    except LeaseHeldError:
        return
    with holding(app, lease), stores_of(app, link) as (source, target):
        receiver = app.receiver(link.receiver)
        site = app.site(link.site)
        receipts.read_receipts(Work(app.ledger, link, site, source, target, receiver, run_id, lease, app.clock))
