"""The seven tasks of a link's DAG, each one step of the sync flow (DESIGN §6). XCom carries ids and counts only.

A task may run any number of times, at any time, also long after its run has finished: the flow's step reads the ledger and
does what is still missing. `run` is the run's id, "" for a dry run, which skips everything after the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemark.orchestration.tasks.perform import (
    counts_for_xcom,
    format_values,
    make_progress,
    perform_step,
    report_counts,
    show_on_page,
)
from tidemark.progress import format_count
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.progress import Progress
    from tidemark.sync.plan import PlanReport
    from tidemark.sync.run import Options, SyncResult


log = VisibleLog(__name__)
PLAN_LINES = 1_000  # of a plan's paths in the log


def recover(
    link: str,
    receiver: str,
    params: Mapping[str, Any] | None = None,
    dag_run: Any = None,
    outlet_events: Any = None,
    task_state_store: Any = None,
) -> str:
    """End another unfinished run of the link, then open this one. A cleared task finds its run by its DAG run.

    A run continues with its own plan, so this one would otherwise be green without the files sealed since. Skipped if the
    link's window is closed and this DAG run has no run yet.
    """
    asked = params or {}
    if asked.get("dry_run"):
        log.info("dry run: no run is opened, the plan stands in the log of select_files")
        return ""
    external, progress = f"{dag_run.dag_id}/{dag_run.run_id}", make_progress(task_state_store)
    run, ended = perform_step(lambda app: _open_run(app, link, external, (_parse_options(asked), progress)))
    show_on_page(task_state_store, "run", run)
    if ended is not None and ended.landings:
        _emit_landed(outlet_events, receiver, {"run": ended.run, "landings": ended.landings})
    return run


def _open_run(app: App, link: str, external: str, asked: tuple[Options, Progress]) -> tuple[str, SyncResult | None]:
    from tidemark.ledger.sender import runs as sender_runs
    from tidemark.settings.window import require_window
    from tidemark.sync import run as sync_run

    options, progress = asked
    with app.ledger.read() as connection:
        known = sender_runs.run_of(connection, external)
    ended = None
    if known is None:
        require_window(app.link_settings(link), app.clock())
        ended = sync_run.end_unfinished(app, link, progress)
        if ended is not None:
            log.info("run %s had stopped in its middle: it is ended now, %d landings", ended.run, ended.landings)
    run = sync_run.open_run(app, link, external, options)
    report_counts(f"Run {run} of link {link} is open", sync_run.recover(app, run))
    return run, ended


def _parse_options(asked: Mapping[str, Any]) -> Options:
    from tidemark.sync.run import Options

    return Options(only_paths=tuple(asked.get("only_paths") or ()), send_all_again=bool(asked.get("send_all_again")))


def select_files(link: str, run: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Pin the files that the run sends, or show the plan of a dry run. Return the batches of transfer_files."""
    if not run:
        from tidemark.sync.plan import plan_sync

        _show_plan(perform_step(lambda app: plan_sync(app, link, _parse_options(params or {}))))
        return []
    return perform_step(lambda app: _select_batches(app, run))


def _select_batches(app: App, run: str) -> list[dict[str, Any]]:
    from tidemark.sync import run as sync_run

    report_counts("Selected", sync_run.select_files(app, run))
    return [dict(batch) for batch in sync_run.file_batches(app, run)]


def sync_schema(run: str) -> dict[str, Any]:
    """Send the new bytes of the schema logs."""
    return _run_step("sync_schema", run)


def transfer_deletes(run: str) -> dict[str, Any]:
    """Decide which vanished files are reported to the receiver."""
    return _run_step("transfer_deletes", run)


def transfer_files(run: str, batch: Mapping[str, Any], task_state_store: Any = None) -> dict[str, Any]:
    """Send one batch; resumes within a file. Its progress is only shown on the task's page."""
    from tidemark.sync.run import transfer_files as step

    progress = make_progress(task_state_store)
    return report_counts("Sent", perform_step(lambda app: dict(step(app, run, batch["batch"], progress))))


def finish(run: str, receiver: str, outlet_events: Any = None) -> dict[str, Any]:
    """Close the landing by its manifest, and trigger `tidemark_load` if something landed."""
    _skip_without(run)
    done = perform_step(lambda app: _close_landing(app, run))
    if done.get("landings"):
        _emit_landed(outlet_events, receiver, {"run": run, **done})
    return report_counts(f"Closed what landed at {receiver}", done)


def _emit_landed(outlet_events: Any, receiver: str, extra: Mapping[str, Any]) -> None:
    from tidemark.orchestration.schedules import landed_alias, landed_asset

    outlet_events[landed_alias(receiver)].add(landed_asset(receiver), extra=dict(extra))


def _close_landing(app: App, run: str) -> dict[str, Any]:
    from tidemark.errors import WindowOverError
    from tidemark.ledger.sender import runs as sender_runs
    from tidemark.sync import run as sync_run

    with app.ledger.read() as connection:
        row = sender_runs.get_run(connection, run)
        counted = sender_runs.count_items(connection, run)
    unsent = sum(
        counted.get((action, state), 0) for action in (sender_runs.SEND, sender_runs.MODS) for state in sender_runs.TO_SEND
    )
    if row is not None and row.error_kind == WindowOverError.kind and unsent:
        raise WindowOverError(
            f"the window closed with {format_count(unsent, 'file')} unsent; the next run goes on with them"
        )
    return dict(sync_run.finish(app, run))


def cleanup(run: str) -> dict[str, Any]:
    """Remove pins, end the run. Red if something waits for the operator: held drops, files left out."""
    return perform_step(lambda app: _end_run(app, run))


def _end_run(app: App, run: str) -> dict[str, Any]:
    from tidemark.errors import GuardError, PartialError
    from tidemark.sync import result as sync_result
    from tidemark.sync import run as sync_run

    sync_run.cleanup(app, run)
    result = sync_run.run_result(app, run)
    for path, reason in result.left_out:
        log.warning("left out: %s: %s", path, reason)
    for trouble in sync_result.kept_out(app, app.link_settings(result.link))[:PLAN_LINES]:
        log.warning("%s at the receiver: %s", trouble.what, trouble.text)
    for note in result.notes:
        log.warning("%s", note)
    if result.exit_code:
        error = GuardError if result.exit_code == GuardError.kind else PartialError
        raise error(result.error, hint=result.hint, subject=run)
    return report_counts("Ended", result.as_json())


def _run_step(name: str, run: str) -> dict[str, Any]:
    from tidemark.sync import run as sync_run

    _skip_without(run)
    return report_counts(name, perform_step(lambda app: dict(getattr(sync_run, name)(app, run))))


def _skip_without(run: str | None) -> None:
    """Raise AirflowSkipException if there is no run: a dry run, or a window that was over before it could begin."""
    if not run:
        from airflow.sdk.exceptions import AirflowSkipException

        raise AirflowSkipException("there is no run: a dry run ends with its plan, a closed window before it")


def _show_plan(report: PlanReport) -> None:
    from airflow.sdk import get_current_context

    raw = report.as_json()
    for what in ("send", "drop", "superseded", "skipped"):
        for entry in raw[what][:PLAN_LINES]:
            log.info("%s: %s", what, format_values(entry))
        if len(raw[what]) > PLAN_LINES:
            log.info("… and %d more to %s", len(raw[what]) - PLAN_LINES, what)
    get_current_context()["ti"].xcom_push(key="plan", value=counts_for_xcom(raw))
