"""The frame of every task: an open App, tries in seconds, errors in Airflow's terms, progress.

A closed window is a skip, not a failure. Every other error keeps its class for the retry policy, and is logged with the next
command.

`make_progress` puts progress on Airflow's pages: a line in the log, and the task's state store for the task's page. It is
for display only (DESIGN §4): whether the store survives a clear depends on the version and on a box in the dialog.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.errors import TidemarkError, WindowOverError
from tidemark.orchestration.settings import load_sound_settings
from tidemark.progress import Pace, Progress, Tick, format_figures
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App


log = VisibleLog(__name__)
T = TypeVar("T")


def perform_step(act: Callable[[App], T]) -> T:
    """Run one step of a flow as an Airflow task. Raises AirflowSkipException if the link's window is over."""
    from airflow.sdk.exceptions import AirflowSkipException

    from tidemark.ledger.soundness import explain_surprises
    from tidemark.orchestration.retry_policy import format_advice, retry_soon
    from tidemark.orchestration.tasks.attempts import record_attempt

    try:
        with open_task_app() as app, record_attempt(app), explain_surprises(app.ledger):
            return retry_soon(lambda: act(app))
    except WindowOverError as over:
        raise AirflowSkipException(format_advice(over)) from over
    except TidemarkError as error:
        log.error("%s: %s", type(error).__name__, format_advice(error))
        error.args = (escape_invisible(error.message),)  # Airflow logs it with the traceback
        raise


@contextmanager
def open_task_app() -> Iterator[App]:
    """Open an App of the present settings, with remote stores opened at their first use; its ledger is closed at the end."""
    from tidemark.app import open_app
    from tidemark.ledger.database import Ledger
    from tidemark.ledger.soundness import explain_surprises
    from tidemark.orchestration.tasks.late_store import open_late

    settings = load_sound_settings(os.environ)
    with explain_surprises(Ledger(settings.ledger.url, settings.root)):
        app = replace(open_app(settings), opener=open_late)
    try:
        yield app
    finally:
        app.ledger.close()


def counts_for_xcom(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that XCom may carry: ids and numbers; lists only as their length."""
    short: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, (list, tuple, dict)):
            short[key] = len(value)
        elif value is None or isinstance(value, (str, int, float, bool)):
            short[key] = value
    return short


EVERY_SECONDS = 5.0  # each display is a request to the API server


def make_progress(store: Any, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Make a Progress that shows a tick at most every EVERY_SECONDS. `store`: Airflow's task_state_store, or None."""
    last = clock()
    pace = Pace()

    def report_tick(tick: Tick) -> None:
        nonlocal last
        now = clock()
        if now - last < EVERY_SECONDS:
            return
        last = now
        line = format_figures(pace.figures_at(tick, now))
        log.info("%s", line)
        if store is not None:
            try:
                store.set("progress", line)
            except Exception as trouble:
                log.debug("progress is not shown: %s", trouble)

    return report_tick
