"""Note a run's progress in the ledger while it works, so that `status` shows it from any process.

A thread writes, every NOTE_SECONDS, the newest beat: the work itself never waits for it, a run shorter than that writes
nothing, and a ledger that does not take a note is no trouble of the run's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.errors import TidemarkError
from tidemark.ledger.database import Ledger
from tidemark.ledger.sender.runs import put_progress
from tidemark.progress import Pace, Progress, Tick
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
NOTE_SECONDS = 2.0


@contextmanager
def noted(ledger: Ledger, link: str, run_id: str, progress: Progress) -> Iterator[Progress]:
    """A Progress for the block that tells `progress` every beat and notes the newest one."""
    newest: list[Tick] = []
    over = threading.Event()

    def beat(tick: Tick) -> None:
        newest[:] = [tick]
        progress(tick)

    def note() -> None:
        pace = Pace()
        written: Tick | None = None
        while not over.wait(NOTE_SECONDS):
            tick = newest[0] if newest else None
            if tick is None or tick == written:
                continue
            try:
                with ledger.write() as connection:
                    put_progress(connection, link, run_id, pace.at(tick, time.monotonic()))
                written = tick
            except TidemarkError as trouble:
                log.debug("the progress of %s is not noted: %s", run_id, trouble)

    thread = threading.Thread(target=note, name=f"progress of {link}", daemon=True)
    thread.start()
    try:
        yield beat
    finally:
        over.set()
        thread.join()
