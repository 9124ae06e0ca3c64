"""The seven tasks of a link's DAG, each one step of the sync flow (DESIGN §6). XCom carries ids and counts only.

A task may run any number of times, at any time, also when its run is long finished: the flow's step reads the ledger and
does what is still missing. `run` is the run's id, "" for a dry run: everything after the plan is skipped then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark.orchestration.perform import perform
from tidemark.orchestration.progress import shown

if TYPE_CHECKING:
    from tidemark.flows.plan_link import PlanReport

log = logging.getLogger(__name__)
PLAN_LINES = 1_000  # of a plan's paths in the log


def recover(link: str, params: Mapping[str, Any] | None = None, dag_run: Any = None) -> str:
    """Continue the link's unfinished run, else open one. A cleared task finds the run it opened before by its DAG run."""
    from tidemark.flows.sync_link import SyncOptions, open_run

    asked = params or {}
    if asked.get("dry_run"):
        log.info("dry run: no run is opened, the plan stands in the log of select_files")
        return ""
    options = SyncOptions(only_paths=tuple(asked.get("only_paths") or ()), send_all_again=bool(asked.get("send_all_again")))
    external = f"{dag_run.dag_id}/{dag_run.run_id}"
    return perform(lambda app: open_run(app, link, external=external, options=options))


def select_files(link: str, run: str) -> list[dict[str, Any]]:
    """Pin what the run sends, or show the plan of a dry run. Returns the batches of transfer_files."""
    if not run:
        from tidemark.flows.plan_link import plan

        _show_plan(perform(lambda app: plan(app, link)))
        return []
    from tidemark.flows.sync_link import select_files as step

    selected = perform(lambda app: step(app, run))
    log.info("selected %s", selected)
    return list(selected["batches"])


def sync_schema(run: str) -> dict[str, Any]:
    """Ship what the schema logs have gained."""
    from tidemark.flows.sync_link import sync_schema as step

    _skip_dry(run)
    return perform(lambda app: step(app, run))


def transfer_deletes(run: str) -> dict[str, Any]:
    """Decide which vanished files the receiver is told of."""
    from tidemark.flows.sync_link import transfer_deletes as step

    _skip_dry(run)
    return perform(lambda app: step(app, run))


def transfer_files(run: str, batch: Mapping[str, Any], task_state_store: Any = None) -> dict[str, Any]:
    """Send one batch; resumes within a file. Its progress is shown on the task's page and decides nothing."""
    from tidemark.flows.sync_link import transfer_files as step

    return perform(lambda app: step(app, run, batch=batch, progress=shown(task_state_store)))


def finish(run: str, receiver: str, outlet_events: Any = None) -> dict[str, Any]:
    """Close the landing by its manifest, and tell `tidemark_load` when something landed."""
    from tidemark.flows.sync_link import finish as step
    from tidemark.orchestration.schedules import landed, landed_alias

    _skip_dry(run)
    done = perform(lambda app: step(app, run))
    if done["landings"]:
        outlet_events[landed_alias(receiver)].add(landed(receiver), extra={"run": run, **done})
    return done


def cleanup(run: str) -> dict[str, Any]:
    """Remove pins, read receipts; red when something of the run waits for the operator."""
    from tidemark.flows.sync_link import cleanup as step

    _skip_dry(run)
    return perform(lambda app: step(app, run))


def _skip_dry(run: str | None) -> None:
    """Raises AirflowSkipException where there is no run: a dry run, or a window that was over before it could begin."""
    if not run:
        from airflow.sdk.exceptions import AirflowSkipException

        raise AirflowSkipException("there is no run: a dry run ends with its plan, a closed window before it")


def _show_plan(report: PlanReport) -> None:
    from airflow.sdk import get_current_context

    from tidemark.orchestration.receiver_tasks import counts

    raw = report.as_json()
    for what in ("send", "drop", "superseded", "skipped"):
        for entry in raw[what][:PLAN_LINES]:
            log.info("%s %s", what, entry)
        if len(raw[what]) > PLAN_LINES:
            log.info("… and %d more to %s", len(raw[what]) - PLAN_LINES, what)
    get_current_context()["ti"].xcom_push(key="plan", value=counts(raw))
