"""The frame of every task: an open App, tries in seconds, errors in Airflow's terms, its record, progress.

A closed window is a skip, not a failure. Every other error keeps its class for the retry policy.

The tries of a link's tasks are recorded in Tidemark's own ledger. Airflow knows them too, but `./tidemark status` may run
without Airflow. A dry run is no try of the link's run.

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

from tidemark.errors import GuardError, PartialError, TidemarkError, WindowOverError
from tidemark.orchestration.settings import load_sound_settings
from tidemark.progress import Pace, Progress, Tick, format_duration, format_figures, format_size
from tidemark.visible import escape_error
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.ledger.sender.links import Try


log = VisibleLog(__name__)
T = TypeVar("T")
LINK_DAG = "tidemark_sync__"
"""How the id of a link's DAG begins; its link's name follows."""


def perform_step(act: Callable[[App], T]) -> T:
    """Run one step of a flow as an Airflow task. Raises AirflowSkipException if the link's window is over."""
    from airflow.sdk.exceptions import AirflowSkipException

    from tidemark.ledger.soundness import explain_surprises
    from tidemark.orchestration.retry_policy import format_advice, retry_soon

    try:
        with open_task_app() as app, record_attempt(app), explain_surprises(app.ledger):
            return retry_soon(lambda: act(app))
    except BaseException as error:
        escape_error(error)  # Airflow logs it with the traceback and all that is behind it
        if isinstance(error, WindowOverError):
            raise AirflowSkipException(format_advice(error)) from error
        if isinstance(error, TidemarkError):
            # It is expected: who reads the log wants its sentence, not a stack. dags.notices writes it last, where Airflow's
            # page folds it away. So it stands here too, in two lines: the page cuts long ones.
            log.debug("%s", type(error).__name__, exc_info=True)
            error.args = (format_advice(error),)
            cause, _, following = format_advice(error).partition(". Next: ")
            log.error("%s", cause)
            if following:
                log.error("Next: %s", following)
            raise error.with_traceback(None) from None
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


@contextmanager
def record_attempt(app: App) -> Iterator[None]:
    """Record one try of a task around the block: working, then done, to be retried, or failed."""
    from airflow.sdk.exceptions import AirflowSkipException

    from tidemark.ledger.sender.links import DONE, WORKING, Try

    found = _find_instance()
    if found is None:
        yield
        return
    link, instance = found
    this = Try(instance.task_id, WORKING, instance.try_number, instance.max_tries + 1)
    _store_attempt(app, link, this)
    # CRASH WINDOW: the worker dies: its try stays `working`, its identity shows that it is dead; the next try replaces it.
    try:
        yield
    except AirflowSkipException:
        _store_attempt(app, link, replace(this, state=DONE))
        raise
    except BaseException as error:
        _store_attempt(app, link, _judge_ended(this, error))
        raise
    _store_attempt(app, link, replace(this, state=DONE))


def _judge_ended(this: Try, error: BaseException) -> Try:
    """Return the try as Airflow will treat it, by the policy's decision."""
    from airflow.sdk.definitions.retry_policy import RetryAction

    from tidemark.ledger.sender.links import DONE, FAILED, RETRYING
    from tidemark.orchestration.retry_policy import RETRY_DELAY, TidemarkRetryPolicy

    if isinstance(error, (GuardError, PartialError, WindowOverError)):
        return replace(this, state=DONE)  # its own state says what waits: for the operator, or the window
    this = replace(this, state=FAILED, error=f"{type(error).__name__}: {error}")
    if isinstance(error, TidemarkError):
        this = replace(this, error=error.message, hint=error.hint)
    decision = TidemarkRetryPolicy().evaluate(error, this.try_number, this.tries - 1)
    if decision.action is RetryAction.FAIL or this.try_number >= this.tries:
        return this
    delay = decision.retry_delay or RETRY_DELAY
    return replace(this, state=RETRYING, next_try=time.time() + delay.total_seconds())


def _store_attempt(app: App, link: str, attempt: Try) -> None:
    from tidemark.ledger.sender.links import put_attempt

    try:
        with app.ledger.write() as connection:
            put_attempt(connection, link, attempt, app.identity)
    except TidemarkError as trouble:
        log.warning("the ledger did not take how this try goes: %s", trouble)


def _find_instance() -> tuple[str, Any] | None:
    """Return (link, task instance) of the running task; None if it is not a link's, or a dry run's."""
    from airflow.sdk import get_current_context

    try:
        context = get_current_context()
    except RuntimeError:  # the step runs outside of any task
        return None
    dag_id = context["ti"].dag_id
    if not dag_id.startswith(LINK_DAG) or (context.get("params") or {}).get("dry_run"):
        return None
    return dag_id.removeprefix(LINK_DAG), context["ti"]


def report_counts(done: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Log what a task did as one sentence, and return what XCom may carry of it."""
    log.info("%s: %s.", done, format_values(counts) or "nothing to do")
    return counts_for_xcom(counts)


def format_values(values: Mapping[str, Any]) -> str:
    """Return `path a/b, 32 loaded, sent 1.2 MB`: what is not empty, as words. Lists and tables are counted. Pure."""
    words = []
    for key, value in values.items():
        count = len(value) if isinstance(value, (list, tuple, dict)) else value
        name = key.replace("_", " ")
        if not count or isinstance(count, bool):
            continue
        if isinstance(count, str):
            words.append(f"{name} {count}")
        elif key == "bytes_per_second":
            words.append(f"{format_size(count)}/s")
        elif name.endswith("bytes"):
            words.append(f"{name.removesuffix('bytes')}{format_size(count)}")
        elif name.endswith("seconds"):
            words.append(f"{format_duration(count)}")
        else:
            words.append(f"{count:,} {name}")
    return ", ".join(words)


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


def make_progress(store: Any) -> Progress:
    """Make a Progress that shows a tick at most every EVERY_SECONDS. `store`: Airflow's task_state_store, or None."""
    last = time.monotonic()
    pace = Pace()

    def report_tick(tick: Tick) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY_SECONDS:
            return
        last = now
        line = format_figures(pace.figures_at(tick, now))
        log.info("%s", line)
        show_on_page(store, "progress", line)

    return report_tick


def show_on_page(store: Any, key: str, text: str) -> None:
    """Put a text on the task's page. `store`: Airflow's task_state_store, or None. Nothing depends on it."""
    if store is None:
        return
    try:
        store.set(key, text)
    except Exception as trouble:
        log.debug("%s is not shown: %s", key, trouble)
