"""What is said of a task that failed: the last line of its log, the store on its page, and the calls of `notify`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.errors import TidemarkError
from tidemark.settings.model import AirflowSettings
from tidemark.spelling import spelling_of_tasks
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
Context = Any  # Airflow's: a dictionary of what a task sees


def make_callbacks(airflow: AirflowSettings) -> dict[str, list[Callable[[Context], None]]]:
    """Return the callbacks of every task. The log ends with the sentence: whoever is called may write into it before."""
    calls = [dict(table) for table in airflow.notify]
    found: dict[str, list[Callable[[Context], None]]] = {
        f"on_{event}_callback": [*(Call(one) for one in calls if one["on"] == event), report_failure]
        for event in ("failure", "retry")
    }
    return found | {"on_success_callback": [forget_failure]}


def report_failure(context: Context) -> None:
    """Write cause and next command as the last line of the task's log and into its state store, which its page shows."""
    told = describe_failure(context)
    try:
        context["task_state_store"].set("error", f"{told['cause']}. Next: {told['next']}")
    except Exception as trouble:  # it is for display only
        log.debug("the task's page does not show it: %s", trouble)
    log.error("%s. Next: %s", told["cause"], told["next"])


def forget_failure(context: Context) -> None:
    """Take the sentence of an earlier try from the task's page."""
    if context["ti"].try_number > 1:
        try:
            context["task_state_store"].delete("error")
        except Exception as trouble:
            log.debug("the task's page still shows it: %s", trouble)


def describe_failure(context: Context) -> dict[str, str]:
    """Return subject, cause, next (a command), url, and a message of them all."""
    instance, error = context["ti"], context.get("exception")
    index = getattr(instance, "rendered_map_index", None)
    subject = f"{instance.dag_id}.{instance.task_id}{f' [{index}]' if index else ''} failed"
    if isinstance(error, TidemarkError):
        cause, command = error.message, error.hint
    else:
        cause, command = (f"{type(error).__name__}: {error}" if error else "its process was killed"), ""
    told = {"subject": subject, "cause": cause, "next": command or "./tidemark status"}
    spelling = spelling_of_tasks(os.environ)
    told = {key: escape_invisible(spelling.spell(text)) for key, text in told.items()}
    url = str(getattr(instance, "log_url", "") or "")
    return {**told, "url": url, "message": f"{told['subject']}: {told['cause']}. Next: {told['next']}"}


class Call:
    """A call of `notify`: a notifier of Airflow, or a function, with its arguments.

    A notifier fills in `{{ tidemark.message }}` by itself. The text of an error is never a template: names in it come from
    the edge. Whatever the call raises is one line in the task's log; the run goes on.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.path = str(table["call"])
        self._arguments = {key: value for key, value in table.items() if key not in ("call", "on")}

    def __call__(self, context: Context) -> None:
        try:
            found = find_call(self.path)
            told = {**context, "tidemark": describe_failure(context)}
            if isinstance(found, type):
                found(**self._arguments)(told)
            else:
                found(told, **self._arguments)
        except Exception as error:
            log.warning("%s notified nobody: %s: %s", self.path, type(error).__name__, error)


def find_call(path: str) -> Callable[..., Any]:
    """Import what `call` names. Raises ImportError if it is not there."""
    from airflow.sdk._shared.module_loading import import_string

    found: Callable[..., Any] = import_string(path)
    return found
