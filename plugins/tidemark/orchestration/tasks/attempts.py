"""Record the tries of a link's tasks in Tidemark's own ledger, so that `status` is right without Airflow.

Airflow knows them too, but `./tidemark status` may run without Airflow. A dry run is no try of the link's run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemark.errors import GuardError, PartialError, TidemarkError, WindowOverError
from tidemark.orchestration.retry_policy import RETRY_DELAY, TidemarkRetryPolicy
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.ledger.sender.links import Try


log = VisibleLog(__name__)
LINK_DAG = "tidemark_sync__"
"""How the id of a link's DAG begins; its link's name follows."""


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
