"""For DAGs that you write yourself: `TidemarkSyncOperator` runs a link, `TidemarkSensor` waits until its data are loaded.

    from tidemark.orchestration.operators import TidemarkSensor, TidemarkSyncOperator

Both read the settings that $TIDEMARK_CONFIG names. They retry as Tidemark's own tasks do, unless the DAG says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseSensorOperator

from tidemark.errors import UsageError
from tidemark.orchestration.dags.notices import report_failure
from tidemark.orchestration.retry_policy import RETRY_ARGUMENTS
from tidemark.orchestration.tasks.perform import make_progress, perform_step
from tidemark.orchestration.tasks.receivers import report_outcome
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App

log = VisibleLog(__name__)
_LAST_LINE = {"on_failure_callback": report_failure, "on_retry_callback": report_failure}


class TidemarkSyncOperator(BaseOperator):  # type: ignore[misc]
    """Run a whole sync of a link in one task, as `./tidemark sync LINK` does, with the load of a receiver of this machine.

    `only_paths`, `send_all_again`: as on the trigger form of the link's own DAG. XCom gets ids and counts. The task is red
    if drops wait for approval or files were left out.
    """

    template_fields: Sequence[str] = ("link", "only_paths")

    def __init__(self, *, link: str, only_paths: Sequence[str] = (), send_all_again: bool = False, **options: Any) -> None:
        super().__init__(**{**RETRY_ARGUMENTS, **_LAST_LINE, **options})
        self.link = link
        self.only_paths = only_paths
        self.send_all_again = send_all_again

    def execute(self, context: Any) -> dict[str, Any]:
        from tidemark.sync.run import Options, run_sync

        asked = Options(only_paths=tuple(self.only_paths), send_all_again=self.send_all_again)
        progress = make_progress(context.get("task_state_store"))
        result = perform_step(lambda app: run_sync(app, self.link, asked, progress))
        return report_outcome(f"Synced {self.link}", result.exit_code, result.as_json())


class TidemarkSensor(BaseSensorOperator):  # type: ignore[misc]
    """Wait until all that the link's site had sealed at a moment is loaded at the receiver.

    `since`: that moment in ISO 8601, UTC without a zone; by default when this DAG run was due. A run of the link that began
    later must have ended, and the receiver must have answered what it landed. Runs of some paths only do not count. A file
    that was refused or went into quarantine is answered, too: `./tidemark status` tells of it.
    """

    template_fields: Sequence[str] = ("link", "since")

    def __init__(self, *, link: str, since: str | None = None, **options: Any) -> None:
        super().__init__(**{"mode": "reschedule", **RETRY_ARGUMENTS, **_LAST_LINE, **options})
        self.link = link
        self.since = since

    def poke(self, context: Any) -> bool:
        moment = _parse_moment(self.since) if self.since else context["dag_run"].run_after
        run = perform_step(lambda app: find_loaded_run(app, self.link, moment.timestamp()))
        if run:
            log.info("Run %s of link %s began after %s, and is loaded.", run, self.link, moment.isoformat())
        else:
            log.info("No run of link %s that began after %s is loaded yet.", self.link, moment.isoformat())
        return bool(run)


def find_loaded_run(app: App, link: str, since: float) -> str:
    """Return the newest whole run of the link, begun at `since` or later, whose landings are answered; "" without one."""
    from tidemark.ledger.receiver.landings import last_loaded
    from tidemark.ledger.sender.runs import finished_since, sent_landings

    partial = ("only_paths", "exactly", "plan")
    settings = app.link_settings(link)
    with app.ledger.read() as connection:
        # The receiver's own rows, where this ledger has them, know it before the sender has read the answer.
        loaded, _ = last_loaded(connection, settings.receiver, app.site_settings(settings.site).id)
        for run in finished_since(connection, link, since):
            landings = sent_landings(connection, link, run_id=run.run_id)
            answered = all(one.state == "answered" or one.sequence <= loaded for one in landings)
            options = json.loads(run.options)
            if answered and not any(options.get(key) for key in partial):
                return run.run_id
    return ""


def _parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as wrong:
        raise UsageError(f"since: {text!r} is no ISO 8601 time such as 2026-01-31T12:00:00Z") from wrong
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
