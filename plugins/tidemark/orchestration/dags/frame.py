"""What all DAGs have: owner, pool, queue, retries, and who is told, as `[airflow]` of the settings says. And their tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from tidemark.orchestration.dags.docs import spell_doc
from tidemark.orchestration.dags.notices import make_callbacks
from tidemark.orchestration.retry_policy import RETRIES, RETRY_ARGUMENTS
from tidemark.settings.model import AirflowSettings, LinkSettings

ASKING = {"execution_timeout": None, "retries": RETRIES}
"""For a task that asks a person, whatever `default_args` says. A timeout would end the waiting. An answer that comes before
the scheduler has heard that the asking is over fails the try (Airflow 3.3.2): the person is asked again."""
_SECONDS = ("retry_delay", "max_retry_delay", "execution_timeout")
_PAUSED = {"airflow": None, "paused": True, "running": False}


def make_dag(
    dag_id: str,
    doc: str,
    schedule: Any,
    airflow: AirflowSettings,
    *,
    tags: Collection[str],
    params: Mapping[str, Any] | None = None,
) -> DAG:
    """Make a DAG that is named by its id, and described by the first sentence below the title of its `doc`."""
    return DAG(
        dag_id=dag_id,
        dag_display_name=dag_id.replace("_", " "),
        description=doc.split("\n\n")[1].split(". ", maxsplit=1)[0].replace("\n", " ") + ".",
        doc_md=spell_doc(doc),
        schedule=schedule,
        tags={"tidemark", *tags},
        params=dict(params or {}),
        **make_options(airflow),
    )


def make_options(airflow: AirflowSettings, link: LinkSettings | None = None) -> dict[str, Any]:
    """Return the arguments of `DAG` that are the same for all. `link`: its owner, pool and queue go first."""
    return {
        "catchup": False,
        "max_active_runs": 1,
        "is_paused_upon_creation": _PAUSED[airflow.at_creation],
        "default_args": make_default_args(airflow, link),
    }


def make_default_args(airflow: AirflowSettings, link: LinkSettings | None) -> dict[str, Any]:
    """Return what every task of a DAG gets; `default_args` of the settings goes over it."""
    of_link = {key: getattr(link, key) for key in ("owner", "pool", "queue") if link is not None}
    found = {key: of_link.get(key) or getattr(airflow, key) for key in ("owner", "pool", "queue")}
    if not found["queue"]:
        del found["queue"]  # Airflow has a setting for its own
    given = {key: timedelta(seconds=value) if key in _SECONDS else value for key, value in airflow.default_args}
    return {**found, **RETRY_ARGUMENTS, **make_callbacks(airflow), **given}


def make_task(function: Callable[..., Any], **options: Any) -> Any:
    """Return the task that calls `function`; its id is the function's name. `options`: those of Airflow's `task`."""
    # One XCom for each task: a key each would be a request each, about 15 ms of a short step.
    return task(multiple_outputs=False, show_return_value_in_logs=False, **options)(function)
