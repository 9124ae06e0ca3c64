"""A flow's progress on Airflow's pages: a line in the log, and the task's state store for who opens its page.

For display only (DESIGN §4): whether the store survives a clear depends on the version and on a box in the dialog.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.flows.app import Progress, Tick

log = logging.getLogger(__name__)
EVERY_SECONDS = 5.0  # each showing is a request to the API server


def shown(store: Any, clock: Callable[[], float] = time.monotonic) -> Progress:
    """A Progress that shows a tick at most every EVERY_SECONDS. `store`: Airflow's task_state_store, or None."""
    last = clock()

    def show(tick: Tick) -> None:
        nonlocal last
        if clock() - last < EVERY_SECONDS:
            return
        last = clock()
        line = said(tick)
        log.info("%s", line)
        if store is not None:
            try:
                store.set("progress", line)
            except Exception as trouble:
                log.debug("progress is not shown: %s", trouble)

    return show


def said(tick: Tick) -> str:
    """`transfer: 412 of 900 files, 1.2 of 3.4 GB`"""
    files = f"{tick.done} of {tick.total} files" if tick.total else f"{tick.done} files"
    if not tick.bytes_done and not tick.bytes_total:
        return f"{tick.phase}: {files}"
    size = f"{tick.bytes_done / 1e9:.1f}" + (f" of {tick.bytes_total / 1e9:.1f}" if tick.bytes_total else "")
    return f"{tick.phase}: {files}, {size} GB"
