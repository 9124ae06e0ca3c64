"""A flow's progress on Airflow's pages: a line in the log, and the task's state store for who opens its page.

For display only (DESIGN §4): whether the store survives a clear depends on the version and on a box in the dialog.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidemark.progress import Pace, Progress, Tick, said
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
EVERY_SECONDS = 5.0  # each showing is a request to the API server


def shown(store: Any, clock: Callable[[], float] = time.monotonic) -> Progress:
    """A Progress that shows a tick at most every EVERY_SECONDS. `store`: Airflow's task_state_store, or None."""
    last = clock()
    pace = Pace()

    def show(tick: Tick) -> None:
        nonlocal last
        now = clock()
        if now - last < EVERY_SECONDS:
            return
        last = now
        line = said(pace.at(tick, now))
        log.info("%s", line)
        if store is not None:
            try:
                store.set("progress", line)
            except Exception as trouble:
                log.debug("progress is not shown: %s", trouble)

    return show
