"""Airflow listener: the scheduler imports what tasks import before it forks its workers, so that no task has to.

A task is a fork of a worker, a worker a fork of the scheduler. Each of a sync run's seven short tasks would import the
ledger, the stores and the flows anew. Only the scheduler does this: the other parts run no tasks.
"""

from __future__ import annotations

import importlib
import logging

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

TASK_MODULES = (
    "tidemark.sync.run",
    "tidemark.receiver.load.load",
    "tidemark.receiver.merge.merge",
    "tidemark.stores.open_sftp",
    "tidemark.ledger.migrations",
    "tidemark.settings.load",
    "tidemark.orchestration.dags.link",
    "tidemark.orchestration.dags.receivers",
    "tidemark.orchestration.tasks.late_store",
    "tenacity",
)


@hookimpl  # type: ignore[untyped-decorator]
def on_starting(component: object) -> None:
    """Import the task modules in the scheduler. Called in each part as it starts; `component` is the part's job."""
    if getattr(component, "job_type", "") != "SchedulerJob":
        return
    for module in TASK_MODULES:
        try:
            importlib.import_module(module)
        except ImportError:
            log.exception("a task module cannot be imported; its tasks will say so: %s", module)
